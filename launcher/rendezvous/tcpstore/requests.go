package tcpstore

import (
	"bytes"
	"fmt"
	"slices"
	"time"
)

// do reads the fields of request o, runs it and leaves the reply in the outbox.
func (c *session) do(o op) error {
	switch o {
	case opValidate:
		return c.validate()
	case opSet:
		return c.set()
	case opCompareSet:
		return c.compareSet()
	case opGet:
		return c.get()
	case opAdd:
		return c.add()
	case opCheck:
		return c.check()
	case opWait:
		return c.waitFor()
	case opNumKeys:
		return c.numKeys()
	case opDelete:
		if err := c.readKey(); err != nil {
			return err
		}
		return c.delete()
	case opAppend:
		if err := c.readKey(); err != nil {
			return err
		}
		return c.append()
	case opMultiGet:
		return c.multiGet()
	case opMultiSet:
		return c.multiSet()
	case opCancelWait:
		// The wait went when the opcode was read. If it was answered before, that answer is in the outbox already.
		c.out.byte(replyWaitCanceled)
		return nil
	case opPing:
		nonce, err := c.uint32()
		if err == nil {
			c.out.uint32(nonce)
		}
		return err
	case opQueuePush:
		return c.queuePush()
	case opQueuePop:
		return c.queuePop()
	case opQueueLen:
		return c.queueLen()
	case opListKeys:
		return c.listKeys()
	case opBarrier:
		return c.barrier()
	case opWatch:
		return c.watch()
	case opDeleteOrAppend:
		return c.deleteOrAppend()
	}
	return fmt.Errorf("operation %d: %w", o, ErrProtocol)
}

func (c *session) validate() error {
	v, err := c.uint32()
	if err == nil && v != magic {
		return fmt.Errorf("validation number %#x: %w", v, ErrProtocol)
	}
	return err
}

func (c *session) set() error {
	if err := c.readKey(); err != nil {
		return err
	}
	value, err := c.readValue()
	if err != nil {
		return err
	}
	value = c.rewrite(c.key, value)
	st, err := c.lock()
	if err != nil {
		return err
	}
	err = st.put(c.key, value)
	c.unlock()
	return err
}

// rewrite asks the hook what to store for key.
func (c *session) rewrite(key, value []byte) []byte {
	hook := c.server.opts.OnSet
	if hook == nil {
		return value
	}
	// Clipped, so that an APPEND cannot grow into memory of the hook's.
	return slices.Clip(hook(c.info, string(key), value))
}

func (c *session) compareSet() error {
	if err := c.readKey(); err != nil {
		return err
	}
	n, err := c.length("value length", c.store.limits.Value)
	if err != nil {
		return err
	}
	if c.value, err = c.bytes(c.value[:0], n); err != nil {
		return err
	}
	desired, err := c.readValue()
	if err != nil {
		return err
	}
	st, err := c.lock()
	if err != nil {
		return err
	}
	reply, hold, err := c.swap(st, c.value, desired)
	c.unlock()
	if err != nil {
		return err
	}
	if hold != nil {
		if reply, err = c.held(hold); err != nil {
			return err
		}
	}
	c.out.vector(reply)
	return nil
}

// swap is compareSet with the hook, under the lock.
func (c *session) swap(st *Store, expected, desired []byte) (reply []byte, hold <-chan struct{}, err error) {
	var buf [counterSize]byte
	var old []byte
	e := st.entries[string(c.key)]
	switch {
	case e == nil && len(expected) > 0:
		// expected is scratch, the outbox may outlive it.
		return bytes.Clone(expected), nil, nil
	case e != nil:
		if old = e.bytes(buf[:0]); !bytes.Equal(old, expected) {
			return e.bytes(nil), nil, nil
		}
	}
	if hook := c.server.opts.OnCompareSet; hook != nil {
		var other []byte
		if other, hold = hook(c.info, string(c.key), bytes.Clone(old), desired); other != nil {
			desired = slices.Clip(other)
		}
	}
	return desired, hold, st.put(c.key, desired)
}

// held waits until hold allows the reply, which is then the value of the key at that time.
func (c *session) held(hold <-chan struct{}) ([]byte, error) {
	if err := c.out.flush(c); err != nil {
		return nil, err
	}
	limit := time.NewTimer(c.server.opts.MaxHold)
	defer limit.Stop()
	select {
	case <-hold:
	case <-limit.C:
	case <-c.done:
		return nil, ErrClosed
	}
	st, err := c.lock()
	if err != nil {
		return nil, err
	}
	defer c.unlock()
	if e := st.entries[string(c.key)]; e != nil {
		return e.bytes(nil), nil
	}
	return nil, nil
}

func (c *session) get() error {
	if err := c.readKey(); err != nil {
		return err
	}
	st, err := c.lock()
	if err != nil {
		return err
	}
	// A missing key answers an empty vector, as PyTorch's libuv server does: its client waits for the key first.
	var e entry
	if found := st.entries[string(c.key)]; found != nil {
		e = *found
	}
	c.unlock()
	if e.counter {
		c.out.number(e.number)
	} else {
		c.out.vector(e.value)
	}
	return nil
}

func (c *session) add() error {
	if err := c.readKey(); err != nil {
		return err
	}
	n, err := c.uint64()
	if err != nil {
		return err
	}
	st, err := c.lock()
	if err != nil {
		return err
	}
	sum, err := st.add(c.key, int64(n))
	c.unlock()
	if err == nil {
		c.out.int64(sum)
	}
	return err
}

func (c *session) check() error {
	if err := c.readKeys(); err != nil {
		return err
	}
	st, err := c.lock()
	if err != nil {
		return err
	}
	reply := replyReady
	for i := range c.keys.len() {
		if !st.present(c.keys.at(i)) {
			reply = replyNotReady
			break
		}
	}
	c.unlock()
	c.out.byte(reply)
	return nil
}

func (c *session) waitFor() error {
	if err := c.readKeys(); err != nil {
		return err
	}
	st, err := c.lock()
	if err != nil {
		return err
	}
	c.parked, err = st.park(c, &c.keys)
	c.unlock()
	if err == nil && !c.parked {
		c.out.byte(replyStopWaiting)
	}
	return err
}

func (c *session) numKeys() error {
	st, err := c.lock()
	if err != nil {
		return err
	}
	n := len(st.entries)
	c.unlock()
	c.out.int64(int64(n))
	return nil
}

// delete removes c.key.
func (c *session) delete() error {
	st, err := c.lock()
	if err != nil {
		return err
	}
	n := st.remove(c.key)
	c.unlock()
	c.out.int64(n)
	return nil
}

// append reads a value and appends it to c.key.
func (c *session) append() error {
	value, err := c.readValue()
	if err != nil {
		return err
	}
	st, err := c.lock()
	if err != nil {
		return err
	}
	err = st.concat(c.key, value)
	c.unlock()
	return err
}

func (c *session) multiGet() error {
	if err := c.readKeys(); err != nil {
		return err
	}
	st, err := c.lock()
	if err != nil {
		return err
	}
	values := c.values[:0]
	for i := range c.keys.len() {
		var value []byte
		if e := st.entries[string(c.keys.at(i))]; e != nil {
			value = e.bytes(nil)
		}
		values = append(values, value)
	}
	c.unlock()
	c.values = values
	defer clear(values)
	for _, value := range values {
		c.out.vector(value)
		if err := c.relieve(); err != nil {
			return err
		}
	}
	return nil
}

// relieve writes the outbox out if it has become large.
func (c *session) relieve() error {
	if c.out.pending() < highWater {
		return nil
	}
	return c.out.flush(c)
}

func (c *session) multiSet() error {
	n, err := c.length("key count", c.store.limits.Keys)
	if err != nil {
		return err
	}
	c.keys.reset()
	c.values = c.values[:0]
	defer func() { clear(c.values) }()
	for i := range n {
		if err := c.readListKey(); err != nil {
			return err
		}
		value, err := c.readValue()
		if err != nil {
			return err
		}
		c.values = append(c.values, c.rewrite(c.keys.at(i), value))
	}
	st, err := c.lock()
	if err != nil {
		return err
	}
	for i, value := range c.values {
		if err = st.put(c.keys.at(i), value); err != nil {
			break
		}
	}
	c.unlock()
	return err
}

func (c *session) queuePush() error {
	if err := c.readKey(); err != nil {
		return err
	}
	value, err := c.readValue()
	if err != nil {
		return err
	}
	st, err := c.lock()
	if err != nil {
		return err
	}
	err = st.pushQueue(c.key, value)
	c.unlock()
	return err
}

func (c *session) queuePop() error {
	if err := c.readKey(); err != nil {
		return err
	}
	st, err := c.lock()
	if err != nil {
		return err
	}
	value, n := st.popQueue(c.key)
	c.unlock()
	c.out.int64(int64(n))
	if n > 0 {
		c.out.vector(value)
	}
	return nil
}

func (c *session) queueLen() error {
	if err := c.readKey(); err != nil {
		return err
	}
	st, err := c.lock()
	if err != nil {
		return err
	}
	n := 0
	if q := st.queues[string(c.key)]; q != nil {
		n = q.len()
	}
	c.unlock()
	c.out.int64(int64(n))
	return nil
}

func (c *session) listKeys() error {
	if _, err := c.lock(); err != nil {
		return err
	}
	// Keys of a map can be shared: strings never change.
	keys := make([]string, 0, len(c.store.entries))
	for key := range c.store.entries {
		keys = append(keys, key)
	}
	c.unlock()
	slices.Sort(keys) // PyTorch's order is its hash map's; a fixed one is easier on whoever compares two lists
	c.out.int64(int64(len(keys)))
	for _, key := range keys {
		c.out.text(key)
		if err := c.relieve(); err != nil {
			return err
		}
	}
	return nil
}

func (c *session) barrier() error {
	if err := c.readKey(); err != nil {
		return err
	}
	world, err := c.uint64()
	if err != nil {
		return err
	}
	st, err := c.lock()
	if err != nil {
		return err
	}
	c.parked, err = st.arrive(c, c.key, int64(world))
	c.unlock()
	if err == nil && !c.parked {
		c.out.byte(replyStopWaiting)
	}
	return err
}

// watch registers for the changes of a key. The confirmation is queued under the lock, or a change could overtake it.
func (c *session) watch() error {
	if err := c.readKey(); err != nil {
		return err
	}
	st, err := c.lock()
	if err != nil {
		return err
	}
	defer c.unlock()
	if len(c.watched) >= st.limits.Keys {
		return fmt.Errorf("watch of %q: %d watched keys: %w", clip(c.key), len(c.watched), ErrLimit)
	}
	if err := st.charge(len(c.key) + waitOverhead); err != nil {
		return err
	}
	key := string(c.key)
	c.watched = append(c.watched, key)
	st.watchers[key] = append(st.watchers[key], c)
	c.out.byte(watchRegistered)
	return nil
}
