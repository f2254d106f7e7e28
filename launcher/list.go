package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// RunInfo is one run of the state folder.
type RunInfo struct {
	Run string `json:"run"`
	Job string `json:"job"`
	// State is starting, running, stopping, finished (the job is over, but nobody has looked yet whether all is deleted) or clean.
	State string `json:"state"`
	// Nodes are the machines that live, as of AsOf.
	Nodes      int           `json:"nodes"`
	Generation int           `json:"generation"`
	SpendUSD   float64       `json:"spend_usd"`
	Since      time.Time     `json:"since"`
	Supervisor string        `json:"supervisor"` // head, client
	Provider   string        `json:"provider,omitempty"`
	Cause      journal.Cause `json:"cause,omitempty"`
	Exit       *int          `json:"exit,omitempty"`
	// AsOf is the newest event here: a detached run may have gone on since.
	AsOf time.Time `json:"as_of"`
	// Error says why the run's journal cannot be read; then only Run is set besides.
	Error string `json:"error,omitempty"`
}

// Living tells whether the run may still have machines.
func (r RunInfo) Living() bool { return r.State != "clean" }

// List reads the runs of the state folder, newest first. It asks nobody.
func List(ctx context.Context, opts Options) ([]RunInfo, error) {
	runs, err := opts.runs()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(runs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list runs: %w", err)
	}
	var infos []RunInfo
	for _, e := range entries {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		f, err := opts.folder(e.Name())
		if err != nil || !f.exists() {
			continue
		}
		infos = append(infos, f.info())
	}
	slices.SortFunc(infos, func(a, b RunInfo) int { return cmp.Or(b.Since.Compare(a.Since), strings.Compare(a.Run, b.Run)) })
	return infos, nil
}

func (f folder) info() RunInfo {
	events, err := journal.ReadFile(f.journal())
	var s *State
	if err == nil {
		s, err = journal.Fold(events)
	}
	if err != nil || len(events) == 0 {
		return RunInfo{Run: f.run, State: "unknown", Error: fmt.Sprint(cmp.Or(err, errors.New("it holds no event")))}
	}
	r := RunInfo{
		Run: f.run, Job: s.Created.JobName, State: stateOf(s), Generation: s.Generation.Number, Since: s.Began, AsOf: events[len(events)-1].Time, Supervisor: "client",
	}
	r.SpendUSD = s.SpendUSD(s.At)
	if job, err := jobOf(s); err == nil {
		r.Supervisor = job.Head.Supervisor
	}
	if s.Planned != nil {
		r.Provider = s.Planned.Provider
	}
	for _, n := range s.Nodes {
		if n.Machine != nil && !n.Phase.Ended() {
			r.Nodes++
		}
	}
	if s.Stopping != nil {
		r.Cause = s.Stopping.Cause
	}
	if s.Clean != nil {
		result := resultOf(s, endingOver, nil)
		r.SpendUSD, r.Exit = result.SpendUSD, &result.Exit
	}
	return r
}

func stateOf(s *State) string {
	switch {
	case s.Clean != nil:
		return "clean"
	case s.Finished != nil:
		return "finished"
	case s.Stopping != nil:
		return "stopping"
	case s.Generation.Number > 0:
		return "running"
	}
	return "starting"
}

// ReadEvents reads the copy of a run's journal in the state folder, without asking anybody. ErrUnknownRun where there is none.
func ReadEvents(run string, opts Options) ([]Event, error) {
	f, err := opts.folder(run)
	if err != nil {
		return nil, err
	}
	if !f.exists() {
		return nil, fmt.Errorf("%w: %s", ErrUnknownRun, run)
	}
	return journal.ReadFile(f.journal())
}

// FoldEvents is the state that a run's events add up to.
func FoldEvents(events []Event) (*State, error) { return journal.Fold(events) }

func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}
