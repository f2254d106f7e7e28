package sshexec

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// errIdle: a buffer has nothing to carry.
var errIdle = errors.New("nothing to send")

// buffer is a bounded queue of bytes between two goroutines, one of which may
// have a deadline: a Channel's send buffer when it writes, its receive buffer
// when it reads. Waiting is on channels and timers only (testing/synctest).
type buffer struct {
	mu       sync.Mutex
	data     []byte
	ended    error         // no more is put; taken after the data
	eofTaken bool          // next has returned io.EOF
	gone     error         // the taking (rx) or carrying (tx) side gave up; returned at once
	deadline time.Time     // of take and putAll
	wake     chan struct{} // non-nil while somebody waits
	carry    func() bool   // if not nil, starts what calls next until there is nothing, unless it is too late for that
	carrying bool          // it runs
}

// notify wakes all who wait; mu is held.
func (b *buffer) notify() {
	if b.wake != nil {
		close(b.wake)
		b.wake = nil
	}
}

// pass has what is new carried on; mu is held.
func (b *buffer) pass() {
	if b.carry != nil && !b.carrying {
		b.carrying = b.carry()
	}
}

// wait gives mu up until something changes, or the deadline is over if it counts.
func (b *buffer) wait(timed bool) {
	if b.wake == nil {
		b.wake = make(chan struct{})
	}
	wake := b.wake
	var due <-chan time.Time
	if timed && !b.deadline.IsZero() {
		t := time.NewTimer(time.Until(b.deadline))
		defer t.Stop()
		due = t.C
	}
	b.mu.Unlock()
	select {
	case <-wake:
	case <-due:
	}
	b.mu.Lock()
}

func (b *buffer) late() bool { return !b.deadline.IsZero() && !time.Now().Before(b.deadline) }

// put adds p as room permits and keeps no reference to it; timed says whether
// the deadline counts.
func (b *buffer) put(p []byte, timed bool) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		switch {
		case b.gone != nil:
			return n, b.gone
		case b.ended != nil:
			return n, net.ErrClosed
		case timed && b.late():
			return n, os.ErrDeadlineExceeded
		case len(p) == n:
			return n, nil
		}
		if room := channelBuffer - len(b.data); room > 0 {
			k := min(room, len(p)-n)
			b.data = append(b.data, p[n:n+k]...)
			n += k
			b.notify()
			b.pass()
			continue
		}
		b.wait(timed)
	}
}

// take reads what there is, up to len(p), waiting for the first byte until the deadline.
func (b *buffer) take(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		switch {
		case b.gone != nil:
			return 0, b.gone
		case b.late():
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		case len(b.data) > 0:
			n := copy(p, b.data)
			if b.data = b.data[n:]; len(b.data) == 0 {
				b.data = nil // an idle connection holds no memory
			}
			b.notify()
			return n, nil
		case b.ended != nil:
			return 0, b.ended
		}
		b.wait(true)
	}
}

// next takes everything for the carrier. After the data it returns a half-close
// (io.EOF) once, then a close. errIdle tells the carrier to end: there is nothing,
// and another one will be started for what comes.
func (b *buffer) next() ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.gone != nil:
		return nil, b.gone
	case len(b.data) > 0:
		data := b.data
		b.data = nil
		b.notify()
		return data, nil
	case b.ended == io.EOF && !b.eofTaken:
		b.eofTaken = true
		return nil, io.EOF
	case b.ended != nil && b.ended != io.EOF:
		return nil, b.ended
	}
	b.carrying = false
	return nil, errIdle
}

// finish ends the putting side; the first end stays, but a close overrides a
// half-close.
func (b *buffer) finish(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended == nil || err == net.ErrClosed {
		b.ended = err
	}
	b.notify()
	b.pass()
}

// abandon drops what is queued and refuses the rest. It reports whether it was the first.
func (b *buffer) abandon(err error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone != nil {
		return false
	}
	b.gone, b.data = err, nil
	b.notify()
	b.pass()
	return true
}

func (b *buffer) setDeadline(t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deadline = t
	b.notify()
}
