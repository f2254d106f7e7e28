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
	addr    string
	client  *ssh.Client
	pinned  string
	done    chan struct{}
	wg      sync.WaitGroup // every goroutine the connection started
	closing chan struct{}

	mu    sync.Mutex
	cause *Error // why it ended, first come
	ended bool   // Close was called
}

func newConn(t Target, conn ssh.Conn, channels <-chan ssh.NewChannel, requests <-chan *ssh.Request, pinned string) *Conn {
	c := &Conn{
		addr: t.Addr, client: ssh.NewClient(conn, channels, requests), pinned: pinned,
		done: make(chan struct{}), closing: make(chan struct{}),
	}
	c.wg.Go(func() {
		err := c.client.Wait()
		c.fail(Dropped, err)
		close(c.done)
	})
	every := t.KeepAlive
	if every == 0 {
		every = 15 * time.Second
	}
	if every > 0 {
		c.wg.Go(func() { c.keepAlive(every) })
	}
	return c
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
	if !c.ended {
		c.ended = true
		close(c.closing)
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

// keepAlive asks the server for any answer at all.
func (c *Conn) keepAlive(every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-c.closing:
			return
		case <-c.done:
			return
		case <-ticker.C:
		}
		late := time.AfterFunc(every, func() {
			c.fail(TimedOut, errNoReply)
			_ = c.client.Close() // the writes that hang, too, end with it
		})
		_, _, err := c.client.SendRequest(keepAliveName, true, nil)
		late.Stop()
		if err != nil {
			return // the connection is gone, Wait says why
		}
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
		conn, err := c.client.Dial(network, addr)
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
