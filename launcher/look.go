package launcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

const (
	// fenceTimeout bounds deleting a head and seeing it terminated; lookTimeout the wait for a head to delete everything and itself.
	fenceTimeout = 10 * time.Minute
	lookTimeout  = 10 * time.Minute
	// Listings follow each other at a growing pace within these bounds.
	listSoonest = 100 * time.Millisecond
	listLatest  = 10 * time.Second
)

// heads are the living machines with the head's role.
func heads(resources []providers.Resource) []providers.Resource {
	return slices.DeleteFunc(slices.Clone(resources), func(r providers.Resource) bool {
		return !r.Alive() || r.Kind != providers.KindMachine || r.Tags[providers.TagRole] != string(providers.Head)
	})
}

func living(resources []providers.Resource) []providers.Resource {
	return slices.DeleteFunc(slices.Clone(resources), func(r providers.Resource) bool { return !r.Alive() })
}

func ids(resources []providers.Resource) []string {
	var ids []string
	for _, r := range resources {
		ids = append(ids, r.ID)
	}
	slices.Sort(ids)
	return ids
}

// fence ends a head that may still believe that it supervises: its machine is deleted and seen terminated, and only then may this process act. It returns
// errHeadGone then.
func (o *owner) fence(ctx context.Context, why string) error {
	o.log.Warn("fencing the head", "why", why)
	ctx, cancel := context.WithTimeout(ctx, fenceTimeout)
	defer cancel()
	s := sweeper{provider: o.provider, config: o.config, run: o.run, window: o.journal.State().Planned.Info.ConsistencyWindow, door: o.opts.Door, list: o.list}
	if err := s.until(ctx, heads); err != nil {
		return fmt.Errorf("fence the head: %w", err)
	}
	o.mu.Lock()
	o.headGone = true
	o.mu.Unlock()
	return errHeadGone
}

// takeOver makes this process the supervisor after the head was seen terminated, to delete what is left.
func (o *owner) takeOver(ctx context.Context) error {
	s := o.journal.State()
	if s.Finished != nil && o.lost() {
		return nil // the head ended itself in order
	}
	if err := o.inherit(ctx); err != nil {
		return err
	}
	o.orderStop(journal.Stopping{Cause: journal.CauseLauncher, Text: "the head is gone, and what it did last is not known here", Node: journal.HeadName})
	return nil
}

// errGivenUp: looking took too long; what was left is in givenUp.
var errGivenUp = errors.New("given up looking")

// look lists until nothing of the run lives, and records that.
func (o *owner) look(ctx context.Context) error {
	giveUp := time.Now().Add(lookTimeout)
	window := o.journal.State().Planned.Info.ConsistencyWindow
	var emptySince time.Time
	empty := 0
	for pause := listSoonest; ; pause = min(pause*3/2, listLatest) {
		asked := time.Now()
		resources, err := o.list(ctx)
		left := living(resources)
		switch {
		case err != nil:
			empty = 0
			o.log.Info("list", "error", err)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if errors.Is(err, journal.ErrCrashed) {
				return err
			}
		case len(left) > 0:
			empty = 0
		default:
			if empty++; empty == 1 {
				emptySince = asked
			}
			if empty > 1 && asked.Sub(emptySince) >= window || empty == 1 && window == 0 {
				return o.clean(ctx, empty)
			}
		}
		if o.lost() && len(left) > 0 {
			// The head is gone and cannot delete these any more.
			return o.inherit(ctx)
		}
		if time.Now().After(giveUp) {
			o.mu.Lock()
			o.givenUp = ids(left)
			if err != nil {
				o.givenUp = []string{fmt.Sprintf("unknown: %v", err)}
			}
			o.mu.Unlock()
			return errGivenUp
		}
		if empty > 0 {
			pause = max(window-time.Since(emptySince), listSoonest)
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// inherit makes this process the next epoch: what is left must be deleted, and the head that would do it was seen terminated.
func (o *owner) inherit(ctx context.Context) error {
	s := o.journal.State()
	epoch := max(s.Epoch, s.Offered) + 1
	if epoch%2 == 0 {
		epoch++
	}
	return o.journal.Append(ctx, journal.NewEvent(journal.HandoverAccepted, "", 0, journal.Handover{Epoch: epoch}))
}

// clean records what a listing proved: each node deleted, and the run clean.
func (o *owner) clean(ctx context.Context, listings int) error {
	s := o.journal.State()
	for _, n := range s.List("") {
		if n.Phase.Ended() {
			continue
		}
		e := journal.NewEvent(journal.NodeDeleted, n.Name, 0, journal.Deleted{Reason: "the provider lists it no more"})
		if err := o.journal.Append(ctx, e); err != nil && !errors.Is(err, journal.ErrCannotFollow) {
			return err
		}
	}
	s = o.journal.State()
	return o.journal.Append(ctx, journal.NewEvent(journal.RunClean, "", 0,
		journal.Clean{Listings: listings, SpendUSD: s.SpendUSD(journal.At(o.journal.Now()))}))
}

// sweeper deletes by tag.
type sweeper struct {
	provider providers.Provider
	config   []byte
	run      string
	window   time.Duration
	door     *journal.Door
	list     func(context.Context) ([]providers.Resource, error)
	// found is what lived at the first listing.
	found  []providers.Resource
	looked bool
	// left is what the newest listing showed of it.
	left []providers.Resource
}

// until deletes what pick picks from the listings until two of them, a consistency window apart, show none of it.
func (s *sweeper) until(ctx context.Context, pick func([]providers.Resource) []providers.Resource) error {
	var emptySince time.Time
	empty := 0
	var refused error
	for pause := listSoonest; ; pause = min(pause*3/2, listLatest) {
		asked := time.Now()
		resources, err := s.list(ctx)
		if err == nil {
			if !s.looked {
				s.found, s.looked = living(resources), true
			}
			s.left = living(resources)
			picked := pick(resources)
			if len(picked) > 0 {
				empty = 0
				refused = s.delete(ctx, picked)
			} else if empty++; empty == 1 {
				emptySince = asked
			}
			if empty > 1 && asked.Sub(emptySince) >= s.window {
				return nil
			}
		}
		switch code := providers.CodeOf(err); {
		case errors.Is(err, journal.ErrCrashed) || errors.Is(refused, journal.ErrCrashed):
			return journal.ErrCrashed
		case err == nil || code.Retryable() || code == providers.Internal:
		default:
			return err
		}
		if empty > 0 {
			pause = max(s.window-time.Since(emptySince), listSoonest)
		}
		if cause := sleep(ctx, pause); cause != nil {
			return errors.Join(err, refused, cause)
		}
	}
}

func (s *sweeper) delete(ctx context.Context, resources []providers.Resource) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return s.door.Pass(ctx, journal.Effect{Name: "provider.delete", Operand: resources[0].ID}, func() error {
		_, err := s.provider.Delete(ctx, providers.DeleteRequest{Config: s.config, Run: s.run, Resources: resources})
		return err
	})
}
