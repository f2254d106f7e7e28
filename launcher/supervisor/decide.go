package supervisor

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

// Input is all a decision depends on.
type Input struct {
	Job   *jobspec.Job
	State *journal.State
	Seen  Seen
	// Now is the run clock.
	Now time.Duration
	// Busy holds the keys of actions under way; they are not decided again.
	Busy map[string]bool
	// Failed counts, per action key, attempts that failed in a row without an outcome, and when the next may be made.
	Failed map[string]Backoff
	// RenewedAt is when the head's expiry tag was last renewed; negative: never.
	RenewedAt time.Duration
	Mode      Mode
}

// Mode is whose supervisor this is.
type Mode int

const (
	// ModeClient: in the client, to the end; the head has no rights.
	ModeClient Mode = iota
	// ModeLaunch: in the client, until the head takes over. It creates and repairs; teardown is as in ModeClient.
	ModeLaunch
	// ModeHead: on the head, which deletes itself last.
	ModeHead
)

// Backoff is the memory of a failing action.
type Backoff struct {
	Count     int
	NotBefore time.Duration
}

// Decision is what to do now, and when to decide again if nothing happens before.
type Decision struct {
	Actions []Action
	// Wake is on the run clock; 0: only when something happens.
	Wake time.Duration
	// Done: nothing is left to do for this supervisor.
	Done bool
}

// Action is one thing to do. Its key is the same each time the same thing is decided.
type Action interface{ Key() string }

type (
	// Create makes one create call for nodes that share a token. New: their intents are to be journaled first.
	Create struct {
		Token string
		Nodes []string
		Want  journal.Intended
		New   bool
	}
	// Delete orders the deletion of nodes' machines.
	Delete struct {
		Nodes  []string
		Reason string
	}
	// Sweep orders the deletion of tagged resources that belong to no node.
	Sweep struct{ Resources []providers.Resource }
	// List asks the provider for a listing.
	List struct{}
	// Record journals events that listings prove.
	Record struct{ Events []journal.Event }
	// TellGone tells the world that the provider lists a member as gone.
	TellGone struct {
		Node     string
		Evidence string
	}
	// Stop journals that the run is being ended.
	Stop struct{ Why journal.Stopping }
	// Drain tells the world to end all rank processes and bring outputs in.
	Drain struct{}
	// Finish journals the end of the job.
	Finish struct{ Result journal.Finished }
	// Renew renews the head's expiry tag.
	Renew struct{}
)

// Key implements Action.
func (a Create) Key() string   { return "create " + a.Token }
func (a Delete) Key() string   { return "delete " + a.Nodes[0] }
func (a Sweep) Key() string    { return "sweep" }
func (a List) Key() string     { return "list" }
func (a Record) Key() string   { return "record" }
func (a TellGone) Key() string { return "gone " + a.Node }
func (a Stop) Key() string     { return "stop" }
func (a Drain) Key() string    { return "drain" }
func (a Finish) Key() string   { return "finish" }
func (a Renew) Key() string    { return "renew" }

// decider collects a decision.
type decider struct {
	Input
	out Decision
}

// Decide says what to do. It is pure: the same input gives the same decision. Deciding again on what the actions left behind gives nothing new.
func Decide(in Input) Decision {
	d := &decider{Input: in}
	if d.State.Planned == nil {
		return d.out
	}
	d.settle()
	d.listed()
	if d.State.Stopping == nil {
		d.limits()
	}
	if d.State.Stopping != nil {
		d.teardown()
	} else {
		d.keep()
	}
	d.renew()
	d.list()
	return d.out
}

// do adds an action unless it is under way or backing off.
func (d *decider) do(a Action) {
	if d.Busy[a.Key()] {
		return
	}
	if b := d.Failed[a.Key()]; b.NotBefore > d.Now {
		d.wake(b.NotBefore)
		return
	}
	d.out.Actions = append(d.out.Actions, a)
}

// wake asks to decide again at the given time.
func (d *decider) wake(at time.Duration) {
	if at <= d.Now {
		at = d.Now + time.Millisecond
	}
	if d.out.Wake == 0 || at < d.out.Wake {
		d.out.Wake = at
	}
}

// settle repeats create calls whose outcome is not known: after a crash, a lost reply, a dead plugin. The token makes
// that safe, and it is what adopts the machines of a call whose reply never came. Once the run is being ended nothing
// may be created any more: then listings tell what such a call has left.
func (d *decider) settle() {
	done := map[string]bool{}
	for _, n := range d.State.List("") {
		token := n.Intent.Token
		if n.Phase != journal.PhaseIntended || done[token] {
			continue
		}
		done[token] = true
		c := Create{Token: token, Want: n.Intent}
		for _, m := range d.State.List(n.Role) {
			if m.Phase == journal.PhaseIntended && m.Intent.Token == token {
				c.Nodes = append(c.Nodes, m.Name)
			}
		}
		if d.State.Stopping == nil {
			d.do(c)
		} else if !d.Busy[c.Key()] {
			d.find(c)
		}
	}
}

// find settles a create call by what listings show.
func (d *decider) find(c Create) {
	var events []journal.Event
	machines := d.Seen.byToken(c.Token)
	window := d.State.Planned.Info.ConsistencyWindow
	for i, name := range c.Nodes {
		switch since, absent := d.Seen.Absent[name]; {
		case i < len(machines):
			events = append(events, journal.NewEvent(journal.NodeCreated, name, 0, journal.MachineCreated{Machine: machines[i]}))
		case absent && d.Seen.At >= since+window:
			events = append(events, journal.NewEvent(journal.NodeRefused, name, 0, journal.Refused{Code: providers.NotFound, Message: "the create call left no machine"}))
		}
	}
	if len(events) > 0 {
		d.do(Record{Events: events})
	}
}

// listed draws the conclusions a listing allows.
func (d *decider) listed() {
	var events []journal.Event
	for _, n := range d.State.List("") {
		if n.Machine == nil || n.Phase.Ended() {
			continue
		}
		m := d.Seen.machine(n)
		if m != nil && m.Machine != nil && n.Machine.Address == "" && m.Machine.Address != "" && m.Alive() {
			events = append(events, journal.NewEvent(journal.NodeAddressed, n.Name, 0, journal.MachineCreated{Machine: *m.Machine}))
		}
		gone, why := d.gone(n)
		if !gone {
			continue
		}
		switch {
		case n.Phase == journal.PhaseJoined && n.Role == providers.Worker && !d.State.Drained:
			// The world knows what its members are doing; it gives the rank away and reports the node lost.
			d.do(TellGone{Node: n.Name, Evidence: why})
		case n.Phase == journal.PhaseDeleting || n.Phase == journal.PhaseLost:
			events = append(events, journal.NewEvent(journal.NodeDeleted, n.Name, 0, journal.Deleted{Reason: why}))
		default:
			events = append(events,
				journal.NewEvent(journal.NodeLost, n.Name, 0, journal.Lost{Cause: why, Evidence: true}),
				journal.NewEvent(journal.NodeDeleted, n.Name, 0, journal.Deleted{Reason: why}))
		}
	}
	if len(events) > 0 {
		d.do(Record{Events: events})
	}
}

// gone tells whether listings prove that the node's machine bills no more.
func (d *decider) gone(n *journal.Node) (bool, string) {
	if m := d.Seen.machine(n); m != nil {
		return !m.Alive(), cmp.Or(m.Reason, "the provider lists it as terminated")
	}
	since, ok := d.Seen.Absent[n.Name]
	window := d.State.Planned.Info.ConsistencyWindow
	return ok && d.Seen.At >= since+window && since >= n.CreatedAt.Duration()+window, "the provider lists it no more"
}

// keep works towards the wanted machines.
func (d *decider) keep() {
	if failures := d.State.SetupFailures; len(failures) > 1 {
		last := failures[len(failures)-1]
		exit := last.Exit
		d.do(Stop{Why: journal.Stopping{Cause: journal.CauseSetup, Node: last.Node, Exit: &exit, Text: "setup failed on " + failures[len(failures)-2].Node + " and " + last.Node}})
		return
	}
	d.head()
	d.workers()
	d.retire()
}

// head keeps one head. A head that is gone cannot be replaced from its own machine; from the client it ends the run.
func (d *decider) head() {
	head := d.State.Head()
	if head == nil {
		d.order(providers.Head, []slot{{name: journal.HeadName, number: -1, attempt: 1}})
		return
	}
	if head.Phase == journal.PhaseRefused {
		d.order(providers.Head, []slot{{name: journal.HeadName, number: -1, attempt: head.Attempt + 1}})
		return
	}
	if head.Phase == journal.PhaseLost || head.Phase.Ended() {
		d.do(Stop{Why: journal.Stopping{Cause: journal.CauseLauncher, Node: head.Name, Text: "the head is gone: " + head.Reason}})
	}
}

// Wanted is how many workers the run asks for now.
func Wanted(job *jobspec.Job, s *journal.State) int {
	if s.Stopping != nil {
		return 0
	}
	if s.Want > 0 {
		return s.Want
	}
	return job.Workers.Max
}

// Least is the smallest world that may train.
func Least(job *jobspec.Job, s *journal.State) int {
	if job.Workers.Fixed {
		return Wanted(job, s)
	}
	return job.Workers.Min
}

// workers orders a machine for every slot that nobody holds or will hold.
func (d *decider) workers() {
	var open []slot
	for number := range Wanted(d.Job, d.State) {
		s := d.slot(number)
		if s.held {
			continue
		}
		if s.notBefore > d.Now {
			d.wake(s.notBefore)
			continue
		}
		open = append(open, s)
	}
	if len(open) > 0 {
		d.order(providers.Worker, open)
	}
}

// retire deletes workers that are no longer wanted, and those that were given up.
func (d *decider) retire() {
	want := Wanted(d.Job, d.State)
	for _, n := range d.State.List(providers.Worker) {
		switch {
		case n.Phase.Ended() || n.Phase == journal.PhaseIntended:
		case n.Phase == journal.PhaseLost:
			d.delete(n, n.Reason)
		case n.Phase == journal.PhaseDeleting:
			d.delete(n, n.Reason)
		case n.Notice != nil && !d.trains(n) && d.replaced(n):
			d.delete(n, "preempted")
		case n.Slot >= want && !d.trains(n):
			d.delete(n, "no longer wanted")
		case n.Phase != journal.PhaseJoined:
			late := n.CreatedAt.Duration() + d.Job.Limits.StartTimeout
			if late > d.Now {
				d.wake(late)
				continue
			}
			d.delete(n, "did not come up within "+d.Job.Limits.StartTimeout.String())
		}
	}
}

// trains tells whether the node is a member of the generation that is running.
func (d *decider) trains(n *journal.Node) bool {
	g := d.State.Generation
	return g.Phase == journal.GenFormed && slices.ContainsFunc(g.Members, func(m journal.Member) bool { return m.Node == n.Name })
}

// replaced tells whether a noticed node is of no more use: it never joined, or a generation without it runs.
func (d *decider) replaced(n *journal.Node) bool {
	if n.Phase != journal.PhaseJoined {
		return true
	}
	g := d.State.Generation
	return g.Phase == journal.GenFormed && g.Since > n.NoticedAt
}

func (d *decider) delete(n *journal.Node, reason string) {
	if d.deletable(n) {
		d.out.Actions = append(d.out.Actions, Delete{Nodes: []string{n.Name}, Reason: reason})
	}
}

// deletable tells whether the node's deletion is to be ordered now. Each node has its own pace, whatever call it was part of.
func (d *decider) deletable(n *journal.Node) bool {
	key := Delete{Nodes: []string{n.Name}}.Key()
	if gone, _ := d.gone(n); gone || n.Phase.Ended() || n.Phase == journal.PhaseIntended || d.Busy[key] {
		return false
	}
	if b := d.Failed[key]; b.NotBefore > d.Now {
		d.wake(b.NotBefore)
		return false
	}
	return true
}

// renew keeps the head's expiry tag a node lease ahead, so that gc can tell a living run from a dead one.
func (d *decider) renew() {
	head := d.State.Head()
	if head == nil || head.Machine == nil || head.Phase == journal.PhaseDeleting || head.Phase.Ended() {
		return
	}
	due := d.RenewedAt + d.Job.Limits.NodeLease/3
	if d.RenewedAt >= 0 && due > d.Now {
		d.wake(due)
		return
	}
	d.do(Renew{})
}

// token names a create call: the run, the role, and how many calls came before, so that it is new and can be derived again.
func (d *decider) token(role providers.Role) string {
	seen := map[string]bool{}
	for _, n := range d.State.Nodes {
		if n.Role == role {
			seen[n.Intent.Token] = true
		}
	}
	if role == providers.Head { // a refused head is overwritten by the next attempt
		return d.State.Run + "-h" + strconv.Itoa(headAttempts(d.State)+1)
	}
	return d.State.Run + "-w" + strconv.Itoa(len(seen)+1)
}

func headAttempts(s *journal.State) int {
	if head := s.Head(); head != nil {
		return head.Attempt
	}
	return 0
}
