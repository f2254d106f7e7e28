package agent

import (
	"context"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/agent/machine"
	"github.com/ephemeral-launcher/launcher/launcher/control"
)

// noticeRetry is how long a watch that failed rests.
const noticeRetry = 5 * time.Second

func (a *Agent) watchNotices(ctx context.Context, w machine.NoticeWatcher) {
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
func (a *Agent) notice(n machine.Notice) {
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
