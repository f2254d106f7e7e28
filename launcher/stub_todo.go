package launcher

import (
	"context"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

// Builtin returns the providers that need no plugin. `local` runs its machines by the launcher executable found in $LAUNCHER_BINARIES or beside this
// executable; a program that is that executable hands in local.New(local.Options{}) instead.
func Builtin() map[string]providers.Provider { panic("not built") }

// HomeFolder is the state folder.
func (o Options) HomeFolder() (string, error) { panic("not built") }

// Plan asks the job's providers what they have on offer and ranks it. It rents nothing. Secrets the job names must be set.
func Plan(ctx context.Context, job *Job, opts Options) (*PlanResult, error) { panic("not built") }

// Run is Up, then Handle.Wait. When ctx ends the run is torn down, as after an interrupt, and its result returned.
func Run(ctx context.Context, job *Job, opts Options) (*Result, error) { panic("not built") }

// Up starts a run, or goes on with the one of opts.RunID. It returns when the run is planned and on disk; the rest goes on in the background until Wait returns, or
// Detach or Leave is called: one of them must be. ctx bounds Up alone.
// Errors: *DiagnosticsError, *NoCandidateError (exit 121), *LivingRunError; each before anything was rented.
func Up(ctx context.Context, job *Job, opts Options) (*Handle, error) { panic("not built") }

// Attach finds a run by its id (not a prefix: see FindRun) and follows it; where nobody supervises it, it goes on with it as Up would.
// Error: ErrUnknownRun where this state folder has no such run.
func Attach(ctx context.Context, run string, opts Options) (*Handle, error) { panic("not built") }

// Handle is a run as this process follows it. Safe for concurrent use.
type Handle struct{}

// Run is the run's id.
func (h *Handle) Run() string { panic("not built") }

// Folder is the run's folder.
func (h *Handle) Folder() string { panic("not built") }

// Job is the job as it was parsed.
func (h *Handle) Job() *Job { panic("not built") }

// State is a snapshot of what is known here of the run; Since gives the events after the first n, and a channel closed when there are more.
func (h *Handle) State() *State { panic("not built") }

// Since returns the events after the first n, and a channel that is closed when there are more.
func (h *Handle) Since(n int) ([]Event, <-chan struct{}) { panic("not built") }

// ClientSupervised tells whether the supervisor is in the client to the end (head { supervisor = "client" }): then Detach is refused.
func (h *Handle) ClientSupervised() bool { panic("not built") }

// Owner tells whether this process owns the run's folder; else another one does and is asked.
func (h *Handle) Owner() bool { panic("not built") }

// HandedOver is closed when the run no longer needs this process: its head supervises it, or another process owns it.
func (h *Handle) HandedOver() <-chan struct{} { panic("not built") }

// Done is closed when the run is over as far as this process goes on with it: Wait returns at once then.
func (h *Handle) Done() <-chan struct{} { panic("not built") }

// Wait waits for the end of the run: the job's end, everything fetched and deleted, a listing that shows nothing left (Result.Clean), or the teardown given up
// (exit 124). When ctx ends it returns ctx's error and the run goes on.
func (h *Handle) Wait(ctx context.Context) (*Result, error) { panic("not built") }

// Sync waits until what the head had when it was called is here: events and output. For commands that show once.
func (h *Handle) Sync(ctx context.Context) error { panic("not built") }

// Stop orders the end of the run; the first cause stays. It returns when whoever supervises the run has the order.
func (h *Handle) Stop(ctx context.Context, why journal.Stopping) error { panic("not built") }

// Scale orders another number of workers. It refuses what the job does not allow.
func (h *Handle) Scale(ctx context.Context, workers int) error { panic("not built") }

// Preempt has the provider preempt a node (w2, w2.1 or head) as a drill.
func (h *Handle) Preempt(ctx context.Context, node string, notice time.Duration) error {
	panic("not built")
}

// Exec runs a command on a node, w2 or w2.1, or on the head for "". With no Argv and a Terminal it is a shell.
func (h *Handle) Exec(ctx context.Context, node string, c Command) (sshexec.Exit, error) {
	panic("not built")
}

// Detach waits until the run no longer needs this process (see HandedOver), and leaves it. With a client's supervisor it is refused.
func (h *Handle) Detach(ctx context.Context) error { panic("not built") }

// Leave stops following at once, whatever the state, and returns the result as far as it is known: exit 129 where the teardown is the head's, 124 where
// nobody is left to finish it, with the ids and the command.
func (h *Handle) Leave() *Result { panic("not built") }

// DownOptions say how to end a run.
type DownOptions struct {
	Options
	// Job says which providers to look with where there is no state folder, with their blocks; nil: all of Options.Providers, without blocks.
	Job *Job
	// By is who orders it, for the journal. Empty: "down".
	By string
	// Timeout bounds all of it [20 min].
	Timeout time.Duration
}

// DownResult is what Down found and did.
type DownResult struct {
	Run string `json:"run"`
	// Found are the resources that lived when Down first looked, Deleted those of them that are seen gone.
	Found   []providers.Resource `json:"found"`
	Deleted []string             `json:"deleted"`
	// Left are the ids that may still bill.
	Left []string `json:"left,omitempty"`
	// NotLookedAt names providers without valid credentials.
	NotLookedAt []NotLookedAt `json:"not_looked_at,omitempty"`
	// Result is that of the run, where the state folder has it.
	Result *Result `json:"result,omitempty"`
}

// NotLookedAt is a provider that could not be asked.
type NotLookedAt struct {
	Provider string `json:"provider"`
	Why      string `json:"why"`
}

// UnfinishedError: something of the run may still bill. The exit code is ExitTeardownUnfinished.
type UnfinishedError struct {
	Run  string
	Left []string
	// Command finishes it.
	Command string
	Err     error
}

func (e *UnfinishedError) Error() string { panic("not built") }
func (e *UnfinishedError) Unwrap() error { return e.Err }

// Down ends a run, looks again, and says what it found. A run nobody knows is no error, after looking. Error: *UnfinishedError; the DownResult is never nil beside it.
func Down(ctx context.Context, run string, opts DownOptions) (*DownResult, error) { panic("not built") }

// GCRun is a run whose tag something carries, and what GC thinks of it.
type GCRun struct {
	Run       string               `json:"run"`
	Provider  string               `json:"provider"`
	Owner     string               `json:"owner"`
	Resources []providers.Resource `json:"resources"`
	// Dead: no head is listed or its expiry is long past, none answers, and all is older than a start takes. Only such runs may be collected.
	Dead bool   `json:"dead"`
	Why  string `json:"why"`
}

// GCOptions say what to look for.
type GCOptions struct {
	Options
	// Owner, where set, looks for another owner's resources; empty: the caller's own.
	Owner string
	// Job gives the provider blocks to look with; nil: all of Options.Providers, without blocks.
	Job *Job
}

// GC lists what carries launcher's tag by run, and judges which runs are dead. It deletes nothing.
func GC(ctx context.Context, opts GCOptions) ([]GCRun, []NotLookedAt, error) { panic("not built") }

// Collect deletes what a dead run has left, and looks again. Error: *UnfinishedError.
func Collect(ctx context.Context, dead GCRun, opts GCOptions) (*DownResult, error) {
	panic("not built")
}

// RunInfo is one run of the state folder.
type RunInfo struct {
	Run string `json:"run"`
	Job string `json:"job"`
	// State is starting, running, stopping, finished, clean.
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
}

// Living tells whether the run may still have machines.
func (r RunInfo) Living() bool { return r.State != "clean" }

// List reads the runs of the state folder, newest first. It asks nobody.
func List(ctx context.Context, opts Options) ([]RunInfo, error) { panic("not built") }

// FindRun resolves a unique prefix of a run's id; "" is the one run that lives. Errors: ErrUnknownRun, *AmbiguousRunError.
func FindRun(prefix string, opts Options) (string, error) { panic("not built") }

// ReadEvents reads the copy of a run's journal in the state folder, without asking anybody; ReadResult its stored result, fs.ErrNotExist before the end.
func ReadEvents(run string, opts Options) ([]Event, error) { panic("not built") }

// ReadResult reads the stored result of a run; fs.ErrNotExist where it is not over.
func ReadResult(run string, opts Options) (*Result, error) { panic("not built") }

// ReadLogs calls f for every line of output copied so far.
func ReadLogs(run string, opts Options, f func(LogLine)) error { panic("not built") }
