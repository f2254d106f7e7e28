package launcher

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// GCRun is a run whose tag something carries, and what GC thinks of it.
type GCRun struct {
	Run       string               `json:"run"`
	Provider  string               `json:"provider"`
	Owner     string               `json:"owner"`
	Resources []providers.Resource `json:"resources"`
	// Dead: no head is listed or its expiry is a lease past, and the youngest resource is older than a start takes. Only such runs may be collected.
	Dead bool   `json:"dead"`
	Why  string `json:"why"`
}

// GCOptions say what to look for.
type GCOptions struct {
	Options
	// Owner, where set, looks for another owner's resources; empty: the caller's own.
	Owner string
	// Job gives the provider blocks to look with; nil: all of Options.Providers, without blocks.
	Job *Job
	// NodeLease and StartTimeout are those of the runs judged [5 min, 20 min]: the margins.
	NodeLease, StartTimeout time.Duration
	// Answers is asked for the head of a run that would be dead: whether it answers at its address. nil: a TCP connection to its SSH server.
	Answers func(ctx context.Context, head providers.Machine) bool
}

const (
	defaultNodeLease    = 5 * time.Minute
	defaultStartTimeout = 20 * time.Minute
	// answerTimeout bounds the question whether a head is there.
	answerTimeout = 5 * time.Second
)

// GC lists what carries launcher's tag by run, and judges which runs are dead. It deletes nothing. Providers that could not be asked are named.
func GC(ctx context.Context, opts GCOptions) ([]GCRun, []NotLookedAt, error) {
	places, err := opts.places(opts.Job)
	if err != nil {
		return nil, nil, err
	}
	if opts.NodeLease <= 0 {
		opts.NodeLease = defaultNodeLease
	}
	if opts.StartTimeout <= 0 {
		opts.StartTimeout = defaultStartTimeout
	}
	if opts.Answers == nil {
		opts.Answers = sshAnswers
	}
	var runs []GCRun
	var skipped []NotLookedAt
	for _, p := range places {
		found, err := gcProvider(ctx, p, opts)
		if err != nil {
			skipped = append(skipped, NotLookedAt{Provider: p.name, Why: err.Error()})
			continue
		}
		runs = append(runs, found...)
	}
	return runs, skipped, nil
}

func gcProvider(ctx context.Context, p place, opts GCOptions) ([]GCRun, error) {
	asked := providers.Retry(p.provider, providers.RetryOptions{})
	owner := opts.Owner
	if owner == "" {
		check, ok := providers.As[providers.Checker](asked)
		if !ok {
			return nil, fmt.Errorf("it cannot tell who the caller is; name an owner")
		}
		id, err := check.Check(ctx, p.config)
		if err != nil {
			return nil, err
		}
		owner = id.Owner
	}
	resources, err := asked.List(ctx, providers.Filter{Config: p.config, Owner: owner})
	if err != nil {
		return nil, err
	}
	byRun := map[string][]providers.Resource{}
	for _, r := range living(resources) {
		byRun[r.Tags[providers.TagRun]] = append(byRun[r.Tags[providers.TagRun]], r)
	}
	var runs []GCRun
	for _, run := range slices.Sorted(maps.Keys(byRun)) {
		g := GCRun{Run: run, Provider: p.name, Owner: owner, Resources: byRun[run]}
		g.Dead, g.Why = judge(g.Resources, time.Now(), opts)
		if head := heads(g.Resources); g.Dead && len(head) > 0 && head[0].Machine != nil {
			asking, cancel := context.WithTimeout(ctx, answerTimeout)
			if opts.Answers(asking, *head[0].Machine) {
				g.Dead, g.Why = false, "its head answers, though its expiry is past"
			}
			cancel()
		}
		runs = append(runs, g)
	}
	return runs, nil
}

// judge tells whether a run is dead, from its tags and the wall clock, with a lease of margin. What cannot be judged is not dead.
func judge(resources []providers.Resource, now time.Time, opts GCOptions) (dead bool, why string) {
	youngest := time.Time{}
	for _, r := range resources {
		if r.CreatedAt.IsZero() {
			return false, "the age of " + r.ID + " is not known"
		}
		if r.CreatedAt.After(youngest) {
			youngest = r.CreatedAt
		}
	}
	if age := now.Sub(youngest); age < opts.StartTimeout+2*opts.NodeLease {
		return false, fmt.Sprintf("its youngest resource is only %v old", age.Round(time.Second))
	}
	head := heads(resources)
	if len(head) == 0 {
		return true, "no head is listed"
	}
	for _, h := range head {
		expires, err := time.Parse(time.RFC3339, h.Tags[providers.TagExpires])
		if err != nil {
			return false, "the expiry of its head cannot be read"
		}
		if now.Before(expires.Add(opts.NodeLease)) {
			return false, "its head's expiry is not a lease past"
		}
	}
	return true, "its head's expiry is more than a lease past"
}

// Collect deletes what a dead run has left, and looks again. Error: *UnfinishedError.
func Collect(ctx context.Context, dead GCRun, opts GCOptions) (*DownResult, error) {
	r := &DownResult{Run: dead.Run}
	if !dead.Dead {
		return r, fmt.Errorf("collect run %s: it is not dead: %s", dead.Run, dead.Why)
	}
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	p, err := opts.provider(dead.Provider)
	if err == nil {
		err = sweepProvider(ctx, p, opts.config(dead.Provider), r)
	}
	if err != nil || len(r.Left) > 0 {
		return r, &UnfinishedError{Run: dead.Run, Left: r.Left, Command: downCommand(dead.Run), Err: err}
	}
	return r, nil
}

// config is the job's block for a provider.
func (o GCOptions) config(name string) json.RawMessage {
	if o.Job != nil {
		for _, b := range o.Job.Providers {
			if b.Name == name {
				return json.RawMessage(b.Config)
			}
		}
	}
	return nil
}

// sshAnswers tries the head's port: whoever accepts there may be a living head.
func sshAnswers(ctx context.Context, head providers.Machine) bool {
	if head.Address == "" {
		return false
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", head.Address)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}
