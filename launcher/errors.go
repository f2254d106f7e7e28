package launcher

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ephemeral-launcher/launcher/launcher/planner"
)

// ErrUnknownRun: the state folder has no such run.
var ErrUnknownRun = errors.New("no such run")

// ErrNotDetachable: the run's supervisor is in the client, so it cannot be left alone.
var ErrNotDetachable = errors.New("the run needs this process: its supervisor is in the client")

// AmbiguousRunError: a prefix fits several runs, or no run was named and several live.
type AmbiguousRunError struct {
	Prefix string
	Runs   []string
}

func (e *AmbiguousRunError) Error() string {
	return fmt.Sprintf("run %q is one of %s", e.Prefix, strings.Join(e.Runs, ", "))
}

// LivingRunError: resources carry the run's tag, but its state folder is not here. Nothing was started.
type LivingRunError struct {
	Run string
	IDs []string
	// Command ends it.
	Command string
}

func (e *LivingRunError) Error() string {
	return fmt.Sprintf("run %s lives, but not in this state folder (%s); end it with: %s", e.Run, strings.Join(e.IDs, ", "), e.Command)
}

// NoCandidateError: no provider has what the job asks for. Nothing was started.
type NoCandidateError struct {
	Job      string
	Rejected []planner.Rejection
	// Providers says what each provider answered.
	Providers []PlanProvider
}

func (e *NoCandidateError) Error() string {
	why := "nothing is on offer"
	if len(e.Rejected) > 0 {
		r := e.Rejected[0]
		why = fmt.Sprintf("%s %s: %s", r.Provider, r.Region, r.Why)
		if more := len(e.Rejected) - 1; more > 0 {
			why += fmt.Sprintf(" (and %d more)", more)
		}
	}
	return fmt.Sprintf("no candidate for job %s: %s", e.Job, why)
}
