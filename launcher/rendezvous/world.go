package rendezvous

import (
	"cmp"
	"slices"
	"time"
)

type rankState uint8

const (
	alive rankState = iota
	done            // exited 0 before any SIGTERM
	left            // exited otherwise
)

// world is one generation and what became of its ranks.
type world struct {
	number  int
	members []Member // by group rank
	ranks   []rankState
	done    int
	formed  time.Duration

	failed  bool // a rank exited by itself with another code than 0
	hole    bool // rank processes are gone that nobody is to blame for
	excused bool // a loss or notice was seen: failures are not charged

	ending   Cause // empty while it runs
	graceful bool
}

func newWorld(number int, members []Member, formed time.Duration) *world {
	w := &world{number: number, members: slices.Clone(members), formed: formed}
	slices.SortFunc(w.members, func(a, b Member) int { return cmp.Compare(a.GroupRank, b.GroupRank) })
	total := 0
	for i := range w.members {
		m := &w.members[i]
		m.GroupRank, m.FirstRank = i, total
		total += m.Procs
	}
	w.ranks = make([]rankState, total)
	return w
}

// has reports whether n is in w, and its place.
func (w *world) has(n *node) (Member, bool) {
	if w == nil || n.member != w.number {
		return Member{}, false
	}
	return w.members[n.groupRank], true
}

// unfinished reports whether a rank of m has not exited 0.
func (w *world) unfinished(m Member) bool {
	for _, s := range w.ranks[m.FirstRank : m.FirstRank+m.Procs] {
		if s != done {
			return true
		}
	}
	return false
}

// exit records the end of the ranks [from, to) that were alive and reports how many that were.
func (w *world) exit(from, to int, s rankState) (changed int) {
	for i := from; i < to; i++ {
		if w.ranks[i] == alive {
			w.ranks[i] = s
			changed++
		}
	}
	if s == done {
		w.done += changed
	}
	return changed
}

// fits reports whether a node could be in the next generation.
func (c *Core) fits(n *node) bool {
	if !n.joined || n.lost || n.noticed || n.leaving {
		return false
	}
	if _, member := c.world.has(n); member && c.phase == running {
		return true // one slow beat takes nobody out
	}
	return n.owes == 0 && !c.silent(n)
}

// silent reports whether the agent of n must think that its lease is over: it would start nothing.
func (c *Core) silent(n *node) bool { return c.now >= max(n.heard, c.floor)+c.cfg.LostAfter }

// pick returns who would be in a generation formed now: members of the last one, then who fills a slot that was in
// the world, then the others.
func (c *Core) pick() []*node {
	refill := map[int]struct{}{}
	for _, s := range c.slots {
		refill[s] = struct{}{}
	}
	class := func(n *node) int {
		if _, ok := c.world.has(n); ok {
			return 0
		} else if _, ok := refill[n.slot]; ok {
			return 1
		}
		return 2
	}
	var fit []*node
	for _, n := range c.nodes {
		if c.fits(n) {
			fit = append(fit, n)
		}
	}
	// Stable on top of slot, attempt, name.
	slices.SortStableFunc(fit, func(a, b *node) int {
		if ca, cb := class(a), class(b); ca != cb || ca != 0 {
			return cmp.Compare(ca, cb)
		}
		return cmp.Compare(a.groupRank, b.groupRank)
	})
	var picked []*node
	slots := map[int]struct{}{}
	for _, n := range fit {
		if _, taken := slots[n.slot]; taken || len(picked) == c.target {
			continue
		}
		slots[n.slot] = struct{}{}
		picked = append(picked, n)
	}
	return picked
}

// seat gives every picked node a group rank. A slot keeps the one it had in the last generation if the new world is
// large enough; only the others move, in the order of their old ranks and then of their slots, into the lowest
// free places. So no fewer could move.
func seat(picked []*node, last *world) []*node {
	had := map[int]int{}
	if last != nil {
		for _, m := range last.members {
			had[m.Slot] = m.GroupRank
		}
	}
	seats := make([]*node, len(picked))
	var movers []*node
	for _, n := range picked {
		if r, ok := had[n.slot]; ok && r < len(seats) {
			seats[r] = n
		} else {
			movers = append(movers, n)
		}
	}
	slices.SortStableFunc(movers, func(a, b *node) int {
		ra, oka := had[a.slot]
		rb, okb := had[b.slot]
		switch {
		case oka && okb:
			return cmp.Compare(ra, rb)
		case oka:
			return -1
		case okb:
			return 1
		}
		return compareNodes(a, b)
	})
	free := 0
	for _, n := range movers {
		for seats[free] != nil {
			free++
		}
		seats[free] = n
	}
	return seats
}
