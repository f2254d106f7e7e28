package providers

import (
	"context"
	"time"
)

// LimitOptions is a token bucket. The zero value does not limit.
type LimitOptions struct {
	// PerSecond is how many calls a second the bucket refills for, Burst how many it holds and starts with [1].
	PerSecond float64
	Burst     int
}

// Limit spaces calls so that they fit the cloud's own limit; callers wait in order of arrival. All methods but Info,
// which asks no cloud, share one bucket. Under [Retry] each attempt takes a token.
func Limit(p Provider, opts LimitOptions) Provider {
	if opts.PerSecond <= 0 {
		return p
	}
	l := &limiter{
		every: time.Duration(float64(time.Second) / opts.PerSecond),
		burst: max(1, opts.Burst),
		turn:  make(chan struct{}, 1),
	}
	return &around{next: p, call: l.call}
}

// limiter is the bucket, kept as a schedule (the "virtual scheduling" form of the generic cell rate algorithm, ITU-T
// I.371 annex A): calls are due every so often, and up to burst-1 may come earlier.
type limiter struct {
	every time.Duration
	burst int
	// turn is held by the caller who waits for the next token, and guards due. Those behind wait for the turn, so one who
	// gives up costs the others nothing.
	turn chan struct{}
	due  time.Time // of the next call
}

func (l *limiter) call(ctx context.Context, c *call, do func(context.Context) error) error {
	if c.op == "info" {
		return do(ctx)
	}
	if err := l.take(ctx); err != nil {
		return Errorf(Unavailable, c.op, "wait for the rate limit: %w", err)
	}
	return do(ctx)
}

// take waits for a token.
func (l *limiter) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.turn }()
	now := time.Now()
	if l.due.Before(now) {
		l.due = now
	}
	if wait := l.due.Sub(now) - time.Duration(l.burst-1)*l.every; wait > 0 {
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
	l.due = l.due.Add(l.every)
	return nil
}
