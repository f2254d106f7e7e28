package head

import (
	"flag"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/sim"
)

// readiness is how long N workers took from the call that ordered them until their generation formed, over the slowest machine's boot.
func (s *simulation) readiness() (ready, boot time.Duration, ratio float64) {
	s.t.Helper()
	var ordered time.Time
	for _, e := range s.find(journal.NodeIntended, "") {
		ordered = e.Time
	}
	s.mu.Lock()
	for _, g := range s.guests {
		boot = max(boot, g.booted.Sub(ordered))
	}
	s.mu.Unlock()
	ready = s.find(journal.GenerationFormed, "")[0].Time.Sub(ordered)
	return ready, boot, float64(ready) / float64(boot)
}

var simWorkers = flag.Int("sim.workers", 64, "how many workers the test of a large world has")

func TestSimLargeWorld(t *testing.T) {
	simulate(t, simOptions{hcl: simJob(fmt.Sprintf("count = %d", *simWorkers), ""), program: trainAlone, cloud: func(o *sim.Options) {
		o.Boot = sim.Dist{Median: 25 * time.Second, Sigma: 0.25, Max: 5 * time.Minute}
	}}, func(s *simulation) {
		s.up()
		ready, boot, ratio := s.readiness()
		t.Logf("%d workers: ready after %v, slowest boot %v, ratio %.4f, %d listings, %d goroutines", *simWorkers, ready, boot, ratio, s.cloud.Calls()["list"], runtime.NumGoroutine())
		s.end()
		s.expectGenerations("start")
		if got := s.audit().Machines[providers.Worker]; got != s.job.Workers.Max {
			t.Errorf("%d workers rented, want %d", got, s.job.Workers.Max)
		}
	})
}
