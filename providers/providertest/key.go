package providertest

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/pem"
)

// key is an SSH key pair. It is encoded here, and not by x/crypto/ssh, so that a provider's test does not link SSH.
type key struct {
	public ed25519.PublicKey
	secret ed25519.PrivateKey
}

func newKey() key {
	public, secret, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err) // crypto/rand never fails (its own documentation)
	}
	return key{public, secret}
}

const keyType = "ssh-ed25519"

// field is a string of the SSH wire format (RFC 4251 §5).
func field(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// blob is the public key as RFC 8709 §4 has it.
func (k key) blob() []byte { return append(field([]byte(keyType)), field(k.public)...) }

// authorized is the line of authorized_keys.
func (k key) authorized() string {
	return keyType + " " + base64.StdEncoding.EncodeToString(k.blob()) + " providertest"
}

// private is the unencrypted private key file (openssh-portable, PROTOCOL.key).
func (k key) private() []byte {
	var check [4]byte
	_, _ = rand.Read(check[:]) // never fails
	list := append(check[:], check[:]...)
	list = append(list, k.blob()...)
	list = append(list, field(k.secret)...)
	list = append(list, field([]byte("providertest"))...)
	for i := byte(1); len(list)%8 != 0; i++ {
		list = append(list, i)
	}
	file := []byte("openssh-key-v1\x00")
	for _, part := range []string{"none", "none", ""} { // cipher, kdf, kdf options
		file = append(file, field([]byte(part))...)
	}
	file = binary.BigEndian.AppendUint32(file, 1) // keys
	file = append(file, field(k.blob())...)
	file = append(file, field(list)...)
	return pem.EncodeToMemory(&pem.Block{Type: "OPENSSH PRIVATE KEY", Bytes: file})
}
