package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
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
	busy    map[string]bool
	failed  map[string]Backoff
	seen    Seen
	renewed time.Duration
	roster  Roster
	results chan result
	running sync.WaitGroup
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
// returns no call of its own is under way.
func (s *Supervisor) Run(ctx context.Context) (Outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	l := &loop{
		Supervisor: s, busy: map[string]bool{}, failed: map[string]Backoff{}, seen: Seen{At: -1},
		renewed: -1, results: make(chan result),
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
		if err := l.takeOrders(ctx); err != nil {
			return 0, err
		}
		state := s.Journal.State()
		if leaving && state.Stopping == nil {
			if len(l.busy) == 0 {
				return HandingOver, nil
			}
		} else {
			if r := RosterOf(s.Job, state); s.World != nil && !reflect.DeepEqual(r, l.roster) {
				l.roster = r
				s.World.SetRoster(r)
			}
			d := Decide(l.input(state))
			if d.Done && len(l.busy) == 0 {
				return Over, nil
			}
			appended := false
			for _, a := range d.Actions {
				wrote, err := l.act(ctx, a)
				if err != nil {
					return 0, err
				}
				appended = appended || wrote
			}
			if appended {
				continue // the journal went on: decide again before waiting
			}
			if d.Wake > 0 {
				timer.Reset(max(d.Wake-s.Journal.Now(), 0))
			} else {
				timer.Stop()
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

func (l *loop) input(state *journal.State) Input {
	return Input{
		Job: l.Job, State: state, Seen: l.seen, Now: l.Journal.Now(), Busy: l.busy, Failed: l.failed,
		RenewedAt: l.renewed, Mode: l.Mode,
	}
}

func (l *loop) takeOrders(ctx context.Context) error {
	l.mu.Lock()
	orders := l.orders
	l.orders = nil
	l.mu.Unlock()
	return l.record(ctx, orders)
}

// record appends events one by one: one that comes too late does not keep the others out.
func (l *loop) record(ctx context.Context, events []journal.Event) error {
	for _, e := range events {
		if err := l.Journal.Append(ctx, e); errors.Is(err, journal.ErrCannotFollow) {
			l.Log.Debug("event too late", "kind", e.Kind, "node", e.Node)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// finish takes in what an action brought.
func (l *loop) finish(ctx context.Context, r result) error {
	for _, k := range r.keys {
		delete(l.busy, k)
	}
	now := l.Journal.Now()
	for _, k := range r.keys {
		if r.err == nil && !r.pace {
			delete(l.failed, k)
			continue
		}
		b := l.failed[k]
		b.NotBefore = now + pause(k, b.Count)
		b.Count++
		l.failed[k] = b
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
	return l.record(ctx, r.events)
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
