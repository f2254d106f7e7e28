package supervisor

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

func elastic(lo, hi int) func(*jobspec.Job) {
	return func(j *jobspec.Job) { j.Workers.Min, j.Workers.Max, j.Workers.Fixed = lo, hi, false }
}

func at(d time.Duration) *journal.At { a := journal.At(d); return &a }

// TestStories tells what a run does in the situations it was made for. play says what happens; want is where the workers are then, and
// stopped why the run was ended.
func TestStories(t *testing.T) {
	tests := []struct {
		name    string
		job     func(*jobspec.Job)
		mode    Mode
		play    func(*testing.T, *model)
		want    string
		stopped string
	}{
		{
			name: "start: all in one zone", play: func(t *testing.T, m *model) { m.start() },
			want: "w0.1=joined/a w1.1=joined/a w2.1=joined/a ",
		},
		{name: "start: the first zone has too few, the second has all", play: func(t *testing.T, m *model) {
			m.capacity["a"] = 2
			m.start()
		}, want: "w0.1=refused w0.2=joined/b w1.1=refused w1.2=joined/b w2.1=refused w2.2=joined/b "},
		{name: "start: no zone has all, one has min", job: elastic(2, 3), play: func(t *testing.T, m *model) {
			m.capacity["a"], m.capacity["b"], m.capacity["c"] = 1, 2, 1
			m.answer()
			if got := m.now; got > time.Second {
				t.Errorf("it waited %v for a question it had not asked", got)
			}
		}, want: "w0.1=refused w0.2=refused w0.3=refused w0.4=refused w0.5=created/b w1.1=refused w1.2=refused w1.3=refused w1.4=refused w1.5=created/b " +
			"w2.1=refused w2.2=refused w2.3=refused w2.4=refused w2.5=refused w2.6=created/a "},
		{name: "start: no zone has min, all together have", play: func(t *testing.T, m *model) {
			m.capacity["a"], m.capacity["b"], m.capacity["c"] = 1, 1, 1
			m.answer()
		}, want: "w0.1=refused w0.2=refused w0.3=refused w0.4=created/a w1.1=refused w1.2=refused w1.3=refused w1.4=created/b w2.1=refused w2.2=refused w2.3=refused w2.4=created/c "},
		{name: "start: fixed hosts, each a zone, are not tried one by one", play: func(t *testing.T, m *model) {
			m.state.Planned.Info.FixedHosts = true
			m.capacity["a"], m.capacity["b"], m.capacity["c"] = 1, 1, 1
			m.answer()
		}, want: "w0.1=created/a w1.1=created/b w2.1=created/c "},
		{name: "same_zone require: never two zones", job: func(j *jobspec.Job) {
			elastic(1, 3)(j)
			j.Placement.SameZone = jobspec.SameZoneRequire
		}, play: func(t *testing.T, m *model) {
			m.capacity["a"], m.capacity["b"], m.capacity["c"] = 1, 2, 1
			m.pass(5 * time.Minute)
			zones := map[string]bool{}
			for _, x := range m.machines {
				if x.role == providers.Worker {
					zones[x.zone] = true
				}
			}
			if len(zones) != 1 {
				t.Errorf("machines in %d zones, want 1", len(zones))
			}
		}, want: "*"},
		{name: "notice: the replacement is ordered at once, the victim goes when it is out of the world", play: func(t *testing.T, m *model) {
			m.start()
			m.say(journal.NodeNotice, "w1.1", 0, journal.Noticed{Source: "test", DeadlineAt: at(m.now + 2*time.Minute)})
			m.decide()
			if diff := cmp.Diff([]string{"create w1.2"}, creates(m)); diff != "" {
				t.Errorf("ordered at the notice (-want +got):\n%s", diff)
			}
			m.pass(20 * time.Second)
			if !slices.Contains(m.alive(providers.Worker), m.state.Nodes["w1.1"].Machine.ID) {
				t.Error("the victim was deleted while it trained")
			}
			m.join()
			m.say(journal.GenerationEnded, "", 1, journal.Ended{Cause: "swap"})
			m.pass(time.Second)
			if !slices.Contains(m.alive(providers.Worker), m.state.Nodes["w1.1"].Machine.ID) {
				t.Error("the victim was deleted before there was a generation without it")
			}
			m.form()
			m.pass(time.Minute)
		}, want: "w0.1=joined/a w1.1=deleted/a w1.2=joined/a w2.1=joined/a "},
		{name: "a noticed node trains on in the next generation: it stays", play: func(t *testing.T, m *model) {
			m.start()
			m.say(journal.NodeNotice, "w1.1", 0, journal.Noticed{Source: "test", DeadlineAt: at(m.now + 2*time.Minute)})
			m.pass(time.Second)
			m.say(journal.GenerationFormed, "", 2, journal.Formed{Members: []journal.Member{{Node: "w0.1"}, {Node: "w1.1"}, {Node: "w2.1"}}})
			m.pass(time.Minute)
		}, want: "w0.1=joined/a w1.1=joined/a w1.2=created/a w2.1=joined/a "},
		{name: "notice without lead time", play: func(t *testing.T, m *model) {
			m.start()
			m.say(journal.NodeNotice, "w1.1", 0, journal.Noticed{Source: "test"})
			m.decide()
			if got := creates(m); len(got) != 1 {
				t.Errorf("ordered %v, want one machine", got)
			}
		}, want: "w0.1=joined/a w1.1=joined/a w1.2=intended w2.1=joined/a "},
		{name: "notice of a machine in boot, and of its replacement", play: func(t *testing.T, m *model) {
			m.answer()
			m.say(journal.NodeNotice, "w1.1", 0, journal.Noticed{Source: "test"})
			m.answer()
			m.say(journal.NodeNotice, "w1.2", 0, journal.Noticed{Source: "test"})
			m.answer()
			if got := m.state.Nodes["w1.3"]; got != nil {
				t.Error("the third machine was ordered without a pause")
			}
			m.pass(10 * time.Second)
		}, want: "w0.1=created/a w1.1=deleted/a w1.2=deleted/a w1.3=created/b w2.1=created/a "},
		{name: "silent death, with evidence: the world is told, its word is taken", play: func(t *testing.T, m *model) {
			m.start()
			m.kill(m.state.Nodes["w1.1"].Machine.ID)
			m.say(journal.NodeSuspect, "w1.1", 0, journal.Suspected{Reason: "connection lost"})
			m.answer()
			if !m.told["w1.1"] {
				t.Fatal("the world was not told that its member is gone")
			}
			m.say(journal.NodeLost, "w1.1", 0, journal.Lost{Cause: "gone", Evidence: true})
			m.answer()
		}, want: "w0.1=joined/a w1.1=deleted/a w1.2=created/a w2.1=joined/a "},
		{name: "silent death, the world says nothing: what is gone is gone", play: func(t *testing.T, m *model) {
			m.start()
			m.kill(m.state.Nodes["w1.1"].Machine.ID)
			m.pass(time.Minute)
		}, want: "w0.1=joined/a w1.1=deleted/a w1.2=created/a w2.1=joined/a "},
		{name: "a member that does not train is gone", job: elastic(1, 3), play: func(t *testing.T, m *model) {
			m.pass(10 * time.Second)
			m.join("head", "w0.1", "w1.1")
			m.form()
			m.join()
			m.kill(m.state.Nodes["w2.1"].Machine.ID)
			m.say(journal.NodeSuspect, "w2.1", 0, journal.Suspected{Reason: "connection lost"})
			m.answer()
		}, want: "w0.1=joined/a w1.1=joined/a w2.1=deleted/a w2.2=created/a "},
		{name: "silent death, without evidence: the machine of a lost node is deleted", play: func(t *testing.T, m *model) {
			m.start()
			m.say(journal.NodeLost, "w1.1", 0, journal.Lost{Cause: "silent"})
			m.answer()
			m.pass(time.Second)
			if slices.Contains(m.alive(providers.Worker), m.state.Nodes["w1.1"].Machine.ID) {
				t.Error("the lost node's machine still bills")
			}
		}, want: "w0.1=joined/a w1.1=deleted/a w1.2=created/a w2.1=joined/a "},
		{name: "half of the workers gone at once", job: elastic(2, 4), play: func(t *testing.T, m *model) {
			m.start()
			for _, name := range []string{"w1.1", "w2.1"} {
				m.kill(m.state.Nodes[name].Machine.ID)
				m.say(journal.NodeLost, name, 0, journal.Lost{Cause: "silent"})
			}
			m.answer()
			if got := m.creates; got != 3 {
				t.Errorf("%d create calls, want 3: head, workers, both replacements in one", got)
			}
			m.pass(2 * time.Second)
		}, want: "w0.1=joined/a w1.1=deleted/a w1.2=created/a w2.1=deleted/a w2.2=created/a w3.1=joined/a "},
		{name: "the replacement dies in boot again and again: pauses, then another zone", play: func(t *testing.T, m *model) {
			m.start()
			m.say(journal.NodeLost, "w0.1", 0, journal.Lost{Cause: "silent"})
			for range 4 {
				m.answer()
				for _, n := range m.state.List(providers.Worker) {
					if n.Phase == journal.PhaseCreated {
						m.kill(n.Machine.ID)
					}
				}
				m.pass(31 * time.Second)
			}
		}, want: "w0.1=deleted/a w0.2=deleted/a w0.3=deleted/a w0.4=deleted/b w1.1=joined/a w2.1=joined/a "},
		{name: "the job kills its machines: not one after the other at once", play: func(t *testing.T, m *model) {
			m.start()
			began := m.creates
			for range 60 { // a minute in which whoever is in slot 0 dies as soon as it has joined
				for _, n := range m.state.List(providers.Worker) {
					if n.Slot == 0 && n.Phase == journal.PhaseJoined {
						m.say(journal.NodeLost, n.Name, 0, journal.Lost{Cause: "silent"})
					}
				}
				m.answer()
				m.join()
				m.pass(time.Second)
			}
			if got := m.creates - began; got < 3 || got > 7 {
				t.Errorf("%d machines for one slot in a minute, want a few", got)
			}
		}, want: "*"},
		{name: "capacity partly there: the rest is asked for again, at a growing pace", play: func(t *testing.T, m *model) {
			m.capacity["a"], m.capacity["b"], m.capacity["c"] = 2, 0, 0
			m.pass(4 * time.Minute)
			if m.creates < 6 || m.creates > 16 {
				t.Errorf("%d create calls in 4 minutes", m.creates)
			}
			m.capacity["b"] = 1
			m.pass(6 * time.Minute)
			if got := len(m.alive(providers.Worker)); got != 3 {
				t.Errorf("%d workers after capacity came back, want 3", got)
			}
		}, want: "*"},
		{name: "a replacement stays in the zone of the others, and leaves it after two refusals", job: elastic(1, 3), play: func(t *testing.T, m *model) {
			m.start()
			m.capacity["a"] = 0
			m.say(journal.NodeLost, "w0.1", 0, journal.Lost{Cause: "silent"})
			m.pass(10 * time.Second)
			if got := m.state.Nodes["w0.3"]; got != nil {
				t.Error("it went to another zone after one refusal")
			}
			m.pass(20 * time.Second)
			if got := m.state.Nodes["w0.4"]; got == nil || got.Machine == nil || got.Machine.Offer.Zone != "b" {
				t.Errorf("after two refusals: %s", m.phases())
			}
		}, want: "*"},
		{name: "a zone that gave a machine since it refused starts afresh", job: elastic(1, 3), play: func(t *testing.T, m *model) {
			m.start()
			m.capacity["a"] = 0
			m.say(journal.NodeLost, "w0.1", 0, journal.Lost{Cause: "silent"})
			m.pass(time.Second)
			delete(m.capacity, "a")
			m.pass(20 * time.Second)
			m.join()
			m.capacity["a"] = 0
			m.say(journal.NodeLost, "w1.1", 0, journal.Lost{Cause: "silent"})
			m.pass(time.Second)
		}, want: "w0.1=deleted/a w0.2=refused w0.3=joined/a w1.1=deleted/a w1.2=refused w2.1=joined/a "},
		{name: "scale up", job: elastic(1, 4), play: func(t *testing.T, m *model) {
			m.say(journal.RunScaled, "", 0, journal.Scaled{Workers: 2})
			m.start()
			m.say(journal.RunScaled, "", 0, journal.Scaled{Workers: 3})
			m.answer()
		}, want: "w0.1=joined/a w1.1=joined/a w2.1=created/a "},
		{name: "scale down: a node leaves the world before its machine goes", job: elastic(1, 3), play: func(t *testing.T, m *model) {
			m.start()
			m.say(journal.RunScaled, "", 0, journal.Scaled{Workers: 1})
			m.pass(time.Minute)
			if got := len(m.alive(providers.Worker)); got != 3 {
				t.Errorf("%d workers alive while all train, want 3", got)
			}
			m.say(journal.GenerationEnded, "", 1, journal.Ended{Cause: "leaving"})
			m.form()
			m.pass(time.Minute)
		}, want: "w0.1=joined/a w1.1=deleted/a w2.1=deleted/a "},
		{name: "budget", job: func(j *jobspec.Job) { j.Limits.BudgetUSD = 5 }, play: func(t *testing.T, m *model) {
			m.start()
			m.pass(3 * time.Hour)
			if spent := m.state.Finished.SpendUSD; spent > 5 || spent < 4.6 {
				t.Errorf("spent %.3f of 5 USD", spent)
			}
		}, want: "w0.1=deleted/a w1.1=deleted/a w2.1=deleted/a ", stopped: "limit"},
		{name: "budget with hourly billing: the staircase is seen coming", job: func(j *jobspec.Job) { j.Limits.BudgetUSD = 7 }, play: func(t *testing.T, m *model) {
			m.state.Planned.Info.BillingInterval = time.Hour
			m.start()
			m.pass(4 * time.Hour)
			if spent := m.state.SpendUSD(journal.At(m.now)); spent > 7 || spent < 6 {
				t.Errorf("spent %.3f of 7 USD", spent)
			}
		}, want: "*", stopped: "limit"},
		{name: "budget too small for the job: nothing is rented", job: func(j *jobspec.Job) { j.Limits.BudgetUSD = 0.1 }, play: func(t *testing.T, m *model) {
			m.answer()
			if m.creates != 0 {
				t.Errorf("%d create calls", m.creates)
			}
		}, want: "", stopped: "limit"},
		{name: "max_usd_per_hour: fewer, but min", job: func(j *jobspec.Job) {
			elastic(2, 4)(j)
			j.Limits.MaxUSDPerHour = 3.4
		}, play: func(t *testing.T, m *model) {
			m.start()
			if got := len(m.alive(providers.Worker)); got != 3 {
				t.Errorf("%d workers under 3.4 USD an hour with 1 USD each and the head 0.1, want 3", got)
			}
			m.say(journal.NodeNotice, "w1.1", 0, journal.Noticed{Source: "test", DeadlineAt: at(m.now + time.Minute)})
			m.answer()
			if usd := m.state.USDPerHour(); usd > 3.4 {
				t.Errorf("%.2f USD an hour", usd)
			}
		}, want: "w0.1=joined/a w1.1=joined/a w2.1=joined/a "},
		{name: "max_usd_per_hour: the head counts, though it is ordered at the same moment", job: func(j *jobspec.Job) {
			elastic(2, 4)(j)
			j.Limits.MaxUSDPerHour = 3.05
		}, play: func(t *testing.T, m *model) { m.answer() }, want: "w0.1=created/a w1.1=created/a "},
		{name: "more workers are asked for while the first are being rented: in the same zone", job: elastic(1, 5), play: func(t *testing.T, m *model) {
			m.say(journal.RunScaled, "", 0, journal.Scaled{Workers: 3})
			m.capacity["a"] = 2
			m.decide()
			for _, c := range slices.Clone(m.calls) {
				m.end(c, works)
			}
			m.decide()
			m.say(journal.RunScaled, "", 0, journal.Scaled{Workers: 5})
			m.decide()
			if zones := zonesOf(m.state.Nodes["w3.1"].Intent.Offers); zones[0] != "b" {
				t.Errorf("asked for in %v, and the others are being rented in b", zones)
			}
		}, want: "*"},
		{name: "two calls in one round", play: func(t *testing.T, m *model) {
			m.start()
			m.say(journal.NodeLost, "w0.1", 0, journal.Lost{Cause: "silent"})
			for range 2 {
				m.pass(time.Second)
				for _, n := range m.state.List(providers.Worker) {
					if n.Phase == journal.PhaseCreated {
						m.say(journal.NodeLost, n.Name, 0, journal.Lost{Cause: "dead"})
					}
				}
			}
			m.pass(time.Second)
			m.now += time.Minute
			m.say(journal.NodeLost, "w1.1", 0, journal.Lost{Cause: "silent"})
			m.decide()
			if diff := cmp.Diff([]string{"create w0.4", "create w1.2"}, creates(m)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			m.pass(time.Second)
			if got := len(m.alive(providers.Worker)); got != 3 {
				t.Errorf("%d machines, want 3", got)
			}
		}, want: "*"},
		{
			name: "max_usd_per_hour below min", job: func(j *jobspec.Job) { j.Limits.MaxUSDPerHour = 2.5 }, play: func(t *testing.T, m *model) { m.pass(time.Minute) },
			want: "", stopped: "limit",
		},
		{name: "a limit and offers without a price", job: func(j *jobspec.Job) { j.Limits.BudgetUSD = 50 }, play: func(t *testing.T, m *model) {
			m.state.Planned.Workers = testOffers(providers.Worker, 0)
			m.answer()
			if m.creates != 0 {
				t.Errorf("%d create calls", m.creates)
			}
		}, want: "", stopped: "limit"},
		{name: "max_duration", job: func(j *jobspec.Job) { j.Limits.MaxDuration = time.Hour }, play: func(t *testing.T, m *model) {
			m.start()
			m.pass(2 * time.Hour)
			if got := m.state.StoppingAt.Duration(); got != time.Hour {
				t.Errorf("stopped at %v, want 1h", got)
			}
		}, want: "w0.1=deleted/a w1.1=deleted/a w2.1=deleted/a ", stopped: "limit"},
		{name: "start_timeout, refused for capacity: 121", play: func(t *testing.T, m *model) {
			m.capacity["a"], m.capacity["b"], m.capacity["c"] = 2, 0, 0
			m.pass(30 * time.Minute)
			if got := m.state.StoppingAt.Duration(); got != 20*time.Minute {
				t.Errorf("stopped at %v, want 20m", got)
			}
		}, want: "*", stopped: "no_capacity"},
		{
			name: "start_timeout, nobody came up: 122", play: func(t *testing.T, m *model) { m.pass(30 * time.Minute) },
			want: "w0.1=deleted/a w1.1=deleted/a w2.1=deleted/a ", stopped: "too_few_workers",
		},
		{name: "the credentials are refused: at once", play: func(t *testing.T, m *model) {
			m.decide()
			m.refusal = providers.Auth
			m.end(m.calls[0], refuses)
			m.decide()
			if got := m.now; got != 0 {
				t.Errorf("it waited %v", got)
			}
			m.pass(time.Minute)
		}, want: "*", stopped: "no_capacity"},
		{name: "the credentials are refused while it trains: the world decides", play: func(t *testing.T, m *model) {
			m.start()
			m.say(journal.NodeLost, "w0.1", 0, journal.Lost{Cause: "silent"})
			m.decide()
			m.refusal = providers.Auth
			for _, c := range slices.Clone(m.calls) {
				m.end(c, refuses)
			}
			m.pass(time.Minute)
		}, want: "*", stopped: "no"},
		{name: "the head is refused in every zone, then there", play: func(t *testing.T, m *model) {
			for range 3 {
				m.decide()
				for _, c := range slices.Clone(m.calls) {
					if a, ok := c.action.(Create); ok && a.Want.Role == providers.Head {
						m.end(c, refuses)
					}
				}
				m.pass(20 * time.Second)
			}
			if head := m.state.Head(); head.Phase != journal.PhaseCreated || head.Attempt < 2 {
				t.Errorf("head is %s, attempt %d", head.Phase, head.Attempt)
			}
		}, want: "w0.1=created/a w1.1=created/a w2.1=created/a "},
		{name: "the head is dead", play: func(t *testing.T, m *model) {
			m.start()
			m.kill(m.state.Head().Machine.ID)
			m.pass(time.Minute)
			if m.drains > 0 {
				t.Error("drained a world that died with its head")
			}
		}, want: "w0.1=deleted/a w1.1=deleted/a w2.1=deleted/a ", stopped: "launcher_failure"},
		{name: "setup fails on one node: another is tried", play: func(t *testing.T, m *model) {
			m.pass(10 * time.Second)
			m.join("head", "w0.1", "w1.1")
			m.say(journal.NodeReachable, "w2.1", 0, journal.Reachable{})
			m.say(journal.SetupFinished, "w2.1", 0, journal.Setup{Exit: 7})
			m.pass(time.Second)
		}, want: "w0.1=joined/a w1.1=joined/a w2.1=deleted/a w2.2=created/a ", stopped: "no"},
		{name: "setup fails on two nodes of many: others are tried", play: func(t *testing.T, m *model) {
			m.pass(10 * time.Second)
			m.join("head", "w0.1")
			for _, name := range []string{"w1.1", "w2.1"} {
				m.say(journal.NodeReachable, name, 0, journal.Reachable{})
				m.say(journal.SetupFinished, name, 0, journal.Setup{Exit: 7})
			}
			m.pass(time.Second)
		}, want: "w0.1=joined/a w1.1=deleted/a w1.2=created/a w2.1=deleted/a w2.2=created/a ", stopped: "no"},
		{name: "setup fails on the next one too", play: func(t *testing.T, m *model) {
			m.pass(10 * time.Second)
			m.join("head", "w0.1", "w1.1")
			for _, name := range []string{"w2.1", "w2.2"} {
				m.say(journal.NodeReachable, name, 0, journal.Reachable{})
				m.say(journal.SetupFinished, name, 0, journal.Setup{Exit: 7})
				m.pass(time.Second)
			}
			if got := m.state.Stopping; got == nil || got.Exit == nil || *got.Exit != 7 {
				t.Errorf("stopping %+v, want exit 7", got)
			}
		}, want: "*", stopped: "setup_failed"},
		{name: "setup fails on two nodes and never worked", play: func(t *testing.T, m *model) {
			m.pass(10 * time.Second)
			m.join("head")
			for _, name := range []string{"w0.1", "w2.1"} {
				m.say(journal.NodeReachable, name, 0, journal.Reachable{})
				m.say(journal.SetupFinished, name, 0, journal.Setup{Exit: 1})
			}
			m.pass(time.Second)
		}, want: "*", stopped: "setup_failed"},
		{name: "a call that half failed left a machine: it is deleted while the run goes on", play: func(t *testing.T, m *model) {
			m.start()
			m.machines = append(m.machines, &machine{id: "stray", token: m.state.Nodes["w0.1"].Intent.Token, zone: "a", role: providers.Worker, alive: true})
			m.pass(2 * time.Minute)
			if slices.Contains(m.alive(""), "stray") {
				t.Error("it still bills")
			}
		}, want: "w0.1=joined/a w1.1=joined/a w2.1=joined/a "},
		{name: "a machine with the run's tag that no call accounts for stays until the run is over", play: func(t *testing.T, m *model) {
			m.start()
			m.foreign = true
			m.machines = append(m.machines, &machine{id: "planted", token: "somebody's", zone: "a", role: providers.Worker, alive: true})
			m.pass(5 * time.Minute)
			if !slices.Contains(m.alive(""), "planted") {
				t.Error("it was deleted without a matching intent")
			}
			m.say(journal.RunStopping, "", 0, journal.Stopping{Cause: journal.CauseDown})
			m.say(journal.RunDrained, "", 0, nil)
			m.pass(5 * time.Minute)
			if len(m.alive("")) != 0 || m.state.Clean == nil {
				t.Errorf("%v alive, clean %v", m.alive(""), m.state.Clean)
			}
		}, want: "*", stopped: "down"},
		{name: "the intents were cut short: no call was made", play: func(t *testing.T, m *model) {
			in := journal.Intended{Role: providers.Worker, Slot: 0, Attempt: 1, Token: "cut", Count: 3, Min: 3, Offers: m.state.Planned.Workers}
			m.say(journal.NodeIntended, "w0.1", 0, in)
			m.start()
		}, want: "w0.1=refused w0.2=joined/a w1.1=joined/a w2.1=joined/a "},
		{name: "a listing does not know prices", job: func(j *jobspec.Job) { j.Limits.BudgetUSD = 50 }, play: func(t *testing.T, m *model) {
			m.decide()
			for _, n := range m.state.List("") {
				nameless := providers.Machine{ID: n.Name, Token: n.Intent.Token, Offer: providers.Offer{InstanceType: "t-worker", Zone: "a", Market: providers.Spot}}
				m.say(journal.NodeCreated, n.Name, 0, journal.MachineCreated{Machine: nameless})
			}
			if got := m.state.USDPerHour(); got < 3.1 {
				t.Errorf("%.2f USD an hour, want 3 workers of zone a at 1 and the head", got)
			}
		}, want: "*"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			job := testJob()
			if tt.job != nil {
				tt.job(job)
			}
			m := newModel(t, job, tt.mode)
			tt.play(t, m)
			if got := m.phases(); tt.want != "*" && got != tt.want {
				t.Errorf("workers\n got %s\nwant %s", got, tt.want)
			}
			if tt.stopped != "" && m.stopped() != tt.stopped {
				t.Errorf("stopped: %s, want %s (%+v)", m.stopped(), tt.stopped, m.state.Stopping)
			}
			if tt.stopped == "" && m.state.Stopping != nil {
				t.Errorf("stopped: %+v", m.state.Stopping)
			}
		})
	}
}

// creates lists the workers of the create calls under way.
func creates(m *model) []string {
	var names []string
	for _, c := range m.calls {
		if a, ok := c.action.(Create); ok && a.Want.Role == providers.Worker {
			for _, n := range a.Nodes {
				names = append(names, "create "+n)
			}
		}
	}
	return names
}

func TestTeardownOrder(t *testing.T) {
	stop := func(m *model) {
		m.say(journal.RunStopping, "", 0, journal.Stopping{Cause: journal.CauseSucceeded})
		m.answer()
	}
	t.Run("the world is drained first, for a bounded time", func(t *testing.T) {
		m := newModel(t, testJob(), ModeClient)
		m.start()
		stop(m)
		m.pass(time.Minute)
		if m.drains < 3 || m.drains > 10 || len(m.alive("")) != 4 || m.state.Finished != nil {
			t.Errorf("%d drains, %d machines, finished %v: want the world to be asked a few times, and everything there", m.drains, len(m.alive("")), m.state.Finished)
		}
		m.pass(3 * time.Minute)
		if m.state.Clean == nil || len(m.alive("")) != 0 || !m.decision.Done {
			t.Errorf("a world that does not answer holds the teardown up: %s", m.describe())
		}
	})
	t.Run("on the head: workers, two listings, hold, itself", func(t *testing.T) {
		m := newModel(t, testJob(), ModeHead)
		m.state.Planned.Info.ConsistencyWindow = 30 * time.Second
		m.start()
		stop(m)
		m.say(journal.RunDrained, "", 0, nil)
		m.answer()
		if got := len(m.alive(providers.Worker)); got != 0 {
			t.Fatalf("%d workers after the teardown began", got)
		}
		m.pass(2 * time.Minute)
		m.lists = 0
		m.pass(50 * time.Minute)
		if got := len(m.alive(providers.Head)); got != 1 {
			t.Fatal("the head went before hold_results was over")
		}
		if m.lists > 101 {
			t.Errorf("%d listings in 50 minutes of waiting, want one in 30 s", m.lists)
		}
		m.say(journal.RunFetched, "", 0, nil)
		m.decide()
		i := slices.IndexFunc(m.calls, func(c *call) bool { return c.action.Key() == "delete head" })
		if i < 0 {
			t.Fatalf("after run.fetched it does %v, want its own deletion", m.calls)
		}
		m.end(m.calls[i], fails)
		m.decide()
		if m.decision.Done {
			t.Error("it left although its own deletion was refused")
		}
		m.pass(5 * time.Second)
		if len(m.alive("")) != 0 || !m.decision.Done || m.state.Clean != nil {
			t.Errorf("at the end: %d machines, done %v, clean %v (only a client says that)", len(m.alive("")), m.decision.Done, m.state.Clean)
		}
	})
	t.Run("on the head: nobody fetches what an interrupted run has", func(t *testing.T) {
		m := newModel(t, testJob(), ModeHead)
		m.start()
		m.say(journal.RunStopping, "", 0, journal.Stopping{Cause: journal.CauseInterrupted})
		m.answer()
		m.say(journal.RunDrained, "", 0, nil)
		m.answer()
		m.pass(4 * time.Minute)
		if got := len(m.alive(providers.Head)); got != 1 {
			t.Fatal("the head went before anybody could fetch")
		}
		m.pass(2 * time.Minute)
		if got := len(m.alive("")); got != 0 {
			t.Errorf("%d machines six minutes after an interruption, want none", got)
		}
	})
	t.Run("on the head: the second listing is awaited", func(t *testing.T) {
		m := newModel(t, testJob(), ModeHead)
		m.job.Limits.HoldResults, m.remembers = 0, true
		m.state.Planned.Info.ConsistencyWindow = 30 * time.Second
		m.start()
		stop(m)
		m.say(journal.RunDrained, "", 0, nil)
		began := m.now
		for len(m.alive(providers.Head)) > 0 && m.now < began+time.Hour {
			m.pass(time.Second)
		}
		if took := m.now - began; took < 30*time.Second || took > 45*time.Second {
			t.Errorf("the head went after %v, want a consistency window and a little", took)
		}
	})
	t.Run("on the head: what hangs on the head itself does not keep it", func(t *testing.T) {
		m := newModel(t, testJob(), ModeHead)
		m.job.Limits.HoldResults, m.group = 0, true
		m.start()
		stop(m)
		m.say(journal.RunDrained, "", 0, nil)
		m.pass(2 * time.Minute)
		if len(m.alive("")) != 0 || !m.decision.Done {
			t.Errorf("two minutes after the end %v are alive", m.alive(""))
		}
	})
	t.Run("in the client: clean is said after two listings a window apart", func(t *testing.T) {
		m := newModel(t, testJob(), ModeClient)
		m.remembers, m.state.Planned.Info.ConsistencyWindow = true, 30*time.Second
		m.start()
		stop(m)
		m.say(journal.RunDrained, "", 0, nil)
		began := m.now
		for m.state.Clean == nil && m.now < began+time.Hour {
			m.pass(time.Second)
		}
		if took := m.now - began; took < 30*time.Second || took > 45*time.Second || m.state.Clean.Listings < 2 {
			t.Errorf("clean after %v and %d listings", took, m.state.Clean.Listings)
		}
	})
	t.Run("on the head: the budget ends the hold", func(t *testing.T) {
		job := testJob()
		job.Limits.BudgetUSD, job.Limits.HoldResults = 1, 1000*time.Hour
		m := newModel(t, job, ModeHead)
		m.start()
		stop(m)
		m.say(journal.RunDrained, "", 0, nil)
		m.pass(20 * time.Hour)
		if got := m.spent(); len(m.alive("")) != 0 || got > 1 || got < 0.9 {
			t.Errorf("%d machines, %.3f USD spent of 1", len(m.alive("")), got)
		}
	})
	t.Run("before anything was planned", func(t *testing.T) {
		m := newModel(t, testJob(), ModeClient)
		m.state.Planned = nil
		stop(m)
		if m.state.Clean == nil || !m.decision.Done {
			t.Errorf("not clean: %v", m.decision)
		}
	})
	t.Run("what is left over goes, machines first", func(t *testing.T) {
		m := newModel(t, testJob(), ModeClient)
		m.foreign, m.group = true, true
		m.start()
		m.machines = append(m.machines, &machine{id: "planted", token: "somebody's", zone: "a", role: providers.Worker, alive: true})
		stop(m)
		m.say(journal.RunDrained, "", 0, nil)
		for range 50 {
			if m.decide(); len(m.calls) == 0 {
				m.now = max(m.decision.Wake, m.now+1)
				continue
			}
			for _, c := range slices.Clone(m.calls) {
				if s, ok := c.action.(Sweep); ok {
					for _, r := range s.Resources {
						if r.Kind != providers.KindMachine && len(m.alive("")) > 0 {
							t.Fatalf("sweeps %v while %v live", r, m.alive(""))
						}
					}
				}
				m.end(c, works)
			}
		}
		m.pass(time.Minute)
		if m.state.Clean == nil {
			t.Errorf("not clean: %s", m.describe())
		}
	})
}

func TestSeenIsOfThisRunOnly(t *testing.T) {
	m := newModel(t, testJob(), ModeClient)
	m.start()
	foreign := providers.Resource{ID: "x", Kind: providers.KindMachine, State: providers.Running, Tags: map[string]string{providers.TagRun: "another"}}
	seen := m.seen.Observe(m.state, m.now, append(m.listing(), foreign), func(string) bool { return false })
	if left := seen.leftovers(m.state); len(left) != 0 {
		t.Errorf("left over %v, want nothing: it is another run's", left)
	}
}

func TestGone(t *testing.T) {
	const window = 30 * time.Second
	none := func(string) bool { return false }
	tests := []struct {
		name  string
		lists []time.Duration // when listings without the machine were asked for
		want  bool
	}{
		{"not listed", nil, false},
		{"one listing within the window of creation", []time.Duration{20 * time.Second}, false},
		{"two within", []time.Duration{11 * time.Second, 35 * time.Second}, false},
		{"one beyond, alone", []time.Duration{50 * time.Second}, false},
		{"two a window apart, the later a window after creation", []time.Duration{11 * time.Second, 41 * time.Second}, true},
		{"two a window apart", []time.Duration{50 * time.Second, 80 * time.Second}, true},
		{"two a window apart, the later within the window of creation", []time.Duration{5 * time.Second, 36 * time.Second}, false},
		{"two closer", []time.Duration{50 * time.Second, 79 * time.Second}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newModel(t, testJob(), ModeClient)
			m.state.Planned.Info.ConsistencyWindow = window
			m.decide()
			for _, at := range tt.lists {
				if at > 10*time.Second && len(m.calls) > 0 {
					m.now = 10 * time.Second // created then
					for _, c := range slices.Clone(m.calls) {
						m.end(c, works)
					}
				}
				m.seen = m.seen.Observe(m.state, at, nil, none)
			}
			d := &decider{Input: m.input()}
			d.index()
			if got, _ := d.gone(m.state.Nodes["w0.1"]); got != tt.want {
				t.Errorf("gone: %v, want %v", got, tt.want)
			}
		})
	}
}

func TestUnsettledCreates(t *testing.T) {
	t.Run("repeated with the same token until the run stops", func(t *testing.T) {
		m := newModel(t, testJob(), ModeClient)
		m.decide()
		for _, c := range slices.Clone(m.calls) {
			m.end(c, loses)
		}
		m.pass(10 * time.Second)
		if got := len(m.alive("")); got != 4 {
			t.Errorf("%d machines, want 4: one call, said twice", got)
		}
	})
	t.Run("after the stop listings adopt what there is", func(t *testing.T) {
		m := newModel(t, testJob(), ModeClient)
		m.decide()
		m.say(journal.RunStopping, "", 0, journal.Stopping{Cause: journal.CauseDown})
		for _, c := range slices.Clone(m.calls) {
			m.end(c, loses)
		}
		m.pass(time.Minute)
		if m.state.Nodes["w2.1"].CreatedAt < 0 || m.state.Clean == nil {
			t.Errorf("%s clean %v", m.describe(), m.state.Clean)
		}
	})
	t.Run("a crash, a stop, and an effect that comes late", func(t *testing.T) {
		m := newModel(t, testJob(), ModeClient)
		m.decide()
		late := m.calls
		m.forget()
		m.say(journal.RunStopping, "", 0, journal.Stopping{Cause: journal.CauseDown})
		m.pass(4 * time.Second)
		for _, c := range late {
			if a, ok := c.action.(Create); ok {
				m.rent(a)
			}
		}
		m.pass(time.Minute)
		if len(m.alive("")) != 0 || m.state.Clean == nil {
			t.Errorf("%v alive, clean %v", m.alive(""), m.state.Clean)
		}
	})
	t.Run("what was listed while the call was under way proves nothing", func(t *testing.T) {
		m := newModel(t, testJob(), ModeClient)
		m.decide()
		m.say(journal.RunStopping, "", 0, journal.Stopping{Cause: journal.CauseDown})
		rent := slices.Clone(m.calls)
		for range 40 { // listings only
			m.decide()
			for _, c := range slices.Clone(m.calls) {
				if !slices.Contains(rent, c) {
					m.end(c, works)
				}
			}
			m.now += 500 * time.Millisecond
		}
		m.now += time.Minute
		m.decide()
		late := slices.DeleteFunc(slices.Clone(m.calls), func(c *call) bool { return slices.Contains(rent, c) })
		m.now += 10 * time.Second
		for _, c := range append(rent, late...) {
			m.end(c, map[bool]outcome{true: works, false: fails}[slices.Contains(late, c)])
		}
		if len(late) != 1 {
			t.Fatalf("%d listings under way, want one", len(late))
		}
		m.pass(4 * time.Second)
		if n := m.state.Nodes["w0.1"]; n.Phase != journal.PhaseIntended {
			t.Errorf("w0.1 is %s %v after its call has ended", n.Phase, 4*time.Second)
		}
		m.pass(30 * time.Second)
		if m.state.Clean == nil {
			t.Errorf("not clean: %s", m.describe())
		}
	})
	t.Run("a result half written: the others' machines are not given out twice", func(t *testing.T) {
		m := newModel(t, testJob(), ModeClient)
		m.decide()
		for _, c := range slices.Clone(m.calls) {
			m.end(c, loses)
		}
		first := m.describeMachine(m.tokens[m.state.Nodes["w0.1"].Intent.Token][0])
		m.say(journal.NodeCreated, "w0.1", 0, journal.MachineCreated{Machine: first})
		stopped := *m
		stopped.forget()
		stopped.say(journal.RunStopping, "", 0, journal.Stopping{Cause: journal.CauseDown})
		m.forget()
		m.pass(10 * time.Second)
		if len(m.alive("")) != 4 {
			t.Errorf("%d alive, want 4", len(m.alive("")))
		}
		for range 5 {
			stopped.decide()
			stopped.now += time.Millisecond
			for _, c := range slices.Clone(stopped.calls) {
				if _, ok := c.action.(List); ok {
					stopped.end(c, works)
				}
			}
		}
		for how, m := range map[string]*model{"repeated": m, "listed": &stopped} {
			ids := map[string]bool{}
			for _, n := range m.state.List("") {
				if n.Machine != nil {
					ids[n.Machine.ID] = true
				}
			}
			if len(ids) != 4 {
				t.Errorf("%s: %d machines for 4 nodes", how, len(ids))
			}
		}
	})
}

func TestLooksBeforeItActs(t *testing.T) {
	m := newModel(t, testJob(), ModeHead)
	m.start()
	m.kill(m.state.Nodes["w0.1"].Machine.ID)
	m.say(journal.NodeLost, "w0.1", 0, journal.Lost{Cause: "silent"})
	m.now += 10 * time.Minute
	m.actFrom = m.now
	m.decide()
	for _, c := range m.calls {
		if _, ok := c.action.(List); !ok {
			t.Errorf("after having been away it does %v before it has looked", c.action)
		}
	}
	m.answer()
	if m.state.Nodes["w0.2"] == nil {
		t.Error("it looked, and ordered no replacement")
	}

	// Somebody has deleted this head: it acts no more, and not either until that is sure.
	m.pass(time.Minute)
	m.state.Planned.Info.ConsistencyWindow = 20 * time.Second
	m.kill(m.state.Head().Machine.ID)
	m.say(journal.NodeLost, "w1.1", 0, journal.Lost{Cause: "silent"})
	m.now += 10 * time.Minute
	m.actFrom = m.now
	before := len(m.machines)
	m.pass(5 * time.Second)
	if m.decision.Fenced || m.state.Nodes["w1.2"] != nil || len(m.machines) != before || m.state.Nodes["w1.1"].Phase != journal.PhaseLost {
		t.Errorf("a listing did not show this head, and it acts: %s", m.describe())
	}
	m.pass(time.Minute)
	if !m.decision.Fenced {
		t.Errorf("the head's machine is gone, and it goes on: %v", m.decision)
	}
}

func TestTokens(t *testing.T) {
	seen := map[string]bool{}
	for _, run := range []string{"j-abc123", "a-name-of-thirty-characters-xx-abc123", strings.Repeat("long", 30), "Ünusual_ID"} {
		for _, key := range []string{"key one", "key two"} {
			for epoch := 1; epoch < 4; epoch++ {
				d := &decider{Input: Input{State: &journal.State{Run: run, Epoch: epoch, Created: journal.Created{ClientKey: key}}}, ordered: map[providers.Role]int{}}
				d.index()
				for _, role := range []providers.Role{providers.Head, providers.Worker} {
					token := d.token(role)
					if len(token) > 56 || strings.Trim(token, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
						t.Errorf("token %q", token)
					}
					if seen[token] && role == providers.Worker {
						t.Errorf("token %q twice", token)
					}
					seen[token] = true
				}
			}
		}
	}
}
