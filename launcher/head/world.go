package head

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap"
	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/launcher/rendezvous"
	"github.com/ephemeral-launcher/launcher/launcher/rendezvous/tcpstore"
	"github.com/ephemeral-launcher/launcher/launcher/supervisor"
	"github.com/ephemeral-launcher/launcher/providers"
)

// WorldConfig is what a World works with.
type WorldConfig struct {
	RunID string
	Epoch uint64
	Job   *jobspec.Job
	Info  providers.Info
	// WorkerKey is the private half of the run's worker key, PEM.
	WorkerKey []byte
	Secrets   map[string]string
	Binaries  *bootstrap.Binaries
	// Workdir is the archive of the working folder and its content hash; both empty: none.
	Workdir, WorkdirHash string
	// Folder holds logs, checkpoints and outputs.
	Folder string
	Clock  journal.Clock
	Record supervisor.Recorder
	Past   rendezvous.Past
	// Notices are the deadlines of the preemptions that an older head process knew of, on the run clock, by node: an agent tells of one once.
	Notices map[string]time.Duration
	// Lease returns how long the nodes' lease may be made: the authority of whoever supervises, handed on.
	Lease func() time.Duration
	// Network is what the World reaches its workers through; the zero value is the real one.
	Network Network
	Log     *slog.Logger
}

// World drives the workers on the roster. It implements supervisor.World. Use NewWorld, then Run.
type World struct {
	WorldConfig
	posts chan func(*worldLoop)
	done  chan struct{}
	logs  *LogFile
}

// NewWorld returns a world without nodes.
func NewWorld(cfg WorldConfig) (*World, error) {
	logs, err := OpenLogFile(cfg.Folder)
	if err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &World{WorldConfig: cfg, posts: make(chan func(*worldLoop), 64), done: make(chan struct{}), logs: logs}, nil
}

// Logs is the merged output file.
func (w *World) Logs() *LogFile { return w.logs }

// post hands f to the goroutine that owns the state.
func (w *World) post(f func(*worldLoop)) {
	select {
	case w.posts <- f:
	case <-w.done:
	}
}

// SetRoster implements supervisor.World.
func (w *World) SetRoster(r supervisor.Roster) { w.post(func(l *worldLoop) { l.setRoster(r) }) }

// Gone implements supervisor.World.
func (w *World) Gone(node, evidence string) {
	w.post(func(l *worldLoop) { l.step(rendezvous.Gone{Node: node, Evidence: evidence}) })
}

// Drain implements supervisor.World.
func (w *World) Drain(cause journal.Cause) { w.post(func(l *worldLoop) { l.drain(cause) }) }

// Renew hands the node lease on at once, instead of with the next beat: for a supervisor whose own renewal came late.
func (w *World) Renew() { w.post(func(l *worldLoop) { l.beatAll() }) }

// worldLoop is the state that Run's goroutine owns.
type worldLoop struct {
	*World
	ctx     context.Context
	running sync.WaitGroup
	core    *rendezvous.Core
	server  *tcpstore.Server
	meeting atomic.Pointer[meeting] // of the last generation; written by the loop, read by the server's hook
	links   map[string]*link
	// dismissed are nodes that were given up and are listed still: a roster may be older than the event that says so.
	dismissed map[string]bool
	// parting are nodes that no roster lists any more and that the core still knows: they get no rank again.
	parting  map[string]rendezvous.Expected
	roster   supervisor.Roster
	recorder *recorder
	files    *files

	generation rendezvous.Form // the last one formed
	formed     bool            // it is running or ending
	notices    map[string]*control.NodeNotice
	held       journal.Forming // the last generation.forming recorded while waiting
	draining   bool
	finished   bool // the core has said its last word
	collecting bool
	drained    bool
	beat       *time.Ticker
}

// Run drives the world until ctx ends. The agents and their processes live on until their leases end them.
func (w *World) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	e := w.Job.Elastic
	l := &worldLoop{
		World: w, ctx: ctx, links: map[string]*link{}, dismissed: map[string]bool{}, parting: map[string]rendezvous.Expected{}, notices: map[string]*control.NodeNotice{},
		core: rendezvous.New(rendezvous.Config{
			Min: w.Job.Workers.Min, Max: w.Job.Workers.Max, Fixed: w.Job.Workers.Fixed, Procs: max(w.Job.Run.ProcsPerNode, 1),
			OneExit: w.Job.Run.Type == jobspec.RunTorchrun, StartWait: e.StartWait, LostAfter: e.LostAfter, GrowEvery: e.GrowEvery,
			BelowMin: e.BelowMin, Grace: w.Job.Preemption.Grace, Signal: w.Job.Preemption.Signal, MaxRestarts: e.MaxRestarts,
			Checkpoints: w.Job.Checkpoint != nil, Coalesce: rendezvous.DefaultCoalesce,
		}, w.Past),
	}
	l.server = tcpstore.New(storeOptions(&l.meeting))
	l.generation.Generation = w.Past.Generation
	for _, node := range slices.Sorted(maps.Keys(w.Notices)) {
		l.remember(node, w.Notices[node])
	}
	l.recorder = newRecorder(ctx, w)
	l.files = newFiles(w.Folder, w.Job)
	// A quarter of the member lease: three beats may be lost before an agent doubts, and none is owed to bad luck.
	l.beat = time.NewTicker(e.LostAfter / 4)
	defer func() {
		cancel()
		close(w.done) // before the waits below: a link that has something to post ends with it
		l.beat.Stop()
		l.running.Wait()
		l.recorder.wait()
		l.logs.Close()
	}()
	outputs := time.NewTicker(time.Minute)
	defer outputs.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if at, ok := l.core.Next(); ok {
			timer.Reset(max(at-w.Clock(), 0))
		} else {
			timer.Reset(time.Hour)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case f := <-w.posts:
			f(l)
		case <-timer.C:
			l.step(rendezvous.Tick{})
		case <-l.beat.C:
			l.beatAll()
		case <-outputs.C:
			l.saveOutputs(false)
		case err := <-l.recorder.failed:
			return err
		}
	}
}

// start runs f beside the loop and awaits it at the end.
func (l *worldLoop) start(f func()) { l.running.Go(f) }

// record journals events in order; then, if not nil, runs on the loop once they are on disk or were refused.
func (l *worldLoop) record(then func(*worldLoop, error), events ...journal.Event) {
	l.recorder.put(entry{events: events, then: then})
}

// setRoster takes in which nodes there are.
func (l *worldLoop) setRoster(r supervisor.Roster) {
	l.roster = r
	listed := map[string]bool{}
	var expected rendezvous.Roster
	for _, n := range r.Nodes {
		if n.Role != providers.Worker {
			continue
		}
		listed[n.Name] = true
		expected.Nodes = append(expected.Nodes, rendezvous.Expected{Node: n.Name, Slot: n.Slot, Attempt: n.Attempt, Coming: true, Leaving: n.Leaving})
		switch k := l.links[n.Name]; {
		case n.Address == "" || l.dismissed[n.Name]:
			// It is being rented: expected, or a world would start without it. Or it was given up.
		case k != nil:
			k.update(n)
		default:
			k = newLink(l.World, n)
			l.links[n.Name] = k
			l.start(func() { k.run(l.ctx) })
		}
	}
	for name, k := range l.links {
		if listed[name] {
			continue
		}
		delete(l.notices, name)
		if k.member {
			l.parting[name] = rendezvous.Expected{Node: name, Slot: k.slot, Attempt: k.attempt, Leaving: true}
			continue
		}
		k.stop()
		delete(l.links, name)
	}
	for _, name := range slices.Sorted(maps.Keys(l.parting)) {
		expected.Nodes = append(expected.Nodes, l.parting[name])
	}
	l.part()
	maps.DeleteFunc(l.dismissed, func(name string, _ bool) bool { return !listed[name] })
	if r.Want > 0 {
		l.step(rendezvous.Scale{Workers: r.Want})
	}
	l.step(expected)
}

// part lets go of the nodes that no roster lists any more, once none of their processes is waited for: until then they are to be
// told to end them, and heard.
func (l *worldLoop) part() {
	for name := range l.parting {
		k := l.links[name]
		if k == nil || l.formed && slices.ContainsFunc(l.generation.Members, func(m rendezvous.Member) bool { return m.Node == name }) {
			continue
		}
		k.stop()
		delete(l.links, name)
	}
}

// step feeds the core and carries out what it says.
func (l *worldLoop) step(in rendezvous.Input) {
	for _, out := range l.core.Step(l.Clock(), in) {
		switch o := out.(type) {
		case rendezvous.Form:
			l.form(o)
		case rendezvous.End:
			l.end(o)
		case rendezvous.Closed:
			l.closed(o)
		case rendezvous.Lost:
			l.lost(o)
		case rendezvous.Charged:
			l.record(nil, journal.NewEvent(journal.JobCharged, o.Node, o.Generation, journal.Charged{Rank: o.Rank, Code: o.Code, Restarts: o.Restarts, Max: o.Max}))
		case rendezvous.Hold:
			l.hold(o)
		case rendezvous.Finish:
			l.finish(o)
		}
	}
	l.collect()
}

// form starts a generation: its number is on disk first, then the newest checkpoint is on every member, then the processes start.
func (l *worldLoop) form(f rendezvous.Form) {
	l.generation, l.formed = f, true
	l.held = journal.Forming{}
	l.server.SetStore(tcpstore.NewStore(tcpstore.Limits{}))
	l.meeting.Store(newMeeting(f.Members))
	var members []journal.Member
	for _, m := range f.Members {
		members = append(members, journal.Member{Node: m.Node, Slot: m.Slot, GroupRank: m.GroupRank, FirstRank: m.FirstRank, Procs: m.Procs})
	}
	l.record(func(l *worldLoop, err error) {
		if err == nil && l.formed && l.generation.Generation == f.Generation {
			l.distribute(f)
		}
	}, journal.NewEvent(journal.GenerationForming, "", f.Generation, journal.Forming{Cause: string(f.Cause), Have: len(members), Want: l.roster.Want}),
		journal.NewEvent(journal.GenerationFormed, "", f.Generation, journal.Formed{Cause: string(f.Cause), WorldSize: f.WorldSize, Members: members}))
}

// launchGeneration orders the members to start their processes.
func (l *worldLoop) launchGeneration(f rendezvous.Form) {
	if !l.formed || l.generation.Generation != f.Generation {
		return
	}
	world := l.worldMessage()
	lease := l.Lease()
	for _, m := range f.Members {
		if k := l.links[m.Node]; k != nil {
			// An agent whose lease has run out and who is heard again starts nothing before the next beat.
			k.beat(lease)
			k.order(&control.Order{Body: &control.Order_Start{Start: l.startMessage(f, m, world)}})
		}
	}
}

func (l *worldLoop) startMessage(f rendezvous.Form, m rendezvous.Member, world *control.World) *control.Start {
	kind := control.RunKind_RANKS
	if l.Job.Run.Type == jobspec.RunTorchrun {
		kind = control.RunKind_TORCHRUN
	}
	s := &control.Start{
		World: world, Kind: kind, Command: l.Job.Run.Command, GroupRank: uint32(m.GroupRank), Procs: uint32(m.Procs), FirstRank: uint32(m.FirstRank),
		WorldSize: uint32(f.WorldSize), Restarts: uint32(f.Restarts), MaxRestarts: uint32(l.Job.Elastic.MaxRestarts), Env: maps.Clone(l.Job.Env), Secrets: l.Secrets,
	}
	if l.Job.Checkpoint != nil {
		s.Checkpoint = l.Job.Checkpoint.Path
	}
	return s
}

// worldMessage is what the nodes are told of the world.
func (l *worldLoop) worldMessage() *control.World {
	w := &control.World{Generation: uint64(l.generation.Generation)}
	for _, m := range l.generation.Members {
		w.Members = append(w.Members, &control.Member{Node: m.Node, Slot: uint32(m.Slot), GroupRank: uint32(m.GroupRank), Address: m.Addr, Procs: uint32(m.Procs), FirstRank: uint32(m.FirstRank)})
	}
	for _, name := range slices.Sorted(maps.Keys(l.notices)) {
		w.Notices = append(w.Notices, l.notices[name])
	}
	return w
}

func (l *worldLoop) end(e rendezvous.End) {
	order := &control.End{Generation: uint64(e.Generation), Mode: control.EndMode_AFTER_LOSS}
	if e.Graceful {
		order.Mode, order.Signal, order.GraceMs = control.EndMode_ON_PURPOSE, l.Job.Preemption.Signal, l.Job.Preemption.Grace.Milliseconds()
	}
	for _, name := range e.Nodes {
		if k := l.links[name]; k != nil {
			k.order(&control.Order{Body: &control.Order_End{End: order}})
		}
	}
}

func (l *worldLoop) closed(c rendezvous.Closed) {
	l.formed = false
	l.part()
	l.record(nil, journal.NewEvent(journal.GenerationEnded, "", c.Generation, journal.Ended{Cause: string(c.Cause)}))
}

// dismiss has nothing to do with a node any more, also while rosters still list it.
func (l *worldLoop) dismiss(node string) {
	l.server.CloseNode(node)
	if k := l.links[node]; k != nil {
		k.stop()
		delete(l.links, node)
	}
	delete(l.notices, node)
	delete(l.parting, node)
	l.dismissed[node] = true
}

func (l *worldLoop) lost(o rendezvous.Lost) {
	l.dismiss(o.Node)
	l.record(nil, journal.NewEvent(journal.NodeLost, o.Node, 0, journal.Lost{Cause: o.Cause, Evidence: o.Cause != rendezvous.LostSilent}))
}

// hold records that training waits, each time the numbers change.
func (l *worldLoop) hold(h rendezvous.Hold) {
	f := journal.Forming{Cause: "waiting for workers", Have: h.Have, Want: h.Want}
	if f == l.held {
		return
	}
	l.held = f
	l.record(nil, journal.NewEvent(journal.GenerationForming, "", l.generation.Generation+1, f))
}

// finish records how the job ended. What Drain asked for is not the job's end: that is known already.
func (l *worldLoop) finish(f rendezvous.Finish) {
	l.finished = true
	why := journal.Stopping{Node: f.Node}
	switch f.Cause {
	case rendezvous.FinishSuccess:
		zero := 0
		why.Cause, why.Exit = journal.CauseSucceeded, &zero
	case rendezvous.FinishJobFailed:
		code := f.ExitCode
		why.Cause, why.Rank, why.Text = journal.CauseFailed, &f.Rank, "rank "+itoa(f.Rank)+" failed once more than max_restarts allows"
		if f.Signal != "" {
			code, why.Text = 119, why.Text+" ("+f.Signal+")"
		}
		why.Exit = &code
	case rendezvous.FinishTooFew:
		why.Cause, why.Text = journal.CauseTooFew, "fewer than "+itoa(l.Job.Workers.Min)+" workers for longer than below_min"
	default:
		return
	}
	l.record(nil, journal.NewEvent(journal.RunStopping, f.Node, 0, why))
}

// drain ends the world in order.
func (l *worldLoop) drain(cause journal.Cause) {
	if l.drained {
		l.record(nil, journal.NewEvent(journal.RunDrained, "", 0, nil))
		return
	}
	if !l.draining {
		l.draining = true
		l.step(rendezvous.Stop{Reason: string(cause)})
	}
	l.collect()
}

// collect fetches outputs once the last process has ended, and reports that the world is drained.
func (l *worldLoop) collect() {
	if !l.draining || !l.finished || l.formed || l.collecting || l.drained {
		return
	}
	l.collecting = true
	l.saveOutputs(true)
}

// beatAll sends every link's beat.
func (l *worldLoop) beatAll() {
	lease := l.Lease()
	for _, k := range l.links {
		k.beat(lease)
	}
}
