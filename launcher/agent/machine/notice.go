package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Notice is what a cloud says of one machine before it takes it.
type Notice struct {
	ID        string // the same for the same notice, read twice
	Source    string // the watcher: "file", "aws", …
	Deadline  time.Time
	Withdrawn bool // it stays after all
}

// NoticeWatcher reads the notices of this machine.
type NoticeWatcher interface {
	// Watch calls seen for each notice, also for one it has seen before, until ctx ends. An error ends the watch;
	// the agent begins it again after a while.
	Watch(ctx context.Context, seen func(Notice)) error
}

// FileNotices reads the notice of a machine of provider local: a JSON object with "deadline" in RFC 3339, which
// appears at Path by rename, and is withdrawn by removal.
type FileNotices struct{ Path string }

// Watch waits for the file by what the system tells of its folder.
func (f FileNotices) Watch(ctx context.Context, seen func(Notice)) error {
	there := false
	look := func() error {
		b, err := os.ReadFile(f.Path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if there {
				seen(Notice{ID: f.Path, Source: "file", Withdrawn: true})
			}
			there = false
			return nil
		case err != nil:
			return fmt.Errorf("read notice: %w", err)
		}
		var n struct {
			Deadline time.Time `json:"deadline"`
		}
		if err := json.Unmarshal(b, &n); err != nil {
			return fmt.Errorf("read notice %s: %w", f.Path, err)
		}
		there = true
		seen(Notice{ID: f.Path, Source: "file", Deadline: n.Deadline})
		return nil
	}
	return watchFolder(ctx, filepath.Dir(f.Path), look, func(name string, _ bool) error {
		if name != "" && name != filepath.Base(f.Path) {
			return nil
		}
		return look()
	})
}

// WatchFolder calls began once it watches, then found with the name of each entry that is renamed into dir, until ctx
// ends.
func WatchFolder(ctx context.Context, dir string, began func(), found func(name string)) error {
	start := func() error {
		began()
		return nil
	}
	return watchFolder(ctx, dir, start, func(name string, arrived bool) error {
		if arrived {
			found(name)
		}
		return nil
	})
}
