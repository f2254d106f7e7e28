package launcher

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/launcher/control/archive"
	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
)

func writeTree(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func tree(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// pack packs a folder and returns what arrives, and the hash.
func pack(t *testing.T, source, home string, exclude ...string) ([]string, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "workdir.tar.zst")
	hash, err := packWorkdir(t.Context(), &Job{Workdir: &jobspec.Workdir{Source: source, Exclude: exclude}}, home, file)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	if _, err := archive.Unpack(t.Context(), f, dir); err != nil {
		t.Fatal(err)
	}
	return tree(t, dir), hash
}

func TestWorkdirIgnores(t *testing.T) {
	for _, c := range []struct {
		name    string
		files   map[string]string
		exclude []string
		want    []string
	}{
		{"all", map[string]string{"a": "", "d/b": ""}, nil, []string{"a", "d/b"}},
		{"git's own folder", map[string]string{"a": "", ".git/config": "", "d/.git/x": "", ".github/w": ""}, nil, []string{".github/w", "a"}},
		{"gitignore", map[string]string{".gitignore": "*.log\n# no\n\nbuild/\n", "a.log": "", "d/b.log": "", "build/x": "", "d/build/y": "", "c": ""}, nil, []string{".gitignore", "c"}},
		{
			"launcherignore has the last word",
			map[string]string{".gitignore": "*.bin\n", ".launcherignore": "!keep.bin\ndata\n", "keep.bin": "", "a.bin": "", "data/x": ""},
			nil,
			[]string{".gitignore", ".launcherignore", "keep.bin"},
		},
		{
			"a folder's own file",
			map[string]string{"d/.gitignore": "/x\nsub/z\n", "x": "", "d/x": "", "d/e/x": "", "sub/z": "", "d/sub/z": ""},
			nil,
			[]string{"d/.gitignore", "d/e/x", "sub/z", "x"},
		},
		{
			"further down has the last word",
			map[string]string{".gitignore": "*.pt\n", "d/.gitignore": "!best.pt\n", "best.pt": "", "d/best.pt": "", "d/e/best.pt": "", "d/a.pt": ""},
			nil,
			[]string{".gitignore", "d/.gitignore", "d/best.pt", "d/e/best.pt"},
		},
		{"a slash inside anchors", map[string]string{".gitignore": "a/b\n", "a/b": "", "x/a/b": ""}, nil, []string{".gitignore", "x/a/b"}},
		{"any depth", map[string]string{".gitignore": "**/cache/*.tmp\n", "cache/x.tmp": "", "a/b/cache/y.tmp": "", "cache/z": ""}, nil, []string{".gitignore", "cache/z"}},
		{"one character", map[string]string{".gitignore": "run?.txt\n", "run1.txt": "", "run.txt": "", "run12.txt": ""}, nil, []string{".gitignore", "run.txt", "run12.txt"}},
		{"plain in a pattern, not of a regular expression", map[string]string{".gitignore": "c++/\na(1).txt\n", "c++/x": "", "a(1).txt": "", "a1.txt": ""}, nil, []string{".gitignore", "a1.txt"}},
		{"exclude", map[string]string{"a.ckpt": "", "d/b.ckpt": "", "c": "", ".gitignore": "!a.ckpt\n"}, []string{"*.ckpt"}, []string{".gitignore", "c"}},
		{"a folder of dots", map[string]string{"a.b/.gitignore": "*.o\n", "a.b/x.o": "", "acb/x.o": ""}, nil, []string{"a.b/.gitignore", "acb/x.o"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			writeTree(t, dir, c.files)
			got, _ := pack(t, dir, "/nowhere", c.exclude...)
			if diff := cmp.Diff(got, c.want); diff != "" {
				t.Errorf("got, want: %s", diff)
			}
		})
	}
}

func TestWorkdirLeavesHomeAndSocketsOut(t *testing.T) {
	dir, err := os.MkdirTemp("", "w-") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	writeTree(t, dir, map[string]string{"a": "", "state/runs/r/keys/client": "secret"})
	lis, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	got, _ := pack(t, dir, filepath.Join(dir, "state"))
	if want := []string{"a"}; !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWorkdirHash(t *testing.T) {
	dir := t.TempDir()
	writeTree(t, dir, map[string]string{"a": "1", "b": "2"})
	_, first := pack(t, dir, "")
	if err := os.Chtimes(filepath.Join(dir, "a"), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, touched := pack(t, dir, ""); touched != first {
		t.Error("a time changes the hash")
	}
	for _, change := range []func() error{
		func() error { return os.WriteFile(filepath.Join(dir, "a"), []byte("3"), 0o644) },
		func() error { return os.Chmod(filepath.Join(dir, "a"), 0o755) },
		func() error { return os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "c")) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		_, next := pack(t, dir, "")
		if next == first {
			t.Error("the hash stays the same over a change")
		}
		first = next
	}
}

func TestUnpackOver(t *testing.T) {
	to := t.TempDir()
	outside := t.TempDir()
	for i, files := range []map[string]string{{"a": "old", "d/b": "old", "gone": "stays"}, {"a": "new", "d/b": "new", "d/c": "new", "x/y": "new"}} {
		dir := t.TempDir()
		writeTree(t, dir, files)
		var b strings.Builder
		if err := archive.Pack(t.Context(), &b, archive.Source{Root: dir}); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			// A link that something put there in the meantime must not lead out.
			if err := os.Symlink(outside, filepath.Join(to, "x")); err != nil {
				t.Fatal(err)
			}
		}
		if err := unpackOver(t.Context(), strings.NewReader(b.String()), to); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]string{}
	for _, name := range tree(t, to) {
		text, err := os.ReadFile(filepath.Join(to, name))
		if err != nil {
			t.Fatal(err)
		}
		got[name] = string(text)
	}
	if diff := cmp.Diff(got, map[string]string{"a": "new", "d/b": "new", "d/c": "new", "gone": "stays", "x/y": "new"}); diff != "" {
		t.Errorf("got, want: %s", diff)
	}
	if left := tree(t, outside); len(left) > 0 {
		t.Errorf("written outside: %q", left)
	}
}
