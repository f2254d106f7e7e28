package supervisor

import (
	"cmp"
	"strings"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

const (
	// lateEffect is how long after its caller has given it up, or died, a call may still reach the cloud and take effect.
	lateEffect = 5 * time.Second
	// toldOften is how often the world is told that a member is gone before the supervisor gives the member up itself.
	toldOften = 3
)

// settle sees to create calls whose outcome is not known: after a crash, a lost reply, a dead plugin. It repeats them: the token makes
// that safe, and it is what adopts the machines of a call whose reply never came. Once the run is being ended nothing
// may be created any more: then listings tell what such a call has left.
func (d *decider) settle() {
	for _, n := range d.nodes {
		call := d.byToken[n.Intent.Token]
		if n.Phase != journal.PhaseIntended || first(call) != n {
			continue
		}
		c := Create{Token: n.Intent.Token, Want: n.Intent}
		for _, m := range call {
			if m.Phase == journal.PhaseIntended {
				c.Nodes = append(c.Nodes, m.Name)
			}
		}
		switch {
		case d.Busy[c.Key()]:
		case len(call) < n.Intent.Count:
			// A crash cut the write of the intents short. They are on disk before the call is made, so it was not made.
			d.refuse(c.Nodes, journal.Refused{Code: providers.Unavailable, Message: "the intent was cut short"})
		case d.State.Stopping == nil:
			d.do(c)
		default:
			d.find(c)
		}
	}
}

// first is the first node of a call that waits for its outcome.
func first(call []*journal.Node) *journal.Node {
	for _, n := range call {
		if n.Phase == journal.PhaseIntended {
			return n
		}
	}
	return nil
}

func (d *decider) refuse(nodes []string, why journal.Refused) {
	var events []journal.Event
	for _, name := range nodes {
		events = append(events, journal.NewEvent(journal.NodeRefused, name, 0, why))
	}
	if len(events) > 0 {
		d.do(Record{Events: events})
	}
}

// find settles a create call by what listings show.
func (d *decider) find(c Create) {
	var events []journal.Event
	machines := d.Seen.unowned(d.State, c.Token)
	for i, name := range c.Nodes {
		if i < len(machines) {
			events = append(events, journal.NewEvent(journal.NodeCreated, name, 0, journal.MachineCreated{Machine: machines[i]}))
			continue
		}
		since, absent := d.Seen.Absent[name]
		if absent && d.Seen.At >= since+d.info().ConsistencyWindow+lateEffect {
			events = append(events, journal.NewEvent(journal.NodeRefused, name, 0,
				journal.Refused{Code: providers.NotFound, Message: "the create call left no machine"}))
		}
	}
	if len(events) > 0 {
		d.do(Record{Events: events})
	}
}

// listed draws the conclusions a listing allows.
func (d *decider) listed() {
	var events []journal.Event
	for _, n := range d.nodes {
		if n.Machine == nil || n.Phase.Ended() {
			continue
		}
		if m := d.Seen.machine(n); m != nil && m.Alive() && m.Machine != nil {
			if addressed, news := address(*n.Machine, *m.Machine); news {
				events = append(events, journal.NewEvent(journal.NodeAddressed, n.Name, 0, journal.MachineCreated{Machine: addressed}))
			}
		}
		gone, why := d.gone(n)
		if !gone {
			continue
		}
		if n.Role == providers.Head && d.Mode == ModeHead {
			d.out.Fenced = n.Phase != journal.PhaseDeleting
			continue
		}
		if n.Phase == journal.PhaseJoined && d.training[n.Name] && d.World && !d.State.Drained {
			// The world knows what its members are doing; it gives the rank away and reports the node lost. Should it not, what is gone is gone.
			tell := TellGone{Node: n.Name, Evidence: why}
			if b := d.Failed[tell.Key()]; b.Count < toldOften || b.NotBefore > d.Now {
				d.do(tell)
				continue
			}
		}
		if n.Phase != journal.PhaseDeleting && n.Phase != journal.PhaseLost {
			if n.Phase == journal.PhaseJoined && d.World {
				d.do(TellGone{Node: n.Name, Evidence: why})
			}
			events = append(events, journal.NewEvent(journal.NodeLost, n.Name, 0, journal.Lost{Cause: why, Evidence: true}))
		}
		events = append(events, journal.NewEvent(journal.NodeDeleted, n.Name, 0, journal.Deleted{Reason: why}))
	}
	if len(events) > 0 {
		d.do(Record{Events: events})
	}
}

// address takes over from a listing where the machine is reached. The rest stays as the create call said it: a listing may not know prices.
func address(known, listed providers.Machine) (providers.Machine, bool) {
	m := known
	if m.Address == "" {
		m.Address = listed.Address
	}
	if m.ClusterAddress == "" {
		m.ClusterAddress = listed.ClusterAddress
	}
	return m, m.Address != known.Address || m.ClusterAddress != known.ClusterAddress
}

// gone tells whether listings prove that the node's machine bills no more: one shows it terminated, or two, a consistency
// window apart and the later one a window after its creation, do not show it at all.
func (d *decider) gone(n *journal.Node) (bool, string) {
	if n.Machine == nil {
		return false, ""
	}
	if m := d.Seen.machine(n); m != nil {
		return !m.Alive(), cmp.Or(m.Reason, "the provider lists it as terminated")
	}
	since, ok := d.Seen.Absent[n.Name]
	return ok && d.Seen.At >= max(since, n.CreatedAt.Duration())+d.info().ConsistencyWindow, "the provider lists it no more"
}

// strays deletes machines that calls of this run have left and no node stands for: a call that failed half-way, an effect that
// came late. A machine with the run's tag that no call of the journal accounts for stays until the run is over.
func (d *decider) strays() {
	if left := d.Seen.leftovers(d.State); len(left) > 0 {
		var ours []providers.Resource
		for _, r := range left {
			if r.Kind == providers.KindMachine && r.Machine != nil && issued(d.State, r.Machine.Token) {
				ours = append(ours, r)
			}
		}
		if len(ours) > 0 {
			d.do(Sweep{Resources: ours})
			d.wake(d.Seen.At + listLatest)
		}
	}
}

// issued tells whether the token is one of the run's create calls. A head that was refused leaves no node behind, but its number is below that of the next.
func issued(s *journal.State, token string) bool {
	for _, n := range s.Nodes {
		if n.Intent.Token == token {
			return true
		}
	}
	rest, ok := strings.CutPrefix(token, tokenPrefix(s))
	return ok && strings.HasPrefix(rest, "h") && s.Head() != nil
}
