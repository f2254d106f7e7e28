package sshd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Relay stands between a client and a server on real loopback sockets, where it
// counts, delays, stalls and cuts. It sees ciphertext only.
type Relay struct {
	listener net.Listener
	target   string
	up, down *link
	ctx      context.Context // ends the dials under way; cancelled by Close
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{} // both sockets of every living connection
	counts Counts
	last   map[int]byte // per connection: who sent last, 'c' or 's'
}

// Counts is what a Relay saw over all its connections.
//
// A flight is a run of bytes in one direction that an answer ends. RoundTrips
// is 1 for each TCP handshake (SYN, SYN-ACK) plus 1 for each flight of the
// server: what a client on a long line waits for. The final ACK of the handshake
// travels with the client's first flight, and so does the relay's own dial. With
// a delay well above the time either side needs to answer (20 ms is plenty on an
// idle machine) the count is that of a long line; with none, both sides'
// versions may cross and count once more.
type Counts struct {
	Conns      int
	Flights    int
	RoundTrips int
	Up, Down   int64 // bytes, client → server and back
}

// NewRelay listens on a free loopback port and passes each connection on to
// target. Close it.
func NewRelay(target string) (*Relay, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("relay to %s: %w", target, err)
	}
	r := &Relay{
		listener: listener, target: target, up: newLink(0), down: newLink(0),
		conns: make(map[net.Conn]struct{}), last: make(map[int]byte),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.wg.Go(r.serve)
	return r, nil
}

// Addr is where to dial instead of the target.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// SetDelay sets the one-way delay of both directions.
func (r *Relay) SetDelay(d time.Duration) { r.up.setLatency(d); r.down.setLatency(d) }

// Stall holds back both directions until called with false.
func (r *Relay) Stall(on bool) { r.up.stall(on); r.down.stall(on) }

// Cut resets all living connections; new ones are served.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	// An RST instead of a FIN; on all before the first is closed, since its pump
	// then closes the other one.
	for c := range r.conns {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // a closed socket may refuse
		}
	}
	for c := range r.conns {
		_ = c.Close() // dying is the point
	}
}

// Counts returns the counts so far.
func (r *Relay) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts
}

// Close ends all connections and waits for the relay's goroutines.
func (r *Relay) Close() error {
	r.cancel()
	err := r.listener.Close()
	r.Cut()
	r.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (r *Relay) serve() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		r.mu.Lock()
		r.counts.Conns++
		r.counts.RoundTrips++
		id := r.counts.Conns
		r.mu.Unlock()
		if r.adopt(c) {
			r.wg.Go(func() { r.pass(id, c) })
		}
	}
}

// adopt lets Cut reach c; false once the relay is closed.
func (r *Relay) adopt(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil {
		_ = c.Close()
		return false
	}
	r.conns[c] = struct{}{}
	return true
}

func (r *Relay) drop(c net.Conn) {
	_ = c.Close() // may be closed already
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
}

// pass runs one connection: client ⇄ a ~ wire ~ b ⇄ server, the wire being the
// in-memory pipe that has the delays and faults. It ends when both directions
// have, or with the first error.
func (r *Relay) pass(id int, client net.Conn) {
	defer r.drop(client)
	a, b := pipeOver(r.up, r.down, client.RemoteAddr(), r.listener.Addr())
	defer a.Close()
	defer b.Close()

	abort := func() {
		_ = client.Close() // all four may be closed already
		_ = a.Close()
		_ = b.Close()
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { r.pump(a, client, abort, func(n int) { r.count(id, 'c', n) }) })
	if r.up.cross(r.ctx) != nil {
		abort()
		return
	}
	server, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(r.ctx, "tcp", r.target)
	if err != nil || !r.adopt(server) {
		abort()
		return
	}
	abortBoth := func() {
		abort()
		_ = server.Close()
	}
	wg.Go(func() { r.pump(server, b, abortBoth, nil) })
	wg.Go(func() { r.pump(b, server, abortBoth, func(n int) { r.count(id, 's', n) }) })
	r.pump(client, a, abortBoth, nil)
	wg.Wait()
	r.drop(server)
}

func (r *Relay) count(id int, who byte, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last[id] != who {
		r.last[id] = who
		r.counts.Flights++
		if who == 's' {
			r.counts.RoundTrips++
		}
	}
	if who == 'c' {
		r.counts.Up += int64(n)
	} else {
		r.counts.Down += int64(n)
	}
}

// pump copies until from ends and passes the end on as a half-close; an error on
// either side aborts the connection.
func (r *Relay) pump(to, from net.Conn, abort func(), seen func(int)) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if seen != nil {
				seen(n)
			}
			if _, werr := to.Write(buf[:n]); werr != nil {
				abort()
				return
			}
		}
		if err == io.EOF {
			if half, ok := to.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite() // the other direction may have ended it
			}
			return
		}
		if err != nil {
			abort()
			return
		}
	}
}
