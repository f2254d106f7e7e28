package launcher

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// ending is how this process's part in a run ended.
type ending int

const (
	// endingOver: the run is over, or what is left was given up.
	endingOver ending = iota
	// endingDetached: the caller left a run that goes on without it.
	endingDetached
	// endingHandedOver: the caller left a run whose supervisor has the order to end it.
	endingHandedOver
	// endingAbandoned: nobody goes on with the run: the caller left it too early, or this process could not go on.
	endingAbandoned
)

// resultOf computes the result from what the journal says. left are the ids that are known to live still where the run is not clean.
func resultOf(s *journal.State, end ending, left []string) *Result {
	r := &Result{
		Run: s.Run, Clean: s.Clean != nil, Preemptions: s.Preemptions, Lost: s.LostNodes, Generations: s.Generation.Number,
		Goodput: s.Goodput(s.At), SpendUSD: s.SpendUSD(s.At), Duration: s.At.Duration(), LastFailures: s.LastFailures, SetupFailures: s.SetupFailures,
	}
	if s.Stopping != nil {
		r.Cause, r.Text, r.JobExit = s.Stopping.Cause, s.Stopping.Text, s.Stopping.Exit
	}
	if s.Finished != nil {
		r.Cause, r.Text, r.JobExit = s.Finished.Cause, s.Finished.Text, s.Finished.Exit
		r.Goodput, r.Duration = s.Finished.Goodput, s.FinishedAt.Duration()
	}
	if s.Clean != nil {
		r.SpendUSD = s.Clean.SpendUSD
	} else if begun(s) {
		r.Recover = downCommand(s.Run)
		if r.Left = left; left == nil && end != endingDetached {
			r.Left = livingNodes(s)
		}
	}
	r.Exit = exitOf(s, end, r)
	return r
}

// begun tells whether anything may have been rented.
func begun(s *journal.State) bool { return len(s.Nodes) > 0 }

// livingNodes are the machines that the journal does not know to be gone.
func livingNodes(s *journal.State) []string {
	var ids []string
	for _, n := range s.List("") {
		switch {
		case n.Phase.Ended():
		case n.Machine != nil:
			ids = append(ids, n.Machine.ID)
		default:
			ids = append(ids, "what the create call "+n.Intent.Token+" made")
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func downCommand(run string) string { return "launcher down " + run }

// exitOf is the exit code of up, attach and wait: the first row that applies.
func exitOf(s *journal.State, end ending, r *Result) int {
	if !r.Clean && begun(s) {
		switch end {
		case endingDetached:
			return ExitDetached
		case endingHandedOver:
			return ExitHandedOver
		case endingOver, endingAbandoned:
		}
		return ExitTeardownUnfinished
	}
	switch r.Cause {
	case journal.CauseInterrupted, journal.CauseDown:
		return ExitInterrupted
	case journal.CauseLimit:
		return ExitLimit
	case journal.CauseCapacity:
		return ExitNoCapacity
	case journal.CauseTooFew:
		return ExitTooFew
	case journal.CauseSucceeded:
		return 0
	case journal.CauseFailed, journal.CauseSetup:
		if r.JobExit == nil {
			break
		}
		if code := *r.JobExit; code > 0 && code < ExitJobOther {
			return code
		}
		return ExitJobOther
	}
	return ExitLauncher
}

// result computes and stores the run's result. It is stored again when a later process knows better.
func (f folder) storeResult(job *Job, r *Result) error {
	r.Folder = f.path
	if _, err := os.Stat(f.logs()); err == nil {
		r.Logs = f.logs()
	}
	if o := job.Outputs; o != nil {
		if _, err := os.Stat(f.in("outputs.json")); err == nil || jobspec.Bucket(o.To) {
			r.Outputs = o.To
		}
	}
	return writeJSON(f.result(), r)
}

// ReadResult reads the stored result of a run; fs.ErrNotExist where it is not over.
func ReadResult(run string, opts Options) (*Result, error) {
	f, err := opts.folder(run)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(f.result())
	if err != nil {
		return nil, fmt.Errorf("read result: %w", err)
	}
	r := &Result{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("read result %s: %w", f.result(), err)
	}
	return r, nil
}
