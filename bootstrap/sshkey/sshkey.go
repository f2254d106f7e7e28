// Package sshkey makes and reads the ed25519 keys of a run as text.
//
// Only packages under bootstrap may import x/crypto/ssh, so keys cross every
// other boundary as text: a private key as an OpenSSH PEM block, a public key
// as an authorized_keys line ("ssh-ed25519 AAAA… comment"), a fingerprint as
// "SHA256:…" (RFC 4648 base64 without padding, as `ssh-keygen -l` prints it).
// Other key types are refused: one type means one thing to rotate, and a
// handshake that cannot be talked down to a weaker one.
package sshkey

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"

	"golang.org/x/crypto/ssh"
)

// Pair is one key in the three forms the rest of the program handles.
type Pair struct {
	Private     []byte // OpenSSH PEM, not encrypted; keep it 0600
	Public      string // authorized_keys line without a newline
	Fingerprint string // SHA256:…
}

// New makes a pair from the system's random source. The comment ends up in
// both halves and must not hold a line break.
func New(comment string) (Pair, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generate ed25519 key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(private, comment)
	if err != nil {
		return Pair{}, fmt.Errorf("encode private key: %w", err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		return Pair{}, fmt.Errorf("encode public key: %w", err)
	}
	line := Line(key)
	if comment != "" {
		line += " " + comment
	}
	return Pair{
		Private:     pem.EncodeToMemory(block),
		Public:      line,
		Fingerprint: ssh.FingerprintSHA256(key),
	}, nil
}

// Line is the authorized_keys line of key, without comment or newline.
func Line(key ssh.PublicKey) string {
	return string(bytes.TrimRight(ssh.MarshalAuthorizedKey(key), "\n"))
}

// Public derives the public line from a private key.
func Public(private []byte) (string, error) {
	signer, err := ParsePrivate(private)
	if err != nil {
		return "", err
	}
	return Line(signer.PublicKey()), nil
}

// Fingerprint is the SHA256:… form of a public line.
func Fingerprint(line string) (string, error) {
	key, err := ParsePublic(line)
	if err != nil {
		return "", err
	}
	return ssh.FingerprintSHA256(key), nil
}

// ParsePublic reads an authorized_keys line. Options before the key are
// refused: they would be dropped, and a reader of the line would believe in them.
func ParsePublic(line string) (ssh.PublicKey, error) {
	key, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		return nil, fmt.Errorf("parse public key: %w", err)
	}
	if len(options) > 0 || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("parse public key: want one line and no options")
	}
	if err := checkType(key); err != nil {
		return nil, err
	}
	return key, nil
}

// ParsePrivate reads an OpenSSH (or PKCS #8) PEM block. The error never quotes the input.
func ParsePrivate(private []byte) (ssh.Signer, error) {
	signer, err := ssh.ParsePrivateKey(private)
	if err != nil {
		return nil, fmt.Errorf("parse private key: %w", err)
	}
	if err := checkType(signer.PublicKey()); err != nil {
		return nil, err
	}
	return signer, nil
}

// KnownHost reads one known_hosts line (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT")
// and returns its host patterns and the key as an authorized_keys line. Marked
// lines (@cert-authority, @revoked) are refused.
func KnownHost(line string) (hosts []string, public string, err error) {
	marker, hosts, key, _, rest, err := ssh.ParseKnownHosts([]byte(line))
	if err != nil {
		return nil, "", fmt.Errorf("parse known_hosts line: %w", err)
	}
	if marker != "" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, "", fmt.Errorf("parse known_hosts line: want one line and no marker")
	}
	if err := checkType(key); err != nil {
		return nil, "", err
	}
	return hosts, Line(key), nil
}

func checkType(key ssh.PublicKey) error {
	if key.Type() != ssh.KeyAlgoED25519 {
		return fmt.Errorf("key type %s: only %s is used", key.Type(), ssh.KeyAlgoED25519)
	}
	return nil
}
