// Package archive packs folders for the way between nodes, unpacks them without letting anything out of the folder
// they go to, and names content by a hash.
//
// The format is tar compressed with zstd. Regular files, folders, symbolic and hard links travel; sockets, devices
// and pipes do not.
package archive

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// windowSize is the memory that compressing and decompressing take, in bytes: agents are small.
const windowSize = 1 << 20

// Entry is one file, folder or link of a source, as Walk gives it.
type Entry struct {
	Path string // slash-separated, relative; the root itself has none
	Info fs.FileInfo
	Link string // target of a symbolic link
}

// Source is what to pack: Root, or only what is under Name in it (a file or folder).
type Source struct {
	Root string
	Name string
	// Skip leaves an entry out, a folder with all that is in it. Nil: nothing is left out.
	Skip func(e Entry) bool
}

// Walk visits the entries of s in a fixed order, parents first.
func (s Source) Walk(visit func(Entry) error) error {
	start := filepath.Join(s.Root, filepath.FromSlash(s.Name))
	return filepath.WalkDir(start, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) && file != start {
				return nil // it went away while we walked
			}
			return err
		}
		rel, err := filepath.Rel(s.Root, file)
		if err != nil || rel == "." {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		e := Entry{Path: filepath.ToSlash(rel), Info: info}
		mode := info.Mode()
		switch {
		case mode&fs.ModeSymlink != 0:
			if e.Link, err = os.Readlink(file); err != nil {
				return err
			}
		case !mode.IsRegular() && !mode.IsDir():
			return nil
		}
		if s.Skip != nil && s.Skip(e) {
			if mode.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		return visit(e)
	})
}

// Hash names the content of s: paths, permissions and bytes, not times. size is the bytes of all files.
func Hash(ctx context.Context, s Source) (sum string, size int64, err error) {
	h := sha256.New()
	err = s.Walk(func(e Entry) error {
		mode := e.Info.Mode()
		fmt.Fprintf(h, "%q %s %o %q\n", e.Path, kind(mode), mode.Perm(), e.Link)
		if !mode.IsRegular() {
			return nil
		}
		n, err := hashFile(ctx, h, filepath.Join(s.Root, filepath.FromSlash(e.Path)))
		fmt.Fprintf(h, " %d\n", n)
		size += n
		return err
	})
	if err != nil {
		return "", 0, fmt.Errorf("hash %s: %w", filepath.Join(s.Root, s.Name), err)
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}

// Fingerprint is a cheap stand-in for Hash that reads no file: it changes when a path, size or time of change does.
// It is not the same on two nodes.
func Fingerprint(s Source) (sum string, size int64, err error) {
	h := sha256.New()
	err = s.Walk(func(e Entry) error {
		fmt.Fprintf(h, "%q %o %q %d\n", e.Path, e.Info.Mode(), e.Link, e.Info.ModTime().UnixNano())
		if e.Info.Mode().IsRegular() {
			fmt.Fprintf(h, "%d\n", e.Info.Size())
			size += e.Info.Size()
		}
		return nil
	})
	if err != nil {
		return "", 0, fmt.Errorf("fingerprint %s: %w", filepath.Join(s.Root, s.Name), err)
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}

func kind(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "folder"
	case mode&fs.ModeSymlink != 0:
		return "link"
	}
	return "file"
}

func hashFile(ctx context.Context, h hash.Hash, file string) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return io.Copy(h, readerFunc(func(p []byte) (int, error) {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		return f.Read(p)
	}))
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Pack writes s to w. The same content with the same times gives the same bytes. A file that changes meanwhile is
// packed at the size it had at first, cut or filled up with zeros.
func Pack(ctx context.Context, w io.Writer, s Source) error {
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(windowSize),
		zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return fmt.Errorf("pack: %w", err)
	}
	t := tar.NewWriter(z)
	err = s.Walk(func(e Entry) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return packEntry(t, s.Root, e)
	})
	if err = errors.Join(err, t.Close(), z.Close()); err != nil {
		return fmt.Errorf("pack %s: %w", filepath.Join(s.Root, s.Name), err)
	}
	return nil
}

func packEntry(t *tar.Writer, root string, e Entry) error {
	header := &tar.Header{
		Name: e.Path, Mode: int64(e.Info.Mode().Perm()), ModTime: e.Info.ModTime(), Format: tar.FormatPAX,
	}
	switch mode := e.Info.Mode(); {
	case mode.IsDir():
		header.Typeflag = tar.TypeDir
		header.Name += "/"
		return t.WriteHeader(header)
	case mode&fs.ModeSymlink != 0:
		header.Typeflag, header.Linkname = tar.TypeSymlink, e.Link
		return t.WriteHeader(header)
	}
	f, err := os.Open(filepath.Join(root, filepath.FromSlash(e.Path)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer f.Close()
	header.Typeflag, header.Size = tar.TypeReg, e.Info.Size()
	if err := t.WriteHeader(header); err != nil {
		return err
	}
	n, err := io.CopyN(t, f, header.Size)
	if errors.Is(err, io.EOF) { // shorter than it was
		_, err = io.CopyN(t, zeros{}, header.Size-n)
	}
	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// Unpack writes an archive into the folder dir, which exists, and returns the bytes of its files. An entry that
// would lie outside of dir, also by way of a link, is an error; what was unpacked before it stays.
func Unpack(ctx context.Context, r io.Reader, dir string) (size int64, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, fmt.Errorf("unpack: %w", err)
	}
	defer root.Close()
	// Nothing at all is a stream that broke off: even an empty folder has an end mark.
	in := bufio.NewReader(r)
	if _, err := in.Peek(1); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, fmt.Errorf("unpack: %w", err)
	}
	z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		return 0, fmt.Errorf("unpack: %w", err)
	}
	defer z.Close()
	t := tar.NewReader(z)
	var folders []*tar.Header // their modes and times, last: a read-only folder takes no files
	for {
		if ctx.Err() != nil {
			return size, fmt.Errorf("unpack: %w", context.Cause(ctx))
		}
		header, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return size, fmt.Errorf("unpack: %w", err)
		}
		if err := unpackEntry(root, header, t); err != nil {
			return size, fmt.Errorf("unpack %q: %w", header.Name, err)
		}
		if header.Typeflag == tar.TypeDir {
			folders = append(folders, header)
		}
		size += header.Size
	}
	for i := len(folders) - 1; i >= 0; i-- {
		name := clean(folders[i].Name)
		err := errors.Join(root.Chmod(name, folders[i].FileInfo().Mode().Perm()),
			root.Chtimes(name, folders[i].ModTime, folders[i].ModTime))
		if err != nil {
			return size, fmt.Errorf("unpack %q: %w", name, err)
		}
	}
	// What is after the archive's end (padding, a checksum) belongs to the stream.
	if _, err := io.Copy(io.Discard, z); err != nil {
		return size, fmt.Errorf("unpack: %w", err)
	}
	return size, nil
}

func clean(name string) string { return path.Clean(strings.TrimSuffix(name, "/")) }

func unpackEntry(root *os.Root, header *tar.Header, r io.Reader) error {
	name := clean(header.Name)
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return errors.New("path outside of the folder")
	}
	if parent := path.Dir(name); parent != "." {
		if err := root.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}
	perm := header.FileInfo().Mode().Perm()
	switch header.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, perm|0o700)
	case tar.TypeSymlink:
		return root.Symlink(header.Linkname, name)
	case tar.TypeLink:
		return root.Link(clean(header.Linkname), name)
	case tar.TypeReg:
	default:
		return fmt.Errorf("entry of type %q", header.Typeflag)
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm|0o200)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	err = errors.Join(err, f.Chmod(perm), f.Close())
	if err != nil {
		return err
	}
	return root.Chtimes(name, header.ModTime, header.ModTime)
}
