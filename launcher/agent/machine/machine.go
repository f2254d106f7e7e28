// Package machine is what an agent knows of the machine it runs on and does to it: facts, notices of preemption,
// folders to watch, the host key, the end.
package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Facts is what a machine is made of.
type Facts struct {
	BootID      string
	Hostname    string
	CPUs        int
	MemoryBytes int64
	GPUs        []GPU
	Addresses   []string // of the interfaces that are up, loopback and link-local left out
}

// GPU is one accelerator.
type GPU struct{ Model, UUID string }

// Read looks at this machine.
func Read() Facts {
	f := Facts{BootID: bootID(), CPUs: runtime.NumCPU(), MemoryBytes: memoryTotal(), GPUs: readGPUs()}
	f.Hostname, _ = os.Hostname()
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
			f.Addresses = append(f.Addresses, ip.IP.String())
		}
	}
	return f
}

// DiskFree is how many bytes a process may still write where dir lies; 0 if that cannot be told.
func DiskFree(dir string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0
	}
	return int64(st.Bavail) * int64(st.Bsize)
}

// runCommand runs a command with an input; its output goes into the error.
func runCommand(ctx context.Context, input string, argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(input)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("run %s: %w: %s", argv[0], err, bytes.TrimSpace(out[max(0, len(out)-500):]))
	}
	return nil
}

// asRoot puts sudo before a command where the agent is not root.
func asRoot(argv ...string) []string {
	if os.Geteuid() == 0 {
		return argv
	}
	if _, err := exec.LookPath("sudo"); err != nil {
		return argv
	}
	return append([]string{"sudo", "-n"}, argv...)
}

// PowerOff returns what ends the machine: command, or poweroff as the user, then as root.
func PowerOff(command []string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		if len(command) > 0 {
			return runCommand(ctx, "", command...)
		}
		err := runCommand(ctx, "", "poweroff")
		if err == nil || os.Geteuid() == 0 {
			return err
		}
		return errors.Join(err, runCommand(ctx, "", asRoot("poweroff")...))
	}
}

// rekeyScript replaces the host key of an OpenSSH server and has it read the key; see sshd(8), SIGHUP.
const rekeyScript = `set -e
umask 077
cat > /etc/ssh/.launcher_host_key
[ -s /etc/ssh/.launcher_host_key ]
ssh-keygen -y -f /etc/ssh/.launcher_host_key > /etc/ssh/.launcher_host_key.pub
chmod 644 /etc/ssh/.launcher_host_key.pub
mv -f /etc/ssh/.launcher_host_key /etc/ssh/ssh_host_ed25519_key
mv -f /etc/ssh/.launcher_host_key.pub /etc/ssh/ssh_host_ed25519_key.pub
for f in /run/sshd.pid /var/run/sshd.pid; do
  if [ -s "$f" ]; then kill -HUP "$(cat "$f")"; exit 0; fi
done
systemctl reload ssh 2>/dev/null || systemctl reload sshd
`

// Rekey gives the machine another SSH host key (OpenSSH PEM): by its own command launcher-machine-rekey, which reads the
// private key from standard input (machines of provider local have it), else that of its OpenSSH server.
func Rekey(ctx context.Context, privateKey string) error {
	if path, err := exec.LookPath("launcher-machine-rekey"); err == nil {
		return runCommand(ctx, privateKey, path)
	}
	return runCommand(ctx, privateKey, asRoot("sh", "-c", rekeyScript)...)
}

// Lease returns what passes the node lease on to the timer of a machine of provider local: a line with the
// seconds left, into the FIFO or unix socket at path. nil without a path.
func Lease(path string) func(context.Context, time.Duration) error {
	if path == "" {
		return nil
	}
	return func(ctx context.Context, left time.Duration) error {
		line := fmt.Appendf(nil, "%d\n", int64((left+time.Second-1)/time.Second))
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("machine lease: %w", err)
		}
		var to interface {
			Write([]byte) (int, error)
			SetWriteDeadline(time.Time) error
			Close() error
		}
		if info.Mode()&os.ModeSocket != 0 {
			to, err = (&net.Dialer{}).DialContext(ctx, "unix", path)
		} else {
			// Not blocking: a FIFO that nobody reads fails at once instead.
			// Appending, because in a regular file (ssh) the last line counts, and a shorter one over a longer would leave its end there.
			to, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND|unix.O_NONBLOCK, 0)
		}
		if err != nil {
			return fmt.Errorf("machine lease: %w", err)
		}
		if deadline, ok := ctx.Deadline(); ok {
			to.SetWriteDeadline(deadline)
		}
		_, err = to.Write(line)
		if err = errors.Join(err, to.Close()); err != nil {
			return fmt.Errorf("machine lease: %w", err)
		}
		return nil
	}
}
