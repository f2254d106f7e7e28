package journal

import (
	"time"

	"golang.org/x/sys/unix"
)

// BootTime is the time since boot, suspended time included (CLOCK_BOOTTIME), so that a lease runs out on a sleeping laptop too.
func BootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("clock_gettime CLOCK_BOOTTIME: " + err.Error()) // every Linux since 2.6.39 has it
	}
	return time.Duration(ts.Nano())
}
