package providers

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// RetryOptions bounds the repetitions of one call. Zero fields take the defaults in brackets.
type RetryOptions struct {
	// Attempts is how often a call is made at most, the first included [8].
	Attempts int
	// Budget is the time after which no further attempt is begun [2m]. It does not cut an attempt short: that is the context's part.
	Budget time.Duration
	// Base and Cap shape the back-off: before attempt n+1 the wait is uniform in [0, min(Cap, Base·2ⁿ⁻¹)] [500ms, 30s].
	// This is "full jitter" (M. Brooker, Exponential Backoff And Jitter, AWS Architecture Blog, 2015): callers that
	// were refused together do not come back together.
	Base, Cap time.Duration
	// Rand draws from [0, 1) and may be called concurrently [math/rand/v2.Float64].
	Rand func() float64
}

func (o RetryOptions) withDefaults() RetryOptions {
	if o.Attempts == 0 {
		o.Attempts = 8
	}
	if o.Budget == 0 {
		o.Budget = 2 * time.Minute
	}
	if o.Base == 0 {
		o.Base = 500 * time.Millisecond
	}
	if o.Cap == 0 {
		o.Cap = 30 * time.Second
	}
	if o.Rand == nil {
		o.Rand = rand.Float64
	}
	return o
}

// Retry repeats calls whose code is [Code.Retryable], and no others: Capacity, Quota, Auth and Invalid are the caller's
// to decide on. Create is repeated as it is, so with the same token, and not at all without one. Preempt has no token
// and is repeated only after Throttled, when it certainly had no effect. The error returned is the last attempt's.
func Retry(p Provider, opts RetryOptions) Provider {
	opts = opts.withDefaults()
	return &around{next: p, call: opts.call}
}

func (o RetryOptions) call(ctx context.Context, c *call, do func(context.Context) error) error {
	began := time.Now()
	for attempt := 1; ; attempt++ {
		err := do(ctx)
		code := CodeOf(err)
		if err == nil || !code.Retryable() || !c.safe && code != Throttled {
			return err
		}
		wait := time.Duration(o.Rand() * min(float64(o.Cap), float64(o.Base)*math.Exp2(float64(attempt-1))))
		if attempt >= o.Attempts || time.Since(began)+wait > o.Budget {
			if attempt == 1 {
				return err
			}
			return fmt.Errorf("%d attempts in %v: %w", attempt, time.Since(began).Round(time.Millisecond), err)
		}
		if pause(ctx, wait) != nil {
			return err // says more than that the caller gave up
		}
	}
}

// pause waits for d, or until ctx ends; if it has ended, that counts even where d is 0.
func pause(ctx context.Context, d time.Duration) error {
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
