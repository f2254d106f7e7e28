package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// Entry is a span of time for which a resource was billed at one price.
type Entry struct {
	Resource string         `json:"resource"`
	Kind     string         `json:"kind"`
	Run      string         `json:"run"`
	Owner    string         `json:"owner"`
	Role     providers.Role `json:"role"`
	Token    string         `json:"token"`
	From     time.Time      `json:"from"`
	// To is zero while it goes on.
	To         time.Time `json:"to,omitzero"`
	USDPerHour float64   `json:"usd_per_hour"`
}

// Ledger is what the cloud billed, in order of From. Nothing is ever removed from it.
type Ledger []Entry

// Ledger returns a copy of the ledger as of now.
func (c *Cloud) Ledger() Ledger {
	c.enter()
	defer c.leave()
	return slices.Clone(Ledger(c.ledger))
}

// bill opens an entry for the resource. mu is held.
func (c *Cloud) bill(r *resource, usdPerHour float64, from time.Time) {
	e := Entry{
		Resource: r.ID, Kind: r.Kind, From: from, USDPerHour: usdPerHour,
		Run: r.Tags[providers.TagRun], Owner: r.Tags[providers.TagOwner], Role: providers.Role(r.Tags[providers.TagRole]),
	}
	if r.Machine != nil {
		e.Token = r.Machine.Token
	} else if r.machine != nil {
		e.Token = r.machine.Machine.Token
	}
	r.entry = len(c.ledger)
	c.ledger = append(c.ledger, e)
}

// Report is what an auditor finds in a ledger.
type Report struct {
	SpendUSD float64
	// Untagged are resources without a run or without an owner, past ones included.
	Untagged []Entry
	// Runs are sorted by run.
	Runs []RunReport
}

// RunReport is what an auditor finds about one run.
type RunReport struct {
	Run      string
	SpendUSD float64
	// Billing is what still costs money, Residue what is still there and costs nothing.
	Billing []Entry
	Residue []Entry
	// Peak is the largest number of machines alive at one instant, by role.
	Peak map[providers.Role]int
	// Machines is how many there have been, by role.
	Machines map[providers.Role]int
}

// Run returns the report of one run; an unknown one has an empty report.
func (r Report) Run(run string) RunReport {
	for _, rr := range r.Runs {
		if rr.Run == run {
			return rr
		}
	}
	return RunReport{Run: run}
}

// Audit judges a ledger at the time now. It knows nothing but the ledger, so it shares no mistake with what it judges.
func Audit(ledger Ledger, now time.Time) Report {
	var report Report
	byRun := map[string]*RunReport{}
	var runs []string
	for _, e := range ledger {
		if e.Run == "" || e.Owner == "" {
			report.Untagged = append(report.Untagged, e)
		}
		rr := byRun[e.Run]
		if rr == nil {
			rr = &RunReport{Run: e.Run}
			byRun[e.Run] = rr
			runs = append(runs, e.Run)
		}
		usd := e.USD(now)
		report.SpendUSD += usd
		rr.SpendUSD += usd
		if e.To.IsZero() || e.To.After(now) {
			if e.USDPerHour > 0 || e.Kind == providers.KindMachine {
				rr.Billing = append(rr.Billing, e)
			} else {
				rr.Residue = append(rr.Residue, e)
			}
		}
	}
	slices.Sort(runs)
	for _, run := range runs {
		rr := byRun[run]
		rr.Peak, rr.Machines = census(ledger, run)
		report.Runs = append(report.Runs, *rr)
	}
	return report
}

// USD is what the entry costs until now.
func (e Entry) USD(now time.Time) float64 {
	to := e.To
	if to.IsZero() || to.After(now) {
		to = now
	}
	return max(0, to.Sub(e.From).Hours()) * e.USDPerHour
}

// census counts the machines of a run.
func census(ledger Ledger, run string) (peak, total map[providers.Role]int) {
	type step struct {
		at    time.Time
		role  providers.Role
		delta int
	}
	var steps []step
	seen := map[string]bool{}
	peak, total = map[providers.Role]int{}, map[providers.Role]int{}
	for _, e := range ledger {
		if e.Run != run || e.Kind != providers.KindMachine {
			continue
		}
		if !seen[e.Resource] {
			seen[e.Resource] = true
			total[e.Role]++
		}
		steps = append(steps, step{e.From, e.Role, 1})
		if !e.To.IsZero() {
			steps = append(steps, step{e.To, e.Role, -1})
		}
	}
	// At one instant ends come before beginnings: a change of price ends one entry of a machine and begins another.
	slices.SortStableFunc(steps, func(a, b step) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.delta, b.delta))
	})
	alive := map[providers.Role]int{}
	for _, s := range steps {
		alive[s.role] += s.delta
		peak[s.role] = max(peak[s.role], alive[s.role])
	}
	return peak, total
}
