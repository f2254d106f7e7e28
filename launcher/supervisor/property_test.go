package supervisor

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

// chooser is what a scenario draws from: rapid's bits, or the bytes of a fuzz target.
type chooser interface {
	// pick draws from 0 to n-1.
	pick(what string, n int) int
}

type rapidly struct{ t *rapid.T }

func (r rapidly) pick(what string, n int) int { return rapid.IntRange(0, n-1).Draw(r.t, what) }

type bytewise struct{ data []byte }

func (b *bytewise) pick(_ string, n int) int {
	if len(b.data) == 0 {
		return 0
	}
	x := int(b.data[0])
	b.data = b.data[1:]
	return x % n
}

// scenario plays a drawn story: whatever happens, in whatever order, the invariants hold at every instant; and when nothing goes
// wrong any more, an ended run becomes clean.
func scenario(t reporter, c chooser, steps int) *model {
	t.Helper()
	job := testJob()
	job.Workers.Min, job.Workers.Max, job.Workers.Fixed = 1+c.pick("min", 3), 3+c.pick("max", 3), c.pick("fixed", 2) == 0
	job.Placement.SameZone = []string{jobspec.SameZonePrefer, jobspec.SameZoneRequire, jobspec.SameZoneNo}[c.pick("same zone", 3)]
	if c.pick("budget", 2) == 1 {
		job.Limits.BudgetUSD = float64(2 + c.pick("usd", 5))
	}
	if c.pick("rate", 3) == 1 {
		job.Limits.MaxUSDPerHour = float64(2 + c.pick("usd an hour", 5))
	}
	m := newModel(t, job, Mode(c.pick("mode", 3)))
	m.state.Planned.Info.ConsistencyWindow = time.Duration(c.pick("window", 2)) * 20 * time.Second
	for _, z := range []string{"a", "b", "c"} {
		if c.pick("limited", 2) == 1 {
			m.capacity[z] = c.pick("capacity", 5)
		}
	}
	s := &story{model: m, chooser: c, most: Wanted(job, m.state)}
	for range steps {
		s.step()
		m.decide()
		s.check()
		if m.decision.Done || m.decision.Fenced {
			break
		}
	}
	s.finish()
	return m
}

// story is a model with what the invariants need to remember.
type story struct {
	*model
	chooser
	most   int // workers ever wanted
	late   []Create
	lateBy time.Duration
	// lateMachines came from calls of dead processes, when their nodes may have been settled.
	lateMachines int
}

func (s *story) step() {
	s.t.Helper()
	switch s.pick("step", 14) {
	case 0, 1, 2:
		s.answerOne(outcome(s.pick("outcome", 4)))
	case 3, 4:
		s.answerOne(works)
	case 5:
		s.now += time.Duration(1+s.pick("ms", 2000)) * time.Millisecond
	case 6:
		if wake := s.decision.Wake; wake > s.now {
			s.now = wake
		}
	case 7:
		s.now += time.Duration(1+s.pick("s", 400)) * time.Second
	case 8:
		s.join()
	case 9:
		s.worldReforms()
	case 10:
		s.misfortune()
	case 11:
		s.scaleOrStop()
	case 12:
		s.crash()
	case 13:
		if s.state.Stopping != nil && !s.state.Drained {
			s.apply(journal.NewEvent(journal.RunDrained, "", 0, nil))
		} else if s.state.Finished != nil {
			s.apply(journal.NewEvent(journal.RunFetched, "", 0, nil))
		}
	}
	s.arrive()
}

// arrive lets what dead processes had asked for take effect, late.
func (s *story) arrive() {
	if len(s.late) > 0 && s.now >= s.lateBy {
		for _, a := range s.late {
			if s.pick("late effect", 2) == 1 {
				s.lateMachines += len(s.rent(a))
			}
		}
		s.late = nil
	}
}

func (s *story) answerOne(how outcome) {
	if len(s.calls) == 0 {
		return
	}
	s.now += time.Duration(1+s.pick("latency", 900)) * time.Millisecond
	s.end(s.calls[s.pick("call", len(s.calls))], how)
}

func (s *story) worldReforms() {
	if s.state.Generation.Phase == journal.GenFormed {
		s.apply(journal.NewEvent(journal.GenerationEnded, "", s.state.Generation.Number, journal.Ended{Cause: "test"}))
	}
	if s.state.Stopping == nil && s.members() > 0 {
		s.form()
	}
}

func (s *story) members() int {
	return len(slices.DeleteFunc(s.state.List(providers.Worker), func(n *journal.Node) bool { return n.Phase != journal.PhaseJoined || n.Leaving() }))
}

// misfortune strikes a node: it is noticed, dies, falls silent, or its setup fails.
func (s *story) misfortune() {
	nodes := s.state.List("")
	if len(nodes) == 0 {
		return
	}
	n := nodes[s.pick("whom", len(nodes))]
	switch s.pick("what", 5) {
	case 0:
		s.apply(journal.NewEvent(journal.NodeNotice, n.Name, 0, journal.Noticed{Source: "test", DeadlineAt: at(s.now + time.Minute)}))
	case 1:
		if n.Machine != nil && n.Role == providers.Worker {
			s.kill(n.Machine.ID)
			s.apply(journal.NewEvent(journal.NodeSuspect, n.Name, 0, journal.Suspected{Reason: "test"}))
		}
	case 2:
		if n.Role == providers.Worker {
			s.apply(journal.NewEvent(journal.NodeLost, n.Name, 0, journal.Lost{Cause: "silent"}))
		}
	case 3:
		if n.Phase == journal.PhaseCreated && n.Role == providers.Worker {
			s.apply(journal.NewEvent(journal.SetupFinished, n.Name, 0, journal.Setup{Exit: 3}))
		}
	case 4:
		if s.pick("the head too", 8) == 0 && n.Role == providers.Head && n.Machine != nil {
			s.kill(n.Machine.ID)
		}
	}
}

func (s *story) scaleOrStop() {
	switch s.pick("order", 6) {
	case 0:
		s.apply(journal.NewEvent(journal.RunStopping, "", 0, journal.Stopping{Cause: journal.CauseDown}))
	case 1, 2:
		w := s.job.Workers
		n := w.Min + s.pick("workers", w.Max-min(w.Min, w.Max)+1)
		s.apply(journal.NewEvent(journal.RunScaled, "", 0, journal.Scaled{Workers: n}))
		s.most = max(s.most, n)
	}
}

// crash ends the process; of the calls under way some have had their effect, some will within lateEffect, some never.
func (s *story) crash() {
	if s.pick("really", 2) == 0 {
		return
	}
	s.late = nil
	for _, c := range s.calls {
		if a, ok := c.action.(Create); ok {
			if s.pick("effect before the crash", 2) == 1 {
				s.rent(a)
			} else {
				s.late = append(s.late, a)
			}
		}
	}
	s.now += time.Duration(s.pick("dead for", 3)) * time.Second
	s.lateBy = s.now + time.Duration(s.pick("late by", 4))*time.Second
	s.forget()
}

func (s *story) check() {
	s.t.Helper()
	s.model.check()
	// Machines: one a slot, one more for each that is on its way out.
	alive, leaving := len(s.alive(providers.Worker)), 0
	for _, n := range s.state.List(providers.Worker) {
		if n.Leaving() && n.Machine != nil {
			leaving++
		}
	}
	if alive > s.most+leaving+s.lateMachines {
		s.t.Fatalf("at %v: %d machines for %d workers and %d on their way out: %s", s.now, alive, s.most, leaving, s.describe())
	}
	if budget := s.job.Limits.BudgetUSD; budget > 0 && s.state.Stopping == nil && s.state.SpendUSD(journal.At(s.now)) > budget+1 {
		s.t.Fatalf("at %v: %.2f spent of %.2f and going on", s.now, s.state.SpendUSD(journal.At(s.now)), budget)
	}
}

// finish ends the run with a provider that works, and wants it clean.
func (s *story) finish() {
	s.t.Helper()
	if s.decision.Fenced {
		return
	}
	s.now += 10 * time.Second
	s.arrive()
	s.apply(journal.NewEvent(journal.RunStopping, "", 0, journal.Stopping{Cause: journal.CauseDown}))
	s.apply(journal.NewEvent(journal.RunDrained, "", 0, nil))
	for range 200 {
		s.pass(10 * time.Second)
		s.apply(journal.NewEvent(journal.RunFetched, "", 0, nil))
		if s.decision.Done || s.decision.Fenced {
			break
		}
	}
	if s.decision.Fenced {
		return
	}
	if !s.decision.Done || s.mode != ModeHead && s.state.Clean == nil {
		s.t.Fatalf("at %v: not done after half an hour with a provider that works: %s; alive %v; under way %v; seen at %v, alone since %v, empty since %v", s.now, s.describe(), s.alive(""), s.busy, s.seen.At, s.seen.AloneSince, s.seen.EmptySince)
	}
	s.check()
	if left := s.alive(""); len(left) > 0 {
		s.t.Fatalf("at %v: done, and %v still bill", s.now, left)
	}
	if folded, err := journal.Fold(s.events); err != nil || folded.Events != s.state.Events {
		s.t.Fatalf("the journal folds to %v events, %v", folded, err)
	}
}

func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { scenario(t, rapidly{t}, 60) })
}

func FuzzDecide(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("a run that starts, loses two workers, is scaled, crashes and is taken down again"))
	f.Add([]byte{2, 2, 1, 0, 1, 3, 0, 0, 2, 1, 1, 4, 1, 2, 1, 1, 3, 3, 8, 3, 3, 8, 9, 10, 1, 1, 6, 12, 1, 3, 3, 6, 11, 0, 13})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4096 {
			return
		}
		scenario(t, &bytewise{data}, 20+len(data)/2)
	})
}
