package head

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/sim"
)

// gone waits until the cloud has no machine of the run any more, and then checks what has to hold of every run.
func (s *simulation) gone(limit time.Duration) {
	s.t.Helper()
	for end := time.Now().Add(limit); len(s.living("")) > 0; time.Sleep(pollEvery) {
		if time.Now().After(end) {
			s.show()
			s.t.Fatalf("machines %v are still there after %v", s.living(""), limit)
		}
	}
	time.Sleep(time.Second) // what hangs on the last machine goes with it
	if s.looks {
		s.look()
	}
	s.check()
}

// look lists and deletes until two listings a consistency window apart show nothing.
func (s *simulation) look() {
	s.t.Helper()
	ctx := s.t.Context()
	info, err := s.cloud.Info(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	for end := time.Now().Add(time.Hour); ; {
		time.Sleep(info.ConsistencyWindow + time.Second)
		all, err := s.cloud.List(ctx, providers.Filter{Run: simRun})
		left := slices.DeleteFunc(all, func(r providers.Resource) bool { return !r.Alive() })
		if err == nil && len(left) == 0 {
			return
		}
		if err == nil {
			for _, r := range left {
				if r.Kind == providers.KindMachine {
					s.t.Errorf("a machine was found that was thought gone: %v", r)
				}
			}
			s.cloud.Delete(ctx, providers.DeleteRequest{Run: simRun, Resources: left})
		}
		if time.Now().After(end) {
			s.t.Fatalf("what is left cannot be deleted: %v", left)
		}
	}
}

// check holds the ledger, the journal and the rank processes against what is promised (design: Never).
func (s *simulation) check() {
	s.t.Helper()
	report := sim.Audit(s.cloud.Ledger(), time.Now())
	if len(report.Untagged) > 0 {
		s.t.Errorf("untagged: %v", report.Untagged)
	}
	if left := report.Run(simRun).Billing; len(left) > 0 {
		s.t.Errorf("still billing: %v", left)
	}
	for _, o := range s.overlaps() {
		s.t.Error(o)
	}
	if alive := s.alive(); len(alive) > 0 {
		s.t.Errorf("rank processes still live: %v", alive)
	}
	for _, problem := range append(problems(s.events()), s.idlers()...) {
		s.t.Error(problem)
	}
	if s.t.Failed() {
		s.show()
	}
}

// problems tells what in a journal cannot be.
func problems(events []journal.Event) (found []string) {
	generation, finished, accepted := 0, 0, 0
	state := &journal.State{}
	for _, e := range events {
		if err := state.Apply(e); err != nil {
			found = append(found, err.Error())
		}
		switch e.Kind {
		case journal.NodeLost:
			if reason := state.Nodes[e.Node].Reason; strings.Contains(reason, "unfit") || strings.Contains(reason, "stuck") {
				found = append(found, fmt.Sprintf("%s is %s, and nothing was wrong with it", e.Node, reason))
			}
		case journal.GenerationFormed:
			var f journal.Formed
			if err := e.Decode(&f); err != nil {
				return []string{err.Error()}
			}
			if e.Generation <= generation {
				found = append(found, fmt.Sprintf("generation %d follows %d", e.Generation, generation))
			}
			generation = e.Generation
			next, slots := 0, map[int]bool{}
			for i, m := range f.Members {
				if m.GroupRank != i || m.FirstRank != next || slots[m.Slot] {
					found = append(found, fmt.Sprintf("generation %d has members %v", e.Generation, f.Members))
				}
				if n := state.Nodes[m.Node]; n.Phase != journal.PhaseJoined && n.Phase != journal.PhaseLost && n.DeletingAt < e.At {
					found = append(found, fmt.Sprintf("generation %d has %s, which is %s", e.Generation, m.Node, n.Phase))
				}
				next += m.Procs
				slots[m.Slot] = true
			}
			if next != f.WorldSize {
				found = append(found, fmt.Sprintf("generation %d is of %d ranks and its members have %d", e.Generation, f.WorldSize, next))
			}
		case journal.RunFinished:
			finished++
		case journal.HandoverAccepted:
			accepted++
		}
	}
	if finished > 1 || accepted > 1 {
		found = append(found, fmt.Sprintf("finished %d times, accepted %d times", finished, accepted))
	}
	return found
}

// idlers tells of machines that were kept beside another of their slot although a generation had formed with one of the two.
func (s *simulation) idlers() (found []string) {
	const soon = journal.At(time.Minute)
	end := func(n *journal.Node) journal.At {
		if n.DeletingAt >= 0 {
			return n.DeletingAt
		}
		return n.DeletedAt
	}
	nodes := s.state().List(providers.Worker)
	for i, a := range nodes {
		for _, b := range nodes[i+1:] {
			if a.Slot != b.Slot || a.JoinedAt < 0 || b.JoinedAt < 0 || end(a) < 0 || end(b) < 0 {
				continue
			}
			for _, e := range s.find(journal.GenerationFormed, "") {
				if e.At > max(a.JoinedAt, b.JoinedAt) && min(end(a), end(b)) > e.At+soon {
					found = append(found, fmt.Sprintf("%s and %s are both there a minute after generation %d", a.Name, b.Name, e.Generation))
				}
			}
		}
	}
	return found
}

// checkSpend holds the spend that the journal counts at a time of the run clock against what the cloud billed for machines until then.
// The journal counts from the intent and until a listing shows the machine gone, so it is never less, and by no more than slack per machine more.
func (s *simulation) checkSpend(at journal.At, slack time.Duration) {
	s.t.Helper()
	now := s.began.Add(at.Duration() + s.planned())
	var before []journal.Event
	for _, e := range s.events() {
		if e.At <= at {
			before = append(before, e)
		}
	}
	state, err := journal.Fold(before)
	if err != nil {
		s.t.Fatal(err)
	}
	counted := state.SpendUSD(at)
	var billed, most float64
	for _, e := range s.cloud.Ledger() {
		if e.Kind == providers.KindMachine && e.From.Before(now) {
			billed += e.USD(now)
			most += slack.Hours() * e.USDPerHour
		}
	}
	if counted < billed-1e-6 || counted > billed+most {
		s.t.Errorf("at %v the journal counts %.6f USD and the cloud has billed %.6f, with at most %.6f between", at.Duration(), counted, billed, most)
	}
	s.t.Logf("spend counted %.6f, billed %.6f USD", counted, billed)
}

// planned is how far the run clock is behind the simulation's.
func (s *simulation) planned() time.Duration { return s.events()[0].Time.Sub(s.began) }

// find returns the events of a kind, of one node where one is named.
func (s *simulation) find(kind journal.Kind, node string) (found []journal.Event) {
	for _, e := range s.events() {
		if e.Kind == kind && (node == "" || e.Node == node) {
			found = append(found, e)
		}
	}
	return found
}

// generations tells how often the world has formed, and why.
func (s *simulation) generations() (causes []string) {
	s.t.Helper()
	for _, e := range s.find(journal.GenerationFormed, "") {
		var f journal.Formed
		if err := e.Decode(&f); err != nil {
			s.t.Fatal(err)
		}
		causes = append(causes, f.Cause)
	}
	return causes
}

// expectGenerations compares the causes of all generations formed.
func (s *simulation) expectGenerations(want ...string) {
	s.t.Helper()
	if got := s.generations(); !slices.Equal(got, want) {
		s.show()
		s.t.Errorf("generations formed by %q, want %q", got, want)
	}
}

// between is the time from a moment to an event, on the cloud's clock.
func since(from time.Time, e journal.Event) time.Duration { return e.Time.Sub(from) }

func decode[T any](s *simulation, e journal.Event) (data T) {
	s.t.Helper()
	if err := json.Unmarshal(e.Data, &data); err != nil {
		s.t.Fatal(err)
	}
	return data
}
