package machine

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// watchFolder calls began once it watches, then changed for each entry of dir that was renamed into it (arrived) or
// has gone; with an empty name where events were lost. It returns when ctx ends, or either fails.
//
// Events are as in inotify(7): struct inotify_event is wd, mask, cookie, len of 32 bits each, then the name, padded.
func watchFolder(ctx context.Context, dir string, began func() error, changed func(name string, arrived bool) error) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	mask := uint32(unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR)
	if _, err := unix.InotifyAddWatch(fd, dir, mask); err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	stop := context.AfterFunc(ctx, func() { events.Close() })
	defer stop()
	if began != nil {
		if err := began(); err != nil {
			return err
		}
	}
	buf := make([]byte, 16<<10)
	for {
		n, err := events.Read(buf)
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
			return fmt.Errorf("watch %s: %w", dir, err)
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			mask := binary.NativeEndian.Uint32(b[4:])
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			if size > len(b) {
				break
			}
			name := unix.ByteSliceToString(b[unix.SizeofInotifyEvent:size])
			b = b[size:]
			switch {
			case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED) != 0:
				return fmt.Errorf("watch %s: %w", dir, os.ErrNotExist)
			case mask&unix.IN_Q_OVERFLOW != 0:
				err = changed("", false)
			default:
				err = changed(name, mask&unix.IN_MOVED_TO != 0)
			}
			if err != nil {
				return err
			}
		}
	}
}
