package tcpstore

import (
	"encoding/binary"
	"net"
	"strconv"
	"sync"
	"time"
)

const (
	// shareFrom is the size from which a value is queued as it is instead of being copied next to its neighbours.
	shareFrom = 16 << 10
	// highWater makes the reader write its replies before it runs more of the pipelined requests it has already read.
	highWater = 256 << 10
	// keepBuffer is the largest buffer that an idle connection holds on to.
	keepBuffer = 64 << 10
)

// outbox holds the replies of one connection that are not written yet, in order. Two kinds of goroutine fill it: the connection's
// reader, which also writes it and so is held back by a slow peer, and others that wake a waiter or tell a watcher, which must never block: past
// limit they mark the outbox as overflown and the connection is closed.
type outbox struct {
	limit int

	mu       sync.Mutex // guards everything below
	idle     sync.Cond  // signalled when writing becomes false; its L is &mu
	chunks   [][]byte   // complete chunks, older than small
	small    []byte     // replies that are copied together
	spare    []byte     // the buffer that small swaps with
	size     int        // bytes in chunks and small
	writing  bool       // one goroutine is writing
	overflow bool
	closed   bool
}

func (o *outbox) init(limit int) {
	o.limit = limit
	o.idle.L = &o.mu
}

func (o *outbox) byte(b byte) {
	o.mu.Lock()
	o.small = append(o.small, b)
	o.size++
	o.mu.Unlock()
}

func (o *outbox) uint32(v uint32) {
	o.mu.Lock()
	o.small = binary.LittleEndian.AppendUint32(o.small, v)
	o.size += 4
	o.mu.Unlock()
}

func (o *outbox) int64(v int64) {
	o.mu.Lock()
	o.small = binary.LittleEndian.AppendUint64(o.small, uint64(v))
	o.size += 8
	o.mu.Unlock()
}

// vector queues a length and the bytes of v, which nobody may change afterwards.
func (o *outbox) vector(v []byte) {
	o.mu.Lock()
	o.appendVector(v)
	o.mu.Unlock()
}

func (o *outbox) appendVector(v []byte) {
	o.small = binary.LittleEndian.AppendUint64(o.small, uint64(len(v)))
	o.size += 8 + len(v)
	if len(v) < shareFrom {
		o.small = append(o.small, v...)
		return
	}
	o.chunks = append(o.chunks, o.small, v)
	o.small = nil
}

// number queues a counter as the vector of its decimal digits.
func (o *outbox) number(n int64) {
	var buf [counterSize]byte
	o.vector(strconv.AppendInt(buf[:0], n, 10))
}

func (o *outbox) text(s string) {
	o.mu.Lock()
	o.small = binary.LittleEndian.AppendUint64(o.small, uint64(len(s)))
	o.small = append(o.small, s...)
	o.size += 8 + len(s)
	o.mu.Unlock()
}

// push queues a byte, as byte does, for a connection that is not the caller's own; it never blocks. What does not fit marks the overflow.
func (o *outbox) push(b byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.open() {
		o.small = append(o.small, b)
		o.size++
	}
}

// pushChange is push for a change of a watched key. It copies key and shares the values.
func (o *outbox) pushChange(change byte, key, old, value []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.open() {
		return
	}
	o.small = append(o.small, change)
	o.small = binary.LittleEndian.AppendUint64(o.small, uint64(len(key)))
	o.small = append(o.small, key...)
	o.size += 1 + 8 + len(key)
	o.appendVector(old)
	o.appendVector(value)
}

// open says whether one more push is taken. A push that is itself larger than the limit is: only what lies there already counts.
func (o *outbox) open() bool {
	if o.size > o.limit {
		o.overflow = true
	}
	return !o.closed && !o.overflow
}

// pending is the number of bytes not handed to the connection yet.
func (o *outbox) pending() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.size
}

// drain writes until the outbox is empty. The caller holds mu and has seen writing false, or has set it itself.
func (o *outbox) drain(c *session) error {
	o.writing = true
	var err error
	for o.size > 0 && !o.closed && err == nil {
		chunks, small, n := o.chunks, o.small, o.size
		o.chunks, o.small, o.spare, o.size = nil, o.spare[:0], nil, 0
		o.mu.Unlock()
		err = writeAll(c, chunks, small, n)
		o.mu.Lock()
		if cap(small) <= keepBuffer && o.spare == nil {
			o.spare = small[:0]
		}
	}
	if err != nil {
		o.closed = true
	}
	o.writing = false
	o.idle.Broadcast()
	return err
}

// flush is the reader's: it waits for a writer that is at work, then writes what is left.
func (o *outbox) flush(c *session) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.writing {
		o.idle.Wait()
	}
	if o.overflow {
		return errSlowPeer
	}
	if o.closed {
		return net.ErrClosed
	}
	if o.size == 0 {
		return nil
	}
	return o.drain(c)
}

func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
}

// writeAll writes the chunks and then small. A large write that makes no end within the stall limit closes the connection, so that a
// peer that has stopped reading cannot pin values that the store has long replaced.
func writeAll(c *session, chunks [][]byte, small []byte, n int) error {
	if n >= shareFrom {
		c.writers.Add(1)
		stall := time.AfterFunc(c.server.opts.WriteStall, func() {
			defer c.writers.Done()
			c.abort(errSlowPeer)
		})
		defer func() {
			if stall.Stop() {
				c.writers.Done()
			}
		}()
	}
	if len(chunks) == 0 {
		_, err := c.conn.Write(small)
		return err
	}
	buffers := net.Buffers(chunks)
	if len(small) > 0 {
		buffers = append(buffers, small)
	}
	_, err := buffers.WriteTo(c.conn)
	return err
}

// lastWords writes the replies to what was right before the request that ended the session. A peer that does not take them soon goes without.
func (c *session) lastWords(cause error) {
	if c.out.pending() == 0 {
		return
	}
	c.writers.Add(1)
	limit := time.AfterFunc(time.Second, func() {
		defer c.writers.Done()
		c.abort(cause)
	})
	c.out.flush(c) // the session is ending for another reason already
	if limit.Stop() {
		c.writers.Done()
	}
}

// kick has the outbox written by a goroutine of its own, unless somebody is at it. It never blocks.
func (c *session) kick() {
	o := &c.out
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
	case o.overflow:
		o.closed = true
		c.writers.Go(func() { c.abort(errSlowPeer) })
	case !o.writing && o.size > 0:
		o.writing = true
		c.writers.Go(func() {
			o.mu.Lock()
			err := o.drain(c)
			o.mu.Unlock()
			if err != nil {
				c.abort(err)
			}
		})
	}
}
