package tcpstore

import "bytes"

// Get returns a copy of the value of key.
func (st *Store) Get(key string) (value []byte, ok bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	e := st.entries[key]
	if e == nil {
		return nil, false
	}
	return bytes.Clone(e.bytes(nil)), true
}

// Set stores a copy of value and wakes who waits for key. The Limits hold here too: the error is ErrLimit.
func (st *Store) Set(key string, value []byte) error {
	return st.Update(key, func([]byte, bool) ([]byte, bool) { return value, true })
}

// Update changes key in one step: change gets its value and whether it exists, and returns what to store and whether to store at all. change runs
// under the Store's lock: it must be quick, must not call the Store, and must not keep or modify old.
func (st *Store) Update(key string, change func(old []byte, ok bool) (value []byte, store bool)) error {
	st.mu.Lock()
	var old []byte
	e := st.entries[key]
	if e != nil {
		old = e.bytes(nil)
	}
	value, store := change(old, e != nil)
	var err error
	if store {
		err = st.put([]byte(key), bytes.Clone(value))
	}
	st.unlock(nil)
	return err
}

// Add adds n to the number that key holds and returns the sum. The error is ErrNotNumber or ErrLimit.
func (st *Store) Add(key string, n int64) (int64, error) {
	st.mu.Lock()
	sum, err := st.add([]byte(key), n)
	st.unlock(nil)
	return sum, err
}

// Delete removes key and says whether it was there.
func (st *Store) Delete(key string) bool {
	st.mu.Lock()
	n := st.remove([]byte(key))
	st.unlock(nil)
	return n > 0
}

// Len is the number of keys, queues not counted.
func (st *Store) Len() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return len(st.entries)
}

// Keys returns the keys in no order.
func (st *Store) Keys() []string {
	st.mu.Lock()
	defer st.mu.Unlock()
	keys := make([]string, 0, len(st.entries))
	for key := range st.entries {
		keys = append(keys, key)
	}
	return keys
}

// Memory is the number of bytes charged against Limits.Memory.
func (st *Store) Memory() int64 { return st.used.Load() }
