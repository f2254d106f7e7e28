package bootstrap

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
)

// SumsFile lists the hashes of all binaries: lines "HASH  OS-ARCH/NAME", as sha256sum writes them.
const SumsFile = "SHA256SUMS"

// Binaries are our programs by platform, in a file system of OS-ARCH/NAME or OS-ARCH/NAME.gz with a SHA256SUMS of the uncompressed content beside
// the folders. Use NewBinaries. Safe for concurrent use.
type Binaries struct {
	files fs.FS

	mu         sync.Mutex // guards all below
	sums       map[string]string
	compressed map[string][]byte
}

// Hash is the hash of one program for one platform.
type Hash struct {
	Platform string
	SHA256   string
}

// NewBinaries reads the list of hashes.
func NewBinaries(files fs.FS) (*Binaries, error) {
	b := &Binaries{files: files, compressed: map[string][]byte{}}
	if err := b.Reload(); err != nil {
		return nil, err
	}
	return b, nil
}

// Reload reads the list of hashes again.
func (b *Binaries) Reload() error {
	text, err := fs.ReadFile(b.files, SumsFile)
	if err != nil {
		return fmt.Errorf("read binaries: %w", err)
	}
	sums := map[string]string{}
	for line := range strings.Lines(string(text)) {
		sum, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok || len(sum) != 2*sha256.Size {
			return fmt.Errorf("read binaries: %s: a line is not HASH  NAME: %q", SumsFile, line)
		}
		sums[strings.TrimPrefix(name, "*")] = sum
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sums = sums
	return nil
}

// Hashes lists the platforms a program is there for, sorted.
func (b *Binaries) Hashes(name string) ([]Hash, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var hashes []Hash
	for path, sum := range b.sums {
		if platform, n, ok := strings.Cut(path, "/"); ok && n == name {
			hashes = append(hashes, Hash{Platform: platform, SHA256: sum})
		}
	}
	if len(hashes) == 0 {
		return nil, fmt.Errorf("find binary %s: %s names none", name, SumsFile)
	}
	slices.SortFunc(hashes, func(x, y Hash) int { return strings.Compare(x.Platform, y.Platform) })
	return hashes, nil
}

// Gzip returns a program compressed, checked against its hash. The result is kept and shared: do not change it.
func (b *Binaries) Gzip(platform, name string) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	path := platform + "/" + name
	if data := b.compressed[path]; data != nil {
		return data, nil
	}
	want, ok := b.sums[path]
	if !ok {
		return nil, fmt.Errorf("%w: %s", ErrPlatform, platform)
	}
	data, err := fs.ReadFile(b.files, path+".gz")
	if errors.Is(err, fs.ErrNotExist) {
		data, err = b.compress(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read binary %s: %w", path, err)
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("read binary %s: %w", path, err)
	}
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return nil, fmt.Errorf("read binary %s: %w", path, err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return nil, fmt.Errorf("read binary %s: its hash is %s, %s says %s", path, got, SumsFile, want)
	}
	b.compressed[path] = data
	return data, nil
}

func (b *Binaries) compress(path string) ([]byte, error) {
	raw, err := fs.ReadFile(b.files, path)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(raw); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
