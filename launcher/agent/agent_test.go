package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ephemeral-launcher/launcher/launcher/agent/process"
	"github.com/ephemeral-launcher/launcher/launcher/control"
)

// rig is an agent and the listeners it was handed.
type rig struct {
	*Agent
	t       *testing.T
	control *bufconn.Listener
	store   *bufconn.Listener
	runner  *fakeRunner
	stop    func()
	offs    chan time.Time // power-offs
}

// newRig runs an agent in memory until the test ends. change may set other options.
func newRig(t *testing.T, change func(*Options)) *rig {
	t.Helper()
	r := &rig{
		t: t, control: bufconn.Listen(64 << 10), store: bufconn.Listen(64 << 10),
		runner: newFakeRunner(), offs: make(chan time.Time, 100),
	}
	o := Options{
		Join:    control.Join{Run: "r-1", Node: "n0", Slot: 3, Folder: t.TempDir()},
		Version: "test", Control: r.control, Store: r.store, Runner: r.runner,
		WatchFolder: func(ctx context.Context, _ string, began func(), _ func(string)) error {
			began()
			<-ctx.Done()
			return nil
		},
		PowerOff: func(context.Context) error {
			r.offs <- time.Now()
			return nil
		},
		Environ: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")},
	}
	if testing.Verbose() {
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	if change != nil {
		change(&o)
	}
	var err error
	if r.Agent, err = New(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("run: %v", err)
			}
		})
	}
	t.Cleanup(r.stop)
	return r
}

// head is a connection to the agent and, after hello, a session.
type head struct {
	control.AgentClient
	t       *testing.T
	conn    *grpc.ClientConn
	session control.Agent_SessionClient
	hello   *control.HelloReport
	stamp   int64
	seen    uint64
	seq     uint64
}

func (r *rig) dial() *head {
	r.t.Helper()
	conn, err := r.control.DialContext(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	client, err := control.DialConn(conn)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { client.Close() })
	return &head{AgentClient: control.NewAgentClient(client), t: r.t, conn: client}
}

// join dials and opens a session as a new head does, with leases of a minute and ten seconds.
func (r *rig) join() *head {
	r.t.Helper()
	h := r.dial()
	h.begin(&control.HelloOrder{Run: "r-1", Node: "n0", Epoch: 1, Renew: &control.Renew{
		NodeLeaseMs: 60_000, MemberLeaseMs: 10_000,
	}})
	return h
}

func (h *head) begin(hello *control.HelloOrder) {
	h.t.Helper()
	var err error
	if h.session, err = h.Session(context.Background()); err != nil {
		h.t.Fatal(err)
	}
	h.send(&control.Order{Body: &control.Order_Hello{Hello: hello}})
	h.hello = await(h, (*control.Report).GetHello)
}

func (h *head) send(o *control.Order) {
	h.t.Helper()
	if err := h.session.Send(o); err != nil {
		h.t.Fatal(err)
	}
}

func (h *head) renew() {
	h.seq++
	h.send(&control.Order{Received: h.seen, Body: &control.Order_Renew{Renew: &control.Renew{
		Seq: h.seq, HeardStampNs: h.stamp, NodeLeaseMs: 60_000, MemberLeaseMs: 10_000,
	}}})
	await(h, (*control.Report).GetAck)
}

// await takes reports until one fits.
func await[T any](h *head, pick func(*control.Report) *T) *T {
	h.t.Helper()
	for {
		r, err := h.session.Recv()
		if err != nil {
			h.t.Fatalf("await %T: %v", (*T)(nil), err)
		}
		h.stamp = r.StampNs
		h.seen = max(h.seen, r.Number)
		if got := pick(r); got != nil {
			return got
		}
	}
}

func world(generation uint64) *control.World {
	return &control.World{Generation: generation, Members: []*control.Member{
		{Node: "n9", Slot: 0, GroupRank: 0, Address: "10.0.0.9", Procs: 2},
		{Node: "n0", Slot: 3, GroupRank: 1, Address: "10.0.0.1", Procs: 2, FirstRank: 2},
	}}
}

func startOrder(generation uint64, procs uint32, command string) *control.Order {
	return &control.Order{Body: &control.Order_Start{Start: &control.Start{
		World: world(generation), Command: command, GroupRank: 1, Procs: procs, FirstRank: 2, WorldSize: 4,
	}}}
}

func endOrder(generation uint64, mode control.EndMode, signal string, grace time.Duration) *control.Order {
	return &control.Order{Body: &control.Order_End{End: &control.End{
		Generation: generation, Mode: mode, Signal: signal, GraceMs: grace.Milliseconds(),
	}}}
}

// fakeRunner runs nothing: its processes live until a signal that obeys lets them end.
type fakeRunner struct {
	began time.Time

	mu      sync.Mutex
	procs   []*fakeProcess // guarded by mu, like all below
	events  []string       // signals and sweeps, with the seconds since the beginning
	obeys   func(told bool, sig syscall.Signal) (process.Exit, bool)
	started chan *fakeProcess
	fail    error // of the next start
}

func newFakeRunner() *fakeRunner {
	return &fakeRunner{began: time.Now(), started: make(chan *fakeProcess, 100), obeys: diesOf(syscall.SIGTERM)}
}

// diesOf obeys SIGKILL and the given signals.
func diesOf(sigs ...syscall.Signal) func(bool, syscall.Signal) (process.Exit, bool) {
	return func(_ bool, sig syscall.Signal) (process.Exit, bool) {
		for _, s := range append(sigs, syscall.SIGKILL) {
			if s == sig {
				return process.Exit{Code: -1, Signal: unix.SignalName(sig)}, true
			}
		}
		return process.Exit{}, false
	}
}

type fakeProcess struct {
	r      *fakeRunner
	pid    int
	spec   process.Spec
	exited chan process.Exit
	once   sync.Once
}

func (r *fakeRunner) Start(s process.Spec) (process.Process, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fail; err != nil {
		r.fail = nil
		return nil, err
	}
	p := &fakeProcess{r: r, pid: 1000 + len(r.procs), spec: s, exited: make(chan process.Exit, 1)}
	r.procs = append(r.procs, p)
	r.started <- p
	return p, nil
}

func (r *fakeRunner) Sweep(_ context.Context, markers []string, _ []int) error {
	if len(markers) > 2 {
		r.note("sweep " + strings.TrimPrefix(markers[2], "LAUNCHER_GENERATION="))
	}
	return nil
}

func (r *fakeRunner) note(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf("%v %s", time.Since(r.began), what))
}

func (r *fakeRunner) log() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.events...)
}

func (p *fakeProcess) exit(e process.Exit) { p.once.Do(func() { p.exited <- e }) }

func (p *fakeProcess) signalled(told bool, sig syscall.Signal, verb string) error {
	p.r.note(fmt.Sprintf("%s %d %s", verb, p.pid, unix.SignalName(sig)))
	if e, ok := p.r.obeys(told, sig); ok {
		p.exit(e)
	}
	return nil
}

func (p *fakeProcess) Pid() int                        { return p.pid }
func (p *fakeProcess) Wait() process.Exit              { return <-p.exited }
func (p *fakeProcess) Drain(time.Duration)             {}
func (p *fakeProcess) Close()                          {}
func (p *fakeProcess) Signal(sig syscall.Signal) error { return p.signalled(false, sig, "signal") }
func (p *fakeProcess) Tell(sig syscall.Signal) error   { return p.signalled(true, sig, "tell") }
func (p *fakeProcess) write(s string)                  { io.WriteString(p.spec.Stdout, s) }
func variables(env []string) (vars map[string]string) {
	vars = map[string]string{}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		vars[name] = value
	}
	return vars
}

// listen is a loopback listener of a test with real processes.
func listen(t *testing.T) net.Listener {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return lis
}

func fifoAt(path string) error { return unix.Mkfifo(path, 0o600) }
