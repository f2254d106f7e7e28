package head

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshd"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
	"github.com/ephemeral-launcher/launcher/launcher/agent"
	"github.com/ephemeral-launcher/launcher/launcher/agent/process"
	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/launcher/supervisor"
	"github.com/ephemeral-launcher/launcher/providers"
)

// BenchmarkHead measures a head process with so many workers: real SSH over loopback and real agents, whose processes only are make-believe. The
// agents live in this process, the head in a child that is measured.
func BenchmarkHead(b *testing.B) {
	if runtime.GOOS != "linux" {
		b.Skip("reads /proc")
	}
	for _, n := range []int{1, 64, 1000} {
		b.Run(fmt.Sprintf("workers=%d", n), func(b *testing.B) {
			for b.Loop() {
				r, err := measureHead(b, n)
				if err != nil {
					b.Error(err)
					return
				}
				b.ReportMetric(float64(r.RSS)/(1<<20), "MiB-RSS")
				b.ReportMetric(r.Formed.Seconds(), "s-formed")
				b.ReportMetric(r.Core, "%-core")
				b.Logf("head with %d workers | 121 to 133 MiB for gRPC and SSH alone at 1000 | %.0f MiB RSS (at most 200 at 1000), %.0f of them before the first worker; heap in use %.0f MiB, %d goroutines",
					n, float64(r.RSS)/(1<<20), float64(r.Before)/(1<<20), float64(r.Heap)/(1<<20), r.Goroutines)
				b.Logf("head with %d workers, all there at once → one world | – | %.2f s, then %.1f %% of a core", n, r.Formed.Seconds(), r.Core)
			}
		})
	}
}

// headTask is what the child is told, on standard input, and headFigures what it answers, on a line of its own after headSays.
type headTask struct {
	Workers int
	Address string
	HostKey string
	Key     []byte
	Watch   time.Duration
}

type headFigures struct {
	Before, RSS, Heap int64 // bytes
	Goroutines        int
	Formed            time.Duration // from the roster to the generation
	Core              float64       // % of one, idle
}

const (
	headChild = "LAUNCHER_BENCH_HEAD"
	headSays  = "HEAD "
)

func measureHead(b *testing.B, workers int) (figures headFigures, err error) {
	key, err := sshkey.New("")
	if err != nil {
		return figures, err
	}
	host, err := sshkey.New("")
	if err != nil {
		return figures, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	crowd := &crowd{folder: b.TempDir(), ctx: ctx, agents: map[string]*control.ConnListener{}}
	defer crowd.running.Wait()
	defer cancel()
	server, err := sshd.New(sshd.Options{HostKey: host.Private, AuthorizedKeys: []string{key.Public}, Runner: sshd.RunnerFunc(crowd.command)})
	if err != nil {
		return figures, err
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return figures, err
	}
	crowd.running.Go(func() { server.Serve(ctx, lis) })

	task, err := json.Marshal(headTask{Workers: workers, Address: lis.Addr().String(), HostKey: host.Public, Key: key.Private, Watch: 6 * time.Second})
	if err != nil {
		return figures, err
	}
	self, err := os.Executable()
	if err != nil {
		return figures, err
	}
	limited, stop := context.WithTimeout(ctx, 3*time.Minute)
	defer stop()
	child := exec.CommandContext(limited, self, "-test.run=^TestBenchHead$")
	child.Env = append(os.Environ(), headChild+"=1")
	child.Stdin = bytes.NewReader(task)
	out, err := child.CombinedOutput()
	if err != nil {
		return figures, fmt.Errorf("head process: %w: %s", err, out)
	}
	_, answer, ok := strings.Cut(string(out), headSays)
	if !ok {
		return figures, fmt.Errorf("head process says %s", out)
	}
	return figures, json.NewDecoder(strings.NewReader(answer)).Decode(&figures)
}

// crowd is many agents behind one SSH server; the node is in the join line.
type crowd struct {
	folder  string
	ctx     context.Context
	running sync.WaitGroup

	mu     sync.Mutex // guards agents
	agents map[string]*control.ConnListener
}

// command plays a machine that has the agent.
func (c *crowd) command(ctx context.Context, cmd sshd.Command) sshd.Exit {
	failed := sshd.Exit{Code: 1}
	if _, err := io.WriteString(cmd.Stdout, "LAUNCHER-BOOTSTRAP 1 have linux-amd64\n"); err != nil {
		return failed
	}
	var line []byte
	for one := make([]byte, 1); ; line = append(line, one[0]) {
		if _, err := io.ReadFull(cmd.Stdin, one); err != nil {
			return failed
		}
		if one[0] == '\n' {
			break
		}
	}
	var join control.Join
	if err := json.Unmarshal(line, &join); err != nil {
		return failed
	}
	near, far := sshd.Pipe(0)
	defer near.Close()
	lis, err := c.agent(join)
	if err != nil || lis.Deliver(far) != nil {
		return failed
	}
	if _, err := io.WriteString(cmd.Stdout, control.ReadyLine); err != nil {
		return failed
	}
	stop := context.AfterFunc(ctx, func() { near.Close() })
	defer stop()
	var up sync.WaitGroup
	up.Go(func() {
		io.Copy(near, cmd.Stdin)
		near.Close()
	})
	io.Copy(cmd.Stdout, near)
	cmd.Stdin.Close()
	up.Wait()
	return sshd.Exit{}
}

// agent returns the listener of the node's agent, which it starts at first.
func (c *crowd) agent(join control.Join) (*control.ConnListener, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if lis := c.agents[join.Node]; lis != nil {
		return lis, nil
	}
	lis := control.NewConnListener()
	join.Folder = filepath.Join(c.folder, join.Node)
	a, err := agent.New(agent.Options{
		Join: join, Control: lis, Store: control.NewConnListener(), Runner: sleepers{},
		WatchFolder: func(ctx context.Context, _ string, began func(), _ func(string)) error {
			began()
			<-ctx.Done()
			return nil
		},
		PowerOff: func(context.Context) error { return nil },
	})
	if err != nil {
		return nil, err
	}
	c.agents[join.Node] = lis
	c.running.Go(func() { a.Run(c.ctx) })
	return lis, nil
}

// sleepers are processes that do nothing until a signal ends them.
type sleepers struct{}

func (sleepers) Start(process.Spec) (process.Process, error) {
	return &sleeper{signalled: make(chan struct{})}, nil
}

func (sleepers) Sweep(context.Context, []string, []int) error { return nil }

type sleeper struct {
	once      sync.Once
	signalled chan struct{}
}

func (*sleeper) Pid() int { return 1 }

func (s *sleeper) Wait() process.Exit {
	<-s.signalled
	return process.Exit{Code: -1, Signal: "SIGTERM"}
}

func (*sleeper) Drain(time.Duration) {}
func (*sleeper) Close()              {}

func (s *sleeper) Signal(syscall.Signal) error {
	s.once.Do(func() { close(s.signalled) })
	return nil
}

func (s *sleeper) Tell(sig syscall.Signal) error { return s.Signal(sig) }

// TestBenchHead is the head process of BenchmarkHead. Without its variable there is nothing to do.
func TestBenchHead(t *testing.T) {
	if os.Getenv(headChild) == "" {
		return
	}
	debug.SetGCPercent(gcPercent) // as in Process.serve
	var task headTask
	if err := json.NewDecoder(os.Stdin).Decode(&task); err != nil {
		t.Fatal(err)
	}
	figures, err := runHead(t, task)
	if err != nil {
		t.Fatal(err)
	}
	line, err := json.Marshal(figures)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(headSays + string(line))
	os.Exit(0) // nothing is to be waited for: thousands of connections
}

func runHead(t *testing.T, task headTask) (f headFigures, err error) {
	ctx := t.Context()
	hcl := fmt.Sprintf(`
job "t" {
  provider "local" {}
  workers { count = %d }
  run "ranks" { command = "train" }
}`, task.Workers)
	job, diags := jobspec.Parse([]byte(hcl), "job.hcl", jobspec.Options{})
	if diags.HasErrors() {
		return f, diags
	}
	sums := strings.Repeat("0", 64) + "  linux-amd64/launcher-agent\n"
	binaries, err := bootstrap.NewBinaries(fstest.MapFS{bootstrap.SumsFile: {Data: []byte(sums)}})
	if err != nil {
		return f, err
	}
	folder, clock := t.TempDir(), journal.StartClock(0, journal.BootTime)
	j, err := journal.Create(ctx, folder, "run-1", journal.Created{}, journal.Options{Clock: clock})
	if err != nil {
		return f, err
	}
	world, err := NewWorld(WorldConfig{
		RunID: "run-1", Epoch: 1, Job: job, WorkerKey: task.Key, Binaries: binaries, Folder: folder, Clock: clock, Record: j.Append,
		Lease: func() time.Duration { return job.Limits.NodeLease },
	})
	if err != nil {
		return f, err
	}
	go world.Run(context.Background())
	roster := supervisor.Roster{Want: task.Workers}
	var events []journal.Event
	for slot := range task.Workers {
		name := journal.NodeName(slot, 1)
		m := providers.Machine{ID: name, Token: name, Address: task.Address, ClusterAddress: task.Address, User: "u"}
		events = append(events,
			journal.NewEvent(journal.NodeIntended, name, 0, journal.Intended{Role: providers.Worker, Slot: slot, Attempt: 1, Token: name, Count: 1, Min: 1}),
			journal.NewEvent(journal.NodeCreated, name, 0, journal.MachineCreated{Machine: m}))
		roster.Nodes = append(roster.Nodes, supervisor.RosterNode{
			Name: name, Role: providers.Worker, Slot: slot, Attempt: 1, Address: m.Address, ClusterAddress: m.Address, User: "u", HostKeys: []string{task.HostKey},
		})
	}
	if err := j.Append(ctx, events...); err != nil {
		return f, err
	}
	before, err := usageOf(os.Getpid())
	if err != nil {
		return f, err
	}
	began := time.Now()
	world.SetRoster(roster)
	timeout := time.After(2 * time.Minute)
	for seen := 0; j.State().Generation.Phase != journal.GenFormed; {
		events, changed := j.Since(seen)
		if seen += len(events); len(events) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-timeout:
			return f, fmt.Errorf("no world of %d in two minutes", task.Workers)
		}
	}
	f.Formed = time.Since(began)
	if got := len(j.State().Generation.Members); got != task.Workers {
		return f, fmt.Errorf("a world of %d, want %d", got, task.Workers)
	}
	<-time.After(task.Watch / 2)
	quiet, err := usageOf(os.Getpid())
	if err != nil {
		return f, err
	}
	<-time.After(task.Watch)
	after, err := usageOf(os.Getpid())
	if err != nil {
		return f, err
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	f.Before, f.RSS, f.Heap, f.Goroutines = before.rss, after.rss, int64(memory.HeapInuse), runtime.NumGoroutine()
	f.Core = 100 * (after.cpu - quiet.cpu).Seconds() / task.Watch.Seconds()
	return f, nil
}
