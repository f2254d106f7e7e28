package supervisor

import (
	"slices"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

// drainMargin is what draining may take beyond grace and the 10 s between SIGTERM and SIGKILL: copying outputs.
const drainMargin = 2 * time.Minute

// teardown is the same decision with want = 0: end the world, say how it ended, delete everything, see it gone.
func (d *decider) teardown() {
	if !d.State.Drained && d.drainable() {
		d.do(Drain{})
		return
	}
	if d.State.Finished == nil {
		d.do(Finish{Result: d.result()})
		return
	}
	d.deleteAll(providers.Worker)
	if d.Mode != ModeHead {
		d.deleteAll(providers.Head)
	}
	if !d.allEnded(providers.Worker) || d.Mode != ModeHead && !d.allEnded(providers.Head) {
		return
	}
	if left := d.remains(); len(left) > 0 {
		d.do(Sweep{Resources: left})
		return
	}
	if d.Mode == ModeHead {
		d.leave()
		return
	}
	if d.State.Clean != nil {
		d.out.Done = true
		return
	}
	if d.Seen.Empty > 0 && d.Seen.At >= d.Seen.EmptySince+d.State.Planned.Info.ConsistencyWindow && d.Seen.EmptySince >= d.State.FinishedAt.Duration() {
		d.do(Record{Events: []journal.Event{journal.NewEvent(journal.RunClean, "", 0,
			journal.Clean{Listings: d.Seen.Empty, SpendUSD: d.State.SpendUSD(journal.At(d.Now))})}})
	}
}

// drainable tells whether there is a world to drain and time left to do so.
func (d *decider) drainable() bool {
	head := d.State.Head()
	if head == nil || head.Phase != journal.PhaseJoined {
		return false
	}
	limit := d.State.StoppingAt.Duration() + d.Job.Preemption.Grace + 10*time.Second + drainMargin
	if limit <= d.Now {
		return false
	}
	d.wake(limit)
	return true
}

func (d *decider) result() journal.Finished {
	now := journal.At(d.Now)
	return journal.Finished{
		Stopping: *d.State.Stopping, SpendUSD: d.State.SpendUSD(now), Preemptions: d.State.Preemptions, Lost: d.State.LostNodes,
		Generations: d.State.Generation.Number, Goodput: d.State.Goodput(now),
	}
}

// deleteAll orders the deletion of all machines of a role in one call.
func (d *decider) deleteAll(role providers.Role) {
	var names []string
	for _, n := range d.State.List(role) {
		if d.deletable(n) {
			names = append(names, n.Name)
		}
	}
	if len(names) > 0 {
		d.out.Actions = append(d.out.Actions, Delete{Nodes: names, Reason: "the run is over"})
	}
}

func (d *decider) allEnded(role providers.Role) bool {
	return !slices.ContainsFunc(d.State.List(role), func(n *journal.Node) bool { return !n.Phase.Ended() })
}

// remains lists what is left of the run besides its nodes. On the head, what the head itself needs stays.
func (d *decider) remains() []providers.Resource {
	left := d.Seen.leftovers(d.State)
	if d.Mode != ModeHead {
		return left
	}
	return slices.DeleteFunc(left, func(r providers.Resource) bool {
		return r.Kind != providers.KindMachine && r.Tags[providers.TagRole] != string(providers.Worker)
	})
}

// leave ends the head: it waits for a client to fetch what the run produced, bounded by hold_results and the budget, and then deletes itself.
func (d *decider) leave() {
	window := d.State.Planned.Info.ConsistencyWindow
	if d.Seen.At < d.State.FinishedAt.Duration() || d.Seen.At < d.lastDeleted()+window {
		return // two listings a window apart: one showed the workers gone, this one confirms it
	}
	if !d.State.Fetched {
		until := d.State.FinishedAt.Duration() + d.Job.Limits.HoldResults
		if budget := d.Job.Limits.BudgetUSD; budget > 0 {
			rate := d.State.USDPerHour()
			left := budget - d.State.SpendUSD(journal.At(d.Now)) - rate*d.Job.Limits.NodeLease.Hours()
			if rate > 0 {
				until = min(until, d.Now+max(0, time.Duration(left/rate*float64(time.Hour))))
			}
		}
		if until > d.Now {
			d.wake(until)
			return
		}
	}
	head := d.State.Head()
	if head.Phase == journal.PhaseDeleting && !d.Busy[Delete{Nodes: []string{head.Name}}.Key()] {
		d.out.Done = true // ordered and accepted: the machine may go at any moment
		return
	}
	d.delete(head, "the run is over")
}

func (d *decider) lastDeleted() time.Duration {
	last := time.Duration(0)
	for _, n := range d.State.List(providers.Worker) {
		last = max(last, n.DeletedAt.Duration())
	}
	return last
}
