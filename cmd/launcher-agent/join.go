package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ephemeral-launcher/launcher/launcher/control"
)

// Files in the agent's folder.
const (
	socketFile = "agent.sock"
	joinFile   = "agent.json" // the control.Join of the agent that runs, or ran last
	joinLock   = "join.lock"  // held while one join looks and starts
	daemonLock = "daemon.lock"
	stderrFile = "agent.stderr"
	logFile    = "agent.log"
)

const (
	maxJoinLine = 1 << 20
	// startLimit is how long a new agent may take until it listens.
	startLimit = 30 * time.Second
	// lockLimit is how long a join waits for another one.
	lockLimit = startLimit + 5*time.Second
)

// join makes sure that the agent of the node runs, and connects to it.
func join(stdin *os.File) (*bridge, error) {
	in := bufio.NewReaderSize(stdin, 64<<10)
	line, err := readLine(in)
	if err != nil {
		return nil, err
	}
	var j control.Join
	if err := json.Unmarshal(line, &j); err != nil {
		return nil, fmt.Errorf("parse join: %w", err)
	}
	if j.Run == "" || j.Node == "" {
		return nil, errors.New("parse join: run and node are required")
	}
	if j.Folder, err = agentFolder(j.Folder); err != nil {
		return nil, err
	}
	if err := enter(j.Folder); err != nil {
		return nil, err
	}
	unlock, err := lock(joinLock, lockLimit)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if conn, err := dial(); err == nil {
		running, err := readJoin()
		if err == nil && (running.Run != j.Run || running.Node != j.Node) {
			err = fmt.Errorf("join: the agent of node %s of run %s is here", running.Node, running.Run)
		}
		if err != nil {
			conn.Close()
			return nil, err
		}
		return &bridge{in: in, conn: conn}, nil
	}
	if err := startDaemon(j); err != nil {
		return nil, err
	}
	conn, err := dial()
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	return &bridge{in: in, conn: conn}, nil
}

// connect connects to the agent that runs.
func connect(folder string) (*bridge, error) {
	folder, err := agentFolder(folder)
	if err != nil {
		return nil, err
	}
	if err := os.Chdir(folder); err != nil {
		return nil, fmt.Errorf("connect: no agent here: %w", err)
	}
	conn, err := dial()
	if err != nil {
		return nil, fmt.Errorf("connect: no agent here: %w", err)
	}
	return &bridge{in: os.Stdin, conn: conn}, nil
}

func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case len(line) > maxJoinLine:
			return nil, fmt.Errorf("read join: no end of line in %d bytes", len(line))
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("read join: %w", err)
		}
	}
}

// enter makes the folder and goes there: the path of a unix socket has at most 108 bytes (104 on darwin), so that it
// must be a relative one.
func enter(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("make the agent's folder: %w", err)
	}
	if err := os.Chmod(folder, 0o700); err != nil {
		return fmt.Errorf("make the agent's folder: %w", err)
	}
	if err := os.Chdir(folder); err != nil {
		return fmt.Errorf("enter the agent's folder: %w", err)
	}
	return nil
}

func dial() (*net.UnixConn, error) {
	return net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: socketFile})
}

func readJoin() (control.Join, error) {
	var j control.Join
	b, err := os.ReadFile(joinFile)
	if err == nil {
		err = json.Unmarshal(b, &j)
	}
	if err != nil {
		return j, fmt.Errorf("read join of the agent: %w", err)
	}
	return j, nil
}

// lock takes a lock that ends with the process.
func lock(file string, limit time.Duration) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	// flock has no time limit of its own. The goroutine ends with the process at the latest.
	locked := make(chan error, 1)
	go func() { locked <- ignoringEINTR(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX) }) }()
	select {
	case err = <-locked:
	case <-time.After(limit):
		return nil, fmt.Errorf("lock %s: not in %v", file, limit)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", file, err)
	}
	return func() { f.Close() }, nil
}

func ignoringEINTR(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// startDaemon starts the agent in a session of its own, so that it outlives the SSH connection, and waits until it
// says over a pipe that it listens.
func startDaemon(j control.Join) error {
	data, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	if err := os.WriteFile(joinFile+".new", data, 0o600); err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	if err := os.Rename(joinFile+".new", joinFile); err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	stderr, err := os.OpenFile(stderrFile, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	defer stderr.Close()
	ready, says, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	defer ready.Close()
	cmd := exec.Command(self, "daemon", j.Folder)
	cmd.Dir = j.Folder
	cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "SSH_") })
	cmd.Env = append(cmd.Env, readyVariable+"=3")
	cmd.Stdout, cmd.Stderr = stderr, stderr
	cmd.ExtraFiles = []*os.File{says}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	says.Close()
	if err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	defer cmd.Process.Release()
	if err := ready.SetReadDeadline(time.Now().Add(startLimit)); err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	answer, err := io.ReadAll(io.LimitReader(ready, 4096))
	switch {
	case string(answer) == readyAnswer:
		return nil
	case len(answer) > 0:
		return fmt.Errorf("start agent: %s", answer)
	case err != nil:
		return fmt.Errorf("start agent: %w", err)
	}
	tail, _ := os.ReadFile(stderrFile)
	return fmt.Errorf("start agent: it ended: %s (see %s)", tail[:min(len(tail), 500)], filepath.Join(j.Folder, stderrFile))
}
