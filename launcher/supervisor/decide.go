package supervisor

import (
	"slices"
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
	// ActFrom: nothing is rented, changed or deleted before a listing that was asked for at this time or later has come in.
	// 0: no need, nobody has acted for this run before.
	ActFrom time.Duration
	// Busy holds the keys of actions under way; they are not decided again.
	Busy map[string]bool
	// Failed counts, per action key, attempts in a row that failed or whose effect is awaited, and when the next may be made.
	Failed map[string]Backoff
	// Accepted holds the keys of deletions that the provider has accepted.
	Accepted map[string]bool
	// RenewedAt is when the head's tags were last renewed (negative: never), RenewedAs what they said of it: see Described.
	RenewedAt time.Duration
	RenewedAs string
	Mode      Mode
	// World: there is one to be told of.
	World bool
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
	// Fenced, in ModeHead: the provider shows this head's own machine as gone. Who deleted it acts now.
	Fenced bool
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
	// Delete orders the deletion of nodes' machines, and of what else is named in the same call: with the last machine goes
	// what only hangs on it.
	Delete struct {
		Nodes  []string
		With   []providers.Resource
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
	// Renew renews the head's tags.
	Renew struct{}
)

// Key implements Action.
func (a Create) Key() string   { return "create " + a.Token }
func (a Delete) Key() string   { return "delete " + a.Nodes[0] }
func (a Sweep) Key() string    { return "sweep " + a.Resources[0].ID }
func (a List) Key() string     { return "list" }
func (a Record) Key() string   { return "record " + string(a.Events[0].Kind) + " " + a.Events[0].Node }
func (a TellGone) Key() string { return "gone " + a.Node }
func (a Stop) Key() string     { return "stop" }
func (a Drain) Key() string    { return "drain" }
func (a Finish) Key() string   { return "finish" }
func (a Renew) Key() string    { return "renew" }

// decider collects a decision.
type decider struct {
	Input
	out Decision
	// ends: it was decided in this round that the run ends, so nothing else is.
	ends bool
	// What the state says, in the order that makes decisions repeatable.
	nodes, workers []*journal.Node // by slot and attempt, the head first
	bySlot         map[int][]*journal.Node
	byToken        map[string][]*journal.Node
	training       map[string]bool                   // members of the generation that runs
	dry            map[providers.Role]map[string]dry // by zone
	// What this round has ordered so far, which the state does not hold yet.
	ordered  map[providers.Role]int
	usdOrder float64 // an hour
}

// Decide says what to do. It is pure: the same input gives the same decision. Deciding again on what the actions left behind gives nothing new.
func Decide(in Input) Decision {
	d := &decider{Input: in, ordered: map[providers.Role]int{}}
	d.index()
	if d.State.Stopping == nil {
		if d.State.Planned == nil {
			return d.out
		}
		if d.limits(); d.ends {
			return d.out
		}
	}
	d.settle()
	d.listed()
	if d.State.Stopping != nil {
		d.teardown()
	} else {
		d.keep()
	}
	if d.ends {
		return d.out
	}
	d.renew()
	d.list()
	return d.out
}

func (d *decider) index() {
	d.nodes = d.State.List("")
	d.bySlot, d.byToken, d.training = map[int][]*journal.Node{}, map[string][]*journal.Node{}, map[string]bool{}
	for _, n := range d.nodes {
		d.byToken[n.Intent.Token] = append(d.byToken[n.Intent.Token], n)
		if n.Role == providers.Worker {
			d.workers = append(d.workers, n)
			d.bySlot[n.Slot] = append(d.bySlot[n.Slot], n)
		}
	}
	if g := d.State.Generation; g.Phase == journal.GenFormed {
		for _, m := range g.Members {
			d.training[m.Node] = true
		}
	}
}

// info describes the provider; before the run was planned nothing is known of it, and nothing was rented.
func (d *decider) info() providers.Info {
	if d.State.Planned == nil {
		return providers.Info{}
	}
	return d.State.Planned.Info
}

// blind tells whether what is there has to be looked at before anything is done to it. A head looks for its own machine too: its
// being there is what this supervisor's right to act rests on.
func (d *decider) blind() bool {
	if d.ActFrom == 0 || d.Seen.At < d.ActFrom {
		return d.ActFrom != 0
	}
	head := d.State.Head()
	return d.Mode == ModeHead && head != nil && head.Machine != nil && d.Seen.machine(head) == nil &&
		d.Seen.At >= head.CreatedAt.Duration()+d.info().ConsistencyWindow
}

// do adds an action unless it is under way or backing off.
func (d *decider) do(a Action) {
	if d.ends || d.Busy[a.Key()] {
		return
	}
	switch a.(type) {
	case Create, Sweep, Renew:
		if d.blind() {
			return
		}
	}
	if b := d.Failed[a.Key()]; b.NotBefore > d.Now {
		d.wake(b.NotBefore)
		return
	}
	d.out.Actions = append(d.out.Actions, a)
}

// stop ends the run. Nothing else is done in this round: what was decided before it was decided for a run that goes on.
func (d *decider) stop(why journal.Stopping) {
	if d.ends {
		return
	}
	d.out.Actions = nil
	d.do(Stop{Why: why})
	d.ends = true
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

// keep works towards the wanted machines.
func (d *decider) keep() {
	d.strays()
	d.head()
	d.fill()
	d.retire()
}

// head keeps one head. One that is gone ends the run: see limits.
func (d *decider) head() {
	switch head := d.State.Head(); {
	case head == nil:
		d.order(providers.Head, []slot{{name: journal.HeadName, number: -1, attempt: 1}}, "")
	case head.Phase == journal.PhaseRefused:
		d.order(providers.Head, []slot{{name: journal.HeadName, number: -1, attempt: head.Attempt + 1}}, "")
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

// fill orders a machine for every slot that nobody holds or will hold. Slots whose machines keep dying in boot are asked
// for apart, in other zones first.
func (d *decider) fill() {
	var zones []string
	open := map[string][]slot{}
	for number := range Wanted(d.Job, d.State) {
		s := d.slot(number)
		if s.held {
			continue
		}
		if s.notBefore > d.Now {
			d.wake(s.notBefore)
			continue
		}
		avoid := ""
		if s.failures > 1 {
			avoid = s.zone
		}
		if open[avoid] == nil {
			zones = append(zones, avoid)
		}
		open[avoid] = append(open[avoid], s)
	}
	for _, avoid := range zones {
		d.order(providers.Worker, open[avoid], avoid)
	}
}

// retire deletes workers that are no longer wanted, and those that were given up.
func (d *decider) retire() {
	want := Wanted(d.Job, d.State)
	unfit := map[string]bool{}
	for _, f := range d.State.SetupFailures {
		unfit[f.Node] = true
	}
	for _, n := range d.workers {
		switch {
		case n.Phase.Ended() || n.Phase == journal.PhaseIntended:
		case n.Phase == journal.PhaseLost || n.Phase == journal.PhaseDeleting:
			d.delete(n, n.Reason)
		case n.Notice != nil && !d.training[n.Name] && d.replaced(n):
			d.delete(n, "preempted")
		case n.Slot >= want && !d.training[n.Name]:
			d.delete(n, "no longer wanted")
		case n.Phase != journal.PhaseJoined && unfit[n.Name]:
			d.delete(n, "setup failed")
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
	if n.Phase.Ended() || n.Phase == journal.PhaseIntended || d.Busy[key] || d.blind() || d.ends {
		return false
	}
	if gone, _ := d.gone(n); gone {
		return false
	}
	if b := d.Failed[key]; b.NotBefore > d.Now {
		d.wake(b.NotBefore)
		return false
	}
	return true
}

// Described is what the head's tags are to say of it; empty: there is nothing to say yet.
func Described(head *journal.Node) string {
	if head == nil || head.Machine == nil || head.Machine.Address == "" {
		return ""
	}
	return head.Machine.Address + " " + head.HostKey
}

// renew keeps the head's expiry tag a node lease ahead, so that gc can tell a living run from a dead one, and says where it is as soon as that is known.
func (d *decider) renew() {
	head := d.State.Head()
	if head == nil || head.Machine == nil || head.Phase == journal.PhaseDeleting || head.Phase.Ended() {
		return
	}
	if gone, _ := d.gone(head); gone {
		return
	}
	due := d.RenewedAt + d.Job.Limits.NodeLease/3
	if d.RenewedAt >= 0 && due > d.Now && d.RenewedAs == Described(head) {
		d.wake(due)
		return
	}
	d.do(Renew{})
}

// allEnded tells whether every node of the role has.
func (d *decider) allEnded(role providers.Role) bool {
	return !slices.ContainsFunc(d.nodes, func(n *journal.Node) bool { return n.Role == role && !n.Phase.Ended() })
}
