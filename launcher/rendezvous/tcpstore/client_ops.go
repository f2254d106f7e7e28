package tcpstore

import (
	"context"
	"fmt"
)

// Set stores value under key. The protocol does not confirm it; a later request on the same Client sees it.
func (c *Client) Set(ctx context.Context, key string, value []byte) error {
	return c.exchange(ctx, opSet, func() error {
		c.text(key)
		c.vector(value)
		return c.flush()
	})
}

// Get waits until key exists and returns its value. A key deleted in between reads as empty.
func (c *Client) Get(ctx context.Context, key string) (value []byte, err error) {
	if err := c.take(ctx, opWait); err != nil {
		return nil, err
	}
	defer c.give()
	c.texts([]string{key})
	if err := c.wait(ctx); err != nil {
		return nil, err
	}
	if err := c.code(opGet); err != nil {
		return nil, err
	}
	c.text(key)
	err = c.guarded(ctx, func() (err error) {
		if err = c.flush(); err != nil {
			return err
		}
		value, err = c.readVector()
		return err
	})
	return value, err
}

// Add adds n to the number under key, which starts at 0, and returns the sum.
func (c *Client) Add(ctx context.Context, key string, n int64) (int64, error) {
	return c.askInt64(ctx, opAdd, func() {
		c.text(key)
		c.int64(n)
	})
}

// CompareSet stores desired if the value of key is expected, or if there is none and expected is empty. It returns the value after that, or expected if there
// is none: the swap took place if the result is desired and expected was not.
func (c *Client) CompareSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	err = c.exchange(ctx, opCompareSet, func() (err error) {
		c.text(key)
		c.vector(expected)
		c.vector(desired)
		if err = c.flush(); err != nil {
			return err
		}
		value, err = c.readVector()
		return err
	})
	return value, err
}

// Wait returns when each of keys has existed (or had a queued value) at some time since the call.
func (c *Client) Wait(ctx context.Context, keys ...string) error {
	if err := c.take(ctx, opWait); err != nil {
		return err
	}
	defer c.give()
	c.texts(keys)
	return c.wait(ctx)
}

// Check says whether all keys exist, or have queued values, now.
func (c *Client) Check(ctx context.Context, keys ...string) (ok bool, err error) {
	err = c.exchange(ctx, opCheck, func() error {
		c.texts(keys)
		if err := c.flush(); err != nil {
			return err
		}
		reply, err := c.readByte()
		ok = reply == replyReady
		if err == nil && !ok && reply != replyNotReady {
			err = fmt.Errorf("answer %d to a check: %w", reply, ErrProtocol)
		}
		return err
	})
	return ok && err == nil, err
}

// Delete removes key and says whether it was there.
func (c *Client) Delete(ctx context.Context, key string) (bool, error) {
	n, err := c.askInt64(ctx, opDelete, func() { c.text(key) })
	return n > 0, err
}

// NumKeys is the number of keys of the whole store.
func (c *Client) NumKeys(ctx context.Context) (int64, error) {
	return c.askInt64(ctx, opNumKeys, func() {})
}

// Append appends value to the value of key, creating it. Since dialect B.
func (c *Client) Append(ctx context.Context, key string, value []byte) error {
	return c.exchange(ctx, opAppend, func() error {
		c.text(key)
		c.vector(value)
		return c.flush()
	})
}

// MultiGet waits until all keys exist and returns their values in order. Since dialect B.
func (c *Client) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	if _, err := c.dialect.code(opMultiGet); err != nil {
		return nil, err
	}
	if err := c.take(ctx, opWait); err != nil {
		return nil, err
	}
	defer c.give()
	c.texts(keys)
	if err := c.wait(ctx); err != nil {
		return nil, err
	}
	if err := c.code(opMultiGet); err != nil {
		return nil, err
	}
	c.texts(keys)
	values := make([][]byte, 0, len(keys))
	err := c.guarded(ctx, func() error {
		if err := c.flush(); err != nil {
			return err
		}
		for range keys {
			value, err := c.readVector()
			if err != nil {
				return err
			}
			values = append(values, value)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return values, nil
}

// Pair is a key and its value.
type Pair struct {
	Key   string
	Value []byte
}

// MultiSet stores all pairs; this package's server does so in one step. Since dialect B.
func (c *Client) MultiSet(ctx context.Context, pairs ...Pair) error {
	return c.exchange(ctx, opMultiSet, func() error {
		c.int64(int64(len(pairs)))
		for _, p := range pairs {
			c.text(p.Key)
			c.vector(p.Value)
		}
		return c.flush()
	})
}

// QueuePush appends value to the queue of key. Queues and values are separate name spaces. Since dialect E, as all queue operations.
func (c *Client) QueuePush(ctx context.Context, key string, value []byte) error {
	return c.exchange(ctx, opQueuePush, func() error {
		c.text(key)
		c.vector(value)
		return c.flush()
	})
}

// QueuePop removes the oldest value of the queue of key, waiting for one. The protocol's wait also ends at a value stored under key: do not use one name for both, or
// this keeps asking until ctx ends.
func (c *Client) QueuePop(ctx context.Context, key string) ([]byte, error) {
	for {
		// Another client may be quicker between the two requests.
		value, ok, err := c.TryQueuePop(ctx, key)
		if ok || err != nil {
			return value, err
		}
		if err := c.Wait(ctx, key); err != nil {
			return nil, err
		}
	}
}

// TryQueuePop removes the oldest value of the queue of key if there is one.
func (c *Client) TryQueuePop(ctx context.Context, key string) (value []byte, ok bool, err error) {
	err = c.exchange(ctx, opQueuePop, func() error {
		c.text(key)
		if err := c.flush(); err != nil {
			return err
		}
		n, err := c.readInt64()
		if err != nil || n == 0 {
			return err
		}
		value, err = c.readVector()
		ok = err == nil
		return err
	})
	return value, ok, err
}

// QueueLen is the length of the queue of key.
func (c *Client) QueueLen(ctx context.Context, key string) (int64, error) {
	return c.askInt64(ctx, opQueueLen, func() { c.text(key) })
}

// ListKeys returns all keys of the store, as stored. Since dialect F.
func (c *Client) ListKeys(ctx context.Context) (keys []string, err error) {
	err = c.exchange(ctx, opListKeys, func() error {
		if err := c.flush(); err != nil {
			return err
		}
		n, err := c.readInt64()
		if err != nil {
			return err
		}
		for range n {
			key, err := c.readVector()
			if err != nil {
				return err
			}
			keys = append(keys, string(key))
		}
		return nil
	})
	return keys, err
}

// Barrier counts in at key and returns once world have. A key serves for one barrier. Since dialect G.
func (c *Client) Barrier(ctx context.Context, key string, world int64) error {
	if err := c.take(ctx, opBarrier); err != nil {
		return err
	}
	defer c.give()
	c.text(key)
	c.int64(world)
	return c.wait(ctx)
}

// Ping makes a round trip. Since dialect D.
func (c *Client) Ping(ctx context.Context) error {
	return c.exchange(ctx, opPing, func() error {
		c.buf = c.buf[:0] // ping writes the opcode itself
		return c.ping()
	})
}

// askInt64 sends a request whose reply is one number.
func (c *Client) askInt64(ctx context.Context, o op, fields func()) (n int64, err error) {
	err = c.exchange(ctx, o, func() (err error) {
		fields()
		if err = c.flush(); err != nil {
			return err
		}
		n, err = c.readInt64()
		return err
	})
	return n, err
}
