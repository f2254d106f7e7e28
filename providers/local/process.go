package local

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"
)

// process names one process for good: a pid alone may be another's by now.
type process struct {
	PID int `json:"pid"`
	// Start is when it started, in the kernel's own words: comparable, nothing more.
	Start string `json:"start"`
	// Space names the PID namespace (and boot) the pid counts in; elsewhere it means nothing.
	Space string `json:"space"`
}

// self describes this process.
func self() (process, error) {
	pid := os.Getpid()
	start, err := startTime(pid)
	if err != nil {
		return process{}, err
	}
	return process{PID: pid, Start: start, Space: pidSpace()}, nil
}

// describe names a living process of our own namespace.
func describe(pid int) process {
	start, err := startTime(pid)
	if err != nil {
		return process{}
	}
	return process{PID: pid, Start: start, Space: pidSpace()}
}

// kill ends the process if it is still that one and visible from here. It tells whether it sent the signal.
func (p process) kill() bool {
	if p.PID <= 1 || p.Space == "" || p.Space != pidSpace() {
		return false
	}
	// The handle (a pidfd on Linux) is taken before the look: the pid cannot change hands between look and signal.
	handle, err := os.FindProcess(p.PID)
	if err != nil {
		return false
	}
	defer handle.Release()
	if start, err := startTime(p.PID); err != nil || start != p.Start {
		return false
	}
	return handle.Signal(syscall.SIGKILL) == nil
}

// sweepTimeout is how long a killed process may take to go; longer means it hangs in the kernel.
const sweepTimeout = 10 * time.Second

// sweep kills whatever carries the machine's id in its environment, until nothing does. It never touches this process.
func sweep(ctx context.Context, id string) error {
	deadline := time.Now().Add(sweepTimeout)
	wait := time.Millisecond
	for {
		carriers, err := carriersOf(EnvMachine + "=" + id)
		if err != nil {
			return err
		}
		left := 0
		for _, p := range carriers {
			if p.PID != os.Getpid() {
				p.kill()
				left++
			}
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes of machine %s do not die", left, id)
		}
		// They are not our children, nothing reports their end.
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, 50*time.Millisecond)
	}
}
