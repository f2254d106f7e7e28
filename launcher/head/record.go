package head

import (
	"context"
	"errors"
	"strconv"
	"sync"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// recorder journals what the world reports, in order, without holding up the loop.
type recorder struct {
	world   *World
	failed  chan error
	stopped sync.WaitGroup

	mu    sync.Mutex // guards queue and nudge's closing
	queue []entry
	nudge chan struct{}
}

type entry struct {
	events []journal.Event
	then   func(*worldLoop, error)
}

func newRecorder(ctx context.Context, w *World) *recorder {
	r := &recorder{world: w, failed: make(chan error, 1), nudge: make(chan struct{}, 1)}
	r.stopped.Go(func() { r.run(ctx) })
	return r
}

func (r *recorder) put(e entry) {
	r.mu.Lock()
	r.queue = append(r.queue, e)
	r.mu.Unlock()
	select {
	case r.nudge <- struct{}{}:
	default:
	}
}

func (r *recorder) wait() { r.stopped.Wait() }

func (r *recorder) run(ctx context.Context) {
	for {
		r.mu.Lock()
		queue := r.queue
		r.queue = nil
		r.mu.Unlock()
		if err := r.take(ctx, queue); err != nil {
			if ctx.Err() == nil {
				r.failed <- err
			}
			return
		}
		if len(queue) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-r.nudge:
		}
	}
}

// take records what has come together in one piece, which is one write to the disk or one report to the client; where one of the events
// comes too late, each entry by itself.
func (r *recorder) take(ctx context.Context, queue []entry) error {
	if len(queue) > 1 {
		var all []journal.Event
		for _, e := range queue {
			all = append(all, e.events...)
		}
		err := r.world.Record(ctx, all...)
		if err == nil {
			for _, e := range queue {
				r.answer(e, nil)
			}
			return nil
		}
		if !errors.Is(err, journal.ErrCannotFollow) {
			return err
		}
	}
	for _, e := range queue {
		err := r.world.Record(ctx, e.events...)
		if err != nil && !errors.Is(err, journal.ErrCannotFollow) {
			return err
		}
		r.answer(e, err)
	}
	return nil
}

func (r *recorder) answer(e entry, err error) {
	if e.then != nil {
		r.world.post(func(l *worldLoop) { e.then(l, err) })
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
