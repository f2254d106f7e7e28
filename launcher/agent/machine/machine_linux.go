package machine

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Uptime is the time since boot, suspend included.
func Uptime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}

func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

func memoryTotal() int64 {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return 0
	}
	return int64(si.Totalram) * int64(si.Unit)
}

// MemoryFree is in bytes; 0 where that cannot be told.
func MemoryFree() int64 {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return 0
	}
	return int64(si.Freeram+si.Bufferram) * int64(si.Unit)
}

// Load1 is the load average of one minute; the kernel gives it times 2^16, see sysinfo(2).
func Load1() float64 {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return 0
	}
	return float64(si.Loads[0]) / (1 << 16)
}

// readGPUs reads what the NVIDIA driver shows in /proc: nvidia-smi takes a second where no process holds the GPU.
func readGPUs() []GPU {
	files, _ := filepath.Glob("/proc/driver/nvidia/gpus/*/information")
	var gpus []GPU
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		var g GPU
		for line := range strings.Lines(string(b)) {
			name, value, _ := strings.Cut(line, ":")
			switch strings.TrimSpace(name) {
			case "Model":
				g.Model = strings.TrimSpace(value)
			case "GPU UUID":
				g.UUID = strings.TrimSpace(value)
			}
		}
		gpus = append(gpus, g)
	}
	return gpus
}
