package tcpstore

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
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

// storeServer is a server in a process of its own.
type storeServer struct {
	address, version string
	pid              int
}

// startTorch starts torchServer with the first Python that has PyTorch, if there is one.
func startTorch(b *testing.B) (server storeServer, ok bool) {
	b.Helper()
	pythons := []string{"python3", "/usr/bin/python3"}
	if p := os.Getenv("LAUNCHER_BENCH_PYTHON"); p != "" {
		pythons = []string{p}
	}
	for _, python := range pythons {
		cmd := exec.Command(python, "-c", torchServer)
		if port, version, ok := strings.Cut(startServer(b, cmd), " "); ok {
			return storeServer{"127.0.0.1:" + port, version, cmd.Process.Pid}, true
		}
	}
	return server, false
}

const serverChild = "LAUNCHER_BENCH_STORE"

// startOurs starts our server in a process of its own too: the scheduler shares the machine out by thread.
func startOurs(b *testing.B) storeServer {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestBenchServer$")
	cmd.Env = append(os.Environ(), serverChild+"=1")
	address := startServer(b, cmd)
	if address == "" {
		b.Fatal("our server does not start")
	}
	return storeServer{address: address, pid: cmd.Process.Pid}
}

// startServer starts a program that says one line and then serves until its standard input ends. It returns the line, empty where there is none.
func startServer(b *testing.B, cmd *exec.Cmd) string {
	b.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if cmd.Start() != nil {
		return "" // no such program
	}
	b.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
	})
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	return strings.TrimSpace(line)
}

// TestBenchServer is the server process of BenchmarkTorch. Without its variable there is nothing to do.
func TestBenchServer(t *testing.T) {
	if os.Getenv(serverChild) == "" {
		return
	}
	fmt.Println(serveTCP(t, New(Options{})))
	io.Copy(io.Discard, os.Stdin)
}

// cpu is the processor time the server has had, 0 where the system has no /proc.
func (s storeServer) cpu() (total time.Duration) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", s.pid))
	for _, task := range tasks {
		b, _ := os.ReadFile(task)
		var ns int64
		fmt.Sscan(string(b), &ns)
		total += time.Duration(ns)
	}
	return total
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

// BenchmarkTorch lets the same clients work against PyTorch's own server and ours, in turns. Where the clients take most of the machine the rates
// come out alike; what the server itself spends on an operation shows what it could do.
func BenchmarkTorch(b *testing.B) {
	torch, ok := startTorch(b)
	if !ok {
		b.Skip("no Python with PyTorch")
	}
	ours := startOurs(b)
	dialect := dialectOf(torch.version)
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
				const turns, turn = 5, 300 * time.Millisecond
				var theirs, own pace
				for b.Loop() {
					for range turns {
						theirs.measure(b, torch, dialect, n, turn, op.operate)
						own.measure(b, ours, dialect, n, turn, op.operate)
					}
				}
				b.ReportMetric(own.median(), "ops/s")
				b.ReportMetric(own.median()/theirs.median(), "of-torch")
				b.Logf("store %s/s, %d clients | %.0f (torch %s) | %.0f: %.1f times (at least 1.5); the server's own time %.1f µs (torch %.1f µs) an operation",
					op.name, n, theirs.median(), torch.version, own.median(), own.median()/theirs.median(), own.cost(), theirs.cost())
			})
		}
	}
}

// pace is how fast a server was.
type pace struct {
	rates []float64 // operations a second, by turn
	done  int64
	cpu   time.Duration
}

func (p *pace) median() float64 {
	slices.Sort(p.rates)
	return p.rates[len(p.rates)/2]
}

// cost is in microseconds.
func (p *pace) cost() float64 { return float64(p.cpu.Microseconds()) / float64(max(p.done, 1)) }

// measure has n clients work together for so long.
func (p *pace) measure(b *testing.B, s storeServer, dialect Dialect, n int, long time.Duration, operate func(*Client) error) {
	clients := make([]*Client, n)
	for i := range clients {
		c, err := Dial(context.Background(), s.address, ClientOptions{Dialect: dialect})
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
	began, before := time.Now(), s.cpu()
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
	p.rates = append(p.rates, float64(done.Load())/time.Since(began).Seconds())
	p.done += done.Load()
	p.cpu += s.cpu() - before
}
