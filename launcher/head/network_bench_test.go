package head

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshd"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

const oneWorker = `
job "t" {
  provider "local" {}
  workers { count = 1 }
  run "ranks" { command = "echo up g$LAUNCHER_GENERATION $LAUNCHER_NODE; exec sleep 1000" }
}`

// watchedPath is a way to machines that counts, and may put the agent in place before anything is counted.
type watchedPath struct {
	delay     time.Duration // one way
	agentFile string        // put on the machine first; empty: it is sent as always

	mu    sync.Mutex
	relay *sshd.Relay
	execs int
	began time.Time // of the dial
	// As node.joined was recorded.
	joined      sshd.Counts
	joinedAfter time.Duration
}

func (p *watchedPath) network() Network {
	return Network{Dial: p.dial, Start: p.start}
}

func (p *watchedPath) dial(ctx context.Context, t sshexec.Target) (*sshexec.Conn, error) {
	direct, err := sshexec.DialWhenUp(ctx, t, sshexec.Pacing{})
	if err != nil {
		return nil, err
	}
	defer direct.Close()
	if p.agentFile != "" {
		line := "mkdir -p $HOME/.launcher/bin && cp " + p.agentFile + " $HOME/.launcher/bin/ && chmod 700 $HOME/.launcher/bin/*"
		ch, err := direct.Channel(ctx, line)
		if err != nil {
			return nil, err
		}
		defer ch.Close()
		if _, err := ch.Read(make([]byte, 1)); err == nil {
			return nil, errors.New("the copy says something")
		}
	}
	relay, err := sshd.NewRelay(t.Addr)
	if err != nil {
		return nil, err
	}
	relay.SetDelay(p.delay)
	p.mu.Lock()
	p.relay, p.began = relay, time.Now()
	p.mu.Unlock()
	t.Addr = relay.Addr()
	return sshexec.Dial(ctx, t)
}

func (p *watchedPath) start(ctx context.Context, conn *sshexec.Conn, program bootstrap.Program) (net.Conn, error) {
	p.mu.Lock()
	p.execs++
	p.mu.Unlock()
	return bootstrap.Start(ctx, conn, program)
}

func (p *watchedPath) recorded(e journal.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.Kind == journal.NodeJoined {
		p.joined, p.joinedAfter = p.relay.Counts(), time.Since(p.began)
	}
}

func (p *watchedPath) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.relay == nil {
		return nil
	}
	return p.relay.Close()
}

// placedAgent is a copy of the agent under the name by which bootstrap looks for it.
func placedAgent(b *testing.B) string {
	agent, err := shippedAgent()
	if err != nil {
		b.Fatal(err)
	}
	file := filepath.Join(b.TempDir(), "launcher-agent-"+agent.sha256)
	if err := os.WriteFile(file, agent.program, 0o700); err != nil {
		b.Fatal(err)
	}
	return file
}

// BenchmarkJoin counts round trips from the SYN to node.joined on a line of 80 ms, and takes the time on it and without a delay. Where the agent is
// sent, acknowledgements of the data count as round trips too, though nobody waits for most of them; what was waited for is the difference of the
// two times.
func BenchmarkJoin(b *testing.B) {
	const oneWay, runs = 40 * time.Millisecond, 3
	placed := placedAgent(b)
	for _, c := range []struct{ name, agentFile string }{{"agent-there", placed}, {"agent-sent", ""}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				var near, far []time.Duration
				var trips []int
				var last *watchedPath
				for i := range runs {
					for _, delay := range []time.Duration{0, oneWay} {
						p := &watchedPath{agentFile: c.agentFile, delay: delay}
						if err := joinOnce(b, fmt.Sprintf("bench-%s-%d-%v", c.name, i, delay), p); err != nil {
							b.Error(err)
							return
						}
						if delay == 0 {
							near = append(near, p.joinedAfter)
							continue
						}
						far, trips, last = append(far, p.joinedAfter), append(trips, p.joined.RoundTrips), p
					}
				}
				slices.Sort(trips)
				counted := trips[len(trips)/2]
				waited := (newSpread(far).median() - newSpread(near).median()) / (2 * oneWay.Seconds())
				b.ReportMetric(float64(counted), "round-trips")
				b.ReportMetric(waited, "round-trips-waited")
				b.ReportMetric(newSpread(near).median(), "s-no-delay")
				b.Logf("SYN → node.joined, %s | 9 for one ssh command, and Ray runs 5 to 28 of them | %d round trips counted, %.1f waited for (at most 13); %d connection, %d command, %d KiB up, %d KiB down",
					c.name, counted, waited, last.joined.Conns, last.execs, last.joined.Up>>10, last.joined.Down>>10)
				b.Logf("SYN → node.joined, %s, without a delay | – | %v", c.name, newSpread(near))
			}
		})
	}
}

func joinOnce(b *testing.B, id string, p *watchedPath) (err error) {
	r, err := startBenchRun(b, benchOptions{id: id, hcl: oneWorker, network: p.network(), recorded: p.recorded})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(), p.close()) }()
	_, err = r.awaitKind(journal.NodeJoined, "")
	return err
}

// usage is what a process has and used.
type usage struct {
	rss int64 // bytes
	cpu time.Duration
}

// usageOf reads a process of this machine.
func usageOf(pid int) (u usage, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseInt(strings.Fields(kib)[0], 10, 64)
			if err != nil {
				return u, err
			}
			u.rss = n << 10
		}
	}
	// The sum over threads; the file of the process itself is its first thread's.
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return u, err
	}
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		ns, err := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
		if err != nil {
			return u, err
		}
		u.cpu += time.Duration(ns)
	}
	return u, nil
}

// agentOf finds the agent's process on a local machine.
func agentOf(machine string) (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		environ, _ := os.ReadFile(f)
		cmdline, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "cmdline"))
		if strings.Contains(string(environ), "LAUNCHER_MACHINE="+machine+"\x00") && strings.Contains(string(cmdline), "launcher-agent") && strings.Contains(string(cmdline), "\x00daemon\x00") {
			return strconv.Atoi(filepath.Base(filepath.Dir(f)))
		}
	}
	return 0, fmt.Errorf("no agent on machine %s", machine)
}

// window is for how long idle processes are watched.
func window(b *testing.B) time.Duration {
	text := os.Getenv("LAUNCHER_BENCH_WINDOW")
	if text == "" {
		return 20 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		b.Fatal(err)
	}
	return d
}

// BenchmarkIdleAgent measures the agent of a worker whose one rank sleeps.
func BenchmarkIdleAgent(b *testing.B) {
	if runtime.GOOS != "linux" {
		b.Skip("reads /proc")
	}
	watch := window(b)
	for b.Loop() {
		if err := idleAgent(b, watch); err != nil {
			b.Error(err)
			return
		}
	}
}

func idleAgent(b *testing.B, watch time.Duration) (err error) {
	r, err := startBenchRun(b, benchOptions{id: "bench-idle", hcl: oneWorker})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if _, err := r.awaitKind(journal.GenerationFormed, ""); err != nil {
		return err
	}
	if _, err := r.awaitUp(); err != nil {
		return err
	}
	settle()
	pid, err := agentOf(r.journal.State().Nodes["w0.1"].Machine.ID)
	if err != nil {
		return err
	}
	before, err := usageOf(pid)
	if err != nil {
		return err
	}
	<-time.After(watch)
	after, err := usageOf(pid)
	if err != nil {
		return err
	}
	share := 100 * (after.cpu - before.cpu).Seconds() / watch.Seconds()
	b.ReportMetric(float64(after.rss)/(1<<20), "MiB-RSS")
	b.ReportMetric(share, "%-core")
	b.Logf("idle agent, %v | – | %.1f MiB RSS (at most 20), %.2f %% of a core (at most 0.2)", watch, float64(after.rss)/(1<<20), share)
	return nil
}
