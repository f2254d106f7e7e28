package sshexec

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Pacing is how DialWhenUp waits between attempts. The zero value has the
// defaults, which never provoke OpenSSH's limits from one address:
//
// A refused or unanswered TCP connect costs nothing. PerSourcePenalties (OpenSSH ≥
// 9.8, sshd_config(5)) adds 5 s for a failed login and 1 s for a connection that
// left without one, forgets them as time goes by, and turns the address away once
// more than 15 s have piled up: failures 2, 4, 8 and then 15 s apart pile up 9 s
// at most. MaxStartups (10:30:100) counts connections before their login; there is
// never more than one of ours.
type Pacing struct {
	NotUp       Backoff // [50 ms to 1 s]
	Dropped     Backoff // [1 s to 30 s]; also for TimedOut
	AuthRefused Backoff // [2 s to 15 s]; also for Other
	// Random yields numbers in [0, 1) for the jitter, which only ever lengthens a
	// wait, by up to a quarter [rand.Float64]. Handed in, so that a seed replays.
	Random func() float64
}

// Backoff doubles from First to Max; each class's goes on where it was.
type Backoff struct{ First, Max time.Duration }

func (b Backoff) or(first, max time.Duration) Backoff {
	if b.First == 0 {
		b.First = first
	}
	if b.Max == 0 {
		b.Max = max
	}
	return b
}

// backoff is the one for a class.
func (p Pacing) backoff(class Class) Backoff {
	switch class {
	case NotUp:
		return p.NotUp.or(50*time.Millisecond, time.Second)
	case Dropped, TimedOut:
		return p.Dropped.or(time.Second, 30*time.Second)
	default:
		return p.AuthRefused.or(2*time.Second, 15*time.Second)
	}
}

// DialWhenUp dials a machine that is about to come up, at once and then paced,
// until it gets in, a class is permanent, or ctx ends; then it returns the last
// attempt's *Error, whose class says what the machine was doing.
func DialWhenUp(ctx context.Context, t Target, p Pacing) (*Conn, error) {
	random := p.Random
	if random == nil {
		random = rand.Float64
	}
	var last *Error
	// Each backoff goes on where it was: a machine that flaps between two classes
	// is not asked more often for it.
	waits := make(map[Backoff]time.Duration)
	for {
		c, err := Dial(ctx, t)
		if err == nil {
			return c, nil
		}
		failed, _ := errors.AsType[*Error](err) // Dial returns no other
		if ctx.Err() != nil {
			if last == nil { // an attempt that ctx cut short says less than one before it
				last = failed
			}
			return nil, last
		}
		if failed.Class.Permanent() {
			return nil, failed
		}
		b := p.backoff(failed.Class)
		wait := max(b.First, min(2*waits[b], b.Max))
		waits[b] = wait
		last = failed
		pause := time.NewTimer(wait + time.Duration(float64(wait)/4*random()))
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil, last
		case <-pause.C:
		}
	}
}
