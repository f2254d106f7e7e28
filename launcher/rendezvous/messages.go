package rendezvous

import "time"

// Cause says why a generation was formed or ended. The word is what the journal shows.
type Cause string

const (
	CauseStart         Cause = "start"          // the first generation
	CauseLoss          Cause = "loss"           // a member, or a rank process of it, is gone
	CauseFailure       Cause = "failure"        // a rank exited with another code than 0
	CauseNotice        Cause = "notice"         // a noticed member has no more time to wait for its replacement
	CauseSwap          Cause = "swap"           // replacements for the noticed or leaving members have joined
	CauseLeaving       Cause = "leaving"        // the supervisor takes a member out and sends no replacement
	CauseReplacement   Cause = "replacement"    // the slot of a lost or noticed member is filled again
	CauseGrowth        Cause = "growth"         // more members than ever in this world
	CauseScale         Cause = "scale"          // fewer workers are wanted
	CauseHeadRestarted Cause = "head_restarted" // a new head process; the old one's store and streams are lost
	CauseStop          Cause = "stop"           // Stop
	CauseSuccess       Cause = "success"        // every rank exited 0
)

// Why a member was declared lost, in Lost.Cause; where there is evidence the cause is the evidence's own text.
const (
	LostSilent = "silent" // lost_after + 2 s without a beat
	LostStuck  = "stuck"  // its processes did not end; the shell must stop answering its beats
	LostUnfit  = "unfit"  // its processes vanish or never start, again and again
)

// How a run finished, in Finish.Cause.
const (
	FinishSuccess   = "success"
	FinishJobFailed = "job_failed"
	FinishTooFew    = "too_few"
	FinishStopped   = "stopped"
)

// Input is something that happened. A node is named by Node, which is unique to one attempt of one slot.
type Input interface{ input() }

// Expected is one node of the supervisor's view.
type Expected struct {
	Node    string
	Slot    int
	Attempt int
	Coming  bool // ordered or booting; it may still join
	Leaving bool // to be deleted: it is not taken into another generation, and a running one lets it go
}

// Roster replaces the whole view of what the supervisor expects. A node that it leaves out is neither coming nor
// leaving; a joined one stays a member (only Gone, silence or being stuck takes it out).
type Roster struct{ Nodes []Expected }

// Joined says that a node is bootstrapped and its agent has answered. It is repeated when an agent re-joins.
type Joined struct {
	Node    string
	Slot    int
	Attempt int
	Procs   int    // rank processes a generation has there; 0: Config.Procs
	Addr    string // where other members reach it

	// Running is the generation whose processes live there, 0 for none. A shell whose agent re-joins without the
	// generation that the agent has acknowledged sends Ended for it too: the core cannot tell that from a start
	// still under way.
	Running int
}

// Heard is a beat of the member lease, as received. The agent counts its lease from the sending of the beat, which
// is earlier, so what is decided here is never too early. A beat counts, and may be answered, from Joined to Lost.
type Heard struct{ Node string }

// Gone says on evidence that a node is no more: the provider lists it as gone, or it ended itself.
type Gone struct {
	Node     string
	Evidence string
}

// Notice announces a preemption. Repeating it changes nothing; of two deadlines the earlier holds.
type Notice struct {
	Node      string
	Deadline  time.Duration // on the run clock; 0: at once
	Cancelled bool          // the cloud took it back
}

// ExitPhase says what the agent had done to a process before it exited.
type ExitPhase int

const (
	ByItself   ExitPhase = iota // before any SIGTERM of the agent, preemption.signal or not
	AfterTerm                   // after SIGTERM
	AfterLease                  // the agent killed it because its member lease had run out
)

// Exited reports one process of a generation. With Config.OneExit it stands for all ranks of the node.
type Exited struct {
	Node       string
	Generation int
	LocalRank  int
	Code       int
	Signal     string // as in "SIGKILL"; empty: it exited with Code
	Phase      ExitPhase
}

// Ended says that no process of that generation lives on the node any more. It follows the node's last Exited, and
// answers End also where none ever lived. The shell sends it for an agent that refuses to start a generation.
type Ended struct {
	Node       string
	Generation int
}

// Checkpoint says that the job has saved one.
type Checkpoint struct {
	Step int64
	Path string
}

// Scale sets how many workers are wanted: between Min and Max, or of a fixed world the new count, at least 1.
type Scale struct{ Workers int }

// Stop ends the generation on purpose and then the run. Reason comes back in Finish.
type Stop struct{ Reason string }

// Tick only lets time pass.
type Tick struct{}

func (Roster) input()     {}
func (Joined) input()     {}
func (Heard) input()      {}
func (Gone) input()       {}
func (Notice) input()     {}
func (Exited) input()     {}
func (Ended) input()      {}
func (Checkpoint) input() {}
func (Scale) input()      {}
func (Stop) input()       {}
func (Tick) input()       {}

// Output is something the shell must do or show.
type Output interface{ output() }

// Member is one node's place in a generation.
type Member struct {
	Node      string
	Slot      int
	GroupRank int // 0..n−1
	FirstRank int // its ranks are FirstRank..FirstRank+Procs−1
	Procs     int
	Addr      string
}

// Form starts a generation: journal generation.forming, start the processes, journal generation.formed.
type Form struct {
	Generation int
	Cause      Cause
	Members    []Member // by group rank
	WorldSize  int      // processes
	Restarts   int      // charged so far
}

// End ends the generation's processes on Nodes; each then answers with Ended. Graceful is the sequence of an ending
// on purpose (signal, grace, SIGTERM, 10 s, SIGKILL), otherwise SIGTERM, 1 s, SIGKILL. It may come twice for a
// node that re-joins, and changes nothing there the second time.
type End struct {
	Generation int
	Nodes      []string
	Graceful   bool
	Cause      Cause
}

// Closed says that nothing of the generation lives any more on any member: journal generation.ended.
type Closed struct {
	Generation int
	Cause      Cause
}

// Lost takes a node out for good: its rank is given away, and whatever it sends from now on is ignored.
// The supervisor replaces and deletes it. For a node outside the generation, evidence that it is gone gives none:
// who brought it knows.
type Lost struct {
	Node    string
	Slot    int
	Attempt int
	Cause   string
	Member  bool // it was in the generation that runs or ends
}

// Charged books a failure of the job's own on max_restarts.
type Charged struct {
	Generation int
	Node       string
	Rank       int
	Code       int
	Signal     string
	Restarts   int // with this one
	Max        int
}

// Hold says that training waits for members. It comes again when Have or Want changes.
type Hold struct {
	Have, Want int
	Since      time.Duration // on the run clock
	Until      time.Duration // when the run gives up; 0: never
}

// Finish is the last output.
type Finish struct {
	Success  bool
	Cause    string // FinishSuccess, …
	Reason   string // Stop's
	ExitCode int    // of the first rank ever charged, where the job failed
	Signal   string // likewise
	Rank     int    // likewise; else −1
	Node     string // likewise
}

func (Form) output()    {}
func (End) output()     {}
func (Closed) output()  {}
func (Lost) output()    {}
func (Charged) output() {}
func (Hold) output()    {}
func (Finish) output()  {}
