package agent

import (
	"context"
	"sync"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/control"
)

const (
	// leaseTick bounds how late a lease is seen to be over after the machine was suspended: timers stand still
	// then, the uptime does not.
	leaseTick     = 10 * time.Second
	memberTick    = 2 * time.Second // the same, while rank processes run
	powerOffRetry = 10 * time.Second
)

// leases are when this node and its membership end, on the clock of uptime. A renewal counts from its sending, of
// which the agent knows only that it was after the report whose stamp comes back with it: see control.Renew.
type leases struct {
	uptime func() time.Duration

	mu      sync.Mutex
	node    time.Duration // guarded by mu, like member: end of the lease; 0: never had
	member  time.Duration // 0 also once its end was seen
	lapse   bool          // its end was seen and nobody has acted on it
	changed chan struct{} // has one element when a lease was renewed
}

func newLeases(uptime func() time.Duration) *leases {
	return &leases{uptime: uptime, changed: make(chan struct{}, 1)}
}

func (l *leases) renew(r *control.Renew) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.uptime()
	heard := time.Duration(r.HeardStampNs)
	if heard > now { // of an earlier boot
		heard = 0
	}
	l.look(now) // a renewal that comes too late does not undo the end
	extend := func(end *time.Duration, ms int64) {
		length := time.Duration(ms) * time.Millisecond
		switch {
		case length <= 0:
		case heard > 0:
			*end = max(*end, heard+length)
		case *end <= now:
			*end = now + length
		}
	}
	extend(&l.node, r.NodeLeaseMs)
	extend(&l.member, r.MemberLeaseMs)
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// look sees whether the member lease is over. Callers hold mu.
func (l *leases) look(now time.Duration) {
	if l.member > 0 && l.member <= now {
		l.member, l.lapse = 0, true
	}
}

// lapsed tells once of each end of the member lease.
func (l *leases) lapsed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.look(l.uptime())
	lapsed := l.lapse
	l.lapse = false
	return lapsed
}

// left is what remains of each lease; ≤ 0: over. One that never ran is over.
func (l *leases) left() (node, member time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.uptime()
	return l.node - now, l.member - now
}

// had tells whether there ever was a node lease: without one the machine's own bound is all there is.
func (l *leases) had() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.node > 0
}

// keepLeases ends what a lease that is over must end.
func (a *Agent) keepLeases(ctx context.Context) error {
	for {
		if a.leases.lapsed() {
			a.endMembership()
		}
		node, member := a.leases.left()
		if a.leases.had() && node <= 0 {
			a.log.Error("node lease is over: power off")
			a.powerOff(ctx)
			return nil
		}
		wait := leaseTick
		if a.leases.had() {
			wait = min(wait, node)
		}
		if member > 0 {
			wait = min(wait, member)
			if a.busy() {
				wait = min(wait, memberTick)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-a.leases.changed:
			a.tellMachine(ctx)
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// busy tells whether rank processes run.
func (a *Agent) busy() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.current != nil && a.current.state != control.GenerationState_ENDED
}

// endMembership kills the rank processes: by now the head may have given their ranks away.
func (a *Agent) endMembership() {
	a.mu.Lock()
	g := a.current
	running := g != nil && g.state != control.GenerationState_ENDED
	number := uint64(0)
	if running {
		number = g.number
		g.request(&control.End{Generation: number, Mode: control.EndMode_KILL})
	}
	a.mu.Unlock()
	a.store.Reset()
	if running {
		a.log.Warn("member lease is over", "generation", number)
	}
	a.reports.add(&control.Report{Body: &control.Report_LeaseOver{LeaseOver: &control.LeaseOver{Generation: number}}})
}

// tellMachine passes the node lease on to the machine's own timer, which holds where the agent does not.
func (a *Agent) tellMachine(ctx context.Context) {
	if a.o.MachineLease == nil || !a.leases.had() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if node, _ := a.leases.left(); node > 0 {
		if err := a.o.MachineLease(ctx, node); err != nil {
			a.log.Error("renew the machine's own lease", "error", err)
		}
	}
}

// powerOff ends the machine and does not give up. It returns when ctx ends.
func (a *Agent) powerOff(ctx context.Context) {
	a.mu.Lock()
	if a.current != nil {
		a.current.request(&control.End{Generation: a.current.number, Mode: control.EndMode_KILL})
	}
	a.mu.Unlock()
	for ctx.Err() == nil {
		if err := a.o.PowerOff(ctx); err != nil {
			a.log.Error("power off", "error", err)
		}
		timer := time.NewTimer(powerOffRetry)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}
