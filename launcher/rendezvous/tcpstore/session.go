package tcpstore

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// readBuffer holds the requests of a normal client, which flushes at 1440 bytes (SendBuffer in TCPStore.cpp). Ten thousand connections have one each.
	readBuffer = 2 << 10
	// freeBytes of a command are read without being charged to the Store: the connection count bounds them.
	freeBytes = 4 << 10
)

// session is one connection. The goroutine of serve owns all fields that do not say otherwise.
type session struct {
	server *Server
	store  *Store // fixed: a connection never changes its generation
	conn   net.Conn
	peer   string
	info   ConnInfo
	out    outbox

	in      *bufio.Reader // reads through Read below
	dialect Dialect
	started bool       // the first request has come in
	parked  bool       // a wait may be parked
	pending int        // bytes read of the command so far
	charged int        // of these, charged to the Store
	key     []byte     // scratch
	value   []byte     // scratch
	keys    keyList    // scratch
	values  [][]byte   // scratch
	woken   []*session // scratch of Store.unlock

	wait    wait     // guarded by store.mu
	watched []string // keys that the Store's watchers list this session under; guarded by store.mu
	dead    bool     // no request has an effect any more; guarded by store.mu

	closing sync.Once
	cause   error         // why it ended; set once in closing
	done    chan struct{} // closed in closing
	writers sync.WaitGroup
}

// abort ends the session for the first cause given. It may be called by anyone who holds no lock, and does not block.
func (c *session) abort(cause error) {
	c.closing.Do(func() {
		c.cause = cause
		st := c.store
		st.mu.Lock()
		c.dead = true
		st.drop(&c.wait)
		st.unwatch(c)
		st.mu.Unlock()
		c.out.close()
		close(c.done)
		// A tunnel's Close may wait for the network, and one stuck node must not hold up a new generation. ServeConn waits for it: it calls abort itself before.
		c.writers.Go(func() { c.conn.Close() })
	})
}

// Read is where the session blocks: whatever has been answered so far is written before.
func (c *session) Read(p []byte) (int, error) {
	if err := c.out.flush(c); err != nil {
		return 0, err
	}
	return c.conn.Read(p)
}

// lock takes the Store's lock, unless the session has been closed.
func (c *session) lock() (*Store, error) {
	c.release()
	c.store.mu.Lock()
	if c.dead {
		c.store.mu.Unlock()
		return nil, ErrClosed
	}
	return c.store, nil
}

func (c *session) unlock() { c.woken = c.store.unlock(c.woken) }

// serve runs requests until one fails. io.EOF means that the peer hung up between two of them.
func (c *session) serve() error {
	for {
		o, err := c.next()
		if err == nil {
			err = c.do(o)
		}
		c.forget()
		if err != nil {
			return err
		}
	}
}

// forget ends a command: its charge goes back and large scratch with it.
func (c *session) forget() {
	c.release()
	c.pending = 0
	if cap(c.key) > keepBuffer {
		c.key = nil
	}
	if cap(c.value) > keepBuffer {
		c.value = nil
	}
	if cap(c.keys.flat) > keepBuffer || cap(c.keys.ends) > keepBuffer/8 {
		c.keys = keyList{}
	}
	if cap(c.values) > keepBuffer/24 {
		c.values = nil
	}
}

func (c *session) release() {
	if c.charged > 0 {
		c.store.charge(-c.charged)
		c.charged = 0
	}
}

// next reads an opcode.
func (c *session) next() (op, error) {
	b, err := c.in.ReadByte()
	if err != nil {
		return 0, err
	}
	if c.parked {
		// A client of dialect A whose wait has timed out tells nobody: its next request is all there is. Its wait must not be answered any more.
		if err := c.dropWait(); err != nil {
			return 0, err
		}
	}
	first := !c.started
	c.started = true
	switch {
	case first && b == 0:
		return c.detect()
	case c.dialect == DialectC:
		if o := op(b); o <= opBarrier {
			return o, nil
		}
		return 0, fmt.Errorf("opcode %#x: %w", b, ErrProtocol)
	}
	return c.legacy(b, first)
}

// detect tells a handshake from A's and B's SET after a first zero byte. The four bytes that follow are the magic, or the low bytes of a key length, for which
// the magic would be a gigabyte.
func (c *session) detect() (op, error) {
	p, err := c.in.Peek(4)
	if err != nil {
		return 0, c.cut(err)
	}
	if binary.LittleEndian.Uint32(p) == magic {
		c.setDialect(DialectC)
		c.server.joined(c)
		return opValidate, nil
	}
	return opSet, nil
}

// legacy maps an opcode of A or B, which differ in 7 and 8.
func (c *session) legacy(b byte, first bool) (op, error) {
	if b <= 6 {
		return op(b) + opSet, nil
	}
	if b > 11 {
		return 0, fmt.Errorf("opcode %#x: %w", b, ErrProtocol)
	}
	if c.dialect == DialectAuto {
		switch isB, another := c.server.legacyPeer(c); {
		case c.server.opts.Legacy != DialectAuto:
			c.setDialect(c.server.opts.Legacy)
		case isB:
			c.setDialect(DialectB)
		case b >= 9:
			c.setDialect(DialectB)
			c.server.proveB(c)
		case b == 8:
			return opDeleteOrAppend, nil
		case first && another:
			// A watches on a second socket, which has been silent; B never has a second one.
			c.setDialect(DialectA)
		default:
			c.setDialect(DialectB)
		}
	}
	if c.dialect == DialectB {
		return op(b) + opSet, nil
	}
	switch b {
	case 7:
		return opWatch, nil
	case 8:
		return opDelete, nil
	}
	return 0, fmt.Errorf("opcode %#x in dialect A: %w", b, ErrProtocol)
}

func (c *session) setDialect(d Dialect) { c.dialect, c.info.Dialect = d, d }

func (c *session) dropWait() error {
	c.parked = false
	st, err := c.lock()
	if err != nil {
		return err
	}
	st.drop(&c.wait)
	c.unlock()
	return nil
}

// deleteOrAppend resolves opcode 8 of a connection that may be A or B: both start with a key, and B sends a value right after it. It needs no read deadline,
// which not every net.Conn has: a timer and the arrival of the next byte race for the decision.
func (c *session) deleteOrAppend() error {
	if err := c.readKey(); err != nil {
		return err
	}
	if c.in.Buffered() == 0 {
		var decided atomic.Bool
		var deleted error
		ran := make(chan struct{})
		timer := time.AfterFunc(c.server.opts.LegacyWait, func() {
			defer close(ran)
			if decided.CompareAndSwap(false, true) {
				deleted = c.delete()
				c.kick()
			}
		})
		_, err := c.in.Peek(1)
		byTimer := !decided.CompareAndSwap(false, true)
		if !timer.Stop() {
			<-ran
		}
		switch {
		case byTimer:
			c.setDialect(DialectA)
			return deleted
		case errors.Is(err, io.EOF):
			// The peer sent a whole DELETE_KEY and hung up.
			return c.delete()
		case err != nil:
			return err
		}
	}
	c.setDialect(DialectB)
	return c.append()
}

// cut is what an end of stream inside a request becomes.
func (c *session) cut(err error) error {
	if err == io.EOF {
		return fmt.Errorf("request cut short: %w", io.ErrUnexpectedEOF)
	}
	return err
}

func (c *session) uint64() (uint64, error) {
	p, err := c.in.Peek(8)
	if err != nil {
		return 0, c.cut(err)
	}
	v := binary.LittleEndian.Uint64(p)
	c.in.Discard(8)
	return v, nil
}

func (c *session) uint32() (uint32, error) {
	p, err := c.in.Peek(4)
	if err != nil {
		return 0, c.cut(err)
	}
	v := binary.LittleEndian.Uint32(p)
	c.in.Discard(4)
	return v, nil
}

// length reads a length or count and checks it.
func (c *session) length(what string, limit int) (int, error) {
	n, err := c.uint64()
	if err != nil {
		return 0, err
	}
	if n > uint64(limit) {
		return 0, fmt.Errorf("%s %d above %d: %w", what, n, limit, ErrLimit)
	}
	return int(n), nil
}

// bytes appends the next n bytes of the stream to dst. Memory is taken as bytes arrive, never for a length that was only announced.
func (c *session) bytes(dst []byte, n int) ([]byte, error) {
	for n > 0 {
		// What has arrived already is safe to make room for; beyond that, the buffer at most doubles.
		step := min(n, max(c.in.Buffered(), freeBytes, len(dst)))
		if err := c.count(step); err != nil {
			return dst, err
		}
		if room := len(dst) + step; room > cap(dst) {
			grown := make([]byte, len(dst), min(len(dst)+n, max(room, 2*cap(dst))))
			copy(grown, dst)
			dst = grown
		}
		from := len(dst)
		dst = dst[:from+step]
		if _, err := io.ReadFull(c.in, dst[from:]); err != nil {
			return dst, c.cut(err)
		}
		n -= step
	}
	return dst, nil
}

// count charges what a command has read beyond the free bytes.
func (c *session) count(n int) error {
	c.pending += n
	if c.pending <= freeBytes {
		return nil
	}
	if err := c.store.charge(n); err != nil {
		return err
	}
	c.charged += n
	return nil
}

// readKey reads a key into c.key.
func (c *session) readKey() error {
	n, err := c.length("key length", c.store.limits.Key)
	if err != nil {
		return err
	}
	c.key, err = c.bytes(c.key[:0], n)
	return err
}

// readValue reads a value into a buffer of its own, which the Store can keep.
func (c *session) readValue() ([]byte, error) {
	n, err := c.length("value length", c.store.limits.Value)
	if err != nil || n == 0 {
		return nil, err
	}
	return c.bytes(nil, n)
}

// readKeys reads a list of keys into c.keys.
func (c *session) readKeys() error {
	n, err := c.length("key count", c.store.limits.Keys)
	if err != nil {
		return err
	}
	c.keys.reset()
	for range n {
		if err := c.readListKey(); err != nil {
			return err
		}
	}
	return nil
}

func (c *session) readListKey() error {
	n, err := c.length("key length", c.store.limits.Key)
	if err != nil {
		return err
	}
	if err := c.count(listOverhead); err != nil {
		return err
	}
	c.keys.flat, err = c.bytes(c.keys.flat, n)
	c.keys.ends = append(c.keys.ends, len(c.keys.flat))
	return err
}

// listOverhead is what a key or value of a list costs beside its bytes: an end, a slice header.
const listOverhead = 32

// keyList is the keys of one command, in one buffer.
type keyList struct {
	flat []byte
	ends []int
}

func (l *keyList) reset()   { l.flat, l.ends = l.flat[:0], l.ends[:0] }
func (l *keyList) len() int { return len(l.ends) }

func (l *keyList) at(i int) []byte {
	from := 0
	if i > 0 {
		from = l.ends[i-1]
	}
	return l.flat[from:l.ends[i]]
}
