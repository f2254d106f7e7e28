package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/control"
)

// MachineNotice is what a cloud says of one machine before it takes it.
type MachineNotice struct {
	ID        string // the same for the same notice, read twice
	Source    string // the watcher: "file", "aws", …
	Deadline  time.Time
	Withdrawn bool // it stays after all
}

// NoticeWatcher reads the notices of this machine.
type NoticeWatcher interface {
	// Watch calls seen for each notice, also for one it has seen before, until ctx ends. An error ends the watch;
	// the agent begins it again after a while.
	Watch(ctx context.Context, seen func(MachineNotice)) error
}

// noticeRetry is how long a watch that failed rests.
const noticeRetry = 5 * time.Second

func (a *Agent) watchNotices(ctx context.Context, w NoticeWatcher) {
	for {
		if err := w.Watch(ctx, a.notice); err != nil && ctx.Err() == nil {
			a.log.Error("watch notices", "error", err)
		}
		timer := time.NewTimer(noticeRetry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// notice passes a notice on, once per change of it: to the head, and to the processes of the job.
func (a *Agent) notice(n MachineNotice) {
	now := time.Now()
	report := &control.Notice{
		Id: n.ID, Source: n.Source, DeadlineUnixNs: n.Deadline.UnixNano(), Withdrawn: n.Withdrawn,
		DeadlineStampNs: int64(a.o.Uptime() + n.Deadline.Sub(now)),
	}
	a.mu.Lock()
	last := a.notices[n.ID]
	if n.Withdrawn && last == nil || last != nil && !n.Withdrawn && last.DeadlineUnixNs == report.DeadlineUnixNs {
		a.mu.Unlock()
		return
	}
	if n.Withdrawn {
		delete(a.notices, n.ID)
	} else {
		a.notices[n.ID] = report
	}
	a.announce()
	a.mu.Unlock()
	a.reports.add(&control.Report{Body: &control.Report_Notice{Notice: report}})
	a.log.Warn("preemption notice", "source", n.Source, "id", n.ID, "deadline", n.Deadline, "withdrawn", n.Withdrawn)
	a.show()
}

// FileNotices reads the notice of a machine of provider local: a JSON object with "deadline" in RFC 3339, which
// appears at Path by rename, and is withdrawn by removal.
type FileNotices struct{ Path string }

// Watch waits for the file by what the system tells of its folder.
func (f FileNotices) Watch(ctx context.Context, seen func(MachineNotice)) error {
	there := false
	look := func() error {
		b, err := os.ReadFile(f.Path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if there {
				seen(MachineNotice{ID: f.Path, Source: "file", Withdrawn: true})
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
		seen(MachineNotice{ID: f.Path, Source: "file", Deadline: n.Deadline})
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
