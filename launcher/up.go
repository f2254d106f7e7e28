package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/launcher/planner"
	"github.com/ephemeral-launcher/launcher/providers"
)

const (
	// openTimeout bounds the wait for another process to either serve guests or let go of the journal.
	openTimeout = 10 * time.Second
	// endTimeout bounds what Run waits for after its context has ended, beyond what the job may take to end in order.
	endTimeout = 20 * time.Minute
)

// Run is Up, then Handle.Wait. When ctx ends the run is torn down, as after an interrupt, and its result returned, with ctx's error where that
// took too long.
func Run(ctx context.Context, job *Job, opts Options) (*Result, error) {
	h, err := Up(ctx, job, opts)
	if err != nil {
		return nil, err
	}
	result, err := h.Wait(ctx)
	if result != nil {
		return result, err
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.job.Preemption.Grace+endTimeout)
	defer cancel()
	if serr := h.Stop(ending, journal.Stopping{Cause: journal.CauseInterrupted, Text: err.Error()}); serr == nil || errors.Is(serr, errOver) {
		if result, werr := h.Wait(ending); result != nil {
			return result, werr
		}
	}
	return h.Leave(), err
}

// Up starts a run, or goes on with the one of opts.RunID. It returns when the run is planned and on disk; the rest goes on in the background until Wait returns, or
// Detach or Leave is called: one of them must be. ctx bounds Up alone.
// Errors before anything was rented: *DiagnosticsError, *NoCandidateError (exit 121, or 125 where no provider lacks capacity or credentials), *LivingRunError (exit 125).
func Up(ctx context.Context, job *Job, opts Options) (*Handle, error) {
	run := opts.RunID
	if run == "" {
		run = newRunID(job.Name)
	}
	f, err := opts.folder(run)
	if err != nil {
		return nil, err
	}
	if f.exists() {
		return resume(ctx, f, opts)
	}
	plan, err := Plan(ctx, job, opts)
	if err != nil {
		return nil, err
	}
	if len(plan.Candidates) == 0 {
		return nil, &NoCandidateError{Job: job.Name, Rejected: plan.Rejected, Providers: plan.Providers}
	}
	if opts.RunID != "" {
		if err := refuseLiving(ctx, job, run, opts); err != nil {
			return nil, err
		}
	}
	if _, err := opts.binaries(); err != nil {
		return nil, err
	}
	if _, err := ingress(job, plan.Candidates[0].Info, opts.CallerCIDRs); err != nil {
		return nil, err
	}
	j, err := begin(ctx, f, job, plan, opts)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, journal.ErrLocked) {
		return resume(ctx, f, opts) // another caller with the same id was faster
	}
	if err != nil {
		return nil, err
	}
	o, err := newOwner(opts, f, j)
	if err != nil {
		j.Close()
		return nil, err
	}
	return newHandle(opts, f, o.job, o, 0), nil
}

// begin makes the run's folder and keys and journals its beginning.
func begin(ctx context.Context, f folder, job *Job, plan *PlanResult, opts Options) (*journal.Journal, error) {
	if err := os.MkdirAll(f.path, 0o700); err != nil {
		return nil, fmt.Errorf("make the run's folder: %w", err)
	}
	keys, _, err := f.keys(opts.Door)
	if err != nil {
		return nil, err
	}
	best := plan.Candidates[0]
	planned, err := planned(best, opts)
	if err != nil {
		return nil, err
	}
	created := journal.Created{
		JobName: job.Name, JobFile: job.File, Owner: ownerOf(plan, best.Provider), Version: opts.Version, ClientKey: keys.clientPublic, WorkerKey: keys.workerPublic,
	}
	if created.Job, err = json.Marshal(job); err != nil {
		return nil, fmt.Errorf("encode job: %w", err)
	}
	if job.Workdir != nil {
		home, err := opts.HomeFolder()
		if err != nil {
			return nil, err
		}
		if created.Workdir, err = packWorkdir(ctx, job, home, f.workdir()); err != nil {
			return nil, err
		}
	}
	if err := f.clear(); err != nil {
		return nil, err
	}
	clock, err := f.newClock()
	if err != nil {
		return nil, err
	}
	j, err := journal.Create(ctx, f.path, f.run, created, journal.Options{Clock: clock, Door: opts.Door})
	if err != nil {
		return nil, err
	}
	if err := j.Append(ctx, planned); err != nil {
		j.Close()
		return nil, err
	}
	return j, nil
}

func planned(c planner.Candidate, opts Options) (journal.Event, error) {
	pins, err := opts.pins(c.Provider)
	if err != nil {
		return journal.Event{}, err
	}
	return journal.NewEvent(journal.RunPlanned, "", 0, journal.Planned{
		Provider: c.Provider, Config: json.RawMessage(c.Config), Region: c.Region, Info: c.Info, Plugin: pins, Factor: c.Factor, Head: c.Head, Workers: c.Workers,
	}), nil
}

func ownerOf(plan *PlanResult, provider string) string {
	for _, p := range plan.Providers {
		if p.Name == provider && p.Identity != nil {
			return p.Identity.Owner
		}
	}
	return ""
}

// refuseLiving looks whether the caller's own id is taken by a run whose folder is not here.
func refuseLiving(ctx context.Context, job *Job, run string, opts Options) error {
	for _, block := range job.Providers {
		p, err := opts.provider(block.Name)
		if err != nil {
			continue // the plan said so
		}
		listing, cancel := context.WithTimeout(ctx, planTimeout)
		resources, err := providers.Retry(p, providers.RetryOptions{}).List(listing, providers.Filter{Config: json.RawMessage(block.Config), Run: run})
		cancel()
		if providers.CodeOf(err) == providers.Auth {
			continue
		}
		if err != nil {
			return fmt.Errorf("look for run %s with %s: %w", run, block.Name, err)
		}
		if left := living(resources); len(left) > 0 {
			return &LivingRunError{Run: run, IDs: ids(left), Command: downCommand(run) + " --job " + job.File}
		}
	}
	return nil
}

// Attach finds a run by its id (not a prefix: see FindRun) and follows it; where nobody supervises it, it goes on with it as Up would.
// Error: ErrUnknownRun where this state folder has no such run.
func Attach(ctx context.Context, run string, opts Options) (*Handle, error) {
	f, err := opts.folder(run)
	if err != nil {
		return nil, err
	}
	if !f.exists() {
		return nil, fmt.Errorf("%w: %s", ErrUnknownRun, run)
	}
	return resume(ctx, f, opts)
}

func resume(ctx context.Context, f folder, opts Options) (*Handle, error) {
	b, err := open(ctx, f, opts)
	if err != nil {
		return nil, err
	}
	job, err := jobOf(b.state())
	if err != nil {
		return nil, err
	}
	return newHandle(opts, f, job, b, 0), nil
}

// open takes the run over, or becomes the guest of the process that has it.
func open(ctx context.Context, f folder, opts Options) (body, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	for {
		j, err := f.open(opts.Door)
		if err == nil {
			o, err := resumeOwner(ctx, f, j, opts)
			if err != nil {
				j.Close()
				return nil, err
			}
			return o, nil
		}
		if !errors.Is(err, journal.ErrLocked) {
			return nil, err
		}
		g, gerr := newGuest(ctx, opts, f)
		if gerr == nil {
			return g, nil
		}
		if sleep(ctx, firstRedial/4) != nil { // it is about to serve guests, or about to end
			return nil, fmt.Errorf("reach the process that owns run %s: %w", f.run, gerr)
		}
	}
}

// resumeOwner goes on with a run whose process has ended.
func resumeOwner(ctx context.Context, f folder, j *journal.Journal, opts Options) (*owner, error) {
	s := j.State()
	if s.Clean != nil {
		return finishedOwner(f, j, opts)
	}
	if s.Planned == nil && !opts.ending { // it died between the journal's first two events
		job, err := jobOf(s)
		if err != nil {
			return nil, err
		}
		plan, err := Plan(ctx, job, opts)
		if err != nil {
			return nil, err
		}
		if len(plan.Candidates) == 0 {
			return nil, &NoCandidateError{Job: job.Name, Rejected: plan.Rejected, Providers: plan.Providers}
		}
		planned, err := planned(plan.Candidates[0], opts)
		if err != nil {
			return nil, err
		}
		if err := j.Append(ctx, planned); err != nil {
			return nil, err
		}
	}
	o, err := newOwner(opts, f, j)
	if err != nil {
		return nil, err
	}
	if s.Epoch == 1 && !offered(s) && s.Stopping == nil && !opts.ending {
		// The head may have no secrets yet: they must be there as they were at the start.
		if diags := jobspec.CheckSecrets(o.job, opts.Env); diags.HasErrors() {
			return nil, &DiagnosticsError{Err: diags}
		}
	}
	return o, nil
}

// finishedOwner is an owner that has nothing left to do: it needs neither provider nor binaries.
func finishedOwner(f folder, j *journal.Journal, opts Options) (*owner, error) {
	job, err := jobOf(j.State())
	if err != nil {
		return nil, err
	}
	o := blankOwner(opts, f, j)
	o.job = job
	o.once.Do(func() { close(o.handedOver) })
	o.logs, err = openLogCopy(f.logs())
	return o, err
}
