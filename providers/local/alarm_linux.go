package local

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// alarm rings on C at the time set, counted in boot time: a computer that slept rings when it wakes. Go's own timers
// stand still meanwhile.
type alarm struct {
	C    <-chan struct{}
	file *os.File
	fd   int
	wg   sync.WaitGroup
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create timer: %w", err)
	}
	c := make(chan struct{}, 1)
	a := &alarm{C: c, file: os.NewFile(uintptr(fd), "timerfd"), fd: fd}
	a.wg.Go(func() {
		var expirations [8]byte
		for {
			if _, err := a.file.Read(expirations[:]); err != nil {
				return // closed
			}
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
	// A zero would disarm the timer (timerfd_create(2)).
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(at, 1)))}
	return unix.TimerfdSettime(a.fd, unix.TFD_TIMER_ABSTIME, &spec, nil)
}

func (a *alarm) close() {
	a.file.Close()
	a.wg.Wait()
}

// bootTime is the time since boot, suspended time included.
func bootTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(err) // CLOCK_BOOTTIME exists since Linux 2.6.39
	}
	return time.Duration(now.Nano())
}
