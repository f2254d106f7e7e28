package tcpstore

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
)

// Limits bound what a Store accepts. The zero value of a field takes its default.
type Limits struct {
	Memory int64 // bytes of keys, values, parked waits and large values in flight, with their overhead; default 1 GiB
	Value  int   // bytes of one value; default 64 MiB
	Key    int   // bytes of one key; default 64 KiB
	Keys   int   // keys in one command; default 131072, as in PyTorch's libuv server
}

func (l Limits) withDefaults() Limits {
	if l.Memory == 0 {
		l.Memory = 1 << 30
	}
	if l.Value == 0 {
		l.Value = 64 << 20
	}
	if l.Key == 0 {
		l.Key = 64 << 10
	}
	if l.Keys == 0 {
		l.Keys = 131072
	}
	return l
}

var (
	// ErrLimit reports a request beyond the Store's Limits. The protocol has no error reply: the connection is closed.
	ErrLimit = errors.New("tcpstore: limit exceeded")
	// ErrNotNumber reports an ADD or BARRIER on a value that does not start with a decimal number.
	ErrNotNumber = errors.New("tcpstore: value is not a number")
)

// What one key, one queued value and one parked key cost beside their bytes: map slot, headers, links.
const (
	entryOverhead = 128
	itemOverhead  = 32
	waitOverhead  = 160
	counterSize   = 20 // the longest int64 in decimal
)

// Store is the keyed state of one generation: values, queues, and who waits for what. Use NewStore; its methods may be called at any time from any goroutine,
// also while a Server serves it, except from inside the hooks of Options, which run under its lock.
type Store struct {
	limits Limits
	used   atomic.Int64 // bytes charged against limits.Memory

	mu       sync.Mutex // guards everything below, and the fields of session that say so
	entries  map[string]*entry
	queues   map[string]*queue
	waiters  map[string]*waitList // WAIT
	barriers map[string]*waitList // BARRIER
	watchers map[string][]*session
	woken    []*session // got something in their outbox since the lock was taken
}

// entry is one value. Counters stay numbers until somebody reads them: on the wire they are decimal ASCII. Bytes of value are never changed, only
// appended to, so that a reader may hold a slice of them without the lock.
type entry struct {
	value   []byte
	number  int64
	counter bool
}

func (e *entry) size() int {
	if e.counter {
		return counterSize
	}
	return len(e.value)
}

// bytes is the value as clients see it; buf saves the allocation for a counter.
func (e *entry) bytes(buf []byte) []byte {
	if e.counter {
		return strconv.AppendInt(buf, e.number, 10)
	}
	return e.value
}

// queue is a FIFO of values; items before head are gone.
type queue struct {
	items [][]byte
	head  int
}

func (q *queue) len() int { return len(q.items) - q.head }

// NewStore returns an empty Store.
func NewStore(limits Limits) *Store {
	return &Store{
		limits:   limits.withDefaults(),
		entries:  make(map[string]*entry),
		queues:   make(map[string]*queue),
		waiters:  make(map[string]*waitList),
		barriers: make(map[string]*waitList),
		watchers: make(map[string][]*session),
	}
}

// charge adds n bytes to what is used. A release (n < 0) always succeeds.
func (st *Store) charge(n int) error {
	if n == 0 {
		return nil
	}
	if used := st.used.Add(int64(n)); n > 0 && used > st.limits.Memory {
		st.used.Add(int64(-n))
		return fmt.Errorf("store of %d bytes: %d more: %w", used-int64(n), n, ErrLimit)
	}
	return nil
}

// unlock releases the lock and has the outboxes written that were filled under it. scratch is reused for the list; the new one is returned.
func (st *Store) unlock(scratch []*session) []*session {
	if len(st.woken) == 0 {
		st.mu.Unlock()
		return scratch
	}
	woken := st.woken
	st.woken = scratch[:0]
	st.mu.Unlock()
	for _, c := range woken {
		c.kick()
	}
	clear(woken)
	return woken[:0]
}

// All methods below with a lower-case name are called with the lock held.

// present says whether key has a value or, as in PyTorch's libuv server, a non-empty queue.
func (st *Store) present(key []byte) bool {
	if st.entries[string(key)] != nil {
		return true
	}
	return len(st.queues) > 0 && st.queues[string(key)] != nil
}

// put stores value, which the Store owns from now on, and wakes who waits for key.
func (st *Store) put(key, value []byte) error {
	e := st.entries[string(key)]
	if e == nil {
		if err := st.charge(len(key) + len(value) + entryOverhead); err != nil {
			return err
		}
		st.entries[string(key)] = &entry{value: value}
		st.wake(key)
		st.notify(watchCreated, key, nil, value)
		return nil
	}
	if err := st.charge(len(value) - e.size()); err != nil {
		return err
	}
	if len(st.watchers) > 0 {
		st.notify(watchUpdated, key, e.bytes(nil), value)
	}
	*e = entry{value: value}
	return nil
}

// add adds n to the number that key holds (0 if absent) and returns the sum. It wraps around.
func (st *Store) add(key []byte, n int64) (int64, error) {
	e := st.entries[string(key)]
	if e == nil {
		if err := st.charge(len(key) + counterSize + entryOverhead); err != nil {
			return 0, err
		}
		st.entries[string(key)] = &entry{number: n, counter: true}
		st.wake(key)
		if len(st.watchers) > 0 {
			st.notify(watchCreated, key, nil, strconv.AppendInt(nil, n, 10))
		}
		return n, nil
	}
	old := e.number
	if !e.counter {
		var ok bool
		if old, ok = leadingInt(e.value); !ok {
			return 0, fmt.Errorf("add to %q: %w", clip(key), ErrNotNumber)
		}
		if err := st.charge(counterSize - len(e.value)); err != nil {
			return 0, err
		}
	}
	sum := old + n
	if len(st.watchers) > 0 {
		st.notify(watchUpdated, key, e.bytes(nil), strconv.AppendInt(nil, sum, 10))
	}
	*e = entry{number: sum, counter: true}
	return sum, nil
}

// concat appends value to the value of key, creating it.
func (st *Store) concat(key, value []byte) error {
	e := st.entries[string(key)]
	if e == nil {
		return st.put(key, value)
	}
	old := e.bytes(nil)
	if len(old)+len(value) > st.limits.Value {
		return fmt.Errorf("append to %q: %d bytes: %w", clip(key), len(old)+len(value), ErrLimit)
	}
	if err := st.charge(len(old) + len(value) - e.size()); err != nil {
		return err
	}
	joined := append(old, value...)
	st.notify(watchUpdated, key, old, joined)
	*e = entry{value: joined}
	return nil
}

// remove deletes key and returns how many values that removed.
func (st *Store) remove(key []byte) int64 {
	e := st.entries[string(key)]
	if e == nil {
		return 0
	}
	delete(st.entries, string(key))
	st.used.Add(-int64(len(key) + e.size() + entryOverhead))
	if len(st.watchers) > 0 {
		st.notify(watchDeleted, key, e.bytes(nil), nil)
	}
	return 1
}

// pushQueue appends to the queue of key and wakes one waiter.
func (st *Store) pushQueue(key, value []byte) error {
	cost := len(value) + itemOverhead
	q := st.queues[string(key)]
	if q == nil {
		cost += len(key) + entryOverhead
	}
	if err := st.charge(cost); err != nil {
		return err
	}
	if q == nil {
		q = new(queue)
		st.queues[string(key)] = q
	}
	q.items = append(q.items, value)
	st.wakeOne(key)
	return nil
}

// popQueue removes the oldest value of the queue of key. n is the length before; value is meaningless if it is 0.
func (st *Store) popQueue(key []byte) (value []byte, n int) {
	q := st.queues[string(key)]
	if q == nil {
		return nil, 0
	}
	n = q.len()
	value = q.items[q.head]
	q.items[q.head] = nil
	q.head++
	cost := len(value) + itemOverhead
	if n == 1 {
		delete(st.queues, string(key))
		cost += len(key) + entryOverhead
	} else if q.head > 64 && q.head > len(q.items)/2 {
		kept := copy(q.items, q.items[q.head:])
		clear(q.items[kept:])
		q.items, q.head = q.items[:kept], 0
	}
	st.used.Add(-int64(cost))
	return value, n
}

// notify tells the watchers of key.
func (st *Store) notify(change byte, key, old, value []byte) {
	if len(st.watchers) == 0 {
		return
	}
	for _, c := range st.watchers[string(key)] {
		c.out.pushChange(change, key, old, value)
		st.woken = append(st.woken, c)
	}
}

// leadingInt reads a number as C++'s std::stoll does, which PyTorch's servers use: leading space, a sign, digits, and then anything.
func leadingInt(b []byte) (int64, bool) {
	b = bytes.TrimLeft(b, " \t\n\v\f\r")
	end := 0
	if end < len(b) && (b[end] == '-' || b[end] == '+') {
		end++
	}
	for end < len(b) && b[end] >= '0' && b[end] <= '9' {
		end++
	}
	// The longest int64 in decimal has 20 bytes; leading zeros beyond that are nobody's counter.
	if end > counterSize {
		return 0, false
	}
	n, err := strconv.ParseInt(string(b[:end]), 10, 64)
	return n, err == nil
}

// clip shortens a key for an error message.
func clip(key []byte) []byte {
	return key[:min(len(key), 80)]
}
