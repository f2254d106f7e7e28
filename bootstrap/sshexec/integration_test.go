//go:build integration

package sshexec_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshd"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
)

// realServer is a running OpenSSH server and its files.
type realServer struct{ authorizedKeys, log string }

func (s realServer) said(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(s.log)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// openSSH starts the system's OpenSSH server as a process of the test, on a
// loopback port, with its own keys.
func openSSH(t *testing.T, extra ...string) (sshexec.Target, realServer) {
	t.Helper()
	const binary = "/usr/sbin/sshd"
	if _, err := os.Stat(binary); err != nil {
		t.Skip("no OpenSSH server installed")
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if me.Uid == "0" { // its privilege separation folder, which an init system would make
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	host, key := newKey(t), newKey(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(addr)
	server := realServer{authorizedKeys: write("authorized_keys", key.Public+"\n"), log: filepath.Join(dir, "log")}
	config := write("sshd_config", strings.Join(append([]string{
		"ListenAddress 127.0.0.1:" + port,
		"HostKey " + write("host_key", string(host.Private)),
		"AuthorizedKeysFile " + server.authorizedKeys,
		"PidFile none", "StrictModes no", "UsePAM no", "PasswordAuthentication no",
		"PermitRootLogin prohibit-password", "LogLevel VERBOSE", "AllowTcpForwarding local",
	}, extra...), "\n")+"\n")
	cmd := exec.Command(binary, "-D", "-f", config, "-E", server.log)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("sshd:\n%s", server.said(t))
		}
	})
	return sshexec.Target{Addr: addr, User: me.Username, Keys: [][]byte{key.Private}, HostKeys: []string{host.Public}}, server
}

func dialUp(t *testing.T, target sshexec.Target) *sshexec.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := sshexec.DialWhenUp(ctx, target, sshexec.Pacing{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestIntegrationOpenSSH(t *testing.T) {
	target, _ := openSSH(t)
	c := dialUp(t, target)

	got, err := c.Run(t.Context(), "echo out; echo err >&2; exit 3")
	if err != nil || string(got.Stdout) != "out\n" || string(got.Stderr) != "err\n" || got.Exit.Code != 3 {
		t.Errorf("Run = %q, %q, %v, %v", got.Stdout, got.Stderr, got.Exit, err)
	}
	got, err = c.Run(t.Context(), "kill -TERM $$")
	if want := (sshexec.Exit{Signal: "TERM"}); err != nil || got.Exit != want {
		t.Errorf("killed command: %v, %v; want %v", got.Exit, err, want)
	}

	in := strings.Repeat("0123456789abcdef", 1<<18) // 4 MiB
	var out bytes.Buffer
	if exit, err := c.Stream(t.Context(), "cat", sshexec.Streams{Stdin: strings.NewReader(in), Stdout: &out}); err != nil || !exit.OK() || out.String() != in {
		t.Errorf("Stream: %v, %v, %d bytes", exit, err, out.Len())
	}

	ch, err := c.Channel(t.Context(), "cat")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(ch, "ping"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4)
	if _, err := io.ReadFull(ch, buf); err != nil || string(buf) != "ping" {
		t.Errorf("Channel echoed %q, %v", buf, err)
	}
	if err := ch.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := ch.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read past its deadline: %v", err)
	}
	if err := ch.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if exit, err := ch.Wait(t.Context()); err != nil || !exit.OK() {
		t.Errorf("Wait = %v, %v", exit, err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.Run(ctx, "sleep 60"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancelled Run: %v", err)
	}

	var screen bytes.Buffer
	exit, err := c.Terminal(t.Context(), "tty && stty size", sshexec.Terminal{Size: sshexec.WindowSize{Rows: 33, Columns: 101}},
		sshexec.Streams{Stdout: &screen})
	if err != nil || !exit.OK() || !strings.Contains(screen.String(), "33 101") {
		t.Errorf("Terminal: %v, %v, %q", exit, err, screen.String())
	}

	// A machine behind this one: the same server through a forward.
	behind := target
	behind.Dialer = c.Dial
	d, err := sshexec.Dial(t.Context(), behind)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := d.Run(t.Context(), "echo deep"); err != nil || string(got.Stdout) != "deep\n" {
		t.Errorf("Run through a forward: %q, %v", got.Stdout, err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestIntegrationOpenSSHClasses(t *testing.T) {
	target, _ := openSSH(t, "MaxAuthTries 2")
	full, _ := openSSH(t, "MaxStartups 1:100:1", "LoginGraceTime 10")
	dialUp(t, target)
	stranger := newKey(t)
	for _, tt := range []struct {
		name  string
		tweak func(*sshexec.Target)
		want  sshexec.Class
	}{
		{"wrong host key", func(to *sshexec.Target) { to.HostKeys = []string{stranger.Public} }, sshexec.HostKeyMismatch},
		{"unknown key", func(to *sshexec.Target) { to.Keys = [][]byte{stranger.Private} }, sshexec.AuthRefused},
		{"unknown user", func(to *sshexec.Target) { to.User = "nobody-of-that-name" }, sshexec.AuthRefused},
		{"too many keys", func(to *sshexec.Target) {
			to.Keys = [][]byte{stranger.Private, newKey(t).Private, newKey(t).Private, newKey(t).Private}
		}, sshexec.AuthRefused},
		{"too many startups", func(to *sshexec.Target) {
			*to = full
			var idle net.Conn
			for idle == nil { // refused until the server is up; the test's own time bounds it
				idle, _ = net.Dial("tcp", to.Addr)
			}
			t.Cleanup(func() { _ = idle.Close() })
			// The banner says that the idle connection is counted.
			if _, err := idle.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}, sshexec.Dropped},
	} {
		t.Run(tt.name, func(t *testing.T) {
			to := target
			tt.tweak(&to)
			_, err := sshexec.Dial(t.Context(), to)
			if got := sshexec.Classify(err); got != tt.want {
				t.Errorf("class = %v, want %v; error: %v", got, tt.want, err)
			}
			t.Log(err)
		})
	}
}

// TestOpenSSHRoundTrips counts flights behind a slow line to the first output.
func TestIntegrationOpenSSHRoundTrips(t *testing.T) {
	target, _ := openSSH(t)
	dialUp(t, target) // it is up now
	relay, err := sshd.NewRelay(target.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = relay.Close() })
	relay.SetDelay(50 * time.Millisecond)
	target.Addr = relay.Addr()
	c, err := sshexec.Dial(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	// No stdin, whose end would be one more flight of ours.
	ch, err := c.Channel(t.Context(), "echo first; exec cat")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(ch, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	counts := relay.Counts()
	t.Logf("from SYN to first output: %+v", counts)
	_ = ch.Close()
	if counts.RoundTrips != 9 {
		t.Errorf("round trips = %d, want 9", counts.RoundTrips)
	}
}

// TestOpenSSHKeyComesLate: a server that is up before the key is; on one that has
// them, its penalties are not provoked.
func TestIntegrationOpenSSHKeyComesLate(t *testing.T) {
	target, server := openSSH(t)
	dialUp(t, target)
	late := newKey(t)
	target.Keys = [][]byte{late.Private}
	timer := time.AfterFunc(time.Second, func() {
		if err := os.WriteFile(server.authorizedKeys, []byte(late.Public+"\n"), 0o600); err != nil {
			t.Error(err)
		}
	})
	defer timer.Stop()
	c := dialUp(t, target)
	if _, err := c.Run(t.Context(), "true"); err != nil {
		t.Error(err)
	}
	log := server.said(t)
	if strings.Contains(log, "PerSourcePenalties") || strings.Contains(log, "axstartups") || strings.Contains(log, "drop connection") {
		t.Errorf("provoked the server's limits:\n%s", log)
	}
}
