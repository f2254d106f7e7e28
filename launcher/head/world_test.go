package head

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/launcher/supervisor"
	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/local"
)

// TestMain is also the machines' program: local machines are processes of this test binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "machine" {
		os.Exit(local.MachineMain(context.Background(), os.Args[2:]))
	}
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// fixture is a World over real local machines, with a journal in place of a supervisor.
type fixture struct {
	t        *testing.T
	provider providers.Provider
	config   json.RawMessage
	world    *World
	journal  *journal.Journal
	nodes    []supervisor.RosterNode
	worker   sshkey.Pair
	birth    sshkey.Pair
	shown    int // events already in the test's log
}

// built is buildAgent's folder, if a test needed it.
var built string

// buildAgent builds the agent once for all tests.
var buildAgent = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "launcher-agent-")
	if err != nil {
		return "", err
	}
	built = dir
	platform := runtime.GOOS + "-" + runtime.GOARCH
	out := filepath.Join(dir, platform, "launcher-agent")
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", out, "../../cmd/launcher-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("build agent: %w: %s", err, b)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		return dir, err
	}
	line := fmt.Sprintf("%x  %s/launcher-agent\n", sha256.Sum256(b), platform)
	return dir, os.WriteFile(filepath.Join(dir, bootstrap.SumsFile), []byte(line), 0o600)
})

func newFixture(t *testing.T, hcl string) *fixture {
	t.Helper()
	job, diags := jobspec.Parse([]byte(hcl), filepath.Join(t.TempDir(), "job.hcl"), jobspec.Options{})
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	ctx := t.Context()
	f := &fixture{t: t}
	root := t.TempDir()
	f.config = json.RawMessage(fmt.Sprintf(`{"root":%q}`, root))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f.provider = local.New(local.Options{Root: root, Executable: []string{self, "machine"}})
	info, err := f.provider.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if f.worker, err = sshkey.New(""); err != nil {
		t.Fatal(err)
	}
	if f.birth, err = sshkey.New(""); err != nil {
		t.Fatal(err)
	}
	dir, err := buildAgent()
	if err != nil {
		t.Fatal(err)
	}
	binaries, err := bootstrap.NewBinaries(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	clock := journal.StartClock(0, journal.BootTime)
	f.journal, err = journal.Create(ctx, folder, "run-1", journal.Created{}, journal.Options{Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.journal.Close() })
	f.world, err = NewWorld(WorldConfig{
		RunID: "run-1", Epoch: 1, Job: job, Info: info, WorkerKey: f.worker.Private, Binaries: binaries, Folder: folder, Clock: clock,
		Record: f.journal.Append, Lease: func() time.Duration { return job.Limits.NodeLease },
	})
	if err != nil {
		t.Fatal(err)
	}
	worldCtx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.world.Run(worldCtx) }()
	t.Cleanup(func() {
		f.deleteAll()
		cancel()
		<-ended
	})
	return f
}

func (f *fixture) deleteAll() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	all, err := f.provider.List(ctx, providers.Filter{Config: f.config, Run: "run-1"})
	if err != nil {
		f.t.Error(err)
	}
	if _, err := f.provider.Delete(ctx, providers.DeleteRequest{Config: f.config, Run: "run-1", Resources: all}); err != nil {
		f.t.Error(err)
	}
}

// rent makes a machine for the slot and puts it on the roster.
func (f *fixture) rent(slot, attempt int) supervisor.RosterNode {
	f.t.Helper()
	ctx := f.t.Context()
	offers, err := f.provider.Offers(ctx, providers.OffersRequest{Config: f.config, Role: providers.Worker, Markets: []providers.Market{providers.Spot}})
	if err != nil {
		f.t.Fatal(err)
	}
	name := journal.NodeName(slot, attempt)
	in := journal.Intended{Role: providers.Worker, Slot: slot, Attempt: attempt, Token: "run-1-" + strings.ReplaceAll(name, ".", "-"), Count: 1, Min: 1, Offers: offers, BirthKey: f.birth.Public}
	if err := f.journal.Append(ctx, journal.NewEvent(journal.NodeIntended, name, 0, in)); err != nil {
		f.t.Fatal(err)
	}
	res, err := f.provider.Create(ctx, providers.CreateRequest{
		Config: f.config, Token: in.Token, Run: "run-1", Role: providers.Worker, Offers: offers, Count: 1, Min: 1,
		Tags: map[string]string{providers.TagRun: "run-1", providers.TagOwner: "me", providers.TagRole: "worker"},
		TTL:  5 * time.Minute, AuthorizedKeys: []string{f.worker.Public}, BirthHostKey: f.birth.Private,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	if err := f.journal.Append(ctx, journal.NewEvent(journal.NodeCreated, name, 0, journal.MachineCreated{Machine: res.Machines[0]})); err != nil {
		f.t.Fatal(err)
	}
	m := res.Machines[0]
	for deadline := time.Now().Add(10 * time.Second); m.Address == "" && time.Now().Before(deadline); {
		all, err := f.provider.List(ctx, providers.Filter{Config: f.config, Run: "run-1"})
		if err != nil {
			f.t.Fatal(err)
		}
		for _, r := range all {
			if r.ID == m.ID && r.Machine != nil {
				m = *r.Machine
			}
		}
	}
	if m.ClusterAddress == "" {
		m.ClusterAddress = m.Address
	}
	n := supervisor.RosterNode{Name: name, Role: providers.Worker, Slot: slot, Attempt: attempt, Address: m.Address, ClusterAddress: m.ClusterAddress, User: m.User, HostKeys: []string{f.birth.Public}}
	f.nodes = append(f.nodes, n)
	return n
}

func (f *fixture) roster(want int) {
	f.world.SetRoster(supervisor.Roster{Nodes: slices.Clone(f.nodes), Want: want})
}

// await waits until ok, which is asked again at each event and each line of output.
func (f *fixture) await(what string, ok func(*journal.State) bool) *journal.State {
	f.t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		events, changed := f.journal.Since(f.shown)
		for _, e := range events {
			f.t.Logf("%8.3f %-20s %-6s g%d %.300s", time.Duration(e.At).Seconds(), e.Kind, e.Node, e.Generation, e.Data)
		}
		f.shown += len(events)
		_, written, err := f.world.logs.Read(1<<60, nil)
		if err != nil {
			f.t.Fatal(err)
		}
		if s := f.journal.State(); ok(s) {
			return s
		}
		select {
		case <-changed:
		case <-written:
		case <-timeout:
			f.t.Fatalf("no %s; output:\n%s", what, f.log())
		}
	}
}

// machine is the provider's id of a node's machine.
func (f *fixture) machine(node string) string { return f.journal.State().Nodes[node].Machine.ID }

func formed(generation int) func(*journal.State) bool {
	return func(s *journal.State) bool {
		return s.Generation.Number >= generation && s.Generation.Phase == journal.GenFormed
	}
}

func members(s *journal.State) []string {
	var names []string
	for _, m := range s.Generation.Members {
		names = append(names, m.Node)
	}
	return names
}

func (f *fixture) log() string {
	b, err := os.ReadFile(filepath.Join(f.world.Folder, "logs", LogFileName))
	if err != nil {
		f.t.Fatal(err)
	}
	return string(b)
}

const twoRanks = `
job "t" {
  provider "local" {}
  workers { count = 2 }
  run "ranks" { command = "echo rank $RANK of $WORLD_SIZE" }
  limits { node_lease = "60s" }
}`

func TestWorldRunsAJob(t *testing.T) {
	f := newFixture(t, twoRanks)
	f.rent(0, 1)
	f.rent(1, 1)
	f.roster(2)
	s := f.await("success", func(s *journal.State) bool { return s.Stopping != nil })
	if got, want := s.Stopping.Cause, journal.CauseSucceeded; got != want {
		t.Errorf("cause %q, want %q", got, want)
	}
	f.world.Drain(journal.CauseSucceeded)
	f.await("drained", func(s *journal.State) bool { return s.Drained })
	for _, want := range []string{"rank 0 of 2", "rank 1 of 2"} {
		if got := f.log(); !strings.Contains(got, want) {
			t.Errorf("log lacks %q:\n%s", want, got)
		}
	}
}

// waits for SIGUSR1, which ends it, and shows which checkpoint it found.
const elastic = `
job "t" {
  provider "local" {}
  workers {
    min = 1
    max = 2
  }
  run "ranks" {
    command = <<-E
      trap 'echo saved >ckpt/.new; mv ckpt/.new ckpt/signal-$LAUNCHER_GENERATION; exit 75' USR1
      mkdir -p ckpt
      echo "rank $RANK of $WORLD_SIZE on $LAUNCHER_NODE finds: $(echo $(ls $LAUNCHER_CHECKPOINT))"
      while :; do sleep 0.1; done
    E
  }
  preemption {
    signal = "SIGUSR1"
    grace  = "5s"
  }
  checkpoint { path = "ckpt" }
  elastic {
    start_wait = "30s"
    lost_after = "2s"
  }
  limits { node_lease = "60s" }
}`

func TestWorldSwapsAtANotice(t *testing.T) {
	f := newFixture(t, elastic)
	f.rent(0, 1)
	f.rent(1, 1)
	f.roster(2)
	f.await("the first generation", formed(1))
	f.await("both running", func(*journal.State) bool { return strings.Count(f.log(), "finds:") == 2 })
	drill, _ := providers.As[providers.Preempter](f.provider)
	if err := drill.Preempt(t.Context(), providers.PreemptRequest{Config: f.config, Run: "run-1", Machine: f.machine("w0.1"), Notice: 60 * time.Second}); err != nil {
		t.Fatal(err)
	}
	f.await("the notice", func(s *journal.State) bool { return s.Nodes["w0.1"].Notice != nil })
	f.rent(0, 2)
	f.roster(2)
	s := f.await("the second generation", formed(2))
	if got, want := members(s), []string{"w0.2", "w1.1"}; !slices.Equal(got, want) {
		t.Errorf("members %v, want %v", got, want)
	}
	f.await("the checkpoint of the signal on both", func(*journal.State) bool { return strings.Count(f.log(), "finds: signal-1") == 2 })
	if got := f.journal.State().Restarts; got != 0 {
		t.Errorf("%d restarts charged, want 0", got)
	}
	f.world.Drain(journal.CauseDown)
	f.await("drained", func(s *journal.State) bool { return s.Drained })
}

func TestWorldGoesOnWithoutALostWorker(t *testing.T) {
	f := newFixture(t, elastic)
	f.rent(0, 1)
	f.rent(1, 1)
	f.roster(2)
	f.await("the first generation", formed(1))
	all, err := f.provider.List(t.Context(), providers.Filter{Config: f.config, Run: "run-1"})
	if err != nil {
		t.Fatal(err)
	}
	victim := f.machine("w0.1")
	all = slices.DeleteFunc(all, func(r providers.Resource) bool { return r.ID != victim })
	if _, err := f.provider.Delete(t.Context(), providers.DeleteRequest{Config: f.config, Run: "run-1", Resources: all}); err != nil {
		t.Fatal(err)
	}
	s := f.await("the loss", func(s *journal.State) bool { return s.Nodes["w0.1"].Phase == journal.PhaseLost })
	if got, want := s.Nodes["w0.1"].Reason, "lost: silent"; got != want {
		t.Errorf("reason %q, want %q", got, want)
	}
	s = f.await("the second generation", formed(2))
	if got, want := members(s), []string{"w1.1"}; !slices.Equal(got, want) {
		t.Errorf("members %v, want %v", got, want)
	}
}
