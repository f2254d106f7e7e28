package supervisor

import (
	"fmt"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

// limits stops the run where it cannot go on, and at its limits: early enough to signal, checkpoint and fetch outputs.
func (d *decider) limits() {
	if head := d.State.Head(); head != nil && (head.Phase == journal.PhaseLost || head.Phase == journal.PhaseDeleting || head.Phase == journal.PhaseDeleted) {
		// It cannot be replaced from its own machine, and in the client what it held of the run is lost with it.
		d.stop(journal.Stopping{Cause: journal.CauseLauncher, Node: head.Name, Text: "the head is gone: " + head.Reason})
		return
	}
	d.setup()
	d.hopeless()
	if most := d.Job.Limits.MaxDuration; most > 0 {
		if d.Now >= most {
			d.stop(journal.Stopping{Cause: journal.CauseLimit, Text: fmt.Sprintf("max_duration of %v is over", most)})
		}
		d.wake(most)
	}
	if !d.started() {
		if d.Now >= d.Job.Limits.StartTimeout {
			d.stop(d.unstarted())
		}
		d.wake(d.Job.Limits.StartTimeout)
	}
	d.budget()
}

// started tells whether a generation has ever formed.
func (d *decider) started() bool {
	g := d.State.Generation
	return g.Number > 1 || g.Number == 1 && g.Phase != journal.GenForming
}

// setup stops the run when the job's setup is at fault and not the node it failed on: it failed on two nodes and never worked
// anywhere, or it failed on a slot's node and on the next one in that slot.
func (d *decider) setup() {
	failed := map[string]bool{}
	for _, f := range d.State.SetupFailures {
		failed[f.Node] = true
	}
	if len(failed) < 2 {
		return
	}
	worked := false
	for _, n := range d.workers {
		worked = worked || n.JoinedAt >= 0
	}
	last := d.State.SetupFailures[len(d.State.SetupFailures)-1]
	why := journal.Stopping{Cause: journal.CauseSetup, Node: last.Node, Exit: &last.Exit, Text: "setup failed on " + last.Node + " and others before"}
	if !worked {
		d.stop(why)
		return
	}
	for _, nodes := range d.bySlot {
		row := 0
		for _, n := range nodes {
			switch {
			case failed[n.Name]:
				row++
			case n.JoinedAt >= 0:
				row = 0
			}
		}
		if row > 1 {
			d.stop(why)
			return
		}
	}
}

// reserve is the time a run is given to end in order, and, should all that controls it die at that moment, until its leases end it.
func (d *decider) reserve() time.Duration { return d.Job.Preemption.Grace + d.Job.Limits.NodeLease }

// left is what of the budget would be left if the run were ended now.
func (d *decider) left() float64 {
	return d.Job.Limits.BudgetUSD - d.State.SpendUSD(journal.At(d.Now+d.reserve()))
}

// billed rounds a time up to what the provider bills.
func (d *decider) billed(t time.Duration) time.Duration {
	if step := d.info().BillingInterval; step > 0 {
		return (t + step - 1) / step * step
	}
	return t
}

// dollars keeps apart the fractions of a cent that small budgets are made of.
func dollars(usd float64) string {
	if usd < 1 {
		return fmt.Sprintf("$%.4f", usd)
	}
	return fmt.Sprintf("$%.2f", usd)
}

// budget stops at spent + reserve ≥ budget.
func (d *decider) budget() {
	budget := d.Job.Limits.BudgetUSD
	if budget == 0 || d.ends {
		return
	}
	left, rate := d.left(), d.State.USDPerHour()
	if left <= 0 {
		spent := d.State.SpendUSD(journal.At(d.Now))
		d.stop(journal.Stopping{Cause: journal.CauseLimit, Text: fmt.Sprintf("budget_usd of %s: %s spent, %s kept back to end in order", dollars(budget), dollars(spent), dollars(budget-left-spent))})
		return
	}
	if rate > 0 {
		// Billing steps make spend a staircase, so this may be late; but listings come several times in a node lease, and left looks ahead for a whole one.
		hours := min(left/rate, 24*365)
		d.wake(d.Now + max(time.Duration(hours*float64(time.Hour)), time.Second))
	}
}

// hopeless stops the run at a refusal that no waiting will cure. Once a generation has run the world decides how long it can do
// without: a credential that ran out must not end a training that is one replacement short.
func (d *decider) hopeless() {
	if len(d.State.Refusals) == 0 || d.started() {
		return
	}
	r := d.State.Refusals[len(d.State.Refusals)-1]
	switch r.Code {
	case providers.Auth:
		d.stop(journal.Stopping{Cause: journal.CauseCapacity, Text: "the provider refuses the credentials: " + r.Text})
	case providers.Invalid, providers.Internal, providers.NotFound:
		d.stop(journal.Stopping{Cause: journal.CauseLauncher, Text: "the provider cannot serve the request: " + r.Text})
	}
}

// unstarted says why no generation has formed within start_timeout.
func (d *decider) unstarted() journal.Stopping {
	text := fmt.Sprintf("no generation within start_timeout of %v", d.Job.Limits.StartTimeout)
	if k := len(d.State.Refusals); k > 0 {
		switch r := d.State.Refusals[k-1]; r.Code {
		case providers.Capacity, providers.Quota, providers.Auth:
			return journal.Stopping{Cause: journal.CauseCapacity, Text: fmt.Sprintf("%s; the last refusal: %s: %s", text, r.Code, r.Text)}
		}
	}
	return journal.Stopping{Cause: journal.CauseTooFew, Text: text}
}
