package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-plugin/runner"
)

// maxHandshake bounds the line that a plugin greets with; it holds a certificate of about a kilobyte. go-plugin stops reading,
// and its writer would wait for ever, at 64 KiB.
const maxHandshake = 16 << 10

// outputGrace is how long after a plugin's end its output is still read: a child of it may hold the pipes open for ever.
const outputGrace = 500 * time.Millisecond

// process is one plugin process. It is go-plugin's runner, because its default one gives the plugin the host's stdin,
// reads stderr into a parser that panics on what a plugin may well say, and waits for as long as anybody holds the pipes.
type process struct {
	cmd      *exec.Cmd
	sockets  string // the folder that its socket must be in
	says     *journalist
	first    *io.PipeReader // the first line of stdout: the handshake
	greet    *io.PipeWriter
	lifeline *os.File // at its closing, which the kernel sees to where we cannot, the plugin ends

	mu      sync.Mutex // guards started and reaped
	started bool
	reaped  bool
	err     error         // why it ended; valid once done is closed
	done    chan struct{} // closed when it has ended and its output is read
}

var _ runner.Runner = (*process)(nil)

// newProcess prepares a process of the executable with the variables env.
func newProcess(path string, env []string, says *journalist) *process {
	p := &process{cmd: exec.Command(path), says: says, done: make(chan struct{})}
	p.first, p.greet = io.Pipe()
	p.cmd.Env = slices.Clip(env)
	// A process group of its own: what a terminal sends to ours is for us to act on, while the plugin still serves the teardown.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = outputGrace
	return p
}

// equip adds go-plugin's own variables. It comes before Start.
func (p *process) equip(env []string, sockets string) {
	p.cmd.Env = append(p.cmd.Env, env...)
	p.sockets = sockets
}

// Start starts the process.
func (p *process) Start(context.Context) error {
	theirs, ours, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("open the lifeline: %w", err)
	}
	defer theirs.Close()
	greeted := false
	stdout := &lines{emit: func(line []byte) {
		if greeted {
			p.says.line(line)
			return
		}
		greeted = true
		line = append(line[:min(len(line), maxHandshake)], '\n')
		_, _ = p.greet.Write(line) // fails where nobody waits for it any more
		p.greet.Close()
	}}
	stderr := &lines{emit: p.says.line}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = theirs, stdout, stderr

	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		ours.Close()
		return errors.New("given up before it was started")
	}
	if err := p.cmd.Start(); err != nil {
		ours.Close()
		p.reaped = true
		p.greet.Close()
		close(p.done)
		return err
	}
	p.started, p.lifeline = true, ours
	go func() { // awaited by whoever waits for done
		err := p.cmd.Wait()
		p.mu.Lock()
		p.reaped = true
		p.mu.Unlock()
		if p.err = err; err == nil {
			p.err = errors.New("exited")
		}
		stderr.flush()
		p.first.Close() // nothing writes for ever
		p.greet.Close()
		ours.Close()
		close(p.done)
	}()
	return nil
}

// Kill ends the process and its group at once. It may be called at any time and does not wait.
func (p *process) Kill(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped { // the id may be somebody else's
		return nil
	}
	if !p.started {
		p.reaped = true
		p.err = errors.New("given up before it was started")
		p.greet.Close()
		close(p.done)
		return nil
	}
	return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
}

// Wait waits for the end of the process and its output.
func (p *process) Wait(context.Context) error {
	<-p.done
	return p.err
}

// dead tells whether the process has ended.
func (p *process) dead() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// obituary says how it ended, and what it said last. It is to be called when it is dead.
func (p *process) obituary() string {
	text := p.err.Error()
	if words := p.says.lastWords(); words != "" {
		text += "; it last said: " + words
	}
	return text
}

// Stdout has the handshake line alone.
func (p *process) Stdout() io.ReadCloser { return p.first }

// Stderr has nothing: it is read here.
func (p *process) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Name is the path of the executable.
func (p *process) Name() string { return p.cmd.Path }

// ID is not empty, which to go-plugin means that there is something to kill.
func (p *process) ID() string { return p.cmd.Path }

// Diagnose adds nothing; see [process.obituary].
func (p *process) Diagnose(context.Context) string { return "" }

// PluginToHost lets us talk to the plugin's own socket and to no other address it might name.
func (p *process) PluginToHost(network, address string) (string, string, error) {
	if network != "unix" || filepath.Dir(address) != p.sockets {
		return "", "", fmt.Errorf("the plugin listens at %s %s, want a unix socket in %s", clean(network), clean(address), p.sockets)
	}
	return network, address, nil
}

// HostToPlugin refuses: the host serves nothing.
func (p *process) HostToPlugin(string, string) (string, string, error) {
	return "", "", errors.New("the host has no services")
}
