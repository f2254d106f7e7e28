package tunnel

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/control"
)

// errClosed is what the near side's own Close leads to.
var errClosed = net.ErrClosed

// Conn is one stream, a net.Conn with half-close. It outlives transports: while none is attached, Write fills the
// replay buffer and then waits, Read waits.
type Conn struct {
	m     *Mux
	id    uint64
	label uint64

	readable *sync.Cond // on m.mu
	writable *sync.Cond // on m.mu

	// All below is guarded by m.mu.

	out       window // written and not acknowledged
	sent      uint64 // up to where it was sent on this attachment
	openSent  bool
	outDone   bool // the peer has all of it and the fin, or wants no more
	scheduled bool

	in        window // received and not consumed
	acked     uint64 // last acknowledgement sent, on whatever attachment
	ackOwed   bool   // that one may have been lost
	ended     bool   // the fin was consumed: Read gives EOF
	stopped   bool   // this side reads no more
	stopSent  bool
	reset     bool
	resetSent bool
	closed    bool // by Close: the near side's calls fail

	readDeadline, writeDeadline deadline
}

func newConn(m *Mux, id, label uint64) *Conn {
	c := &Conn{m: m, id: id, label: label}
	c.readable, c.writable = sync.NewCond(&m.mu), sync.NewCond(&m.mu)
	return c
}

// Label is what the opener said of the stream.
func (c *Conn) Label() uint64 { return c.label }

// Read waits for data. After the peer's CloseWrite or Close it gives io.EOF, after a reset ErrReset.
func (c *Conn) Read(p []byte) (int, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, fmt.Errorf("tunnel read: %w", errClosed)
		case c.in.len() > 0:
			n := copy(p, c.in.bytes(c.in.start))
			c.in.drop(c.in.start + uint64(n))
			if c.in.start-c.acked >= ackEvery {
				c.m.schedule(c)
			}
			c.consumeFin()
			return n, nil
		case c.ended:
			return 0, io.EOF
		case c.reset:
			return 0, fmt.Errorf("tunnel read: %w", ErrReset)
		case c.readDeadline.over:
			return 0, fmt.Errorf("tunnel read: %w", os.ErrDeadlineExceeded)
		case len(p) == 0:
			return 0, nil
		}
		c.readable.Wait()
	}
}

// consumeFin takes the fin once nothing is before it, and has it acknowledged at once, since the peer keeps the
// stream until then. Callers hold m.mu.
func (c *Conn) consumeFin() {
	if c.in.fin && c.in.len() == 0 {
		c.in.drop(c.in.end())
		c.in.release()
		c.ended = true
		c.m.schedule(c)
	}
}

// Write puts p into the replay buffer, waiting while that is full. After the peer's Close it fails with EPIPE, after
// a reset with ErrReset.
func (c *Conn) Write(p []byte) (int, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	written := 0
	for {
		switch {
		case c.closed:
			return written, fmt.Errorf("tunnel write: %w", errClosed)
		case c.reset:
			return written, fmt.Errorf("tunnel write: %w", ErrReset)
		case c.out.fin, c.outDone:
			return written, fmt.Errorf("tunnel write: %w", syscall.EPIPE)
		case c.writeDeadline.over:
			return written, fmt.Errorf("tunnel write: %w", os.ErrDeadlineExceeded)
		case written == len(p):
			return written, nil
		}
		n := min(bufferSize-c.out.len(), len(p)-written)
		if n == 0 {
			c.writable.Wait()
			continue
		}
		c.out.append(p[written : written+n])
		written += n
		c.m.schedule(c)
		if written == len(p) {
			return written, nil
		}
	}
}

// CloseWrite says that nothing more is written. What was written still arrives.
func (c *Conn) CloseWrite() error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	switch {
	case c.closed:
		return fmt.Errorf("tunnel close write: %w", errClosed)
	case c.reset:
		return fmt.Errorf("tunnel close write: %w", ErrReset)
	}
	c.finish()
	return nil
}

func (c *Conn) finish() {
	if !c.out.fin && !c.outDone {
		c.out.fin = true
		c.m.schedule(c)
		c.writable.Broadcast()
	}
}

// Close ends both directions. What was written still arrives, also over a later transport; what was not read is
// dropped. It does not wait.
func (c *Conn) Close() error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.closed {
		return fmt.Errorf("tunnel close: %w", errClosed)
	}
	c.closed = true
	c.finish()
	if !c.ended {
		c.stopped = true
		c.in.release()
		c.m.schedule(c)
	}
	c.wake()
	c.settle()
	return nil
}

// Reset ends both directions at once; what was written and not yet read by the peer may be lost. It may be called
// after Close.
func (c *Conn) Reset() {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.closed = true
	c.resetLocked()
}

// resetLocked resets from this side. Callers hold m.mu.
func (c *Conn) resetLocked() {
	if c.reset {
		return
	}
	c.abort()
	if c.openSent {
		c.m.schedule(c)
	} else {
		c.m.forget(c) // the peer has never heard of it
	}
}

// abort drops everything. Callers hold m.mu.
func (c *Conn) abort() {
	c.reset = true
	c.in.release()
	c.out.release()
	c.wake()
}

// lost is a stream the peer no longer knows: it has finished it, or reset it, or is another Mux. Callers hold m.mu.
func (c *Conn) lost() {
	if c.in.fin || c.ended || c.stopped {
		// Everything the peer had to say is here, and it only forgets early by a reset: reads go on to the end,
		// writes fail.
		c.outDone = true
		c.out.release()
		c.wake()
	} else {
		c.abort()
	}
	c.m.forget(c)
}

func (c *Conn) wake() {
	c.readable.Broadcast()
	c.writable.Broadcast()
}

// resume goes on from where the peer says. Callers hold m.mu.
func (c *Conn) resume(r *control.Resume) {
	switch {
	case c.reset:
		c.resetSent = false
	case c.outDone:
	case r.Stop:
		c.stopOut()
	case r.Received < c.out.start || r.Received > c.out.end():
		c.resetLocked()
	default:
		c.sent = r.Received
	}
	c.openSent = true
	c.ackOwed = c.in.start > 0
	c.m.schedule(c)
	c.settle()
}

// stopOut ends the outgoing direction because the peer reads no more. Callers hold m.mu.
func (c *Conn) stopOut() {
	c.outDone = true
	c.out.release()
	c.writable.Broadcast()
}

// segment is the next thing to send, nil if there is nothing after all; more if there is something after it. Callers
// hold m.mu.
func (c *Conn) segment() (s *control.Segment, more bool) {
	s = &control.Segment{Stream: c.id}
	if c.reset {
		if c.resetSent || !c.openSent {
			return nil, false
		}
		c.resetSent = true
		s.Flags = flagReset
		return s, false
	}
	news := false
	if !c.openSent {
		c.openSent, news = true, true
		s.Flags |= flagOpen
		s.Label = c.label
	}
	if !c.outDone {
		s.Offset = c.sent
		if end := c.out.start + uint64(c.out.len()); c.sent < end {
			pending := c.out.bytes(c.sent)
			n := min(len(pending), segmentSize)
			s.Data = append(make([]byte, 0, n), pending[:n]...) // the buffer may move while this is on its way
			c.sent += uint64(n)
			news, more = true, n < len(pending)
		}
		if c.out.fin && !more && c.sent < c.out.end() {
			s.Flags |= flagFin
			c.sent++
			news = true
		}
	}
	if c.stopped && !c.stopSent {
		c.stopSent, news = true, true
		s.Flags |= flagStop
	}
	if c.ackOwed || c.in.start > c.acked && c.ended || c.in.start-c.acked >= ackEvery {
		news = true
	}
	if !news {
		return nil, false
	}
	s.Ack = c.in.start
	c.acked, c.ackOwed = c.in.start, false
	return s, more
}

// take applies a segment of the peer. Callers hold m.mu.
func (c *Conn) take(s *control.Segment) error {
	if c.reset {
		return nil
	}
	if s.Flags&flagReset != 0 {
		c.abort()
		c.m.forget(c)
		return nil
	}
	if s.Flags&flagStop != 0 && !c.outDone {
		c.stopOut()
	}
	if s.Ack > c.out.start && !c.outDone {
		if s.Ack > c.sent {
			return fmt.Errorf("receive: stream %d: acknowledged %d of %d bytes sent", c.id, s.Ack, c.sent)
		}
		fin := c.out.fin && s.Ack == c.out.end()
		c.out.drop(s.Ack)
		if fin {
			c.outDone = true
			c.out.release()
		}
		c.writable.Broadcast()
	}
	if c.stopped || c.ended {
		return nil
	}
	have := c.in.end()
	if s.Offset > have {
		return fmt.Errorf("receive: stream %d: bytes from %d where %d are had", c.id, s.Offset, have)
	}
	if c.in.fin {
		return nil // said again
	}
	if skip := have - s.Offset; skip <= uint64(len(s.Data)) {
		fresh := s.Data[skip:]
		if c.in.len()+len(fresh) > bufferSize {
			return fmt.Errorf("receive: stream %d: more than %d bytes beyond what was acknowledged", c.id, bufferSize)
		}
		c.in.append(fresh)
		if s.Flags&flagFin != 0 {
			c.in.fin = true
			c.consumeFin()
		}
		if len(fresh) > 0 || s.Flags&flagFin != 0 {
			c.readable.Broadcast()
		}
	}
	return nil
}

// settle forgets a stream whose two directions have ended and whose end the peer was told. Callers hold m.mu.
func (c *Conn) settle() {
	inDone := c.stopped && c.stopSent || c.ended && c.acked == c.in.start && !c.ackOwed
	if c.reset && c.resetSent || c.outDone && inDone && !c.reset {
		c.m.forget(c)
	}
}

// LocalAddr names the stream.
func (c *Conn) LocalAddr() net.Addr { return streamAddr(c.id) }

// RemoteAddr names the stream.
func (c *Conn) RemoteAddr() net.Addr { return streamAddr(c.id) }

type streamAddr uint64

func (streamAddr) Network() string  { return "tunnel" }
func (a streamAddr) String() string { return "stream " + strconv.FormatUint(uint64(a), 10) }

// deadline is guarded by m.mu.
type deadline struct {
	timer *time.Timer
	at    time.Time
	over  bool
}

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline bounds Read; the zero time lifts the bound.
func (c *Conn) SetReadDeadline(t time.Time) error {
	return c.setDeadline(&c.readDeadline, c.readable, t)
}

// SetWriteDeadline bounds Write; the zero time lifts the bound.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(&c.writeDeadline, c.writable, t)
}

func (c *Conn) setDeadline(d *deadline, cond *sync.Cond, t time.Time) error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.closed {
		return fmt.Errorf("tunnel deadline: %w", errClosed)
	}
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = t
	left := time.Until(t)
	d.over = !t.IsZero() && left <= 0
	if !t.IsZero() && left > 0 {
		d.timer = time.AfterFunc(left, func() {
			c.m.mu.Lock()
			defer c.m.mu.Unlock()
			if d.at.Equal(t) {
				d.over = true
				cond.Broadcast()
			}
		})
	}
	cond.Broadcast()
	return nil
}
