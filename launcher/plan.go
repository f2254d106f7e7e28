package launcher

import (
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/planner"
	"github.com/ephemeral-launcher/launcher/providers"
)

// PlanResult is what a run of the job would rent, and where.
type PlanResult struct {
	Job string `json:"job"`
	planner.Ranking
	// Providers says of each provider block who the caller is there and what bounds a leak.
	Providers []PlanProvider `json:"providers"`
	Egress    string         `json:"egress"`
	// BudgetUSD and MaxDuration are the job's limits; 0: no budget.
	BudgetUSD   float64       `json:"budget_usd,omitempty"`
	MaxDuration time.Duration `json:"max_duration"`
}

// PlanProvider is one provider block of a plan.
type PlanProvider struct {
	Name     string              `json:"name"`
	Identity *providers.Identity `json:"identity,omitempty"`
	// HeadIdentity and WorkerIdentity are what the machines run as; empty: none.
	HeadIdentity   string `json:"head_identity,omitempty"`
	WorkerIdentity string `json:"worker_identity,omitempty"`
	// LeakBound is how long a machine can outlive all that controls it: the node lease and what the provider adds; negative: unbounded.
	LeakBound    time.Duration `json:"leak_bound"`
	LeakBoundDoc string        `json:"leak_bound_doc"`
	// Error says why the provider could not be asked.
	Error string `json:"error,omitempty"`
}
