package sshexec

import (
	"io"
	"net"
	"sync"
)

// gate passes writes on until it is shut, so that no writer of the caller is used
// after its call returned. It keeps the first error.
type gate struct {
	to io.Writer

	mu  sync.Mutex
	err error
}

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return 0, g.err
	}
	if g.to == nil {
		return len(p), nil
	}
	n, err := g.to.Write(p)
	g.err = err
	return n, err
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = net.ErrClosed
}

// capped keeps up to MaxStdout bytes and fails on more.
type capped struct{ buf []byte }

func (c *capped) Write(p []byte) (int, error) {
	n := min(len(p), MaxStdout-len(c.buf))
	c.buf = append(c.buf, p[:n]...)
	if n < len(p) {
		return n, ErrOutput
	}
	return n, nil
}

// tail keeps the last MaxStderrTail bytes. It may be read while written.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p[max(0, len(p)-MaxStderrTail):]...)
	if over := len(t.buf) - MaxStderrTail; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tail) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]byte(nil), t.buf...)
}
