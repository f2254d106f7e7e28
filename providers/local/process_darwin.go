package local

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func startTime(pid int) (string, error) {
	info, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return "", err
	}
	if int(info.Proc.P_pid) != pid {
		return "", os.ErrProcessDone
	}
	t := info.Proc.P_starttime
	return fmt.Sprintf("%d.%06d", t.Sec, t.Usec), nil
}

// pidSpace: there are no PID namespaces, and start times are wall times, which no later boot repeats.
func pidSpace() string { return "darwin" }

// carriersOf lists the processes of this user that were started with the entry in their environment.
func carriersOf(entry string) ([]process, error) {
	all, err := unix.SysctlKinfoProcSlice("kern.proc.uid", os.Getuid())
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []process
	for _, info := range all {
		pid := int(info.Proc.P_pid)
		if environContains(pid, entry) {
			found = append(found, describe(pid))
		}
	}
	return found, nil
}

// environContains reads kern.procargs2: the argument count, the executable's path, zeros, the arguments and the
// environment, each ended by a zero (apple-oss-distributions/adv_cmds ps/print.c).
func environContains(pid int, entry string) bool {
	data, err := unix.SysctlRaw("kern.procargs2", pid)
	if err != nil || len(data) < 4 {
		return false
	}
	count := int(binary.LittleEndian.Uint32(data))
	rest := data[4:]
	i := bytes.IndexByte(rest, 0)
	if i < 0 {
		return false
	}
	words := bytes.Split(bytes.TrimLeft(rest[i:], "\x00"), []byte{0})
	for n, word := range words {
		if n >= count && string(word) == entry {
			return true
		}
	}
	return false
}

// killDescendants cannot find orphans here, where nobody adopts them; sweep finds those that kept their environment.
func killDescendants() (killed int) {
	all, err := unix.SysctlKinfoProcSlice("kern.proc.uid", os.Getuid())
	if err != nil {
		return 0
	}
	children := map[int][]int{}
	for _, info := range all {
		children[int(info.Eproc.Ppid)] = append(children[int(info.Eproc.Ppid)], int(info.Proc.P_pid))
	}
	for next := children[os.Getpid()]; len(next) > 0; next = next[1:] {
		if unix.Kill(next[0], unix.SIGKILL) == nil {
			killed++
		}
		next = append(next, children[next[0]]...)
	}
	return killed
}

func adoptOrphans() error { return nil }

func memoryGiB() float64 {
	bytes, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return 0
	}
	return float64(bytes) / (1 << 30)
}

func writable(dir string) bool { return unix.Access(dir, unix.W_OK|unix.X_OK) == nil }
