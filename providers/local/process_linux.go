package local

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// stat returns the fields of /proc/PID/stat from the third on (state, ppid, …): the second, the name, may hold anything. proc(5).
func stat(pid int) ([]string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	i := bytes.LastIndexByte(data, ')')
	fields := strings.Fields(string(data[i+1:]))
	if i < 0 || len(fields) < 20 {
		return nil, fmt.Errorf("read /proc/%d/stat: unknown format", pid)
	}
	return fields, nil
}

func startTime(pid int) (string, error) {
	fields, err := stat(pid)
	if err != nil {
		return "", err
	}
	return fields[19], nil // field 22, starttime, in ticks since boot
}

// pidSpace is "" where it cannot be told.
func pidSpace() string {
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return ns + " " + strings.TrimSpace(string(boot))
}

func pids() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var found []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			found = append(found, pid)
		}
	}
	return found, nil
}

// carriersOf lists the processes that were started with the entry in their environment. Zombies have none.
func carriersOf(entry string) ([]process, error) {
	all, err := pids()
	if err != nil {
		return nil, err
	}
	var found []process
	for _, pid := range all {
		start, err := startTime(pid)
		if err != nil {
			continue // gone
		}
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			continue // gone, or another user's
		}
		if bytes.Contains(append(append([]byte{0}, environ...), 0), []byte("\x00"+entry+"\x00")) {
			found = append(found, process{PID: pid, Start: start, Space: pidSpace()})
		}
	}
	return found, nil
}

// killDescendants kills the children of this process, theirs, and so on. Orphans become children of the nearest
// subreaper, so repeating it until there are none gets all, whatever their environment and session.
func killDescendants() (killed int) {
	all, err := pids()
	if err != nil {
		return 0
	}
	children := map[int][]int{}
	for _, pid := range all {
		fields, err := stat(pid)
		if err != nil || fields[0] == "Z" {
			continue
		}
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	for next := children[os.Getpid()]; len(next) > 0; next = next[1:] {
		if unix.Kill(next[0], unix.SIGKILL) == nil {
			killed++
		}
		next = append(next, children[next[0]]...)
	}
	return killed
}

// adoptOrphans makes this process the parent of its orphaned descendants.
func adoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

func memoryGiB() float64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return float64(uint64(info.Totalram)*uint64(info.Unit)) / (1 << 30)
}

func writable(dir string) bool { return unix.Access(dir, unix.W_OK|unix.X_OK) == nil }
