//go:build !linux

package journal

import (
	"time"

	"golang.org/x/sys/unix"
)

// BootTime is the time since boot, suspended time included: on darwin CLOCK_MONOTONIC is the continuous clock (clock_gettime(3)).
func BootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("clock_gettime CLOCK_MONOTONIC: " + err.Error()) // POSIX requires it
	}
	return time.Duration(ts.Nano())
}
