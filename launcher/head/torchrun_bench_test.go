package head

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// trainScript notices the death of a peer as training does, by a collective that fails.
const trainScript = `
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
print("up", dist.get_world_size(), flush=True)
while True:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.2)
`

// BenchmarkTorchrun takes the baseline of BenchmarkRecovery on this machine: stock torchrun, three nodes of which two must be there, gloo, everything at its
// defaults. It takes minutes, so it runs only where LAUNCHER_BENCH_TORCHRUN names a Python that has PyTorch.
func BenchmarkTorchrun(b *testing.B) {
	python := os.Getenv("LAUNCHER_BENCH_TORCHRUN")
	if python == "" {
		b.Skip("set LAUNCHER_BENCH_TORCHRUN to a Python with PyTorch")
	}
	for b.Loop() {
		if err := torchrun(b, python); err != nil {
			b.Error(err)
			return
		}
	}
}

// lineLog collects what processes write, and tells when.
type lineLog struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{}
}

func (l *lineLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.changed)
	l.changed = make(chan struct{})
	return l.text.Write(p)
}

// await waits until word was written n times since it was last cleared, clears, and returns how long after began that was.
func (l *lineLog) await(word string, n int, began time.Time) (time.Duration, error) {
	timeout := time.After(2 * time.Minute)
	for {
		l.mu.Lock()
		text, changed := l.text.String(), l.changed
		if strings.Count(text, word) >= n {
			l.text.Reset()
			l.mu.Unlock()
			return time.Since(began), nil
		}
		l.mu.Unlock()
		select {
		case <-changed:
		case <-timeout:
			return 0, fmt.Errorf("not %d times %q in two minutes: %s", n, word, text)
		}
	}
}

func torchrun(b *testing.B, python string) (err error) {
	script := filepath.Join(b.TempDir(), "train.py")
	if err := os.WriteFile(script, []byte(trainScript), 0o600); err != nil {
		return err
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	endpoint := lis.Addr().String()
	lis.Close()
	log := &lineLog{changed: make(chan struct{})}
	var started []*exec.Cmd
	defer func() {
		for _, cmd := range started {
			// The ranks are in sessions of their own; they end with the collective, or by this.
			killTree(cmd.Process.Pid)
			cmd.Wait()
		}
	}()
	start := func() error {
		// Without a pipe for the ranks' output PyTorch 1.13 does not start them under Python 3.11.
		cmd := exec.Command(python, "-m", "torch.distributed.run", "--nnodes=2:3", "--nproc_per_node=1", "--max_restarts=10", "--redirects=1", "--tee=1",
			"--rdzv_backend=c10d", "--rdzv_id=bench", "--rdzv_endpoint="+endpoint,
			// On one machine all look like the endpoint's host. The first is to be it: the store must not die with the victim.
			fmt.Sprintf("--rdzv_conf=is_host=%v", len(started) == 0), script)
		cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1")
		cmd.Stdout, cmd.Stderr = log, log
		cmd.WaitDelay = 5 * time.Second
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			return err
		}
		started = append(started, cmd)
		return nil
	}
	for range 3 {
		if err := start(); err != nil {
			return err
		}
	}
	began := time.Now()
	if _, err := log.await("up 3", 3, began); err != nil {
		return err
	}
	settle()
	killed := time.Now()
	killTree(started[2].Process.Pid)
	loss, err := log.await("up 2", 2, killed)
	if err != nil {
		return errors.Join(err, errors.New("after a kill"))
	}
	settle()
	joined := time.Now()
	if err := start(); err != nil {
		return err
	}
	join, err := log.await("up 3", 3, joined)
	if err != nil {
		return errors.Join(err, errors.New("after a join"))
	}
	b.ReportMetric(loss.Seconds(), "s-loss")
	b.ReportMetric(join.Seconds(), "s-join")
	b.Logf("torchrun here: killed → survivors running %.1f s (elsewhere %.1f), node started → world running %.1f s (elsewhere %.1f)", loss.Seconds(), torchrunLoss, join.Seconds(), torchrunJoin)
	return nil
}

// killTree kills a process and what it has started, children first found by their parent.
func killTree(pid int) {
	syscall.Kill(pid, syscall.SIGSTOP) // else it starts others meanwhile
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range stats {
		text, _ := os.ReadFile(f)
		_, after, _ := strings.Cut(string(text), ") ")
		var state string
		var parent, child int
		fmt.Sscan(after, &state, &parent)
		fmt.Sscan(filepath.Base(filepath.Dir(f)), &child)
		if parent == pid && child > 1 {
			killTree(child)
		}
	}
	syscall.Kill(pid, syscall.SIGKILL)
}
