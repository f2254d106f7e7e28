package head

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/launcher/supervisor"
)

// lineWorld is the World of a supervisor on the laptop, over the head's Serve and World calls.
type lineWorld struct {
	c *simClient

	mu      sync.Mutex // guards all below
	roster  []byte
	gone    map[string]string
	drain   journal.Cause
	changed chan struct{} // closed and replaced when one of them changes
	seq     uint64
}

// SetRoster implements supervisor.World.
func (w *lineWorld) SetRoster(r supervisor.Roster) {
	b, err := json.Marshal(r)
	if err != nil {
		w.c.s.t.Error(err)
	}
	w.change(func() { w.roster = b })
}

// Gone implements supervisor.World.
func (w *lineWorld) Gone(node, evidence string) { w.change(func() { w.gone[node] = evidence }) }

// Drain implements supervisor.World.
func (w *lineWorld) Drain(cause journal.Cause) { w.change(func() { w.drain = cause }) }

func (w *lineWorld) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

// serveWorld supervises from the laptop to the end.
func (c *simClient) serveWorld() {
	w := &lineWorld{c: c, gone: map[string]string{}, changed: make(chan struct{})}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	c.running.Go(func() {
		answered := uint64(0)
		var instance uint64
		for ctx.Err() == nil {
			line, err := c.dial(ctx)
			if err == nil {
				err = w.serve(ctx, line, &instance, &answered)
				line.Close()
			}
			c.s.log("client").Info("line ended", "error", err)
			pause(ctx, 250*time.Millisecond)
		}
	})
	_, err := supervisor.New(c.options(supervisor.ModeClient, w)).Run(ctx)
	if err != nil && ctx.Err() == nil {
		c.s.t.Errorf("supervise: %v", err)
	}
	if err == nil {
		close(c.fetched)
	}
}

// serve uses one connection until it breaks.
func (w *lineWorld) serve(ctx context.Context, line *simLine, instance, answered *uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := w.c.prepare(ctx, line); err != nil {
		return err
	}
	s := w.c.journal.State()
	reply, err := line.api.Serve(ctx, &control.ServeRequest{
		Setup: w.c.setup(1), AtNs: int64(w.c.journal.Now()), LastGeneration: uint64(s.Generation.Number), Restarts: uint64(s.Restarts),
	})
	if err != nil {
		return err
	}
	if *instance != reply.Instance {
		*instance, *answered = reply.Instance, 0
	}
	call, err := line.api.World(ctx)
	if err != nil {
		return err
	}
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	answers, heard := make(chan *control.Recorded, 16), make(chan uint64, 16)
	sending.Go(func() {
		defer cancel()
		w.send(ctx, call.Send, answers, heard)
	})
	for {
		r, err := call.Recv()
		if err != nil {
			return err
		}
		if r.Number == 0 {
			heard <- r.LeaseSeq
			continue
		}
		answer := &control.Recorded{Number: r.Number}
		if r.Number > *answered {
			var events []journal.Event
			for _, b := range r.EventsJson {
				var e journal.Event
				if err := json.Unmarshal(b, &e); err != nil {
					return err
				}
				events = append(events, e)
			}
			err := w.c.journal.Append(ctx, events...)
			if err != nil && !errors.Is(err, journal.ErrCannotFollow) {
				return err
			}
			if err != nil {
				answer.Error, answer.TooLate = err.Error(), true
			}
			*answered = r.Number
		}
		answers <- answer
	}
}

// send says what was ordered, renews the lease and answers reports.
func (w *lineWorld) send(ctx context.Context, send func(*control.WorldOrder) error, answers <-chan *control.Recorded, heard <-chan uint64) {
	lease := w.c.s.job.Limits.NodeLease
	ticker := time.NewTicker(lease / 3)
	defer ticker.Stop()
	var newest uint64
	renew := func() bool {
		w.mu.Lock()
		w.seq++
		seq := w.seq
		w.mu.Unlock()
		return send(&control.WorldOrder{Body: &control.WorldOrder_Lease{Lease: &control.Lease{Seq: seq, HeardSeq: int64(newest), NodeLeaseMs: lease.Milliseconds()}}}) == nil
	}
	if !renew() {
		return
	}
	var roster []byte
	told, drained := map[string]string{}, false
	for {
		var orders []*control.WorldOrder
		w.mu.Lock()
		changed := w.changed
		if string(w.roster) != string(roster) {
			roster = w.roster
			orders = append(orders, &control.WorldOrder{Body: &control.WorldOrder_RosterJson{RosterJson: roster}})
		}
		for node, evidence := range w.gone {
			if told[node] != evidence {
				told[node] = evidence
				orders = append(orders, &control.WorldOrder{Body: &control.WorldOrder_Gone{Gone: &control.Gone{Node: node, Evidence: evidence}}})
			}
		}
		if w.drain != "" && !drained {
			drained = true
			orders = append(orders, &control.WorldOrder{Body: &control.WorldOrder_Drain{Drain: string(w.drain)}})
		}
		w.mu.Unlock()
		for _, o := range orders {
			if send(o) != nil {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-ticker.C:
			if !renew() {
				return
			}
		case newest = <-heard:
		case a := <-answers:
			if send(&control.WorldOrder{Body: &control.WorldOrder_Recorded{Recorded: a}}) != nil {
				return
			}
		}
	}
}
