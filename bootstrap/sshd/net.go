package sshd

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net"
	"sync"
	"syscall"
	"time"
)

// Net is an in-memory network of named hosts for tests in virtual time: real
// sockets are not durably blocked in a testing/synctest bubble, its connections
// (see Pipe) are. All its state changes happen in the callers' goroutines; it
// starts none.
type Net struct {
	seed     uint64
	min, max time.Duration

	mu        sync.Mutex
	links     map[direction]*link
	listeners map[string]*memListener // by "host:port"
	conns     map[*pipeEnd]direction  // the dialling end → from, to
	ports     uint64                  // source ports handed out
}

type direction struct{ from, to string }

// NewNet returns a network whose one-way latencies lie in [min, max). Each
// direction of each pair of hosts has its own, drawn from the seed and the two
// names alone, in nanoseconds: the order of dials changes nothing, and no two
// events of a run share an instant, so that a seed replays.
func NewNet(seed uint64, min, max time.Duration) *Net {
	return &Net{
		seed: seed, min: min, max: max,
		links:     make(map[direction]*link),
		listeners: make(map[string]*memListener),
		conns:     make(map[*pipeEnd]direction),
	}
}

// link returns the one direction from → to, making it on first use; mu is held.
func (n *Net) link(from, to string) *link {
	d := direction{from, to}
	l := n.links[d]
	if l == nil {
		latency := n.min
		if spread := n.max - n.min; spread > 0 {
			h := fnv.New64a()
			var seed [8]byte
			binary.BigEndian.PutUint64(seed[:], n.seed)
			h.Write(seed[:])
			h.Write([]byte(from + "\x00" + to))
			latency += time.Duration(mix(h.Sum64()) % uint64(spread))
		}
		l = newLink(latency)
		n.links[d] = l
	}
	return l
}

// mix is the finaliser of splitmix64 (Steele, Lea, Flood: "Fast splittable
// pseudorandom number generators", 2014): FNV alone leaves short names alike.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// SetLatency fixes the one-way latency from → to, also of living connections
// and of bytes under way.
func (n *Net) SetLatency(from, to string, d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link(from, to).setLatency(d)
}

// Stall holds back everything from → to, dials too, until it is called with
// false; nothing is lost and neither side is told. Stalling one direction only
// gives the host that hears and cannot be heard.
func (n *Net) Stall(from, to string, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link(from, to).stall(on)
}

// Cut resets every living connection between the two hosts, whoever dialled;
// both ends get ECONNRESET at once. New dials work.
func (n *Net) Cut(a, b string) {
	n.resetIf(func(d direction) bool { return d == direction{a, b} || d == direction{b, a} })
}

// Crash resets every connection of a host and closes its listeners, as the death
// of all its processes does. (For a machine that falls silent, Stall it.)
func (n *Net) Crash(host string) {
	n.mu.Lock()
	var closing []*memListener
	for _, l := range n.listeners {
		if l.host == host {
			closing = append(closing, l)
		}
	}
	n.mu.Unlock()
	for _, l := range closing {
		_ = l.Close() // cannot fail
	}
	n.resetIf(func(d direction) bool { return d.from == host || d.to == host })
}

func (n *Net) resetIf(match func(direction) bool) {
	n.mu.Lock()
	var hit []*pipeEnd
	for c, d := range n.conns {
		if match(d) {
			hit = append(hit, c)
			delete(n.conns, c)
		}
	}
	n.mu.Unlock()
	for _, c := range hit {
		c.reset()
	}
}

// Host names a host; hosts exist by being named.
func (n *Net) Host(name string) Host { return Host{net: n, name: name} }

// Host is a place to dial from and listen on.
type Host struct {
	net  *Net
	name string
}

// Listen opens a port: ":22", or with the host's own name in front.
func (h Host) Listen(address string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("listen %s: %w", address, err)
	}
	if host != "" && host != h.name {
		return nil, fmt.Errorf("listen %s on host %s: %w", address, h.name, syscall.EADDRNOTAVAIL)
	}
	address = net.JoinHostPort(h.name, port)
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if h.net.listeners[address] != nil {
		return nil, fmt.Errorf("listen %s: %w", address, syscall.EADDRINUSE)
	}
	l := &memListener{
		net: h.net, host: h.name, address: address,
		arrived: make(chan struct{}, 1), done: make(chan struct{}),
	}
	h.net.listeners[address] = l
	return l, nil
}

// Dial connects to a listening host. It takes one round trip, as TCP does; a
// port nobody listens on is refused after it, and a stalled link holds it until
// ctx ends. The network name is ignored.
func (h Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := h.dial(ctx, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Source: memAddr(h.name), Addr: memAddr(address), Err: err}
	}
	return c, nil
}

func (h Host) dial(ctx context.Context, address string) (net.Conn, error) {
	to, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	h.net.mu.Lock()
	out, back := h.net.link(h.name, to), h.net.link(to, h.name)
	h.net.ports++
	source := fmt.Sprintf("%s:%d", h.name, 32768+h.net.ports)
	h.net.mu.Unlock()

	if err := out.cross(ctx); err != nil {
		return nil, err
	}
	h.net.mu.Lock()
	l := h.net.listeners[address]
	var local *pipeEnd
	if l != nil {
		var remote *pipeEnd
		local, remote = pipeOver(out, back, memAddr(source), memAddr(address))
		h.net.conns[local] = direction{h.name, to}
		// Either end's close ends what Cut could still do to the other one that
		// matters: what is left to be read is not lost.
		forget := func() {
			h.net.mu.Lock()
			defer h.net.mu.Unlock()
			delete(h.net.conns, local)
		}
		local.onClose = forget
		l.queue = append(l.queue, remote)
		l.notify()
	}
	h.net.mu.Unlock()
	if err := back.cross(ctx); err != nil {
		if local != nil {
			_ = local.Close() // cannot fail
		}
		return nil, err
	}
	if local == nil {
		return nil, syscall.ECONNREFUSED
	}
	return local, nil
}

// cross waits as long as one packet needs to get over the link.
func (l *link) cross(ctx context.Context) error {
	start := time.Now()
	for {
		latency, stalled, changed := l.state()
		var due <-chan time.Time
		if !stalled {
			left := latency - time.Since(start)
			if left <= 0 {
				return ctx.Err()
			}
			t := time.NewTimer(left)
			defer t.Stop()
			due = t.C
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-due:
		}
	}
}

type memListener struct {
	net           *Net
	host, address string
	queue         []*pipeEnd // dialled, not accepted; net.mu
	closed        bool       // net.mu
	arrived       chan struct{}
	done          chan struct{}
}

func (l *memListener) notify() {
	select {
	case l.arrived <- struct{}{}:
	default:
	}
}

func (l *memListener) Accept() (net.Conn, error) {
	for {
		l.net.mu.Lock()
		closed := l.closed
		var c *pipeEnd
		if len(l.queue) > 0 {
			c, l.queue = l.queue[0], l.queue[1:]
		}
		more := len(l.queue) > 0
		l.net.mu.Unlock()
		if more {
			l.notify() // another Accept may be waiting
		}
		if c != nil {
			return c, nil
		}
		if closed {
			return nil, &net.OpError{Op: "accept", Net: "mem", Addr: l.Addr(), Err: net.ErrClosed}
		}
		select {
		case <-l.arrived:
		case <-l.done:
		}
	}
}

// Close resets what was dialled and not accepted, as the kernel does.
func (l *memListener) Close() error {
	l.net.mu.Lock()
	waiting := l.queue
	l.queue = nil
	first := !l.closed
	l.closed = true
	if first {
		delete(l.net.listeners, l.address)
		close(l.done)
	}
	l.net.mu.Unlock()
	for _, c := range waiting {
		c.reset()
	}
	return nil
}

func (l *memListener) Addr() net.Addr { return memAddr(l.address) }
