package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/ephemeral-launcher/launcher/launcher/agent/machine"
	"github.com/ephemeral-launcher/launcher/launcher/agent/output"
	"github.com/ephemeral-launcher/launcher/launcher/agent/process"
	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/control/tunnel"
)

// Options is all an agent has of the world around it. Join's Folder and Workdir, Control and Store are required;
// both folders are made where they are not there.
type Options struct {
	Join    control.Join
	Version string

	Control net.Listener // where the head's connections come in
	Store   net.Listener // what rank processes know as MASTER_ADDR:MASTER_PORT
	API     net.Listener // of the node-local API; nil: none

	Runner  process.Runner       // nil: process.OS{}
	Environ []string             // what processes inherit
	Uptime  func() time.Duration // grows by the time that passes, suspend included, over restarts of the agent; nil: time since New
	Facts   machine.Facts
	Notices []machine.NoticeWatcher
	// WatchFolder is machine.WatchFolder where nil.
	WatchFolder func(ctx context.Context, dir string, began func(), found func(name string)) error
	// MachineLease tells the machine's own timer how long it may live. nil: there is none.
	MachineLease func(context.Context, time.Duration) error
	// PowerOff ends the machine. nil: the command of Join.PowerOff.
	PowerOff func(context.Context) error
	// Rekey replaces the machine's SSH host key by this private one. nil: machine.Rekey.
	Rekey func(ctx context.Context, privateKey string) error

	LogLimit int          // bytes kept of each output; 0: output.DefaultLimit
	Log      *slog.Logger // nil: none
}

// Agent is one agent process. Use New, then Run once.
type Agent struct {
	control.UnimplementedAgentServer

	o        Options
	instance uint64
	token    string // of the node-local API
	log      *slog.Logger
	logs     *output.Log
	store    *tunnel.Mux
	leases   *leases
	reports  *reports
	tasks    chan func(context.Context) // run and awaited by Run
	over     chan struct{}              // closed when Run no longer takes tasks

	mu          sync.Mutex
	epoch       uint64 // guarded by mu, like all below: greatest seen
	session     *session
	newest      uint64      // generation that was started or ended last
	current     *generation // of the newest that was started; nil: none yet
	world       *control.World
	changed     chan struct{} // closed when world or notices change
	version     uint64        // counts those changes
	notices     map[string]*control.Notice
	workdirHash string
	setups      map[string]*control.SetupDone // those that ran; a nil one runs
	checkpoints []*control.Checkpoint
	watched     string // checkpoint folder that is watched
	progressed  time.Time

	files     sync.Mutex // held while a Put swaps folders
	settingUp sync.Mutex // held while a setup runs
	shown     sync.Mutex // held while the files of show are written; mu is not held over disk I/O
}

// New returns an agent that has not begun. It makes the folders.
func New(o Options) (*Agent, error) {
	if o.Join.Folder == "" || o.Control == nil || o.Store == nil {
		return nil, errors.New("new agent: folder, control and store listener are required")
	}
	if o.Join.Workdir == "" {
		o.Join.Workdir = filepath.Join(o.Join.Folder, "workdir")
	}
	began := time.Now()
	if o.Uptime == nil {
		o.Uptime = func() time.Duration { return time.Since(began) + 1 }
	}
	if o.Runner == nil {
		o.Runner = process.OS{}
	}
	if o.WatchFolder == nil {
		o.WatchFolder = machine.WatchFolder
	}
	if o.PowerOff == nil {
		o.PowerOff = machine.PowerOff(o.Join.PowerOff)
	}
	if o.Rekey == nil {
		o.Rekey = machine.Rekey
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	token, err := newToken()
	if err != nil {
		return nil, fmt.Errorf("new agent: %w", err)
	}
	a := &Agent{
		o: o, instance: rand.Uint64() | 1, token: token, log: o.Log,
		logs: output.NewLog(o.LogLimit), store: tunnel.NewOpener(), leases: newLeases(o.Uptime),
		tasks: make(chan func(context.Context)), over: make(chan struct{}),
		changed: make(chan struct{}), notices: map[string]*control.Notice{},
		setups: map[string]*control.SetupDone{},
		world:  &control.World{},
	}
	a.reports = newReports()
	for _, dir := range []string{o.Join.Folder, o.Join.Workdir, a.path("run"), a.path("tmp"), a.path("scratch")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("new agent: %w", err)
		}
	}
	return a, nil
}

// path is a file of the agent's own folder.
func (a *Agent) path(name string) string { return filepath.Join(a.o.Join.Folder, name) }

// Run serves until ctx ends, then kills the rank processes and returns nil. It takes over a node whose former agent
// has died: what that left behind is killed first.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer a.store.Close()
	if err := a.o.Runner.Sweep(ctx, a.markers(), nil); err != nil {
		a.log.Error("sweep of a former agent", "error", err)
	}
	if lease := a.o.Join.NodeLease; lease > 0 {
		a.leases.renew(&control.Renew{NodeLeaseMs: lease.Milliseconds()})
		a.tellMachine(ctx)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	part := func(name string, run func(context.Context) error) {
		wg.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	part("control", func(ctx context.Context) error {
		return control.Serve(ctx, a.o.Control, func(s *grpc.Server) { control.RegisterAgentServer(s, a) })
	})
	part("store", func(ctx context.Context) error { return tunnel.Forward(ctx, a.o.Store, a.store, a.generationNumber) })
	if a.o.API != nil {
		part("api", a.serveAPI)
	}
	part("leases", a.keepLeases)
	for _, w := range a.o.Notices {
		wg.Go(func() { a.watchNotices(ctx, w) })
	}
	a.log.Info("agent runs", "run", a.o.Join.Run, "node", a.o.Join.Node, "version", a.o.Version, "pid", os.Getpid())
	for {
		select {
		case task := <-a.tasks:
			wg.Go(func() { task(ctx) })
		case <-ctx.Done():
			close(a.over)
			a.reports.close()
			wg.Wait()
			if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
				return fmt.Errorf("agent: %w", err)
			}
			return nil
		}
	}
}

// spawn runs task in the life of Run, not of the call that ordered it. After the end of Run it does nothing.
func (a *Agent) spawn(task func(context.Context)) {
	select {
	case a.tasks <- task:
	case <-a.over:
	}
}

// markers are what every process of this node carries in its environment.
func (a *Agent) markers() []string {
	return []string{"LAUNCHER_RUN=" + a.o.Join.Run, "LAUNCHER_NODE=" + a.o.Join.Node}
}

func (a *Agent) generationMarkers(number uint64) []string {
	return append(a.markers(), "LAUNCHER_GENERATION="+strconv.FormatUint(number, 10))
}

func (a *Agent) generationNumber() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.newest
}

// setWorld takes in a world that is not older than the one there is. Callers hold mu.
func (a *Agent) setWorld(w *control.World) {
	if w == nil || w.Generation < a.world.Generation {
		return
	}
	a.world = w
	a.announce()
}

// announce wakes who waits for the world or notices. Callers hold mu, and call show after.
func (a *Agent) announce() {
	close(a.changed)
	a.changed = make(chan struct{})
	a.version++
}

// Tunnel carries the store's streams.
func (a *Agent) Tunnel(stream grpc.BidiStreamingServer[control.Frame, control.Frame]) error {
	return a.store.Attach(stream.Context(), stream)
}

// Logs sends the outputs of processes.
func (a *Agent) Logs(request *control.LogsRequest, stream grpc.ServerStreamingServer[control.LogChunk]) error {
	after := map[output.Key]uint64{}
	if request.Instance == a.instance {
		for _, p := range request.After {
			after[output.Key{
				Generation: p.Stream.GetGeneration(), Rank: p.Stream.GetRank(), Kind: output.Kind(p.Stream.GetKind()),
			}] = p.Offset
		}
	}
	return a.logs.Follow(stream.Context(), after, func(c output.Chunk) error {
		return stream.Send(&control.LogChunk{
			Stream: &control.LogStream{
				Generation: c.Key.Generation, Rank: c.Key.Rank, Kind: control.LogKind(c.Key.Kind),
			},
			Offset: c.Offset, Data: c.Data, Dropped: c.Dropped, NoticeLen: uint32(c.Notice), End: c.End,
		})
	})
}

// hello describes this agent to a head.
func (a *Agent) hello() *control.HelloReport {
	node, member := a.leases.left()
	oldest := a.reports.oldest()
	disk := machine.DiskFree(a.o.Join.Workdir)
	a.mu.Lock()
	defer a.mu.Unlock()
	h := factsReport(a.o.Facts)
	h.Version, h.Instance, h.Pid = a.o.Version, a.instance, uint32(os.Getpid())
	h.DiskFreeBytes = disk
	h.Generation = a.newest
	h.NodeLeaseLeftMs, h.MemberLeaseLeftMs = node.Milliseconds(), member.Milliseconds()
	h.WorkdirHash = a.workdirHash
	h.OldestNumber = oldest
	h.Checkpoints = slices.Clone(a.checkpoints)
	for hash, done := range a.setups {
		if done != nil && done.Error == "" {
			h.SetupDone = append(h.SetupDone, hash)
		}
	}
	slices.Sort(h.SetupDone)
	switch {
	case a.newest == 0:
	case a.current == nil || a.current.number < a.newest:
		h.State = control.GenerationState_ENDED
	default:
		h.State = a.current.state
	}
	return h
}

func factsReport(f machine.Facts) *control.HelloReport {
	h := &control.HelloReport{
		BootId: f.BootID, Hostname: f.Hostname, Os: runtime.GOOS, Arch: runtime.GOARCH,
		Cpus: uint32(f.CPUs), MemoryBytes: f.MemoryBytes, Addresses: f.Addresses,
	}
	for _, g := range f.GPUs {
		h.Gpus = append(h.Gpus, &control.GPU{Model: g.Model, Uuid: g.UUID})
	}
	return h
}
