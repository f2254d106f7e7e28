package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/sim"
)

// life is one run over the simulated cloud, in virtual time: real journal, real loop, and as many processes of the supervisor as
// the test lets die.
type life struct {
	t      *testing.T
	cloud  *sim.Cloud
	door   *journal.Door
	folder string
	keys   *memoryKeys
	job    *jobspec.Job
	mode   Mode
	began  time.Time
	// work is how long the job trains; 0: until it is stopped.
	work  time.Duration
	up    *sync.Map    // machines whose guest runs
	world *fakeWorld   // of the newest process
	jump  atomic.Int64 // how long this process was suspended
}

// memoryKeys are birth keys that outlive a process, as files do.
type memoryKeys struct {
	door *journal.Door
	mu   sync.Mutex // guards kept
	kept map[string]string
}

func (k *memoryKeys) Birth(token string) ([]byte, string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if key, ok := k.kept[token]; ok {
		return []byte(key), "public " + key, nil
	}
	err := k.door.Pass(context.Background(), journal.Effect{Name: "key.write", Operand: token}, func() error {
		k.kept[token] = "key of " + token
		return nil
	})
	return []byte(k.kept[token]), "public " + k.kept[token], err
}

func (k *memoryKeys) Authorized(providers.Role) []string { return []string{"client", "worker"} }

const (
	lifeRun = "life-abc123"
	// headKey is a public key and headDigest what ssh-keygen -l prints of it.
	headKey    = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHD47M+2eEl1mBPH7PE243/qYLPximlHA4SGvJATQbYQ"
	headDigest = "SHA256:QI2XRSf6LAEcR6BvW5wtfs93uLy9LLCc33tjxM4E7IE"
)

func newLife(t *testing.T, opts sim.Options) *life {
	job := testJob()
	job.Workers = jobspec.Workers{Min: 2, Max: 3}
	up := &sync.Map{}
	opts.OnBoot = func(_ context.Context, m providers.Machine, _ providers.CreateRequest) (string, error) {
		up.Store(m.ID, true)
		return "", nil
	}
	l := &life{t: t, up: up, cloud: sim.New(opts), door: &journal.Door{}, folder: t.TempDir(), job: job, began: time.Now(), work: 10 * time.Minute}
	l.keys = &memoryKeys{door: l.door, kept: map[string]string{}}
	t.Cleanup(l.cloud.Close)
	return l
}

func (l *life) options() journal.Options {
	return journal.Options{Clock: func() time.Duration { return time.Since(l.began) + time.Duration(l.jump.Load()) }, Door: l.door, Volatile: true}
}

// create writes the run's first two events, as the library does.
func (l *life) create(ctx context.Context) (*journal.Journal, error) {
	j, err := journal.Create(ctx, l.folder, lifeRun, journal.Created{JobName: "life", ClientKey: "key"}, l.options())
	if err != nil {
		return nil, err
	}
	return j, l.plan(ctx, j)
}

func (l *life) plan(ctx context.Context, j *journal.Journal) error {
	info, err := l.cloud.Info(ctx)
	if err != nil {
		return err
	}
	p := journal.Planned{Provider: "sim", Region: "sim-1", Info: info}
	for role, to := range map[providers.Role]*[]providers.Offer{providers.Head: &p.Head, providers.Worker: &p.Workers} {
		market := providers.Spot
		if role == providers.Head {
			market = providers.OnDemand
		}
		var offers []providers.Offer
		for {
			offers, err = l.cloud.Offers(ctx, providers.OffersRequest{Role: role, Markets: []providers.Market{market}, InstanceTypes: []string{"sim.small"}})
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return err
			}
		}
		*to = slices.DeleteFunc(offers, func(o providers.Offer) bool { return o.Rejected != "" })
	}
	return j.Append(ctx, journal.NewEvent(journal.RunPlanned, "", 0, p))
}

// process runs one process of the supervisor until it ends or dies. Whatever error ends it is its death.
func (l *life) process(ctx context.Context, stop bool) (Outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	j, err := journal.Open(l.folder, l.options())
	if err != nil && strings.Contains(err.Error(), "no event") || errors.Is(err, fs.ErrNotExist) {
		j, err = l.create(ctx)
	} else if err == nil && j.State().Planned == nil && !stop {
		err = l.plan(ctx, j)
	}
	if err != nil {
		if j != nil {
			j.Close()
		}
		return 0, err
	}
	defer j.Close()
	world := &fakeWorld{life: l, journal: j, posts: make(chan func(), 1000), ctx: ctx}
	s := New(Options{
		Job: l.job, Journal: j, Provider: l.cloud, World: world, Mode: l.mode, Keys: l.keys, Owner: "me", Door: l.door,
	})
	l.world = world
	if stop {
		s.Stop(journal.Stopping{Cause: journal.CauseDown})
	}
	world.running.Go(world.run)
	outcome, err := s.Run(ctx)
	cancel()
	world.running.Wait()
	return outcome, err
}

// fakeWorld joins the workers of the roster, forms worlds of them, and reports what happens, as the head's does.
type fakeWorld struct {
	life    *life
	journal *journal.Journal
	posts   chan func()
	running sync.WaitGroup
	ctx     context.Context

	// run's goroutine owns these.
	roster Roster
	trains time.Time
	dead   bool
}

func (w *fakeWorld) post(f func()) {
	select {
	case w.posts <- f:
	case <-w.ctx.Done():
	}
}

func (w *fakeWorld) SetRoster(r Roster) { w.post(func() { w.roster = r }) }
func (w *fakeWorld) Gone(node, evidence string) {
	w.post(func() {
		w.record(journal.NewEvent(journal.NodeLost, node, 0, journal.Lost{Cause: evidence, Evidence: true}))
	})
}

func (w *fakeWorld) Drain(journal.Cause) {
	w.post(func() {
		if g := w.journal.State().Generation; g.Phase == journal.GenFormed {
			w.record(journal.NewEvent(journal.GenerationEnded, "", g.Number, journal.Ended{Cause: "stop"}))
		}
		w.record(journal.NewEvent(journal.RunDrained, "", 0, nil))
	})
}

func (w *fakeWorld) record(events ...journal.Event) bool {
	err := w.journal.Append(w.ctx, events...)
	if err != nil && !errors.Is(err, journal.ErrCannotFollow) {
		w.dead = true // the process cannot write: it is about to end
	}
	return err == nil
}

func (w *fakeWorld) run() {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for !w.dead {
		select {
		case <-w.ctx.Done():
			return
		case f := <-w.posts:
			f()
		case <-tick.C:
			w.look()
		}
	}
	<-w.ctx.Done()
}

// look does what the agents and the rendezvous would have done since it last looked.
func (w *fakeWorld) look() {
	s := w.journal.State()
	alive := map[string]bool{}
	for _, r := range w.life.cloud.World() {
		if _, up := w.life.up.Load(r.ID); up && r.Machine != nil && r.State == providers.Running {
			alive[r.ID] = true
		}
	}
	var fit []*journal.Node
	for _, n := range w.roster.Nodes {
		node := s.Nodes[n.Name]
		if node == nil || node.Machine == nil || n.Address == "" {
			continue
		}
		switch {
		case !alive[node.Machine.ID]:
			if node.JoinedAt >= 0 && node.Suspect == "" && node.Phase == journal.PhaseJoined {
				w.record(journal.NewEvent(journal.NodeSuspect, n.Name, 0, journal.Suspected{Reason: "no answer"}))
			}
			continue
		case node.Phase == journal.PhaseCreated || node.Phase == journal.PhaseReachable:
			w.life.cloud.Reached(node.Machine.ID)
			w.record(journal.NewEvent(journal.NodeReachable, n.Name, 0, journal.Reachable{}))
			if n.Role == providers.Head {
				w.record(journal.NewEvent(journal.NodeRekeyed, n.Name, 0, journal.Rekeyed{HostKey: headKey}))
			}
			w.record(journal.NewEvent(journal.NodeJoined, n.Name, 0, journal.Joined{Procs: 1}))
			continue
		}
		if n.Role == providers.Worker && node.Phase == journal.PhaseJoined && !n.Leaving && node.Notice == nil {
			fit = append(fit, node)
		}
	}
	w.train(s, fit)
}

func (w *fakeWorld) train(s *journal.State, fit []*journal.Node) {
	g := s.Generation
	if s.Stopping != nil {
		return
	}
	same := g.Phase == journal.GenFormed && len(g.Members) == len(fit) && !slices.ContainsFunc(g.Members, func(m journal.Member) bool {
		return !slices.ContainsFunc(fit, func(n *journal.Node) bool { return n.Name == m.Node })
	})
	full := len(fit) == w.roster.Want || g.Number > 0 && len(fit) >= w.life.job.Workers.Min
	if !same && full {
		if g.Phase == journal.GenFormed {
			w.record(journal.NewEvent(journal.GenerationEnded, "", g.Number, journal.Ended{Cause: "change"}))
		}
		f := journal.Formed{Cause: "test"}
		for _, n := range fit {
			f.Members = append(f.Members, journal.Member{Node: n.Name, Slot: n.Slot})
		}
		w.record(journal.NewEvent(journal.GenerationFormed, "", g.Number+1, f))
	}
	if g.Phase == journal.GenFormed && w.trains.IsZero() {
		w.trains = time.Now()
	}
	if w.life.work > 0 && !w.trains.IsZero() && time.Since(w.trains) > w.life.work {
		zero := 0
		w.record(journal.NewEvent(journal.RunStopping, "", 0, journal.Stopping{Cause: journal.CauseSucceeded, Exit: &zero}))
	}
}

// audit is what only the cloud's own ledger says.
func (l *life) audit() error {
	r := sim.Audit(l.cloud.Ledger(), time.Now())
	run := r.Run(lifeRun)
	var problems []error
	if len(r.Untagged) > 0 {
		problems = append(problems, fmt.Errorf("untagged: %v", r.Untagged))
	}
	if len(run.Billing) > 0 {
		problems = append(problems, fmt.Errorf("still billing: %v", run.Billing))
	}
	if len(run.Residue) > 0 && l.mode != ModeHead {
		problems = append(problems, fmt.Errorf("residue: %v", run.Residue))
	}
	return errors.Join(problems...)
}

func (l *life) state() *journal.State {
	events, err := journal.ReadFile(filepath.Join(l.folder, journal.FileName))
	if err != nil {
		l.t.Fatal(err)
	}
	s, err := journal.Fold(events)
	if err != nil {
		l.t.Fatal(err)
	}
	return s
}

func slowCloud(seed uint64) sim.Options {
	return sim.Options{
		Seed: seed, Latency: sim.Dist{Median: 300 * time.Millisecond, Sigma: 0.4, Max: 3 * time.Second}, Boot: sim.Dist{Median: 25 * time.Second, Sigma: 0.3},
		DeleteTime: sim.Dist{Median: 20 * time.Second, Sigma: 0.4}, ConsistencyWindow: 20 * time.Second, Replicas: 2, LateShare: 0.5,
	}
}

func TestLife(t *testing.T) {
	tests := []struct {
		name string
		opts func(*sim.Options)
		job  func(*jobspec.Job)
		mode Mode
		play func(*life) // beside the run
		want func(*testing.T, *life, *journal.State)
	}{
		{name: "up, finish, clean"},
		{name: "the head's tags say where it is, and that it lives", play: func(l *life) {
			time.Sleep(4 * time.Minute)
			for _, r := range l.cloud.World() {
				if r.Machine == nil || r.Tags[providers.TagRole] != string(providers.Head) {
					continue
				}
				expires, err := time.Parse(time.RFC3339, r.Tags[providers.TagExpires])
				if left := time.Until(expires); err != nil || left < 3*time.Minute || left > 5*time.Minute {
					l.t.Errorf("it expires in %v, %v; want between two thirds of a node lease and a whole one", left, err)
				}
				if r.Tags[providers.TagAddress] != r.Machine.Address || r.Tags[providers.TagHostKey] != headDigest {
					l.t.Errorf("tags %v, want address %s and digest %s", r.Tags, r.Machine.Address, headDigest)
				}
			}
		}},
		{name: "on the head", mode: ModeHead, job: func(j *jobspec.Job) { j.Limits.HoldResults = time.Minute }},
		{name: "a notice and a replacement", play: func(l *life) {
			time.Sleep(3 * time.Minute)
			l.notice("w1.1", time.Minute)
		}, want: func(t *testing.T, _ *life, s *journal.State) {
			if n := s.Nodes["w1.2"]; n == nil || n.JoinedAt < 0 || s.Preemptions != 1 {
				t.Errorf("w1.2 is %+v after %d preemptions", n, s.Preemptions)
			}
			if wait := s.Nodes["w1.2"].IntendedAt - s.Nodes["w1.1"].NoticedAt; wait.Duration() > time.Second {
				t.Errorf("the replacement was ordered %v after the notice, want 1s at most", wait.Duration())
			}
		}},
		{name: "two machines die at once", play: func(l *life) {
			time.Sleep(3 * time.Minute)
			l.cloud.KillSilently(l.machine("w0.1"))
			l.cloud.KillSilently(l.machine("w2.1"))
		}, want: func(t *testing.T, _ *life, s *journal.State) {
			if s.Nodes["w0.2"] == nil || s.Nodes["w2.2"] == nil || s.Nodes["w1.2"] != nil {
				t.Error("want replacements in slots 0 and 2 and nowhere else")
			}
		}},
		{name: "replies get lost", play: func(l *life) {
			for _, op := range []string{"create", "create", "delete", "list", "list", "delete"} {
				l.cloud.DropReply(op)
			}
		}},
		{name: "a cloud that fails often", opts: func(o *sim.Options) { o.FailShare = 0.3 }},
		{name: "deletes that are refused, ignored and slow", play: func(l *life) {
			l.cloud.FaultDelete(providers.KindMachine, sim.DeleteFault{Refuse: 5, Ignore: 3, Delay: 2 * time.Minute})
		}},
		{name: "a replacement that never boots", job: func(j *jobspec.Job) { j.Limits.StartTimeout = 3 * time.Minute }, play: func(l *life) {
			time.Sleep(2 * time.Minute)
			l.cloud.NeverBoot(1)
			l.cloud.KillSilently(l.machine("w1.1"))
		}, want: func(t *testing.T, _ *life, s *journal.State) {
			if n := s.Nodes["w1.3"]; n == nil || n.JoinedAt < 0 || s.Stopping.Cause != journal.CauseSucceeded {
				t.Errorf("w1.3 is %+v, stopped %+v", n, s.Stopping)
			}
		}},
		{
			name: "the credentials are refused", play: func(l *life) { l.cloud.FailFor("create", providers.Auth, time.Hour) },
			want: func(t *testing.T, _ *life, s *journal.State) {
				if s.Stopping.Cause != journal.CauseCapacity || s.StoppingAt.Duration() > 10*time.Second {
					t.Errorf("stopped at %v: %+v", s.StoppingAt.Duration(), s.Stopping)
				}
			},
		},
		{name: "the head dies", play: func(l *life) {
			time.Sleep(3 * time.Minute)
			l.cloud.KillSilently(l.machine("head"))
		}, want: func(t *testing.T, _ *life, s *journal.State) {
			if s.Stopping.Cause != journal.CauseLauncher {
				t.Errorf("stopped: %+v", s.Stopping)
			}
		}},
		{name: "budget", job: func(j *jobspec.Job) { j.Limits.BudgetUSD = 0.05 }, want: func(t *testing.T, l *life, s *journal.State) {
			spent := sim.Audit(l.cloud.Ledger(), time.Now()).Run(lifeRun)
			machines := 0.0
			for _, e := range l.cloud.Ledger() {
				if e.Kind == providers.KindMachine {
					machines += e.USD(time.Now())
				}
			}
			if s.Stopping.Cause != journal.CauseLimit || machines > 0.05 || machines < 0.03 {
				t.Errorf("stopped %+v after %.4f USD for machines, %.4f in all", s.Stopping, machines, spent.SpendUSD)
			}
		}},
		{
			name: "quota for two", opts: func(o *sim.Options) { o.Quota = 3 }, job: func(j *jobspec.Job) { j.Workers.Max, j.Workers.Min = 3, 2 },
			want: func(t *testing.T, _ *life, s *journal.State) {
				if s.Stopping.Cause != journal.CauseCapacity {
					t.Errorf("stopped %+v", s.Stopping)
				}
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := slowCloud(1)
				if tt.opts != nil {
					tt.opts(&opts)
				}
				l := newLife(t, opts)
				l.mode = tt.mode
				if tt.job != nil {
					tt.job(l.job)
				}
				var playing sync.WaitGroup
				defer playing.Wait()
				if tt.play != nil {
					playing.Go(func() { tt.play(l) })
					synctest.Wait()
				}
				ctx, cancel := context.WithTimeout(t.Context(), 6*time.Hour)
				defer cancel()
				outcome, err := l.process(ctx, false)
				if err != nil || outcome != Over {
					t.Fatalf("ended %v, %v after %v", outcome, err, time.Since(l.began))
				}
				time.Sleep(5 * time.Minute) // on the head: until its machine is gone
				if err := l.audit(); err != nil {
					t.Error(err)
				}
				s := l.state()
				if (s.Clean != nil) != (tt.mode != ModeHead) {
					t.Errorf("clean: %+v in mode %d", s.Clean, tt.mode)
				}
				if peak := sim.Audit(l.cloud.Ledger(), time.Now()).Run(lifeRun).Peak; peak[providers.Worker] > 4 || peak[providers.Head] > 1 {
					t.Errorf("at most %v machines at once, want 3 workers and one in exchange", peak)
				}
				if tt.want != nil {
					tt.want(t, l, s)
				}
			})
		})
	}
}

// machine is the id of a node's machine.
func (l *life) machine(node string) string {
	n := l.state().Nodes[node]
	if n == nil || n.Machine == nil {
		l.t.Errorf("no machine of %s", node)
		return ""
	}
	return n.Machine.ID
}

// notice preempts a node's machine as the cloud does, and reports what its agent would.
func (l *life) notice(node string, lead time.Duration) {
	l.cloud.Reclaim(l.machine(node), lead)
	w := l.world
	w.post(func() {
		deadline := journal.At(w.journal.Now() + lead)
		w.record(journal.NewEvent(journal.NodeNotice, node, 0, journal.Noticed{Source: "test", DeadlineAt: &deadline}))
	})
}

func TestHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLife(t, slowCloud(3))
		ctx := t.Context()
		j, err := l.create(ctx)
		if err != nil {
			t.Fatal(err)
		}
		ready := make(chan struct{})
		launch := New(Options{Job: l.job, Journal: j, Provider: l.cloud, Mode: ModeLaunch, Keys: l.keys, Owner: "me", HandOver: ready})
		time.AfterFunc(700*time.Millisecond, func() { close(ready) }) // the create calls are under way
		outcome, err := launch.Run(ctx)
		if err != nil || outcome != HandingOver {
			t.Fatalf("launch ended %v, %v", outcome, err)
		}
		for _, n := range j.State().List("") {
			if n.Phase == journal.PhaseIntended {
				t.Errorf("%s: a call was under way at the hand-over", n.Name)
			}
		}
		if err := j.Append(ctx, journal.NewEvent(journal.HandoverOffered, "", 0, journal.Handover{Epoch: 2})); err != nil {
			t.Fatal(err)
		}
		// Who has offered the run does nothing any more.
		if _, err := launch.Run(ctx); !errors.Is(err, ErrFenced) {
			t.Errorf("after the offer Run returns %v, want ErrFenced", err)
		}
		calls := l.cloud.Calls()
		time.Sleep(time.Minute)
		if now := l.cloud.Calls(); now["create"] != calls["create"] || now["delete"] != calls["delete"] || now["update"] != calls["update"] {
			t.Errorf("calls after the offer: %v, before %v", now, calls)
		}
		j.Close()
	})
}

// TestFencedWhileRunning: another epoch appears in the journal of a supervisor that runs.
func TestFencedWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLife(t, slowCloud(4))
		j, err := l.create(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		s := New(Options{Job: l.job, Journal: j, Provider: l.cloud, Mode: ModeLaunch, Keys: l.keys, Owner: "me"})
		time.AfterFunc(time.Minute, func() {
			_ = j.Append(t.Context(), journal.NewEvent(journal.HandoverAccepted, "", 0, journal.Handover{Epoch: 2}))
		})
		if _, err := s.Run(t.Context()); !errors.Is(err, ErrFenced) {
			t.Errorf("got %v, want ErrFenced", err)
		}
		if got := time.Since(l.began); got > time.Minute+5*time.Second {
			t.Errorf("it went on until %v", got)
		}
	})
}

// TestWasAway: a laptop that slept looks at what there is before it does anything.
func TestWasAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLife(t, slowCloud(5))
		var effects []string
		var mu sync.Mutex // guards effects
		l.door.Guard = func(_ int, e journal.Effect, act func() error) error {
			mu.Lock()
			effects = append(effects, e.Name)
			mu.Unlock()
			return act()
		}
		time.AfterFunc(3*time.Minute, func() {
			l.cloud.KillSilently(l.machine("w1.1"))
			l.world.post(func() {
				mu.Lock()
				effects = nil
				mu.Unlock()
				l.jump.Store(int64(3 * time.Minute))
				l.world.record(journal.NewEvent(journal.NodeLost, "w1.1", 0, journal.Lost{Cause: "silent"}))
			})
		})
		if _, err := l.process(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		acts := slices.DeleteFunc(effects, func(e string) bool { return !strings.HasPrefix(e, "provider.") })
		if len(acts) == 0 || acts[0] != "provider.list" {
			t.Errorf("after three minutes of sleep it did %v, want a listing first", acts[:min(len(acts), 5)])
		}
		if err := l.audit(); err != nil {
			t.Error(err)
		}
	})
}

// TestWorldCannotWrite: when an append of the world fails the supervisor ends too, and does not wait for its own next one.
func TestWorldCannotWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLife(t, slowCloud(6))
		full := errors.New("disk full")
		var failed time.Time
		l.door.Guard = func(_ int, e journal.Effect, act func() error) error {
			if e.Operand == string(journal.GenerationFormed) {
				failed = time.Now()
				return full
			}
			return act()
		}
		if _, err := l.process(t.Context(), false); !errors.Is(err, full) || time.Since(failed) > time.Second {
			t.Errorf("Run ended with %v, %v after the disk was full", err, time.Since(failed))
		}
		l.door.Guard = nil
		if _, err := l.process(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if err := l.audit(); err != nil {
			t.Error(err)
		}
	})
}

// TestRecordThatCannotFollow: what the journal refuses is not tried again at once.
func TestRecordThatCannotFollow(t *testing.T) {
	l := newLife(t, sim.Options{})
	j, err := l.create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	loop := &loop{Supervisor: New(Options{Job: l.job, Journal: j}), failed: map[string]Backoff{}}
	in := journal.Intended{Role: providers.Head, Slot: -1, Attempt: 1, Token: "t", Count: 1}
	if err := j.Append(t.Context(), journal.NewEvent(journal.NodeIntended, "head", 0, in)); err != nil {
		t.Fatal(err)
	}
	a := Record{Events: []journal.Event{journal.NewEvent(journal.NodeDeleted, "head", 0, nil)}}
	wrote, err := loop.act(t.Context(), a)
	if wrote || err != nil || loop.failed[a.Key()].Count != 1 {
		t.Errorf("wrote %v, %v, %+v; want nothing written and a pause", wrote, err, loop.failed)
	}
}

func TestScale(t *testing.T) {
	tests := []struct {
		name    string
		fixed   bool
		workers int
		ok      bool
	}{
		{"below min", false, 1, false},
		{"min", false, 2, true},
		{"max", false, 4, true},
		{"above max", false, 5, false},
		{"none", true, 0, false},
		{"a fixed world takes any count", true, 9, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := New(Options{Job: &jobspec.Job{Workers: jobspec.Workers{Min: 2, Max: 4, Fixed: tt.fixed}}})
			if err := s.Scale(tt.workers, "me"); (err == nil) != tt.ok {
				t.Errorf("scale to %d: %v", tt.workers, err)
			}
		})
	}
}

// TestRoster says who is on it, and what the world is to make of them.
func TestRoster(t *testing.T) {
	m := newModel(t, testJob(), ModeClient)
	m.start()
	m.say(journal.NodeLost, "w0.1", 0, journal.Lost{Cause: "silent"})
	m.answer()
	m.say(journal.RunScaled, "", 0, journal.Scaled{Workers: 2})
	m.say(journal.NodeNotice, "w1.1", 0, journal.Noticed{})
	got := ""
	r := RosterOf(m.job, m.state)
	for _, n := range r.Nodes {
		got += fmt.Sprintf("%s@%s leaving=%v ", n.Name, n.Address, n.Leaving)
	}
	want := "head@m0:22 leaving=false w0.2@m4:22 leaving=false w1.1@m2:22 leaving=false w2.1@m3:22 leaving=true "
	if got != want || r.Want != 2 {
		t.Errorf("got  %swant %d\nwant %s", got, r.Want, want)
	}
}

// TestResumedLooksFirst: a new process does not trust what the old one knew.
func TestResumedLooksFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLife(t, slowCloud(7))
		ctx, kill := context.WithTimeout(t.Context(), 3*time.Minute)
		defer kill()
		if _, err := l.process(ctx, false); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("the first process ended with %v", err)
		}
		var mu sync.Mutex // guards listed and early
		listed, early := false, ""
		l.door.Guard = func(_ int, e journal.Effect, act func() error) error {
			mu.Lock()
			if !listed && strings.HasPrefix(e.Name, "provider.") && e.Name != "provider.list" {
				early = e.Name
			}
			mu.Unlock()
			err := act()
			mu.Lock()
			listed = listed || err == nil && e.Name == "provider.list"
			mu.Unlock()
			return err
		}
		if _, err := l.process(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if early != "" {
			t.Errorf("the second process did %s before its first listing had come in", early)
		}
		if err := l.audit(); err != nil {
			t.Error(err)
		}
	})
}

// TestNothingIsRentedAfterTheStop: the stop may come between a decision and the deed.
func TestNothingIsRentedAfterTheStop(t *testing.T) {
	l := newLife(t, sim.Options{})
	j, err := l.create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	in := journal.Intended{Role: providers.Head, Slot: -1, Attempt: 1, Token: "t", Count: 1, Min: 1, Offers: j.State().Planned.Head}
	for _, e := range []journal.Event{
		journal.NewEvent(journal.NodeIntended, "head", 0, in), journal.NewEvent(journal.RunStopping, "", 0, journal.Stopping{Cause: journal.CauseDown}),
	} {
		if err := j.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	loop := &loop{
		Supervisor: New(Options{Job: l.job, Journal: j, Provider: l.cloud, Keys: l.keys, Owner: "me"}), busy: map[string]bool{}, failed: map[string]Backoff{},
		results: make(chan result, 2),
	}
	again := Create{Token: "t", Nodes: []string{"head"}, Want: in}
	in.Role, in.Token, in.Offers = providers.Worker, "u", j.State().Planned.Workers
	for _, a := range []Create{again, {Token: "u", Nodes: []string{"w0.1"}, Want: in, New: true}} {
		if wrote, err := loop.act(t.Context(), a); wrote || err != nil {
			t.Errorf("%s: wrote %v, %v", a.Token, wrote, err)
		}
	}
	loop.running.Wait()
	if got := l.cloud.Calls()["create"]; got != 0 {
		t.Errorf("%d create calls after the stop", got)
	}
}

// TestStaleDecision: a process that was stopped between the decision and the deed does not do it.
func TestStaleDecision(t *testing.T) {
	l := newLife(t, sim.Options{})
	j, err := l.create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	loop := &loop{Supervisor: New(Options{Job: l.job, Journal: j})}
	did := 0
	act := func() error { did++; return nil }
	if err := loop.pass(t.Context(), journal.Effect{}, act); err != nil || did != 1 {
		t.Errorf("fresh: %v, done %d times", err, did)
	}
	l.jump.Store(int64(3 * time.Minute))
	if err := loop.pass(t.Context(), journal.Effect{}, act); !errors.Is(err, errAway) || did != 1 {
		t.Errorf("three minutes later: %v, done %d times", err, did)
	}
}
