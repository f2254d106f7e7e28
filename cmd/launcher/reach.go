package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// syncTimeout bounds how long a command that shows once waits for a head.
const syncTimeout = 15 * time.Second

// headHasIt tells whether a run's journal goes on at its head, so that the copy here may be behind. Otherwise the copy is the journal.
func headHasIt(s *journal.State) bool {
	return s.Clean == nil && (s.Epoch%2 == 0 || s.Offered > s.Epoch)
}

// present is the run's state as far as it can be known now: of a run that its head supervises, what the head says.
// When the head does not answer, what is here is still told, and why it may be old on stderr.
func (a *app) present(ctx context.Context, run string, opts launcher.Options) (*journal.State, error) {
	events, err := launcher.ReadEvents(run, opts)
	if err != nil {
		return nil, err
	}
	state, err := journal.Fold(events)
	if err != nil || !headHasIt(state) {
		return state, err
	}
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	opts.OnlyNew = true
	h, err := launcher.Attach(ctx, run, opts)
	if err == nil {
		defer h.Leave()
		if err = h.Sync(ctx); err == nil {
			return h.State(), nil
		}
	}
	if h != nil {
		state = h.State()
	}
	a.ui.notef("launcher: the head of %s does not answer; this is as of %s: %v", run, state.Began.Add(state.At.Duration()).Format(time.DateTime), err)
	return state, nil
}

// reach follows a living run for an order. leave must be called. A run that is supervised in a client which is gone is refused: an order is no
// reason to take a run over.
func (a *app) reach(ctx context.Context, run string, opts launcher.Options) (*launcher.Handle, error) {
	if result, err := stored(run, opts); err != nil || result != nil {
		return nil, errors.Join(err, fmt.Errorf("run %s is over", run))
	}
	opts.OnlyNew = true
	h, err := launcher.Attach(ctx, run, opts)
	if err != nil {
		return nil, err
	}
	if h.Owner() && needs(h) && !headHasIt(h.State()) {
		h.Leave()
		return nil, &hinted{
			err:   fmt.Errorf("nobody supervises run %s: the process that did is gone", run),
			hints: []string{"launcher attach " + run, "launcher down " + run},
		}
	}
	return h, nil
}

// orderRun is what exec, ssh, scale and preempt share: find the run, reach it, do something, leave.
func (a *app) orderRun(ctx context.Context, names []string, do func(context.Context, *launcher.Handle) error) error {
	opts, err := a.options()
	if err != nil {
		return err
	}
	run, err := a.findRun(names, opts)
	if err != nil {
		return err
	}
	h, err := a.reach(ctx, run, opts)
	if err != nil {
		return err
	}
	defer h.Leave()
	return do(ctx, h)
}
