package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/agent"
	"github.com/ephemeral-launcher/launcher/launcher/agent/machine"
)

const (
	// readyAnswer is what the agent says to join, over the file descriptor that readyVariable names, when it listens.
	readyAnswer   = "ready"
	readyVariable = "LAUNCHER_AGENT_READY"
	readyFile     = 3
	// logLimit bounds each of the two log files, in bytes.
	logLimit = 1 << 20
)

// daemon is the agent. folder has the join.
func daemon(folder string) (err error) {
	var ready *os.File
	if os.Getenv(readyVariable) != "" {
		ready = os.NewFile(readyFile, "ready")
		syscall.CloseOnExec(readyFile)
		os.Unsetenv(readyVariable)
	}
	answer := func(text string) {
		if ready != nil {
			ready.WriteString(text)
			ready.Close()
			ready = nil
		}
	}
	defer func() {
		if err != nil {
			answer(err.Error())
		}
	}()
	syscall.Umask(0o077)
	if folder, err = agentFolder(folder); err != nil {
		return err
	}
	if err := enter(folder); err != nil {
		return err
	}
	unlock, err := lock(daemonLock, time.Second)
	if err != nil {
		return fmt.Errorf("another agent runs in %s: %w", folder, err)
	}
	defer unlock()
	j, err := readJoin()
	if err != nil {
		return err
	}
	j.Folder = folder
	logs := &boundedFile{name: logFile, limit: logLimit}
	defer logs.Close()
	log := slog.New(slog.NewTextHandler(logs, nil))

	if err := os.Remove(socketFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old socket: %w", err)
	}
	socket, err := net.Listen("unix", socketFile)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	store, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the store: %w", err)
	}
	api, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the node-local API: %w", err)
	}
	environ := os.Environ()
	o := agent.Options{
		Join: j, Version: version(), Control: socket, Store: store, API: api,
		Environ: slices.DeleteFunc(environ, func(e string) bool {
			return strings.HasPrefix(e, "LAUNCHER_API") // of an agent that this one runs under
		}),
		Uptime: machine.Uptime, Facts: machine.Read(), Log: log,
		MachineLease: machine.Lease(os.Getenv("LAUNCHER_MACHINE_LEASE")),
	}
	switch path := os.Getenv("LAUNCHER_MACHINE_NOTICE"); j.NoticeSource {
	case "", "file":
		if path != "" {
			o.Notices = append(o.Notices, machine.FileNotices{Path: path})
		}
	case "none":
	default:
		o.Notices = append(o.Notices, machine.MetadataNotices{Source: j.NoticeSource})
	}
	a, err := agent.New(o)
	if err != nil {
		return err
	}
	// Caught and not ignored: what is ignored stays so in the processes of the job.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	answer(readyAnswer)
	err = a.Run(ctx)
	log.Info("agent ends", "error", err)
	return err
}

// boundedFile is a log that begins anew at its limit; what was before is kept once.
type boundedFile struct {
	name  string
	limit int64

	mu   sync.Mutex
	file *os.File // guarded by mu, as is size
	size int64
}

func (b *boundedFile) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.file != nil && b.size+int64(len(p)) > b.limit {
		b.file.Close()
		b.file = nil
		if err := os.Rename(b.name, b.name+".1"); err != nil {
			return 0, fmt.Errorf("rotate log: %w", err)
		}
	}
	if b.file == nil {
		f, err := os.OpenFile(b.name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return 0, fmt.Errorf("open log: %w", err)
		}
		info, err := f.Stat()
		if err != nil {
			f.Close()
			return 0, fmt.Errorf("open log: %w", err)
		}
		b.file, b.size = f, info.Size()
	}
	n, err := b.file.Write(p)
	b.size += int64(n)
	return n, err
}

func (b *boundedFile) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.file == nil {
		return nil
	}
	return b.file.Close()
}
