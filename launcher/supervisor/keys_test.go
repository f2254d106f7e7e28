package supervisor

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

func TestKeyFolder(t *testing.T) {
	door := &journal.Door{}
	k := &KeyFolder{Folder: filepath.Join(t.TempDir(), "keys"), Client: "client", Worker: "worker", Door: door}
	private, public, err := k.Birth("run-w1")
	if err != nil {
		t.Fatal(err)
	}
	again, publicAgain, err := k.Birth("run-w1")
	if err != nil || !bytes.Equal(private, again) {
		t.Errorf("a repeated call carries another key: %v", err)
	}
	if trim := func(s string) string { return string(bytes.Join(bytes.Fields([]byte(s))[:2], []byte(" "))) }; trim(public) != trim(publicAgain) {
		t.Errorf("public halves %q and %q", public, publicAgain)
	}
	if other, _, err := k.Birth("run-w2"); err != nil || bytes.Equal(private, other) {
		t.Errorf("two calls have one key: %v", err)
	}
	if got := door.Count(); got != 2 {
		t.Errorf("%d effects, want 2: one file a key", got)
	}
	for path, want := range map[string]os.FileMode{k.Folder: 0o700, filepath.Join(k.Folder, "birth-run-w1"): 0o600} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", filepath.Base(path), info.Mode(), err, want)
		}
	}
	if all, err := k.All([]string{"run-w1", "run-w2"}); err != nil || len(all) != 2 || !bytes.Equal(all["run-w1"], private) {
		t.Errorf("all: %d keys, %v", len(all), err)
	}
	if _, err := k.All([]string{"unknown"}); err == nil {
		t.Error("a key that is not there was found")
	}
	if diff := cmp.Diff([][]string{{"client"}, {"client", "worker"}}, [][]string{k.Authorized(providers.Head), k.Authorized(providers.Worker)}); diff != "" {
		t.Errorf("authorized (-want +got):\n%s", diff)
	}
	door.Guard = func(int, journal.Effect, func() error) error { return journal.ErrCrashed }
	if _, _, err := k.Birth("run-w3"); !errors.Is(err, journal.ErrCrashed) {
		t.Errorf("died before the key was written, and it says %v", err)
	}
}
