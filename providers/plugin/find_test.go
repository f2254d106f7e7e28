package plugin

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/providers"
)

// install puts an executable into a folder.
func install(t *testing.T, folder, name, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(folder, Prefix+name)
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFind(t *testing.T) {
	own, first, second := t.TempDir(), t.TempDir(), t.TempDir()
	s := Search{Own: []string{own}, Others: []string{filepath.Join(first, "none"), first, second}}
	install(t, own, "aws", "a", 0o755)
	install(t, first, "aws", "b", 0o755)
	install(t, first, "lab", "c", 0o644) // not executable
	install(t, second, "lab", "d", 0o755)
	install(t, second, "Bad", "e", 0o755)
	install(t, second, "data", "f", 0o644)
	if err := os.Mkdir(filepath.Join(second, Prefix+"folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	all := []Found{
		{Name: "aws", Path: filepath.Join(own, Prefix+"aws"), Own: true},
		{Name: "lab", Path: filepath.Join(second, Prefix+"lab")},
	}
	if diff := cmp.Diff(all, s.Discover()); diff != "" {
		t.Errorf("discover (-want +got):\n%s", diff)
	}
	for _, want := range all {
		got, err := s.Find(want.Name)
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("find (-want +got):\n%s", diff)
		}
	}
	for name, text := range map[string]string{
		"gcp": "beside launcher, in $LAUNCHER_PLUGINS, or on PATH", "../x": "no name", "": "no name", "Bad": "no name",
		"data": "is not an executable file", "folder": "is not an executable file",
	} {
		_, err := s.Find(name)
		if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), text) {
			t.Errorf("find %q: got %v, want one with %q", name, err, text)
		}
	}
}

func TestDefaultSearch(t *testing.T) {
	t.Setenv(EnvFolders, strings.Join([]string{"/one", "relative", "", "/two"}, string(os.PathListSeparator)))
	t.Setenv("PATH", strings.Join([]string{"/three", ".", "/one"}, string(os.PathListSeparator)))
	s := DefaultSearch()
	if diff := cmp.Diff([]string{"/one", "/two", "/three"}, s.Others); diff != "" {
		t.Errorf("others (-want +got):\n%s", diff)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Own) == 0 || s.Own[0] != filepath.Dir(self) {
		t.Errorf("own folders %v, want %s first", s.Own, filepath.Dir(self))
	}
}

// TestResolve: who may be run without asking, who not, and that the shown command is all it takes.
func TestResolve(t *testing.T) {
	own, other := t.TempDir(), t.TempDir()
	lock := filepath.Join(t.TempDir(), "it's", LockName)
	if err := os.Mkdir(filepath.Dir(lock), 0o755); err != nil {
		t.Fatal(err)
	}
	s := Search{Own: []string{own}, Others: []string{other}}
	install(t, own, "aws", "a", 0o755)
	path := install(t, other, "lab", "b", 0o755)

	h, err := Resolve("aws", s, "", Options{})
	if err != nil {
		t.Fatal(err)
	}
	sum, err := Checksum(filepath.Join(own, Prefix+"aws"))
	if err != nil {
		t.Fatal(err)
	}
	if h.Checksum() != sum || h.Path() != filepath.Join(own, Prefix+"aws") {
		t.Errorf("resolved to %s with checksum %s, want %s", h.Path(), h.Checksum(), sum)
	}
	_, err = Resolve("gcp", s, "", Options{})
	wantError(t, err, providers.NotFound)

	_, err = Resolve("lab", s, "", Options{})
	wantError(t, err, providers.Invalid, "not in launcher.lock")
	refused := func(texts ...string) *LockError {
		t.Helper()
		_, err := Resolve("lab", s, lock, Options{})
		wantError(t, err, providers.Invalid, texts...)
		refusal, ok := errors.AsType[*LockError](err)
		if !ok {
			t.Fatalf("error %v is no LockError", err)
		}
		return refusal
	}
	accept := func(e *LockError) {
		t.Helper()
		if out, err := exec.Command("sh", "-c", e.Command()).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", e.Command(), err, out)
		}
		h, err := Resolve("lab", s, lock, Options{})
		if err != nil {
			t.Fatalf("after %s: %v", e.Command(), err)
		}
		if h.Checksum() != e.Pin.Checksum {
			t.Errorf("host holds it to %s, want %s", h.Checksum(), e.Pin.Checksum)
		}
	}
	accept(refused("is not launcher's own", "to accept it: echo"))
	before, err := Resolve("lab", s, lock, Options{})
	if err != nil {
		t.Fatal(err)
	}
	install(t, other, "lab", "changed", 0o755)
	_, err = before.Info(t.Context()) // between resolving and starting
	wantError(t, err, providers.Invalid, "has changed")
	accept(refused("has changed", "to accept it: echo"))

	// What a run has pinned counts more than the lock, and needs no search.
	_, err = Resolve("lab", s, lock, Options{Checksum: before.Checksum()})
	wantError(t, err, providers.Invalid, "not the one that the run began with")
	pinned, err := Checksum(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Resolve("lab", Search{}, "", Options{Path: path, Checksum: pinned}); err != nil {
		t.Error(err)
	}
	_, err = Resolve("lab", Search{}, "", Options{Path: path})
	wantError(t, err, providers.Invalid, "not in launcher.lock")

	if err := os.WriteFile(lock, []byte("nonsense\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = Resolve("lab", s, lock, Options{})
	wantError(t, err, providers.Invalid, "line 1")
}
