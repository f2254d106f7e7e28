package sshkey_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
)

func TestPair(t *testing.T) {
	p, err := sshkey.New("cifar-x7k2p9")
	if err != nil {
		t.Fatal(err)
	}
	public, err := sshkey.Public(p.Private)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.Public, public+" cifar-x7k2p9"; got != want {
		t.Errorf("public line = %q, want %q", got, want)
	}
	got, err := sshkey.Fingerprint(p.Public)
	if err != nil || got != p.Fingerprint || !strings.HasPrefix(got, "SHA256:") {
		t.Errorf("Fingerprint = %q, %v; want %q", got, err, p.Fingerprint)
	}
	hosts, line, err := sshkey.KnownHost("[node]:2222,10.0.0.1 " + p.Public)
	if err != nil || line != public || len(hosts) != 2 {
		t.Errorf("KnownHost = %q, %q, %v", hosts, line, err)
	}
	q, err := sshkey.New("")
	if err != nil || q.Fingerprint == p.Fingerprint || strings.HasSuffix(q.Public, " ") {
		t.Errorf("second key: %q, %v", q.Public, err)
	}
}

func TestRefused(t *testing.T) {
	p, err := sshkey.New("")
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(curve, "")
	if err != nil {
		t.Fatal(err)
	}
	other := pem.EncodeToMemory(block)
	signer, err := ssh.ParsePrivateKey(other)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"", "nonsense", `command="x" ` + p.Public, p.Public + "\n" + p.Public, sshkey.Line(signer.PublicKey()),
	} {
		if _, err := sshkey.ParsePublic(line); err == nil {
			t.Errorf("ParsePublic(%q) succeeded", line)
		}
	}
	for _, text := range []string{"", "nonsense", string(other), string(p.Private[:100])} {
		if _, err := sshkey.ParsePrivate([]byte(text)); err == nil {
			t.Errorf("ParsePrivate(%.20q…) succeeded", text)
		}
	}
	for _, line := range []string{"", p.Public, "@revoked * " + p.Public, "h " + sshkey.Line(signer.PublicKey())} {
		if _, _, err := sshkey.KnownHost(line); err == nil {
			t.Errorf("KnownHost(%q) succeeded", line)
		}
	}
}
