package sshd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshd"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
)

type rig struct {
	server *sshd.Server
	addr   string
	host   sshkey.Pair
	user   sshkey.Pair
	stop   func()
}

// newRig serves real processes on loopback until the test ends.
func newRig(t *testing.T, o sshd.Options) *rig {
	t.Helper()
	r := new(rig)
	for _, key := range []*sshkey.Pair{&r.host, &r.user} {
		var err error
		if *key, err = sshkey.New("test"); err != nil {
			t.Fatal(err)
		}
	}
	o.HostKey, o.AuthorizedKeys = r.host.Private, []string{r.user.Public}
	if o.Runner == nil {
		o.Runner = sshd.Shell{}
	}
	var err error
	if r.server, err = sshd.New(o); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.server.Serve(ctx, l) }()
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	}
	t.Cleanup(r.stop)
	return r
}

func (r *rig) dial(t *testing.T) *sshexec.Conn {
	t.Helper()
	c, err := sshexec.Dial(t.Context(), sshexec.Target{
		Addr: r.addr, User: "me", Keys: [][]byte{r.user.Private}, HostKeys: []string{r.host.Public},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestShell(t *testing.T) {
	r := newRig(t, sshd.Options{Runner: sshd.Shell{Env: []string{"PATH=" + os.Getenv("PATH"), "WHERE=here"}, Dir: t.TempDir()}})
	c := r.dial(t)
	for _, tt := range []struct {
		cmd, stdin, stdout, stderr string
		exit                       sshexec.Exit
	}{
		{cmd: "echo out; echo err >&2; exit 3", stdout: "out\n", stderr: "err\n", exit: sshexec.Exit{Code: 3}},
		{cmd: "echo $WHERE $HOME", stdout: "here\n"},
		{cmd: "cat | wc -c", stdin: strings.Repeat("x", 1<<20), stdout: "1048576\n"},
		{cmd: "kill -TERM $$", exit: sshexec.Exit{Signal: "TERM"}},
		{cmd: "kill -BUS $$", exit: sshexec.Exit{Signal: fmt.Sprintf("%d@launcher", syscall.SIGBUS)}},
		{cmd: "exec /no/such/program 2>/dev/null", exit: sshexec.Exit{Code: 127}},
		{cmd: "head -c 3000000 /dev/zero | tr '\\0' y | tail -c 5", stdout: "yyyyy"},
	} {
		var stdout, stderr bytes.Buffer
		exit, err := c.Stream(t.Context(), tt.cmd, sshexec.Streams{
			Stdin: strings.NewReader(tt.stdin), Stdout: &stdout, Stderr: &stderr,
		})
		if err != nil || exit != tt.exit {
			t.Errorf("%s: %v, %v; want %v", tt.cmd, exit, err, tt.exit)
		}
		if got := strings.TrimLeft(stdout.String(), " "); got != tt.stdout || stderr.String() != tt.stderr {
			t.Errorf("%s: wrote %q and %q, want %q and %q", tt.cmd, got, stderr.String(), tt.stdout, tt.stderr)
		}
	}
	// A client that never ends its input does not hold up a command that ended.
	pr, pw := io.Pipe()
	defer pw.Close()
	if exit, err := c.Stream(t.Context(), "exit 4", sshexec.Streams{Stdin: pr}); err != nil || exit.Code != 4 {
		t.Errorf("open stdin: %v, %v; want exit 4", exit, err)
	}
}

// TestClientGone: a command whose client vanishes is hung up with its whole
// group, killed if it will not go, and what left the session lives on.
func TestClientGone(t *testing.T) {
	for _, tt := range []struct {
		name, cmd string
		lives     bool
	}{
		{"goes", "echo $$; sleep 60 | cat", false},
		{"ignores", "trap '' HUP; echo $$; sleep 60; sleep 60", false},
		{"daemon", "setsid sh -c 'echo $$; exec sleep 60' & wait", true},
		{"daemon of an ended command", "setsid sh -c 'echo $$; exec sleep 60' &", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, sshd.Options{Runner: sshd.Shell{Kill: 50 * time.Millisecond}})
			c := r.dial(t)
			ch, err := c.Channel(t.Context(), tt.cmd)
			if err != nil {
				t.Fatal(err)
			}
			var line []byte
			for buf := make([]byte, 1); len(line) == 0 || line[len(line)-1] != '\n'; {
				if _, err := io.ReadFull(ch, buf); err != nil {
					t.Fatal(err)
				}
				line = append(line, buf...)
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(line)))
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			r.stop() // waits for the sessions, and so for the processes they own
			if alive := syscall.Kill(pid, 0) == nil; alive != tt.lives {
				t.Errorf("process alive = %v, want %v", alive, tt.lives)
			}
			if tt.lives {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestPTY(t *testing.T) {
	if !sshd.ShellPTY {
		t.Skip("no terminals on this system")
	}
	r := newRig(t, sshd.Options{AllowPTY: true, Runner: sshd.Shell{Env: []string{"PATH=" + os.Getenv("PATH")}}})
	c := r.dial(t)
	var out bytes.Buffer
	exit, err := c.Terminal(t.Context(), "tty >/dev/null && stty size && echo $TERM", sshexec.Terminal{
		Term: "vt220", Size: sshexec.WindowSize{Rows: 33, Columns: 101},
	}, sshexec.Streams{Stdout: &out})
	if want := "33 101\r\nvt220\r\n"; err != nil || !exit.OK() || out.String() != want {
		t.Errorf("Terminal: %v, %v, %q; want %q", exit, err, out.String(), want)
	}

	// A shell, driven by what it shows: resize, interrupt by ^C, leave.
	keys, typed := io.Pipe()
	screen, shown := io.Pipe()
	resize := make(chan sshexec.WindowSize)
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		exit, err := c.Terminal(ctx, "", sshexec.Terminal{Resize: resize}, sshexec.Streams{Stdin: keys, Stdout: shown})
		if err == nil && exit.Code != 7 {
			err = fmt.Errorf("exit %v, want 7", exit)
		}
		shown.Close()
		ended <- err
	}()
	var seen strings.Builder
	expect := func(want string) {
		t.Helper()
		buf := make([]byte, 1024)
		for !strings.Contains(seen.String(), want) {
			n, err := screen.Read(buf)
			seen.Write(buf[:n])
			if err != nil {
				t.Fatalf("waiting for %q: %v; screen: %q", want, err, seen.String())
			}
		}
		seen.Reset()
	}
	// /etc/profile may have set another prompt; the quotes keep the echo from matching.
	io.WriteString(typed, "PS1=re''ady'>'\n")
	expect("ready>")
	resize <- sshexec.WindowSize{Rows: 20, Columns: 70}
	io.WriteString(typed, "stty size; echo e\"\"nd\n")
	expect("20 70\r\nend")
	// Said by the foreground process itself, else ^C may come before it is that.
	io.WriteString(typed, "sh -c 'echo st\"\"arted; exec sleep 60'\n")
	expect("started")
	io.WriteString(typed, "\x03")
	expect("ready>")
	io.WriteString(typed, "exit 7\n")
	go io.Copy(io.Discard, screen)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	typed.Close()
}

// TestRefusals uses a bare x/crypto client for what sshexec would never ask.
func TestRefusals(t *testing.T) {
	r := newRig(t, sshd.Options{AcceptEnv: []string{"LANG"}})
	signer, err := sshkey.ParsePrivate(r.user.Private)
	if err != nil {
		t.Fatal(err)
	}
	host, err := sshkey.ParsePublic(r.host.Public)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ssh.Dial("tcp", r.addr, &ssh.ClientConfig{
		User: "me", Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: ssh.FixedHostKey(host),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if ok, _, err := c.SendRequest("keepalive@openssh.com", true, nil); !ok || err != nil {
		t.Errorf("keep-alive: %v, %v", ok, err)
	}
	if ok, _, err := c.SendRequest("tcpip-forward", true, nil); ok || err != nil {
		t.Errorf("tcpip-forward: %v, %v; want a refusal", ok, err)
	}
	if _, _, err := c.OpenChannel("x11", nil); err == nil {
		t.Error("x11 channel was opened")
	}
	if _, err := c.Dial("tcp", r.addr); err == nil {
		t.Error("forward was opened without AllowForward")
	}
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Setenv("LD_PRELOAD", "x"); err == nil {
		t.Error("LD_PRELOAD was accepted")
	}
	if err := s.Setenv("LANG", "tlh"); err != nil {
		t.Errorf("LANG: %v", err)
	}
	if err := s.RequestPty("xterm", 1, 1, nil); err == nil {
		t.Error("pty was granted without AllowPTY")
	}
	if err := s.RequestSubsystem("sftp"); err == nil {
		t.Error("subsystem was started")
	}
	if out, err := s.Output("echo $LANG"); string(out) != "tlh\n" || err != nil {
		t.Errorf("Output = %q, %v", out, err)
	}
}

func TestForward(t *testing.T) {
	r := newRig(t, sshd.Options{AllowForward: true})
	c := r.dial(t)
	f, err := c.Dial(t.Context(), "tcp", echo(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	io.WriteString(f, "there and back")
	f.(interface{ CloseWrite() error }).CloseWrite()
	if got, err := io.ReadAll(f); string(got) != "there and back" || err != nil {
		t.Errorf("through the forward: %q, %v", got, err)
	}
	for _, addr := range []string{"192.0.2.1:22", "example.invalid:22", "0.0.0.0:22"} {
		_, err := c.Dial(t.Context(), "tcp", addr)
		if refused, ok := errors.AsType[*ssh.OpenChannelError](err); !ok || refused.Reason != ssh.Prohibited {
			t.Errorf("forward to %s: %v, want it prohibited", addr, err)
		}
	}
}

func TestAuthorizedKeysChange(t *testing.T) {
	r := newRig(t, sshd.Options{})
	c := r.dial(t)
	if err := r.server.SetAuthorizedKeys(); err != nil {
		t.Fatal(err)
	}
	target := sshexec.Target{Addr: r.addr, User: "me", Keys: [][]byte{r.user.Private}, HostKeys: []string{r.host.Public}}
	if _, err := sshexec.Dial(t.Context(), target); sshexec.Classify(err) != sshexec.AuthRefused {
		t.Errorf("dial with a removed key: %v, want a refusal", err)
	}
	if _, err := c.Run(t.Context(), "true"); err != nil {
		t.Errorf("the living connection: %v", err)
	}
	if err := r.server.SetAuthorizedKeys("ssh-rsa AAAA"); err == nil {
		t.Error("a broken key was accepted")
	}
}

func TestHandshakeTimeout(t *testing.T) {
	r := newRig(t, sshd.Options{HandshakeTimeout: 30 * time.Millisecond})
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a silent client was kept")
	}
}

func TestOptions(t *testing.T) {
	key, err := sshkey.New("")
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]sshd.Options{
		"no runner":          {HostKey: key.Private},
		"no host key":        {Runner: sshd.Shell{}},
		"bad authorized key": {Runner: sshd.Shell{}, HostKey: key.Private, AuthorizedKeys: []string{"x"}},
	} {
		if _, err := sshd.New(o); err == nil {
			t.Errorf("%s: New succeeded", name)
		}
	}
}

// TestRekey: a living connection re-keys with the host key it began with, after
// that was replaced.
func TestRekey(t *testing.T) {
	r := newRig(t, sshd.Options{})
	signer, err := sshkey.ParsePrivate(r.user.Private)
	if err != nil {
		t.Fatal(err)
	}
	var proved []string
	c, err := ssh.Dial("tcp", r.addr, &ssh.ClientConfig{
		Config: ssh.Config{RekeyThreshold: 64 << 10},
		User:   "me", Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			proved = append(proved, ssh.FingerprintSHA256(key))
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	next, err := sshkey.New("")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.server.SetHostKey(next.Private); err != nil {
		t.Fatal(err)
	}
	if got := r.server.HostKey() + " "; !strings.HasPrefix(next.Public+" ", got) {
		t.Errorf("HostKey() = %q, want the new one", got)
	}
	// A new session cannot be opened in the middle of a key exchange, so one that the output of an earlier command has made due is over by the last.
	for range 5 {
		s, err := c.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		if out, err := s.Output("head -c 1000000 /dev/zero"); len(out) != 1000000 || err != nil {
			t.Errorf("got %d bytes, %v", len(out), err)
		}
	}
	c.Close()
	_ = c.Wait() // for the goroutine that calls back; its error is our close
	if len(proved) < 2 {
		t.Errorf("no re-keying took place: %d key exchanges", len(proved))
	}
	for i, got := range proved {
		if got != r.host.Fingerprint {
			t.Errorf("key exchange %d proved %s, want the first key", i+1, got)
		}
	}
}

// TestStartups holds the drop rule to OpenSSH's: never below Begin, always at
// Full, by chance between.
func TestStartups(t *testing.T) {
	for _, tt := range []struct {
		name    string
		pending int
		random  float64
		dropped bool
	}{
		{"below begin", 1, 0, false},
		{"at begin, lucky", 2, 0.31, false},
		{"at begin, unlucky", 2, 0.29, true},
		{"half way, lucky", 3, 0.66, false},
		{"half way, unlucky", 3, 0.64, true},
		{"full", 4, 0.999, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, sshd.Options{
				Startups: &sshd.Startups{Begin: 2, Rate: 30, Full: 4},
				// Those that are to be pending draw 0.999 and get in.
				Random: drawLast(tt.pending-1, tt.random),
			})
			greet := func() string {
				c, err := net.Dial("tcp", r.addr)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close() })
				buf := make([]byte, 64)
				n, err := c.Read(buf)
				if err != nil {
					t.Fatal(err)
				}
				return string(buf[:n])
			}
			for range tt.pending {
				if got := greet(); !strings.HasPrefix(got, "SSH-2.0-") {
					t.Fatalf("a connection that should be pending got %q", got)
				}
			}
			want := "SSH-2.0-launcher"
			if tt.dropped {
				want = "Not allowed at this time"
			}
			if got := strings.TrimSpace(greet()); got != want {
				t.Errorf("server said %q, want %q", got, want)
			}
		})
	}
}

// drawLast yields last once the connections before it have drawn: those from
// Begin (2) on do.
func drawLast(pending int, last float64) func() float64 {
	left := pending - 1
	return func() float64 {
		if left--; left >= 0 {
			return 0.999
		}
		return last
	}
}
