package supervisor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	google "github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

// model is a provider and a world of which a test says, step by step, what they do, around a real state and real decisions.
// It does to the decisions what the loop does, without goroutines and disk.
type model struct {
	t    reporter
	job  *jobspec.Job
	mode Mode
	now  time.Duration

	state                  *journal.State
	seen                   Seen
	busy, accepted         map[string]bool
	failed                 map[string]Backoff
	called                 map[string]time.Duration
	actFrom                time.Duration
	renewedAt              time.Duration
	renewedAs              string
	world                  bool
	decision               Decision
	events                 []journal.Event
	calls                  []*call
	machines               []*machine
	tokens                 map[string][]*machine
	capacity               map[string]int // by zone; missing: unlimited
	told                   map[string]bool
	refusal                providers.Code // of create calls [Capacity]
	drains, creates, lists int
	createdAfterStopping   bool
	group                  bool // there is a resource of the run that cannot be deleted while a machine lives
	remembers              bool // listings show all machines that ended, not only every other
	foreign                bool // there are machines that no call of the run made
}

// reporter is what testing.T, rapid.T and fuzz targets share.
type reporter interface {
	Helper()
	Fatalf(format string, args ...any)
}

type machine struct {
	id, token, zone string
	role            providers.Role
	alive           bool
	usd             float64
	from, to        time.Duration // to: when it died
}

// call is one call of the provider that is under way.
type call struct {
	action Action
	asked  time.Duration
	state  *journal.State
}

func testJob() *jobspec.Job {
	return &jobspec.Job{
		Name: "j", Placement: jobspec.Placement{SameZone: jobspec.SameZonePrefer},
		Workers:    jobspec.Workers{Min: 3, Max: 3, Fixed: true},
		Preemption: jobspec.Preemption{Grace: 20 * time.Second},
		Elastic:    jobspec.Elastic{LostAfter: 10 * time.Second, BelowMin: 30 * time.Minute},
		Limits:     jobspec.Limits{MaxDuration: 24 * time.Hour, StartTimeout: 20 * time.Minute, NodeLease: 5 * time.Minute, HoldResults: time.Hour},
	}
}

func testOffers(role providers.Role, usd float64) []providers.Offer {
	var offers []providers.Offer
	for i, z := range []string{"a", "b", "c"} {
		o := providers.Offer{Provider: "model", InstanceType: "t-" + string(role), Region: "r", Zone: z, Market: providers.Spot}
		if usd > 0 {
			price := usd * (1 + float64(i)/10)
			o.USDPerHour = &price
		}
		offers = append(offers, o)
	}
	return offers
}

func newModel(t reporter, job *jobspec.Job, mode Mode) *model {
	m := &model{
		t: t, job: job, mode: mode, state: &journal.State{}, world: mode != ModeLaunch,
		tokens: map[string][]*machine{}, capacity: map[string]int{}, told: map[string]bool{},
	}
	m.forget()
	m.apply(journal.NewEvent(journal.RunCreated, "", 0, journal.Created{JobName: "j", ClientKey: "key"}))
	m.apply(journal.NewEvent(journal.RunPlanned, "", 0, journal.Planned{
		Provider: "model", Region: "r", Head: testOffers(providers.Head, 0.1), Workers: testOffers(providers.Worker, 1),
		Info: providers.Info{BillingInterval: time.Second},
	}))
	return m
}

// forget is what the death of the supervisor's process takes away.
func (m *model) forget() {
	m.seen, m.busy, m.accepted = Seen{At: -1}, map[string]bool{}, map[string]bool{}
	m.failed, m.called, m.renewedAt, m.renewedAs = map[string]Backoff{}, map[string]time.Duration{}, -1, ""
	m.actFrom, m.calls = 0, nil
	if len(m.state.Nodes) > 0 {
		m.actFrom = max(m.now, 1)
	}
}

// apply folds an event in and tells whether it could follow.
func (m *model) apply(events ...journal.Event) bool {
	m.t.Helper()
	next := m.state.Clone()
	for i := range events {
		events[i].Run, events[i].At = "j-abc123", max(journal.At(m.now), m.state.At)
		if err := next.Apply(events[i]); err != nil {
			return false
		}
	}
	m.state = next
	m.events = append(m.events, events...)
	return true
}

// say is apply for what must be able to follow.
func (m *model) say(kind journal.Kind, node string, generation int, data any) {
	m.t.Helper()
	if !m.apply(journal.NewEvent(kind, node, generation, data)) {
		m.t.Fatalf("at %v: %s %s cannot follow %s", m.now, kind, node, m.describe())
	}
}

func (m *model) input() Input {
	return Input{
		Job: m.job, State: m.state, Seen: m.seen, Now: m.now, ActFrom: m.actFrom, Busy: m.busy, Failed: m.failed, Accepted: m.accepted,
		RenewedAt: m.renewedAt, RenewedAs: m.renewedAs, Mode: m.mode, World: m.world,
	}
}

// decide decides and acts until nothing new is decided.
func (m *model) decide() {
	m.t.Helper()
	for round := 0; ; round++ {
		if round > 100 {
			m.t.Fatalf("at %v: it never comes to rest: %v", m.now, m.decision.Actions)
		}
		in := m.input()
		m.decision = Decide(in)
		again := Decide(shuffled(in))
		if diff := google.Diff(again, m.decision); diff != "" {
			m.t.Fatalf("at %v: same input, another decision:\n%s", m.now, diff)
		}
		if m.decision.Fenced || m.decision.Done && len(m.busy) == 0 {
			return
		}
		if len(m.decision.Actions) == 0 {
			if m.decision.Wake <= m.now && len(m.calls) == 0 {
				m.t.Fatalf("at %v: nothing to do and no time to look again", m.now)
			}
			return
		}
		for _, a := range m.decision.Actions {
			m.act(a)
		}
		m.check()
	}
}

// shuffled is the same input with its maps built anew.
func shuffled(in Input) Input {
	in.State = in.State.Clone()
	in.Busy, in.Failed = maps.Clone(in.Busy), maps.Clone(in.Failed)
	return in
}

func (m *model) act(a Action) {
	m.t.Helper()
	switch a := a.(type) {
	case Record:
		if !m.apply(a.Events...) {
			m.t.Fatalf("at %v: recorded what cannot follow: %v", m.now, a.Events)
		}
	case Stop:
		m.say(journal.RunStopping, a.Why.Node, 0, a.Why)
	case Finish:
		m.say(journal.RunFinished, "", 0, a.Result)
	case TellGone:
		m.told[a.Node] = true
		m.backOff(a.Key())
	case Drain:
		m.drains++
		m.backOff(a.Key())
	case Create:
		m.createdAfterStopping = m.createdAfterStopping || m.state.Stopping != nil
		if a.New {
			events, err := intents(m.state, a, "birth key")
			if err != nil || !m.apply(events...) {
				m.t.Fatalf("at %v: intend %v: %v", m.now, a.Nodes, err)
			}
		}
		m.creates++
		m.call(a, a.Key())
	case Delete:
		for _, name := range a.Nodes {
			if m.state.Nodes[name].Phase != journal.PhaseDeleting {
				m.say(journal.NodeDeleting, name, 0, journal.DeletingNode{Reason: a.Reason})
			}
		}
		keys := make([]string, len(a.Nodes))
		for i, name := range a.Nodes {
			keys[i] = "delete " + name
		}
		m.call(a, keys...)
	default:
		m.call(a, a.Key())
	}
}

func (m *model) call(a Action, keys ...string) {
	for _, k := range keys {
		if m.busy[k] {
			m.t.Fatalf("at %v: %s is under way already", m.now, k)
		}
		m.busy[k] = true
	}
	if _, ok := a.(List); ok {
		m.lists++
	}
	m.calls = append(m.calls, &call{action: a, asked: m.now, state: m.state})
}

func (m *model) backOff(key string) {
	b := m.failed[key]
	b.NotBefore = m.now + pause(key, b.Count)
	b.Count++
	m.failed[key] = b
}

// outcome is how a call ends.
type outcome int

const (
	works   outcome = iota // as asked, as far as there is capacity
	loses                  // its effect happens, its reply does not come
	fails                  // no effect, and the caller is told to try again
	refuses                // no effect, no capacity
)

// end lets a call that is under way come back.
func (m *model) end(c *call, how outcome) {
	m.calls = slices.DeleteFunc(m.calls, func(o *call) bool { return o == c })
	err := how == loses || how == fails
	switch a := c.action.(type) {
	case Create:
		delete(m.busy, a.Key())
		m.called[a.Token] = m.now
		if _, done := m.tokens[a.Token]; done && how == refuses {
			how = works // the token was served before
		}
		switch how {
		case refuses:
			delete(m.failed, a.Key())
			m.refused(a)
			return
		case loses:
			m.rent(a)
		}
		if err {
			m.backOff(a.Key())
			return
		}
		delete(m.failed, a.Key())
		m.settled(a, m.rent(a))
	case Delete:
		for i, name := range a.Nodes {
			delete(m.busy, "delete "+name)
			m.backOff("delete " + name)
			m.accepted["delete "+name] = m.accepted["delete "+name] || how == works
			if n := m.state.Nodes[name]; how == works || how == loses && i == 0 {
				m.kill(n.Machine.ID)
			}
		}
	case Sweep:
		delete(m.busy, a.Key())
		m.backOff(a.Key())
		for _, r := range a.Resources {
			if how == works || how == loses {
				m.kill(r.ID)
			}
		}
	case List:
		delete(m.busy, a.Key())
		if how != works {
			m.backOff(a.Key())
			return
		}
		delete(m.failed, a.Key())
		m.seen = m.seen.Observe(c.state, c.asked, m.listing(), unsure(m.busy, m.called, c.asked))
	case Renew:
		delete(m.busy, a.Key())
		if how != works {
			m.backOff(a.Key())
			return
		}
		delete(m.failed, a.Key())
		m.renewedAt, m.renewedAs = m.now, Described(m.state.Head())
	}
}

func (m *model) refused(a Create) {
	for _, name := range a.Nodes {
		m.apply(journal.NewEvent(journal.NodeRefused, name, 0, journal.Refused{Code: cmp.Or(m.refusal, providers.Capacity), Message: "dry"}))
	}
}

// settled journals what a create call brought.
func (m *model) settled(a Create, machines []*machine) {
	if machines == nil {
		m.refused(a)
		return
	}
	var given []providers.Machine
	for _, x := range machines {
		given = append(given, m.describeMachine(x))
	}
	events := brought(m.state, a, given, journal.Refused{Code: providers.Capacity, Message: "fewer"})
	if !m.apply(events...) {
		m.t.Fatalf("at %v: the outcome of %s cannot follow", m.now, a.Token)
	}
}

// rent is the effect of a create call: idempotent by token, all of min or nothing.
func (m *model) rent(a Create) []*machine {
	if machines, ok := m.tokens[a.Token]; ok {
		return slices.DeleteFunc(slices.Clone(machines), func(x *machine) bool { return !x.alive })
	}
	var made []*machine
	for _, o := range a.Want.Offers {
		for len(made) < a.Want.Count && m.room(o.Zone, made) {
			x := &machine{id: fmt.Sprintf("m%d", len(m.machines)+len(made)), token: a.Token, zone: o.Zone, role: a.Want.Role, alive: true, from: m.now}
			if o.USDPerHour != nil {
				x.usd = *o.USDPerHour
			}
			made = append(made, x)
		}
	}
	if len(made) < max(a.Want.Min, 1) {
		return nil
	}
	m.machines = append(m.machines, made...)
	m.tokens[a.Token] = made
	return made
}

func (m *model) room(zone string, made []*machine) bool {
	most, limited := m.capacity[zone]
	if !limited {
		return true
	}
	for _, x := range slices.Concat(m.machines, made) {
		if x.alive && x.zone == zone && x.role == providers.Worker {
			most--
		}
	}
	return most > 0
}

func (m *model) kill(id string) {
	for _, x := range m.machines {
		if x.id == id && x.alive {
			x.alive, x.to = false, m.now
		}
	}
}

func (m *model) describeMachine(x *machine) providers.Machine {
	usd := x.usd
	return providers.Machine{
		ID: x.id, Token: x.token, Address: x.id + ":22", ClusterAddress: x.id + ":22", User: "u",
		Offer: providers.Offer{InstanceType: "t-" + string(x.role), Region: "r", Zone: x.zone, Market: providers.Spot, USDPerHour: &usd},
	}
}

// listing shows the living machines and, for half of them, the dead: a cloud forgets.
func (m *model) listing() []providers.Resource {
	var all []providers.Resource
	for i, x := range m.machines {
		described := m.describeMachine(x)
		r := providers.Resource{
			ID: x.id, Kind: providers.KindMachine, State: providers.Running, Machine: &described,
			Tags: map[string]string{providers.TagRun: "j-abc123", providers.TagRole: string(x.role)},
		}
		if !x.alive {
			if r.State = providers.Terminated; i%2 == 0 && !m.remembers {
				continue
			}
		}
		all = append(all, r)
	}
	if m.group && len(m.alive("")) > 0 {
		all = append(all, providers.Resource{
			ID: "g", Kind: "group", State: providers.Running, Tags: map[string]string{providers.TagRun: "j-abc123", providers.TagRole: string(providers.Worker)},
		})
	}
	return all
}

// answer lets every call under way come back as it should, and decides, until only time can bring something new.
func (m *model) answer() {
	m.t.Helper()
	for range 1000 {
		m.decide()
		if len(m.calls) == 0 {
			return
		}
		m.now += time.Millisecond
		for _, c := range slices.Clone(m.calls) {
			m.end(c, works)
		}
	}
	m.t.Fatalf("at %v: no rest after 1000 calls, now %v", m.now, m.decision.Actions)
}

// pass lets time pass, with every wake-up on the way.
func (m *model) pass(d time.Duration) {
	m.t.Helper()
	until := m.now + d
	for {
		m.answer()
		if m.decision.Done || m.decision.Fenced {
			m.now = until
			return
		}
		next := m.decision.Wake
		if next == 0 || next > until {
			m.now = until
			m.answer()
			return
		}
		m.now = max(next, m.now+time.Millisecond)
	}
}

// join makes every machine that has none of it yet reachable and a member, the head first.
func (m *model) join(only ...string) {
	m.t.Helper()
	for _, n := range m.state.List("") {
		if n.Phase == journal.PhaseCreated && (len(only) == 0 || slices.Contains(only, n.Name)) {
			m.say(journal.NodeReachable, n.Name, 0, journal.Reachable{})
			m.say(journal.NodeJoined, n.Name, 0, journal.Joined{Procs: 1})
		}
	}
}

// form makes the members that stay a generation.
func (m *model) form() {
	m.t.Helper()
	f := journal.Formed{Cause: "test"}
	for _, n := range m.state.List(providers.Worker) {
		if n.Phase == journal.PhaseJoined && n.Notice == nil && n.Slot < Wanted(m.job, m.state) {
			f.Members = append(f.Members, journal.Member{Node: n.Name, Slot: n.Slot})
		}
	}
	g := m.state.Generation.Number + 1
	if m.state.Generation.Phase == journal.GenForming {
		g--
	}
	m.say(journal.GenerationFormed, "", g, f)
}

// start brings the run to a first generation.
func (m *model) start() {
	m.t.Helper()
	m.pass(30 * time.Second)
	m.join()
	m.form()
	m.pass(time.Second)
}

// alive lists the living machines of a role: what bills.
func (m *model) alive(role providers.Role) []string {
	var ids []string
	for _, x := range m.machines {
		if x.alive && (role == "" || x.role == role) {
			ids = append(ids, x.id)
		}
	}
	return ids
}

// spent is what the machines really cost.
func (m *model) spent() float64 {
	total := 0.0
	for _, x := range m.machines {
		to := x.to
		if x.alive {
			to = m.now
		}
		total += x.usd * (to - x.from).Hours()
	}
	return total
}

// phases says where the workers are, for tables.
func (m *model) phases() string {
	text := ""
	for _, n := range m.state.List(providers.Worker) {
		zone := ""
		if n.Machine != nil {
			zone = "/" + n.Machine.Offer.Zone
		}
		text += fmt.Sprintf("%s=%s%s ", n.Name, n.Phase, zone)
	}
	return text
}

func (m *model) describe() string {
	head := "none"
	if h := m.state.Head(); h != nil {
		head = string(h.Phase)
	}
	return fmt.Sprintf("mode %d head=%s %s stopping=%v", m.mode, head, m.phases(), m.state.Stopping)
}

// check holds what must be so at every instant.
func (m *model) check() {
	m.t.Helper()
	if m.createdAfterStopping {
		m.t.Fatalf("at %v: a create call after run.stopping", m.now)
	}
	holders := map[int]string{}
	for _, n := range m.state.List(providers.Worker) {
		if n.Leaving() {
			continue
		}
		if other, ok := holders[n.Slot]; ok {
			m.t.Fatalf("at %v: slot %d is held by %s and %s", m.now, n.Slot, other, n.Name)
		}
		holders[n.Slot] = n.Name
	}
	// What bills stands for a node that has not ended, or for a call that has not come back; the rest is being swept.
	for _, x := range m.machines {
		if !x.alive {
			continue
		}
		if !m.foreign && !issued(m.state, x.token) {
			m.t.Fatalf("at %v: machine %s of token %s: no intent", m.now, x.id, x.token)
		}
	}
	for token := range m.tokens {
		if len(token) > 64 {
			m.t.Fatalf("token %q is longer than 64 bytes", token)
		}
	}
}

// stops lists why the run was stopped, as cause and text.
func (m *model) stopped() string {
	if m.state.Stopping == nil {
		return "no"
	}
	return cmp.Or(string(m.state.Stopping.Cause), "?")
}
