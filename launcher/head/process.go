package head

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/providers"
)

// Greeting begins the line by which `launcher head join` answers.
const Greeting = "LAUNCHER-HEAD 1"

// Join is the one line of JSON that `launcher head join` reads before the byte stream becomes gRPC.
type Join struct {
	Run string `json:"run"`
	// Folder is the head's own; empty: $HOME/.launcher/head.
	Folder string `json:"folder,omitempty"`
	// NodeLease holds from the daemon's start; after it the machine powers itself off, unless it was renewed by Serve's or Adopt's supervisor.
	NodeLease time.Duration `json:"node_lease"`
}

// gcPercent is the daemon's GOGC, where the environment does not say: a head of a thousand workers allocates little and holds much, and
// stays below 200 MiB with it instead of 280.
const gcPercent = 25

const (
	socketName = "head.sock"
	logName    = "head.log"
	// startTimeout bounds the start of the daemon.
	startTimeout = 30 * time.Second
	// Restarts of a daemon that fails pause so long, doubling: a disk that is full for a while must not be the end.
	firstRestart = 200 * time.Millisecond
	longRestart  = 10 * time.Second
)

// Process is what the hidden command `launcher head` needs of its program.
type Process struct {
	// Self is the command line of `launcher head`.
	Self []string
	// Provider opens a provider, see Options.
	Provider func(folder, name string, env map[string]string) (providers.Provider, error)
	Version  string
}

// Command runs one of the subcommands: join (start the daemon if none runs, then bridge), connect (bridge), keep FOLDER (the daemon's
// parent: restarts it), serve FOLDER (the daemon). It returns the exit code.
func (p Process) Command(ctx context.Context, args []string) int {
	var err error
	switch {
	case len(args) == 1 && args[0] == "join":
		err = p.join(ctx)
		if err != nil {
			fmt.Printf("%s error %v\n", Greeting, err)
		}
	case len(args) == 1 && args[0] == "connect":
		err = connect(ctx, defaultFolder())
	case len(args) == 3 && args[0] == "keep":
		err = p.keep(ctx, args[1], args[2])
	case len(args) == 2 && args[0] == "serve":
		err = p.serve(ctx, args[1])
	default:
		err = errors.New("want join, connect, keep or serve")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "launcher head: %v\n", err)
		return 1
	}
	return 0
}

func defaultFolder() string { return filepath.Join(os.Getenv("HOME"), ".launcher", "head") }

// runtimeFolder is where keys and secrets lie: in memory where the machine has such a place, so that a disk that is kept or copied holds none.
func runtimeFolder(folder string) string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "launcher-head")
	}
	if dir, err := os.Stat("/dev/shm"); err == nil && dir.IsDir() && os.Getenv("LAUNCHER_MACHINE") == "" {
		return filepath.Join("/dev/shm", "launcher-head-"+strconv.Itoa(os.Getuid()))
	}
	return filepath.Join(folder, "keys")
}

// join starts the daemon if none runs, says that it is ready, and becomes the bridge to it.
func (p Process) join(ctx context.Context) error {
	var line []byte
	for b := make([]byte, 1); ; line = append(line, b[0]) { // not a byte further: what follows is gRPC
		if _, err := io.ReadFull(os.Stdin, b); err != nil {
			return fmt.Errorf("read join: %w", err)
		}
		if b[0] == '\n' {
			break
		}
	}
	j := Join{}
	if err := json.Unmarshal(line, &j); err != nil {
		return fmt.Errorf("decode join: %w", err)
	}
	folder := j.Folder
	if folder == "" {
		folder = defaultFolder()
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	// A client that redials while its first join is still at it must not start a second daemon.
	unlock, err := lockJoin(folder)
	if err != nil {
		return err
	}
	conn, err := dialSocket(ctx, folder)
	if err != nil {
		if err := p.startDaemon(ctx, folder, j.NodeLease); err != nil {
			return err
		}
		if conn, err = dialSocket(ctx, folder); err != nil {
			return err
		}
	}
	unlock()
	fmt.Printf("%s ready\n", Greeting)
	return bridge(conn)
}

// lockJoin waits until no other join is at it; the lock ends with the process at the latest, and a join is bounded by startTimeout.
func lockJoin(folder string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(folder, "join.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock join: %w", err)
	}
	return func() { f.Close() }, nil
}

// startDaemon starts the daemon's parent in a session of its own and waits until the daemon listens.
func (p Process) startDaemon(ctx context.Context, folder string, lease time.Duration) error {
	log, err := os.OpenFile(filepath.Join(folder, logName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	ready, child, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	args := append(append([]string{}, p.Self[1:]...), "keep", folder, lease.String())
	cmd := exec.Command(p.Self[0], args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = folder, log, log, []*os.File{child}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	child.Close()
	if err != nil {
		return fmt.Errorf("start daemon: %w", err)
	}
	if err := cmd.Process.Release(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if said, err := bufio.NewReader(ready).ReadString('\n'); err != nil || said != "ready\n" {
		return fmt.Errorf("start daemon: it did not come up: see %s", filepath.Join(folder, logName))
	}
	return nil
}

// keep is the daemon's parent. It starts the daemon again when it fails, and ends the machine when its lease is over:
// a daemon that hangs or cannot start cannot keep the machine alive.
func (p Process) keep(ctx context.Context, folder, leaseText string) error {
	lease, err := time.ParseDuration(leaseText)
	if err != nil {
		return err
	}
	ready := os.NewFile(3, "ready")
	leases := newMachineLease(lease)
	defer leases.stop()
	for pause := firstRestart; ; pause = min(2*pause, longRestart) {
		began := time.Now()
		renewals, child, err := os.Pipe()
		if err != nil {
			return err
		}
		args := append(append([]string{}, p.Self[1:]...), "serve", folder)
		cmd := exec.CommandContext(ctx, p.Self[0], args...)
		cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = folder, os.Stdout, os.Stderr, []*os.File{child}
		if ready != nil {
			cmd.ExtraFiles = append(cmd.ExtraFiles, ready)
		}
		err = cmd.Start()
		child.Close()
		if err == nil {
			if ready != nil {
				ready.Close()
				ready = nil
			}
			leases.follow(renewals)
			err = cmd.Wait()
		}
		renewals.Close()
		if err == nil || ctx.Err() != nil {
			return nil
		}
		fmt.Fprintf(os.Stderr, "%s the daemon ended (%v) and is started again\n", time.Now().UTC().Format(time.RFC3339), err)
		if time.Since(began) > time.Minute {
			pause = firstRestart
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// serve is the daemon.
func (p Process) serve(ctx context.Context, folder string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	renewals := os.NewFile(3, "renewals")
	ready := os.NewFile(4, "ready") // only the first daemon has one
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	d, err := NewDaemon(ctx, Options{
		Folder: folder, Runtime: runtimeFolder(folder), Version: p.Version, Log: log,
		Provider: func(name string, env map[string]string) (providers.Provider, error) {
			return p.Provider(folder, name, env)
		},
		Extend: func(t time.Duration) {
			if _, err := renewals.WriteString(strconv.FormatInt(int64(t/time.Millisecond), 10) + "\n"); err != nil {
				log.Warn("renew lease", "error", err)
			}
		},
	})
	if err != nil {
		return err
	}
	lis, err := listenSocket(folder)
	if err != nil {
		return err
	}
	if ready != nil {
		ready.WriteString("ready\n")
		ready.Close()
	}
	stop := context.AfterFunc(d.ctx, cancel)
	defer stop()
	err = control.Serve(ctx, lis, func(s *grpc.Server) { control.RegisterHeadServer(s, d) })
	d.Wait()
	if err == nil && d.Cause() != nil && ctx.Err() != nil {
		err = d.Cause()
	}
	return err
}

func listenSocket(folder string) (net.Listener, error) {
	// A socket's path may have 108 bytes (unix(7)); relative to the folder it always fits.
	if err := os.Chdir(folder); err != nil {
		return nil, err
	}
	if err := os.Remove(socketName); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", socketName)
}

func dialSocket(ctx context.Context, folder string) (*net.UnixConn, error) {
	if err := os.Chdir(folder); err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socketName)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// connect is the bridge alone.
func connect(ctx context.Context, folder string) error {
	conn, err := dialSocket(ctx, folder)
	if err != nil {
		return err
	}
	return bridge(conn)
}

// bridge joins standard input and output to conn until either ends.
func bridge(conn *net.UnixConn) error {
	defer conn.Close()
	done := make(chan error, 2)
	// These two end with the process: standard input cannot be interrupted.
	go func() {
		_, err := io.Copy(conn, os.Stdin)
		conn.CloseWrite()
		done <- err
	}()
	go func() {
		_, err := io.Copy(os.Stdout, conn)
		done <- err
	}()
	return <-done
}
