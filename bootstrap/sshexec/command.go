package sshexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/crypto/ssh"
)

// Exit is how a remote command ended: by itself with Code, or by Signal (a name
// of RFC 4254 §6.10, "KILL").
type Exit struct {
	Code   int
	Signal string
}

// OK reports an exit with code 0.
func (e Exit) OK() bool { return e == Exit{} }

func (e Exit) String() string {
	if e.Signal != "" {
		return "signal " + e.Signal
	}
	return fmt.Sprintf("exit status %d", e.Code)
}

// ErrNoExit is returned when a command's channel was closed without saying how
// the command ended; the connection may live on.
var ErrNoExit = errors.New("remote command ended without exit status")

// ErrRefused is returned when the server refused to start a command or to give it a terminal.
var ErrRefused = errors.New("refused by the server")

// ErrOutput is returned by Run when a command wrote more than Run keeps.
var ErrOutput = errors.New("command wrote too much output")

// Limits of what Run keeps in memory.
const (
	MaxStdout     = 4 << 20  // more is ErrOutput
	MaxStderrTail = 16 << 10 // the last bytes are kept
)

// Result is what a command left.
type Result struct {
	Stdout []byte
	Stderr []byte // at most the last MaxStderrTail bytes
	Exit   Exit
}

// Run runs a command to its end, with nothing on stdin. A non-zero exit is not
// an error. When ctx ends the command is killed as far as the server can, and
// Run returns at once.
func (c *Conn) Run(ctx context.Context, cmd string) (Result, error) {
	var stdout capped
	var stderr tail
	exit, err := c.Stream(ctx, cmd, Streams{Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		err = fmt.Errorf("run on %s: %w", c.addr, err)
	}
	return Result{Stdout: stdout.buf, Stderr: stderr.bytes(), Exit: exit}, err
}

// Streams are a command's standard streams; nil is empty input, or output thrown away.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Stream runs a command with its streams connected. It returns once the command
// has ended and all output is written; or when ctx ends or a writer fails, after
// asking the server to kill the command. It does not wait for a Read of Stdin in
// progress: that goroutine ends when the Read returns. After an early return the
// writers are not used any more.
func (c *Conn) Stream(ctx context.Context, cmd string, s Streams) (Exit, error) {
	return c.run(ctx, cmd, s, nil)
}

// run is Stream and Terminal.
func (c *Conn) run(ctx context.Context, cmd string, s Streams, t *Terminal) (Exit, error) {
	p, err := c.open(ctx, cmd, t)
	if err != nil {
		return Exit{}, err
	}
	stdout, stderr := &gate{to: s.Stdout}, &gate{to: s.Stderr}
	defer stdout.shut()
	defer stderr.shut()
	if t != nil {
		defer t.follow(p)()
	}
	// The goroutine of stdin is the one that may outlive this call.
	go func() {
		if s.Stdin != nil {
			_, _ = io.Copy(p.channel, s.Stdin) // the command's end closes the channel
		}
		_ = p.channel.CloseWrite()
	}()
	// A broken writer ends the command, but is drained: an unread stream would
	// fill the window that both streams share.
	drain := func(to *gate, from io.Reader) {
		if _, err := io.Copy(to, from); err != nil {
			p.kill()
			_, _ = io.Copy(io.Discard, from)
		}
	}
	ended := make(chan struct{})
	watch := func() {
		defer close(ended)
		var copies sync.WaitGroup
		copies.Go(func() { drain(stderr, p.channel.Stderr()) })
		drain(stdout, p.channel)
		copies.Wait()
		<-p.over
	}
	if !c.start(watch) {
		return Exit{}, c.closedError()
	}
	select {
	case <-ctx.Done():
		p.kill()
		return Exit{}, context.Cause(ctx)
	case <-ended:
	}
	_ = p.channel.Close()
	if err := errors.Join(stdout.err, stderr.err); err != nil {
		return p.exit, fmt.Errorf("write output: %w", err)
	}
	return p.exit, p.err
}

func (c *Conn) closedError() error { return &Error{Class: Other, Addr: c.addr, Err: errClosed} }

// remote is one session channel with its command started.
type remote struct {
	channel  ssh.Channel
	requests <-chan *ssh.Request
	said     bool          // the server said how it ended
	over     chan struct{} // closed when the channel is; the rest is set before
	exit     Exit
	err      error // the server did not say how it ended, and why
}

// open starts a command. x/crypto's calls take no context, so they run on a
// goroutine of the connection's, which cleans up if nobody waits any more.
func (c *Conn) open(ctx context.Context, cmd string, t *Terminal) (*remote, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	type opened struct {
		p   *remote
		err error
	}
	result := make(chan opened)
	if !c.start(func() {
		p, err := c.begin(cmd, t)
		select {
		case result <- opened{p, err}:
		case <-ctx.Done():
			if err == nil {
				p.kill()
			}
		}
	}) {
		return nil, c.closedError()
	}
	select {
	case r := <-result:
		return r.p, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (c *Conn) begin(cmd string, t *Terminal) (*remote, error) {
	ch, requests, err := c.client.OpenChannel("session", nil)
	if err != nil {
		return nil, c.explain("open session", err)
	}
	p := &remote{channel: ch, requests: requests, over: make(chan struct{})}
	if !c.adopt(p) && !c.start(func() { p.listen(c) }) {
		_ = ch.Close()
		return nil, c.closedError()
	}
	if t != nil {
		if err := request(ch, "pty-req", t.ptyRequest()); err != nil {
			_ = ch.Close()
			return nil, c.explain("request terminal", err)
		}
	}
	kind, payload := "exec", ssh.Marshal(struct{ Line string }{cmd})
	if cmd == "" {
		kind, payload = "shell", nil
	}
	if err := request(ch, kind, payload); err != nil {
		_ = ch.Close()
		return nil, c.explain("start command", err)
	}
	return p, nil
}

func request(ch ssh.Channel, kind string, payload []byte) error {
	ok, err := ch.SendRequest(kind, true, payload)
	if err == nil && !ok {
		err = ErrRefused
	}
	return err
}

// explain names the cause where a dead connection shows up as io.EOF or worse.
func (c *Conn) explain(what string, err error) error {
	_, answered := errors.AsType[*ssh.OpenChannelError](err)
	if !answered && !errors.Is(err, ErrRefused) {
		if dead := c.whyDead(); dead != nil {
			err = dead
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// whyDead tells a closed channel from a dead connection, which look alike: it
// asks the server for any answer. Nil means the connection lives.
func (c *Conn) whyDead() error {
	if _, _, err := c.client.SendRequest(keepAliveName, true, nil); err == nil {
		return nil
	}
	<-c.done
	return c.Err()
}

// listen takes the channel's requests to its end.
func (p *remote) listen(c *Conn) {
	for r := range p.requests {
		p.hear(r)
	}
	p.end(c)
}

// hear takes one request in.
func (p *remote) hear(r *ssh.Request) {
	switch r.Type {
	case "exit-status":
		var status struct{ Code uint32 }
		if ssh.Unmarshal(r.Payload, &status) == nil {
			p.exit, p.said = Exit{Code: int(status.Code)}, true
		}
	case "exit-signal":
		var signal struct {
			Name       string
			CoreDumped bool
			Message    string
			Language   string
		}
		if ssh.Unmarshal(r.Payload, &signal) == nil {
			p.exit, p.said = Exit{Signal: signal.Name}, true
		}
	}
	_ = r.Reply(false, nil) // sends nothing unless asked to
}

// end follows the last request.
func (p *remote) end(c *Conn) {
	defer close(p.over)
	if p.said {
		return
	}
	p.err = ErrNoExit
	if dead := c.whyDead(); dead != nil {
		p.err = fmt.Errorf("%w: %w", ErrNoExit, dead)
	}
}

// kill asks for the end of the command and gives the channel up; neither waits.
func (p *remote) kill() {
	_ = p.signal("KILL")
	_ = p.channel.Close()
}

func (p *remote) signal(name string) error {
	_, err := p.channel.SendRequest("signal", false, ssh.Marshal(struct{ Name string }{name}))
	return err
}
