package launcher

import (
	"encoding/json"
	"os"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// startOfClock is clock.json: when the run began, by the clock of the boot in which it did.
type startOfClock struct {
	BootTime time.Duration `json:"boot_time"`
}

func (f folder) clock() string { return f.in("clock.json") }

// newClock starts the run clock of a run that begins now, and keeps its zero for a process that goes on with the run.
func (f folder) newClock() (journal.Clock, error) {
	zero := journal.BootTime()
	clock := func() time.Duration { return journal.BootTime() - zero }
	return clock, writeJSON(f.clock(), startOfClock{BootTime: zero})
}

// runClock goes on with the run clock. After a reboot the boot clock tells nothing; then the wall clock says how long it took.
func runClock(f folder, s *journal.State) journal.Clock {
	var start startOfClock
	b, err := os.ReadFile(f.clock())
	if err == nil && json.Unmarshal(b, &start) == nil {
		if now := journal.BootTime() - start.BootTime; now >= s.At.Duration() {
			return func() time.Duration { return journal.BootTime() - start.BootTime }
		}
	}
	at := max(time.Since(s.Began), s.At.Duration())
	return journal.StartClock(at, journal.BootTime)
}
