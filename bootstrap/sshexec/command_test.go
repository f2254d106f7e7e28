package sshexec_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshd"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
)

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := newMachine(t, sshd.Options{})
		defer stop()
		c := m.dial(t)
		defer c.Close()
		for _, tt := range []struct {
			cmd  string
			want sshexec.Result
		}{
			{"true", sshexec.Result{}},
			{"hello", sshexec.Result{Stdout: []byte("hello\n"), Stderr: []byte("warning\n"), Exit: sshexec.Exit{Code: 3}}},
			{"nonsense", sshexec.Result{Stderr: []byte("not found: nonsense\n"), Exit: sshexec.Exit{Code: 127}}},
			{"cat", sshexec.Result{}}, // nothing on stdin
		} {
			got, err := c.Run(t.Context(), tt.cmd)
			if err != nil {
				t.Errorf("Run(%q): %v", tt.cmd, err)
			}
			if diff := cmp.Diff(got, tt.want); diff != "" {
				t.Errorf("Run(%q) (-got +want):\n%s", tt.cmd, diff)
			}
		}
		if got, want := c.PinnedKey(), m.host.Public; got != want {
			t.Errorf("PinnedKey() = %q, want %q", got, want)
		}
	})
}

func TestRunForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := newMachine(t, sshd.Options{})
		defer stop()
		c := m.dial(t)
		defer c.Close()
		start := time.Now()
		got, err := c.Run(t.Context(), "hour")
		if err != nil {
			t.Fatal(err)
		}
		if string(got.Stdout) != "an hour later\n" || !got.Exit.OK() {
			t.Errorf("got %q, %v", got.Stdout, got.Exit)
		}
		if took := time.Since(start); took < time.Hour || took > time.Hour+time.Minute {
			t.Errorf("took %v of virtual time, want an hour", took)
		}
	})
}

// TestRoundTrips counts in virtual time, where nothing but the line takes any.
func TestRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := newMachine(t, sshd.Options{})
		defer stop()
		start := time.Now()
		trips := func() int { return int(time.Since(start) / (2 * oneWay)) }
		c := m.dial(t)
		defer c.Close()
		if got, want := trips(), 7; got != want {
			t.Errorf("round trips to log in = %d, want %d", got, want)
		}
		if _, err := c.Run(t.Context(), "true"); err != nil {
			t.Fatal(err)
		}
		if got, want := trips(), 9; got != want {
			t.Errorf("round trips to the first command's end = %d, want %d", got, want)
		}
		if _, err := c.Run(t.Context(), "true"); err != nil {
			t.Fatal(err)
		}
		if got, want := trips(), 11; got != want {
			t.Errorf("round trips to the second command's end = %d, want %d", got, want)
		}
	})
}

func TestRunCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signalled := make(chan sshd.SignalError, 1)
		m, stop := newMachine(t, sshd.Options{Runner: sshd.RunnerFunc(func(ctx context.Context, c sshd.Command) sshd.Exit {
			<-ctx.Done()
			s, _ := context.Cause(ctx).(sshd.SignalError)
			signalled <- s
			return sshd.Exit{}
		})})
		defer stop()
		c := m.dial(t)
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		_, err := c.Run(ctx, "hang")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("err = %v, want the deadline", err)
		}
		if took := time.Since(start); took != time.Minute {
			t.Errorf("returned after %v, want 1m", took)
		}
		if got := <-signalled; got != "KILL" {
			t.Errorf("command got signal %q, want KILL", got)
		}
		if err := c.Err(); err != nil {
			t.Errorf("Err() = %v, want a connection that lives on", err)
		}
	})
}

func TestRunLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := newMachine(t, sshd.Options{})
		defer stop()
		c := m.dial(t)
		defer c.Close()
		got, err := c.Run(t.Context(), "flood")
		if !errors.Is(err, sshexec.ErrOutput) || len(got.Stdout) != sshexec.MaxStdout {
			t.Errorf("flood: %d bytes, %v; want %d bytes and ErrOutput", len(got.Stdout), err, sshexec.MaxStdout)
		}
		got, err = c.Run(t.Context(), "noise")
		if err != nil || len(got.Stderr) != sshexec.MaxStderrTail || !bytes.HasSuffix(got.Stderr, []byte("the end")) {
			t.Errorf("noise: %d bytes of stderr, %v; want the last %d", len(got.Stderr), err, sshexec.MaxStderrTail)
		}
	})
}

func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := newMachine(t, sshd.Options{})
		defer stop()
		c := m.dial(t)
		defer c.Close()
		in := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB, more than any buffer on the way
		var out bytes.Buffer
		exit, err := c.Stream(t.Context(), "cat", sshexec.Streams{Stdin: strings.NewReader(in), Stdout: &out})
		if err != nil || !exit.OK() {
			t.Fatalf("Stream: %v, %v", exit, err)
		}
		if out.String() != in {
			t.Errorf("got %d bytes back, want the same %d", out.Len(), len(in))
		}

		broken := errors.New("disk full")
		_, err = c.Stream(t.Context(), "flood", sshexec.Streams{Stdout: failingWriter{broken}})
		if !errors.Is(err, broken) {
			t.Errorf("Stream to a broken writer: %v, want %v", err, broken)
		}

		// An input that never ends must not hold the command's end back.
		r, w := io.Pipe()
		defer w.Close()
		exit, err = c.Stream(t.Context(), "hello", sshexec.Streams{Stdin: r})
		if err != nil || exit.Code != 3 {
			t.Errorf("Stream with open stdin: %v, %v; want exit 3", exit, err)
		}
	})
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func TestExitSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := newMachine(t, sshd.Options{AllowPTY: true})
		defer stop()
		c := m.dial(t)
		defer c.Close()
		signals := make(chan string, 1)
		signals <- "USR1"
		exit, err := c.Terminal(t.Context(), "hour", sshexec.Terminal{Signals: signals}, sshexec.Streams{})
		if want := (sshexec.Exit{Signal: "USR1"}); err != nil || exit != want {
			t.Errorf("Terminal: %v, %v; want %v", exit, err, want)
		}
	})
}

func TestTerminalRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := newMachine(t, sshd.Options{})
		defer stop()
		c := m.dial(t)
		defer c.Close()
		_, err := c.Terminal(t.Context(), "hello", sshexec.Terminal{}, sshexec.Streams{})
		if !errors.Is(err, sshexec.ErrRefused) {
			t.Errorf("err = %v, want ErrRefused", err)
		}
		if _, err := c.Run(t.Context(), "true"); err != nil {
			t.Errorf("the connection did not survive: %v", err)
		}
	})
}

func TestMaxSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := newMachine(t, sshd.Options{MaxSessions: 2})
		defer stop()
		c := m.dial(t)
		defer c.Close()
		for range 2 {
			if _, err := c.Channel(t.Context(), "cat"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Channel(t.Context(), "cat"); err == nil {
			t.Error("a third session was opened, want a refusal")
		}
	})
}

// TestConnectionEnds covers what a running command and a later one see.
func TestConnectionEnds(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault func(m *machine, c *sshexec.Conn)
		want  sshexec.Class
		after time.Duration // at most, from the fault to the error
	}{
		{"cut", func(m *machine, _ *sshexec.Conn) { m.net.Cut("laptop", "node") }, sshexec.Dropped, 0},
		{"crash", func(m *machine, _ *sshexec.Conn) { m.net.Crash("node") }, sshexec.Dropped, 0},
		{"silence", func(m *machine, _ *sshexec.Conn) { m.net.Stall("node", "laptop", true) }, sshexec.TimedOut, 30 * time.Second},
		{"unheard", func(m *machine, _ *sshexec.Conn) { m.net.Stall("laptop", "node", true) }, sshexec.TimedOut, 30 * time.Second},
		{"close", func(_ *machine, c *sshexec.Conn) { c.Close() }, sshexec.Other, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, stop := newMachine(t, sshd.Options{})
				defer stop()
				c := m.dial(t)
				defer c.Close()
				failed := make(chan error, 1)
				go func() {
					_, err := c.Run(t.Context(), "hour")
					failed <- err
				}()
				time.Sleep(time.Minute)
				if err := c.Err(); err != nil {
					t.Fatalf("Err() of a living connection = %v", err)
				}
				start := time.Now()
				tt.fault(m, c)
				err := <-failed
				if took := time.Since(start); took > tt.after {
					t.Errorf("seen after %v, want at most %v", took, tt.after)
				}
				if got := sshexec.Classify(err); got != tt.want || !errors.Is(err, sshexec.ErrNoExit) {
					t.Errorf("running command: %v (%v), want %v and ErrNoExit", err, got, tt.want)
				}
				<-c.Done()
				if got := sshexec.Classify(c.Err()); got != tt.want {
					t.Errorf("Err() = %v, want class %v", c.Err(), tt.want)
				}
				if _, err := c.Run(t.Context(), "true"); err == nil {
					t.Error("a dead connection ran a command")
				}
				// Let what is held back go, for the server to end.
				m.net.Stall("node", "laptop", false)
				m.net.Stall("laptop", "node", false)
			})
		})
	}
}

func TestNoKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := newMachine(t, sshd.Options{})
		defer stop()
		target := m.target()
		target.KeepAlive = -1
		c, err := sshexec.Dial(t.Context(), target)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		m.net.Stall("node", "laptop", true)
		time.Sleep(24 * time.Hour)
		if err := c.Err(); err != nil {
			t.Errorf("Err() = %v, want a connection that waits", err)
		}
		m.net.Stall("node", "laptop", false)
		if _, err := c.Run(t.Context(), "true"); err != nil {
			t.Errorf("after the stall: %v", err)
		}
	})
}
