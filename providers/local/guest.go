package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshd"
)

// guest is the inside of a machine as the hypervisor sees it.
type guest struct {
	cmd      *exec.Cmd
	sandbox  string
	lifeline *os.File
	address  chan string   // gets the SSH server's address, once
	exited   chan struct{} // closed when init is gone and reaped
	wg       sync.WaitGroup
}

// startGuest starts init in the best sandbox the kernel grants. The calling goroutine must be locked to a thread that
// lives as long as the hypervisor: the parent-death signal is bound to it (prctl(2)).
func startGuest(l ledger, rec record, alive *os.File) (*guest, error) {
	lifelineR, lifelineW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer lifelineR.Close()
	reportR, reportW, err := os.Pipe()
	if err != nil {
		lifelineW.Close()
		return nil, err
	}
	defer reportW.Close()
	g := &guest{lifeline: lifelineW, address: make(chan string, 1), exited: make(chan struct{})}
	var errs []error
	for _, sandbox := range sandboxes(rec.Sandbox) {
		cmd := again(rec.Command, roleInit, l.dir(rec.ID), sandbox)
		cmd.Dir = filepath.Join(l.dir(rec.ID), "home")
		cmd.Env = guestEnv(l, rec)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.ExtraFiles = []*os.File{alive, lifelineR, reportW}
		cmd.SysProcAttr = sandboxAttr(sandbox)
		if err := cmd.Start(); err != nil {
			errs = append(errs, fmt.Errorf("start guest (%s): %w", sandbox, err))
			continue
		}
		g.cmd, g.sandbox = cmd, sandbox
		break
	}
	if g.cmd == nil {
		lifelineW.Close()
		reportR.Close()
		return nil, errors.Join(errs...)
	}
	g.wg.Go(func() {
		defer reportR.Close()
		text, err := io.ReadAll(io.LimitReader(reportR, 256))
		if address := strings.TrimSpace(string(text)); err == nil && address != "" {
			g.address <- address
		}
	})
	g.wg.Go(func() {
		_ = g.cmd.Wait() // that it ended is what counts
		close(g.exited)
	})
	return g, nil
}

// end kills the guest and all in it, and returns when init is reaped.
func (g *guest) end() {
	g.lifeline.Close()
	if !confined(g.sandbox) {
		// Init ends its descendants, which only it can find, then itself.
		select {
		case <-g.exited:
		case <-time.After(sweepTimeout):
		}
	}
	_ = g.cmd.Process.Kill() // gone already is fine
	g.wg.Wait()
}

// runInit is the init role: the first process of the guest. It starts the SSH server and reaps orphans until the server
// ends or the hypervisor is gone; with it ends whatever the guest holds.
func runInit(dir, sandbox string) error {
	// A PID namespace's init gets no signal without a handler, and the Go runtime has handlers for most: what a guest sends
	// to process 1 must not end it.
	heedNot(unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGPIPE)
	runtime.LockOSThread() // capabilities and the server's parent-death signal are this thread's
	defer runtime.UnlockOSThread()
	alive, err := inherited(fdAlive, "alive")
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(alive)                             // the lock is held until we are gone
	if err := unix.SetNonblock(fdLifeline, true); err != nil { // so that closing it ends a read
		return fmt.Errorf("inherit lifeline: %w", err)
	}
	lifeline, err := inherited(fdLifeline, "lifeline")
	if err != nil {
		return err
	}
	report, err := inherited(fdReport, "report")
	if err != nil {
		return err
	}
	if confined(sandbox) {
		if err := settle(dir); err != nil {
			fmt.Fprintln(os.Stderr, "machine: do without:", err)
		}
		if err := dropCapabilities(); err != nil {
			return fmt.Errorf("drop capabilities: %w", err)
		}
	} else if err := adoptOrphans(); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}

	l := ledger{filepath.Dir(filepath.Dir(dir))}
	rec, ok, err := l.read(filepath.Base(dir))
	if err != nil || !ok {
		return errors.Join(fmt.Errorf("no record in %s", dir), err)
	}
	cmd := again(rec.Command, roleServe, dir)
	server, err := os.StartProcess(cmd.Path, cmd.Args, &os.ProcAttr{
		Dir: filepath.Join(dir, "home"), Env: os.Environ(), Sys: serveAttr(),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, nil, nil, report},
	})
	if err != nil {
		return fmt.Errorf("start ssh server: %w", err)
	}
	report.Close()
	pid := server.Pid
	server.Release() // the loop below reaps it with all others

	var orphaned sync.WaitGroup
	defer orphaned.Wait()
	defer lifeline.Close()
	orphaned.Go(func() {
		// Nothing is ever written: the read ends with the hypervisor, or with the machine's own end.
		_, _ = io.Copy(io.Discard, lifeline)
		_ = syscall.Kill(pid, unix.SIGKILL) // the rest follows below
	})
	for {
		var status syscall.WaitStatus
		reaped, err := syscall.Wait4(-1, &status, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || reaped == pid {
			fmt.Fprintf(os.Stderr, "machine: ssh server ended: %v\n", status)
			break
		}
	}
	if !confined(sandbox) {
		reapDescendants()
	}
	return nil
}

// reapDescendants kills and reaps until this process has no descendants, for a bounded time.
func reapDescendants() {
	deadline := time.Now().Add(sweepTimeout)
	for time.Now().Before(deadline) {
		killed := killDescendants()
		for {
			reaped, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if err != nil && err != syscall.EINTR {
				return // no children
			}
			if reaped == 0 {
				break
			}
		}
		if killed == 0 {
			return
		}
		time.Sleep(time.Millisecond) // the kernel is ending them
	}
}

// runServe is the serve role: the machine's SSH server.
func runServe(ctx context.Context, dir string) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	report, err := inherited(fdReport, "report")
	if err != nil {
		return err
	}
	keys := &keyFiles{dir: filepath.Join(dir, "etc", "ssh")}
	hostKey, authorized, err := keys.read()
	if err != nil {
		return err
	}
	server, err := sshd.New(sshd.Options{
		HostKey:        hostKey,
		AuthorizedKeys: authorized,
		Runner:         sshd.Shell{Dir: filepath.Join(dir, "home"), Env: os.Environ()},
		AllowPTY:       sshd.ShellPTY,
		AllowForward:   true,
		AcceptEnv:      []string{"TERM", "LANG", "LC_ALL"},
		Log:            slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	keys.server = server
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if _, err := io.WriteString(report, listener.Addr().String()+"\n"); err != nil {
		return fmt.Errorf("report address: %w", err)
	}
	report.Close()
	return server.Serve(ctx, rekeyingListener{listener, keys})
}

// keyFiles are the server's keys on disk. Replacing them by rename is how they are rotated.
type keyFiles struct {
	dir     string
	server  *sshd.Server
	hostKey os.FileInfo
	logins  os.FileInfo
}

func (k *keyFiles) read() (hostKey []byte, authorized []string, err error) {
	if k.hostKey, err = os.Stat(filepath.Join(k.dir, "host_key")); err != nil {
		return nil, nil, err
	}
	if k.logins, err = os.Stat(filepath.Join(k.dir, "authorized_keys")); err != nil {
		return nil, nil, err
	}
	if hostKey, err = os.ReadFile(filepath.Join(k.dir, "host_key")); err != nil {
		return nil, nil, err
	}
	lines, err := os.ReadFile(filepath.Join(k.dir, "authorized_keys"))
	if err != nil {
		return nil, nil, err
	}
	for line := range strings.Lines(string(lines)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			authorized = append(authorized, line)
		}
	}
	return hostKey, authorized, nil
}

// refresh gives the server the keys of the files if they changed.
func (k *keyFiles) refresh() error {
	hostKey, err := os.Stat(filepath.Join(k.dir, "host_key"))
	if err != nil {
		return err
	}
	logins, err := os.Stat(filepath.Join(k.dir, "authorized_keys"))
	if err != nil {
		return err
	}
	if same(hostKey, k.hostKey) && same(logins, k.logins) {
		return nil
	}
	private, lines, err := k.read()
	if err != nil {
		return err
	}
	return errors.Join(k.server.SetHostKey(private), k.server.SetAuthorizedKeys(lines...))
}

func same(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// rekeyingListener looks for new keys before each connection: no request, no signal, and nothing to wait for.
type rekeyingListener struct {
	net.Listener
	keys *keyFiles
}

func (l rekeyingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		if err := l.keys.refresh(); err != nil {
			fmt.Fprintln(os.Stderr, "machine: read new keys:", err) // and keep the old
		}
	}
	return conn, err
}
