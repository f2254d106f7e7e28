// Package process starts the processes of a node and ends them with everything they have started.
//
// Each runs in a session of its own, and carries markers in its environment: a child that left its process group is
// still in the session, one that made a session of its own still has the markers.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Spec is what to run.
type Spec struct {
	Argv   []string
	Dir    string
	Env    []string  // the whole environment
	Stdin  io.Reader // nil: empty
	Stdout io.Writer // written to by one goroutine, as is Stderr; nil: dropped
	Stderr io.Writer
	// Terminal, from OpenTerminal, takes the place of the three. The caller closes it after Start.
	Terminal *os.File
}

// Exit is how a process ended.
type Exit struct {
	Code   int    // -1 when it died of a signal or could not be waited for
	Signal string // a name as in SIGKILL; empty: it exited
	Err    error  // it could not be waited for
}

// Process is one that was started.
type Process interface {
	Pid() int
	// Wait waits for its exit, not for the end of its output. To be called once.
	Wait() Exit
	// Drain waits at most so long for the end of its output, which children may hold open for ever.
	Drain(time.Duration)
	// Close stops reading its output. To be called after Wait.
	Close()
	// Signal goes to its process group.
	Signal(syscall.Signal) error
	// Tell sends a signal to the process that does the work, where the one started is only a shell or a starter
	// around it: a signal that asks for a checkpoint would just kill those.
	Tell(syscall.Signal) error
}

// Runner starts processes. Tests hand in another than OS.
type Runner interface {
	Start(Spec) (Process, error)
	// Sweep kills all processes that carry every one of markers ("NAME=value") in their environment or belong to
	// one of sessions, and returns when none is left or ctx ends.
	Sweep(ctx context.Context, markers []string, sessions []int) error
}

// OS runs processes of this machine. The zero value is usable.
type OS struct{}

// Start starts s in a session of its own.
func (OS) Start(s Spec) (Process, error) {
	if len(s.Argv) == 0 {
		return nil, errors.New("start process: no command")
	}
	cmd := exec.Command(s.Argv[0], s.Argv[1:]...)
	cmd.Dir, cmd.Env = s.Dir, s.Env
	cmd.SysProcAttr = sessionAttr()
	p := &osProcess{cmd: cmd, argv: s.Argv}
	if s.Terminal != nil {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Terminal, s.Terminal, s.Terminal
		cmd.SysProcAttr.Setctty = true
		cmd.SysProcAttr.Ctty = 0
		if err := cmd.Start(); err != nil {
			return nil, fmt.Errorf("start process: %w", err)
		}
		return p, nil
	}
	if err := p.startPiped(s); err != nil {
		p.Close()
		return nil, fmt.Errorf("start process: %w", err)
	}
	return p, nil
}

// Sweep kills by scanning the process table until a scan finds nobody.
func (OS) Sweep(ctx context.Context, markers []string, sessions []int) error {
	return sweep(ctx, markers, sessions)
}

type osProcess struct {
	cmd   *exec.Cmd
	argv  []string
	near  []*os.File // our ends of the pipes
	out   sync.WaitGroup
	stdin sync.WaitGroup
}

// startPiped makes the pipes itself: those of exec.Cmd tie Wait to the end of the output.
func (p *osProcess) startPiped(s Spec) error {
	var far []*os.File
	defer func() {
		for _, f := range far {
			f.Close()
		}
	}()
	pipe := func() (r, w *os.File, err error) {
		if r, w, err = os.Pipe(); err != nil {
			return nil, nil, err
		}
		return r, w, nil
	}
	output := func(to io.Writer) (*os.File, func(), error) {
		r, w, err := pipe()
		if err != nil {
			return nil, nil, err
		}
		p.near, far = append(p.near, r), append(far, w)
		return w, func() { io.Copy(to, r) }, nil
	}
	var copies []func()
	if s.Stdout != nil {
		w, copy, err := output(s.Stdout)
		if err != nil {
			return err
		}
		p.cmd.Stdout = w
		copies = append(copies, copy)
	}
	if s.Stderr != nil {
		w, copy, err := output(s.Stderr)
		if err != nil {
			return err
		}
		p.cmd.Stderr = w
		copies = append(copies, copy)
	}
	var feed func()
	if s.Stdin != nil {
		r, w, err := pipe()
		if err != nil {
			return err
		}
		far, p.near = append(far, r), append(p.near, w)
		p.cmd.Stdin = r
		feed = func() {
			io.Copy(w, s.Stdin)
			w.Close()
		}
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	for _, copy := range copies {
		p.out.Go(copy)
	}
	if feed != nil {
		p.stdin.Go(feed)
	}
	return nil
}

func (p *osProcess) Pid() int { return p.cmd.Process.Pid }

func (p *osProcess) Wait() Exit {
	err := p.cmd.Wait()
	if p.cmd.ProcessState == nil {
		return Exit{Code: -1, Err: fmt.Errorf("wait for process %d: %w", p.Pid(), err)}
	}
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return Exit{Code: -1, Signal: unix.SignalName(status.Signal())}
	}
	return Exit{Code: status.ExitStatus()}
}

// Drain leaves the deadline of a pipe alone when it is over: a child that goes on writing shall not die of it.
func (p *osProcess) Drain(limit time.Duration) {
	ended := make(chan struct{})
	go func() {
		p.out.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(limit):
	}
}

// Close does not wait for what feeds the standard input: its reader belongs to the caller.
func (p *osProcess) Close() {
	for _, f := range p.near {
		f.Close()
	}
	p.out.Wait()
}

// Signal reaches children that outlive the leader too: a process group's number is not given again while it has
// members.
func (p *osProcess) Signal(sig syscall.Signal) error {
	if err := syscall.Kill(-p.Pid(), sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal process group %d: %w", p.Pid(), err)
	}
	return nil
}

func (p *osProcess) Tell(sig syscall.Signal) error {
	var errs []error
	for _, pid := range workers(p.Pid(), p.argv, sig) {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("signal process %d: %w", pid, err))
		}
	}
	return errors.Join(errs...)
}

// Size is that of a terminal, in characters.
type Size struct{ Rows, Columns uint16 }

// Terminal is the near end of a pseudo terminal. Close ends a Read.
type Terminal struct{ file *os.File }

// OpenTerminal makes a pseudo terminal: near for the caller, far for Spec.Terminal.
func OpenTerminal(size Size) (near *Terminal, far *os.File, err error) {
	file, far, err := openTerminal()
	if err != nil {
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	near = &Terminal{file}
	if err := near.Resize(size); err != nil {
		near.Close()
		far.Close()
		return nil, nil, err
	}
	return near, far, nil
}

// Read gives io.EOF once the last process has closed the far end, for which Linux says EIO.
func (t *Terminal) Read(p []byte) (int, error) {
	n, err := t.file.Read(p)
	if errors.Is(err, syscall.EIO) {
		err = io.EOF
	}
	return n, err
}

// Write is what a user types.
func (t *Terminal) Write(p []byte) (int, error) { return t.file.Write(p) }

// SetReadDeadline bounds Read from now on.
func (t *Terminal) SetReadDeadline(left time.Duration) error {
	return t.file.SetReadDeadline(time.Now().Add(left))
}

// Close hangs up.
func (t *Terminal) Close() error { return t.file.Close() }

// Resize sets the size; 0 by 0 leaves it.
func (t *Terminal) Resize(s Size) error {
	if s == (Size{}) {
		return nil
	}
	raw, err := t.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("resize terminal: %w", err)
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Columns})
	})
	if err = errors.Join(err, set); err != nil {
		return fmt.Errorf("resize terminal: %w", err)
	}
	return nil
}

// ParseSignal gives the signal of a name as in "SIGUSR1" or "USR1".
func ParseSignal(name string) (syscall.Signal, error) {
	for _, n := range []string{name, "SIG" + name} {
		if sig := unix.SignalNum(n); sig != 0 {
			return sig, nil
		}
	}
	return 0, fmt.Errorf("parse signal %q: no such signal", name)
}
