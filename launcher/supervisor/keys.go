package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

// KeyFolder keeps a run's birth host keys as files of mode 0600. It implements Keys.
type KeyFolder struct {
	// Folder is made, 0700, when the first key is.
	Folder string
	// Client and Worker are the public halves of the run's two user keys: the client's may log in everywhere, the worker key on workers only.
	Client, Worker string
	Door           *journal.Door
}

// Birth implements Keys.
func (k *KeyFolder) Birth(token string) (private []byte, public string, err error) {
	private, err = os.ReadFile(k.path(token))
	if errors.Is(err, fs.ErrNotExist) {
		pair, err := sshkey.New("birth key of " + token)
		if err != nil {
			return nil, "", err
		}
		return pair.Private, pair.Public, k.Put(token, pair.Private)
	}
	if err != nil {
		return nil, "", err
	}
	public, err = sshkey.Public(private)
	return private, public, err
}

// Put stores a birth key that was made elsewhere.
func (k *KeyFolder) Put(token string, private []byte) error {
	return k.Door.Pass(context.Background(), journal.Effect{Name: "key.write", Operand: token}, func() error {
		return WriteSecret(k.path(token), private)
	})
}

// All returns the private birth keys by token, of the tokens given.
func (k *KeyFolder) All(tokens []string) (map[string][]byte, error) {
	keys := map[string][]byte{}
	for _, t := range tokens {
		b, err := os.ReadFile(k.path(t))
		if err != nil {
			return nil, fmt.Errorf("read birth key: %w", err)
		}
		keys[t] = b
	}
	return keys, nil
}

func (k *KeyFolder) path(token string) string { return filepath.Join(k.Folder, "birth-"+token) }

// Authorized implements Keys.
func (k *KeyFolder) Authorized(role providers.Role) []string {
	if role == providers.Head {
		return []string{k.Client}
	}
	return []string{k.Client, k.Worker}
}

// WriteSecret writes a file of mode 0600, in a folder of mode 0700, atomically and durably.
func WriteSecret(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".secret-*") // 0600 by contract
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
