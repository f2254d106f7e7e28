package archive

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, data := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := Source{Root: root}.Walk(func(e Entry) error {
		value := e.Info.Mode().String() + " " + e.Link
		if e.Info.Mode().IsRegular() {
			b, err := os.ReadFile(filepath.Join(root, e.Path))
			if err != nil {
				return err
			}
			value += string(b)
		}
		got[e.Path] = value
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestRoundTrip(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	write(t, from, map[string]string{"a.txt": "a", "sub/b.sh": "b", "sub/deep/c": strings.Repeat("c", 300_000), "skip/me": "x"})
	os.Chmod(filepath.Join(from, "sub/b.sh"), 0o755)
	os.Symlink("a.txt", filepath.Join(from, "link"))
	os.Symlink("/data", filepath.Join(from, "absolute"))
	os.Mkdir(filepath.Join(from, "empty"), 0o700)
	os.Mkdir(filepath.Join(from, "locked"), 0o755)
	write(t, from, map[string]string{"locked/file": "y"})
	os.Chmod(filepath.Join(from, "locked"), 0o555)
	defer os.Chmod(filepath.Join(from, "locked"), 0o755)
	defer os.Chmod(filepath.Join(to, "locked"), 0o755)
	when := time.Unix(1_700_000_000, 0)
	os.Chtimes(filepath.Join(from, "a.txt"), when, when)

	source := Source{Root: from, Skip: func(e Entry) bool { return e.Path == "skip" }}
	var first, second bytes.Buffer
	if err := Pack(t.Context(), &first, source); err != nil {
		t.Fatal(err)
	}
	if err := Pack(t.Context(), &second, source); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two packs of the same differ")
	}
	size, err := Unpack(t.Context(), &first, to)
	if err != nil || size != 300_003 {
		t.Fatalf("unpack: %d, %v", size, err)
	}
	want := tree(t, from)
	delete(want, "skip")
	delete(want, "skip/me")
	if diff := cmp.Diff(tree(t, to), want); diff != "" {
		t.Errorf("unpacked (-got +want):\n%s", diff)
	}
	if info, err := os.Stat(filepath.Join(to, "a.txt")); err != nil || !info.ModTime().Equal(when) {
		t.Errorf("time of a.txt is %v, want %v", info.ModTime(), when)
	}
	a, n, err := Hash(t.Context(), source)
	b, _, err2 := Hash(t.Context(), Source{Root: to})
	if err != nil || err2 != nil || a != b || n != size {
		t.Errorf("hashes %s %s of %d bytes, %v, %v", a, b, n, err, err2)
	}
	fa, _, _ := Fingerprint(source)
	write(t, to, map[string]string{"a.txt": "A"})
	if b, _, _ := Hash(t.Context(), Source{Root: to}); a == b {
		t.Error("the hash does not see a changed byte")
	}
	write(t, from, map[string]string{"a.txt": "longer"})
	if fb, _, _ := Fingerprint(source); fa == fb {
		t.Error("the fingerprint does not see a changed file")
	}
}

// TestNothingGetsOut: no entry of a hostile archive lands outside of the folder.
func TestNothingGetsOut(t *testing.T) {
	file := func(name string) *tar.Header {
		return &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: 1}
	}
	for name, headers := range map[string][]*tar.Header{
		"parent":        {file("../evil")},
		"parent within": {file("a/../../evil")},
		"absolute":      {file("/tmp/launcher-evil")},
		"by a link":     {{Name: "out", Typeflag: tar.TypeSymlink, Linkname: ".."}, file("out/evil")},
		"over a link":   {{Name: "evil", Typeflag: tar.TypeSymlink, Linkname: "../evil"}, file("evil")},
		"hard link":     {{Name: "evil", Typeflag: tar.TypeLink, Linkname: "../secret"}},
		"device":        {{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			z, _ := zstd.NewWriter(&b)
			w := tar.NewWriter(z)
			for _, h := range headers {
				if err := w.WriteHeader(h); err != nil {
					t.Fatal(err)
				}
				if h.Size > 0 {
					w.Write([]byte("x"))
				}
			}
			w.Close()
			z.Close()
			top := t.TempDir()
			write(t, top, map[string]string{"secret": "s", "in/keep": "k"})
			if _, err := Unpack(t.Context(), &b, filepath.Join(top, "in")); err == nil {
				t.Error("unpacked without an error")
			}
			if _, err := os.Lstat(filepath.Join(top, "evil")); err == nil {
				t.Error("a file lies outside of the folder")
			}
			if b, _ := os.ReadFile(filepath.Join(top, "secret")); string(b) != "s" {
				t.Error("a file outside was changed")
			}
		})
	}
}

func TestTruncated(t *testing.T) {
	from := t.TempDir()
	write(t, from, map[string]string{"a": strings.Repeat("random-ish 123 ", 20_000)})
	var b bytes.Buffer
	if err := Pack(t.Context(), &b, Source{Root: from}); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, b.Len() / 2, b.Len() - 1} {
		if _, err := Unpack(t.Context(), bytes.NewReader(b.Bytes()[:n]), t.TempDir()); err == nil {
			t.Errorf("%d of %d bytes unpacked without an error", n, b.Len())
		}
	}
}
