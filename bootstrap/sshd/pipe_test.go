package sshd_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPipeLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := sshd.Pipe(30 * time.Millisecond)
		start := time.Now()
		if _, err := a.Write([]byte("one")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
		a.Write([]byte("two"))
		if took := time.Since(start); took != 10*time.Millisecond {
			t.Errorf("writing took %v, want no time", took)
		}
		buf := make([]byte, 16)
		for _, want := range []struct {
			text string
			at   time.Duration
		}{{"one", 30 * time.Millisecond}, {"two", 40 * time.Millisecond}} {
			n, err := b.Read(buf)
			if got := string(buf[:n]); got != want.text || err != nil || time.Since(start) != want.at {
				t.Errorf("read %q, %v at %v; want %q at %v", got, err, time.Since(start), want.text, want.at)
			}
		}
		a.Close()
		start = time.Now()
		if n, err := b.Read(buf); n != 0 || err != io.EOF || time.Since(start) != 30*time.Millisecond {
			t.Errorf("read %d, %v after %v; want EOF one latency after the close", n, err, time.Since(start))
		}
		b.Close()
	})
}

// TestPipeUnbounded: two ends that write before they read must not deadlock.
func TestPipeUnbounded(t *testing.T) {
	a, b := sshd.Pipe(0)
	want := bytes.Repeat([]byte("0123456789"), 1<<18)
	for _, c := range []net.Conn{a, b} {
		if n, err := c.Write(want); n != len(want) || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
	for _, c := range []net.Conn{a, b} {
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("the bytes did not come through: %v", err)
		}
	}
	// Write keeps no reference to the caller's buffer.
	p := []byte("before")
	a.Write(p)
	copy(p, "after!")
	got := make([]byte, 6)
	io.ReadFull(b, got)
	if string(got) != "before" {
		t.Errorf("read %q, want what was written", got)
	}
}

func TestPipeDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := sshd.Pipe(time.Second)
		buf := make([]byte, 1)
		a.Write([]byte("x"))
		b.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if _, err := b.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read before the byte is due: %v, want a timeout", err)
		}
		b.SetReadDeadline(time.Time{})
		if n, err := b.Read(buf); n != 1 || err != nil {
			t.Errorf("read after the deadline was lifted: %d, %v", n, err)
		}
		time.AfterFunc(time.Minute, func() { b.SetDeadline(time.Now()) })
		start := time.Now()
		if _, err := b.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Minute {
			t.Errorf("deadline set during the read: %v after %v", err, time.Since(start))
		}
		if _, err := b.Write(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write past its deadline: %v, want a timeout", err)
		}
		time.AfterFunc(time.Minute, func() { a.Close() })
		if _, err := a.Read(buf); !errors.Is(err, net.ErrClosed) {
			t.Errorf("close during the read: %v, want net.ErrClosed", err)
		}
		if _, err := a.Write(buf); !errors.Is(err, net.ErrClosed) {
			t.Errorf("write after close: %v, want net.ErrClosed", err)
		}
	})
}

// TestPipeClosedPeer: as with TCP, the first write after the peer's close is lost
// silently, and later ones fail once its RST is back.
func TestPipeClosedPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := sshd.Pipe(time.Second)
		b.Write([]byte("bye"))
		b.Close()
		if _, err := a.Write([]byte("x")); err != nil {
			t.Errorf("first write: %v", err)
		}
		time.Sleep(2 * time.Second)
		if _, err := a.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("second write: %v, want EPIPE", err)
		}
		if got, err := io.ReadAll(a); string(got) != "bye" || err != nil {
			t.Errorf("what it sent before: %q, %v", got, err)
		}
	})
}

func TestNetLatencies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rtt := func(seed uint64, from, to string) time.Duration {
			n := sshd.NewNet(seed, 10*time.Millisecond, 50*time.Millisecond)
			l, err := n.Host(to).Listen(":22")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			start := time.Now()
			c, err := n.Host(from).Dial(t.Context(), "tcp", to+":22")
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			return time.Since(start)
		}
		seen := make(map[time.Duration]string)
		for _, pair := range [][2]string{{"laptop", "head"}, {"head", "w0"}, {"head", "w1"}, {"head", "w2"}, {"laptop", "w0"}} {
			got := rtt(7, pair[0], pair[1])
			if got < 20*time.Millisecond || got >= 100*time.Millisecond {
				t.Errorf("round trip %v = %v, want two draws of 10..50 ms", pair, got)
			}
			if other, ok := seen[got]; ok {
				t.Errorf("%v has the latency of %v", pair, other)
			}
			seen[got] = pair[0] + pair[1]
			if again := rtt(7, pair[0], pair[1]); again != got {
				t.Errorf("%v again = %v, want %v", pair, again, got)
			}
			if again := rtt(7, pair[1], pair[0]); again != got {
				t.Errorf("%v from the other side = %v, want %v", pair, again, got)
			}
			if other := rtt(8, pair[0], pair[1]); other == got {
				t.Errorf("%v is the same for another seed", pair)
			}
		}
	})
}

func TestNetFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sshd.NewNet(1, 10*time.Millisecond, 10*time.Millisecond)
		ctx := t.Context()
		if _, err := n.Host("a").Dial(ctx, "tcp", "b:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial to nobody: %v", err)
		}
		l, err := n.Host("b").Listen(":1")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.Host("b").Listen("b:1"); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("second listener: %v", err)
		}
		if _, err := n.Host("a").Listen("b:2"); !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Errorf("listener on another host: %v", err)
		}
		dial := func() (net.Conn, net.Conn) {
			c, err := n.Host("a").Dial(ctx, "tcp", "b:1")
			if err != nil {
				t.Fatal(err)
			}
			s, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			return c, s
		}
		buf := make([]byte, 8)

		c, s := dial()
		n.Cut("b", "a")
		for _, end := range []net.Conn{c, s} {
			if _, err := end.Read(buf); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("read of a cut connection: %v", err)
			}
		}

		c, s = dial()
		n.Stall("a", "b", true)
		c.Write([]byte("up"))
		s.Write([]byte("down"))
		if k, err := c.Read(buf); string(buf[:k]) != "down" || err != nil {
			t.Errorf("the direction that works: %q, %v", buf[:k], err)
		}
		time.AfterFunc(time.Hour, func() { n.Stall("a", "b", false) })
		start := time.Now()
		if k, err := s.Read(buf); string(buf[:k]) != "up" || err != nil || time.Since(start) < 59*time.Minute {
			t.Errorf("the stalled direction: %q, %v after %v", buf[:k], err, time.Since(start))
		}
		n.Stall("a", "b", true)
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := n.Host("a").Dial(short, "tcp", "b:1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dial over a stalled link: %v", err)
		}
		n.Stall("a", "b", false)

		n.SetLatency("a", "b", time.Minute)
		start = time.Now()
		c.Write([]byte("slow"))
		if _, err := s.Read(buf); err != nil || time.Since(start) != time.Minute {
			t.Errorf("after SetLatency: %v after %v", err, time.Since(start))
		}
		n.SetLatency("a", "b", 0)

		n.Crash("b")
		if _, err := c.Read(buf); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read from a crashed host: %v", err)
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("accept on a crashed host: %v", err)
		}
		if _, err := n.Host("a").Dial(ctx, "tcp", "b:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial to a crashed host: %v", err)
		}
	})
}

// echo serves a line-wise echo on loopback.
func echo(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

func TestRelay(t *testing.T) {
	r, err := sshd.NewRelay(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := net.Dial("tcp", r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, 4)
	for range 3 {
		if _, err := c.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			t.Fatal(err)
		}
	}
	want := sshd.Counts{Conns: 1, Flights: 6, RoundTrips: 4, Up: 12, Down: 12}
	if got := r.Counts(); got != want {
		t.Errorf("Counts() = %+v, want %+v", got, want)
	}

	r.SetDelay(20 * time.Millisecond)
	start := time.Now()
	c.Write([]byte("ping"))
	if _, err := io.ReadFull(c, buf); err != nil || time.Since(start) < 40*time.Millisecond {
		t.Errorf("round trip of a delayed relay: %v in %v, want at least 40 ms", err, time.Since(start))
	}
	r.SetDelay(0)
	r.Stall(true)
	c.Write([]byte("ping"))
	c.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
	if _, err := io.ReadFull(c, buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read through a stalled relay: %v, want a timeout", err)
	}
	c.SetReadDeadline(time.Time{})
	r.Stall(false)
	if _, err := io.ReadFull(c, buf); err != nil {
		t.Errorf("after the stall: %v", err)
	}
	r.Cut()
	if _, err := c.Read(buf); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read after Cut: %v, want a reset", err)
	}

	// A half-close and the rest of the answer get through.
	d, err := net.Dial("tcp", r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.Write([]byte("last words"))
	d.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(d); string(got) != "last words" || err != nil {
		t.Errorf("after a half-close: %q, %v", got, err)
	}
}
