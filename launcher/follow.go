package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

const (
	// drainMargin is what ending a run may take the head beyond grace and the 10 s between SIGTERM and SIGKILL: copying outputs, deleting.
	drainMargin = 3 * time.Minute
	// listEvery is how often the provider is asked for a head that does not answer, after a beginning at listSoonest.
	listEvery = 15 * time.Second
)

// follow copies what the head does until the run is over and everything is here: over as many connections as it takes, for as long as the head lives.
// errHeadGone: the provider shows it terminated, or it was fenced.
func (o *owner) follow(ctx context.Context) error {
	watching, stopWatching := context.WithCancelCause(ctx)
	defer stopWatching(nil)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stopWatching(nil)
	beside.Go(func() {
		if err := o.watchHead(watching); err != nil {
			stopWatching(err)
		}
	})
	for pause := firstRedial; ; pause = min(2*pause, lastRedial) {
		c, err := o.takeConnection(), error(nil)
		if c == nil {
			c, err = o.connect(watching)
		}
		if err == nil {
			began := time.Now()
			err = o.session(watching, c)
			o.setConnection(nil)
			c.Close()
			if err == nil {
				return nil
			}
			if time.Since(began) > lastRedial {
				pause = firstRedial
			}
		}
		if cause := context.Cause(watching); cause != nil {
			return cause
		}
		if errors.Is(err, errHeadGone) || permanent(err) {
			return err
		}
		o.log.Info("connection to the head ended", "error", err)
		if cause := sleep(watching, pause); cause != nil {
			return cause
		}
	}
}

// watchHead looks for evidence that the head is gone while it does not answer, and fences it where patience is over. It returns errHeadGone, or when ctx ends.
func (o *owner) watchHead(ctx context.Context) error {
	var silent time.Time // since when there has been no connection
	var absent int
	pause := listSoonest
	events, last := o.journal.State().Events, time.Now()
	for {
		o.mu.Lock()
		connected, changed, told := o.connection != nil, o.connected, o.told
		o.mu.Unlock()
		wait := listEvery
		if n := o.journal.State().Events; n != events {
			events, last = n, time.Now()
		}
		switch {
		case connected:
			silent, absent, pause = time.Time{}, 0, listSoonest
			stuck := o.job.Preemption.Grace + 10*time.Second + drainMargin
			if o.patience > 0 && told && time.Since(last) > stuck {
				return o.fence(ctx, "it did nothing for "+stuck.String()+" after the order to stop")
			}
		case silent.IsZero():
			silent = time.Now()
			continue // a dropped connection triggers a listing at once
		default:
			if o.patience > 0 && time.Since(silent) >= o.patience {
				return o.fence(ctx, "it has been unreachable for "+o.patience.String())
			}
			wait, pause = pause, min(2*pause, listEvery)
			if o.patience > 0 {
				wait = min(wait, o.patience-time.Since(silent))
			}
			alive, err := o.headAlive(ctx)
			switch {
			case errors.Is(err, journal.ErrCrashed):
				return err
			case err != nil:
				o.log.Info("list", "error", err)
			case alive:
				absent = 0
			default:
				// Absent may be the listing's delay: once more, a consistency window later.
				if absent++; absent > 1 {
					o.mu.Lock()
					o.headGone = true
					o.mu.Unlock()
					return errHeadGone
				}
				wait = max(o.journal.State().Planned.Info.ConsistencyWindow, 100*time.Millisecond)
			}
		}
		t := time.NewTimer(wait)
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
		t.Stop()
	}
}

// list asks the provider for everything of the run.
func (o *owner) list(ctx context.Context) ([]providers.Resource, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	f := providers.Filter{Config: o.config, Run: o.run}
	if p := o.journal.State().Planned; p.Region != "" {
		f.Regions = []string{p.Region}
	}
	var resources []providers.Resource
	err := o.opts.Door.Pass(ctx, journal.Effect{Name: "provider.list", Operand: o.run}, func() (err error) {
		resources, err = o.provider.List(ctx, f)
		return err
	})
	return resources, err
}

func (o *owner) headAlive(ctx context.Context) (bool, error) {
	resources, err := o.list(ctx)
	return len(heads(resources)) > 0, err
}

// session uses one connection to a head that supervises or is to. nil: the run is over and everything it left is here.
func (o *owner) session(ctx context.Context, c *connection) error {
	if err := o.adopt(ctx, c); err != nil {
		return err
	}
	o.setConnection(c)
	o.once.Do(func() { close(o.handedOver) })
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	failed := make(chan error, 3)
	beside.Go(func() { failed <- o.copyJournal(ctx, c.api) })
	beside.Go(func() { failed <- o.tellOrders(ctx, c.api) })
	copying, stopCopying := context.WithCancel(ctx)
	defer stopCopying()
	logs := make(chan error, 1)
	beside.Go(func() { logs <- o.logs.follow(copying, c.api, true) })
	for o.journal.State().Finished == nil {
		_, changed := o.journal.Since(1 << 30)
		if o.journal.State().Finished != nil {
			break
		}
		select {
		case <-changed:
		case err := <-failed:
			return err
		case err := <-logs:
			return fmt.Errorf("copy log: %w", cmpErr(err, io.ErrUnexpectedEOF))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	stopCopying()
	<-logs
	if !o.journal.State().Fetched {
		if err := o.fetch(ctx, c.api); err != nil {
			return err
		}
		calling, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		if _, err := c.api.Order(calling, &control.OrderRequest{Body: &control.OrderRequest_Fetched{Fetched: true}}); err != nil {
			return fmt.Errorf("say that all is fetched: %w", err)
		}
	}
	return o.lastEvents(ctx, failed)
}

// lastEvents copies the journal on until the head, or its line, is gone: the deletions in it are what the spend is reckoned from.
func (o *owner) lastEvents(ctx context.Context, failed <-chan error) error {
	for {
		_, changed := o.journal.Since(1 << 30)
		s := o.journal.State()
		if n := s.Head(); s.Fetched && n != nil && n.Phase == journal.PhaseDeleting {
			return nil
		}
		select {
		case <-changed:
		case err := <-failed:
			if o.journal.State().Fetched {
				return nil
			}
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func cmpErr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// adopt asks the head to take over, unless it has. It is repeated on every connection until it is answered.
func (o *owner) adopt(ctx context.Context, c *connection) error {
	calling, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	st, err := c.api.Status(calling, &control.StatusRequest{})
	if err != nil {
		return fmt.Errorf("ask the head: %w", err)
	}
	if st.Adopted && st.Run == o.run {
		return nil
	}
	s := o.journal.State()
	if adopted(s) {
		// It had taken over and knows nothing of it: its machine was started anew and the keys in its memory are lost. It cannot act,
		// and neither may this process while it runs.
		return o.fence(ctx, "its machine was restarted and has lost the run")
	}
	// A head whose program was started anew since has lost them. Nothing is recorded: after the offer this journal is the head's.
	if err := o.uploads(ctx, c); err != nil {
		return err
	}
	setup, err := o.setup(uint64(s.Offered))
	if err != nil {
		return err
	}
	var tokens []string
	for _, n := range s.Nodes {
		if n.HostKey == "" && !n.Phase.Ended() {
			tokens = append(tokens, n.Intent.Token)
		}
	}
	births, err := o.births.All(tokens)
	if err != nil {
		return err
	}
	cidrs, err := ingress(o.job, s.Planned.Info, o.opts.CallerCIDRs)
	if err != nil {
		return err
	}
	config, err := contents(o.config, s.Planned.Info.Schema)
	if err != nil {
		return err
	}
	req := &control.AdoptRequest{
		Setup: setup, ProviderConfigJson: config, Provider: s.Planned.Provider, BirthKeysPem: births, Owner: s.Created.Owner, Tags: o.job.Tags, Ingress: cidrs,
	}
	events, _ := o.journal.Since(0)
	for _, e := range events {
		b, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("encode %s: %w", e.Kind, err)
		}
		req.EventsJson = append(req.EventsJson, b)
	}
	adopting, cancel := context.WithTimeout(ctx, 2*callTimeout)
	defer cancel()
	err = o.opts.Door.Pass(ctx, journal.Effect{Name: "send.adopt", Operand: o.run}, func() error {
		req.AtNs = int64(o.journal.Now())
		_, err := c.api.Adopt(adopting, req)
		return err
	})
	if err != nil {
		return fmt.Errorf("adopt: %w", err)
	}
	return nil
}

// copyJournal appends the head's events to the copy here.
func (o *owner) copyJournal(ctx context.Context, api control.HeadClient) error {
	call, err := api.Follow(ctx, &control.FollowRequest{After: uint64(o.journal.State().Events)})
	if err != nil {
		return fmt.Errorf("follow: %w", err)
	}
	for {
		batch, err := call.Recv()
		if err != nil {
			return fmt.Errorf("follow: %w", err)
		}
		var events []journal.Event
		for _, b := range batch.EventsJson {
			var e journal.Event
			if err := json.Unmarshal(b, &e); err != nil {
				return fmt.Errorf("follow: decode event: %w", err)
			}
			events = append(events, e)
		}
		if err := o.journal.AppendStamped(ctx, events...); err != nil {
			o.fail(fmt.Errorf("copy the head's journal: %w", err))
			return err
		}
	}
}

// tellOrders tells the head what was ordered here.
func (o *owner) tellOrders(ctx context.Context, api control.HeadClient) error {
	for {
		o.mu.Lock()
		stopping, scaled, told, ordered := o.stopping, o.scaled, o.told, o.ordered
		o.mu.Unlock()
		if stopping != nil && !told {
			b, err := json.Marshal(stopping)
			if err != nil {
				return err
			}
			if err := o.order(ctx, api, &control.OrderRequest{Body: &control.OrderRequest_StopJson{StopJson: b}, By: "client"}); err != nil {
				return err
			}
			o.mu.Lock()
			if !o.told {
				o.told = true
				close(o.toldNow)
			}
			o.mu.Unlock()
		}
		if scaled != nil && !scaled.told {
			req := &control.OrderRequest{Body: &control.OrderRequest_Scale{Scale: uint32(scaled.workers)}, By: scaled.by}
			if err := o.order(ctx, api, req); err != nil {
				return err
			}
			o.mu.Lock()
			scaled.told = true
			o.mu.Unlock()
		}
		select {
		case <-ordered:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (o *owner) order(ctx context.Context, api control.HeadClient, req *control.OrderRequest) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return o.opts.Door.Pass(ctx, journal.Effect{Name: "send.order", Operand: o.run}, func() error {
		if _, err := api.Order(ctx, req); err != nil {
			return fmt.Errorf("order: %w", err)
		}
		return nil
	})
}
