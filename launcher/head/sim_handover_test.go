package head

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// relaunch is the same laptop, its process started again over the same folder.
func (s *simulation) relaunch() {
	s.t.Helper()
	old := s.client
	c := &simClient{s: s, folder: old.folder, keys: old.keys, client: old.client, worker: old.worker, adopted: make(chan struct{}), fetched: make(chan struct{})}
	c.ctx, c.leave = context.WithCancel(context.Background())
	var err error
	if c.journal, err = journal.Open(c.folder, journal.Options{Clock: journal.StartClock(old.journal.Now(), s.elapsed)}); err != nil {
		s.t.Fatal(err)
	}
	if c.journal.State().Offered == 0 && c.journal.State().Epoch == 1 {
		s.t.Fatal("the run was not offered yet")
	}
	s.client = c
	c.running.Go(func() { c.follow(nil) })
}

func TestSimHandOverReplyIsLost(t *testing.T) {
	for name, story := range map[string]func(s *simulation){
		"the connection breaks": func(*simulation) {},
		"the head's process dies too": func(s *simulation) {
			s.headGuest().crashDaemon()
			time.Sleep(time.Second)
		},
		"client and head both die": func(s *simulation) {
			s.client.close()
			s.headGuest().crashDaemon()
			time.Sleep(5 * time.Second)
			s.relaunch()
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, simOptions{hcl: simJob("count = 3", "")}, func(s *simulation) {
				s.loseAdoptReply = make(chan struct{})
				s.launch()
				<-s.loseAdoptReply
				story(s)
				s.until("generation 1", 5*time.Minute, formed(1))
				time.Sleep(30 * time.Second)
				s.end()
				if got := len(s.find(journal.HandoverAccepted, "")); got != 1 {
					t.Errorf("accepted %d times, want once", got)
				}
			})
		})
	}
}

func TestSimAdoptAgain(t *testing.T) {
	simulate(t, simOptions{hcl: simJob("count = 3", "")}, func(s *simulation) {
		s.up()
		d := s.headGuest().daemon
		before := s.live().Events
		first, err := d.Status(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		again, err := d.Adopt(t.Context(), s.client.adoption())
		if err != nil || again.Epoch != 2 || again.Instance != first.Instance {
			t.Errorf("adopt again: %v, %v", again, err)
		}
		other := s.client.adoption()
		other.Setup.Run = "other"
		if _, err := d.Adopt(t.Context(), other); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("adopt of another run: %v", err)
		}
		stale := s.client.adoption()
		stale.Setup.Epoch = 1
		if _, err := d.Adopt(t.Context(), stale); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("adopt of an epoch that is over: %v", err)
		}
		if got := s.live().Events; got != before {
			t.Errorf("%d events were written for it", got-before)
		}
		s.end()
	})
}
