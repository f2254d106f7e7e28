package journal

import "time"

// Clock is the run clock: it returns how long ago the run was created. Leases, budgets and time limits are judged by it and
// never by the wall clock. Safe for concurrent use.
type Clock func() time.Duration

// StartClock starts a run clock at at, counting on by the given source of elapsed time: [BootTime], or in a test a clock of virtual time.
func StartClock(at time.Duration, elapsed func() time.Duration) Clock {
	zero := elapsed()
	return func() time.Duration { return at + elapsed() - zero }
}
