package launcher

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/launcher/supervisor"
)

// clientWorld is the World of a supervisor in the client: it keeps what was ordered and says it to the head over as many connections
// as it takes, and journals what the head reports. It implements supervisor.World.
type clientWorld struct {
	owner *owner

	mu      sync.Mutex // guards all below
	roster  *supervisor.Roster
	gone    map[string]string // evidence by node
	drain   journal.Cause
	drains  int           // how often Drain was said: each time is said on
	changed chan struct{} // closed and replaced when one of them changes
}

func newClientWorld(o *owner) *clientWorld {
	return &clientWorld{owner: o, gone: map[string]string{}, changed: make(chan struct{})}
}

// SetRoster implements supervisor.World.
func (w *clientWorld) SetRoster(r supervisor.Roster) { w.change(func() { w.roster = &r }) }

// Gone implements supervisor.World.
func (w *clientWorld) Gone(node, evidence string) { w.change(func() { w.gone[node] = evidence }) }

// Drain implements supervisor.World.
func (w *clientWorld) Drain(cause journal.Cause) {
	w.change(func() { w.drain, w.drains = cause, w.drains+1 })
}

func (w *clientWorld) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

// reported is the newest report taken over: a head that did not hear the answer sends it again.
type reported struct {
	instance uint64
	answer   *control.Recorded
}

// run keeps the line to the head for as long as the run lives: dials, prepares, serves, over and over. It returns nil when the head is gone or
// on its way out, and an error that no waiting cures.
func (w *clientWorld) run(ctx context.Context) error {
	o := w.owner
	var last reported
	for pause := firstRedial; ; pause = min(2*pause, lastRedial) {
		c, err := o.connect(ctx)
		if err == nil {
			began := time.Now()
			err = w.serve(ctx, c, &last)
			c.Close()
			if time.Since(began) > lastRedial {
				pause = firstRedial
			}
		}
		switch {
		case ctx.Err() != nil || errors.Is(err, errHeadGone):
			return nil
		case permanent(err):
			return err
		}
		o.log.Info("line to the head ended", "error", err)
		if n := o.journal.State().Head(); n != nil && n.Phase == journal.PhaseJoined {
			// The supervisor lists at once; a refused redial alone is no evidence.
			if err := o.record(ctx, journal.NewEvent(journal.NodeSuspect, n.Name, 0, journal.Suspected{Reason: err.Error()})); errors.Is(err, errHeadGone) {
				return nil
			}
		}
		if sleep(ctx, pause) != nil {
			return nil
		}
	}
}

// impatience reports a head that cannot be reached as drained once the run is being ended and the owner's patience is over: what it
// could still give is not worth what it costs.
func (w *clientWorld) impatience(ctx context.Context) {
	o := w.owner
	var silent time.Time
	for {
		_, changed := o.journal.Since(1 << 30)
		o.mu.Lock()
		connected, moved := o.connection != nil, o.connected
		o.mu.Unlock()
		if s := o.journal.State(); s.Stopping == nil || s.Drained || connected {
			silent = time.Time{}
		} else if silent.IsZero() {
			silent = time.Now()
		}
		wait := time.Duration(1 << 62)
		if !silent.IsZero() {
			wait = o.patience - time.Since(silent)
		}
		if wait <= 0 {
			emptyWorld{o}.Drain("")
			return
		}
		t := time.NewTimer(wait)
		select {
		case <-changed:
		case <-moved:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		t.Stop()
	}
}

// serve uses one connection until it breaks.
func (w *clientWorld) serve(ctx context.Context, c *connection, last *reported) error {
	o := w.owner
	if err := o.prepare(ctx, c); err != nil {
		return err
	}
	setup, err := o.setup(1)
	if err != nil {
		return err
	}
	state := o.journal.State()
	calling, cancel := context.WithTimeout(ctx, callTimeout)
	var reply *control.ServeReply
	err = o.opts.Door.Pass(ctx, journal.Effect{Name: "send.serve", Operand: o.run}, func() (err error) {
		reply, err = c.api.Serve(calling, &control.ServeRequest{
			Setup: setup, AtNs: int64(o.journal.Now()), LastGeneration: uint64(state.Generation.Number), Restarts: uint64(state.Restarts),
		})
		return err
	})
	cancel()
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	if last.instance != reply.Instance {
		*last = reported{instance: reply.Instance, answer: &control.Recorded{}}
	}
	if err := o.record(ctx, journal.NewEvent(journal.NodeJoined, journal.HeadName, 0, journal.Joined{})); err != nil {
		return err
	}
	ctx, cancel = context.WithCancel(ctx)
	o.setConnection(c)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	defer o.setConnection(nil)
	call, err := c.api.World(ctx)
	if err != nil {
		return fmt.Errorf("world: %w", err)
	}
	l := &worldLine{clientWorld: w, call: call, connection: c, last: last, reports: make(chan *control.WorldReport), answers: make(chan *control.Recorded, 1)}
	failed := make(chan error, 3)
	copying, stopCopying := context.WithCancel(ctx)
	l.stopLogs = stopCopying
	defer stopCopying()
	logs := make(chan struct{})
	l.logsStopped = logs
	beside.Go(func() {
		defer close(logs)
		if err := o.logs.follow(copying, c.api, true); err != nil && copying.Err() == nil {
			failed <- err
		}
	})
	beside.Go(func() { failed <- l.send(ctx) })
	beside.Go(func() { failed <- l.take(ctx) })
	beside.Go(func() { failed <- l.receive(ctx) })
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// worldLine is one World call.
type worldLine struct {
	*clientWorld
	call       grpc.BidiStreamingClient[control.WorldOrder, control.WorldReport]
	connection *connection
	last       *reported
	reports    chan *control.WorldReport
	answers    chan *control.Recorded

	stopLogs    context.CancelFunc
	logsStopped <-chan struct{}

	mu    sync.Mutex // guards heard; not clientWorld's
	heard uint64     // the newest lease acknowledged
}

// send says what was ordered, renews the lease and answers reports.
func (l *worldLine) send(ctx context.Context) error {
	lease := l.owner.job.Limits.NodeLease
	ticker := time.NewTicker(lease / 3)
	defer ticker.Stop()
	renew := func() error {
		l.mu.Lock()
		heard := l.heard
		l.mu.Unlock()
		return l.call.Send(&control.WorldOrder{Body: &control.WorldOrder_Lease{Lease: &control.Lease{
			Seq: l.owner.nextLease(), HeardSeq: int64(heard), NodeLeaseMs: lease.Milliseconds(),
		}}})
	}
	if err := renew(); err != nil {
		return fmt.Errorf("renew lease: %w", err)
	}
	var roster *supervisor.Roster
	told, drains := map[string]string{}, 0
	for {
		w := l.clientWorld
		w.mu.Lock()
		changed := w.changed
		var orders []*control.WorldOrder
		if w.roster != nil && w.roster != roster {
			roster = w.roster
			b, err := json.Marshal(roster)
			if err != nil {
				w.mu.Unlock()
				return err
			}
			orders = append(orders, &control.WorldOrder{Body: &control.WorldOrder_RosterJson{RosterJson: b}})
		}
		for node, evidence := range w.gone {
			if told[node] != evidence {
				told[node] = evidence
				orders = append(orders, &control.WorldOrder{Body: &control.WorldOrder_Gone{Gone: &control.Gone{Node: node, Evidence: evidence}}})
			}
		}
		if w.drains != drains {
			drains = w.drains
			orders = append(orders, &control.WorldOrder{Body: &control.WorldOrder_Drain{Drain: string(w.drain)}})
		}
		w.mu.Unlock()
		for _, order := range orders {
			if err := l.call.Send(order); err != nil {
				return fmt.Errorf("send order: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-ticker.C:
			if err := renew(); err != nil {
				return fmt.Errorf("renew lease: %w", err)
			}
		case a := <-l.answers:
			if err := l.call.Send(&control.WorldOrder{Body: &control.WorldOrder_Recorded{Recorded: a}}); err != nil {
				return fmt.Errorf("answer report: %w", err)
			}
		}
	}
}

// receive takes reports off the wire. It must not wait for long: acknowledgements of leases come this way too.
func (l *worldLine) receive(ctx context.Context) error {
	for {
		r, err := l.call.Recv()
		if err != nil {
			return fmt.Errorf("receive report: %w", err)
		}
		if r.Number == 0 {
			l.mu.Lock()
			l.heard = max(l.heard, r.LeaseSeq)
			l.mu.Unlock()
			continue
		}
		select { // the head sends the next report only after the answer to this one
		case l.reports <- r:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take journals reports, in order, and answers each when it is on disk.
func (l *worldLine) take(ctx context.Context) error {
	for {
		var r *control.WorldReport
		select {
		case r = <-l.reports:
		case <-ctx.Done():
			return ctx.Err()
		}
		if r.Number != l.last.answer.Number {
			answer, err := l.journal(ctx, r)
			if err != nil {
				return err
			}
			l.last.answer = answer
		}
		select {
		case l.answers <- l.last.answer:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *worldLine) journal(ctx context.Context, r *control.WorldReport) (*control.Recorded, error) {
	answer := &control.Recorded{Number: r.Number}
	var events []journal.Event
	for _, b := range r.EventsJson {
		var e journal.Event
		if err := json.Unmarshal(b, &e); err != nil {
			answer.Error = fmt.Sprintf("decode event: %v", err)
			return answer, nil
		}
		events = append(events, e)
	}
	for _, e := range events {
		if e.Kind == journal.RunDrained {
			// From this event on the head is deleted: what it holds must be here before.
			l.stopLogs()
			<-l.logsStopped
			if err := l.owner.fetch(ctx, l.connection.api); err != nil {
				return nil, fmt.Errorf("fetch results: %w", err)
			}
		}
	}
	if l.last.answer.Number == 0 && l.have(events) {
		return answer, nil // an older process of this client died between its disk and its answer
	}
	if err := l.owner.journal.Append(ctx, events...); err != nil {
		if broken := l.owner.journal.Err(); broken != nil {
			l.owner.fail(broken) // a journal that cannot be written ends this process's part
			return nil, broken
		}
		l.owner.log.Info("report refused", "error", err) // it does not fit what is known: a node that has gone on
		answer.Error, answer.TooLate = err.Error(), true
	}
	return answer, nil
}

// have tells whether these events stand in the journal in a row: their stamps are the journal's and do not count.
func (l *worldLine) have(events []journal.Event) bool {
	all, _ := l.owner.journal.Since(0)
	for i := range len(all) - len(events) + 1 {
		if slices.EqualFunc(all[i:i+len(events)], events, func(a, b journal.Event) bool {
			return a.Kind == b.Kind && a.Node == b.Node && a.Generation == b.Generation && bytes.Equal(a.Data, b.Data)
		}) {
			return len(events) > 0
		}
	}
	return false
}

// emptyWorld is the World where there is none: before the hand-over, and after the head was seen gone.
type emptyWorld struct{ owner *owner }

// SetRoster implements supervisor.World.
func (emptyWorld) SetRoster(supervisor.Roster) {}

// Gone implements supervisor.World: nobody else would give the node up.
func (w emptyWorld) Gone(node, evidence string) {
	w.append(journal.NewEvent(journal.NodeLost, node, 0, journal.Lost{Cause: evidence, Evidence: true}))
}

// Drain implements supervisor.World: no process runs that could be drained.
func (w emptyWorld) Drain(journal.Cause) { w.append(journal.NewEvent(journal.RunDrained, "", 0, nil)) }

func (w emptyWorld) append(e journal.Event) {
	if err := w.owner.journal.Append(context.Background(), e); err != nil && !errors.Is(err, journal.ErrCannotFollow) {
		w.owner.fail(err)
	}
}
