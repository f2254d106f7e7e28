package launcher

import (
	"io/fs"
	"log/slog"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/head"
	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

type (
	// Job is a parsed job file.
	Job = jobspec.Job
	// Event is one event of a run: the journal's, and what `launcher events -o json` prints.
	Event = journal.Event
	// State is what the events of a run add up to.
	State = journal.State
	// LogLine is one line of output of a rank process or of setup.
	LogLine = head.LogLine
)

// Options say how a job is run. The zero value of each field works.
type Options struct {
	// Home is the state folder; empty: $LAUNCHER_HOME, else $XDG_STATE_HOME/launcher, else ~/.local/state/launcher.
	Home string
	// RunID names the run, [a-z][a-z0-9-]{0,40}; empty: NAME-xxxxxx. With the id of a living run Up attaches to it, with that of a finished one it
	// returns the stored result.
	RunID string
	// Providers by name; nil: Builtin(), with the local provider's machines under Home. A plugin is a value of plugin.Resolve, whose Close is its opener's
	// to call, after the last run has been waited for or left. Any other value that is not built in needs head { supervisor = "client" }: no head has it.
	Providers map[string]providers.Provider
	// Binaries has launcher and launcher-agent for every platform a node may have: OS-ARCH/NAME beside SHA256SUMS. nil: $LAUNCHER_BINARIES, else beside the executable.
	Binaries fs.FS
	// Env looks up the environment, for secrets and the state folder; nil: os.LookupEnv.
	Env func(name string) (string, bool)
	// OnEvent is called for every event of the run, in order, the past ones of a resumed run first, from one goroutine at a time.
	// It must not block for long, and it must not call Handle.Wait or Handle.Leave.
	OnEvent func(Event)
	// OnLog is called for every line of output that reaches this process, likewise, from a goroutine of its own.
	OnLog func(LogLine)
	// OnlyNew keeps what lies before this call from OnEvent and OnLog: for an attach that shows the present.
	OnlyNew bool
	// CallerCIDRs are what ssh_from = "caller" stands for: the addresses this caller is seen from. Needed only on providers with separate hosts.
	CallerCIDRs []string
	// Network is how the head is reached; the zero value is the real one, a test hands in memory.
	Network head.Network
	// Version goes into the journal.
	Version string
	// Door numbers the effects of this process, for tests; nil: they pass.
	Door *journal.Door
	// Log takes diagnostics for developers; nil: discarded.
	Log *slog.Logger

	// ending: the run is opened to be ended, so what only starting it takes may be missing.
	ending bool
}

// Result is how a run ended.
type Result struct {
	Run string `json:"run"`
	// Exit is what `launcher up` exits with: the job's own code where it has one, see the Exit constants.
	Exit int `json:"exit"`
	// JobExit is the job's own exit code; nil where it did not end by itself.
	JobExit *int          `json:"job_exit,omitempty"`
	Cause   journal.Cause `json:"cause,omitempty"`
	Text    string        `json:"text,omitempty"`
	// Clean: a listing after the end showed nothing left. Left names what may still bill otherwise.
	Clean bool     `json:"clean"`
	Left  []string `json:"left,omitempty"`
	// Recover is the command that finishes a teardown which is not Clean.
	Recover     string  `json:"recover,omitempty"`
	SpendUSD    float64 `json:"spend_usd"`
	Goodput     float64 `json:"goodput"`
	Preemptions int     `json:"preemptions"`
	Lost        int     `json:"lost"`
	Generations int     `json:"generations"`
	// Duration is from run.created to the end, in nanoseconds in JSON.
	Duration time.Duration `json:"duration"`
	// Folder is the run's folder, Outputs where its outputs were copied to ("" where there are none), Logs the merged output file.
	Folder  string `json:"folder"`
	Outputs string `json:"outputs,omitempty"`
	Logs    string `json:"logs,omitempty"`
	// LastFailures are the rank processes that failed last, with their last lines.
	LastFailures []journal.Failure `json:"last_failures,omitempty"`
	// SetupFailures are the nodes on which setup failed, with its last lines.
	SetupFailures []journal.SetupFailure `json:"setup_failures,omitempty"`
}

// Exit codes of up, attach and wait besides the job's own 0 to 118; the first that applies.
const (
	ExitTeardownUnfinished = 124 // ids that may still bill, and the command that finishes it
	ExitHandedOver         = 129 // interrupted, the teardown is the supervisor's
	ExitInterrupted        = 130 // interrupted, or ended by `down`, and seen gone
	ExitLimit              = 120 // a limit was reached
	ExitNoCapacity         = 121 // no capacity, quota or valid credentials
	ExitTooFew             = 122 // too few workers for longer than allowed
	ExitUsage              = 123 // usage or job file; nothing was started
	ExitLauncher           = 125 // another failure of the launcher
	ExitDetached           = 0   // left by Detach
	ExitJobOther           = 119 // the job ended by a signal or with a code ≥ 119
)
