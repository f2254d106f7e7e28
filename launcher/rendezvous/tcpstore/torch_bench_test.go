package tcpstore

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// torchServer is PyTorch's own server; it says where it listens and with what version, and ends with its standard input.
const torchServer = `
import datetime, socket, sys
try:
    import torch
    from torch.distributed import TCPStore
except ImportError:
    sys.exit(3)
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=60))
print(port, torch.__version__, flush=True)
sys.stdin.read()
`

// startTorch starts torchServer with the first Python that has PyTorch. Empty address: there is none.
func startTorch(b *testing.B) (address, version string) {
	b.Helper()
	pythons := []string{"python3", "/usr/bin/python3"}
	if p := os.Getenv("LAUNCHER_BENCH_PYTHON"); p != "" {
		pythons = []string{p}
	}
	for _, python := range pythons {
		cmd := exec.Command(python, "-c", torchServer)
		stdin, err := cmd.StdinPipe()
		if err != nil {
			b.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if cmd.Start() != nil {
			continue // not there
		}
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		port, version, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			stdin.Close()
			cmd.Wait()
			continue
		}
		b.Cleanup(func() {
			stdin.Close()
			cmd.Wait()
		})
		return "127.0.0.1:" + port, version
	}
	return "", ""
}

// dialectOf is what clients of a PyTorch version speak, as far as this benchmark has to know: an older server understands no newer client.
func dialectOf(version string) Dialect {
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil || major < 2 || major == 2 && minor == 0 {
		return DialectA
	}
	switch {
	case minor == 1:
		return DialectB
	case minor <= 4:
		return DialectC
	}
	return DialectD
}

// BenchmarkTorch lets the same clients work against PyTorch's own server and ours, in turns.
func BenchmarkTorch(b *testing.B) {
	torch, version := startTorch(b)
	if torch == "" {
		b.Skip("no Python with PyTorch")
	}
	ours := serveTCP(b, New(Options{}))
	dialect := dialectOf(version)
	for _, op := range []struct {
		name    string
		operate func(*Client) error
	}{
		{"get", func(c *Client) error {
			_, err := c.Get(context.Background(), "/value")
			return err
		}},
		{"add", func(c *Client) error {
			_, err := c.Add(context.Background(), "/counter", 1)
			return err
		}},
	} {
		for _, n := range []int{1, 32} {
			b.Run(fmt.Sprintf("%s/clients=%d", op.name, n), func(b *testing.B) {
				const turns, turn = 3, 400 * time.Millisecond
				var theirs, own []float64
				for b.Loop() {
					for range turns {
						theirs = append(theirs, rate(b, torch, dialect, n, turn, op.operate))
						own = append(own, rate(b, ours, dialect, n, turn, op.operate))
					}
				}
				slices.Sort(theirs)
				slices.Sort(own)
				t, o := theirs[len(theirs)/2], own[len(own)/2]
				b.ReportMetric(o, "ops/s")
				b.ReportMetric(o/t, "of-torch")
				b.Logf("store %s/s, %d clients | %.0f (torch %s) | %.0f: %.1f times (at least 1.5)", op.name, n, t, version, o, o/t)
			})
		}
	}
}

// rate is how many operations a second n clients get done together.
func rate(b *testing.B, address string, dialect Dialect, n int, long time.Duration, operate func(*Client) error) float64 {
	clients := make([]*Client, n)
	for i := range clients {
		c, err := Dial(context.Background(), address, ClientOptions{Dialect: dialect})
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		clients[i] = c
	}
	if err := clients[0].Set(context.Background(), "/value", []byte("0123456789abcdef")); err != nil {
		b.Fatal(err)
	}
	var done atomic.Int64
	var work sync.WaitGroup
	began := time.Now()
	for _, c := range clients {
		work.Go(func() {
			for k := int64(0); ; k++ {
				if k%64 == 0 && time.Since(began) > long {
					done.Add(k)
					return
				}
				if err := operate(c); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	return float64(done.Load()) / time.Since(began).Seconds()
}
