package launcher

import (
	"testing"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

func exit(code int) *int { return &code }

func TestExitCode(t *testing.T) {
	nodes := map[string]*journal.Node{"head": {Name: "head", Slot: -1, Phase: journal.PhaseJoined, DeletedAt: -1}}
	over := func(cause journal.Cause, code *int) *State {
		why := journal.Stopping{Cause: cause, Exit: code}
		return &State{Run: "r-1", Epoch: 2, Nodes: nodes, Stopping: &why, Finished: &journal.Finished{Stopping: why}, Clean: &journal.Clean{Listings: 2}}
	}
	unclean := func(s *State) *State {
		s.Clean = nil
		return s
	}
	for _, c := range []struct {
		name  string
		state *State
		end   ending
		want  int
	}{
		{"succeeded", over(journal.CauseSucceeded, exit(0)), endingOver, 0},
		{"the job's own code", over(journal.CauseFailed, exit(7)), endingOver, 7},
		{"the job's largest code", over(journal.CauseFailed, exit(118)), endingOver, 118},
		{"a code of ours", over(journal.CauseFailed, exit(124)), endingOver, 119},
		{"a signal", over(journal.CauseFailed, exit(119)), endingOver, 119},
		{"failed with 0", over(journal.CauseFailed, exit(0)), endingOver, 119},
		{"failed without a code", over(journal.CauseFailed, nil), endingOver, 125},
		{"setup", over(journal.CauseSetup, exit(3)), endingOver, 3},
		{"limit", over(journal.CauseLimit, nil), endingOver, 120},
		{"no capacity", over(journal.CauseCapacity, nil), endingOver, 121},
		{"too few", over(journal.CauseTooFew, nil), endingOver, 122},
		{"interrupted and seen gone", over(journal.CauseInterrupted, nil), endingOver, 130},
		{"another's down", over(journal.CauseDown, nil), endingOver, 130},
		{"launcher", over(journal.CauseLauncher, nil), endingOver, 125},
		{"an unclean end hides the job's code", unclean(over(journal.CauseSucceeded, exit(0))), endingOver, 124},
		{"abandoned", unclean(over(journal.CauseInterrupted, nil)), endingAbandoned, 124},
		{"handed over", unclean(over(journal.CauseInterrupted, nil)), endingHandedOver, 129},
		{"detached", &State{Run: "r-1", Epoch: 2, Nodes: nodes}, endingDetached, 0},
		{"nothing was ever rented", &State{Run: "r-1", Epoch: 1, Stopping: &journal.Stopping{Cause: journal.CauseInterrupted}}, endingAbandoned, 130},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := resultOf(c.state, c.end, nil)
			if r.Exit != c.want {
				t.Errorf("got exit %d, want %d", r.Exit, c.want)
			}
			if (r.Exit == ExitTeardownUnfinished) != (len(r.Left) > 0 && r.Recover == "launcher down r-1" && c.end != endingHandedOver) {
				t.Errorf("exit %d: left %q, recover %q", r.Exit, r.Left, r.Recover)
			}
		})
	}
}
