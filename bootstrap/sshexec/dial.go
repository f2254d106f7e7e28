// Package sshexec runs commands on machines over SSH: it dials with a pinned
// host key, runs and streams commands, and turns a command's stdin and stdout
// into a net.Conn for gRPC.
//
// There is no trust on first use, no ssh-agent, no ~/.ssh/config and no password;
// keys are ed25519 (package sshkey). Every failure to connect has a Class, which is
// all that callers branch on.
//
// A stock x/crypto handshake costs 9 round trips from SYN to the first byte of
// a command's output: TCP, version, key exchange, service request, auth "none"
// (always sent first), key probe, signature, channel open, exec. The first exec
// of a connection rides on it; each further command costs two. Doing better
// needs a client that pipelines RFC 4252 and 4254 messages, which x/crypto's
// cannot be made to do from outside.
package sshexec

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
)

// Target is a machine and how to know it.
type Target struct {
	Addr string // host:port
	User string
	// Keys are private keys (PEM), offered in order. More than the server's
	// MaxAuthTries (6) lock us out.
	Keys [][]byte
	// HostKeys are the accepted host keys, at least one: authorized_keys lines or
	// "SHA256:…" fingerprints. Several are accepted at once while a key is rotated.
	HostKeys []string
	// Dialer makes the connection [net.Dialer with a connect timeout of 10 s].
	// (*Conn).Dial fits, for a machine behind another.
	Dialer func(ctx context.Context, network, addr string) (net.Conn, error)
	// HandshakeTimeout runs from the connection to the login [20 s]. It must stay
	// below LoginGraceTime (120 s), beyond which OpenSSH penalises.
	HandshakeTimeout time.Duration
	// KeepAlive is both how often the server is asked to answer and how long it may
	// take, so a half-open connection is found within twice that [15 s]. Negative is off.
	KeepAlive time.Duration
}

// Dial connects, checks the host key, and logs in. If the key is not pinned it
// closes the connection with nothing sent beyond key exchange, and the class is
// HostKeyMismatch. ctx bounds the dialling only. All errors are *Error.
func Dial(ctx context.Context, t Target) (*Conn, error) {
	config, err := t.parse()
	if err != nil {
		return nil, &Error{Class: BadTarget, Addr: t.Addr, Err: err}
	}
	dialer := t.Dialer
	if dialer == nil {
		dialer = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	}
	c, err := dialer(ctx, "tcp", t.Addr)
	if err != nil {
		class := classifyDial(err)
		if ctx.Err() != nil {
			class = classOfDone(ctx)
		}
		return nil, &Error{Class: class, Addr: t.Addr, Err: err}
	}
	return handshake(ctx, t, config, c)
}

// classOfDone: a caller's deadline is a timeout, its cancellation is its own affair.
func classOfDone(ctx context.Context) Class {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return TimedOut
	}
	return Other
}

// credentials is a Target with its text parsed.
type credentials struct {
	signers []ssh.Signer
	pins    []string // SHA256:… of Target.HostKeys, by index
}

func (t Target) parse() (credentials, error) {
	var k credentials
	for i, private := range t.Keys {
		signer, err := sshkey.ParsePrivate(private)
		if err != nil {
			return k, fmt.Errorf("key %d: %w", i+1, err)
		}
		k.signers = append(k.signers, signer)
	}
	if len(k.signers) == 0 {
		return k, errors.New("no private key")
	}
	for i, line := range t.HostKeys {
		pin := line
		if !strings.HasPrefix(line, "SHA256:") {
			var err error
			if pin, err = sshkey.Fingerprint(line); err != nil {
				return k, fmt.Errorf("host key %d: %w", i+1, err)
			}
		}
		k.pins = append(k.pins, pin)
	}
	if len(k.pins) == 0 {
		return k, errors.New("no pinned host key")
	}
	return k, nil
}

func handshake(ctx context.Context, t Target, k credentials, raw net.Conn) (*Conn, error) {
	limit := t.HandshakeTimeout
	if limit == 0 {
		limit = 20 * time.Second
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errHandshake)
	defer cancel()
	// Closing is the one interruption that every Dialer's connection has.
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })

	var pinned atomic.Int32
	var proved atomic.Bool // the host key was accepted
	wire := &greeted{Conn: raw}
	wire.buffered = bufio.NewReaderSize(io.TeeReader(raw, &wire.greeting), 512)
	config := &ssh.ClientConfig{
		Config: ssh.Config{
			KeyExchanges: []string{ssh.KeyExchangeMLKEM768X25519, ssh.KeyExchangeCurve25519},
			Ciphers:      []string{ssh.CipherAES128GCM, ssh.CipherChaCha20Poly1305, ssh.CipherAES256GCM},
		},
		User:              t.User,
		ClientVersion:     "SSH-2.0-launcher",
		HostKeyAlgorithms: []string{ssh.KeyAlgoED25519},
		// Called at each re-keying as well.
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			fingerprint := ssh.FingerprintSHA256(key)
			i := slices.Index(k.pins, fingerprint)
			if i < 0 {
				return &hostKeyError{fingerprint}
			}
			pinned.Store(int32(i))
			proved.Store(true)
			return nil
		},
		// Called after "none" and after each method: tells a refusal by what was
		// tried instead of by the text of x/crypto's error.
		AuthCallback: func(a *ssh.ClientAuthContext) (ssh.AuthMethod, error) {
			if slices.Contains(a.TriedMethods, "publickey") || slices.Contains(a.PartialSuccessMethods, "publickey") ||
				!slices.Contains(a.AllowedMethods, "publickey") {
				return nil, fmt.Errorf("%w for user %q, server offers %v", errAuthRefused, t.User, a.AllowedMethods)
			}
			return ssh.PublicKeys(k.signers...), nil
		},
	}
	conn, channels, requests, err := ssh.NewClientConn(wire, t.Addr, config)
	if !stop() { // ctx is over and raw closed, even if the login just made it
		if err == nil {
			_ = conn.Close()
		}
		return nil, &Error{Class: classOfDone(ctx), Addr: t.Addr, Said: wire.greeting.said(), Err: context.Cause(ctx)}
	}
	if err != nil {
		return nil, &Error{
			Class: classifyHandshake(err, proved.Load()), Addr: t.Addr, Said: wire.greeting.said(), Err: err,
		}
	}
	return newConn(t, conn, channels, requests, t.HostKeys[pinned.Load()]), nil
}

// greeted buffers reads, because x/crypto reads the version line byte by byte,
// and remembers what came before it. Reads larger than the buffer, which is all
// of them after the version, go through uncopied once it is empty.
type greeted struct {
	net.Conn
	buffered *bufio.Reader
	greeting greeting
}

func (g *greeted) Read(p []byte) (int, error) { return g.buffered.Read(p) }

// greeting keeps the first 256 bytes of a connection. x/crypto's reading goroutine
// may outlive the handshake it failed in, hence the mutex.
type greeting struct {
	mu   sync.Mutex
	text []byte
}

func (g *greeting) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if room := 256 - len(g.text); room > 0 {
		g.text = append(g.text, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

// said is what the server wrote instead of a version line; lines that it wrote
// before one are only its admin's greeting.
func (g *greeting) said() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if bytes.Contains(g.text, []byte("SSH-2.0-")) {
		return ""
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, string(g.text)))
}

// isGone: the peer closed or reset the connection.
func isGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNABORTED)
}
