package sshexec_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshd"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
)

// speak makes the machine's port 22 say something and hang up, or hang on.
func speak(t *testing.T, n *sshd.Net, say func(c net.Conn)) (stop func()) {
	t.Helper()
	l, err := n.Host("node").Listen(":22")
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
			say(c)
			c.Close()
		}
	})
	return func() { l.Close(); wg.Wait() }
}

// TestDialClasses holds each class to the real errors of the network and of x/crypto.
func TestDialClasses(t *testing.T) {
	other := newKey(t)
	type bench struct {
		machine
		target sshexec.Target
	}
	server := func(o sshd.Options) func(t *testing.T, b *bench) func() {
		return func(t *testing.T, b *bench) func() {
			m, stop := newMachine(t, o)
			b.machine, b.target = *m, m.target()
			return stop
		}
	}
	says := func(say func(c net.Conn)) func(t *testing.T, b *bench) func() {
		return func(t *testing.T, b *bench) func() { return speak(t, b.net, say) }
	}
	version := func(c net.Conn) { io.WriteString(c, "SSH-2.0-x\r\n"); c.Read(make([]byte, 1024)) }
	for _, tt := range []struct {
		name  string
		setup func(t *testing.T, b *bench) (stop func())
		tweak func(b *bench)
		want  sshexec.Class
		text  string // part of the error
	}{
		{name: "nobody listens", want: sshexec.NotUp, text: "connection refused"},
		{name: "silent host", tweak: func(b *bench) {
			b.target.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				return b.net.Host("laptop").Dial(ctx, network, addr)
			}
			b.net.Stall("laptop", "node", true)
		}, want: sshexec.NotUp, text: "deadline"},
		{name: "unknown name", tweak: func(b *bench) {
			b.target.Dialer = func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.DNSError{Err: "no such host", Name: "node", IsNotFound: true}
			}
		}, want: sshexec.NotUp, text: "no such host"},
		{name: "dialler gives up", tweak: func(b *bench) {
			b.target.Dialer = func(context.Context, string, string) (net.Conn, error) { return nil, io.ErrNoProgress }
		}, want: sshexec.Other, text: "multiple Read"},
		{name: "closed at once", setup: says(func(net.Conn) {}), want: sshexec.Dropped, text: "EOF"},
		{
			name: "turned away", setup: server(sshd.Options{Startups: &sshd.Startups{Full: 0}}),
			want: sshexec.Dropped, text: `server said "Not allowed at this time"`,
		},
		{name: "closed in key exchange", setup: says(version), want: sshexec.Dropped},
		{name: "silence after version", setup: says(func(c net.Conn) {
			version(c)
			io.Copy(io.Discard, c)
		}), want: sshexec.TimedOut, text: "time limit"},
		{name: "a byte a second", setup: says(func(c net.Conn) {
			for _, b := range []byte(strings.Repeat("SSH-2.0-slow", 20)) {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}), want: sshexec.TimedOut, text: "time limit"},
		{name: "a line without end", setup: says(func(c net.Conn) {
			c.Write(bytes.Repeat([]byte("x"), 1<<20))
			io.Copy(io.Discard, c)
		}), want: sshexec.Other, text: "overflow reading version"},
		{name: "lines without end", setup: says(func(c net.Conn) {
			c.Write(bytes.Repeat([]byte("hi\n"), 1<<18))
			io.Copy(io.Discard, c)
		}), want: sshexec.Other, text: "overflow reading version"},
		{
			name: "not SSH", setup: says(func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") }),
			want: sshexec.Dropped, text: "HTTP/1.1 400 Bad Request",
		},
		{name: "garbage after version", setup: says(func(c net.Conn) {
			io.WriteString(c, "SSH-2.0-x\r\n")
			c.Write(bytes.Repeat([]byte{0xff}, 64))
			io.Copy(io.Discard, c)
		}), want: sshexec.Other},
		{name: "disconnect before keys", setup: says(func(c net.Conn) {
			io.WriteString(c, "SSH-2.0-x\r\n")
			c.Write(disconnect(12, "too many users"))
			io.Copy(io.Discard, c)
		}), want: sshexec.Dropped, text: "too many users"},
		{
			name: "wrong host key", setup: server(sshd.Options{}),
			tweak: func(b *bench) { b.target.HostKeys = []string{other.Public} },
			want:  sshexec.HostKeyMismatch, text: "not pinned",
		},
		{
			name: "wrong fingerprint", setup: server(sshd.Options{}),
			tweak: func(b *bench) { b.target.HostKeys = []string{other.Fingerprint} },
			want:  sshexec.HostKeyMismatch, text: "not pinned",
		},
		{
			name: "key not authorised", setup: server(sshd.Options{}),
			tweak: func(b *bench) { b.target.Keys = [][]byte{other.Private} },
			want:  sshexec.AuthRefused, text: "no key accepted",
		},
		{
			name: "too many keys", setup: server(sshd.Options{MaxAuthTries: 2}),
			tweak: func(b *bench) {
				b.target.Keys = [][]byte{other.Private, newKey(t).Private, newKey(t).Private, b.user.Private}
			},
			want: sshexec.AuthRefused, text: "disconnect, reason 2",
		},
		{
			name: "no keys", setup: server(sshd.Options{}),
			tweak: func(b *bench) { b.target.Keys = nil }, want: sshexec.BadTarget, text: "no private key",
		},
		{
			name: "no pin", setup: server(sshd.Options{}),
			tweak: func(b *bench) { b.target.HostKeys = nil }, want: sshexec.BadTarget, text: "no pinned host key",
		},
		{
			name: "bad key", setup: server(sshd.Options{}),
			tweak: func(b *bench) { b.target.Keys = [][]byte{[]byte("secret nonsense")} }, want: sshexec.BadTarget,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &bench{machine: machine{net: sshd.NewNet(1, oneWay, oneWay), host: newKey(t), user: newKey(t)}}
				b.target = b.machine.target()
				if tt.setup != nil {
					defer tt.setup(t, b)()
				}
				if tt.tweak != nil {
					tt.tweak(b)
				}
				start := time.Now()
				c, err := sshexec.Dial(t.Context(), b.target)
				if err == nil {
					c.Close()
					t.Fatal("Dial succeeded")
				}
				if got := sshexec.Classify(err); got != tt.want {
					t.Errorf("class = %v, want %v; error: %v", got, tt.want, err)
				}
				if !strings.Contains(err.Error(), tt.text) {
					t.Errorf("error %q does not have %q", err, tt.text)
				}
				if strings.Contains(err.Error(), "secret") {
					t.Errorf("error quotes the key: %v", err)
				}
				if took := time.Since(start); took > 21*time.Second {
					t.Errorf("took %v, want the handshake timeout of 20 s at most", took)
				}
			})
		})
	}
}

// disconnect is an unencrypted SSH_MSG_DISCONNECT packet (RFC 4253 §6, §11.1).
func disconnect(reason uint32, text string) []byte {
	payload := append([]byte{1}, binary.BigEndian.AppendUint32(nil, reason)...)
	payload = append(binary.BigEndian.AppendUint32(payload, uint32(len(text))), text...)
	payload = append(payload, 0, 0, 0, 0)
	pad := 16 - (5+len(payload))%8
	packet := binary.BigEndian.AppendUint32(nil, uint32(1+len(payload)+pad))
	packet = append(append(packet, byte(pad)), payload...)
	return append(packet, make([]byte, pad)...)
}

// recorder keeps what was written.
type recorder struct {
	net.Conn
	mu   sync.Mutex
	sent []byte
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	r.sent = append(r.sent, p...)
	r.mu.Unlock()
	return r.Conn.Write(p)
}

// TestWrongHostKeySendsNothing looks at our side of the wire: the version, and of
// the packets (RFC 4250 §4.1.2) KEXINIT and the key exchange's first message only.
func TestWrongHostKeySendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := newMachine(t, sshd.Options{})
		defer stop()
		var wire *recorder
		target := m.target()
		target.HostKeys = []string{newKey(t).Public}
		target.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := m.net.Host("laptop").Dial(ctx, network, addr)
			wire = &recorder{Conn: c}
			return wire, err
		}
		_, err := sshexec.Dial(t.Context(), target)
		if got := sshexec.Classify(err); got != sshexec.HostKeyMismatch {
			t.Fatalf("class = %v (%v), want host key mismatch", got, err)
		}
		synctest.Wait()
		_, packets, _ := bytes.Cut(wire.sent, []byte("\r\n"))
		var got []byte
		for len(packets) >= 6 {
			size := int(binary.BigEndian.Uint32(packets)) + 4
			if size > len(packets) {
				t.Fatalf("%d bytes after %v are no plain packet", len(packets), got)
			}
			got = append(got, packets[5])
			packets = packets[size:]
		}
		if want := []byte{20, 30}; !bytes.Equal(got, want) || len(packets) > 0 {
			t.Errorf("message numbers sent = %v and %d bytes, want %v", got, len(packets), want)
		}
	})
}

func TestHostKeyRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := newMachine(t, sshd.Options{})
		defer stop()
		birth, next := m.host, newKey(t)
		target := m.target()
		target.HostKeys = []string{next.Fingerprint, birth.Public}
		c, err := sshexec.Dial(t.Context(), target)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if got := c.PinnedKey(); got != birth.Public {
			t.Errorf("before: PinnedKey() = %q, want the birth key", got)
		}
		if err := m.server.SetHostKey(next.Private); err != nil {
			t.Fatal(err)
		}
		if got, err := c.Run(t.Context(), "hello"); err != nil || got.Exit.Code != 3 {
			t.Errorf("the living connection: %v, %v", got, err)
		}
		d, err := sshexec.Dial(t.Context(), target)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if got := d.PinnedKey(); got != next.Fingerprint {
			t.Errorf("after: PinnedKey() = %q, want the new key's entry", got)
		}
		if _, err := sshexec.Dial(t.Context(), m.target()); sshexec.Classify(err) != sshexec.HostKeyMismatch {
			t.Errorf("dial with the birth key alone: %v, want a mismatch", err)
		}
	})
}

func TestDialCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := newMachine(t, sshd.Options{})
		defer stop()
		m.net.Stall("node", "laptop", true)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := sshexec.Dial(ctx, m.target())
		if !errors.Is(err, context.Canceled) || sshexec.Classify(err) != sshexec.Other {
			t.Errorf("err = %v (%v), want the cancellation, class other", err, sshexec.Classify(err))
		}
		m.net.Stall("node", "laptop", false)
	})
}

// TestDialFewReads: the version line must not cost a system call per byte.
func TestDialFewReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := newMachine(t, sshd.Options{})
		defer stop()
		var reads countedReads
		target := m.target()
		target.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := m.net.Host("laptop").Dial(ctx, network, addr)
			reads.Conn = c
			return &reads, err
		}
		c, err := sshexec.Dial(t.Context(), target)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		reads.mu.Lock()
		defer reads.mu.Unlock()
		if reads.n > 16 {
			t.Errorf("handshake took %d reads, want at most 16", reads.n)
		}
	})
}

type countedReads struct {
	net.Conn
	mu sync.Mutex
	n  int
}

func (c *countedReads) Read(p []byte) (int, error) {
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	return c.Conn.Read(p)
}

// TestPacing: what DialWhenUp does between attempts, in virtual time.
func TestPacing(t *testing.T) {
	ms := time.Millisecond
	for _, tt := range []struct {
		name  string
		setup func(t *testing.T, m *machine) func()
		tweak func(t *testing.T, to *sshexec.Target)
		until time.Duration
		want  []time.Duration // pauses between attempts, handshakes included
	}{
		{
			name: "refused", until: 4500 * ms,
			want: []time.Duration{50 * ms, 100 * ms, 200 * ms, 400 * ms, 800 * ms, 1000 * ms, 1000 * ms},
		},
		{
			name: "not authorised yet", until: 50 * time.Second,
			setup: func(t *testing.T, m *machine) func() {
				s, stop := newMachine(t, sshd.Options{})
				m.net, m.host = s.net, s.host
				m.net.SetLatency("laptop", "node", 0)
				m.net.SetLatency("node", "laptop", 0)
				return stop
			},
			want: []time.Duration{2000 * ms, 4000 * ms, 8000 * ms, 15000 * ms, 15000 * ms},
		},
		{
			name: "dropped", until: 70 * time.Second,
			setup: func(t *testing.T, m *machine) func() { return speak(t, m.net, func(net.Conn) {}) },
			want:  []time.Duration{1000 * ms, 2000 * ms, 4000 * ms, 8000 * ms, 16000 * ms, 30000 * ms},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &machine{net: sshd.NewNet(1, 0, 0), host: newKey(t), user: newKey(t)}
				if tt.setup != nil {
					defer tt.setup(t, m)()
				}
				target := m.target()
				target.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					return m.net.Host("laptop").Dial(ctx, network, addr)
				}
				dial, last, pauses := target.Dialer, time.Time{}, []time.Duration(nil)
				target.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if !last.IsZero() {
						pauses = append(pauses, time.Since(last).Truncate(50*ms))
					}
					last = time.Now()
					return dial(ctx, network, addr)
				}
				ctx, cancel := context.WithTimeout(t.Context(), tt.until)
				defer cancel()
				start := time.Now()
				_, err := sshexec.DialWhenUp(ctx, target, sshexec.Pacing{Random: func() float64 { return 0 }})
				if err == nil || time.Since(start) != tt.until {
					t.Errorf("ended after %v with %v, want an error at %v", time.Since(start), err, tt.until)
				}
				if diff := cmp.Diff(pauses, tt.want); diff != "" {
					t.Errorf("pauses (-got +want):\n%s", diff)
				}
			})
		})
	}
}

func TestDialWhenUpStopsAtMismatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := newMachine(t, sshd.Options{})
		defer stop()
		target := m.target()
		target.HostKeys = []string{newKey(t).Public}
		start := time.Now()
		_, err := sshexec.DialWhenUp(t.Context(), target, sshexec.Pacing{})
		if sshexec.Classify(err) != sshexec.HostKeyMismatch || time.Since(start) > time.Second {
			t.Errorf("after %v: %v; want a mismatch at once", time.Since(start), err)
		}
	})
}

// TestNoPenalties boots machines whose port opens early and whose key comes late,
// under OpenSSH's limits: none may turn us away, and each is entered soon after
// its key is there.
func TestNoPenalties(t *testing.T) {
	var worst time.Duration
	for seed := range 50 {
		synctest.Test(t, func(t *testing.T) {
			n := sshd.NewNet(uint64(seed), time.Millisecond, 80*time.Millisecond)
			host, user := newKey(t), newKey(t)
			penalties := &sshd.Penalties{}
			server, err := sshd.New(sshd.Options{
				HostKey: host.Private, Runner: sshd.RunnerFunc(commands), Penalties: penalties,
				Startups: &sshd.Startups{Begin: 10, Rate: 30, Full: 100},
			})
			if err != nil {
				t.Fatal(err)
			}
			portAt := time.Duration(seed%7) * 1700 * time.Millisecond
			keyAt := portAt + time.Duration(seed%11)*9*time.Second
			stops := make(chan func(), 1)
			time.AfterFunc(portAt, func() {
				l, err := n.Host("node").Listen(":22")
				if err != nil {
					t.Error(err)
					return
				}
				stops <- serve(t, server, l)
			})
			start := time.Now()
			time.AfterFunc(keyAt, func() { _ = server.SetAuthorizedKeys(user.Public) })
			c, err := sshexec.DialWhenUp(t.Context(), sshexec.Target{
				Addr: "node:22", User: "root", Keys: [][]byte{user.Private}, HostKeys: []string{host.Public},
				Dialer: n.Host("laptop").Dial,
			}, sshexec.Pacing{})
			if err != nil {
				t.Fatal(err)
			}
			worst = max(worst, time.Since(start)-keyAt)
			c.Close()
			(<-stops)()
			if penalties.Refused > 0 {
				t.Errorf("seed %d: turned away %d times", seed, penalties.Refused)
			}
		})
	}
	if worst > 20*time.Second {
		t.Errorf("worst wait after the key was there = %v, want at most 20 s", worst)
	}
}

// TestImpatientIsPenalised shows that TestNoPenalties could fail.
func TestImpatientIsPenalised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		penalties := &sshd.Penalties{}
		m, stop := newMachine(t, sshd.Options{Penalties: penalties})
		target := m.target()
		target.Keys = [][]byte{newKey(t).Private}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := sshexec.DialWhenUp(ctx, target, sshexec.Pacing{
			AuthRefused: sshexec.Backoff{First: time.Second, Max: time.Second},
		})
		stop()
		if penalties.Refused == 0 {
			t.Errorf("a login a second was never turned away; last: %v", err)
		}
	})
}
