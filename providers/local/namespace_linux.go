package local

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Ways to confine a guest, best first.
const (
	sandboxRoot  = "root"  // a PID and a mount namespace
	sandboxUser  = "user"  // the same below a user namespace, for those who are not root
	sandboxPlain = "plain" // none: orphans are adopted, the end is a sweep
)

// sandboxes lists the ways to try; only restricts them.
func sandboxes(only string) []string {
	if only != "" {
		return []string{only}
	}
	if os.Geteuid() == 0 {
		// Root of a container may lack CAP_SYS_ADMIN.
		return []string{sandboxRoot, sandboxUser, sandboxPlain}
	}
	return []string{sandboxUser, sandboxPlain}
}

// confined tells whether the kernel ends all of a guest with its first process.
func confined(sandbox string) bool { return sandbox != sandboxPlain }

func sandboxAttr(sandbox string) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	switch sandbox {
	case sandboxRoot:
		attr.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS
		// Kill -9 of the hypervisor takes all with it: the signal comes from outside the namespace, so its init cannot ignore it.
		attr.Pdeathsig = unix.SIGKILL
	case sandboxUser:
		attr.Cloneflags = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS
		attr.Pdeathsig = unix.SIGKILL
		// One user, who stays who they are: as a seeming root, tar and package managers would try to chown.
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
		// To mount /proc; init gives it up before it starts anything.
		attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
	}
	return attr
}

// settle arranges a new mount namespace: its own /proc, so that pids mean what they say, and a tmpfs to keep secrets off
// the disk. Where a container's kernel policy forbids one, the machine does without.
func settle(dir string) error {
	// Mounts of the outside still come and go here, ours stay inside.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("detach mounts: %w", err)
	}
	var errs []error
	// Programs tell machines apart by name and pid (TorchElastic's _NodeDesc), and these all have one name: pids begin somewhere else in each,
	// as on machines that have been up for a while. Where the kernel does not let us, they begin at 1.
	_ = os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(300+rand.IntN(30_000))), 0)
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		errs = append(errs, fmt.Errorf("mount /proc: %w", err))
	}
	if err := unix.Mount("tmpfs", filepath.Join(dir, "run"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700"); err != nil {
		errs = append(errs, fmt.Errorf("mount tmpfs: %w", err))
	}
	return errors.Join(errs...)
}

// dropCapabilities keeps what init needed from those it starts: exec gives a non-root user the ambient ones only. It
// works on the calling thread, which must be the one that starts them.
func dropCapabilities() error {
	return unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
}

func runningExecutable([]string) string { return "/proc/self/exe" }

func systemPath() string { return "" }

// serveAttr: the SSH server goes with the init process also where no namespace sees to it.
func serveAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL}
}
