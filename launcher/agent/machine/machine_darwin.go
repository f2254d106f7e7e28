package machine

import (
	"time"

	"golang.org/x/sys/unix"
)

// Uptime is the time since boot, suspend included: the wall clock less the time of boot, which the kernel moves along
// when the wall clock is set.
func Uptime() time.Duration {
	tv, err := unix.SysctlTimeval("kern.boottime")
	if err != nil {
		panic(err)
	}
	return time.Since(time.Unix(tv.Unix()))
}

func bootID() string {
	id, _ := unix.Sysctl("kern.bootsessionuuid")
	return id
}

func memoryTotal() int64 {
	n, _ := unix.SysctlUint64("hw.memsize")
	return int64(n)
}

// MemoryFree is in bytes; 0 where that cannot be told.
func MemoryFree() int64 { return 0 } // not cheap to know

// Load1 is the load average of one minute; 0 where that cannot be told.
func Load1() float64 { return 0 }

func readGPUs() []GPU { return nil }
