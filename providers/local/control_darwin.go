package local

import (
	"os"
	"path/filepath"
)

// shortPath returns a path for the socket that fits an address, valid until release. Folders cannot be named by
// descriptor here, so a link in a folder of our own does it.
func shortPath(path string) (short string, release func(), err error) {
	if len(path) <= maxSocketPath {
		return path, func() {}, nil
	}
	dir, err := os.MkdirTemp("", "lm")
	if err != nil {
		return "", nil, err
	}
	release = func() { os.RemoveAll(dir) }
	link := filepath.Join(dir, "d")
	if err := os.Symlink(filepath.Dir(path), link); err != nil {
		release()
		return "", nil, err
	}
	short = filepath.Join(link, filepath.Base(path))
	if len(short) > maxSocketPath {
		release()
		// $TMPDIR is long here; /tmp is not.
		if dir, err = os.MkdirTemp("/tmp", "lm"); err != nil {
			return "", nil, err
		}
		release = func() { os.RemoveAll(dir) }
		link = filepath.Join(dir, "d")
		if err := os.Symlink(filepath.Dir(path), link); err != nil {
			release()
			return "", nil, err
		}
		short = filepath.Join(link, filepath.Base(path))
	}
	return short, release, nil
}
