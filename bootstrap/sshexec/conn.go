package sshexec

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// Conn is a logged-in connection. Its methods may be called concurrently; the
// server's MaxSessions (10) bounds the commands at once. Close it.
type Conn struct {
	addr   string
	client ssh.Conn
	pinned string
	done   chan struct{}
	wg     sync.WaitGroup // every goroutine the connection started
	lasts  chan *remote   // at most one: the command whose requests serve takes

	mu    sync.Mutex  // guards all below
	cause *Error      // why it ended, first come
	ended bool        // Close was called
	busy  bool        // lasts was given a command
	alive *time.Timer // the next keep-alive
}

func newConn(t Target, conn ssh.Conn, channels <-chan ssh.NewChannel, requests <-chan *ssh.Request, pinned string) *Conn {
	c := &Conn{addr: t.Addr, client: conn, pinned: pinned, done: make(chan struct{}), lasts: make(chan *remote, 1)}
	c.wg.Go(func() { c.serve(channels, requests) })
	every := t.KeepAlive
	if every == 0 {
		every = 15 * time.Second
	}
	if every > 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.alive = time.AfterFunc(every, func() { c.start(func() { c.keepAlive(every) }) })
	}
	return c
}

// serve answers what the server asks, until the connection ends. It does so for
// the connection and for one command of it: with an ssh.Client and a goroutine for
// each kind of request, a process with a thousand connections has five thousand
// more that only wait.
func (c *Conn) serve(channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	var p *remote
	var ofP <-chan *ssh.Request
	for channels != nil || requests != nil || ofP != nil {
		select {
		case ch, ok := <-channels:
			if !ok {
				channels = nil
				continue
			}
			_ = ch.Reject(ssh.UnknownChannelType, "unknown channel type: "+ch.ChannelType())
		case r, ok := <-requests:
			if !ok {
				requests = nil
				continue
			}
			_ = r.Reply(false, nil) // sends nothing unless asked to
		case p = <-c.lasts:
			ofP = p.requests
		case r, ok := <-ofP:
			if ok {
				p.hear(r)
				continue
			}
			over := p
			p, ofP = nil, nil
			c.mu.Lock()
			c.busy = false
			c.mu.Unlock()
			c.wg.Go(func() { over.end(c) }) // it may wait for an answer
		}
	}
	c.fail(Dropped, c.client.Wait())
	c.mu.Lock()
	if c.alive != nil {
		c.alive.Stop()
	}
	c.busy = true // no other is taken on
	c.mu.Unlock()
	select {
	case p := <-c.lasts:
		c.wg.Go(func() { p.listen(c) })
	default:
	}
	close(c.done)
}

// adopt has serve take a command's requests, which it does for one at a time.
func (c *Conn) adopt(p *remote) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || c.busy {
		return false
	}
	c.busy = true
	c.lasts <- p
	return true
}

// PinnedKey is the entry of Target.HostKeys that the server proved, as it was given.
func (c *Conn) PinnedKey() string { return c.pinned }

// Done is closed when the connection has ended, whoever ended it.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is nil while the connection lives, then why it ended: an *Error of class
// Dropped or TimedOut, or of class Other after Close.
func (c *Conn) Err() error {
	select {
	case <-c.done:
	default:
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// Close ends the connection with all its commands and channels and waits for the
// goroutines it started. It does not wait for a Read of a caller's stdin. The
// error of a connection that was dead before is that of Err.
func (c *Conn) Close() error {
	c.fail(Other, errClosed)
	c.mu.Lock()
	c.ended = true
	if c.alive != nil {
		c.alive.Stop()
	}
	dead := c.cause
	c.mu.Unlock()
	_ = c.client.Close() // its error is that of a socket we are done with
	c.wg.Wait()
	<-c.done
	if errors.Is(dead, errClosed) {
		return nil
	}
	return dead
}

// fail records the first cause of the end.
func (c *Conn) fail(class Class, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause == nil {
		if err == nil {
			err = errClosed
		}
		c.cause = &Error{Class: class, Addr: c.addr, Err: err}
	}
}

// start runs f on a goroutine that Close waits for; false after Close.
func (c *Conn) start(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	c.wg.Go(f)
	return true
}

// keepAliveName is OpenSSH's (clientloop.c, server_alive_check); a server that does
// not know it must still answer, with a failure (RFC 4254 §4).
const keepAliveName = "keepalive@openssh.com"

// keepAlive asks the server for any answer at all, and again after every.
func (c *Conn) keepAlive(every time.Duration) {
	late := time.AfterFunc(every, func() {
		c.fail(TimedOut, errNoReply)
		_ = c.client.Close() // the writes that hang, too, end with it
	})
	_, _, err := c.client.SendRequest(keepAliveName, true, nil)
	late.Stop()
	if err != nil {
		return // the connection is gone, Wait says why
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.alive.Reset(every)
	}
}

// Dial connects to addr from the machine (direct-tcpip, RFC 4254 §7.2), so that a
// machine behind this one is reached: it fits Target.Dialer. The server must allow it.
func (c *Conn) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	type dialled struct {
		conn net.Conn
		err  error
	}
	result := make(chan dialled)
	if !c.start(func() {
		conn, err := (&ssh.Client{Conn: c.client}).Dial(network, addr)
		select {
		case result <- dialled{conn, err}:
		case <-ctx.Done():
			if err == nil {
				_ = conn.Close()
			}
		}
	}) {
		return nil, c.closedError()
	}
	select {
	case r := <-result:
		return r.conn, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
