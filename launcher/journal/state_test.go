package journal

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ephemeral-launcher/launcher/providers"
)

// tale is a row of events a second apart.
type tale []Event

func (t tale) then(kind Kind, node string, generation int, data any) tale {
	e := NewEvent(kind, node, generation, data)
	e.Run, e.At = "run-1", At(time.Duration(len(t))*time.Second)
	return append(t[:len(t):len(t)], e)
}

func begin() tale { return tale{}.then(RunCreated, "", 0, Created{JobName: "j"}) }

func usd(x float64) *float64 { return &x }

func intent(token string, count int, offers ...providers.Offer) Intended {
	return Intended{Role: providers.Worker, Attempt: 1, Token: token, Count: count, Min: count, Offers: offers, BirthKey: "birth"}
}

func made(id string) MachineCreated { return MachineCreated{Machine: providers.Machine{ID: id}} }

// upTo brings w0.1 to a phase.
func upTo(p Phase) tale {
	t := begin().then(NodeIntended, "w0.1", 0, intent("t", 1))
	if p == PhaseIntended {
		return t
	}
	if p == PhaseRefused {
		return t.then(NodeRefused, "w0.1", 0, Refused{Code: providers.Capacity})
	}
	t = t.then(NodeCreated, "w0.1", 0, made("m"))
	switch p {
	case PhaseCreated:
		return t
	case PhaseDeleting:
		return t.then(NodeDeleting, "w0.1", 0, DeletingNode{})
	case PhaseDeleted:
		return t.then(NodeDeleted, "w0.1", 0, Deleted{})
	}
	t = t.then(NodeReachable, "w0.1", 0, Reachable{})
	if p == PhaseReachable {
		return t
	}
	t = t.then(NodeJoined, "w0.1", 0, Joined{})
	if p == PhaseLost {
		return t.then(NodeLost, "w0.1", 0, Lost{Cause: "silent"})
	}
	return t
}

// TestPhases is the whole transition table: from every phase, every event about a node; "" where it comes too late.
func TestPhases(t *testing.T) {
	phases := []Phase{PhaseIntended, PhaseCreated, PhaseReachable, PhaseJoined, PhaseLost, PhaseDeleting, PhaseDeleted, PhaseRefused}
	const no = Phase("")
	same := []Phase{no, PhaseCreated, PhaseReachable, PhaseJoined, PhaseLost, PhaseDeleting, no, no}
	table := map[Kind][]Phase{
		NodeCreated:   {PhaseCreated, no, no, no, no, no, no, no},
		NodeRefused:   {PhaseRefused, no, no, no, no, no, no, no},
		NodeReachable: {no, PhaseReachable, PhaseReachable, PhaseJoined, no, no, no, no},
		NodeJoined:    {no, no, PhaseJoined, PhaseJoined, no, no, no, no},
		NodeLost:      {no, PhaseLost, PhaseLost, PhaseLost, no, no, no, no},
		NodeDeleting:  {no, PhaseDeleting, PhaseDeleting, PhaseDeleting, PhaseDeleting, PhaseDeleting, no, no},
		NodeDeleted:   {no, PhaseDeleted, PhaseDeleted, PhaseDeleted, PhaseDeleted, PhaseDeleted, no, no},
		NodeAddressed: same, NodeRekeying: same, NodeRekeyed: same, NodeNotice: same, NodeSuspect: same,
	}
	for kind, row := range table {
		for i, from := range phases {
			events := upTo(from)
			s, err := Fold(events)
			if err != nil {
				t.Fatal(err)
			}
			if got := s.Nodes["w0.1"].Phase; got != from {
				t.Fatalf("the tale leads to %s, want %s", got, from)
			}
			next := events.then(kind, "w0.1", 0, map[string]string{})
			err = s.Apply(next[len(next)-1])
			switch want := row[i]; {
			case want == no && !errors.Is(err, ErrCannotFollow):
				t.Errorf("%s after %s: %v, want ErrCannotFollow", kind, from, err)
			case want != no && err != nil:
				t.Errorf("%s after %s: %v", kind, from, err)
			case want != no && s.Nodes["w0.1"].Phase != want:
				t.Errorf("%s after %s: %s, want %s", kind, from, s.Nodes["w0.1"].Phase, want)
			}
		}
	}
}

func TestApplyRefuses(t *testing.T) {
	full := begin().then(NodeIntended, "head", 0, Intended{Role: providers.Head, Slot: -1, Attempt: 1, Token: "h1", Count: 1})
	tests := []struct {
		name    string
		events  tale
		tooLate bool
	}{
		{"a first event that is not run.created", tale{}.then(RunPlanned, "", 0, Planned{}), false},
		{"a second run.created", begin().then(RunCreated, "", 0, Created{}), false},
		{"a node nobody intended", begin().then(NodeJoined, "w0.1", 0, Joined{}), false},
		{"a node intended twice", full.then(NodeIntended, "head", 0, Intended{}), false},
		{"an intent with the offers of nobody", begin().then(NodeIntended, "w0.1", 0, Intended{With: "w9.1"}), false},
		{"an intent after the stop", begin().then(RunStopping, "", 0, Stopping{}).then(NodeIntended, "w0.1", 0, intent("t", 1)), true},
		{"a generation that does not follow", begin().then(GenerationFormed, "", 2, Formed{}).then(GenerationFormed, "", 2, Formed{}), false},
		{"the end of an older generation", begin().then(GenerationFormed, "", 2, Formed{}).then(GenerationEnded, "", 1, Ended{}), true},
		{"an older epoch", begin().then(HandoverAccepted, "", 0, Handover{Epoch: 1}), false},
		{"data of another type", begin().then(RunStopping, "", 0, "a string"), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			last := len(tt.events) - 1
			s := &State{}
			if last > 0 {
				var err error
				if s, err = Fold(tt.events[:last]); err != nil {
					t.Fatal(err)
				}
			}
			before := s.Clone()
			err := s.Apply(tt.events[last])
			if err == nil || errors.Is(err, ErrCannotFollow) != tt.tooLate {
				t.Errorf("got %v; too late: want %v", err, tt.tooLate)
			}
			if diff := cmp.Diff(before, s, cmpopts.IgnoreUnexported(State{})); diff != "" {
				t.Errorf("it changed the state:\n%s", diff)
			}
		})
	}
	s, err := Fold(begin())
	if err != nil {
		t.Fatal(err)
	}
	back := begin().then(RunDrained, "", 0, nil)[1]
	s.At = At(time.Hour)
	if err := s.Apply(back); err == nil {
		t.Error("the run clock went back")
	}
	back.At, back.Run = At(2*time.Hour), "another"
	if err := s.Apply(back); err == nil {
		t.Error("took an event of another run")
	}
}

func TestFoldTellsTheRun(t *testing.T) {
	zone := func(z string, price float64) providers.Offer {
		return providers.Offer{InstanceType: "x", Zone: z, Market: providers.Spot, USDPerHour: usd(price)}
	}
	machine := func(id, z string) MachineCreated {
		o := zone(z, 0)
		o.USDPerHour = nil
		return MachineCreated{Machine: providers.Machine{ID: id, Offer: o}}
	}
	second := intent("t", 2)
	second.Slot, second.With, second.Offers = 1, "w0.1", nil
	deadline := At(time.Minute)
	events := begin().
		then(RunPlanned, "", 0, Planned{Factor: 0.5, Info: providers.Info{BillingInterval: time.Minute}}).
		then(NodeIntended, "w0.1", 0, intent("t", 2, zone("a", 60), zone("b", 120))).
		then(NodeIntended, "w1.1", 0, second).
		then(NodeCreated, "w0.1", 0, machine("m0", "a")).
		then(NodeRefused, "w1.1", 0, Refused{Code: providers.Capacity, Message: "dry", Offers: []providers.Refusal{{Offer: zone("b", 120)}}}).
		then(NodeReachable, "w0.1", 0, Reachable{}).
		then(NodeRekeying, "w0.1", 0, Rekeyed{HostKey: "new"}).
		then(NodeJoined, "w0.1", 0, Joined{Procs: 2}).
		then(GenerationForming, "", 1, Forming{}).
		then(GenerationFormed, "", 1, Formed{Members: []Member{{Node: "w0.1"}}}).
		then(ProcessExited, "w0.1", 1, Exited{Code: 3}).
		then(ProcessExited, "w0.1", 1, Exited{Code: 9, Asked: true}).
		then(NodeNotice, "w0.1", 0, Noticed{DeadlineAt: &deadline}).
		then(NodeNotice, "w0.1", 0, Noticed{}).
		then(RunScaled, "", 0, Scaled{Workers: 5}).
		then(JobCharged, "", 1, Charged{Restarts: 2}).
		then(SetupFinished, "w1.1", 0, Setup{Exit: 4}).
		then(GenerationEnded, "", 1, Ended{Cause: "notice"}).
		then(Kind("of.the.future"), "", 0, nil).
		then(NodeLost, "w0.1", 0, Lost{Cause: "preempted"}).
		then(NodeDeleted, "w0.1", 0, nil).
		then(RunStopping, "", 0, Stopping{Cause: CauseDown}).
		then(RunStopping, "", 0, Stopping{Cause: CauseFailed}).
		then(HandoverOffered, "", 0, Handover{Epoch: 2})
	s, err := Fold(events)
	if err != nil {
		t.Fatal(err)
	}
	n := s.Nodes["w0.1"]
	got := map[string]any{
		"want": s.Want, "restarts": s.Restarts, "preemptions": s.Preemptions, "lost": s.LostNodes, "offered": s.Offered, "epoch": s.Epoch,
		"cause": s.Stopping.Cause, "failures": len(s.LastFailures), "setup": s.SetupFailures[0].Node, "phase": n.Phase, "keys": n.HostKeys(),
		"zones": s.Refusals[0].Zones, "refusals": len(s.Refusals), "useful": s.Useful, "events": s.Events,
		"offers of the second": len(s.Nodes["w1.1"].Intent.Offers),
		// 19 s of zone a at 60 USD an hour, billed by the minute, at half of the list price.
		"spend": s.SpendUSD(At(time.Hour)),
	}
	want := map[string]any{
		"want": 5, "restarts": 2, "preemptions": 1, "lost": 0, "offered": 2, "epoch": 1,
		"cause": CauseDown, "failures": 1, "setup": "w1.1", "phase": PhaseDeleted, "keys": []string{"birth", "new"},
		"zones": []string{"b"}, "refusals": 1, "useful": 8 * time.Second, "events": len(events),
		"offers of the second": 2, "spend": 0.5,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestSpend: a machine bills from its intent until it is seen gone; a call without an outcome as if it had given the dearest.
func TestSpend(t *testing.T) {
	offers := []providers.Offer{{Zone: "a", USDPerHour: usd(1)}, {Zone: "b", USDPerHour: usd(3)}}
	events := begin().then(NodeIntended, "w0.1", 0, intent("t", 1, offers...))
	s, err := Fold(events)
	if err != nil {
		t.Fatal(err)
	}
	hour := At(time.Hour + time.Second)
	if got := s.SpendUSD(hour); got != 3 {
		t.Errorf("under way: %g USD after an hour, want 3", got)
	}
	if got := s.USDPerHour(); got != 3 {
		t.Errorf("under way: %g USD an hour, want 3", got)
	}
	refused, err := Fold(events.then(NodeRefused, "w0.1", 0, Refused{}))
	if err != nil {
		t.Fatal(err)
	}
	if got := refused.SpendUSD(hour); got != 0 {
		t.Errorf("refused: %g USD, want 0", got)
	}
	made, err := Fold(events.then(NodeCreated, "w0.1", 0, MachineCreated{Machine: providers.Machine{ID: "m", Offer: providers.Offer{Zone: "a"}}}))
	if err != nil {
		t.Fatal(err)
	}
	if got := made.SpendUSD(hour); got != 1 {
		t.Errorf("created in zone a: %g USD, want 1", got)
	}
}

// TestSnapshots: what was handed out does not change, however it goes on.
func TestSnapshots(t *testing.T) {
	s, err := Fold(upTo(PhaseJoined))
	if err != nil {
		t.Fatal(err)
	}
	s.SetupFailures = append(make([]SetupFailure, 0, 8), SetupFailure{Node: "first"})
	one, two := s.Clone(), s.Clone()
	events := upTo(PhaseJoined)
	for _, c := range []struct {
		s     *State
		cause string
	}{{one, "one"}, {two, "two"}} {
		for _, e := range events.then(SetupFinished, c.cause, 0, Setup{}).then(NodeLost, "w0.1", 0, Lost{Cause: c.cause})[len(events):] {
			if err := c.s.Apply(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := []string{one.SetupFailures[1].Node, one.Nodes["w0.1"].Reason, string(s.Nodes["w0.1"].Phase)}; cmp.Diff([]string{"one", "lost: one", "joined"}, got) != "" {
		t.Errorf("got %q", got)
	}
}

func TestAtSurvivesJSON(t *testing.T) {
	for _, d := range []time.Duration{0, time.Microsecond, 1234567 * time.Microsecond, time.Hour, 1000000 * time.Hour} {
		b, err := At(d).MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		var got At
		if err := got.UnmarshalJSON(b); err != nil || got.Duration() != d {
			t.Errorf("%v → %s → %v, %v", d, b, got.Duration(), err)
		}
	}
	for _, bad := range []string{"-1", "1e300", `"x"`} {
		var got At
		if err := got.UnmarshalJSON([]byte(bad)); err == nil {
			t.Errorf("took %s for %v", bad, got.Duration())
		}
	}
	if _, err := At(math.MaxInt64).MarshalJSON(); err != nil {
		t.Error(err)
	}
}

func TestNodeNames(t *testing.T) {
	for _, bad := range []string{"", "head", "w", "wx", "w-1", "w1.", "w1.0", "w1.x", "x1.1"} {
		if slot, attempt, err := ParseNodeName(bad); err == nil {
			t.Errorf("%q is slot %d, attempt %d", bad, slot, attempt)
		}
	}
	if slot, attempt, err := ParseNodeName(NodeName(12, 3)); slot != 12 || attempt != 3 || err != nil {
		t.Errorf("got %d, %d, %v", slot, attempt, err)
	}
	if slot, attempt, err := ParseNodeName("w7"); slot != 7 || attempt != 0 || err != nil {
		t.Errorf("got %d, %d, %v", slot, attempt, err)
	}
}
