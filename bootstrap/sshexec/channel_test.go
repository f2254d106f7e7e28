package sshexec_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshd"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
)

func openChannel(t *testing.T, c *sshexec.Conn, cmd string) *sshexec.Channel {
	t.Helper()
	ch, err := c.Channel(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

func TestChannelEcho(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := newMachine(t, sshd.Options{})
		defer stop()
		c := m.dial(t)
		defer c.Close()
		ch := openChannel(t, c, "cat")
		in := strings.Repeat("0123456789abcdef", 1<<16)
		var wg sync.WaitGroup
		wg.Go(func() {
			if n, err := io.WriteString(ch, in); n != len(in) || err != nil {
				t.Errorf("Write = %d, %v", n, err)
			}
			ch.CloseWrite()
		})
		got, err := io.ReadAll(ch)
		wg.Wait()
		if err != nil || string(got) != in {
			t.Errorf("got %d bytes and %v, want %d back", len(got), err, len(in))
		}
		if exit, err := ch.Wait(t.Context()); err != nil || !exit.OK() {
			t.Errorf("Wait = %v, %v", exit, err)
		}
		if err := ch.Close(); err != nil {
			t.Error(err)
		}
		if _, err := ch.Write([]byte("x")); !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("Write after Close: %v", err)
		}
	})
}

// TestChannelCloseFlushes: what was written before Close arrives.
func TestChannelCloseFlushes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := make(chan int, 1)
		m, stop := newMachine(t, sshd.Options{Runner: sshd.RunnerFunc(func(_ context.Context, c sshd.Command) sshd.Exit {
			n, _ := io.Copy(io.Discard, c.Stdin)
			got <- int(n)
			return sshd.Exit{}
		})})
		defer stop()
		c := m.dial(t)
		defer c.Close()
		ch := openChannel(t, c, "sink")
		want := 60 << 10
		if _, err := ch.Write(make([]byte, want)); err != nil {
			t.Fatal(err)
		}
		ch.Close()
		if got := <-got; got != want {
			t.Errorf("command read %d bytes, want %d", got, want)
		}
		if _, err := ch.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read after Close: %v, want net.ErrClosed", err)
		}
	})
}

func TestChannelFailedCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := newMachine(t, sshd.Options{})
		defer stop()
		c := m.dial(t)
		defer c.Close()
		_, err := io.ReadAll(openChannel(t, c, "nonsense"))
		failed, ok := errors.AsType[*sshexec.ExitError](err)
		if !ok || failed.Exit.Code != 127 || !strings.Contains(err.Error(), "not found: nonsense") {
			t.Errorf("Read ended with %v, want exit 127 and the last line of stderr", err)
		}
		ch := openChannel(t, c, "hour")
		m.net.Cut("laptop", "node")
		if _, err := io.ReadAll(ch); sshexec.Classify(err) != sshexec.Dropped {
			t.Errorf("Read of a cut connection ended with %v, want class dropped", err)
		}
	})
}

func TestChannelDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := newMachine(t, sshd.Options{})
		defer stop()
		c := m.dial(t)
		defer c.Close()
		ch := openChannel(t, c, "hour") // reads nothing, writes nothing
		timedOut := func(what string, after time.Duration, do func() error) {
			t.Helper()
			start := time.Now()
			if err := do(); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: %v, want a timeout", what, err)
			}
			if took := time.Since(start); took != after {
				t.Errorf("%s took %v, want %v", what, took, after)
			}
		}
		read := func() error { _, err := ch.Read(make([]byte, 1)); return err }
		ch.SetReadDeadline(time.Now().Add(time.Second))
		timedOut("read", time.Second, read)
		timedOut("read again", 0, read)
		time.AfterFunc(time.Minute, func() { ch.SetReadDeadline(time.Now()) })
		ch.SetReadDeadline(time.Time{})
		timedOut("read, deadline set meanwhile", time.Minute, read)
		ch.SetWriteDeadline(time.Now().Add(time.Second))
		timedOut("write", time.Second, func() error {
			_, err := ch.Write(make([]byte, 4<<20)) // more than window and buffer
			return err
		})
		closed := make(chan error, 1)
		ch.SetDeadline(time.Time{})
		go func() { closed <- read() }()
		synctest.Wait()
		start := time.Now()
		ch.Close()
		if err := <-closed; !errors.Is(err, net.ErrClosed) || time.Since(start) > 0 {
			t.Errorf("Read during Close: %v after %v, want net.ErrClosed at once", err, time.Since(start))
		}
		// The command reads nothing, so only the end of the lingering closes the channel.
		if _, err := ch.Wait(t.Context()); !errors.Is(err, sshexec.ErrNoExit) || time.Since(start) > 6*time.Second {
			t.Errorf("channel over after %v with %v, want 5 s and ErrNoExit", time.Since(start), err)
		}
	})
}

// TestStalledStart: calls that x/crypto cannot interrupt return with their ctx,
// and what they had begun is cleaned up when the line is back.
func TestStalledStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := newMachine(t, sshd.Options{MaxSessions: 1})
		defer stop()
		target := m.target()
		target.KeepAlive = -1
		c, err := sshexec.Dial(t.Context(), target)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		m.net.Stall("node", "laptop", true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if _, err := c.Channel(ctx, "hour"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("Channel: %v after %v, want the deadline at 1s", err, time.Since(start))
		}
		if _, err := c.Dial(ctx, "tcp", "127.0.0.1:1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Dial: %v, want the deadline", err)
		}
		m.net.Stall("node", "laptop", false)
		time.Sleep(time.Minute)
		if _, err := c.Run(t.Context(), "true"); err != nil { // the one session is free again
			t.Errorf("after the stall: %v", err)
		}
	})
}

// TestGRPC is the reason Channel exists: a whole gRPC service over one exec
// channel over an in-memory connection in virtual time.
func TestGRPC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := health.NewServer()
		status.SetServingStatus("agent", healthpb.HealthCheckResponse_SERVING)
		server := grpc.NewServer()
		healthpb.RegisterHealthServer(server, status)
		agents := newConnListener()
		served := make(chan error, 1)
		go func() { served <- server.Serve(agents) }()
		m, stop := newMachine(t, sshd.Options{Runner: sshd.RunnerFunc(func(ctx context.Context, c sshd.Command) sshd.Exit {
			ours, theirs := sshd.Pipe(0)
			agents.conns <- theirs
			var wg sync.WaitGroup
			wg.Go(func() {
				io.Copy(ours, c.Stdin)
				ours.(interface{ CloseWrite() error }).CloseWrite()
			})
			io.Copy(c.Stdout, ours)
			ours.Close()
			c.Stdin.Close()
			wg.Wait()
			return sshd.Exit{}
		})})
		defer stop()
		c := m.dial(t)
		defer c.Close()
		client, err := grpc.NewClient("passthrough:agent", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return c.Channel(ctx, "connect") }))
		if err != nil {
			t.Fatal(err)
		}
		rpc := healthpb.NewHealthClient(client)
		got, err := rpc.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "agent"})
		if err != nil || got.Status != healthpb.HealthCheckResponse_SERVING {
			t.Fatalf("Check = %v, %v", got, err)
		}
		watch, err := rpc.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "agent"})
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Hour, func() { status.SetServingStatus("agent", healthpb.HealthCheckResponse_NOT_SERVING) })
		start := time.Now()
		for _, want := range []healthpb.HealthCheckResponse_ServingStatus{
			healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING,
		} {
			got, err := watch.Recv()
			if err != nil || got.Status != want {
				t.Fatalf("Recv = %v, %v; want %v", got, err, want)
			}
		}
		if took := time.Since(start); took < 59*time.Minute || took > 61*time.Minute {
			t.Errorf("the stream's event came after %v, want an hour", took)
		}
		m.net.Cut("laptop", "node")
		if _, err := watch.Recv(); err == nil {
			t.Error("the stream outlived its connection")
		}
		client.Close()
		server.Stop()
		<-served
	})
}

// connListener accepts what is handed to it.
type connListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newConnListener() *connListener {
	return &connListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *connListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *connListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *connListener) Addr() net.Addr { return &net.UnixAddr{Name: "agent", Net: "unix"} }

func TestRedact(t *testing.T) {
	r := sshexec.NewRedactor("hunter22", "hunter22-long", "abc", "line one\nline two", "p@ss word")
	for _, tt := range []struct{ name, in, want string }{
		{"plain", "nothing here", "nothing here"},
		{"one", "key=hunter22.", "key=[redacted]."},
		{"longest", "key=hunter22-long.", "key=[redacted]."},
		{"prefix of the longer", "hunter22-lo", "[redacted]-lo"},
		{"short value", "abc", "abc"},
		{"line of a longer secret", "2: line two!", "2: [redacted]!"},
		{"escaped", "q=p%40ss+word", "q=[redacted]"},
		{"base64", "aHVudGVyMjI=", "[redacted]"},
		{"twice", "hunter22hunter22", "[redacted][redacted]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := r.String(tt.in); got != tt.want {
				t.Errorf("String(%q) = %q, want %q", tt.in, got, tt.want)
			}
		})
	}
	var out bytes.Buffer
	w := r.Writer(&out)
	io.WriteString(w, "a hunt")
	if got, want := out.String(), "a "; got != want {
		t.Errorf("after a beginning: %q, want %q", got, want)
	}
	io.WriteString(w, "ress")
	if got, want := out.String(), "a huntress"; got != want {
		t.Errorf("after it was none: %q, want %q", got, want)
	}
}

// FuzzRedact: however the text is cut, the stream says what the whole would, and
// no secret is in it.
func FuzzRedact(f *testing.F) {
	f.Add("say hunter22 and hunter2222", "hunter22", "2222", 3)
	f.Add("aaaaaaaaaaab", "aaaab", "aaaa", 1)
	f.Add("xabcdabceabcdabcdx", "abcdabcd", "bcde", 5)
	f.Fuzz(func(t *testing.T, text, one, two string, cut int) {
		r := sshexec.NewRedactor(one, two)
		whole := r.String(text)
		var out strings.Builder
		w := r.Writer(&out)
		step := max(1, cut%17)
		for rest := text; rest != ""; {
			n := min(step, len(rest))
			if _, err := io.WriteString(w, rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); got != whole {
			t.Errorf("in steps of %d: %q, want %q", step, got, whole)
		}
		if strings.Contains(text, sshexec.Redacted) {
			return
		}
		for part := range strings.SplitSeq(whole, sshexec.Redacted) {
			for _, secret := range []string{one, two} {
				if len(secret) >= 4 && strings.Contains(part, secret) {
					t.Errorf("%q is left in %q", secret, part)
				}
			}
		}
	})
}

// TestIdleGoroutines: a process with a thousand connections has each of these a
// thousand times, with a stack: of the 15, 3 are x/crypto's here and 3 are ours,
// the rest is the server's.
func TestIdleGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := newMachine(t, sshd.Options{})
		defer stop()
		synctest.Wait()
		before := runtime.NumGoroutine()
		c := m.dial(t)
		defer c.Close()
		ch := openChannel(t, c, "cat")
		if _, err := ch.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(ch, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got, want := runtime.NumGoroutine()-before, 15; got > want {
			t.Errorf("%d goroutines for a connection and a channel, want %d", got, want)
		}
		// The next command's requests are taken as well, while the first lives and after it.
		for range 2 {
			if r, err := c.Run(t.Context(), "hello"); err != nil || r.Exit.Code != 3 {
				t.Errorf("Run = %v, %v, want exit code 3", r.Exit, err)
			}
			ch.CloseWrite()
			if exit, err := ch.Wait(t.Context()); err != nil || !exit.OK() {
				t.Errorf("Wait = %v, %v", exit, err)
			}
		}
	})
}

// BenchmarkIdleChannel reports what a connection with one open channel holds, as
// the head has one per worker: both ends, and the difference is the client's.
func BenchmarkIdleChannel(b *testing.B) {
	m, stop := newMachine(b, sshd.Options{})
	defer stop()
	target := m.target()
	m.net.SetLatency("laptop", "node", 0)
	m.net.SetLatency("node", "laptop", 0)
	const peers = 100
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		goroutines := runtime.NumGoroutine()
		conns := make([]*sshexec.Conn, peers)
		for i := range conns {
			var err error
			if conns[i], err = sshexec.Dial(b.Context(), target); err != nil {
				b.Fatal(err)
			}
			if _, err := conns[i].Channel(b.Context(), "cat"); err != nil {
				b.Fatal(err)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapInuse+after.StackInuse-before.HeapInuse-before.StackInuse)/peers/1024, "KiB/pair")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/peers, "goroutines/pair")
		for _, c := range conns {
			if err := c.Close(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkChannel is the throughput of one channel, echoed, in memory.
func BenchmarkChannel(b *testing.B) {
	m, stop := newMachine(b, sshd.Options{})
	defer stop()
	m.net.SetLatency("laptop", "node", 0)
	m.net.SetLatency("node", "laptop", 0)
	c := m.dial(b)
	defer c.Close()
	ch, err := c.Channel(b.Context(), "cat")
	if err != nil {
		b.Fatal(err)
	}
	defer ch.Close()
	chunk, back := make([]byte, 32<<10), make([]byte, 32<<10)
	b.SetBytes(int64(len(chunk)))
	for b.Loop() {
		if _, err := ch.Write(chunk); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(ch, back); err != nil {
			b.Fatal(err)
		}
	}
}
