package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sessionAttr has the kernel kill the process when the agent dies: a rank without an agent has no lease. (Its
// children stay; the next agent of this node sweeps them.)
func sessionAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}

// openTerminal makes a pseudo terminal. See ptmx(4) and pts(4) of the Linux man pages.
func openTerminal() (near, far *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	near = os.NewFile(uintptr(fd), "/dev/ptmx")
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		far, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		near.Close()
		return nil, nil, err
	}
	return near, far, nil
}

// sweepPause bounds the wait for the killed of one scan; a process in uninterruptible sleep takes its time.
const sweepPause = time.Second

func sweep(ctx context.Context, markers []string, sessions []int) error {
	for {
		dying, err := killMarked(markers, sessions)
		if err != nil || len(dying) == 0 {
			return err
		}
		waitDeaths(dying)
		if ctx.Err() != nil {
			return fmt.Errorf("sweep: %w", context.Cause(ctx))
		}
	}
}

// killMarked kills what one scan finds and returns process file descriptors of it, which the caller closes.
func killMarked(markers []string, sessions []int) ([]int, error) {
	table, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	defer table.Close()
	names, err := table.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	var dying []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() {
			continue
		}
		if !marked(pid, markers, sessions) {
			continue
		}
		// The descriptor pins the process. Looking again through the pinned number leaves no room for a stranger
		// that was given the number in between.
		fd, err := unix.PidfdOpen(pid, 0)
		switch {
		case errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM):
			unix.Kill(pid, unix.SIGKILL) // a kernel older than 5.3, or a sandbox
		case err == nil && marked(pid, markers, sessions):
			unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			dying = append(dying, fd)
		case err == nil:
			unix.Close(fd)
		}
	}
	return dying, nil
}

// waitDeaths waits until all of the processes are gone, for a bounded time, and closes the descriptors.
func waitDeaths(fds []int) {
	deadline := time.Now().Add(sweepPause)
	for _, fd := range fds {
		for {
			left := time.Until(deadline)
			if left <= 0 {
				break
			}
			// Readable once the process has exited: pidfd_open(2).
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		unix.Close(fd)
	}
}

// marked tells whether a living process is one of those to be swept.
func marked(pid int, markers []string, sessions []int) bool {
	st, ok := readStat(pid)
	if !ok || st.state == 'Z' || st.state == 'X' {
		return false
	}
	if slices.Contains(sessions, st.session) {
		return true
	}
	if len(markers) == 0 {
		return false
	}
	env, err := os.ReadFile(procFile(pid, "environ"))
	if err != nil {
		return false // gone, or another user's
	}
	for _, m := range markers {
		if !hasEntry(env, m) {
			return false
		}
	}
	return true
}

// hasEntry looks for an entry among entries that end with a zero byte.
func hasEntry(entries []byte, entry string) bool {
	for len(entries) > 0 {
		e, rest, _ := bytes.Cut(entries, []byte{0})
		if string(e) == entry {
			return true
		}
		entries = rest
	}
	return false
}

func procFile(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}

type stat struct {
	state   byte
	parent  int
	session int
	ticks   uint64 // CPU time of it and its waited-for children, in clock ticks
}

// readStat reads /proc/PID/stat. The name in parentheses may hold anything: fields count from the last ")".
func readStat(pid int) (stat, bool) {
	b, err := os.ReadFile(procFile(pid, "stat"))
	if err != nil {
		return stat{}, false
	}
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return stat{}, false
	}
	f := strings.Fields(string(b[i+1:]))
	if len(f) < 15 {
		return stat{}, false
	}
	st := stat{state: f[0][0]}
	st.parent, _ = strconv.Atoi(f[1])
	st.session, _ = strconv.Atoi(f[3])
	for _, s := range f[11:15] {
		n, _ := strconv.ParseUint(s, 10, 64)
		st.ticks += n
	}
	return st, true
}

// workers are the processes under leader that do its work and are to hear sig: leader itself, unless it is a shell
// still running the line it was started with and without a trap for sig, or a starter of ranks such as torchrun; then the nearest descendants
// that are neither. Of several (the parts of a pipeline) those count that catch the signal, as it would kill the
// others; where none does, all.
func workers(leader int, argv []string, sig syscall.Signal) []int {
	children := map[int][]int{}
	names, _ := os.ReadDir("/proc")
	for _, n := range names {
		if pid, err := strconv.Atoi(n.Name()); err == nil {
			if st, ok := readStat(pid); ok && st.state != 'Z' {
				children[st.parent] = append(children[st.parent], pid)
			}
		}
	}
	shell := []byte(strings.Join(argv, "\x00") + "\x00")
	var found []int
	var visit func(pid int)
	visit = func(pid int) {
		line, _ := os.ReadFile(procFile(pid, "cmdline"))
		if len(children[pid]) > 0 && (bytes.Equal(line, shell) && !catches(pid, sig) || startsRanks(pid, children[pid])) {
			for _, c := range children[pid] {
				visit(c)
			}
			return
		}
		found = append(found, pid)
	}
	visit(leader)
	var catching []int
	for _, pid := range found {
		if catches(pid, sig) {
			catching = append(catching, pid)
		}
	}
	if len(catching) > 0 {
		return catching
	}
	return found
}

// startsRanks tells whether pid has given its children a LOCAL_RANK it does not have itself.
func startsRanks(pid int, children []int) bool {
	if hasVariable(pid, "LOCAL_RANK=") {
		return false
	}
	return slices.ContainsFunc(children, func(c int) bool { return hasVariable(c, "LOCAL_RANK=") })
}

func hasVariable(pid int, prefix string) bool {
	env, err := os.ReadFile(procFile(pid, "environ"))
	return err == nil && (bytes.HasPrefix(env, []byte(prefix)) || bytes.Contains(env, []byte("\x00"+prefix)))
}

// catches reads the mask of caught signals; see proc_pid_status(5).
func catches(pid int, sig syscall.Signal) bool {
	b, err := os.ReadFile(procFile(pid, "status"))
	if err != nil {
		return false
	}
	_, rest, ok := strings.Cut(string(b), "\nSigCgt:")
	if !ok {
		return false
	}
	line, _, _ := strings.Cut(rest, "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	return err == nil && mask&(1<<(uint(sig)-1)) != 0
}

// CPUTicks is the CPU time that all processes of the sessions have used so far, in clock ticks: a number that does
// not grow means that none of them computes.
func (OS) CPUTicks(sessions []int) uint64 {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	var sum uint64
	for _, n := range names {
		if pid, err := strconv.Atoi(n.Name()); err == nil {
			if st, ok := readStat(pid); ok && slices.Contains(sessions, st.session) {
				sum += st.ticks
			}
		}
	}
	return sum
}
