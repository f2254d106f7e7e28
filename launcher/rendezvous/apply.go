package rendezvous

import "slices"

// apply records what an input says. What follows from it is for the rules.
func (c *Core) apply(in Input) {
	switch in := in.(type) {
	case Roster:
		c.applyRoster(in)
	case Joined:
		c.applyJoined(in)
	case Heard:
		c.hear(in)
	case Gone:
		c.applyGone(in)
	case Notice:
		c.applyNotice(in)
	case Exited:
		c.applyExited(in)
	case Ended:
		c.applyEnded(in)
	case Checkpoint:
		c.saves, c.saved = true, true
	case Scale:
		c.scale(in.Workers)
		switch {
		case c.phase != running || len(c.world.members) < c.target:
		case slices.ContainsFunc(c.nodes, func(n *node) bool { return c.arriving(n) && n.slot < c.target && slices.Contains(c.slots, n.slot) }):
			// Slots are wanted from 0, so a higher one goes and the lost one stays: who is on the way to fill it is no growth.
			c.slots = slices.DeleteFunc(c.slots, func(slot int) bool { return slot >= c.target })
		default:
			c.keepSlots()
		}
	case Stop:
		if c.stop == nil {
			c.stop = &in
		}
	}
}

func (c *Core) applyRoster(in Roster) {
	c.current = true
	for _, n := range c.nodes {
		n.listed, n.coming, n.leaving = false, false, false
	}
	for _, e := range in.Nodes {
		n := c.byName[e.Node]
		switch {
		case n == nil:
			n = &node{name: e.Node, slot: e.Slot, attempt: e.Attempt}
			c.insert(n)
		case !n.joined:
			c.place(n, e.Slot, e.Attempt)
		}
		n.listed, n.coming, n.leaving = true, e.Coming, e.Leaving
	}
	// Orders that came to nothing, again and again, must not pile up.
	c.nodes = slices.DeleteFunc(c.nodes, func(n *node) bool {
		drop := !n.listed && !n.joined && n.member == 0 && !n.noticed
		if drop {
			delete(c.byName, n.name)
		}
		return drop
	})
}

func (c *Core) applyJoined(in Joined) {
	n := c.byName[in.Node]
	switch {
	case n == nil:
		n = &node{name: in.Node, slot: in.Slot, attempt: in.Attempt}
		c.insert(n)
	case n.lost:
		return
	case !n.joined:
		c.place(n, in.Slot, in.Attempt)
	}
	n.joined, n.heard = true, c.now
	n.addr = in.Addr
	if n.procs = in.Procs; n.procs <= 0 {
		n.procs = c.cfg.Procs
	}
	current := c.world != nil && n.owes == c.world.number
	if current && c.restored && in.Running != n.owes {
		n.owes, current = 0, false // this head never started anything there
	}
	switch {
	case current && c.phase == running:
		// Nothing to learn: its start may still be under way.
	case current:
		c.sendEnd([]*node{n}, End{Generation: n.owes, Graceful: c.world.graceful, Cause: c.world.ending})
	case in.Running == 0:
		n.owes = 0
	default: // what an older head process started
		n.owes, n.endFor = in.Running, 0
		c.sendEnd([]*node{n}, End{Generation: n.owes, Graceful: true, Cause: CauseHeadRestarted})
	}
}

// hear renews a lease and reports whether that can matter to any rule before the lease is over.
func (c *Core) hear(in Heard) bool {
	n := c.byName[in.Node]
	if n == nil || n.lost || !n.joined {
		return false
	}
	back := c.silent(n)
	n.heard = c.now
	if n.noticed && c.now >= n.deadline+outliveAfter {
		n.noticed, n.outlived = false, true
		return true
	}
	return back
}

func (c *Core) applyGone(in Gone) {
	n := c.byName[in.Node]
	if n == nil {
		n = &node{name: in.Node}
		c.insert(n)
	}
	n.owes = 0
	c.lose(n, in.Evidence)
}

func (c *Core) applyNotice(in Notice) {
	n := c.byName[in.Node]
	if n == nil {
		n = &node{name: in.Node, slot: -1}
		c.insert(n)
	}
	if n.lost {
		return
	}
	if in.Cancelled {
		n.noticed, n.outlived = false, false
		return
	}
	if n.outlived && in.Deadline <= n.deadline {
		return // the same one, still announced
	}
	deadline := in.Deadline
	if deadline == 0 {
		deadline = c.now
	}
	if n.noticed {
		n.deadline = min(n.deadline, deadline)
		return
	}
	n.noticed, n.outlived, n.deadline = true, false, deadline
	c.current = false
	c.excuse(n)
}

func (c *Core) applyExited(in Exited) {
	w := c.world
	n := c.byName[in.Node]
	if n == nil || n.lost || (c.phase != running && c.phase != ending) || in.Generation != w.number {
		return
	}
	m, _ := w.has(n) // of no rank if it is not in
	from, to := m.FirstRank+in.LocalRank, m.FirstRank+in.LocalRank+1
	if c.cfg.OneExit {
		from, to = m.FirstRank, m.FirstRank+m.Procs
	} else if in.LocalRank < 0 || in.LocalRank >= m.Procs {
		return
	}
	state := left
	if in.Phase == ByItself && in.Code == 0 && in.Signal == "" {
		state = done
	}
	if w.exit(from, to, state) == 0 {
		return // told before
	}
	switch {
	case state == done:
		if w.done == len(w.ranks) {
			c.emit(Closed{Generation: w.number, Cause: CauseSuccess})
			c.finish(Finish{Success: true, Cause: FinishSuccess})
		}
	case w.ending != "":
		// Part of the ending: neither success nor failure.
	case in.Phase != ByItself:
		c.pierce(n)
	default:
		w.failed = true
		if !w.excused {
			c.blames = append(c.blames, blame{
				charge: Charged{
					Generation: w.number, Node: n.name, Rank: from,
					Code: in.Code, Signal: in.Signal, Max: c.cfg.MaxRestarts,
				},
				members: w.members, at: c.now,
			})
		}
	}
}

func (c *Core) applyEnded(in Ended) {
	n := c.byName[in.Node]
	if n == nil || n.owes != in.Generation {
		return
	}
	n.owes = 0
	if m, ok := c.world.has(n); ok && c.phase == running && c.world.unfinished(m) {
		c.pierce(n)
	}
}

// pierce records that processes of n vanished from the running generation without an exit to blame.
func (c *Core) pierce(n *node) {
	w := c.world
	w.hole, w.excused = true, true
	if c.now >= w.formed+unfitAfter {
		n.holes = 0
	}
	if n.holes++; n.holes == unfitHoles {
		c.lose(n, LostUnfit)
	}
}

// place moves n to where the supervisor or its own agent says it is.
func (c *Core) place(n *node, slot, attempt int) {
	c.nodes = slices.DeleteFunc(c.nodes, func(o *node) bool { return o == n })
	n.slot, n.attempt = slot, attempt
	c.insert(n)
}
