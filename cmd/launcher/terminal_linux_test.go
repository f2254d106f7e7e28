package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/local"
)

// person is a program on a terminal, and who sits there.
type person struct {
	t       *testing.T
	cmd     *exec.Cmd
	master  *os.File
	env     []string
	done    sync.WaitGroup
	mu      sync.Mutex // guards all below
	seen    []byte     // all output, as the terminal got it
	read    int        // how much of it was waited for
	arrived chan struct{}
}

// openTerminal makes a pseudo terminal: see pty(7).
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 100}); err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// sit starts launcher on a terminal of its own, in a folder with a job. Its runs are gone at the end of the test.
func sit(t *testing.T, binaries, job string, args ...string) *person {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "job.hcl"), []byte(job), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		all, err := local.New(local.Options{Root: filepath.Join(dir, "home", "local")}).List(context.Background(), providers.Filter{})
		for _, r := range all {
			if r.Alive() {
				t.Errorf("left behind: %s", r.ID)
			}
		}
		if err != nil {
			t.Error(err)
		}
	})
	p := &person{t: t, env: append(os.Environ(),
		"LAUNCHER_HOME="+filepath.Join(dir, "home"), "LAUNCHER_BINARIES="+binaries, "TERM=xterm", "NO_COLOR=", local.EnvRoot+"=")}
	p.cmd = exec.Command(filepath.Join(binaries, runtime.GOOS+"-"+runtime.GOARCH, "launcher"), args...)
	p.cmd.Dir = dir
	p.start()
	return p
}

// beside starts another command of the same user on another terminal.
func (p *person) beside(args ...string) *person {
	p.t.Helper()
	other := &person{t: p.t, env: p.env, cmd: exec.Command(p.cmd.Path, args...)}
	other.cmd.Dir = p.cmd.Dir
	other.start()
	return other
}

func (p *person) start() {
	t := p.t
	t.Helper()
	master, slave := openTerminal(t)
	p.master, p.arrived, p.cmd.Env = master, make(chan struct{}), p.env
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = slave, slave, slave
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	p.done.Go(p.look)
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may be over
		_ = p.cmd.Wait()         // likewise
		p.launcher("down", "--all")
		master.Close()
		p.done.Wait()
	})
}

func (p *person) look() {
	buf := make([]byte, 4096)
	for {
		n, err := p.master.Read(buf)
		p.mu.Lock()
		p.seen = append(p.seen, buf[:n]...)
		close(p.arrived)
		p.arrived = make(chan struct{})
		p.mu.Unlock()
		if err != nil { // EIO: nobody has the other end open any more
			return
		}
	}
}

// sees waits until what follows what was seen last matches.
func (p *person) sees(pattern string) {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	tooLong := time.After(scriptTime / 3)
	for {
		p.mu.Lock()
		at, arrived := re.FindIndex(p.seen[p.read:]), p.arrived
		if at != nil {
			p.read += at[1]
		}
		p.mu.Unlock()
		if at != nil {
			return
		}
		select {
		case <-arrived:
		case <-tooLong:
			p.t.Fatalf("never saw %q in:\n%s", pattern, p.screen())
		}
	}
}

func (p *person) screen() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprintf("%q", p.seen)
}

func (p *person) types(keys string) {
	p.t.Helper()
	if _, err := p.master.WriteString(keys); err != nil {
		p.t.Fatal(err)
	}
}

// leftWith waits for the end and wants one of the exit codes.
func (p *person) leftWith(codes ...int) {
	p.t.Helper()
	over := make(chan error, 1)
	go func() { over <- p.cmd.Wait() }() // ends with the program, which the cleanup kills
	select {
	case err := <-over:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			p.t.Fatal(err)
		}
	case <-time.After(scriptTime):
		p.t.Fatalf("it goes on:\n%s", p.screen())
	}
	for _, c := range codes {
		if p.cmd.ProcessState.ExitCode() == c {
			return
		}
	}
	p.t.Errorf("exit code %d, want one of %d:\n%s", p.cmd.ProcessState.ExitCode(), codes, p.screen())
}

// launcher runs another command of the same user.
func (p *person) launcher(args ...string) string {
	p.t.Helper()
	cmd := exec.Command(p.cmd.Path, args...)
	cmd.Env, cmd.Dir = p.env, p.cmd.Dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.t.Errorf("launcher %v: %v\n%s", args, err, out)
	}
	return string(out)
}

const ctrlC = "\x03"

// TestInterrupts presses Ctrl-C on a terminal.
func TestInterrupts(t *testing.T) {
	binaries := buildBinaries(t)
	job := func(supervisor string) string {
		return fmt.Sprintf(`job "keys" {
  provider "local" {}
  head { supervisor = %q }
  workers { count = 1 }
  limits { # were the test killed, all would end itself soon
    node_lease   = "1m"
    hold_results = "1m"
  }
  run "ranks" { command = "echo here; sleep 300" }
}
`, supervisor)
	}
	t.Run("ask, go on, ask, stop", func(t *testing.T) {
		t.Parallel()
		p := sit(t, binaries, job("client"), "up", "job.hcl")
		p.sees(`Rent this\? \[y/N\] `)
		p.types("y\n")
		p.sees(`r0 \| here`)
		p.sees(`running · .*generation 1, world size 1`)
		p.types(ctrlC)
		p.sees(`\[s\]top and delete, or \[g\]o on\? `)
		p.types("g\n")
		p.sees(`going on`)
		p.types(ctrlC)
		p.sees(`\[s\]top and delete, or \[g\]o on\? `)
		p.types(ctrlC)
		p.sees(`stopping: all machines`)
		p.sees(`everything deleted, and seen gone`)
		p.leftWith(130)
		p.mu.Lock()
		defer p.mu.Unlock()
		if block := bytes.LastIndex(p.seen, []byte("───")); block > bytes.LastIndex(p.seen, []byte("\x1b[J")) {
			t.Error("the block was not erased at the end")
		}
	})
	t.Run("no", func(t *testing.T) {
		t.Parallel()
		p := sit(t, binaries, job("client"), "up", "job.hcl")
		p.sees(`Rent this\? \[y/N\] `)
		p.types("\n")
		p.sees(`nothing was started`)
		p.leftWith(123)
	})
	t.Run("third leaves at once", func(t *testing.T) {
		t.Parallel()
		p := sit(t, binaries, job("client"), "up", "-y", "job.hcl", "--run-id", "left")
		p.sees(`head +created`)
		p.types(ctrlC)
		p.sees(`go on\? |\[g\]o on\? `)
		p.types(ctrlC)
		p.sees(`Ctrl-C again leaves at once`)
		p.types(ctrlC)
		p.leftWith(124, 130) // 130 where the teardown was faster than the finger
	})
	t.Run("detach", func(t *testing.T) {
		t.Parallel()
		p := sit(t, binaries, job("head"), "up", "-y", "job.hcl", "--run-id", "away")
		p.sees(`handed over`)
		p.types(ctrlC)
		p.sees(`\[d\]etach and let it go on, `)
		p.types("d\n")
		p.sees(`detached from away, which goes on`)
		p.leftWith(0)
		p = p.beside("attach")
		p.sees(`away · running · `)
		p.types(ctrlC)
		p.sees(`detached from away`)
		p.leftWith(0)

		p = p.beside("ssh", "w0")
		p.sees(`[$#>] ?`)
		p.types("stty size; test -t 0 && echo a $LAUNCHER_MACHINE\n")
		p.sees(`30 100`)
		p.sees(`a m-[0-9a-f]+`)
		p.types("echo cat:; cat\n") // nothing is typed ahead: a shell may throw that away
		p.sees(`\rcat:`)
		p.types("typed\n")
		p.sees(`typed\r\ntyped`)
		p.types(ctrlC) // it goes there: to cat, and not to launcher
		p.sees(`\^C(.|\n)*[$#>] `)
		p.types("exit 9\n")
		p.leftWith(9)
	})
}
