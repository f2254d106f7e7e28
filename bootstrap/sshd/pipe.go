package sshd

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// A link is one direction between two ends: everything that can be wrong with a
// wire. Several connections may share one, so that a fault hits them all.
type link struct {
	mu      sync.Mutex
	latency time.Duration
	stalled bool
	// changed is closed and replaced when latency or stalled change.
	changed chan struct{}
}

func newLink(latency time.Duration) *link {
	return &link{latency: latency, changed: make(chan struct{})}
}

func (l *link) state() (latency time.Duration, stalled bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.latency, l.stalled, l.changed
}

func (l *link) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *link) stall(on bool)              { l.set(func() { l.stalled = on }) }
func (l *link) setLatency(d time.Duration) { l.set(func() { l.latency = d }) }

// Pipe returns the two ends of an in-memory connection. Each byte becomes
// readable oneWay after it was written; zero means at once.
//
// Write copies into an unbounded buffer and never blocks or sleeps: two SSH
// ends write their version before they read (RFC 4253 §4.2), which deadlocks
// over net.Pipe. The latency is paid by the reader, who alone waits, on
// channels and timers only, so that an end blocked in a testing/synctest bubble
// is durably blocked and virtual time runs. Deadlines work as net.Conn says.
func Pipe(oneWay time.Duration) (net.Conn, net.Conn) {
	l := newLink(oneWay)
	a, b := pipeOver(l, l, memAddr("pipe-a"), memAddr("pipe-b"))
	return a, b
}

type memAddr string

func (memAddr) Network() string  { return "mem" }
func (a memAddr) String() string { return string(a) }

func pipeOver(ab, ba *link, a, b net.Addr) (*pipeEnd, *pipeEnd) {
	toB, toA := &flow{link: ab}, &flow{link: ba}
	return &pipeEnd{in: toA, out: toB, local: a, remote: b},
		&pipeEnd{in: toB, out: toA, local: b, remote: a}
}

// chunk is what one Write put in, or the end of the stream (eof).
type chunk struct {
	at   time.Time
	data []byte
	eof  bool
}

// flow is one direction of one connection.
type flow struct {
	link *link

	mu       sync.Mutex
	queue    []chunk
	ended    bool          // eof is queued
	failed   error         // reset: both sides see it at once, buffered bytes are lost
	readDone bool          // the reading end is closed
	refused  time.Time     // when the writer hears of that
	deadline time.Time     // of reads
	wake     chan struct{} // non-nil while a reader waits
}

// notify wakes a waiting reader; mu is held.
func (f *flow) notify() {
	if f.wake != nil {
		close(f.wake)
		f.wake = nil
	}
}

func (f *flow) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	f.notify()
}

func (f *flow) write(p []byte) error {
	latency, _, _ := f.link.state()
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.ended:
		return net.ErrClosed
	case f.failed != nil:
		return f.failed
	case f.readDone:
		// The kernel takes bytes for a closed peer and loses them; its RST to the
		// first of them makes later ones fail, a round trip after.
		if f.refused.IsZero() {
			f.refused = now.Add(2 * latency)
			return nil
		}
		if now.Before(f.refused) {
			return nil
		}
		return syscall.EPIPE
	}
	f.queue = append(f.queue, chunk{at: now, data: append([]byte(nil), p...)})
	f.notify()
	return nil
}

func (f *flow) read(p []byte) (int, error) {
	for {
		n, wait, err := f.poll(p)
		if wait == nil {
			return n, err
		}
		wait()
	}
}

// poll takes what is readable now, or returns how to wait for a change.
func (f *flow) poll(p []byte) (int, func(), error) {
	latency, stalled, changed := f.link.state()
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.readDone:
		return 0, nil, net.ErrClosed
	case f.failed != nil:
		return 0, nil, f.failed
	case !f.deadline.IsZero() && !now.Before(f.deadline):
		return 0, nil, os.ErrDeadlineExceeded
	case len(p) == 0:
		return 0, nil, nil
	}
	var next time.Time
	if !stalled && len(f.queue) > 0 {
		n := 0
		for n < len(p) && len(f.queue) > 0 {
			c := &f.queue[0]
			if due := c.at.Add(latency); due.After(now) {
				next = due
				break
			}
			if c.eof {
				if n == 0 {
					return 0, nil, io.EOF
				}
				return n, nil, nil
			}
			k := copy(p[n:], c.data)
			n += k
			if c.data = c.data[k:]; len(c.data) == 0 {
				f.queue[0] = chunk{}
				f.queue = f.queue[1:]
			}
		}
		if len(f.queue) == 0 {
			f.queue = nil
		}
		if n > 0 {
			return n, nil, nil
		}
	}
	if !f.deadline.IsZero() && (next.IsZero() || f.deadline.Before(next)) {
		next = f.deadline
	}
	if f.wake == nil {
		f.wake = make(chan struct{})
	}
	wake := f.wake
	return 0, func() {
		var due <-chan time.Time
		if !next.IsZero() {
			t := time.NewTimer(next.Sub(now))
			defer t.Stop()
			due = t.C
		}
		select {
		case <-wake:
		case <-changed:
		case <-due:
		}
	}, nil
}

type pipeEnd struct {
	in, out       *flow
	local, remote net.Addr

	mu            sync.Mutex
	writeDeadline time.Time
	onClose       func() // called by the first Close, if set
}

var _ net.Conn = (*pipeEnd)(nil)

func (e *pipeEnd) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "mem", Source: e.local, Addr: e.remote, Err: err}
}

func (e *pipeEnd) Read(p []byte) (int, error) {
	n, err := e.in.read(p)
	return n, e.opError("read", err)
}

func (e *pipeEnd) Write(p []byte) (int, error) {
	e.mu.Lock()
	deadline := e.writeDeadline
	e.mu.Unlock()
	if !deadline.IsZero() && !time.Now().Before(deadline) {
		return 0, e.opError("write", os.ErrDeadlineExceeded)
	}
	if err := e.out.write(p); err != nil {
		return 0, e.opError("write", err)
	}
	return len(p), nil
}

// CloseWrite ends our direction; the peer reads EOF after what is buffered.
func (e *pipeEnd) CloseWrite() error {
	now := time.Now()
	e.out.change(func() {
		if !e.out.ended {
			e.out.ended = true
			e.out.queue = append(e.out.queue, chunk{at: now, eof: true})
		}
	})
	return nil
}

func (e *pipeEnd) Close() error {
	_ = e.CloseWrite() // cannot fail
	e.in.change(func() { e.in.readDone, e.in.queue = true, nil })
	e.mu.Lock()
	onClose := e.onClose
	e.onClose = nil
	e.mu.Unlock()
	if onClose != nil {
		onClose()
	}
	return nil
}

// reset loses the connection on both sides at once, as an RST does.
func (e *pipeEnd) reset() {
	for _, f := range []*flow{e.in, e.out} {
		f.change(func() {
			if f.failed == nil {
				f.failed, f.queue = syscall.ECONNRESET, nil
			}
		})
	}
}

func (e *pipeEnd) LocalAddr() net.Addr  { return e.local }
func (e *pipeEnd) RemoteAddr() net.Addr { return e.remote }

func (e *pipeEnd) SetDeadline(t time.Time) error {
	_ = e.SetReadDeadline(t) // neither can fail
	return e.SetWriteDeadline(t)
}

func (e *pipeEnd) SetReadDeadline(t time.Time) error {
	e.in.change(func() { e.in.deadline = t })
	return nil
}

func (e *pipeEnd) SetWriteDeadline(t time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.writeDeadline = t
	return nil
}
