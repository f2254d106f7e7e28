package tcpstore

import "slices"

// waitList is who is parked on one key, oldest first. home is the map it is in, which it leaves when it empties.
type waitList struct {
	head, tail *waitNode
	key        string
	home       map[string]*waitList
}

// waitNode is one connection's place in one list; list is nil once it has left.
type waitNode struct {
	wait       *wait
	list       *waitList
	prev, next *waitNode
}

// wait is the one WAIT or BARRIER that a connection can have parked. All fields are guarded by the Store's lock.
type wait struct {
	session *session
	nodes   []waitNode
	one     [1]waitNode // saves the allocation for the usual single key
	missing int         // keys that have not shown up since the wait was parked
	cost    int         // bytes charged for it
	parked  bool
}

// join parks node i of w on key.
func (w *wait) join(i int, home map[string]*waitList, key []byte) {
	list := home[string(key)]
	if list == nil {
		list = &waitList{key: string(key), home: home}
		home[list.key] = list
	}
	n := &w.nodes[i]
	*n = waitNode{wait: w, list: list, prev: list.tail}
	if list.tail != nil {
		list.tail.next = n
	} else {
		list.head = n
	}
	list.tail = n
}

func (n *waitNode) leave() {
	list := n.list
	if n.prev != nil {
		n.prev.next = n.next
	} else {
		list.head = n.next
	}
	if n.next != nil {
		n.next.prev = n.prev
	} else {
		list.tail = n.prev
	}
	n.list, n.prev, n.next = nil, nil, nil
	if list.head == nil {
		delete(list.home, list.key)
	}
}

// park parks the session until every key of keys that is missing has been present once. It returns false, and does nothing, if none is missing.
func (st *Store) park(c *session, keys *keyList) (bool, error) {
	missing, cost := 0, 0
	for i := range keys.len() {
		if key := keys.at(i); !st.present(key) {
			missing++
			cost += len(key) + waitOverhead
		}
	}
	if missing == 0 {
		return false, nil
	}
	if err := st.charge(cost); err != nil {
		return false, err
	}
	w := st.begin(c, missing, cost)
	for i, n := 0, 0; i < keys.len(); i++ {
		if key := keys.at(i); !st.present(key) {
			w.join(n, st.waiters, key)
			n++
		}
	}
	return true, nil
}

// arrive counts the session in at the barrier of key and parks it, or releases all if it completes the world.
func (st *Store) arrive(c *session, key []byte, world int64) (parked bool, err error) {
	count, err := st.add(key, 1)
	if err != nil {
		return false, err
	}
	if count >= world {
		if list := st.barriers[string(key)]; list != nil {
			st.wakeList(list)
		}
		return false, nil
	}
	cost := len(key) + waitOverhead
	if err := st.charge(cost); err != nil {
		return false, err
	}
	st.begin(c, 1, cost).join(0, st.barriers, key)
	return true, nil
}

func (st *Store) begin(c *session, missing, cost int) *wait {
	w := &c.wait
	w.session, w.missing, w.cost, w.parked = c, missing, cost, true
	if missing == 1 {
		w.nodes = w.one[:]
	} else {
		w.nodes = make([]waitNode, missing)
	}
	return w
}

// drop forgets a parked wait without an answer.
func (st *Store) drop(w *wait) {
	if !w.parked {
		return
	}
	for i := range w.nodes {
		if w.nodes[i].list != nil {
			w.nodes[i].leave()
		}
	}
	st.finish(w)
}

func (st *Store) finish(w *wait) {
	st.used.Add(-int64(w.cost))
	w.parked, w.nodes, w.cost = false, nil, 0
}

// wake counts key as seen for everybody parked on it.
func (st *Store) wake(key []byte) {
	if len(st.waiters) == 0 {
		return
	}
	if list := st.waiters[string(key)]; list != nil {
		st.wakeList(list)
	}
}

func (st *Store) wakeList(list *waitList) {
	for list.head != nil {
		st.seen(list.head)
	}
}

// wakeOne counts key as seen for the parked, oldest first, until one of them is answered: a pushed value serves one popper only.
func (st *Store) wakeOne(key []byte) {
	if len(st.waiters) == 0 {
		return
	}
	list := st.waiters[string(key)]
	for list != nil && list.head != nil {
		if st.seen(list.head) {
			return
		}
	}
}

// seen takes n out of its list and answers its wait if that was the last missing key. The answer is queued under the lock: a CANCEL_WAIT that
// comes after it must find it already in the outbox.
func (st *Store) seen(n *waitNode) (answered bool) {
	w := n.wait
	n.leave()
	w.missing--
	if w.missing > 0 {
		return false
	}
	st.finish(w)
	w.session.out.push(replyStopWaiting)
	st.woken = append(st.woken, w.session)
	return true
}

// unwatch removes the session from all watched keys, under the lock.
func (st *Store) unwatch(c *session) {
	for _, key := range c.watched {
		list := st.watchers[key]
		if i := slices.Index(list, c); i >= 0 {
			list = slices.Delete(list, i, i+1)
		}
		if len(list) == 0 {
			delete(st.watchers, key)
		} else {
			st.watchers[key] = list
		}
		st.used.Add(-int64(len(key) + waitOverhead))
	}
	c.watched = nil
}
