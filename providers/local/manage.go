package local

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// List returns the machines of the root folder, those that ended within the last day included; see [providers.Provider].
func (p *Provider) List(ctx context.Context, filter providers.Filter) ([]providers.Resource, error) {
	cfg, err := p.parse("list", filter.Config)
	if err != nil {
		return nil, err
	}
	if !inRegions(filter.Regions) {
		return nil, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, ledgerError("list", err)
	}
	records, err := (ledger{cfg.root}).all(ctx)
	if err != nil {
		return nil, ledgerError("list", err)
	}
	var found []providers.Resource
	for _, r := range records {
		if filter.Run != "" && r.Tags[providers.TagRun] != filter.Run {
			continue
		}
		if filter.Owner != "" && r.Tags[providers.TagOwner] != filter.Owner {
			continue
		}
		found = append(found, r.resource())
	}
	return found, nil
}

// Delete ends machines; see [providers.Provider]. It returns when their processes, ports and folders are gone.
func (p *Provider) Delete(ctx context.Context, req providers.DeleteRequest) ([]providers.Resource, error) {
	cfg, err := p.parse("delete", req.Config)
	if err != nil {
		return nil, err
	}
	if req.Run == "" {
		return nil, providers.Errorf(providers.Invalid, "delete", "no run")
	}
	if err := ctx.Err(); err != nil {
		return nil, ledgerError("delete", err)
	}
	l := ledger{cfg.root}
	var targets []record
	for _, r := range req.Resources {
		if r.Kind != "" && r.Kind != providers.KindMachine {
			return nil, providers.Errorf(providers.Invalid, "delete", "%s %s: there are only machines", r.Kind, r.ID)
		}
		rec, state, err := l.find(r.ID)
		if err != nil {
			return nil, ledgerError("delete", err)
		}
		if state == absent {
			continue
		}
		if rec.Tags[providers.TagRun] != req.Run {
			return nil, providers.Errorf(providers.Invalid, "delete", "machine %s belongs to run %q, not %q", r.ID, rec.Tags[providers.TagRun], req.Run)
		}
		if state == present {
			targets = append(targets, rec)
		}
	}

	// All at once: each takes a few milliseconds, or the patience that a hung one needs.
	errs := make([]error, len(targets))
	slots := make(chan struct{}, 16)
	var wg sync.WaitGroup
	for i, rec := range targets {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = end(ctx, l, rec, p.patience)
		})
	}
	wg.Wait()
	var left []providers.Resource
	for i, rec := range targets {
		if errs[i] != nil {
			left = append(left, rec.resource())
		}
	}
	if ctx.Err() != nil {
		return left, ledgerError("delete", ctx.Err())
	}
	return left, nil
}

// deletePatience is how long a hypervisor may take to end its machine before it is ended by signals.
const deletePatience = 5 * time.Second

// end ends one machine: by its hypervisor; if that does not answer, by signals; and clears away what is left.
func end(ctx context.Context, l ledger, rec record, patience time.Duration) error {
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := call(patient, l.dir(rec.ID), request{Op: opDelete}, nil)
	if err == nil && r.Error == "" {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if !errors.Is(err, errDead) {
		// Its words are newer than ours: it may have started its guest since.
		if now, ok, err := l.read(rec.ID); err == nil && ok {
			rec = now
		}
		rec.Outer.kill()
		rec.Init.kill()
	}
	// Nothing reports the release of a lock, and the dying are not our children.
	deadline := time.Now().Add(sweepTimeout)
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		alive, err := l.alive(rec.ID)
		if err != nil {
			return err
		}
		if !alive {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("machine %s does not end", rec.ID)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
	return l.buryAll(ctx, []string{rec.ID})
}

// presence is what the ledger has of a machine.
type presence int

const (
	absent  presence = iota
	present          // it has a folder, and may have processes
	past             // only its record is left
)

func (l ledger) find(id string) (record, presence, error) {
	if !validID(id) {
		return record{}, absent, nil
	}
	rec, ok, err := l.read(id)
	if ok || err != nil {
		return rec, present, err
	}
	rec, ok, err = readRecord(l.tombstone(id))
	if ok {
		return rec, past, err
	}
	return record{}, absent, err
}

// validID keeps ids that are not ours from becoming paths.
func validID(id string) bool {
	if len(id) != len("m-")+12 || id[:2] != "m-" {
		return false
	}
	for _, c := range id[2:] {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Update changes a machine's tags. Ingress has no meaning here: everybody who can reach the loopback interface is this computer.
func (p *Provider) Update(ctx context.Context, req providers.UpdateRequest) error {
	return p.ask(ctx, "update", req.Config, req.Run, req.Machine, request{Op: opTag, Tags: req.Tags})
}

// Preempt announces the preemption of a machine and carries it out after the notice; a negative notice means the provider
// block's. The share `silent` of the machines, chosen by their ids, is not told.
func (p *Provider) Preempt(ctx context.Context, req providers.PreemptRequest) error {
	return p.ask(ctx, "preempt", req.Config, req.Run, req.Machine, request{Op: opPreempt, Notice: req.Notice})
}

// ask sends a request to one living machine of the run.
func (p *Provider) ask(ctx context.Context, op string, config []byte, run, id string, req request) error {
	cfg, err := p.parse(op, config)
	if err != nil {
		return err
	}
	l := ledger{cfg.root}
	rec, state, err := l.find(id)
	switch {
	case err != nil:
		return ledgerError(op, err)
	case state != present || rec.Tags[providers.TagRun] != run:
		return providers.Errorf(providers.NotFound, op, "run %q has no machine %s", run, id)
	}
	for name, value := range req.Tags {
		if name == providers.TagRun && value != run {
			return providers.Errorf(providers.Invalid, op, "the run of machine %s cannot change", id)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return ledgerError(op, err)
	}
	r, err := call(ctx, l.dir(id), req, nil)
	if err == nil {
		err = r.err()
	}
	if refusal, ok := errors.AsType[*providers.Error](err); ok {
		refusal.Op = op
		return refusal
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errDead):
		return providers.Errorf(providers.NotFound, op, "machine %s: %w", id, err)
	}
	return providers.Errorf(providers.Unavailable, op, "machine %s: %w", id, err)
}

// askTimeout bounds a request that changes a living machine.
const askTimeout = 10 * time.Second
