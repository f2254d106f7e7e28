package process

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func sessionAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// openTerminal makes a pseudo terminal as posix_openpt, grantpt, unlockpt and ptsname of Apple's Libc do.
func openTerminal() (near, far *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	near = os.NewFile(uintptr(fd), "/dev/ptmx")
	var name [128]byte
	err = unix.IoctlSetInt(fd, unix.TIOCPTYGRANT, 0)
	if err == nil {
		err = unix.IoctlSetInt(fd, unix.TIOCPTYUNLK, 0)
	}
	if err == nil {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCPTYGNAME,
			uintptr(unsafe.Pointer(&name[0]))); errno != 0 {
			err = errno
		}
	}
	if err == nil {
		far, err = os.OpenFile(unix.ByteSliceToString(name[:]), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		near.Close()
		return nil, nil, err
	}
	return near, far, nil
}

// sweepPause is between two scans: without process descriptors there is nothing to wait on for another's child.
const sweepPause = 20 * time.Millisecond

func sweep(ctx context.Context, markers []string, sessions []int) error {
	for {
		found := false
		table, err := unix.SysctlKinfoProcSlice("kern.proc.all")
		if err != nil {
			return fmt.Errorf("sweep: %w", err)
		}
		for _, p := range table {
			pid := int(p.Proc.P_pid)
			if pid == os.Getpid() || p.Proc.P_stat == 5 /* SZOMB, sys/proc.h */ || !marked(pid, markers, sessions) {
				continue
			}
			found = unix.Kill(pid, unix.SIGKILL) == nil || found
		}
		if !found {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("sweep: %w", context.Cause(ctx))
		case <-time.After(sweepPause):
		}
	}
}

func marked(pid int, markers []string, sessions []int) bool {
	if sid, err := unix.Getsid(pid); err == nil && slices.Contains(sessions, sid) {
		return true
	}
	if len(markers) == 0 {
		return false
	}
	// Arguments, then environment, each ended by a zero byte; see sysctl(3), KERN_PROCARGS2.
	b, err := unix.SysctlRaw("kern.procargs2", pid)
	if err != nil {
		return false
	}
	for _, m := range markers {
		if !bytes.Contains(b, []byte("\x00"+m+"\x00")) {
			return false
		}
	}
	return true
}

// workers is the leader alone: the process table of darwin does not say who catches what.
func workers(leader int, _ []string, _ syscall.Signal) []int { return []int{leader} }
