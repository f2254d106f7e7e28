//go:build integration

package torchddp_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// programs is the folder of launcher's binaries, as $LAUNCHER_BINARIES wants it.
type programs string

func (p programs) launcher() string {
	return filepath.Join(string(p), runtime.GOOS+"-"+runtime.GOARCH, "launcher")
}

func build(t *testing.T) programs {
	t.Helper()
	dir := t.TempDir()
	platform := runtime.GOOS + "-" + runtime.GOARCH
	var sums strings.Builder
	for _, name := range []string{"launcher", "launcher-agent"} {
		out := filepath.Join(dir, platform, name)
		cmd := exec.Command("go", "build", "-trimpath", "-o", out, "github.com/ephemeral-launcher/launcher/cmd/"+name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, text)
		}
		b, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&sums, "%x  %s/%s\n", sha256.Sum256(b), platform, name)
	}
	if err := os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return programs(dir)
}

// torch is one installed PyTorch.
type torch struct {
	version, python, torchrun string
	losses                    map[int]float64 // of a run alone, by step
}

// distribution is the PyTorch of the system's packages.
func distribution(t *testing.T) torch {
	t.Helper()
	python, starter := "/usr/bin/python3", "/usr/bin/torchrun"
	version, err := exec.Command(python, "-c", "import torch, numpy; print(torch.__version__)").Output()
	if err != nil {
		t.Skip("no PyTorch for /usr/bin/python3: install the package python3-torch")
	}
	v := torch{version: strings.TrimSpace(string(version)), python: python, torchrun: starter}
	if strings.HasPrefix(v.version, "1.") {
		v.torchrun += " --redirects 1 --tee 1" // its default means none by an enum's text, which Python 3.11 formats otherwise
	}
	v.losses = alone(t, python)
	return v
}

// newest is that of the package index, installed where it is not yet.
func newest(t *testing.T) torch {
	t.Helper()
	venv, err := filepath.Abs("../../.venv")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	text, err := exec.CommandContext(ctx, "bash", "install.sh", venv).CombinedOutput()
	if err != nil {
		t.Skipf("install PyTorch: %v\n%s", err, text)
	}
	t.Logf("%s", text)
	version := regexp.MustCompile(`torch (\S+)`).FindStringSubmatch(string(text))
	if version == nil {
		t.Fatalf("install.sh says no version: %s", text)
	}
	return torch{version: version[1], python: filepath.Join(venv, "bin/python"), torchrun: filepath.Join(venv, "bin/torchrun"), losses: alone(t, filepath.Join(venv, "bin/python"))}
}

var stepLine = regexp.MustCompile(`step (\d+) loss ([\d.]+) world (\d+)$`)

// alone trains without launcher.
func alone(t *testing.T, python string) map[int]float64 {
	t.Helper()
	dir := workdir(t)
	cmd := exec.Command(python, "train.py", "--step-time", "0")
	cmd.Dir = dir
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("train alone: %v\n%s", err, text)
	}
	losses := map[int]float64{}
	for line := range strings.Lines(string(text)) {
		if m := stepLine.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			losses[atoi(m[1])], _ = strconv.ParseFloat(m[2], 64)
		}
	}
	return losses
}

// workdir is a copy of what travels.
func workdir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ckpt", "out", "results"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// story is one run and what happens to it.
type story struct {
	name        string
	fault       string // of testdata/faults.py
	min, max    int
	procs       int
	steps       int
	maxRestarts int
	happens     func(*run)
	// want
	exit     int
	starts   int  // generations at least
	charged  int  // failures that count
	untested bool // there is no training to look at
	once     bool // with each PyTorch, but not with each way to start it
}

func (s story) job(runType string, v torch) string {
	script := "train.py"
	if s.fault != "" {
		script = "testdata/faults.py " + s.fault
	}
	starter := v.python
	if runType == "torchrun" {
		starter = v.torchrun
	}
	return fmt.Sprintf(`
job "torch-ddp" {
  provider "local" {}
  workers {
    min = %d
    max = %d
  }
  workdir { source = "." }
  run %q {
    command        = "%s %s --steps %d"
    procs_per_node = %d
  }
  elastic {
    start_wait   = "60s"
    grow_every   = "5s"
    lost_after   = "5s"
    max_restarts = %d
  }
  preemption {
    signal = "SIGUSR1"
    grace  = "4s"
  }
  checkpoint { path = "ckpt" }
  outputs {
    from = "out"
    to   = "./results"
  }
  limits { max_duration = "6m" }
}
`, s.min, s.max, runType, starter, script, s.steps, s.procs, s.maxRestarts)
}

func TestIntegration(t *testing.T) {
	p := build(t)
	afterFirstCheckpoint := func(r *run) { r.await(`checkpoint +step-0000[48]0\.pt`) }
	stories := []story{
		{name: "plain", min: 4, max: 4, procs: 2, steps: 100, starts: 1},
		{name: "killed", min: 2, max: 3, procs: 1, steps: 300, starts: 2, happens: func(r *run) {
			afterFirstCheckpoint(r)
			r.preempt("w1.1", 0)
		}},
		{name: "noticed", min: 2, max: 3, procs: 1, steps: 300, starts: 2, happens: func(r *run) {
			afterFirstCheckpoint(r)
			r.preempt("w0.1", 25*time.Second)
		}},
		{name: "two at once", min: 2, max: 4, procs: 1, steps: 300, starts: 2, happens: func(r *run) {
			afterFirstCheckpoint(r)
			r.preempt("w0.1", 0)
			r.preempt("w3.1", 0)
		}},
		{name: "crash", once: true, fault: "crash", min: 2, max: 2, procs: 2, maxRestarts: 1, exit: 41, starts: 2, charged: 2, untested: true},
		{name: "early", once: true, fault: "early", min: 2, max: 2, procs: 2, starts: 1, untested: true},
		{name: "deaf", once: true, fault: "deaf", min: 2, max: 2, procs: 1, steps: 500, starts: 2, happens: func(r *run) {
			afterFirstCheckpoint(r)
			r.preempt("w1.1", 40*time.Second)
		}},
		{name: "handlerless", once: true, fault: "handlerless", min: 2, max: 2, procs: 1, steps: 200, starts: 2, happens: func(r *run) {
			afterFirstCheckpoint(r)
			r.preempt("w1.1", 25*time.Second)
		}},
		{name: "slow", once: true, fault: "slow", min: 2, max: 2, procs: 2, steps: 100, starts: 1},
	}
	for name, installed := range map[string]func(*testing.T) torch{"distribution": distribution, "newest": newest} {
		t.Run(name, func(t *testing.T) {
			v := installed(t)
			for _, runType := range []string{"ranks", "torchrun"} {
				for _, s := range stories {
					if s.once && (name == "newest") != (runType == "torchrun") {
						continue
					}
					t.Run(runType+"/"+s.name, func(t *testing.T) { s.play(t, p, v, runType) })
				}
			}
		})
	}
}

func (s story) play(t *testing.T, p programs, v torch, runType string) {
	if s.steps == 0 {
		s.steps = 1
	}
	r := start(t, p, s.job(runType, v))
	if s.happens != nil {
		s.happens(r)
	}
	result := r.wait(4 * time.Minute)
	want := s.exit
	if want != 0 && runType == "torchrun" {
		want = 1 // torchrun's own code, whatever its workers' was
	}
	if result.Exit != want || !result.Clean {
		t.Errorf("exit %d (%s %s), clean %v; want exit %d, clean", result.Exit, result.Cause, result.Text, result.Clean, want)
	}
	charged := len(r.events(journal.JobCharged))
	if charged != s.charged {
		t.Errorf("%d failures were charged, want %d", charged, s.charged)
	}
	generations := r.generations()
	if len(generations) < s.starts {
		t.Errorf("%d generations, want %d or more", len(generations), s.starts)
	}
	if !s.untested {
		r.checkTraining(generations, s, v)
	}
	r.numbers(generations, v.version+" "+runType+" "+s.name)
	if t.Failed() {
		t.Logf("%s", r.said())
	}
}

// checkTraining holds the reports of the ranks against what the head formed, and the losses against those of a run alone.
func (r *run) checkTraining(generations []generation, s story, v torch) {
	r.t.Helper()
	full := 0
	last := 0
	for _, g := range generations {
		if len(g.ranks) < g.formed.WorldSize {
			continue // it was ended before all had joined
		}
		full++
		var seen []int
		for _, k := range g.ranks {
			seen = append(seen, k.rank)
			if k.world != g.formed.WorldSize || k.step != g.ranks[0].step || !strings.HasPrefix(v.version, k.version) {
				r.t.Errorf("generation %d: rank %+v beside %+v in a world of %d", g.number, k, g.ranks[0], g.formed.WorldSize)
			}
		}
		slices.Sort(seen)
		for i, rank := range seen {
			if i != rank {
				r.t.Errorf("generation %d: ranks %v, want 0 to %d", g.number, seen, g.formed.WorldSize-1)
				break
			}
		}
		if full > 1 && (g.ranks[0].step < 40 || g.ranks[0].step < last) {
			r.t.Errorf("generation %d starts at step %d, after one that started at %d and checkpointed at 40", g.number, g.ranks[0].step, last)
		}
		last = g.ranks[0].step
	}
	if full < s.starts {
		r.t.Errorf("%d generations trained, want %d or more", full, s.starts)
	}
	for _, l := range r.losses {
		if want, ok := v.losses[l.step]; ok && math.Abs(l.loss-want) > 0.02 {
			r.t.Errorf("loss %.4f at step %d in a world of %d, want %.4f as alone", l.loss, l.step, l.world, want)
		}
	}
	if want := s.steps/20 - 2; len(r.losses) < want { // a killed node takes its last lines along
		r.t.Errorf("%d lines of losses, want %d or more", len(r.losses), want)
	}
	if got := r.outcome(); got.Steps != s.steps || got.Accuracy < 0.9 || got.World != generations[len(generations)-1].formed.WorldSize {
		r.t.Errorf("out/result.json: %+v; want %d steps, accuracy 0.9 or more", got, s.steps)
	}
}

// numbers logs how long things took, beside what the script itself needs to load.
func (r *run) numbers(generations []generation, title string) {
	at := func(e launcher.Event) float64 { return float64(e.Time.UnixNano()) / 1e9 }
	joins := r.events(journal.NodeJoined)
	for i, g := range generations {
		var since []string
		if i > 0 {
			if r.struck > 0 && r.struck < at(g.event) {
				since = append(since, fmt.Sprintf("preempt ordered → formed %.2f s", at(g.event)-r.struck))
			}
			if e := generations[i-1].ended; e.Kind != "" {
				since = append(since, fmt.Sprintf("last one gone → formed %.2f s", at(g.event)-at(e)))
			}
			for _, j := range slices.Backward(joins) {
				if d := at(g.event) - at(j); d >= 0 && d < 60 {
					since = append(since, fmt.Sprintf("%s joined → formed %.2f s", j.Node, d))
					break
				}
			}
		}
		line := fmt.Sprintf("%s: generation %d (%s), world %d: %s", title, g.number, g.formed.Cause, g.formed.WorldSize, strings.Join(since, ", "))
		if len(g.ranks) > 0 {
			var started, loaded, joined float64
			for _, k := range g.ranks {
				started, loaded, joined = max(started, k.started), max(loaded, k.loaded), max(joined, k.joined)
			}
			line += fmt.Sprintf("; formed → last process runs %.2f s, it loads %.2f s, loaded → world stands %.2f s; from step %d",
				started-at(g.event), loaded-started, joined-loaded, g.ranks[0].step)
		}
		r.t.Log(line)
	}
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}

var errEnded = errors.New("launcher up has ended")
