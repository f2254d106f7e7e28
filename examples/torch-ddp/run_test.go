//go:build integration

package torchddp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

const runID = "story"

// run is one `launcher up` and what it says.
type run struct {
	t     *testing.T
	exe   programs
	dir   string // the job's
	env   []string
	cmd   *exec.Cmd
	ended chan struct{} // closed when up has ended

	mu      sync.Mutex // guards text and changed
	text    []string
	changed chan struct{}

	struck float64 // when the first preemption was ordered, seconds since 1970

	// Of a run that has ended:
	all    []launcher.Event
	losses []loss
	logs   []logLine
}

type loss struct {
	step, world int
	loss        float64
}

type logLine struct {
	At         float64 `json:"at"`
	Node       string  `json:"node"`
	Generation int     `json:"generation"`
	Text       string  `json:"text"`
}

// generation is what the journal and the ranks say of one.
type generation struct {
	number int
	event  launcher.Event // generation.formed
	ended  launcher.Event
	formed journal.Formed
	ranks  []rankReport
}

type rankReport struct {
	rank, world, step       int
	version                 string
	started, loaded, joined float64
}

// start begins a run in folders of its own; the end of the test ends it.
func start(t *testing.T, p programs, job string) *run {
	t.Helper()
	r := &run{t: t, exe: p, dir: workdir(t), ended: make(chan struct{}), changed: make(chan struct{})}
	// A machine's folder holds a socket, whose path must be short.
	home, err := os.MkdirTemp("", "ddp")
	if err != nil {
		t.Fatal(err)
	}
	r.env = append(os.Environ(), "LAUNCHER_HOME="+filepath.Join(home, "h"), "LAUNCHER_LOCAL_ROOT="+filepath.Join(home, "c"), "LAUNCHER_BINARIES="+string(p))
	if err := os.WriteFile(filepath.Join(r.dir, "story.hcl"), []byte(job), 0o600); err != nil {
		t.Fatal(err)
	}
	r.cmd = r.command(context.Background(), "up", "story.hcl", "-y", "--run-id", runID, "--result", "result.json")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.cmd.Stdout, r.cmd.Stderr = write, write
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	go func() {
		defer close(r.ended)
		defer read.Close()
		lines := bufio.NewScanner(read)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			r.mu.Lock()
			r.text = append(r.text, lines.Text())
			close(r.changed)
			r.changed = make(chan struct{})
			r.mu.Unlock()
		}
		r.cmd.Wait() // its code is in the result
	}()
	t.Cleanup(func() {
		select {
		case <-r.ended:
		default:
			r.cmd.Process.Signal(syscall.SIGINT)
			select {
			case <-r.ended:
			case <-time.After(20 * time.Second):
				r.cmd.Process.Kill()
				<-r.ended
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if text, err := r.command(ctx, "down", runID).CombinedOutput(); err != nil {
			t.Errorf("down: %v\n%s", err, text)
			return // what may still run needs its folder
		}
		os.RemoveAll(home)
	})
	return r
}

func (r *run) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, r.exe.launcher(), args...)
	cmd.Dir, cmd.Env = r.dir, r.env
	return cmd
}

// output runs a command that must succeed.
func (r *run) output(args ...string) []byte {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	out, err := r.command(ctx, args...).Output()
	if err != nil {
		r.t.Fatalf("launcher %s: %v\n%s", strings.Join(args, " "), err, r.said())
	}
	return out
}

func (r *run) said() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.text, "\n")
}

// await waits for a line that matches.
func (r *run) await(pattern string) {
	r.t.Helper()
	match := regexp.MustCompile(pattern)
	timeout := time.After(2 * time.Minute)
	for from := 0; ; {
		r.mu.Lock()
		fresh, changed := r.text[from:], r.changed
		from = len(r.text)
		r.mu.Unlock()
		for _, line := range fresh {
			if match.MatchString(line) {
				return
			}
		}
		select {
		case <-changed:
		case <-r.ended:
			r.t.Fatalf("await %q: %v\n%s", pattern, errEnded, r.said())
		case <-timeout:
			r.t.Fatalf("await %q: time is up\n%s", pattern, r.said())
		}
	}
}

func (r *run) preempt(node string, notice time.Duration) {
	r.t.Helper()
	if r.struck == 0 {
		r.struck = float64(time.Now().UnixNano()) / 1e9
	}
	r.output("preempt", runID, node, "--notice", notice.String())
}

var rankLine = regexp.MustCompile(`rank (\d+) of (\d+) on node \d+: torch (\S+), starts at step (\d+) \(started ([\d.]+), loaded ([\d.]+), joined ([\d.]+)\)`)

// wait returns how the run ended, and reads what it left.
func (r *run) wait(limit time.Duration) launcher.Result {
	r.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(limit):
		r.t.Fatalf("the run did not end within %s\n%s\n%s", limit, r.output("status", runID), r.said())
	}
	var result launcher.Result
	r.decode(filepath.Join(r.dir, "result.json"), &result)
	for line := range strings.Lines(string(r.output("events", runID, "-o", "json"))) {
		var e launcher.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			r.t.Fatal(err)
		}
		r.all = append(r.all, e)
	}
	b, err := os.ReadFile(result.Logs)
	if err != nil {
		r.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var l logLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			r.t.Fatal(err)
		}
		r.logs = append(r.logs, l)
		if m := stepLine.FindStringSubmatch(strings.TrimSpace(l.Text)); m != nil {
			value, _ := strconv.ParseFloat(m[2], 64)
			r.losses = append(r.losses, loss{step: atoi(m[1]), world: atoi(m[3]), loss: value})
		}
	}
	return result
}

func (r *run) events(kind journal.Kind) []launcher.Event {
	var found []launcher.Event
	for _, e := range r.all {
		if e.Kind == kind {
			found = append(found, e)
		}
	}
	return found
}

func (r *run) generations() []generation {
	r.t.Helper()
	var list []generation
	for _, e := range r.all {
		switch {
		case e.Kind == journal.GenerationFormed:
			g := generation{number: e.Generation, event: e}
			if err := json.Unmarshal(e.Data, &g.formed); err != nil {
				r.t.Fatal(err)
			}
			list = append(list, g)
		case e.Kind == journal.GenerationEnded && len(list) > 0:
			list[len(list)-1].ended = e
		}
	}
	for _, l := range r.logs {
		m := rankLine.FindStringSubmatch(l.Text)
		if m == nil {
			continue
		}
		k := rankReport{rank: atoi(m[1]), world: atoi(m[2]), version: m[3], step: atoi(m[4])}
		k.started, _ = strconv.ParseFloat(m[5], 64)
		k.loaded, _ = strconv.ParseFloat(m[6], 64)
		k.joined, _ = strconv.ParseFloat(m[7], 64)
		for i := range list {
			if list[i].number == l.Generation {
				list[i].ranks = append(list[i].ranks, k)
			}
		}
	}
	return list
}

// outcome is what the job left in its outputs.
type outcome struct {
	Accuracy float64 `json:"accuracy"`
	Steps    int     `json:"steps"`
	World    int     `json:"world"`
}

func (r *run) outcome() outcome {
	var o outcome
	r.decode(filepath.Join(r.dir, "results", "result.json"), &o)
	return o
}

func (r *run) decode(path string, to any) {
	r.t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, to)
	}
	if err != nil {
		r.t.Errorf("read %s: %v", filepath.Base(path), fmt.Errorf("%w\n%s", err, r.said()))
	}
}
