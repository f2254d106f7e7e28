package train

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

// asRank makes the test binary behave as the program.
const asRank = "ELASTIC_SGD_TEST_AS_RANK"

func TestMain(m *testing.M) {
	if os.Getenv(asRank) != "" {
		os.Exit(Main(context.Background(), os.Getenv, os.Stdout, os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// generation starts the ranks of one world, in this process.
type generation struct {
	t          *testing.T
	number     int
	size       int
	store      string
	folder     string // of rank 0: ckpt and out lie there
	checkpoint string // LAUNCHER_CHECKPOINT
	args       []string
	env        map[string]string
	onLine     func(g *generation, line string) // of rank 0, in its goroutine
	signals    []chan os.Signal
	lines      []string // of rank 0
}

type outcome struct {
	Code   int
	Stderr string
}

func (g *generation) environment(rank int) map[string]string {
	host, port, err := net.SplitHostPort(g.store)
	if err != nil {
		g.t.Fatal(err)
	}
	env := map[string]string{
		"RANK":                strconv.Itoa(rank),
		"WORLD_SIZE":          strconv.Itoa(g.size),
		"MASTER_ADDR":         host,
		"MASTER_PORT":         port,
		"LAUNCHER_GENERATION": strconv.Itoa(g.number),
		"LAUNCHER_CHECKPOINT": g.checkpoint,
	}
	for k, v := range g.env {
		env[k] = v
	}
	return env
}

func (g *generation) arguments(rank int) []string {
	folder := g.folder
	if rank != 0 {
		folder = filepath.Join(g.t.TempDir(), "rank") // another machine
	}
	return append([]string{"-checkpoints", filepath.Join(folder, "ckpt"), "-out", filepath.Join(folder, "out")}, g.args...)
}

// run returns when all ranks have ended.
func (g *generation) run() []outcome {
	g.t.Helper()
	if g.folder == "" {
		g.folder = g.t.TempDir()
	}
	outcomes := make([]outcome, g.size)
	g.signals = make([]chan os.Signal, g.size)
	for rank := range g.signals {
		g.signals[rank] = make(chan os.Signal, 4)
	}
	var ranks sync.WaitGroup
	for rank := range g.size {
		env, args := g.environment(rank), g.arguments(rank)
		ranks.Go(func() {
			var stderr bytes.Buffer
			stdout := io.Discard
			if rank == 0 {
				stdout = lineWriter(func(line string) {
					g.lines = append(g.lines, line)
					if g.onLine != nil {
						g.onLine(g, line)
					}
				})
			}
			p := Process{Env: func(k string) string { return env[k] }, Args: args, Stdout: stdout, Stderr: &stderr, Signals: g.signals[rank]}
			outcomes[rank] = outcome{Code: p.Run(g.t.Context()), Stderr: stderr.String()}
		})
	}
	ranks.Wait()
	return outcomes
}

func codes(outcomes []outcome) []int {
	var codes []int
	for _, o := range outcomes {
		codes = append(codes, o.Code)
	}
	return codes
}

// lineWriter is called with each line; every print of the program is one Write.
type lineWriter func(line string)

func (w lineWriter) Write(b []byte) (int, error) {
	w(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

func readResult(t *testing.T, folder string) Result {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(folder, "out", "result.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r Result
	if err := json.Unmarshal(content, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// uninterrupted is the result of a rank alone, with no store and no launcher.
func uninterrupted(t *testing.T, args ...string) Result {
	t.Helper()
	folder := t.TempDir()
	var stderr bytes.Buffer
	p := Process{
		Env:    func(string) string { return "" },
		Args:   append([]string{"-checkpoints", filepath.Join(folder, "ckpt"), "-out", filepath.Join(folder, "out")}, args...),
		Stdout: io.Discard,
		Stderr: &stderr,
	}
	if code := p.Run(t.Context()); code != ExitDone {
		t.Fatalf("alone: exit code %d: %s", code, stderr.String())
	}
	return readResult(t, folder)
}

func TestLearnsAlone(t *testing.T) {
	r := uninterrupted(t)
	if r.Accuracy < 0.96 || r.Steps != 400 {
		t.Errorf("got %+v, want at least 0.96 after 400 steps", r)
	}
}

func TestEveryWorldSizeEndsAtTheSameWeights(t *testing.T) {
	want := uninterrupted(t, "-steps=12")
	for _, size := range []int{1, 2, 3, 4, shards + 1} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			g := &generation{t: t, size: size, store: startStore(t), args: []string{"-steps=12"}}
			for rank, o := range g.run() {
				if o.Code != ExitDone {
					t.Errorf("rank %d: exit code %d: %s", rank, o.Code, o.Stderr)
				}
			}
			if diff := cmp.Diff(readResult(t, g.folder), want); diff != "" {
				t.Errorf("-got +want:\n%s", diff)
			}
		})
	}
}

// A run through three generations of different sizes, each ended in another way,
// the second on a new machine for rank 0, which has nothing but what the
// launcher brought.
func TestPreemptionsDoNotChangeTheResult(t *testing.T) {
	args := []string{"-steps=100", "-log-every=1", "-checkpoint-every=1000000"} // only when told to
	want := uninterrupted(t, args...)
	store := startStore(t)
	args = append(args, "-step-time=10ms") // so that an order arrives long before the end

	first := &generation{t: t, number: 1, size: 4, store: store, args: args}
	first.onLine = func(g *generation, line string) {
		if strings.HasPrefix(line, "step 20/") {
			g.signals[2] <- syscall.SIGUSR1 // one rank knows; all leave together
			g.signals[2] <- syscall.SIGUSR1
		}
	}
	got := first.run()
	if diff := cmp.Diff(codes(got), []int{ExitLeft, ExitLeft, ExitLeft, ExitLeft}); diff != "" {
		t.Fatalf("first generation: exit codes -got +want:\n%s\n%v", diff, got)
	}

	second := &generation{t: t, number: 2, size: 3, store: store, args: args}
	second.checkpoint = filepath.Join(first.folder, "ckpt")
	second.onLine = func(g *generation, line string) {
		if strings.HasPrefix(line, "step 40/") {
			g.signals[0] <- syscall.SIGTERM
		}
	}
	got = second.run()
	if diff := cmp.Diff(codes(got), []int{ExitLeft, ExitFailed, ExitFailed}); diff != "" {
		t.Fatalf("second generation: exit codes -got +want:\n%s\n%v", diff, got)
	}
	if !strings.HasPrefix(second.lines[0], "resumed from step ") || !strings.Contains(second.lines[0], second.checkpoint) {
		t.Errorf("second generation began with %q", second.lines[0])
	}

	third := &generation{t: t, number: 3, size: 2, store: store, args: args[:3], folder: second.folder}
	third.checkpoint = second.checkpoint // older than its own
	got = third.run()
	if diff := cmp.Diff(codes(got), []int{ExitDone, ExitDone}); diff != "" {
		t.Fatalf("third generation: exit codes -got +want:\n%s\n%v", diff, got)
	}
	if !strings.HasPrefix(third.lines[0], "resumed from step ") || !strings.Contains(third.lines[0], third.folder) {
		t.Errorf("third generation began with %q", third.lines[0])
	}
	if diff := cmp.Diff(readResult(t, third.folder), want); diff != "" {
		t.Errorf("-got +want:\n%s", diff)
	}
}

func TestRunAgainAfterTheEndOnlyReports(t *testing.T) {
	store := startStore(t)
	g := &generation{t: t, number: 1, size: 2, store: store, args: []string{"-steps=10"}}
	g.run()
	want := readResult(t, g.folder)
	again := &generation{t: t, number: 2, size: 2, store: store, args: g.args, folder: g.folder}
	if diff := cmp.Diff(codes(again.run()), []int{ExitDone, ExitDone}); diff != "" {
		t.Errorf("exit codes -got +want:\n%s", diff)
	}
	if diff := cmp.Diff(readResult(t, g.folder), want); diff != "" {
		t.Errorf("-got +want:\n%s", diff)
	}
	if diff := cmp.Diff(again.lines[0], "resumed from step 10 ("+filepath.Join(g.folder, "ckpt", "step-000010.ckpt")+")"); diff != "" {
		t.Errorf("-got +want:\n%s", diff)
	}
}

func TestNoRankSucceedsUnlessTheResultIsOnDisk(t *testing.T) {
	g := &generation{t: t, size: 2, store: startStore(t), folder: t.TempDir(), args: []string{"-steps=5"}}
	if err := os.WriteFile(filepath.Join(g.folder, "out"), nil, 0o600); err != nil { // where a folder should be
		t.Fatal(err)
	}
	if diff := cmp.Diff(codes(g.run()), []int{ExitFailed, ExitFailed}); diff != "" {
		t.Errorf("exit codes -got +want:\n%s", diff)
	}
}

func TestRanksOfDifferentRecipesDoNotTrainTogether(t *testing.T) {
	store := startStore(t)
	g := &generation{t: t, size: 2, store: store, folder: t.TempDir(), args: []string{"-steps=5"}}
	var other sync.WaitGroup
	env := g.environment(1)
	var stderr bytes.Buffer
	code := 0
	other.Go(func() {
		p := Process{Env: func(k string) string { return env[k] }, Args: []string{"-seed=2"}, Stdout: io.Discard, Stderr: &stderr}
		code = p.Run(t.Context())
	})
	env0 := g.environment(0)
	var stderr0 bytes.Buffer
	p := Process{Env: func(k string) string { return env0[k] }, Args: g.arguments(0), Stdout: io.Discard, Stderr: &stderr0}
	code0 := p.Run(t.Context())
	other.Wait()
	if code != ExitFailed || code0 != ExitFailed || !strings.Contains(stderr.String(), "another seed") {
		t.Errorf("got exit codes %d and %d, %q", code0, code, stderr.String())
	}
}

func TestToldToLeaveBeforeTheOthersCame(t *testing.T) {
	for name, s := range map[string]os.Signal{"finish the step": syscall.SIGUSR1, "at once": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			g := &generation{t: t, size: 2, store: startStore(t), folder: t.TempDir()}
			env := g.environment(0)
			signals := make(chan os.Signal, 1)
			signals <- s
			p := Process{Env: func(k string) string { return env[k] }, Args: g.arguments(0), Stdout: io.Discard, Stderr: io.Discard, Signals: signals}
			if code := p.Run(t.Context()); code != ExitLeft {
				t.Errorf("got exit code %d, want %d", code, ExitLeft)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		name string
		env  map[string]string
		args []string
		want string
	}{
		{name: "unknown flag", args: []string{"-stpes=3"}, want: "stpes"},
		{name: "argument", args: []string{"train"}, want: `unexpected argument "train"`},
		{name: "no steps", args: []string{"-steps=0"}, want: "-steps"},
		{name: "no timeout", args: []string{"-timeout=0s"}, want: "-timeout"},
		{name: "rank is no number", env: map[string]string{"RANK": "first"}, want: "RANK"},
		{name: "no world size", env: map[string]string{"RANK": "0"}, want: "WORLD_SIZE"},
		{name: "rank outside the world", env: map[string]string{"RANK": "2", "WORLD_SIZE": "2"}, want: "RANK 2 of WORLD_SIZE 2"},
		{name: "no store", env: map[string]string{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, want: "MASTER_PORT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stderr bytes.Buffer
			p := Process{Env: func(k string) string { return c.env[k] }, Args: c.args, Stdout: io.Discard, Stderr: &stderr}
			if code := p.Run(t.Context()); code != ExitUsage {
				t.Errorf("got exit code %d, want %d", code, ExitUsage)
			}
			if !strings.Contains(stderr.String(), c.want) {
				t.Errorf("got %q, want something about %q", stderr.String(), c.want)
			}
		})
	}
}

func TestReportsProgress(t *testing.T) {
	var mu sync.Mutex // guards reports
	var reports []report
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var got report
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
		if r.Method != http.MethodPost || r.URL.Path != "/v1/progress" || r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("got %s %s %q", r.Method, r.URL, r.Header.Get("Authorization"))
		}
		mu.Lock()
		defer mu.Unlock()
		got.Numbers = nil
		reports = append(reports, got)
	}))
	defer api.Close()
	g := &generation{t: t, size: 1, store: "127.0.0.1:1", args: []string{"-steps=4", "-log-every=3", "-checkpoint-every=2"}}
	g.env = map[string]string{"LAUNCHER_API": api.URL, "LAUNCHER_API_TOKEN": "secret"}
	g.run()
	file := func(name string) string { return filepath.Join(g.folder, "ckpt", name) }
	want := []report{
		{Step: 2, Checkpoint: file("step-000002.ckpt")},
		{Step: 3},
		{Step: 4, Checkpoint: file("step-000004.ckpt")},
	}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff(reports, want); diff != "" {
		t.Errorf("-got +want:\n%s", diff)
	}
}

func TestASilentAgentHoldsNobodyUp(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel, never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	g := &generation{t: t, size: 1, store: "127.0.0.1:1", args: []string{"-steps=50", "-log-every=1"}}
	g.env = map[string]string{"LAUNCHER_API": "http://" + silent.Addr().String()}
	if diff := cmp.Diff(codes(g.run()), []int{ExitDone}); diff != "" {
		t.Errorf("exit codes -got +want:\n%s", diff)
	}
}

func TestAnOrderToStopIsHeardInTheMiddleOfAStep(t *testing.T) {
	for name, s := range map[string]os.Signal{"finish the step": syscall.SIGUSR1, "at once": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			g := &generation{t: t, size: 1, store: "127.0.0.1:1", args: []string{"-step-time=10h"}}
			g.onLine = func(g *generation, line string) {
				if strings.HasPrefix(line, "started") {
					g.signals[0] <- s
				}
			}
			if diff := cmp.Diff(codes(g.run()), []int{ExitLeft}); diff != "" {
				t.Errorf("exit codes -got +want:\n%s", diff)
			}
		})
	}
}

// A peer that is silent, not gone, must not keep a rank from obeying.
func TestTerminatedWhileWaitingForAnotherRank(t *testing.T) {
	g := &generation{t: t, number: 7, size: 2, store: startStore(t), folder: t.TempDir()}
	var other sync.WaitGroup
	var rank1 *world
	other.Go(func() {
		var err error
		if rank1, err = form(t.Context(), testPlace(g.store, 1, 2), time.Hour); err != nil {
			t.Error(err)
		}
	})
	env := g.environment(0)
	signals := make(chan os.Signal, 1)
	stdout := lineWriter(func(string) { signals <- syscall.SIGTERM })
	p := Process{Env: func(k string) string { return env[k] }, Args: append(g.arguments(0), "-timeout=10h"), Stdout: stdout, Stderr: io.Discard, Signals: signals}
	if code := p.Run(t.Context()); code != ExitLeft {
		t.Errorf("got exit code %d, want %d", code, ExitLeft)
	}
	other.Wait()
	if rank1 != nil {
		rank1.close()
	}
}

// As real processes: a rank dies without a word, or the launcher signals all.
func TestProcesses(t *testing.T) {
	for _, c := range []struct {
		name    string
		victims []int
		signal  syscall.Signal
		want    []int // −1: by the signal
		save    bool  // rank 0 puts the last step on disk
	}{
		{name: "a rank is killed", victims: []int{3}, signal: syscall.SIGKILL, want: []int{ExitFailed, ExitFailed, ExitFailed, -1}, save: true},
		{name: "rank 0 is killed", victims: []int{0}, signal: syscall.SIGKILL, want: []int{-1, ExitFailed, ExitFailed, ExitFailed}},
		{name: "all are told to leave", victims: []int{0, 1, 2, 3}, signal: syscall.SIGUSR1, want: []int{ExitLeft, ExitLeft, ExitLeft, ExitLeft}, save: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := &generation{t: t, size: 4, store: startStore(t), folder: t.TempDir()}
			g.args = []string{"-steps=1000000", "-log-every=10", "-checkpoint-every=1000000", "-step-time=2ms"}
			commands := make([]*exec.Cmd, g.size)
			reached := make(chan struct{})
			var once sync.Once
			for rank := range commands {
				command := exec.CommandContext(t.Context(), os.Args[0], g.arguments(rank)...)
				command.Env = append(os.Environ(), asRank+"=1")
				for k, v := range g.environment(rank) {
					command.Env = append(command.Env, k+"="+v)
				}
				if rank == 0 {
					command.Stdout = lineWriter(func(line string) {
						if strings.Contains(line, "step 10/") {
							once.Do(func() { close(reached) })
						}
					})
				}
				if err := command.Start(); err != nil {
					t.Fatal(err)
				}
				commands[rank] = command
			}
			<-reached
			for _, victim := range c.victims {
				if err := commands[victim].Process.Signal(c.signal); err != nil {
					t.Error(err)
				}
			}
			var got []int
			for _, command := range commands {
				command.Wait() // its error is the exit code
				got = append(got, command.ProcessState.ExitCode())
			}
			if diff := cmp.Diff(got, c.want); diff != "" {
				t.Errorf("exit codes -got +want:\n%s", diff)
			}
			s, _ := newestCheckpoint([]string{filepath.Join(g.folder, "ckpt")}, recipe(1), func(string, error) {})
			if saved := s != nil && s.step >= 10; saved != c.save {
				t.Errorf("checkpoint on disk: got %v, want %v", saved, c.save)
			}
		})
	}
}
