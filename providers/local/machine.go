package local

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The roles of MachineMain, in the order in which they start each other.
const (
	roleStart = "start" // starts the hypervisors of new machines and leaves, so that they belong to nobody
	roleOuter = "outer"
	roleInit  = "init"
	roleServe = "serve"
)

// Files that the roles inherit, by number: the first after the standard three.
const (
	fdAlive    = 3 // outer, init: the locked file "alive"
	fdControl  = 4 // outer: the listening control socket
	fdLifeline = 4 // init: reads as ended once the hypervisor is gone
	fdReport   = 5 // init, serve: where the SSH server says its address
)

// MachineMain is what the hidden command `launcher machine …` does with the arguments after it; the result is the exit
// status. Whoever rents local machines must be an executable that calls it for the command line in [Options].Executable, on
// the main goroutine and before it starts anything else: it may become the first process of a PID namespace. Signals are its own.
func MachineMain(ctx context.Context, args []string) int {
	if err := machineMain(ctx, args); err != nil {
		fmt.Fprintln(os.Stderr, "machine:", err)
		return 1
	}
	return 0
}

func machineMain(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("this command is started by the local provider")
	}
	role, args := args[0], args[1:]
	switch role {
	case roleStart:
		return startMachines(args[0], args[1:], os.Stdout)
	case roleOuter:
		return runOuter(ctx, args[0])
	case roleInit:
		if len(args) == 2 {
			return runInit(args[0], args[1])
		}
	case roleServe:
		return runServe(ctx, args[0])
	}
	return fmt.Errorf("unknown role %q", role)
}

// inherited takes over a file that the parent passed, and keeps it from being passed on.
func inherited(fd int, name string) (*os.File, error) {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
		return nil, fmt.Errorf("inherit %s: %w", name, err)
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), name), nil
}

// again makes the command line of another role of this machine. The executable may have been replaced or removed since
// (a head's own, with the head); the running one is still there.
func again(command []string, role string, args ...string) *exec.Cmd {
	cmd := &exec.Cmd{Path: runningExecutable(command), Args: append(append([]string{}, command...), role)}
	cmd.Args = append(cmd.Args, args...)
	return cmd
}

// heedNot makes this process deaf to signals, by receiving them: ignored ones stay ignored in whatever it starts, also
// where our own caller (nohup) ignored them; received ones have their default action there.
func heedNot(signals ...os.Signal) { signal.Notify(make(chan os.Signal, 1), signals...) }

// guestPath is where commands are looked for beyond the machine's own.
const guestPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// guestEnv is the whole environment of a process in a machine.
func guestEnv(l ledger, rec record) []string {
	dir := l.dir(rec.ID)
	path := filepath.Join(dir, "bin") + ":" + guestPath
	if extra := systemPath(); extra != "" {
		path += ":" + extra
	}
	return []string{
		"HOME=" + filepath.Join(dir, "home"),
		"PATH=" + path,
		"TMPDIR=" + filepath.Join(dir, "tmp"),
		"XDG_RUNTIME_DIR=" + filepath.Join(dir, "run"),
		"USER=" + rec.User,
		"LOGNAME=" + rec.User,
		"SHELL=/bin/sh",
		"LANG=C.UTF-8",
		EnvMachine + "=" + rec.ID,
		EnvNotice + "=" + filepath.Join(dir, "notice.json"),
		EnvLease + "=" + filepath.Join(dir, "lease"),
		EnvRoot + "=" + l.root,
	}
}

// furnish fills a machine's new folder; final is the path it will have.
func furnish(dir, final string, rec record, hostKey []byte, authorized []string) error {
	for _, sub := range []string{"bin", "etc/ssh", "home", "run", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return err
		}
	}
	lease := quote(filepath.Join(final, "lease"))
	poweroff := "#!/bin/sh\n# Ends this machine.\nexec echo poweroff >" + lease + "\n"
	renew := `#!/bin/sh
# Makes this machine end so many seconds from now unless renewed.
case "$1" in ''|*[!0-9.]*) echo "usage: launcher-machine-lease SECONDS" >&2; exit 2;; esac
exec echo "$1" >` + lease + "\n"
	keys := quote(filepath.Join(final, "etc", "ssh"))
	rekey := `#!/bin/sh
# Replaces this machine's SSH host key by the private key on stdin, from the next connection on.
umask 077
new=` + keys + `/.host_key.$$
cat >"$new" && grep -q 'PRIVATE KEY-----$' "$new" && exec mv "$new" ` + keys + `/host_key
rm -f "$new"
echo "launcher-machine-rekey: no private key on stdin" >&2
exit 1
`
	files := []struct {
		name string
		mode os.FileMode
		text string
	}{
		{"bin/poweroff", 0o700, poweroff},
		{"bin/shutdown", 0o700, poweroff},
		{"bin/halt", 0o700, poweroff},
		{"bin/launcher-machine-lease", 0o700, renew},
		{"bin/launcher-machine-rekey", 0o700, rekey},
		{"etc/ssh/host_key", 0o600, string(hostKey)},
		{"etc/ssh/authorized_keys", 0o600, strings.Join(authorized, "\n") + "\n"},
	}
	for _, f := range files {
		// O_EXCL: the folder is new and ours. The mode given here is subject to the umask, which never takes from the owner in practice.
		if err := os.WriteFile(filepath.Join(dir, f.name), []byte(f.text), f.mode); err != nil {
			return err
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "lease"), 0o600); err != nil {
		return fmt.Errorf("make lease FIFO: %w", err)
	}
	return writeRecord(filepath.Join(dir, "machine.json"), rec)
}

// quote makes one word of text for a POSIX shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// startMachines is the start role: it starts the outer process of each machine, which inherits the machine's lock and
// control socket, and leaves; they become children of init. A machine that could not be started is printed as a line "ID error".
func startMachines(root string, ids []string, out io.Writer) error {
	l := ledger{root}
	for i, id := range ids {
		if err := startOuter(l, id, fdAlive+2*i); err != nil {
			fmt.Fprintf(out, "%s %s\n", id, strings.ReplaceAll(err.Error(), "\n", " "))
		}
	}
	return nil
}

func startOuter(l ledger, id string, fd int) error {
	alive, err := inherited(fd, "alive")
	if err != nil {
		return err
	}
	defer alive.Close()
	control, err := inherited(fd+1, "control")
	if err != nil {
		return err
	}
	defer control.Close()
	rec, ok, err := l.read(id)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("no record of machine %s", id)
	}
	log, err := os.OpenFile(filepath.Join(l.dir(id), "log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := again(rec.Command, roleOuter, l.dir(id))
	cmd.Dir = "/"
	cmd.Env = guestEnv(l, rec)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{alive, control}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	return cmd.Process.Release()
}

// launch starts the hypervisors of machines whose locks and control sockets are files, two per machine. It returns why some did not start.
func launch(ctx context.Context, command []string, l ledger, ids []string, files []*os.File) (map[string]string, error) {
	args := append(append([]string{}, command[1:]...), roleStart, l.root)
	cmd := exec.CommandContext(ctx, command[0], append(args, ids...)...)
	cmd.Env = []string{"PATH=" + guestPath}
	cmd.Dir = "/"
	cmd.ExtraFiles = files
	// Ctrl-C at the caller's terminal is not for us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run %s %s: %w: %s", strings.Join(command, " "), roleStart, err, strings.TrimSpace(errs.String()))
	}
	failed := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if id, text, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			failed[id] = text
		}
	}
	return failed, nil
}

// seconds reads a lease's length.
func seconds(text string) (float64, bool) {
	s, err := strconv.ParseFloat(text, 64)
	const year = 365 * 24 * 3600
	return min(s, year), err == nil && s >= 0
}
