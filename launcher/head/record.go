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
		for _, e := range queue {
			err := r.world.Record(ctx, e.events...)
			if err != nil && !errors.Is(err, journal.ErrCannotFollow) {
				if ctx.Err() == nil {
					r.failed <- err
				}
				return
			}
			if e.then != nil {
				r.world.post(func(l *worldLoop) { e.then(l, err) })
			}
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

func itoa(n int) string { return strconv.Itoa(n) }
