package bootstrap

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
)

func sum(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

// files is a bin/ folder with one program for two platforms.
func files() fstest.MapFS {
	amd, arm := bytes.Repeat([]byte("amd64 "), 1000), bytes.Repeat([]byte("arm64 "), 1000)
	return fstest.MapFS{
		"linux-amd64/launcher-agent": {Data: amd},
		"linux-arm64/launcher-agent": {Data: arm},
		SumsFile:                     {Data: []byte(sum(amd) + "  linux-amd64/launcher-agent\n" + sum(arm) + "  linux-arm64/launcher-agent\n" + sum(amd) + "  linux-amd64/launcher\n")},
	}
}

func gunzip(t *testing.T, data []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBinariesHashes(t *testing.T) {
	b, err := NewBinaries(files())
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.Hashes("launcher-agent")
	if err != nil {
		t.Fatal(err)
	}
	f := files()
	want := []Hash{{"linux-amd64", sum(f["linux-amd64/launcher-agent"].Data)}, {"linux-arm64", sum(f["linux-arm64/launcher-agent"].Data)}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if _, err := b.Hashes("nobody"); err == nil {
		t.Error("a program nobody built has hashes")
	}
}

func TestBinariesGzip(t *testing.T) {
	cache := t.TempDir()
	f := files()
	b, err := NewBinaries(f)
	if err != nil {
		t.Fatal(err)
	}
	b.CacheIn(cache)
	data, err := b.Gzip("linux-amd64", "launcher-agent")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := gunzip(t, data), f["linux-amd64/launcher-agent"].Data; !bytes.Equal(got, want) {
		t.Error("it is another program after compression")
	}
	cached := filepath.Join(cache, sum(f["linux-amd64/launcher-agent"].Data)+".gz")
	if kept, err := os.ReadFile(cached); err != nil || !bytes.Equal(kept, data) {
		t.Errorf("the cache does not hold what was compressed: %v", err)
	}

	// A damaged cache is made anew, not believed.
	if err := os.WriteFile(cached, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err = NewBinaries(f)
	if err != nil {
		t.Fatal(err)
	}
	b.CacheIn(cache)
	if data, err = b.Gzip("linux-amd64", "launcher-agent"); err != nil || !bytes.Equal(gunzip(t, data), f["linux-amd64/launcher-agent"].Data) {
		t.Errorf("a damaged cache: %v", err)
	}
}

func TestBinariesGzipRefuses(t *testing.T) {
	changed := files()
	changed["linux-amd64/launcher-agent"] = &fstest.MapFile{Data: []byte("something else")}
	missing := files()
	delete(missing, "linux-amd64/launcher-agent")
	for _, c := range []struct {
		name, platform, want string
		files                fstest.MapFS
	}{
		{"another platform", "plan9-mips", "no binary for the machine's platform", files()},
		{"a changed binary", "linux-amd64", "its hash is", changed},
		{"a missing binary", "linux-amd64", "file does not exist", missing},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := NewBinaries(c.files)
			if err != nil {
				t.Fatal(err)
			}
			_, err = b.Gzip(c.platform, "launcher-agent")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if _, err := NewBinaries(fstest.MapFS{SumsFile: {Data: []byte("no sums here\n")}}); err == nil {
		t.Error("a bad list of hashes is taken")
	}
	b, err := NewBinaries(files())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Gzip("plan9-mips", "launcher-agent"); !errors.Is(err, ErrPlatform) {
		t.Errorf("got %v, want ErrPlatform", err)
	}
}
