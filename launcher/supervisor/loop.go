package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

// Options are what a supervisor works with.
type Options struct {
	Job      *jobspec.Job
	Journal  *journal.Journal
	Provider providers.Provider
	// Config is the provider's block.
	Config json.RawMessage
	World  World
	Mode   Mode
	// Keys makes and keeps the birth host keys.
	Keys Keys
	// Tags go on every resource, beside launcher's own; Owner is the caller as the provider sees it.
	Tags  map[string]string
	Owner string
	// Ingress is who may reach the head's port 22.
	Ingress []string
	Door    *journal.Door
	Log     *slog.Logger
	// HandOver, in ModeLaunch, is closed when the head is ready to take over.
	HandOver <-chan struct{}
}

// Keys are the run's SSH keys as the supervisor needs them.
type Keys interface {
	// Birth returns the birth host key for a create call, made at the first asking and kept on disk: a repeated call must carry the same.
	Birth(token string) (private []byte, public string, err error)
	// Authorized lists the public user keys that may log in to nodes of a role.
	Authorized(role providers.Role) []string
}

// Outcome is why a supervisor's Run returned without an error.
type Outcome int

// The outcomes.
const (
	// Over: everything is deleted and seen gone; on the head, its own deletion is ordered.
	Over Outcome = iota
	// HandingOver: ModeLaunch is done, no provider call is under way, and the head may be asked to take over.
	HandingOver
)

// ErrFenced is returned by Run where another epoch has been offered the run or has it: this supervisor must not act any more.
var ErrFenced = errors.New("the run is supervised by another")

// Supervisor decides and acts for one run. Make one with New; its methods are safe for concurrent use.
type Supervisor struct {
	Options
	wake chan struct{}

	mu     sync.Mutex // guards orders
	orders []journal.Event
}

// New returns a supervisor; nothing happens before Run.
func New(opts Options) *Supervisor {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Supervisor{Options: opts, wake: make(chan struct{}, 1)}
}

// Stop orders the end of the run; the first cause stays.
func (s *Supervisor) Stop(why journal.Stopping) {
	s.order(journal.NewEvent(journal.RunStopping, "", 0, why))
}

// Scale orders another number of workers. It refuses what the job does not allow.
func (s *Supervisor) Scale(workers int, by string) error {
	w := s.Job.Workers
	if workers < 1 || !w.Fixed && (workers < w.Min || workers > w.Max) {
		return fmt.Errorf("scale to %d: the job allows %d to %d workers", workers, w.Min, w.Max)
	}
	s.order(journal.NewEvent(journal.RunScaled, "", 0, journal.Scaled{Workers: workers, By: by}))
	return nil
}

func (s *Supervisor) order(e journal.Event) {
	s.mu.Lock()
	s.orders = append(s.orders, e)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// loop is the state that Run's goroutine owns.
type loop struct {
	*Supervisor
	epoch    int
	busy     map[string]bool
	failed   map[string]Backoff
	accepted map[string]bool
	// called is when the last call for a create token ended; what was listed before may not show its effect.
	called  map[string]time.Duration
	seen    Seen
	actFrom time.Duration
	ticked  atomic.Int64 // when it was last decided, on the run clock
	renewed renewal
	roster  Roster
	results chan result
	running sync.WaitGroup
}

// renewal is when the head's tags were renewed, and what they say.
type renewal struct {
	at time.Duration
	as string
}

// result is what an action's goroutine hands back to the loop.
type result struct {
	keys   []string
	events []journal.Event
	// pace: the action worked, but its effect is awaited, so it is not to be repeated at once.
	pace bool
	err  error
	// gather, if set, takes something in that is not an event.
	gather func(*loop)
}

// Run decides and acts until everything is over, the head may take over, or ctx ends; ctx ending is this process's end and not the run's. When it
// returns no call of its own is under way. ErrFenced: the run is another's.
func (s *Supervisor) Run(ctx context.Context) (Outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	state := s.Journal.State()
	l := &loop{
		Supervisor: s, epoch: state.Epoch, busy: map[string]bool{}, failed: map[string]Backoff{}, accepted: map[string]bool{},
		called: map[string]time.Duration{}, seen: Seen{At: -1}, renewed: renewal{at: -1}, results: make(chan result),
	}
	l.ticked.Store(int64(s.Journal.Now()))
	if len(state.Nodes) > 0 {
		l.away() // somebody has acted before
	}
	defer func() {
		cancel()
		done := make(chan struct{})
		go func() { l.running.Wait(); close(done) }()
		for {
			select {
			case <-l.results: // what finishes after the loop is repeated or listed by the next one
			case <-done:
				return
			}
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	handOver := s.HandOver
	leaving := false
	for {
		_, changed := s.Journal.Since(1 << 30)
		if err := s.Journal.Err(); err != nil {
			return 0, err // another's append failed, the world's: who cannot write must not go on
		}
		if err := l.takeOrders(ctx); err != nil {
			return 0, err
		}
		state := s.Journal.State()
		if state.Offered != 0 || state.Epoch != l.epoch {
			return 0, fmt.Errorf("supervise run %s at epoch %d: %w", state.Run, l.epoch, ErrFenced)
		}
		if leaving && state.Stopping == nil {
			if len(l.busy) == 0 {
				return HandingOver, nil
			}
		} else {
			over, again, err := l.decide(ctx, state, timer)
			if err != nil {
				return 0, err
			}
			if over {
				return Over, nil
			}
			if again {
				continue
			}
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-changed:
		case <-s.wake:
		case <-timer.C:
		case <-handOver:
			handOver, leaving = nil, true
		case r := <-l.results:
			if err := l.finish(ctx, r); err != nil {
				return 0, err
			}
		}
	}
}

// decide decides once and acts. over: nothing is left to do; again: the journal went on, so decide again before waiting.
func (l *loop) decide(ctx context.Context, state *journal.State, timer *time.Timer) (over, again bool, err error) {
	now := l.Journal.Now()
	if gap := now - time.Duration(l.ticked.Swap(int64(now))); gap > l.Job.Limits.NodeLease/2 {
		l.Log.Warn("was away", "for", gap)
		l.away()
	}
	if r := RosterOf(l.Job, state); l.World != nil && !reflect.DeepEqual(r, l.roster) {
		l.roster = r
		l.World.SetRoster(r)
	}
	d := Decide(l.input(state, now))
	if d.Fenced {
		return false, false, fmt.Errorf("supervise run %s: the provider lists this head as gone: %w", state.Run, ErrFenced)
	}
	if d.Done && len(l.busy) == 0 {
		return true, false, nil
	}
	for _, a := range d.Actions {
		wrote, err := l.act(ctx, a)
		if err != nil {
			return false, false, err
		}
		again = again || wrote
	}
	if d.Wake > 0 {
		timer.Reset(max(d.Wake-l.Journal.Now(), 0))
	} else {
		timer.Stop()
	}
	return false, again, nil
}

// away remembers that the world went on without this supervisor: it looks before it acts.
func (l *loop) away() { l.actFrom = max(l.Journal.Now(), 1) }

func (l *loop) input(state *journal.State, now time.Duration) Input {
	return Input{
		Job: l.Job, State: state, Seen: l.seen, Now: now, ActFrom: l.actFrom, Busy: l.busy, Failed: l.failed, Accepted: l.accepted,
		RenewedAt: l.renewed.at, RenewedAs: l.renewed.as, Mode: l.Mode, World: l.World != nil,
	}
}

func (l *loop) takeOrders(ctx context.Context) error {
	l.mu.Lock()
	orders := l.orders
	l.orders = nil
	l.mu.Unlock()
	_, err := l.record(ctx, orders)
	return err
}

// record appends events, in one piece where all can follow, else one by one: one that comes too late does not keep the others out.
func (l *loop) record(ctx context.Context, events []journal.Event) (wrote bool, err error) {
	if len(events) == 0 {
		return false, nil
	}
	if err := l.Journal.Append(ctx, events...); !errors.Is(err, journal.ErrCannotFollow) {
		return err == nil, err
	}
	for _, e := range events {
		err := l.Journal.Append(ctx, e)
		switch {
		case err == nil:
			wrote = true
		case errors.Is(err, journal.ErrCannotFollow):
			l.Log.Debug("event too late", "kind", e.Kind, "node", e.Node)
		default:
			return wrote, err
		}
	}
	return wrote, nil
}

// finish takes in what an action brought.
func (l *loop) finish(ctx context.Context, r result) error {
	for _, k := range r.keys {
		delete(l.busy, k)
		if r.err == nil && !r.pace {
			delete(l.failed, k)
			continue
		}
		l.backOff(k)
	}
	if r.err != nil {
		if errors.Is(r.err, journal.ErrCrashed) {
			return r.err
		}
		l.Log.Warn("action", "keys", r.keys, "error", r.err)
	}
	if r.gather != nil {
		r.gather(l)
	}
	_, err := l.record(ctx, r.events)
	return err
}

// backOff leaves an action alone for a while, longer each time.
func (l *loop) backOff(key string) {
	b := l.failed[key]
	b.NotBefore = l.Journal.Now() + pause(key, b.Count)
	b.Count++
	l.failed[key] = b
}

const (
	firstPause = 500 * time.Millisecond
	longPause  = 30 * time.Second
)

// pause is how long an action that failed, or whose effect is awaited, is left alone: doubling, and different for different actions so that
// they do not come in step.
func pause(key string, count int) time.Duration {
	p := min(firstPause<<min(count, 10), longPause)
	h := uint32(2166136261) // FNV-1a
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return p + time.Duration(h%250)*p/1000
}
