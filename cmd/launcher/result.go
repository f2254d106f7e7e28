package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/ephemeral-launcher/launcher/launcher"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// writeResult writes --result FILE.
func writeResult(path string, r *launcher.Result) error {
	return writeFileOf(path, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	})
}

// result prints how a run ended: what the job's people ask first, then the money, then where things are. What may still bill comes last, on stderr.
func (u *ui) result(r *launcher.Result, asJSON bool) {
	if !asJSON {
		u.printf("\n%s: %s after %s\n", r.Run, resultText(r), span(r.Duration))
		if r.Cause != journal.CauseSucceeded {
			u.failures(r)
		}
		seen := "everything deleted, and seen gone"
		if !r.Clean {
			seen = "NOT everything is seen gone"
		}
		u.printf("  machines  %s\n", seen)
		u.printf("  spend     %s\n", dollars(r.SpendUSD))
		u.printf("  goodput   %.0f %%, with %s, %s and %s\n", 100*r.Goodput, count(r.Generations, "generation"), count(r.Preemptions, "preemption"), lostText(r.Lost))
		if r.Outputs != "" {
			u.printf("  outputs   %s\n", r.Outputs)
		}
		if r.Logs != "" {
			u.printf("  logs      launcher logs %s\n", r.Run)
		}
	}
	switch r.Exit {
	case launcher.ExitTeardownUnfinished:
		u.notef("launcher: teardown unfinished: %s may still bill", orNone(strings.Join(r.Left, ", ")))
		if r.JobExit != nil {
			u.notef("  the job itself ended with %d", *r.JobExit)
		}
	case launcher.ExitHandedOver:
		u.notef("launcher: interrupted; the run's supervisor deletes the workers, then its head waits for its results to be fetched, for hold_results at most")
		u.notef("hint: launcher wait %s", r.Run)
	}
	if r.Recover != "" {
		u.notef("hint: %s", r.Recover)
	}
}

func lostText(n int) string {
	if n == 1 {
		return "1 node lost"
	}
	return fmt.Sprintf("%d nodes lost", n)
}

func resultText(r *launcher.Result) string {
	text := strings.ReplaceAll(string(r.Cause), "_", " ")
	if text == "" {
		text = "left"
	}
	if r.JobExit != nil {
		text += fmt.Sprintf(" with exit code %d", *r.JobExit)
	}
	if r.Text != "" && r.Text != string(r.Cause) {
		text += " (" + r.Text + ")"
	}
	return text
}

// failures shows the last lines of what failed: the reason is nearly always there.
func (u *ui) failures(r *launcher.Result) {
	for _, f := range r.LastFailures {
		u.printf("  rank %d on %s in generation %d %s\n", f.Rank, f.Node, f.Generation, exitText(f.Code, f.Signal))
		for _, l := range f.LastLines {
			u.printf("    | %s\n", l)
		}
	}
	for _, f := range r.SetupFailures {
		u.printf("  setup on %s exited with %d\n", f.Node, f.Exit)
		for _, l := range f.LastLines {
			u.printf("    | %s\n", l)
		}
	}
}
