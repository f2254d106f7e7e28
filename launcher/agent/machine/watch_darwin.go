package machine

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// watchInterval is how often a folder is looked at. kqueue tells that a folder changed, not what, and wants a thread;
// workers run Linux, this is for trying things out.
const watchInterval = 200 * time.Millisecond

// watchFolder calls began once it watches, then changed for each entry of dir that is new, or another file than
// before (arrived), or has gone. It returns when ctx ends, or either fails.
func watchFolder(ctx context.Context, dir string, began func() error, changed func(name string, arrived bool) error) error {
	look := func() (map[string]fs.FileInfo, error) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", dir, err)
		}
		found := map[string]fs.FileInfo{}
		for _, e := range entries {
			if info, err := e.Info(); err == nil {
				found[e.Name()] = info
			}
		}
		return found, nil
	}
	before, err := look()
	if err != nil {
		return err
	}
	if began != nil {
		if err := began(); err != nil {
			return err
		}
	}
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now, err := look()
		if err != nil {
			return err
		}
		for name, info := range now {
			if old := before[name]; old == nil || !os.SameFile(old, info) {
				if err := changed(name, true); err != nil {
					return err
				}
			}
		}
		for name := range before {
			if now[name] == nil {
				if err := changed(name, false); err != nil {
					return err
				}
			}
		}
		before = now
	}
}
