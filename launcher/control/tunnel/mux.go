package tunnel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/ephemeral-launcher/launcher/launcher/control"
)

const (
	// bufferSize is the replay buffer of one direction of one stream, in bytes.
	bufferSize = 256 << 10
	// ackEvery is how many consumed bytes are acknowledged without waiting for data to ride on. It is well below
	// bufferSize: a writer never waits for an acknowledgement that nobody sends.
	ackEvery = 64 << 10
	// segmentSize bounds the data of one stream in one frame, so that streams take turns; frameSize all of a frame.
	segmentSize = 32 << 10
	frameSize   = 64 << 10
	// maxStreams bounds what the processes of one node can make the other side hold.
	maxStreams = 8192
)

// Flags of control.Segment.
const (
	flagOpen = 1 << iota
	flagFin
	flagStop
	flagReset
)

var (
	// ErrReset is what reading and writing a stream gives after either side has reset it.
	ErrReset = errors.New("tunnel stream reset")
	// ErrTooMany is what Open gives while 8,192 streams are open.
	ErrTooMany = errors.New("too many tunnel streams")
	// ErrReplaced is what Attach gives when a newer Attach has taken over.
	ErrReplaced = errors.New("tunnel attached anew")
)

// Transport moves frames in order. The streams of the RPC Tunnel are transports. Send and Recv are called by one
// goroutine each.
type Transport interface {
	Send(*control.Frame) error
	Recv() (*control.Frame, error)
}

// Mux is one side of a tunnel. Use NewOpener or NewAcceptor. All methods may be called concurrently.
type Mux struct {
	instance uint64
	opener   bool

	accept   func(*Conn)    // acceptor: takes streams in place of Accept, if not nil
	carriers sync.WaitGroup // what Start started

	mu         sync.Mutex
	peer       uint64           // guarded by mu, like all below: instance of the peer; 0 before the first Attach
	conns      map[uint64]*Conn // not yet forgotten
	opened     uint64           // opener: newest id given; acceptor: newest id seen
	ready      []*Conn          // with something to send; each once
	attached   *attachment
	backlog    []*Conn // acceptor: not yet taken by Accept
	acceptable *sync.Cond
	closed     bool
}

// attachment is one use of one transport. It has a goroutine that receives; one that sends there is only while there is something to
// send: a head has a thousand tunnels, most of them idle.
type attachment struct {
	transport Transport
	hello     *control.Frame // the first to send
	release   func() bool    // of its context
	ended     func(error)

	sending bool  // guarded by Mux.mu, like all below
	met     bool  // the peer's attach frame has come
	err     error // set: over
}

// NewOpener returns the side that opens streams.
func NewOpener() *Mux { return newMux(true) }

// NewAcceptor returns the side that accepts streams.
func NewAcceptor() *Mux { return newMux(false) }

// NewAcceptorFunc returns the side that accepts streams, each by a call of accept instead of by Accept. What comes on a transport waits
// for that call.
func NewAcceptorFunc(accept func(*Conn)) *Mux {
	m := newMux(false)
	m.accept = accept
	return m
}

func newMux(opener bool) *Mux {
	m := &Mux{instance: rand.Uint64() | 1, opener: opener, conns: map[uint64]*Conn{}}
	m.acceptable = sync.NewCond(&m.mu)
	return m
}

// Open makes a stream, whether or not a transport is attached. label goes with it to the acceptor, see Conn.Label.
func (m *Mux) Open(label uint64) (*Conn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return nil, fmt.Errorf("tunnel open: %w", errClosed)
	case !m.opener:
		return nil, errors.New("tunnel open: this side accepts")
	case len(m.conns) >= maxStreams:
		return nil, fmt.Errorf("tunnel open: %w", ErrTooMany)
	}
	m.opened++
	c := newConn(m, m.opened, label)
	m.conns[c.id] = c
	m.schedule(c)
	return c, nil
}

// Accept waits for the next stream. It fails once the Mux is closed.
func (m *Mux) Accept() (*Conn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.backlog) == 0 && !m.closed {
		m.acceptable.Wait()
	}
	if m.closed {
		return nil, fmt.Errorf("tunnel accept: %w", errClosed)
	}
	c := m.backlog[0]
	m.backlog[0] = nil
	m.backlog = m.backlog[1:]
	return c, nil
}

// Reset resets all streams. The Mux goes on: a lease over ends the streams, not the tunnel.
func (m *Mux) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		c.resetLocked()
	}
}

// Close resets all streams, ends Attach and Accept, and waits until Attach's transports are let go.
func (m *Mux) Close() error {
	m.mu.Lock()
	m.closed = true
	for _, c := range m.conns {
		c.resetLocked()
		m.forget(c)
	}
	m.detach(errClosed)
	m.acceptable.Broadcast()
	m.mu.Unlock()
	m.carriers.Wait()
	return nil
}

// Attach runs the tunnel over t until t breaks, ctx ends, the Mux is closed or a newer one takes over, and says
// which by its error, never nil. Streams live on. A goroutine may stay in t.Recv until the caller has let t go, as
// ending the RPC does; Close waits for it.
func (m *Mux) Attach(ctx context.Context, t Transport) error {
	ended := make(chan error, 1)
	m.Start(ctx, t, func(err error) { ended <- err })
	return <-ended
}

// Start is Attach that does not wait: ended gets the error, once, after which nothing is sent on t.
func (m *Mux) Start(ctx context.Context, t Transport, ended func(error)) {
	a := &attachment{transport: t, ended: func(err error) { ended(fmt.Errorf("tunnel attach: %w", err)) }}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		a.ended(errClosed)
		return
	}
	defer m.mu.Unlock()
	m.detach(ErrReplaced)
	m.attached = a
	a.hello = m.attachFrame()
	a.release = context.AfterFunc(ctx, func() { m.end(a, context.Cause(ctx)) })
	m.carriers.Go(func() { m.end(a, m.receive(a)) })
	m.wake(a)
}

// end ends an attachment if it has not ended.
func (m *Mux) end(a *attachment, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.attached == a {
		m.detach(err)
	}
}

// detach ends the attachment there is. Callers hold mu.
func (m *Mux) detach(err error) {
	if a := m.attached; a != nil {
		m.attached = nil
		a.err = err
		m.wake(a)
	}
}

// wake has somebody send what there is, or say that the attachment has ended. Callers hold mu.
func (m *Mux) wake(a *attachment) {
	if a.sending || a.err == nil && a.hello == nil && (!a.met || len(m.ready) == 0) {
		return
	}
	a.sending = true
	m.carriers.Go(func() { m.send(a) })
}

// send sends until there is nothing.
func (m *Mux) send(a *attachment) {
	for {
		frame, err := m.next(a)
		if err != nil {
			a.release()
			a.ended(err)
			return
		}
		if frame == nil {
			return
		}
		if err := a.transport.Send(frame); err != nil {
			m.end(a, fmt.Errorf("send: %w", err))
		}
	}
}

// attachFrame says where this side stands. Nothing is received between it and the attachment's first frame, so what
// it says stays true. Callers hold mu.
func (m *Mux) attachFrame() *control.Frame {
	attach := &control.Attach{Instance: m.instance, Peer: m.peer, Opened: m.opened}
	for _, c := range m.conns {
		if c.reset {
			continue // the reset may have been lost: not naming the stream says it again
		}
		attach.Streams = append(attach.Streams, &control.Resume{Stream: c.id, Received: c.in.end(), Stop: c.stopped})
	}
	return &control.Frame{Attach: attach}
}

// next takes what is to be sent; nil: nothing, and its caller ends.
func (m *Mux) next(a *attachment) (*control.Frame, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.err != nil {
		return nil, a.err
	}
	if hello := a.hello; hello != nil {
		a.hello = nil
		return hello, nil
	}
	if !a.met || len(m.ready) == 0 {
		a.sending = false
		return nil, nil
	}
	frame := &control.Frame{}
	for size := 0; size < frameSize && len(m.ready) > 0; {
		c := m.ready[0]
		m.ready[0] = nil
		m.ready = m.ready[1:]
		c.scheduled = false
		if m.conns[c.id] != c {
			continue // forgotten; its id may be another stream's by now
		}
		segment, more := c.segment()
		if segment != nil {
			frame.Segments = append(frame.Segments, segment)
			size += len(segment.Data)
		}
		if more {
			m.schedule(c)
		}
		c.settle()
	}
	return frame, nil
}

// schedule puts c in line to send. Callers hold mu.
func (m *Mux) schedule(c *Conn) {
	if c.scheduled {
		return
	}
	c.scheduled = true
	m.ready = append(m.ready, c)
	if m.attached != nil {
		m.wake(m.attached)
	}
}

// forget drops a stream that both sides are done with. Callers hold mu.
func (m *Mux) forget(c *Conn) {
	if m.conns[c.id] == c {
		delete(m.conns, c.id)
	}
}

// receive handles the frames of one attachment until it or its transport ends.
func (m *Mux) receive(a *attachment) error {
	for {
		frame, err := a.transport.Recv()
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		m.mu.Lock()
		if a.err != nil { // a newer attachment has already told the peer where to go on
			m.mu.Unlock()
			return a.err
		}
		err = m.handle(a, frame)
		var accepted []*Conn
		if m.accept != nil {
			accepted, m.backlog = m.backlog, nil
		}
		m.mu.Unlock()
		for _, c := range accepted {
			m.accept(c)
		}
		if err != nil {
			return err
		}
	}
}

// handle applies one frame. Callers hold mu.
func (m *Mux) handle(a *attachment, frame *control.Frame) error {
	if !a.met {
		if frame.Attach == nil {
			return errors.New("receive: the first frame is not an attach")
		}
		a.met = true
		m.meet(frame.Attach)
		m.wake(a)
		return nil
	}
	for _, s := range frame.Segments {
		c := m.conns[s.Stream]
		if c == nil {
			if c = m.admit(s); c == nil {
				continue // of a stream that is done with on this side
			}
		}
		if err := c.take(s); err != nil {
			return err
		}
		c.settle()
	}
	return nil
}

// admit makes the stream that a segment opens, if it does. Callers hold mu.
func (m *Mux) admit(s *control.Segment) *Conn {
	if m.opener || s.Flags&flagOpen == 0 || s.Stream <= m.opened || m.closed {
		return nil
	}
	m.opened = s.Stream
	c := newConn(m, s.Stream, s.Label)
	c.openSent = true
	m.conns[c.id] = c
	if len(m.conns) > maxStreams {
		c.resetLocked()
		return c
	}
	m.backlog = append(m.backlog, c)
	m.acceptable.Signal()
	return c
}

// meet takes in where the peer stands. Callers hold mu.
func (m *Mux) meet(peer *control.Attach) {
	if m.peer != 0 && m.peer != peer.Instance {
		for _, c := range m.conns {
			if c.openSent { // else no peer has heard of it: it is the new one's
				c.lost()
			}
		}
		if !m.opener {
			m.opened = 0 // a new opener counts from 1
		}
	}
	m.peer = peer.Instance
	known := map[uint64]*control.Resume{}
	opened := uint64(0)
	if peer.Peer == m.instance {
		opened = peer.Opened
		for _, r := range peer.Streams {
			known[r.Stream] = r
		}
	}
	// In order of ids, before anything else: the acceptor takes a smaller id after a larger one for an old stream.
	for _, c := range m.ready {
		c.scheduled = false
	}
	m.ready = nil
	for _, id := range slices.Sorted(maps.Keys(m.conns)) {
		c, r := m.conns[id], known[id]
		switch {
		case r != nil:
			c.resume(r)
		case m.opener && id > opened && c.reset:
			m.forget(c) // its opening was lost on the way, so nobody waits for its reset
		case m.opener && id > opened:
			c.resume(&control.Resume{Stream: id})
			c.openSent = false
		default:
			c.lost()
		}
	}
}
