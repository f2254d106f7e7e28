package rendezvous

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// chaos is a stage whose script is drawn, and whose agents have the leases of real ones. A checker watches every
// step, and no generation may be formed while a process of another lives anywhere.
type chaos struct {
	*stage
	t        *rapid.T
	cfg      Config
	checker  *checker
	attempts [6]int
	nodes    []string // that joined and are not gone, by name
	noticed  map[string]bool
	workers  int
}

func newChaos(t *rapid.T) *chaos {
	cfg := elastic()
	cfg.Min = rapid.IntRange(1, 3).Draw(t, "min")
	cfg.Max = cfg.Min + rapid.IntRange(0, 3).Draw(t, "more")
	if cfg.Min == cfg.Max {
		cfg.Fixed = rapid.Bool().Draw(t, "fixed")
	}
	cfg.OneExit = rapid.Bool().Draw(t, "one exit")
	cfg.MaxRestarts = rapid.IntRange(0, 3).Draw(t, "max restarts")
	cfg.GrowEvery = 60 * time.Second
	c := &chaos{t: t, cfg: cfg, noticed: map[string]bool{}}
	c.stage = newStage(t, cfg, Past{})
	c.leases = true
	c.checker = newChecker(cfg, c.core, Past{})
	c.watch = func(in Input, outs []Output) {
		if err := c.checker.see(c.now, in, outs); err != nil {
			t.Fatalf("%v %#v: %v\n%s", c.now, in, err, strings.Join(c.trace, "\n"))
		}
	}
	return c
}

// join boots the next machine of a slot.
func (c *chaos) join(slot int) {
	c.attempts[slot]++
	name := fmt.Sprintf("%c%d", 'a'+slot, c.attempts[slot])
	c.nodes = append(c.nodes, name)
	slices.Sort(c.nodes)
	c.perform("join", []string{fmt.Sprintf("%s*%d", name, 1+slot%2)})
}

func (c *chaos) gone(name string) {
	c.agent(name).running = 0
	c.nodes = slices.DeleteFunc(c.nodes, func(n string) bool { return n == name })
	c.perform("gone", []string{name})
}

// exit ends one rank of a node, or what stands for all of them.
func (c *chaos) exit(name string, code int) {
	a := c.agent(name)
	if a.running == 0 || a.cut || a.muted {
		return
	}
	for r := range a.procs {
		if !a.exited[r] {
			a.exited[r] = true
			e := Exited{Node: name, Generation: a.running, LocalRank: r, Code: code}
			a.replay = append(a.replay, e)
			c.step(e)
			break
		}
	}
}

// restart replaces the head process: a new core, and agents that come back to it or, if muted, do not.
func (c *chaos) restart() {
	k := c.checker
	past := Past{Closed: k.closed, Restarts: k.charged, FirstCharge: k.first, Workers: c.workers}
	if k.form != nil {
		past.Generation, past.Members = k.form.Generation, k.form.Members
	}
	c.core = New(c.cfg, past)
	k.core, k.formed, k.before = c.core, false, maps.Clone(k.lost)
	clear(k.lost)
	clear(k.joined)
	clear(k.leaving)
	c.step(Tick{})
	for _, name := range c.nodes {
		a := c.agent(name)
		a.stranger = true
		if !a.cut && !a.muted && !c.done {
			c.rejoin(name)
		}
	}
}

// rejoin presents an agent to a new head process.
func (c *chaos) rejoin(name string) {
	a := c.agent(name)
	slot, attempt := place(name)
	a.answered, a.stranger = c.now, false
	c.step(Joined{Node: name, Slot: slot, Attempt: attempt, Procs: 1 + slot%2, Running: a.running})
	if a.running != 0 {
		for _, e := range a.replay {
			c.step(e)
		}
	}
}

func (c *chaos) act() {
	verb := rapid.SampledFrom([]string{
		"join", "join", "join", "mute", "unmute", "gone", "notice", "cancel", "exit", "done", "done",
		"leased", "wedge", "checkpoint", "scale", "roster", "restart", "away", "stop",
	}).Draw(c.t, "verb")
	if verb == "join" {
		c.join(rapid.IntRange(0, 5).Draw(c.t, "slot"))
		return
	}
	if len(c.nodes) == 0 {
		return
	}
	name := rapid.SampledFrom(c.nodes).Draw(c.t, "node")
	a := c.agent(name)
	switch verb {
	case "mute":
		a.muted = true
	case "unmute":
		a.muted = false
		if a.stranger && !a.cut {
			c.rejoin(name)
			return
		}
		if g := c.checker.owes[name]; g != 0 && a.running == 0 { // its lease was over
			c.step(Exited{Node: name, Generation: g, Signal: "SIGKILL", Phase: AfterLease})
			c.step(Ended{Node: name, Generation: g})
		}
	case "gone":
		c.gone(name)
	case "notice":
		lead := rapid.SampledFrom([]time.Duration{0, 10 * time.Second, 30 * time.Second, 120 * time.Second}).Draw(c.t, "lead")
		c.step(Notice{Node: name, Deadline: c.now + lead})
	case "cancel":
		c.step(Notice{Node: name, Cancelled: true})
	case "exit":
		c.exit(name, 7)
	case "done":
		c.exit(name, 0)
	case "leased":
		if a.running != 0 && !a.muted && !a.cut {
			g := a.running
			a.running = 0
			c.step(Exited{Node: name, Generation: g, Signal: "SIGKILL", Phase: AfterLease})
			c.step(Ended{Node: name, Generation: g})
		}
	case "wedge":
		a.wedged, a.sick = !a.wedged, true
	case "checkpoint":
		c.perform("checkpoint", nil)
	case "scale":
		c.workers = rapid.IntRange(c.cfg.Min, c.cfg.Max).Draw(c.t, "workers")
		c.step(Scale{Workers: c.workers})
	case "roster":
		c.roster(func(string) bool { return rapid.IntRange(0, 5).Draw(c.t, "leaving") == 0 })
	case "restart":
		c.restart()
	case "away":
		c.now += 20 * time.Second
		for i := range c.queue {
			c.queue[i].at = max(c.queue[i].at, c.now)
		}
	case "stop":
		if rapid.IntRange(0, 9).Draw(c.t, "really") == 0 {
			c.step(Stop{Reason: "down"})
		}
	}
}

func (c *chaos) roster(leaving func(string) bool) {
	var r Roster
	for _, name := range c.nodes {
		slot, attempt := place(name)
		r.Nodes = append(r.Nodes, Expected{Node: name, Slot: slot, Attempt: attempt, Coming: true, Leaving: leaving(name)})
	}
	c.step(r)
}

// heal makes the world whole: who is sick goes, and every slot that is wanted has a machine.
func (c *chaos) heal() {
	for _, name := range slices.Clone(c.nodes) {
		a := c.agent(name)
		if a.muted || a.cut || a.sick {
			c.gone(name)
			continue
		}
		c.step(Notice{Node: name, Cancelled: true})
	}
	c.roster(func(string) bool { return false })
	for slot := range c.core.target {
		if !slices.ContainsFunc(c.nodes, func(n string) bool { return n[0] == byte('a'+slot) }) {
			c.join(slot)
		}
	}
}

// training says whether the last word about generations was Form.
func (c *chaos) training() bool {
	for _, o := range slices.Backward(c.outs) {
		switch o.(type) {
		case Form:
			return true
		case End, Closed:
			return false
		}
	}
	return false
}

func TestChaos(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newChaos(t)
		for slot := range rapid.IntRange(0, c.cfg.Max).Draw(t, "at first") {
			c.join(slot)
		}
		for range rapid.IntRange(1, 40).Draw(t, "acts") {
			gap := rapid.SampledFrom([]time.Duration{0, 50 * time.Millisecond, 700 * time.Millisecond, 3 * time.Second, 20 * time.Second, 80 * time.Second}).Draw(t, "gap")
			c.run(c.now + gap)
			if c.done {
				return
			}
			c.act()
		}
		c.heal()
		// The longest way: a stuck process, its lease, an excuse or verdict, start_wait, and one growth that ends it again.
		c.run(c.now + 300*time.Second)
		if !c.done && !c.training() {
			t.Fatalf("%v: healthy, and nothing trains:\n%s", c.now, strings.Join(c.trace, "\n"))
		}
	})
}

func TestSeat(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perm := rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7}).Draw(t, "slots")
		before := perm[:rapid.IntRange(0, 8).Draw(t, "before")]
		var last *world
		if len(before) > 0 {
			var members []Member
			for i, slot := range before {
				members = append(members, Member{Slot: slot, GroupRank: i, Procs: 1})
			}
			last = newWorld(1, members, 0)
		}
		var picked []*node
		for slot := range 8 {
			if rapid.Bool().Draw(t, "in") {
				picked = append(picked, &node{slot: slot})
			}
		}
		slices.Reverse(picked)
		seats := seat(picked, last)
		seen := map[int]bool{}
		for r, n := range seats {
			if n == nil || seen[n.slot] {
				t.Fatalf("place %d of %v: %v", r, picked, n)
			}
			seen[n.slot] = true
			if old := slices.Index(before, n.slot); old >= 0 && old < len(seats) && old != r {
				t.Fatalf("slot %d moved from %d to %d of %d", n.slot, old, r, len(seats))
			}
		}
		if len(seats) != len(picked) {
			t.Fatalf("%d places for %d", len(seats), len(picked))
		}
	})
}

func TestSeatOrder(t *testing.T) {
	last := newWorld(1, []Member{{Slot: 5}, {Slot: 6, GroupRank: 1}, {Slot: 7, GroupRank: 2}, {Slot: 4, GroupRank: 3}}, 0)
	for _, tc := range []struct {
		name string
		in   []int // slots
		want []int
	}{
		{"all stay", []int{4, 5, 6, 7}, []int{5, 6, 7, 4}},
		{"the last moves into the hole", []int{4, 6, 7}, []int{4, 6, 7}},
		{"who moves goes before who is new", []int{0, 4, 7}, []int{4, 0, 7}},
		{"movers keep the order of their ranks", []int{4, 7}, []int{7, 4}},
		{"new ones by slot", []int{2, 5, 1}, []int{5, 1, 2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var picked []*node
			for _, slot := range tc.in {
				picked = append(picked, &node{slot: slot})
			}
			var got []int
			for _, n := range seat(picked, last) {
				got = append(got, n.slot)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("slots by group rank: got %v, want %v", got, tc.want)
			}
		})
	}
}
