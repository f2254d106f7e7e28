package sim

import (
	"container/heap"
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// Cloud is a simulated cloud. Use [New]. All methods may be called concurrently.
type Cloud struct {
	opts  Options
	start time.Time
	hooks sync.WaitGroup // calls of the hooks in Options

	mu        sync.Mutex // guards everything below
	closed    bool
	events    eventHeap
	sequence  int
	timer     *time.Timer // fires at the first of events
	resources []*resource // in order of creation
	byID      map[string]*resource
	tokens    map[string]*order
	ledger    []Entry
	caps      []PoolCapacity
	market    market
	faults    faults
	calls     map[string]int // API calls by operation
	subjects  map[string]int // API calls by operation and subject: names of draws
	throttle  bucket
	creates   bucket
	hosts     map[int]bool // numbers of the addresses in use
	firstFree int          // none below it is free
	ingress   map[string][]string
	listLag   time.Duration
}

// order is what one token stands for.
type order struct {
	run   string
	count int
	ids   []string
	// refused is repeated with the machines.
	refused []providers.Refusal
}

// New makes an empty cloud. Inside a testing/synctest bubble it must be made, used and closed there.
func New(opts Options) *Cloud {
	opts = opts.withDefaults()
	c := &Cloud{
		opts:     opts,
		start:    time.Now(),
		byID:     map[string]*resource{},
		tokens:   map[string]*order{},
		caps:     append([]PoolCapacity(nil), opts.Capacity...),
		faults:   newFaults(),
		calls:    map[string]int{},
		subjects: map[string]int{},
		hosts:    map[int]bool{},
		ingress:  map[string][]string{},
	}
	c.market = newMarket(opts, c.start)
	c.throttle = newBucket(opts.Throttle, c.start)
	c.creates = newBucket(opts.CreateThrottle, c.start)
	return c
}

// Close ends the simulation: nothing happens after it, the guests still alive are stopped with OnStop one after another,
// and all hooks have returned. The ledger stays as it is, so an auditor can still look.
func (c *Cloud) Close() {
	c.mu.Lock()
	if c.timer != nil {
		c.timer.Stop()
	}
	var guests []*resource
	for _, r := range c.resources {
		if r.Machine != nil && r.Alive() && !c.closed {
			if r.stop != nil {
				r.stop()
			}
			guests = append(guests, r)
		}
	}
	c.closed = true
	c.mu.Unlock()
	c.hooks.Wait()
	for _, r := range guests {
		if c.opts.OnStop != nil {
			c.opts.OnStop(r.ID, "cloud closed")
		}
	}
}

// event is something that will happen. what runs with mu held.
type event struct {
	at       time.Time
	sequence int
	index    int // in the heap; -1 once it has happened or was called off
	what     func(now time.Time)
}

type eventHeap []*event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].sequence < h[j].sequence
}

func (h eventHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *eventHeap) Push(x any) {
	e := x.(*event)
	e.index = len(*h)
	*h = append(*h, e)
}

func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.index = -1
	return e
}

// at schedules what. mu is held; whoever took it ends with settle.
func (c *Cloud) at(t time.Time, what func(now time.Time)) *event {
	c.sequence++
	e := &event{at: t, sequence: c.sequence, what: what}
	heap.Push(&c.events, e)
	return e
}

// callOff removes an event; nil and past ones are fine. mu is held.
func (c *Cloud) callOff(e *event) {
	if e != nil && e.index >= 0 {
		heap.Remove(&c.events, e.index)
	}
}

// enter takes mu and brings the world up to now. Time moves only here, so events happen in their order whether the
// timer or a caller comes first.
func (c *Cloud) enter() (now time.Time) {
	c.mu.Lock()
	now = time.Now()
	if c.closed {
		return now
	}
	for len(c.events) > 0 && !c.events[0].at.After(now) {
		e := heap.Pop(&c.events).(*event)
		c.repriceUntil(e.at)
		e.what(e.at)
	}
	c.repriceUntil(now)
	return now
}

// leave arms the timer for the next event and gives mu back.
func (c *Cloud) leave() {
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	if c.closed || len(c.events) == 0 {
		return
	}
	c.timer = time.AfterFunc(time.Until(c.events[0].at), func() {
		c.enter()
		c.leave()
	})
}

// call is one API call: half the latency, the effect, the other half. subject names the call for its draws.
func (c *Cloud) call(ctx context.Context, op, subject string, effect func(now time.Time) error) error {
	c.mu.Lock()
	c.calls[op]++
	c.subjects[op+" "+subject]++
	names := []string{op, subject, strconv.Itoa(c.subjects[op+" "+subject])}
	c.mu.Unlock()
	dist := c.opts.Latency
	if op == opCreate && c.opts.CreateLatency.Median > 0 {
		dist = c.opts.CreateLatency
	}
	latency := c.sample(dist, append(names, "latency")...)
	arrives := time.Now().Add(latency / 2)
	if err := wait(ctx, latency/2); err != nil {
		if c.chance(c.opts.LateShare, append(names, "late")...) {
			c.mu.Lock()
			c.at(arrives, func(now time.Time) {
				_ = c.serve(op, names, now, effect) // nobody is there to hear of it
			})
			c.leave()
		}
		return providers.Errorf(providers.Unavailable, op, "given up before the reply: %w", err)
	}
	now := c.enter()
	err := c.serve(op, names, now, effect)
	c.leave()
	if err := wait(ctx, latency-latency/2); err != nil {
		return providers.Errorf(providers.Unavailable, op, "given up before the reply: %w", err)
	}
	return err
}

// serve is what happens to a call that has reached the cloud. mu is held.
func (c *Cloud) serve(op string, names []string, now time.Time, effect func(now time.Time) error) error {
	if c.closed {
		return providers.Errorf(providers.Unavailable, op, "the simulated cloud is closed")
	}
	if !c.throttle.take(now, 1) {
		return providers.Errorf(providers.Throttled, op, "request limit exceeded")
	}
	fail, ok := c.faults.next(op, now)
	if !ok && c.chance(c.opts.FailShare, append(names, "fail")...) {
		fail, ok = fault{providers.Unavailable, c.chance(0.5, append(names, "effect")...)}, true
	}
	if !ok {
		return effect(now)
	}
	if fail.effect {
		if err := effect(now); err != nil {
			return err
		}
	}
	return providers.Errorf(fail.code, op, "simulated %s", fail.code)
}

// hook runs f after the earlier hooks of the machine, without mu. mu is held.
func (c *Cloud) hook(r *resource, f func()) {
	if c.closed {
		return
	}
	r.hooks = append(r.hooks, f)
	if r.hooking {
		return
	}
	r.hooking = true
	c.hooks.Go(func() {
		for {
			c.mu.Lock()
			if len(r.hooks) == 0 {
				r.hooking = false
				c.mu.Unlock()
				return
			}
			next := r.hooks[0]
			r.hooks = r.hooks[1:]
			c.mu.Unlock()
			next()
		}
	})
}

// wait sleeps for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Calls returns how many API calls of each operation have been made. A listing is one "list" and a "page" for each page after its first.
func (c *Cloud) Calls() map[string]int {
	c.enter()
	defer c.leave()
	calls := make(map[string]int, len(c.calls))
	for op, n := range c.calls {
		calls[op] = n
	}
	return calls
}

// String names the cloud and its seed, for reports.
func (c *Cloud) String() string { return fmt.Sprintf("%s (seed %d)", c.opts.Name, c.opts.Seed) }

// bucket is a Bucket with its level.
type bucket struct {
	Bucket
	level float64
	at    time.Time
}

func newBucket(b Bucket, now time.Time) bucket {
	return bucket{Bucket: b, level: float64(b.Burst), at: now}
}

func (b *bucket) take(now time.Time, n int) bool {
	if b.Burst == 0 {
		return true
	}
	b.level = min(float64(b.Burst), b.level+now.Sub(b.at).Seconds()*b.PerSecond)
	b.at = now
	if b.level < float64(n) {
		return false
	}
	b.level -= float64(n)
	return true
}
