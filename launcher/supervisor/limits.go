package supervisor

import (
	"fmt"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

// limits stops the run at its limits, early enough to signal, checkpoint and fetch outputs.
func (d *decider) limits() {
	if why, ok := d.hopeless(); ok {
		d.do(Stop{Why: why})
		return
	}
	if most := d.Job.Limits.MaxDuration; d.Now >= most {
		d.do(Stop{Why: journal.Stopping{Cause: journal.CauseLimit, Text: fmt.Sprintf("max_duration of %v is over", most)}})
		return
	} else {
		d.wake(most)
	}
	if d.State.Generation.Number == 0 {
		if d.Now >= d.Job.Limits.StartTimeout {
			d.do(Stop{Why: d.unstarted()})
			return
		}
		d.wake(d.Job.Limits.StartTimeout)
	}
	d.budget()
}

// budget stops at spent + reserve ≥ budget. The reserve is what the living machines cost while the ranks checkpoint and,
// should everything that controls them die at that moment, until their leases end them.
func (d *decider) budget() {
	budget := d.Job.Limits.BudgetUSD
	if budget == 0 {
		return
	}
	rate := d.State.USDPerHour() + d.pendingUSDPerHour()
	reserve := rate * (d.Job.Preemption.Grace + d.Job.Limits.NodeLease).Hours()
	left := budget - d.State.SpendUSD(journal.At(d.Now)) - reserve
	if left <= 0 {
		d.do(Stop{Why: journal.Stopping{Cause: journal.CauseLimit, Text: fmt.Sprintf("budget_usd of %.2f: %.2f spent, %.2f kept back to end in order", budget, d.State.SpendUSD(journal.At(d.Now)), reserve)}})
		return
	}
	if rate > 0 {
		// Billing steps make spend a staircase: look again early rather than late.
		d.wake(d.Now + max(time.Duration(left/rate*float64(time.Hour))-d.State.Planned.Info.BillingInterval, time.Second))
	}
}

// hopeless finds a refusal that no waiting will cure.
func (d *decider) hopeless() (journal.Stopping, bool) {
	if len(d.State.Refusals) == 0 {
		return journal.Stopping{}, false
	}
	r := d.State.Refusals[len(d.State.Refusals)-1]
	switch r.Code {
	case providers.Auth:
		return journal.Stopping{Cause: journal.CauseCapacity, Text: "the provider refuses the credentials: " + r.Text}, true
	case providers.Invalid, providers.Internal:
		return journal.Stopping{Cause: journal.CauseLauncher, Text: "the provider cannot serve the request: " + r.Text}, true
	}
	return journal.Stopping{}, false
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
