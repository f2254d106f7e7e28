// Package sshd is a small SSH server for tests and for the machines of the
// local provider, with the connections such tests need.
//
// Server speaks the part of SSH that a launcher uses: sessions with exec, shell
// and (where the runner can) a terminal, signals, exit status, keep-alives, and
// forwarding to loopback where it is allowed. Keys are ed25519, key exchange is
// mlkem768x25519 or curve25519, ciphers are AEADs; nothing else is offered. What
// a command is, the Runner decides: Shell starts processes, RunnerFunc calls a
// function, so that whole launches run in memory.
//
// Pipe and Net are connections and a network in memory, for virtual time
// (testing/synctest). Relay counts round trips and makes trouble on real sockets.
package sshd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
)

// Options configure a Server. HostKey and Runner are required.
type Options struct {
	// HostKey is the private key (PEM) the server proves itself with.
	HostKey []byte
	// AuthorizedKeys are the public lines that may log in, under any user name.
	// With none, nobody can.
	AuthorizedKeys []string
	Runner         Runner

	// AcceptEnv names the variables a client may set; requests for others are refused.
	AcceptEnv []string
	// AllowPTY grants pty-req. The Runner must serve Command.PTY then; Shell
	// does where ShellPTY is true.
	AllowPTY bool
	// AllowForward grants direct-tcpip to loopback addresses. Nothing else is ever forwarded to.
	AllowForward bool

	MaxSessions      int           // channels open at once on a connection [10, as OpenSSH]
	MaxAuthTries     int           // [6, as OpenSSH]
	HandshakeTimeout time.Duration // from accept to logged in [120 s, as OpenSSH's LoginGraceTime]

	// Startups and Penalties, if set, imitate OpenSSH's MaxStartups and PerSourcePenalties.
	Startups  *Startups
	Penalties *Penalties

	// Random yields the numbers in [0, 1) that Startups drops by [rand.Float64].
	// It is called under a lock.
	Random func() float64
	// Log gets refused handshakes and failed starts; no command lines and no keys. [none]
	Log *slog.Logger
}

// Server is an SSH server. Its methods may be called concurrently. Use New.
type Server struct {
	o         Options
	admission *admission

	mu         sync.Mutex
	hostKey    ssh.Signer
	authorized map[string]struct{} // wire form of the keys
}

// New checks the options.
func New(o Options) (*Server, error) {
	if o.Runner == nil {
		return nil, errors.New("sshd: a Runner is required")
	}
	if o.MaxSessions == 0 {
		o.MaxSessions = 10
	}
	if o.MaxAuthTries == 0 {
		o.MaxAuthTries = 6
	}
	if o.HandshakeTimeout == 0 {
		o.HandshakeTimeout = 120 * time.Second
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{o: o, admission: newAdmission(o)}
	if err := s.SetHostKey(o.HostKey); err != nil {
		return nil, err
	}
	if err := s.SetAuthorizedKeys(o.AuthorizedKeys...); err != nil {
		return nil, err
	}
	return s, nil
}

// SetHostKey replaces the host key. Living connections keep the key they began
// with, also when they re-key; handshakes from now on prove the new one. A
// server shows one key per type and handshake, so the overlap of a rotation is
// the client's: it accepts both.
func (s *Server) SetHostKey(private []byte) error {
	key, err := sshkey.ParsePrivate(private)
	if err != nil {
		return fmt.Errorf("set host key: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hostKey = key
	return nil
}

// HostKey is the public line of the current host key.
func (s *Server) HostKey() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sshkey.Line(s.hostKey.PublicKey())
}

// SetAuthorizedKeys replaces the keys that may log in. Living connections stay.
func (s *Server) SetAuthorizedKeys(lines ...string) error {
	keys := make(map[string]struct{}, len(lines))
	for _, line := range lines {
		key, err := sshkey.ParsePublic(line)
		if err != nil {
			return fmt.Errorf("set authorized keys: %w", err)
		}
		keys[string(key.Marshal())] = struct{}{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.authorized = keys
	return nil
}

// Serve accepts until ctx ends, then closes the listener, ends every connection
// as ServeConn does, and returns nil once all are gone. When descriptors run out
// it waits for some; another error of Accept is returned after the same clean-up.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var conns sync.WaitGroup
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer func() {
		stop()
		_ = l.Close() // closed twice is fine
		cancel()
		conns.Wait()
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ECONNABORTED) {
				pause := time.NewTimer(50 * time.Millisecond)
				select {
				case <-ctx.Done():
				case <-pause.C:
				}
				pause.Stop()
				continue
			}
			return fmt.Errorf("sshd accept on %s: %w", l.Addr(), err)
		}
		conns.Go(func() {
			if err := s.ServeConn(ctx, c); err != nil {
				s.o.Log.Debug("ssh connection", "remote", c.RemoteAddr().String(), "error", err)
			}
		})
	}
}

// ServeConn serves one connection and returns once it and its sessions are over:
// nil after a login, else why there was none. When ctx ends it closes the
// connection. Commands still running get Process.Hangup.
func (s *Server) ServeConn(ctx context.Context, c net.Conn) error {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()

	leave, ok := s.admission.enter(c.RemoteAddr())
	if !ok {
		// sshd.c, drop_connection of OpenSSH 9.8 and newer: one line instead of a version.
		_, err := io.WriteString(c, turnedAway)
		return errors.Join(errors.New("turned away"), err)
	}
	tooSlow := time.AfterFunc(s.o.HandshakeTimeout, func() { _ = c.Close() })
	conn, channels, requests, err := ssh.NewServerConn(c, s.config())
	inTime := tooSlow.Stop()
	leave(outcomeOf(err, inTime))
	if err != nil {
		return fmt.Errorf("ssh handshake with %s: %w", c.RemoteAddr(), err)
	}
	defer conn.Close()
	s.connection(ctx, conn, channels, requests)
	return nil
}

// config is made anew for each connection, so that a later SetHostKey cannot
// change the key under a living connection's re-keying.
func (s *Server) config() *ssh.ServerConfig {
	s.mu.Lock()
	defer s.mu.Unlock()
	config := &ssh.ServerConfig{
		Config: ssh.Config{
			KeyExchanges: []string{ssh.KeyExchangeMLKEM768X25519, ssh.KeyExchangeCurve25519},
			Ciphers:      []string{ssh.CipherAES128GCM, ssh.CipherChaCha20Poly1305, ssh.CipherAES256GCM},
		},
		PublicKeyAuthAlgorithms: []string{ssh.KeyAlgoED25519},
		MaxAuthTries:            s.o.MaxAuthTries,
		ServerVersion:           "SSH-2.0-launcher",
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if _, ok := s.authorized[string(key.Marshal())]; !ok {
				return nil, fmt.Errorf("key %s is not authorized", ssh.FingerprintSHA256(key))
			}
			return nil, nil
		},
	}
	config.AddHostKey(s.hostKey)
	return config
}

// connection runs until the peer or ctx has closed it, and waits for all it started.
func (s *Server) connection(ctx context.Context, conn *ssh.ServerConn, channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		for r := range requests {
			// OpenSSH's clients probe with this name; only that an answer comes matters.
			_ = r.Reply(r.Type == "keepalive@openssh.com", nil) // a lost connection ends the loop
		}
	})
	slots := make(chan struct{}, s.o.MaxSessions)
	for n := range channels {
		select {
		case slots <- struct{}{}:
		default:
			_ = n.Reject(ssh.ResourceShortage, "too many channels")
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			switch n.ChannelType() {
			case "session":
				s.session(ctx, conn.User(), n)
			case "direct-tcpip":
				s.forward(ctx, n)
			default:
				_ = n.Reject(ssh.UnknownChannelType, "unknown channel type")
			}
		})
	}
}

// forward serves direct-tcpip (RFC 4254 §7.2) to loopback.
func (s *Server) forward(ctx context.Context, n ssh.NewChannel) {
	var target struct {
		Host       string
		Port       uint32
		Originator string
		OrigPort   uint32
	}
	if err := ssh.Unmarshal(n.ExtraData(), &target); err != nil {
		_ = n.Reject(ssh.ConnectionFailed, "malformed request")
		return
	}
	ip := net.ParseIP(target.Host)
	if !s.o.AllowForward || (target.Host != "localhost" && (ip == nil || !ip.IsLoopback())) {
		_ = n.Reject(ssh.Prohibited, "forwarding is not allowed")
		return
	}
	dialer := net.Dialer{Timeout: 10 * time.Second}
	c, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(target.Host, fmt.Sprint(target.Port)))
	if err != nil {
		_ = n.Reject(ssh.ConnectionFailed, "connect: refused or unreachable")
		return
	}
	defer c.Close()
	ch, requests, err := n.Accept()
	if err != nil {
		return
	}
	defer ch.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { ssh.DiscardRequests(requests) })
	wg.Go(func() {
		_, err := io.Copy(c, ch)
		if half, ok := c.(*net.TCPConn); ok && err == nil {
			_ = half.CloseWrite()
			return
		}
		_ = c.Close()
	})
	_, _ = io.Copy(ch, c) // either side's end ends the forward; the client sees the close
	_ = ch.CloseWrite()
	_ = ch.Close()
	_ = c.Close()
	wg.Wait()
}
