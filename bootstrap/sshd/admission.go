package sshd

import (
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// turnedAway is what OpenSSH ≥ 9.8 writes before it closes a connection it will
// not talk to, whatever the reason (sshd.c, drop_connection); 9.2 wrote
// "Exceeded MaxStartups\r\n" for the only reason it had.
const turnedAway = "Not allowed at this time\r\n"

// Startups imitates MaxStartups (sshd.c, should_drop_connection): from Begin
// connections that have not logged in, a new one is dropped with Rate percent
// probability, rising to all of them at Full. OpenSSH's default is 10:30:100.
type Startups struct{ Begin, Rate, Full int }

// Penalties imitates PerSourcePenalties (srclimit.c of OpenSSH ≥ 9.8): each
// failure adds its time to what the source address has to wait out; from Min on
// it is turned away until that is over.
type Penalties struct {
	AuthFail, NoAuth, Grace time.Duration // [5 s, 1 s, 10 s]
	Min, Max                time.Duration // [15 s, 10 min]
	// Refused counts the connections turned away, for tests; read it when the server is done.
	Refused int
}

// outcome is how a handshake ended, in the terms of PerSourcePenalties.
type outcome int

const (
	loggedIn    outcome = iota
	authFailed          // at least one key was refused
	noAuth              // the client left before it tried to log in
	graceRanOut         // HandshakeTimeout
)

func outcomeOf(err error, inTime bool) outcome {
	var refused *ssh.ServerAuthError
	switch {
	case err == nil:
		return loggedIn
	case !inTime:
		return graceRanOut
	case errors.As(err, &refused):
		for _, e := range refused.Errors {
			if !errors.Is(e, ssh.ErrNoAuth) { // the "none" that every client opens with
				return authFailed
			}
		}
	}
	return noAuth
}

// admission decides which connections get a handshake.
type admission struct {
	startups *Startups
	random   func() float64

	mu        sync.Mutex
	pending   int        // connections in their handshake
	penalties *Penalties // with the defaults filled in; nil if off
	sources   map[string]*penalty
}

type penalty struct {
	expiry time.Time
	active bool
}

func newAdmission(o Options) *admission {
	if p := o.Penalties; p != nil {
		for _, d := range []struct {
			field *time.Duration
			value time.Duration
		}{
			{&p.AuthFail, 5 * time.Second},
			{&p.NoAuth, time.Second},
			{&p.Grace, 10 * time.Second},
			{&p.Min, 15 * time.Second},
			{&p.Max, 10 * time.Minute},
		} {
			if *d.field == 0 {
				*d.field = d.value
			}
		}
	}
	return &admission{startups: o.Startups, random: o.Random, penalties: o.Penalties, sources: make(map[string]*penalty)}
}

// enter admits or turns away; after a true, leave must be called with the outcome.
func (a *admission) enter(remote net.Addr) (leave func(outcome), ok bool) {
	source := remote.String()
	if host, _, err := net.SplitHostPort(source); err == nil {
		source = host
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.sources[source]; p != nil {
		switch {
		case p.expiry.Before(time.Now()):
			delete(a.sources, source)
		case p.active:
			a.penalties.Refused++
			return nil, false
		}
	}
	if a.startups != nil && a.startups.drops(a.pending, a.random) {
		return nil, false
	}
	a.pending++
	return func(end outcome) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.pending--
		a.penalise(source, end)
	}, true
}

func (s *Startups) drops(pending int, random func() float64) bool {
	switch {
	case pending < s.Begin:
		return false
	case pending >= s.Full || s.Rate == 100:
		return true
	}
	p := (100-s.Rate)*(pending-s.Begin)/(s.Full-s.Begin) + s.Rate
	return int(random()*100) < p
}

// penalise adds to what a source has to wait out; mu is held.
func (a *admission) penalise(source string, end outcome) {
	if a.penalties == nil {
		return
	}
	var add time.Duration
	switch end {
	case authFailed:
		add = a.penalties.AuthFail
	case noAuth:
		add = a.penalties.NoAuth
	case graceRanOut:
		add = a.penalties.Grace
	case loggedIn:
		return
	}
	now := time.Now()
	p := a.sources[source]
	if p == nil || p.expiry.Before(now) {
		p = &penalty{expiry: now}
		a.sources[source] = p
	}
	p.expiry = p.expiry.Add(add)
	if limit := now.Add(a.penalties.Max); p.expiry.After(limit) {
		p.expiry = limit
	}
	if p.expiry.Sub(now) > a.penalties.Min {
		p.active = true
	}
}
