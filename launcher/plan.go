package launcher

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
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
	// Error says why the provider could not be asked, and Code whose fault that is.
	Error string         `json:"error,omitempty"`
	Code  providers.Code `json:"code,omitempty"`
}

// planTimeout bounds all questions to one provider.
const planTimeout = time.Minute

// Plan asks the job's providers what they have on offer and ranks it. It rents nothing. Secrets the job names must be set: *DiagnosticsError. A provider
// that cannot be asked is a rejection, not an error; one that a head would need and cannot have is a *DiagnosticsError.
func Plan(ctx context.Context, job *Job, opts Options) (*PlanResult, error) {
	if err := checkSecrets(job, opts.Env); err != nil {
		return nil, err
	}
	if err := checkPortable(job, opts); err != nil {
		return nil, err
	}
	result := &PlanResult{
		Job: job.Name, Egress: job.Network.Egress, BudgetUSD: job.Limits.BudgetUSD, MaxDuration: job.Limits.MaxDuration,
		Providers: make([]PlanProvider, len(job.Providers)),
	}
	sources := make([]planner.Source, len(job.Providers))
	var asking sync.WaitGroup
	for i, block := range job.Providers {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, planTimeout)
			defer cancel()
			var err error
			if result.Providers[i], sources[i], err = ask(ctx, job, block, opts); err != nil {
				result.Providers[i].Error, result.Providers[i].Code, sources[i].Err = err.Error(), providers.CodeOf(err), err.Error()
			}
		})
	}
	asking.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	result.Ranking = planner.Rank(job, sources)
	return result, nil
}

// ask puts all questions to one provider.
func ask(ctx context.Context, job *Job, block jobspec.Provider, opts Options) (PlanProvider, planner.Source, error) {
	asked, source := PlanProvider{Name: block.Name, HeadIdentity: job.HeadFor(block.Name).Identity, WorkerIdentity: job.WorkersFor(block.Name).Identity}, planner.Source{Block: block}
	p, err := opts.provider(block.Name)
	if err != nil {
		return asked, source, err
	}
	p = providers.Retry(p, providers.RetryOptions{})
	if source.Info, err = p.Info(ctx); err != nil {
		return asked, source, err
	}
	asked.LeakBound, asked.LeakBoundDoc = source.Info.LeakBound, source.Info.LeakBoundDoc
	if asked.LeakBound >= 0 {
		asked.LeakBound += job.Limits.NodeLease
	}
	var asking sync.WaitGroup
	headRequest, workersRequest := planner.Requests(job, block)
	var checkErr, headErr, workersErr error
	if check, ok := providers.As[providers.Checker](p); ok && source.Info.Has(providers.CanCheck) {
		asking.Go(func() {
			var id providers.Identity
			if id, checkErr = check.Check(ctx, []byte(block.Config)); checkErr == nil {
				asked.Identity = &id
			}
		})
	}
	asking.Go(func() { source.Head, headErr = p.Offers(ctx, headRequest) })
	asking.Go(func() { source.Workers, workersErr = p.Offers(ctx, workersRequest) })
	asking.Wait()
	if err := cmp.Or(checkErr, headErr, workersErr); err != nil { // one is enough for people: they mostly say the same
		return asked, source, err
	}
	if asked.Identity != nil && len(asked.Identity.Missing) > 0 {
		return asked, source, providers.Errorf(providers.Auth, "check", "the caller may not %s", fmt.Sprint(asked.Identity.Missing))
	}
	return asked, source, nil
}
