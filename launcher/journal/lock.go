package journal

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lock takes the file for this process until it is closed or the process dies; it never waits.
func lock(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}
