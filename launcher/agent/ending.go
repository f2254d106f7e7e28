package agent

import (
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/control"
)

const (
	termGrace = 10 * time.Second // between SIGTERM and SIGKILL, when a generation ends on purpose
	lossGrace = time.Second      // the same after a loss or a failed rank
)

// ending is the order in which a generation is ended. It decides only; the zero value is a generation nobody ends.
//
//	WORKING ──End──▶ SIGNALLED ──grace over──▶ TERMINATED (SIGTERM) ──10 s or 1 s──▶ KILLED (SIGKILL)
type ending struct {
	phase    control.Phase
	tellOnce bool      // the job's own signal was sent
	term     time.Time // when SIGTERM is due; zero: nobody ends it
	kill     time.Time
}

// order takes in an End and returns the job's own signal if it is to be sent now. Of several orders the fastest wins.
func (e *ending) order(end *control.End, now time.Time) (signal string) {
	term, kill := now, now
	switch end.Mode {
	case control.EndMode_ON_PURPOSE:
		if end.Signal != "" {
			term = now.Add(time.Duration(end.GraceMs) * time.Millisecond)
			if e.phase <= control.Phase_SIGNALLED && !e.tellOnce {
				e.tellOnce = true
				signal = end.Signal
			}
		}
		kill = term.Add(termGrace)
	case control.EndMode_AFTER_LOSS:
		kill = now.Add(lossGrace)
	}
	if e.term.IsZero() || term.Before(e.term) {
		e.term = term
	}
	if e.kill.IsZero() || kill.Before(e.kill) {
		e.kill = kill
	}
	if e.phase == control.Phase_WORKING {
		e.phase = control.Phase_SIGNALLED
	}
	return signal
}

// due moves on to the phase of now. It tells whether that changed, and when to ask again; zero: not before another
// order.
func (e *ending) due(now time.Time) (changed bool, next time.Time) {
	was := e.phase
	switch {
	case e.term.IsZero():
		return false, time.Time{}
	case !now.Before(e.kill):
		e.phase = control.Phase_KILLED
	case !now.Before(e.term):
		e.phase = max(e.phase, control.Phase_TERMINATED)
		next = e.kill
	default:
		next = e.term
	}
	return e.phase != was, next
}
