package process

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// buffer is written to by a process and read by the test.
type buffer struct {
	mu      sync.Mutex
	b       bytes.Buffer
	changed chan struct{}
}

func newBuffer() *buffer { return &buffer{changed: make(chan struct{}, 1000)} }

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer func() { b.changed <- struct{}{} }()
	return b.b.Write(p)
}

// await waits for a text and returns all there is.
func (b *buffer) await(t *testing.T, text string) string {
	t.Helper()
	limit := time.After(10 * time.Second)
	for {
		b.mu.Lock()
		s := b.b.String()
		b.mu.Unlock()
		if strings.Contains(s, text) {
			return s
		}
		select {
		case <-b.changed:
		case <-limit:
			t.Fatalf("no %q in %q", text, s)
		}
	}
}

func start(t *testing.T, script string, markers ...string) (Process, *buffer) {
	t.Helper()
	out := newBuffer()
	p, err := OS{}.Start(Spec{
		Argv: []string{"/bin/sh", "-c", script}, Env: append([]string{"PATH=" + os.Getenv("PATH")}, markers...),
		Dir: t.TempDir(), Stdout: out, Stderr: out,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Kill(-p.Pid(), syscall.SIGKILL) })
	return p, out
}

func TestExits(t *testing.T) {
	for script, want := range map[string]Exit{
		"exit 0":        {},
		"exit 7":        {Code: 7},
		"kill -KILL $$": {Code: -1, Signal: "SIGKILL"},
	} {
		p, _ := start(t, script)
		if got := p.Wait(); got != want {
			t.Errorf("%s: %+v, want %+v", script, got, want)
		}
		p.Close()
	}
	if _, err := (OS{}).Start(Spec{Argv: []string{"/nonexistent"}}); err == nil {
		t.Error("started what is not there")
	}
}

// TestExitIsNotHeldUp: a child that holds the output open delays neither the exit nor the end of Drain.
func TestExitIsNotHeldUp(t *testing.T) {
	p, out := start(t, "sleep 60 & echo last; exit 3")
	began := time.Now()
	if got := p.Wait(); got.Code != 3 {
		t.Errorf("exit %+v", got)
	}
	p.Drain(100 * time.Millisecond)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	out.await(t, "last")
	p.Signal(syscall.SIGKILL)
	p.Close()
}

// TestSweep: children that left the process group, the session, and are nobody's, die with it.
func TestSweep(t *testing.T) {
	marker := fmt.Sprintf("LAUNCHER_TEST_SWEEP=%d", os.Getpid())
	p, out := start(t, `
		setsid sh -c 'echo one $$; exec sleep 1000' &
		setsid sh -c 'setsid sleep 1001 & echo two $!' &
		(sleep 1002 & echo three $!)
		env -i sleep 1003 & echo four $!
		sleep 0.2; exit 0`, marker)
	p.Wait()
	text := out.await(t, "two")
	var pids []int
	for _, f := range strings.Fields(text) {
		if n, err := strconv.Atoi(f); err == nil {
			pids = append(pids, n)
		}
	}
	if len(pids) != 4 {
		t.Fatalf("children %q, want 4", text)
	}
	other, _ := start(t, "sleep 1004", marker+"1") // another's
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := (OS{}).Sweep(ctx, []string{marker}, []int{p.Pid()}); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(b), ") Z ") {
			t.Errorf("process %d lives: %s", pid, b)
		}
	}
	p.Close()
	if err := other.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a process with another marker was killed: %v", err)
	}
	other.Signal(syscall.SIGKILL)
	other.Wait()
	other.Close()
}

// TestTell: the signal reaches the process that works and not the shell or starter around it.
func TestTell(t *testing.T) {
	worker := `trap "echo told; exit 0" USR1; echo ready; while :; do sleep 0.05; done`
	file := filepath.Join(t.TempDir(), "worker.sh")
	if err := os.WriteFile(file, []byte(worker), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		script string
		want   int
	}{
		"the shell itself": {"exec sh " + file, 0},
		"under the shell":  {"sh " + file + "; exit 4", 4},
		"in a pipeline":    {"sh " + file + " | cat; exit 5", 5},
		"under a starter":  {fmt.Sprintf(`exec sh -c 'LOCAL_RANK=0 sh %s; echo then; exit 6'`, file), 6},
	} {
		t.Run(name, func(t *testing.T) {
			p, out := start(t, test.script)
			out.await(t, "ready")
			if err := p.Tell(syscall.SIGUSR1); err != nil {
				t.Fatal(err)
			}
			if got := p.Wait(); got.Code != test.want {
				t.Errorf("exit %+v, want %d", got, test.want)
			}
			out.await(t, "told")
			p.Close()
		})
	}
}

func TestTerminal(t *testing.T) {
	near, far, err := OpenTerminal(Size{Rows: 30, Columns: 100})
	if err != nil {
		t.Fatal(err)
	}
	p, err := OS{}.Start(Spec{
		Argv: []string{"/bin/sh", "-c", "stty size; read line; echo got $line"}, Env: os.Environ(), Terminal: far,
	})
	far.Close()
	if err != nil {
		t.Fatal(err)
	}
	near.Write([]byte("word\n"))
	out, err := io.ReadAll(near)
	if err != nil || !strings.Contains(string(out), "30 100") || !strings.Contains(string(out), "got word") {
		t.Errorf("terminal: %q, %v", out, err)
	}
	if got := p.Wait(); got.Code != 0 {
		t.Errorf("exit %+v", got)
	}
	p.Close()
	near.Close()
}
