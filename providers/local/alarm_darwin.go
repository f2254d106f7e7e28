package local

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// alarm rings on C at the time set, counted in boot time. Go's timers stand still while the computer sleeps, so a
// distant time is waited for in short pieces.
type alarm struct {
	C    <-chan struct{}
	at   chan time.Duration
	stop chan struct{}
	wg   sync.WaitGroup
}

func newAlarm() (*alarm, error) {
	c := make(chan struct{}, 1)
	a := &alarm{C: c, at: make(chan time.Duration), stop: make(chan struct{})}
	a.wg.Go(func() {
		const piece = 5 * time.Second
		timer := time.NewTimer(0)
		defer timer.Stop()
		at := time.Duration(-1)
		for {
			select {
			case <-a.stop:
				return
			case at = <-a.at:
			case <-timer.C:
			}
			if at < 0 {
				continue
			}
			left := at - bootTime()
			if left > 0 {
				timer.Reset(min(left, piece))
				continue
			}
			at = -1
			select {
			case c <- struct{}{}:
			default: // one ring unheard is enough
			}
		}
	})
	return a, nil
}

// set makes the alarm ring at the moment of bootTime, instead of what was set before.
func (a *alarm) set(at time.Duration) error {
	a.at <- at
	return nil
}

func (a *alarm) close() {
	close(a.stop)
	a.wg.Wait()
}

// bootTime counts suspended time: CLOCK_MONOTONIC does on darwin (clock_gettime(3)).
func bootTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err) // exists since macOS 10.12
	}
	return time.Duration(now.Nano())
}
