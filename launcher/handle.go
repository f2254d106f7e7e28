package launcher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// Handle is a run as this process follows it. Safe for concurrent use. Wait, Detach or Leave must be called in the end.
type Handle struct {
	opts   Options
	folder folder
	job    *Job
	cancel context.CancelFunc
	done   chan struct{}

	// What OnEvent and OnLog were told so far; the goroutine of main and what it awaits own them.
	events    int
	logOffset int64

	// patience is the owner's: see there.
	patience time.Duration

	mu       sync.Mutex // guards all below
	body     body
	swapped  chan struct{} // closed and replaced when body changes
	stopping *journal.Stopping
	left     bool // Leave or Detach was called
	result   *Result
	err      error
}

// body is how this process is connected with the run: as its owner, or as a guest of the process that is.
type body interface {
	state() *State
	since(n int) ([]Event, <-chan struct{})
	stop(ctx context.Context, why journal.Stopping) error
	scaleTo(ctx context.Context, workers int) error
	preempt(ctx context.Context, node string, notice time.Duration) error
	// reach returns a connection to the head, and what to call when done with it.
	reach(ctx context.Context) (*connection, func(), error)
	// free is closed when the run needs this process no more.
	free() <-chan struct{}
	// live is the body's life: until the run is over, or ctx ends.
	live(ctx context.Context, h *Handle) (*Result, error)
}

// errOwnerGone: the process that owned the run has ended or left it.
var errOwnerGone = errors.New("the owner has left the run")

func newHandle(opts Options, f folder, job *Job, b body, patience time.Duration) *Handle {
	ctx, cancel := context.WithCancel(context.Background())
	h := &Handle{opts: opts, folder: f, job: job, patience: patience, cancel: cancel, done: make(chan struct{}), swapped: make(chan struct{})}
	h.swap(b)
	if opts.OnlyNew {
		events, _ := b.since(0)
		h.events = len(events)
		h.logOffset = fileSize(f.logs())
	}
	go h.main(ctx) // ends with done; Wait and Leave await it
	return h
}

// main follows the run: as a guest for as long as another process owns it, then as the owner.
func (h *Handle) main(ctx context.Context) {
	defer close(h.done)
	for {
		b := h.current()
		result, err := b.live(ctx, h)
		if errors.Is(err, errOwnerGone) && ctx.Err() == nil {
			var next body
			if next, err = open(ctx, h.folder, h.opts); err == nil {
				h.swap(next)
				continue
			}
		}
		if result == nil {
			result = resultOf(b.state(), endingAbandoned, nil)
			result.Folder = h.folder.path
		}
		h.mu.Lock()
		h.result, h.err = result, err
		h.mu.Unlock()
		return
	}
}

// swap makes b the body, and hands on what was ordered of the one before.
func (h *Handle) swap(b body) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o, ok := b.(*owner); ok {
		o.patience = h.patience
		if h.stopping != nil {
			o.orderStop(*h.stopping)
		}
	}
	h.body = b
	close(h.swapped)
	h.swapped = make(chan struct{})
}

func (h *Handle) current() body {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.body
}

// Run is the run's id.
func (h *Handle) Run() string { return h.folder.run }

// Folder is the run's folder.
func (h *Handle) Folder() string { return h.folder.path }

// Job is the job as it was parsed.
func (h *Handle) Job() *Job { return h.job }

// State is a snapshot of what is known here of the run.
func (h *Handle) State() *State { return h.current().state() }

// Since returns the events after the first n, and a channel that is closed when there are more.
func (h *Handle) Since(n int) ([]Event, <-chan struct{}) { return h.current().since(n) }

// ClientSupervised tells whether the supervisor is in the client to the end (head { supervisor = "client" }): then Detach is refused.
func (h *Handle) ClientSupervised() bool { return h.job.Head.Supervisor == "client" }

// Owner tells whether this process owns the run's folder; else another one does and is asked.
func (h *Handle) Owner() bool {
	_, ok := h.current().(*owner)
	return ok
}

// HandedOver is closed when the run no longer needs this process: its head supervises it, or another process owns it.
func (h *Handle) HandedOver() <-chan struct{} { return h.current().free() }

// Done is closed when the run is over, or this process goes on with it no more: Wait returns at once then.
func (h *Handle) Done() <-chan struct{} { return h.done }

// Wait waits for the end of the run: the job's end, everything fetched and deleted, a listing that shows nothing left (Result.Clean), or the teardown given up
// (exit 124). When ctx ends it returns no result and ctx's error, and the run goes on. Beside another error, which says why this process could not
// go on with the run, the result holds what is known.
func (h *Handle) Wait(ctx context.Context) (*Result, error) {
	select {
	case <-h.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.result, h.err
}

// Stop orders the end of the run; the first cause stays. It returns when whoever supervises the run has the order. The order stands, and is
// passed on as soon as that is possible, also where ctx ends first.
func (h *Handle) Stop(ctx context.Context, why journal.Stopping) error {
	ctx, cancel := h.alive(ctx)
	defer cancel()
	for {
		h.mu.Lock()
		if h.stopping == nil {
			h.stopping = &why
		}
		b, swapped := h.body, h.swapped
		h.mu.Unlock()
		err := b.stop(ctx, why)
		if _, own := b.(*owner); own || err == nil || ctx.Err() != nil {
			return err
		}
		select { // the owner has ended: this process is about to take its place
		case <-swapped:
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

// Scale orders another number of workers. It refuses what the job does not allow.
func (h *Handle) Scale(ctx context.Context, workers int) error {
	ctx, cancel := h.alive(ctx)
	defer cancel()
	return h.current().scaleTo(ctx, workers)
}

// Preempt has the provider preempt a node (w2, w2.1 or head) as a drill, after the notice; 0: without one.
func (h *Handle) Preempt(ctx context.Context, node string, notice time.Duration) error {
	ctx, cancel := h.alive(ctx)
	defer cancel()
	return h.current().preempt(ctx, node, notice)
}

// errOver ends what waits for a run that is over.
var errOver = errors.New("the run is over")

// alive is ctx, ended too when this process goes on with the run no more.
func (h *Handle) alive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	finished := make(chan struct{})
	go func() {
		select {
		case <-h.done:
			cancel(errOver)
		case <-finished:
		}
	}()
	var once sync.Once
	return ctx, func() { once.Do(func() { close(finished) }); cancel(nil) }
}

// Detach waits until the run no longer needs this process (see HandedOver), and leaves it. ErrNotDetachable with a client's supervisor.
func (h *Handle) Detach(ctx context.Context) error {
	if h.ClientSupervised() && h.Owner() {
		return ErrNotDetachable
	}
	select {
	case <-h.HandedOver():
	case <-h.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	h.Leave()
	return nil
}

// Leave stops following at once, whatever the state, and returns the result as far as it is known: exit 0 where the run goes on, 129 where the
// teardown is the head's, 124 where nobody is left to finish it, with the ids and the command. After the end it returns the result.
func (h *Handle) Leave() *Result {
	h.mu.Lock()
	h.left = true
	h.mu.Unlock()
	h.cancel()
	<-h.done
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.result
}

func (h *Handle) leaving() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.left
}

// deliver tells OnEvent of what comes, until closed is closed and all was told.
func (h *Handle) deliver(since func(int) ([]Event, <-chan struct{}), closed <-chan struct{}) {
	for last := false; ; {
		events, changed := since(h.events)
		for _, e := range events {
			h.events++
			if h.opts.OnEvent != nil {
				h.opts.OnEvent(e)
			}
		}
		if len(events) > 0 {
			continue
		}
		if last {
			return
		}
		select {
		case <-changed:
		case <-closed:
			last = true
		}
	}
}

// settle waits for quiet: the head sends what it has in one go, and nothing marks the end of it.
const settle = 250 * time.Millisecond

// Sync waits until what the head had when it was called is here: events and output. For commands that show once. When ctx ends first, what is
// known here may be old.
func (h *Handle) Sync(ctx context.Context) error {
	b := h.current()
	s := b.state()
	if s.Clean != nil || !offered(s) && h.Owner() {
		return nil // nobody knows better
	}
	ctx, cancel := h.alive(ctx)
	defer cancel()
	o, ok := b.(*owner)
	if ok {
		c, err := o.await(ctx)
		if errors.Is(err, errOver) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := o.logs.follow(ctx, c.api, false); err != nil {
			return err
		}
	}
	for {
		_, changed := b.since(1 << 30)
		t := time.NewTimer(settle)
		select {
		case <-changed:
			t.Stop()
		case <-t.C:
			return nil
		case <-ctx.Done():
			t.Stop()
			if errors.Is(context.Cause(ctx), errOver) {
				return nil
			}
			return fmt.Errorf("ask for news: %w", context.Cause(ctx))
		}
	}
}
