package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

// DownOptions say how to end a run.
type DownOptions struct {
	Options
	// Job says which providers to look with where there is no state folder, with their blocks; nil: all of Options.Providers, without blocks.
	Job *Job
	// Text says who ordered it, for the journal. Empty: "ended by launcher down".
	Text string
	// Timeout bounds all of it [20 min].
	Timeout time.Duration
}

// DownResult is what Down found and did.
type DownResult struct {
	Run string `json:"run"`
	// Found are the resources that lived when Down first looked, Deleted the ids of those of them that are seen gone.
	Found   []providers.Resource `json:"found"`
	Deleted []string             `json:"deleted"`
	// Left are the ids that may still bill.
	Left []string `json:"left,omitempty"`
	// NotLookedAt names providers without valid credentials.
	NotLookedAt []NotLookedAt `json:"not_looked_at,omitempty"`
	// Result is that of the run, where the state folder has it.
	Result *Result `json:"result,omitempty"`
}

// NotLookedAt is a provider that could not be asked.
type NotLookedAt struct {
	Provider string `json:"provider"`
	Why      string `json:"why"`
}

// UnfinishedError: something of the run may still bill. The exit code is ExitTeardownUnfinished.
type UnfinishedError struct {
	Run  string
	Left []string
	// Command finishes it.
	Command string
	Err     error
}

func (e *UnfinishedError) Error() string {
	text := fmt.Sprintf("teardown of run %s is not finished", e.Run)
	if len(e.Left) > 0 {
		text += ": " + strings.Join(e.Left, ", ") + " may still bill"
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *UnfinishedError) Unwrap() error { return e.Err }

const (
	// downTimeout bounds Down where the options do not.
	downTimeout = 20 * time.Minute
	// downPatience is how long Down waits for a head that does not answer before it fences it.
	downPatience = 30 * time.Second
)

// Down ends a run, looks again, and says what it found. With the state folder it goes through whoever supervises the run, and fences a head that does not
// answer for 30 s; without, it fences at once and deletes by tag. A run nobody knows is no error, after looking.
// Error: *UnfinishedError, beside which the DownResult is never nil.
func Down(ctx context.Context, run string, opts DownOptions) (*DownResult, error) {
	f, err := opts.folder(run)
	if err != nil {
		return nil, err
	}
	if opts.Timeout <= 0 {
		opts.Timeout = downTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, opts.Timeout)
	defer cancel()
	if f.exists() {
		return downHere(ctx, f, opts)
	}
	return downByTag(ctx, run, opts)
}

// downHere ends a run of this state folder.
func downHere(ctx context.Context, f folder, opts DownOptions) (*DownResult, error) {
	r := &DownResult{Run: f.run}
	unfinished := func(err error) error {
		return &UnfinishedError{Run: f.run, Left: r.Left, Command: downCommand(f.run), Err: err}
	}
	events, err := journal.ReadFile(f.journal())
	if err != nil {
		return r, unfinished(err)
	}
	s, err := journal.Fold(events)
	if err != nil {
		return r, unfinished(err)
	}
	if s.Planned != nil {
		// Also for a run that was seen clean: `down` returns 0 only after it has looked.
		if r.Found, err = lookOnce(ctx, s, opts.Options); err != nil {
			r.Left = livingNodes(s)
			return r, unfinished(err)
		}
	}
	if s.Clean != nil || s.Planned == nil {
		if r.Result, err = ReadResult(f.run, opts.Options); err != nil {
			r.Result = resultOf(s, endingOver, nil)
		}
		if len(r.Found) == 0 {
			return r, nil
		}
		return sweepRun(ctx, s, opts, r)
	}
	job, err := jobOf(s)
	if err != nil {
		return r, unfinished(err)
	}
	opts.ending = true
	b, err := open(ctx, f, opts.Options)
	if err != nil {
		r.Left = livingNodes(s)
		return r, unfinished(err)
	}
	h := newHandle(opts.Options, f, job, b, downPatience)
	text := opts.Text
	if text == "" {
		text = "ended by launcher down"
	}
	asking, cancel := context.WithTimeout(ctx, 2*downPatience)
	err = h.Stop(asking, journal.Stopping{Cause: journal.CauseDown, Text: text})
	cancel()
	if err != nil && !errors.Is(err, errOver) && ctx.Err() == nil {
		opts.log().Info("stop not acknowledged yet", "run", f.run, "error", err) // the fence comes for a head that does not answer
	}
	r.Result, err = h.Wait(ctx)
	if r.Result == nil {
		r.Result = h.Leave()
	}
	r.Left = r.Result.Left
	r.Deleted = gone(r.Found, r.Left)
	if !r.Result.Clean {
		return r, unfinished(err)
	}
	return r, nil
}

// lookOnce lists what lives of a run of this state folder.
func lookOnce(ctx context.Context, s *State, opts Options) ([]providers.Resource, error) {
	p, err := opts.provider(s.Planned.Provider)
	if err != nil {
		return nil, err
	}
	resources, err := providers.Retry(p, providers.RetryOptions{}).List(ctx, providers.Filter{Config: s.Planned.Config, Run: s.Run})
	return living(resources), err
}

// sweepRun deletes what lives of a run whose journal says that nothing does.
func sweepRun(ctx context.Context, s *State, opts DownOptions, r *DownResult) (*DownResult, error) {
	p, err := opts.provider(s.Planned.Provider)
	if err == nil {
		err = sweepProvider(ctx, p, json.RawMessage(s.Planned.Config), r)
	}
	if err != nil || len(r.Left) > 0 {
		return r, &UnfinishedError{Run: s.Run, Left: r.Left, Command: downCommand(s.Run), Err: err}
	}
	return r, nil
}

func gone(found []providers.Resource, left []string) []string {
	return slices.DeleteFunc(ids(found), func(id string) bool { return slices.Contains(left, id) })
}

// place is a provider to look with, and the block to look by.
type place struct {
	name     string
	provider providers.Provider
	config   json.RawMessage
}

// places are the providers to look with where nothing says which one a run is on.
func (o Options) places(job *Job) ([]place, error) {
	var places []place
	if job != nil {
		for _, b := range job.Providers {
			p, err := o.provider(b.Name)
			if err != nil {
				return nil, err
			}
			places = append(places, place{b.Name, p, json.RawMessage(b.Config)})
		}
		return places, nil
	}
	all, err := o.providers()
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p, err := o.provider(name)
		if err != nil {
			return nil, err
		}
		places = append(places, place{name: name, provider: p})
	}
	return places, nil
}

// downByTag ends a run that only its tags tell of: every head is deleted and seen terminated first, then the rest goes.
func downByTag(ctx context.Context, run string, opts DownOptions) (*DownResult, error) {
	r := &DownResult{Run: run}
	command := downCommand(run)
	if opts.Job != nil {
		command += " --job " + opts.Job.File
	}
	places, err := opts.places(opts.Job)
	if err != nil {
		return r, &UnfinishedError{Run: run, Command: command, Err: err}
	}
	results, errs := make([]*DownResult, len(places)), make([]error, len(places))
	var looking sync.WaitGroup
	for i, p := range places {
		looking.Go(func() {
			results[i] = &DownResult{Run: run}
			errs[i] = sweepProvider(ctx, p.provider, p.config, results[i])
		})
	}
	looking.Wait()
	var failed error
	for i, p := range places {
		if (providers.CodeOf(errs[i]) == providers.Auth || errors.Is(errs[i], errNeedsBlock)) && len(results[i].Found) == 0 {
			r.NotLookedAt = append(r.NotLookedAt, NotLookedAt{Provider: p.name, Why: errs[i].Error()})
			continue
		}
		if errs[i] != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", p.name, errs[i]))
		}
		r.Found, r.Deleted, r.Left = append(r.Found, results[i].Found...), append(r.Deleted, results[i].Deleted...), append(r.Left, results[i].Left...)
	}
	if failed != nil || len(r.Left) > 0 {
		return r, &UnfinishedError{Run: run, Left: r.Left, Command: command, Err: failed}
	}
	return r, nil
}

// errNeedsBlock: a provider cannot be asked without its block of a job file; a list of hosts, say, is nowhere else.
var errNeedsBlock = errors.New("it needs its block of the job file")

// sweepProvider deletes everything with the run's tag, heads first, and adds what it did to r.
func sweepProvider(ctx context.Context, p providers.Provider, config json.RawMessage, r *DownResult) error {
	p = providers.Retry(p, providers.RetryOptions{})
	info, err := p.Info(ctx)
	if err != nil {
		return err
	}
	if config == nil && slices.ContainsFunc(info.Schema, func(a providers.Attribute) bool { return a.Required }) {
		return errNeedsBlock
	}
	s := &sweeper{provider: p, config: config, run: r.Run, window: info.ConsistencyWindow, list: func(ctx context.Context) ([]providers.Resource, error) {
		return p.List(ctx, providers.Filter{Config: config, Run: r.Run})
	}}
	if err = s.until(ctx, heads); err == nil {
		err = s.until(ctx, living)
	}
	r.Found = s.found
	r.Left = ids(s.left)
	r.Deleted = gone(r.Found, r.Left)
	return err
}
