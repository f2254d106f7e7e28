package sshexec_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshd"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newKey(t testing.TB) sshkey.Pair {
	t.Helper()
	key, err := sshkey.New("test")
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// machine is an in-memory host "node" with an SSH server on port 22, reached
// from the host "laptop"; one way takes 10 ms.
type machine struct {
	net    *sshd.Net
	server *sshd.Server
	host   sshkey.Pair
	user   sshkey.Pair
}

const oneWay = 10 * time.Millisecond

// newMachine serves until the test ends. In a bubble the returned stop must be
// called before it does.
func newMachine(t testing.TB, o sshd.Options) (m *machine, stop func()) {
	t.Helper()
	m = &machine{net: sshd.NewNet(1, oneWay, oneWay), host: newKey(t), user: newKey(t)}
	o.HostKey = m.host.Private
	o.AuthorizedKeys = append(o.AuthorizedKeys, m.user.Public)
	if o.Runner == nil {
		o.Runner = sshd.RunnerFunc(commands)
	}
	var err error
	if m.server, err = sshd.New(o); err != nil {
		t.Fatal(err)
	}
	l, err := m.net.Host("node").Listen(":22")
	if err != nil {
		t.Fatal(err)
	}
	return m, serve(t, m.server, l)
}

func serve(t testing.TB, s *sshd.Server, l net.Listener) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	return func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, net.ErrClosed) { // a crashed host's listener
			t.Errorf("Serve: %v", err)
		}
	}
}

func (m *machine) target() sshexec.Target {
	return sshexec.Target{
		Addr: "node:22", User: "root", Keys: [][]byte{m.user.Private}, HostKeys: []string{m.host.Public},
		Dialer: m.net.Host("laptop").Dial,
	}
}

func (m *machine) dial(t testing.TB) *sshexec.Conn {
	t.Helper()
	c, err := sshexec.Dial(t.Context(), m.target())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// commands is the in-memory shell of the tests.
func commands(ctx context.Context, c sshd.Command) sshd.Exit {
	switch c.Line {
	case "true":
		return sshd.Exit{}
	case "hello":
		io.WriteString(c.Stdout, "hello\n")
		io.WriteString(c.Stderr, "warning\n")
		return sshd.Exit{Code: 3}
	case "cat":
		if _, err := io.Copy(c.Stdout, c.Stdin); err != nil {
			return sshd.Exit{Code: 1}
		}
		return sshd.Exit{}
	case "hour":
		select {
		case <-time.After(time.Hour):
			io.WriteString(c.Stdout, "an hour later\n")
			return sshd.Exit{}
		case <-ctx.Done():
			if s, ok := context.Cause(ctx).(sshd.SignalError); ok {
				return sshd.Exit{Signal: string(s)}
			}
			return sshd.Exit{Code: 9}
		}
	case "flood":
		buf := make([]byte, 64<<10)
		for {
			if _, err := c.Stdout.Write(buf); err != nil || ctx.Err() != nil {
				return sshd.Exit{Code: 1}
			}
		}
	case "noise":
		buf := make([]byte, 64<<10)
		for range 100 {
			c.Stderr.Write(buf)
		}
		io.WriteString(c.Stderr, "the end")
		return sshd.Exit{}
	}
	io.WriteString(c.Stderr, "not found: "+c.Line+"\n")
	return sshd.Exit{Code: 127}
}
