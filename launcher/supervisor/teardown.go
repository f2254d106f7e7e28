package supervisor

import (
	"slices"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

// interruptedHold bounds how long the head of an interrupted run waits for somebody to fetch what it has: a CI step that was cancelled never does.
const interruptedHold = 5 * time.Minute

// drainMargin is what draining may take beyond grace and the 10 s between SIGTERM and SIGKILL, for copying outputs; at most half
// of the node lease, because the budget's reserve counts no longer.
const drainMargin = 2 * time.Minute

// sweepTries is how often the head orders the deletion of what has no machine of its own. What is there after that may hang
// on the head itself, as a security group of the whole run does, and goes with it or is for the next client that looks.
const sweepTries = 5

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
	if d.Seen.Empty > 0 && d.confirms(d.Seen.EmptySince) {
		d.do(Record{Events: []journal.Event{journal.NewEvent(journal.RunClean, "", 0,
			journal.Clean{Listings: d.Seen.Empty, SpendUSD: d.State.SpendUSD(journal.At(d.Now))})}})
	}
}

// drainable tells whether there is a world to drain and time left to do so.
func (d *decider) drainable() bool {
	head := d.State.Head()
	if head == nil || head.Phase != journal.PhaseJoined || !d.World {
		return false
	}
	limit := d.State.StoppingAt.Duration() + d.Job.Preemption.Grace + 10*time.Second + min(drainMargin, d.Job.Limits.NodeLease/2)
	if limit <= d.Now {
		return false
	}
	d.wake(limit)
	return true
}

func (d *decider) result() journal.Finished {
	now := journal.At(d.Now)
	generations := d.State.Generation.Number
	if d.State.Generation.Phase == journal.GenForming {
		generations-- // it never ran
	}
	return journal.Finished{
		Stopping: *d.State.Stopping, SpendUSD: d.State.SpendUSD(now), Preemptions: d.State.Preemptions, Lost: d.State.LostNodes,
		Generations: generations, Goodput: d.State.Goodput(now),
	}
}

// deleteAll orders the deletion of all machines of a role in one call.
func (d *decider) deleteAll(role providers.Role) {
	var names []string
	for _, n := range d.nodes {
		if n.Role == role && d.deletable(n) {
			names = append(names, n.Name)
		}
	}
	if len(names) > 0 {
		d.out.Actions = append(d.out.Actions, Delete{Nodes: names, Reason: "the run is over"})
	}
}

// remains lists what is left of the run besides its nodes: machines first, and what hangs on them when they are gone. On the head, what the head itself needs stays.
func (d *decider) remains() []providers.Resource {
	left := d.Seen.leftovers(d.State)
	if d.Mode == ModeHead {
		left = slices.DeleteFunc(left, func(r providers.Resource) bool {
			return r.Kind != providers.KindMachine && r.Tags[providers.TagRole] != string(providers.Worker)
		})
	}
	isMachine := func(r providers.Resource) bool { return r.Kind == providers.KindMachine }
	if slices.ContainsFunc(left, isMachine) {
		return slices.DeleteFunc(left, func(r providers.Resource) bool { return !isMachine(r) })
	}
	if d.Mode == ModeHead && len(left) > 0 && d.Failed[Sweep{Resources: left}.Key()].Count >= sweepTries {
		return nil
	}
	return left
}

// confirmed tells, on the head, whether two listings a window apart have shown everything gone but the head.
func (d *decider) confirmed() bool {
	return d.Seen.Alone > 0 && d.confirms(d.Seen.AloneSince) && len(d.remains()) == 0
}

// confirms tells whether the newest listing was asked for a window after the first that showed the same, and shows what came after the run's end.
func (d *decider) confirms(since time.Duration) bool {
	return d.Seen.At >= max(since, d.State.FinishedAt.Duration())+d.info().ConsistencyWindow
}

// leave ends the head: it waits for a client to fetch what the run produced, and then deletes itself.
func (d *decider) leave() {
	if !d.confirmed() || d.held() {
		return
	}
	head, over := d.State.Head(), true
	if head != nil && !head.Phase.Ended() {
		over, _ = d.gone(head)
	}
	if over || d.Accepted[Delete{Nodes: []string{journal.HeadName}}.Key()] {
		d.out.Done = true // ordered and accepted: the machine may go at any moment
		return
	}
	if d.deletable(head) {
		d.out.Actions = append(d.out.Actions, Delete{Nodes: []string{head.Name}, With: d.Seen.leftovers(d.State), Reason: "the run is over"})
	}
}

// held tells whether this head is to stay for somebody to fetch what the run produced: for hold_results, and inside the budget.
func (d *decider) held() bool {
	head := d.State.Head()
	if d.State.Fetched || head == nil || head.Phase == journal.PhaseLost || head.Phase == journal.PhaseDeleting || head.Phase.Ended() {
		return false
	}
	hold := d.Job.Limits.HoldResults
	if d.State.Stopping.Cause == journal.CauseInterrupted {
		hold = min(hold, interruptedHold) // whoever ended it so did not wait, and may never come back
	}
	until := d.State.FinishedAt.Duration() + hold
	if budget := d.Job.Limits.BudgetUSD; budget > 0 {
		left := budget - d.State.SpendUSD(journal.At(d.Now+d.Job.Limits.NodeLease))
		if left <= 0 {
			return false
		}
		if rate := d.State.USDPerHour(); rate > 0 {
			hours := min(left/rate, 24*365)
			until = min(until, d.Now+max(time.Duration(hours*float64(time.Hour)), time.Second))
		}
	}
	if until <= d.Now {
		return false
	}
	d.wake(until)
	return true
}
