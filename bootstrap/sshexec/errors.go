package sshexec

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"golang.org/x/crypto/ssh"
)

// Class says what an error means for the next attempt.
type Class int

const (
	// Other is everything below does not name: a peer that does not speak SSH or
	// shares no algorithm with us, a dialler that gave up.
	Other Class = iota
	// NotUp: nothing accepted the connection. Trying again costs the peer nothing.
	NotUp
	// Dropped: the connection was accepted and then closed or reset. Before the
	// version line that is MaxStartups, a PerSourcePenalties ban, or a daemon that
	// is starting; Error.Said has what was sent instead of the version.
	Dropped
	// AuthRefused: the pinned host was reached and does not take our keys, which
	// while a machine boots only means not yet.
	AuthRefused
	// TimedOut: accepted, then too slow: a handshake over its limit, a keep-alive
	// without an answer, or the caller's own deadline.
	TimedOut
	// HostKeyMismatch: the peer proved another key than the pinned ones. Never retry.
	HostKeyMismatch
	// BadTarget: the Target itself is unusable, a key that does not parse. Never retry.
	BadTarget
)

func (c Class) String() string {
	switch c {
	case NotUp:
		return "not up"
	case Dropped:
		return "dropped"
	case AuthRefused:
		return "authentication refused"
	case TimedOut:
		return "timed out"
	case HostKeyMismatch:
		return "host key mismatch"
	case BadTarget:
		return "bad target"
	default:
		return "other"
	}
}

// Permanent reports whether another attempt at the same Target is pointless.
func (c Class) Permanent() bool { return c == HostKeyMismatch || c == BadTarget }

// Error is what Dial, DialWhenUp and a Conn that died return.
type Error struct {
	Class Class
	Addr  string
	// Said is what the server wrote before its version line, at most 256 bytes,
	// without control characters: "Not allowed at this time" from OpenSSH ≥ 9.8.
	Said string
	Err  error
}

func (e *Error) Error() string {
	text := fmt.Sprintf("ssh %s: %s: %v", e.Addr, e.Class, e.Err)
	if e.Said != "" {
		text += fmt.Sprintf(" (server said %q)", e.Said)
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }

// Classify returns the class of any error of this package; Other for foreign ones and nil.
func Classify(err error) Class {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	return Other
}

var (
	errNoReply     = errors.New("no answer to a keep-alive")
	errClosed      = errors.New("connection closed")
	errAuthRefused = errors.New("no key accepted")
	errHandshake   = errors.New("handshake over its time limit")
)

// hostKeyError is what the host key callback returns, so that no text is matched.
type hostKeyError struct{ fingerprint string }

func (e *hostKeyError) Error() string {
	return fmt.Sprintf("server proved the key %s, which is not pinned", e.fingerprint)
}

// classifyDial sorts the errors of making the connection.
func classifyDial(err error) Class {
	if open, ok := errors.AsType[*ssh.OpenChannelError](err); ok && open.Reason == ssh.ConnectionFailed {
		return NotUp // refused behind a jump host (RFC 4254 §5.1)
	}
	for _, code := range []error{
		syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN,
		syscall.ENETDOWN, syscall.ETIMEDOUT, syscall.ECONNRESET,
	} {
		if errors.Is(err, code) {
			return NotUp
		}
	}
	if isTimeout(err) {
		return NotUp // of the connect alone: nobody answered the SYN
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok && (dns.IsNotFound || dns.IsTemporary) {
		return NotUp // a name that is yet to appear
	}
	return Other
}

func isTimeout(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	n, ok := errors.AsType[net.Error](err)
	return ok && n.Timeout()
}

// classifyHandshake sorts the errors of ssh.NewClientConn. What we cause
// ourselves is typed; the one text matched is x/crypto's for a disconnect message
// (ssh/messages.go, disconnectMsg, which it does not export). proved: the server's
// key was accepted, so what follows is about ours.
func classifyHandshake(err error, proved bool) Class {
	if _, ok := errors.AsType[*hostKeyError](err); ok {
		return HostKeyMismatch
	}
	if errors.Is(err, errAuthRefused) {
		return AuthRefused
	}
	// OpenSSH, sshd-session's auth.c auth_maxtries_exceeded: reason 2, "Too many
	// authentication failures"; PAM's refusals come the same way. A disconnect
	// earlier is about algorithms or load.
	if strings.Contains(err.Error(), "ssh: disconnect, reason ") {
		if proved {
			return AuthRefused
		}
		return Dropped
	}
	if isTimeout(err) {
		return TimedOut
	}
	if isGone(err) {
		return Dropped
	}
	return Other
}
