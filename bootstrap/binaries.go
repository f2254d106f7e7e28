package bootstrap

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// SumsFile lists the hashes of all binaries: lines "HASH  OS-ARCH/NAME", as sha256sum writes them.
const SumsFile = "SHA256SUMS"

// Binaries are our programs by platform, in a file system of OS-ARCH/NAME or OS-ARCH/NAME.gz with a SHA256SUMS of the uncompressed content beside
// the folders. Use NewBinaries. Safe for concurrent use.
type Binaries struct {
	files fs.FS
	cache string

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

// CacheIn keeps what is compressed in a folder, made when needed, for the next process. It is to be called before the first Gzip.
func (b *Binaries) CacheIn(folder string) { b.cache = folder }

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
	data, err := b.load(path, want)
	if err != nil {
		return nil, fmt.Errorf("read binary %s: %w", path, err)
	}
	b.compressed[path] = data
	return data, nil
}

// load reads a compressed binary from the files or the cache, or compresses it and fills the cache. The caller holds mu.
func (b *Binaries) load(path, want string) ([]byte, error) {
	data, err := fs.ReadFile(b.files, path+".gz")
	if errors.Is(err, fs.ErrNotExist) && b.cache != "" {
		data, err = os.ReadFile(b.cached(want))
	}
	if err == nil {
		// What is damaged or of another build is made anew.
		if err = checkGzip(data, want); err == nil {
			return data, nil
		}
	}
	raw, rerr := fs.ReadFile(b.files, path)
	if rerr != nil {
		return nil, cmp.Or(notMissing(err), rerr)
	}
	if err := check(sha256.Sum256(raw), want); err != nil {
		return nil, err
	}
	if data, err = compress(raw); err != nil {
		return nil, err
	}
	if b.cache != "" {
		b.keep(want, data)
	}
	return data, nil
}

func notMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (b *Binaries) cached(sum string) string { return filepath.Join(b.cache, sum+".gz") }

// keep writes the cache; that it cannot is no error, only slow the next time.
func (b *Binaries) keep(sum string, data []byte) {
	if os.MkdirAll(b.cache, 0o700) != nil {
		return
	}
	tmp, err := os.CreateTemp(b.cache, ".binary-*")
	if err != nil {
		return
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if errors.Join(err, tmp.Close()) == nil {
		os.Rename(tmp.Name(), b.cached(sum))
	}
}

// compressionLevel takes a second where the standard library's takes four, for 2 % more bytes: an agent stays below 6 MiB.
const compressionLevel = 6

func compress(raw []byte) ([]byte, error) {
	var buf bytes.Buffer
	w, err := gzip.NewWriterLevel(&buf, compressionLevel)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(raw); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func checkGzip(data []byte, want string) error {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return err
	}
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return err
	}
	return check([sha256.Size]byte(h.Sum(nil)), want)
}

func check(sum [sha256.Size]byte, want string) error {
	if got := hex.EncodeToString(sum[:]); got != want {
		return fmt.Errorf("its hash is %s, %s says %s", got, SumsFile, want)
	}
	return nil
}
