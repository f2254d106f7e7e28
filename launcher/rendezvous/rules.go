package rendezvous

import (
	"slices"
	"time"
)

// expire gives away the ranks of nodes that were silent for a lease, or whose processes do not end.
func (c *Core) expire() {
	for _, n := range c.nodes {
		over := func() bool { return c.due(max(n.heard, c.floor) + c.lease()) }
		switch {
		case n.lost && n.owes != 0: // stuck
			if over() {
				n.owes = 0
			}
		case n.lost || !n.joined && n.member == 0 && n.owes == 0:
		case over():
			n.owes = 0
			c.lose(n, LostSilent)
		case n.owes != 0 && n.endFor != 0 && c.due(max(n.endAt, c.floor)+n.endFor+stuckAfter):
			c.lose(n, LostStuck)
			over() // wake for it
		}
	}
	c.nodes = slices.DeleteFunc(c.nodes, func(n *node) bool { return n.lost && n.owes == 0 })
}

// lose takes n out for good. The rules see what follows for its generation, after all that are lost at one moment.
func (c *Core) lose(n *node, cause string) {
	if n.lost {
		return
	}
	n.lost = true
	c.current = false
	_, member := c.world.has(n)
	if member = member && c.phase != forming; member || cause == LostSilent || cause == LostStuck || cause == LostUnfit {
		c.emit(Lost{Node: n.name, Slot: n.slot, Attempt: n.attempt, Cause: cause, Member: member})
	}
	if cause != LostStuck {
		c.excuse(n)
	}
}

// excuse keeps failures from being charged that the loss or notice of n explains.
func (c *Core) excuse(n *node) {
	if _, ok := c.world.has(n); ok && c.phase != forming {
		c.world.excused = true
	}
	c.blames = slices.DeleteFunc(c.blames, func(b blame) bool {
		return slices.ContainsFunc(b.members, func(m Member) bool { return m.Node == n.name })
	})
}

// judge charges the failures that nothing has excused in time.
func (c *Core) judge() {
	for len(c.blames) > 0 && c.due(c.blames[0].at+c.lease()) {
		charge := c.blames[0].charge
		c.blames = c.blames[1:]
		c.charged++
		charge.Restarts = c.charged
		if c.first == nil {
			c.first = &charge
		}
		c.emit(charge)
	}
}

// tryForm forms a generation, or finishes the run, when nothing of the last one lives any more.
func (c *Core) tryForm() {
	switch {
	case c.stop != nil:
		c.finish(Finish{Cause: FinishStopped, Reason: c.stop.Reason})
		return
	case c.charged > c.cfg.MaxRestarts:
		f := Finish{Cause: FinishJobFailed, Rank: -1}
		if c.first != nil {
			f.ExitCode, f.Signal, f.Rank, f.Node = c.first.Code, c.first.Signal, c.first.Rank, c.first.Node
		}
		c.finish(f)
		return
	case slices.ContainsFunc(c.nodes, c.unclear):
		return // Joined, Ended, Gone or the lease will tell
	case c.charged+len(c.blames) > c.cfg.MaxRestarts:
		return // the verdict decides whether there is a next generation
	case !c.due(c.quiet), c.world != nil && !c.due(c.world.formed+formEvery):
		return
	}
	picked := c.pick()
	if len(picked) < c.need() {
		c.hold(len(picked))
		return
	}
	c.short.ok = false
	if !c.enough.ok {
		c.enough.ok, c.enough.since = true, c.now
	}
	wait := c.cfg.Coalesce
	if c.generation == 0 {
		wait = c.cfg.StartWait
	}
	if len(picked) == c.target || c.due(c.enough.since+wait) || c.generation == 0 && c.isComplete() {
		c.form(picked)
	}
}

// unclear reports whether n may have processes of an older generation, or was in it and has not come back to this
// head process yet: to form without it would only mean to form again a second later.
func (c *Core) unclear(n *node) bool { return n.owes != 0 || n.member != 0 && !n.joined && !n.lost }

// isComplete reports whether the supervisor has expected nobody else for a while.
func (c *Core) isComplete() bool {
	if !c.current || slices.ContainsFunc(c.nodes, c.arriving) {
		c.complete.ok = false
		return false
	}
	if !c.complete.ok {
		c.complete.ok, c.complete.since = true, c.now
	}
	return c.due(c.complete.since + completeAfter)
}

// arriving reports whether n is expected to join.
func (c *Core) arriving(n *node) bool { return n.coming && !n.joined && !n.lost && !n.noticed }

// hold waits for members, for below_min at most. The first generation is for the supervisor's start_timeout.
func (c *Core) hold(have int) {
	c.enough.ok = false
	if c.generation == 0 {
		return
	}
	if !c.short.ok {
		c.short.ok, c.short.since, c.short.told = true, c.now, Hold{}
	}
	h := Hold{Have: have, Want: c.need(), Since: c.short.since}
	if c.cfg.BelowMin > 0 {
		h.Until = h.Since + c.cfg.BelowMin
	}
	if h != c.short.told {
		c.short.told = h
		c.emit(h)
	}
	if h.Until > 0 && c.due(h.Until) {
		c.finish(Finish{Cause: FinishTooFew})
	}
}

func (c *Core) form(picked []*node) {
	c.generation++
	c.restored = false
	var members []Member
	for i, n := range seat(picked, c.world) {
		members = append(members, Member{Node: n.name, Slot: n.slot, GroupRank: i, Procs: n.procs, Addr: n.addr})
		n.member, n.groupRank, n.owes, n.endFor = c.generation, i, c.generation, 0
	}
	c.world = newWorld(c.generation, members, c.now)
	c.keepSlots()
	c.phase = running
	c.emit(Form{
		Generation: c.generation, Cause: c.cause, Members: slices.Clone(c.world.members),
		WorldSize: len(c.world.ranks), Restarts: c.charged,
	})
}

// keepSlots adds the slots of the world to those that count as filled before. When it is full, they are all.
func (c *Core) keepSlots() {
	if len(c.world.members) >= c.target {
		c.slots = c.slots[:0]
	}
	for _, m := range c.world.members {
		if !slices.Contains(c.slots, m.Slot) {
			c.slots = append(c.slots, m.Slot)
		}
	}
}

// tryEnd ends the running generation where a rule calls for another.
func (c *Core) tryEnd() {
	w := c.world
	switch {
	case w.failed:
		c.end(CauseFailure, false)
		return
	case w.hole || slices.ContainsFunc(w.members, func(m Member) bool { return c.byName[m.Node].lost && w.unfinished(m) }):
		c.end(CauseLoss, false)
		return
	case c.stop != nil:
		c.end(CauseStop, true)
		return
	}
	timeUp := false
	for _, m := range w.members {
		n := c.byName[m.Node]
		if n.noticed && !n.lost && w.unfinished(m) && c.due(n.deadline-c.cfg.Grace-deadlineSlack) {
			timeUp = true
		}
	}
	switch {
	case timeUp:
		c.end(CauseNotice, true)
	case w.done > 0: // about to be done: nothing that can wait ends it
	case len(w.members) > c.target:
		c.end(CauseScale, true)
	default:
		c.tryImprove()
	}
}

// tryImprove ends the running generation on purpose where the next one would be better: without who goes away, or larger.
func (c *Core) tryImprove() {
	w := c.world
	var out, vacating int // members that go; those of them that nobody is to replace
	for _, m := range w.members {
		n := c.byName[m.Node]
		switch {
		case n.noticed:
			out++
		case n.leaving:
			out++
			if !slices.ContainsFunc(c.nodes, func(o *node) bool { return o.slot == n.slot && c.arriving(o) }) {
				vacating++
			}
		}
	}
	candidate := func(n *node) bool { _, in := w.has(n); return !in && c.fits(n) }
	next := c.pick()
	if len(next) < c.need() {
		return // it would only hold
	}
	joining, refill := 0, false
	for _, n := range next {
		if candidate(n) {
			joining++
			refill = refill || slices.Contains(c.slots, n.slot)
		}
	}
	switch {
	case out > 0 && joining >= out:
		c.end(CauseSwap, true)
	case vacating > 0:
		c.end(CauseLeaving, true)
	case out > 0 || joining == 0:
	case refill:
		c.end(CauseReplacement, true)
	case !c.due(w.formed + c.cfg.GrowEvery):
	case c.saved || !c.saves:
		c.end(CauseGrowth, true)
	}
}

// end stops the processes of the running generation. The time for coalescing counts from here, for stopping them
// takes longer than that anyway.
func (c *Core) end(cause Cause, graceful bool) {
	w := c.world
	w.ending, w.graceful = cause, graceful
	c.phase, c.cause = ending, cause
	c.enough.ok, c.enough.since = true, c.now
	var nodes []*node
	for _, m := range w.members {
		if n := c.byName[m.Node]; n.owes == w.number && !n.lost {
			nodes = append(nodes, n)
		}
	}
	c.sendEnd(nodes, End{Generation: w.number, Graceful: graceful, Cause: cause})
}

// sendEnd sends e to nodes and counts the time they have.
func (c *Core) sendEnd(nodes []*node, e End) {
	for _, n := range nodes {
		e.Nodes = append(e.Nodes, n.name)
		if n.endFor == 0 {
			n.endAt, n.endFor = c.now, c.sequence(e.Graceful)
		}
	}
	if len(e.Nodes) > 0 {
		c.emit(e)
	}
}

// sequence is how long stopping the processes may take.
func (c *Core) sequence(graceful bool) time.Duration {
	switch {
	case !graceful:
		return killWait
	case c.cfg.Signal == "":
		return termWait
	}
	return c.cfg.Grace + termWait
}

// tryClose leaves the ending when no process of the generation is left.
func (c *Core) tryClose() {
	for _, m := range c.world.members {
		if c.byName[m.Node].owes == c.world.number {
			return
		}
	}
	c.phase = forming
	c.emit(Closed{Generation: c.world.number, Cause: c.world.ending})
}
