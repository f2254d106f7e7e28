package providertest

import (
	"crypto/ed25519"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"
)

func TestKeyIsWhatSSHReads(t *testing.T) {
	k := newKey()
	raw, err := ssh.ParseRawPrivateKey(k.private())
	if err != nil {
		t.Fatal(err)
	}
	if got := *raw.(*ed25519.PrivateKey); !got.Equal(k.secret) {
		t.Error("another private key came back")
	}
	public, comment, _, _, err := ssh.ParseAuthorizedKey([]byte(k.authorized()))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(k.blob(), public.Marshal()); diff != "" || comment != "providertest" {
		t.Errorf("public key (-want +got), comment %q:\n%s", comment, diff)
	}
}
