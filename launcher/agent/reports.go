package agent

import (
	"sync"

	"github.com/ephemeral-launcher/launcher/launcher/control"
)

// crowded is how many reports that were not received make the agent keep only the newest of progress reports, of
// which a job may make thousands while no head is there to hear them.
const crowded = 64

// reports are what the head must hear, kept until it says that it did.
type reports struct {
	mu     sync.Mutex
	more   *sync.Cond // on mu
	number uint64     // guarded by mu, like all below: of the newest
	kept   []*control.Report
	closed bool
}

func newReports() *reports {
	r := &reports{}
	r.more = sync.NewCond(&r.mu)
	return r
}

// add numbers and keeps a report.
func (r *reports) add(report *control.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.kept); n > crowded && report.GetProgress() != nil && report.GetProgress().Checkpoint == "" {
		if last := r.kept[n-1].GetProgress(); last != nil && last.Checkpoint == "" {
			r.kept = r.kept[:n-1] // the new one says more; numbers may skip, not repeat
		}
	}
	r.number++
	report.Number = r.number
	r.kept = append(r.kept, report)
	r.more.Broadcast()
}

// received forgets the reports up to number.
func (r *reports) received(number uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := 0
	for i < len(r.kept) && r.kept[i].Number <= number {
		i++
	}
	if i > 0 {
		r.kept = append([]*control.Report(nil), r.kept[i:]...)
	}
}

// oldest is the number of the oldest report kept, 0 if none is.
func (r *reports) oldest() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) == 0 {
		return 0
	}
	return r.kept[0].Number
}

// close ends all sessions' waiting.
func (r *reports) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.more.Broadcast()
}

// session is one call of Session. Its fields are guarded by reports.mu.
type session struct {
	r     *reports
	sent  uint64            // number of the newest report sent
	loose []*control.Report // not numbered, only for this session
	err   error             // set: over
}

// push sends a report that is not numbered.
func (s *session) push(report *control.Report) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.loose = append(s.loose, report)
	s.r.more.Broadcast()
}

// end makes next fail.
func (s *session) end(err error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if s.err == nil {
		s.err = err
		s.r.more.Broadcast()
	}
}

// next waits for what is to be sent. Acknowledgements of renewals go before reports.
func (s *session) next() (*control.Report, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	for {
		switch {
		case s.err != nil:
			return nil, s.err
		case s.r.closed:
			return nil, errShutdown
		case len(s.loose) > 0:
			report := s.loose[0]
			s.loose = s.loose[1:]
			return report, nil
		}
		for _, report := range s.r.kept {
			if report.Number > s.sent {
				s.sent = report.Number
				// A copy: the stamp is of each sending, and sessions overlap for a moment.
				return &control.Report{Number: report.Number, Body: report.Body}, nil
			}
		}
		s.r.more.Wait()
	}
}
