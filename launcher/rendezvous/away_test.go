package rendezvous

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A shell that was away finds the beats of healthy nodes behind its own late Tick.
func TestAway(t *testing.T) {
	cfg := elastic()
	cfg.MaxRestarts = 1
	start := func() *Core {
		c := New(cfg, Past{})
		for i, name := range []string{"a", "b", "c", "d"} {
			c.Step(0, Joined{Node: name, Slot: i})
		}
		return c
	}
	lostAt := func(c *Core, now time.Duration) (lost int) {
		for _, o := range c.Step(now, Tick{}) {
			if _, ok := o.(Lost); ok {
				lost++
			}
		}
		return lost
	}
	t.Run("late", func(t *testing.T) {
		c := start()
		if got := lostAt(c, 17001*time.Millisecond); got != 0 {
			t.Errorf("lost %d nodes though the shell was away, want 0", got)
		}
		if got := lostAt(c, 29001*time.Millisecond); got != 4 {
			t.Errorf("lost %d nodes a lease later, want 4", got)
		}
	})
	t.Run("in time", func(t *testing.T) {
		c := start()
		if got := lostAt(c, 17*time.Second); got != 4 {
			t.Errorf("lost %d nodes, want 4: half a lease late is still in time", got)
		}
	})
	t.Run("verdict", func(t *testing.T) {
		c := start()
		for _, in := range []Input{
			Exited{Node: "a", Generation: 1, Code: 7},
			Ended{Node: "a", Generation: 1},
			Ended{Node: "b", Generation: 1},
			Ended{Node: "c", Generation: 1},
			Ended{Node: "d", Generation: 1},
		} {
			c.Step(time.Second, in)
		}
		for _, o := range c.Step(40*time.Second, Tick{}) {
			t.Errorf("%s before silence could tell", show(o))
		}
		charged := false
		for _, o := range c.Step(52*time.Second, Heard{Node: "a"}) {
			_, is := o.(Charged)
			charged = charged || is
		}
		if charged {
			t.Error("charged although three members fell silent")
		}
	})
	t.Run("stuck", func(t *testing.T) {
		c := start()
		c.Step(time.Second, Gone{Node: "a", Evidence: "terminated"})
		for _, now := range []time.Duration{11, 20, 30} { // then away until just before the time of being stuck is over
			for _, name := range []string{"b", "c", "d"} {
				c.Step(now*time.Second, Heard{Node: name})
			}
		}
		if got := lostAt(c, 90*time.Second); got != 0 {
			t.Errorf("lost %d, want 0: they could not tell that they had ended", got)
		}
	})
	t.Run("clock backwards", func(t *testing.T) {
		c := start()
		c.Step(11*time.Second, Heard{Node: "a"})
		c.Step(5*time.Second, Heard{Node: "b"})
		if got := lostAt(c, 16*time.Second); got != 2 {
			t.Errorf("lost %d, want c and d", got)
		}
	})
}

func TestNothingAfterFinish(t *testing.T) {
	c := New(elastic(), Past{})
	got := c.Step(0, Stop{Reason: "down"})
	if d := cmp.Diff(got, []Output{Finish{Cause: FinishStopped, Reason: "down", Rank: -1}}); d != "" {
		t.Errorf("outputs (-got +want):\n%s", d)
	}
	if got := c.Step(time.Second, Joined{Node: "a", Running: 3}); got != nil {
		t.Errorf("outputs after Finish: %v", got)
	}
	if at, ok := c.Next(); ok {
		t.Errorf("Next is %v after Finish", at)
	}
}

func TestVainOrdersDoNotPileUp(t *testing.T) {
	c := New(elastic(), Past{})
	for attempt := range 100 {
		node := time.Duration(attempt).String()
		c.Step(0, Roster{Nodes: []Expected{{Node: node, Attempt: attempt, Coming: true}}})
	}
	if len(c.nodes) != 1 || len(c.byName) != 1 {
		t.Errorf("%d and %d nodes remembered, want the last order", len(c.nodes), len(c.byName))
	}
}

func TestRosterTellsTheAttempt(t *testing.T) {
	c := New(elastic(), Past{Generation: 1, Members: []Member{{Node: "a", Slot: 2, Procs: 1}}})
	c.Step(0, Roster{Nodes: []Expected{{Node: "a", Slot: 2, Attempt: 3}}})
	got := c.Step(0, Gone{Node: "a", Evidence: "terminated"})
	want := Lost{Node: "a", Slot: 2, Attempt: 3, Cause: "terminated", Member: true}
	if len(got) == 0 || got[0] != want {
		t.Errorf("outputs %v, want first %v", got, want)
	}
}

func TestWithoutLostAfter(t *testing.T) {
	c := New(Config{}, Past{})
	want := []Output{Form{Generation: 1, Cause: CauseStart, Members: []Member{{Node: "a", Procs: 1, Addr: "a.example"}}, WorldSize: 1}}
	if d := cmp.Diff(c.Step(0, Joined{Node: "a", Addr: "a.example"}), want); d != "" {
		t.Fatalf("outputs (-got +want):\n%s", d)
	}
	if at, _ := c.Next(); at != 12*time.Second {
		t.Errorf("Next is %v, want the default lease and its margin", at)
	}
}

// BenchmarkHeard is what the core costs most of the time: the beats of a thousand workers.
func BenchmarkHeard(b *testing.B) {
	cfg := elastic()
	cfg.Max = 1000
	c := New(cfg, Past{})
	var beats []Input
	for slot := range cfg.Max {
		name := string(rune('a'+slot%26)) + time.Duration(slot).String()
		c.Step(0, Joined{Node: name, Slot: slot})
		beats = append(beats, Heard{Node: name})
	}
	now := time.Duration(0)
	for i := 0; b.Loop(); i++ {
		now += 3 * time.Millisecond
		c.Step(now, beats[i%len(beats)])
	}
}
