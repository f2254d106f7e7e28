package sshd

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
)

// Shell runs command lines as processes: `/bin/sh -c LINE`, each in a process
// group of its own, so that a signal reaches all of a pipeline. The zero value
// is usable.
type Shell struct {
	Path string        // the shell [/bin/sh]
	Dir  string        // working directory [this process's]
	Env  []string      // base environment [this process's]; AcceptEnv's are added
	Kill time.Duration // from SIGHUP to SIGKILL when the client is gone [5 s]

	// Prepare, if set, may change the command just before it starts: credentials,
	// namespaces, a process to wrap it in. Stdio and the process group are ours.
	Prepare func(cmd *exec.Cmd)
}

// Start implements Runner. A process that left its group (setsid) outlives the
// client, one that did not is hung up. As with OpenSSH, a command is over when
// it has exited and nobody holds its output open any more.
func (s Shell) Start(ctx context.Context, c Command) (Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	path := s.Path
	if path == "" {
		path = "/bin/sh"
	}
	cmd := exec.Command(path, "-c", c.Line)
	if c.Line == "" {
		cmd = exec.Command(path, "-l")
	}
	cmd.Dir = s.Dir
	if cmd.Env = s.Env; cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env[:len(cmd.Env):len(cmd.Env)], c.Env...)
	p := &shellProcess{cmd: cmd, stdin: c.Stdin, kill: s.Kill}
	if p.kill == 0 {
		p.kill = 5 * time.Second
	}
	if c.PTY != nil {
		if err := p.startPTY(s, c); err != nil {
			return nil, err
		}
		return p, nil
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if s.Prepare != nil {
		s.Prepare(cmd)
	}
	cmd.SysProcAttr.Setpgid = true
	if err := p.startPiped(c); err != nil {
		return nil, err
	}
	return p, nil
}

// startPiped starts the command on pipes of our own. os/exec's would make its
// Wait wait for whoever still holds them, and for a client that never ends its input.
func (p *shellProcess) startPiped(c Command) error {
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("open stdin of shell: %w", err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		_ = stdin.Close()
		return fmt.Errorf("open stdout of shell: %w", err)
	}
	errR, errW, err := os.Pipe()
	if err != nil {
		closeAll(stdin, outR, outW)
		return fmt.Errorf("open stderr of shell: %w", err)
	}
	p.cmd.Stdout, p.cmd.Stderr = outW, errW
	err = p.cmd.Start()
	closeAll(outW, errW)
	if err != nil {
		closeAll(stdin, outR, errR)
		return fmt.Errorf("start shell: %w", err)
	}
	p.outputs = []io.Closer{outR, errR}
	p.input.Go(func() {
		_, _ = io.Copy(stdin, c.Stdin) // a closed pipe is the process's own choice
		_ = stdin.Close()
	})
	// A client that is gone closes the pipe, and SIGPIPE tells the command.
	p.output.Go(func() { defer outR.Close(); _, _ = io.Copy(c.Stdout, outR) })
	p.output.Go(func() { defer errR.Close(); _, _ = io.Copy(c.Stderr, errR) })
	return nil
}

func closeAll(files ...io.Closer) {
	for _, f := range files {
		_ = f.Close() // pipes that are given up
	}
}

type shellProcess struct {
	cmd           *exec.Cmd
	stdin         io.Closer
	kill          time.Duration
	pty           *os.File    // the controlling side, or nil
	outputs       []io.Closer // what Hangup may have to close
	input, output sync.WaitGroup

	mu     sync.Mutex  // the fields below; held over kill(2), so that no reaped pid is signalled
	exited bool        // the process is reaped
	hungup bool        // the client is gone
	killer *time.Timer // runs from hang-up to SIGKILL
}

func (p *shellProcess) Wait() Exit {
	// The state says it all; an error beside it is only the exit code again.
	_ = p.cmd.Wait()
	p.mu.Lock()
	p.exited = true
	if p.killer != nil {
		p.killer.Stop()
	}
	if p.hungup {
		closeAll(p.outputs...)
	}
	p.mu.Unlock()
	if p.pty != nil {
		// What was written before the exit is in the terminal's buffer; who still
		// holds the terminal is not waited for, as with OpenSSH.
		_ = p.pty.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
	}
	p.output.Wait()
	if p.pty != nil {
		_ = p.pty.Close() // hangs up the foreground group
	}
	_ = p.stdin.Close() // ends the copy
	p.input.Wait()

	state := p.cmd.ProcessState
	if state == nil {
		return Exit{Code: 255} // wait(2) itself failed; SSH has no other word for it
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return Exit{Signal: signalNameOf(ws.Signal())}
	}
	return Exit{Code: state.ExitCode()}
}

func (p *shellProcess) Signal(name string) error {
	sig, ok := signalNamed(name)
	if !ok {
		return fmt.Errorf("signal %q: unknown", name)
	}
	return p.signal(sig)
}

func (p *shellProcess) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exited {
		return os.ErrProcessDone
	}
	return syscall.Kill(-p.cmd.Process.Pid, sig)
}

func (p *shellProcess) Resize(size WindowSize) error {
	if p.pty == nil {
		return errors.New("resize: no terminal")
	}
	return resizePTY(p.pty, size)
}

// Hangup sends SIGHUP to the group, and SIGKILL if it is not enough. Who outlived
// the command and holds its output gets SIGPIPE at the next write.
func (p *shellProcess) Hangup() {
	_ = p.signal(syscall.SIGHUP) // gone already is fine
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hungup = true
	if p.exited {
		closeAll(p.outputs...)
		return
	}
	p.killer = time.AfterFunc(p.kill, func() { _ = p.signal(syscall.SIGKILL) })
}

// signals are the names of RFC 4254 §6.10, with the values every Unix shares by name.
func signals() map[string]syscall.Signal {
	return map[string]syscall.Signal{
		"ABRT": syscall.SIGABRT, "ALRM": syscall.SIGALRM, "FPE": syscall.SIGFPE, "HUP": syscall.SIGHUP,
		"ILL": syscall.SIGILL, "INT": syscall.SIGINT, "KILL": syscall.SIGKILL, "PIPE": syscall.SIGPIPE,
		"QUIT": syscall.SIGQUIT, "SEGV": syscall.SIGSEGV, "TERM": syscall.SIGTERM,
		"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
	}
}

func signalNamed(name string) (syscall.Signal, bool) {
	sig, ok := signals()[name]
	return sig, ok
}

// signalNameOf names other signals by number, in the form the RFC leaves for extensions.
func signalNameOf(sig syscall.Signal) string {
	for name, s := range signals() {
		if s == sig {
			return name
		}
	}
	return fmt.Sprintf("%d@launcher", int(sig))
}
