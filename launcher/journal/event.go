package journal

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// Kind names what happened, in the past tense.
type Kind string

// The kinds of events. The type named behind each is its data.
const (
	RunCreated  Kind = "run.created"  // [Created]: the first event; fixes job, provider and keys
	RunPlanned  Kind = "run.planned"  // [Planned]: where, and the ranked offers
	RunStopping Kind = "run.stopping" // [Stopping]: from here on nothing is created
	RunFinished Kind = "run.finished" // [Finished]: the job's end, with result
	RunClean    Kind = "run.clean"    // [Clean]: a client listed and found nothing left
	RunScaled   Kind = "run.scaled"   // [Scaled]: another number of workers was asked for
	RunDrained  Kind = "run.drained"  // none: all rank processes have ended; outputs and the newest checkpoint are off the workers
	RunFetched  Kind = "run.fetched"  // none: a client holds journal, logs and outputs

	NodeIntended  Kind = "node.intended"  // [Intended]: a create call is about to be made
	NodeCreated   Kind = "node.created"   // [MachineCreated]: the provider rented a machine
	NodeRefused   Kind = "node.refused"   // [Refused]: the create call gave no machine for this node
	NodeAddressed Kind = "node.addressed" // [MachineCreated]: the machine's address became known
	NodeReachable Kind = "node.reachable" // [Reachable]: SSH handshake with the pinned key done
	NodeRekeying  Kind = "node.rekeying"  // [Rekeyed]: the new host key's public half, before its private half is sent
	NodeRekeyed   Kind = "node.rekeyed"   // [Rekeyed]: the machine serves its own host key now
	NodeJoined    Kind = "node.joined"    // [Joined]: the agent is up, set up and in touch
	NodeNotice    Kind = "node.notice"    // [Noticed]: the cloud announced a preemption
	NodeSuspect   Kind = "node.suspect"   // [Suspected]: its connection dropped; nothing is decided yet
	NodeLost      Kind = "node.lost"      // [Lost]: no longer a member
	NodeDeleting  Kind = "node.deleting"  // [DeletingNode]: its deletion is about to be ordered
	NodeDeleted   Kind = "node.deleted"   // [Deleted]: listings show it gone

	HandoverOffered  Kind = "handover.offered"  // [Handover]: from here on this epoch only re-sends, follows or fences
	HandoverAccepted Kind = "handover.accepted" // [Handover]: the new epoch is about to make its first effect

	GenerationForming Kind = "generation.forming" // [Forming]: waiting for members
	GenerationFormed  Kind = "generation.formed"  // [Formed]: a world with its ranks
	GenerationEnded   Kind = "generation.ended"   // [Ended]: it is over
	ProcessExited     Kind = "process.exited"     // [Exited]: a rank process ended
	JobCharged        Kind = "job.charged"        // [Charged]: a failure counts against max_restarts
	CheckpointSaved   Kind = "checkpoint.saved"   // [Checkpoint]: a copy lies off its node
	OutputsSaved      Kind = "outputs.saved"      // [Outputs]: outputs were copied off their node
	SetupFinished     Kind = "setup.finished"     // [Setup]: the job's setup ran on a node
	ProgressReported  Kind = "progress.reported"  // [Progress]: the job said how far it is
	LogsDropped       Kind = "logs.dropped"       // [Dropped]: output that did not fit the buffers
	ProviderRefused   Kind = "provider.refused"   // [ProviderError]: a call other than create went wrong
)

// Kinds lists every kind there is, in the order above.
func Kinds() []Kind {
	return []Kind{
		RunCreated, RunPlanned, RunStopping, RunFinished, RunClean, RunScaled, RunDrained, RunFetched, NodeIntended, NodeCreated, NodeRefused, NodeAddressed, NodeReachable, NodeRekeying, NodeRekeyed, NodeJoined, NodeNotice, NodeSuspect, NodeLost, NodeDeleting, NodeDeleted, HandoverOffered, HandoverAccepted, GenerationForming, GenerationFormed, GenerationEnded, ProcessExited, JobCharged, CheckpointSaved, OutputsSaved, SetupFinished, ProgressReported, LogsDropped, ProviderRefused,
	}
}

// Event is one line of the journal.
type Event struct {
	// Time is the wall clock, UTC, microseconds. It decides nothing.
	Time time.Time `json:"time"`
	// At is the run clock: how long after run.created, suspended time included.
	At         At              `json:"at"`
	Kind       Kind            `json:"kind"`
	Run        string          `json:"run"`
	Node       string          `json:"node,omitempty"`
	Generation int             `json:"generation,omitempty"`
	Data       json.RawMessage `json:"data,omitempty"`
}

// At is a point on the run clock; in JSON a number of seconds with six decimals at most.
type At time.Duration

// maxSeconds is the longest a run clock counts: what a float64 holds to the microsecond, and far from what a time.Duration holds.
const maxSeconds = 1 << 32

// MarshalJSON writes seconds.
func (a At) MarshalJSON() ([]byte, error) {
	return json.Marshal(math.Round(time.Duration(a).Seconds()*1e6) / 1e6)
}

// UnmarshalJSON reads seconds.
func (a *At) UnmarshalJSON(b []byte) error {
	var s float64
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	if s < 0 || s > maxSeconds {
		return fmt.Errorf("decode run clock: %g s is no time since a run was created", s)
	}
	*a = At(math.Round(s*1e6) * 1e3)
	return nil
}

// Duration is the point as a duration since run.created.
func (a At) Duration() time.Duration { return time.Duration(a) }

// NewEvent makes an event without its stamps, which the journal sets. data is the kind's data type, or nil.
func NewEvent(kind Kind, node string, generation int, data any) Event {
	e := Event{Kind: kind, Node: node, Generation: generation}
	if data != nil {
		b, err := json.Marshal(data)
		if err != nil {
			panic(fmt.Sprintf("journal: %s data: %v", kind, err)) // a data type of ours that JSON cannot hold is a bug
		}
		e.Data = b
	}
	return e
}

// Decode reads the event's data into v, the kind's data type.
func (e Event) Decode(v any) error {
	if len(e.Data) == 0 {
		return nil
	}
	if err := json.Unmarshal(e.Data, v); err != nil {
		return fmt.Errorf("decode %s: %w", e.Kind, err)
	}
	return nil
}

// Created is the data of run.created.
type Created struct {
	// Job is the job as parsed, without secrets' values.
	Job     json.RawMessage `json:"job"`
	JobName string          `json:"job_name"`
	JobFile string          `json:"job_file,omitempty"`
	Owner   string          `json:"owner,omitempty"`
	Version string          `json:"version,omitempty"`
	// ClientKey and WorkerKey are the public halves of the run's two user keys, authorized_keys lines.
	ClientKey string `json:"client_key"`
	WorkerKey string `json:"worker_key"`
	// Workdir is the content hash of the working folder as it travels; empty: none.
	Workdir string `json:"workdir,omitempty"`
}

// Planned is the data of run.planned.
type Planned struct {
	Provider string          `json:"provider"`
	Config   json.RawMessage `json:"config,omitempty"`
	Region   string          `json:"region"`
	Info     providers.Info  `json:"info"`
	// Plugin is the SHA-256 of the provider's plugin, by platform (OS-ARCH): the run uses no other. Empty: the provider is built in.
	Plugin  map[string]string `json:"plugin,omitempty"`
	Factor  float64           `json:"price_factor"`
	Head    []providers.Offer `json:"head"`
	Workers []providers.Offer `json:"workers"`
}

// Stopping is the data of run.stopping.
type Stopping struct {
	// Cause is one of the Cause constants.
	Cause Cause `json:"cause"`
	// Text says it for people.
	Text string `json:"text,omitempty"`
	// Exit is the job's own exit code where the job ended by itself.
	Exit *int `json:"exit,omitempty"`
	// Rank and Node name the process that decided it, where one did.
	Rank *int   `json:"rank,omitempty"`
	Node string `json:"node,omitempty"`
}

// Cause says why a run ended.
type Cause string

// The causes.
const (
	CauseSucceeded   Cause = "succeeded"        // every rank of one generation exited 0
	CauseFailed      Cause = "failed"           // the job's own failures used up max_restarts, or setup failed
	CauseSetup       Cause = "setup_failed"     // setup failed on two nodes
	CauseLimit       Cause = "limit"            // budget_usd, max_usd_per_hour, max_duration
	CauseCapacity    Cause = "no_capacity"      // no capacity, quota or valid credentials
	CauseTooFew      Cause = "too_few_workers"  // fewer than min for longer than below_min or start_timeout
	CauseInterrupted Cause = "interrupted"      // the caller's signal
	CauseDown        Cause = "down"             // somebody's `launcher down`
	CauseLauncher    Cause = "launcher_failure" // another failure of the launcher
)

// Finished is the data of run.finished.
type Finished struct {
	Stopping
	SpendUSD    float64 `json:"spend_usd"`
	Preemptions int     `json:"preemptions"`
	Lost        int     `json:"lost"`
	Generations int     `json:"generations"`
	Goodput     float64 `json:"goodput"`
}

// Clean is the data of run.clean.
type Clean struct {
	// Listings is how many listings, a consistency window apart, showed nothing.
	Listings int     `json:"listings"`
	SpendUSD float64 `json:"spend_usd"`
}

// Scaled is the data of run.scaled.
type Scaled struct {
	Workers int    `json:"workers"`
	By      string `json:"by"`
}

// Intended is the data of node.intended. Nodes that share a token are asked for in one create call.
type Intended struct {
	Role    providers.Role `json:"role"`
	Slot    int            `json:"slot"`
	Attempt int            `json:"attempt"`
	Token   string         `json:"token"`
	Count   int            `json:"count"`
	Min     int            `json:"min"`
	// Offers are the pools, best first. Where With names a node, they are that node's: a call for 1,000 machines says them once.
	Offers []providers.Offer `json:"offers,omitempty"`
	With   string            `json:"with,omitempty"`
	// BirthKey is the public half of the birth host key.
	BirthKey string `json:"birth_key"`
}

// MachineCreated is the data of node.created and node.addressed.
type MachineCreated struct {
	Machine providers.Machine `json:"machine"`
}

// Refused is the data of node.refused.
type Refused struct {
	Code    providers.Code      `json:"code"`
	Message string              `json:"message"`
	Offers  []providers.Refusal `json:"offers,omitempty"`
}

// Reachable is the data of node.reachable.
type Reachable struct {
	Address string `json:"address"`
}

// Rekeyed is the data of node.rekeying and node.rekeyed.
type Rekeyed struct {
	HostKey string `json:"host_key"`
}

// Joined is the data of node.joined.
type Joined struct {
	Procs int `json:"procs"`
	CPUs  int `json:"cpus,omitempty"`
	GPUs  int `json:"gpus,omitempty"`
}

// Noticed is the data of node.notice.
type Noticed struct {
	Source string `json:"source"`
	// DeadlineAt is on the run clock; nil: at any moment.
	DeadlineAt *At `json:"deadline_at,omitempty"`
}

// Suspected is the data of node.suspect.
type Suspected struct {
	Reason string `json:"reason"`
}

// Lost is the data of node.lost.
type Lost struct {
	Cause string `json:"cause"`
	// Evidence is true where the provider or the agent said so; false after lost_after of silence.
	Evidence bool `json:"evidence"`
}

// DeletingNode is the data of node.deleting.
type DeletingNode struct {
	Reason string `json:"reason"`
}

// Deleted is the data of node.deleted.
type Deleted struct {
	Reason string `json:"reason,omitempty"`
}

// Handover is the data of handover.offered and handover.accepted.
type Handover struct {
	Epoch int `json:"epoch"`
}

// Forming is the data of generation.forming.
type Forming struct {
	Cause string `json:"cause"`
	Have  int    `json:"have"`
	Want  int    `json:"want"`
}

// Member is one node in a generation.
type Member struct {
	Node      string `json:"node"`
	Slot      int    `json:"slot"`
	GroupRank int    `json:"group_rank"`
	FirstRank int    `json:"first_rank"`
	Procs     int    `json:"procs"`
}

// Formed is the data of generation.formed.
type Formed struct {
	Cause     string   `json:"cause"`
	WorldSize int      `json:"world_size"`
	Members   []Member `json:"members"`
}

// Ended is the data of generation.ended.
type Ended struct {
	Cause string `json:"cause"`
}

// Exited is the data of process.exited.
type Exited struct {
	Rank      int    `json:"rank"`
	LocalRank int    `json:"local_rank"`
	Code      int    `json:"code"`
	Signal    string `json:"signal,omitempty"`
	// Asked: launcher had asked it to end.
	Asked     bool     `json:"asked,omitempty"`
	LastLines []string `json:"last_lines,omitempty"`
}

// Charged is the data of job.charged.
type Charged struct {
	Rank     int `json:"rank"`
	Code     int `json:"code"`
	Restarts int `json:"restarts"`
	Max      int `json:"max"`
}

// Checkpoint is the data of checkpoint.saved.
type Checkpoint struct {
	Step  int64  `json:"step,omitempty"`
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	Hash  string `json:"hash,omitempty"`
}

// Outputs is the data of outputs.saved.
type Outputs struct {
	Bytes int64 `json:"bytes"`
	Files int   `json:"files"`
}

// Setup is the data of setup.finished.
type Setup struct {
	OK      bool    `json:"ok"`
	Seconds float64 `json:"seconds"`
	// Exit is the script's exit code.
	Exit      int      `json:"exit"`
	LastLines []string `json:"last_lines,omitempty"`
}

// Progress is the data of progress.reported.
type Progress struct {
	Step    int64              `json:"step"`
	Numbers map[string]float64 `json:"numbers,omitempty"`
}

// Dropped is the data of logs.dropped.
type Dropped struct {
	Stream string `json:"stream"`
	Bytes  int64  `json:"bytes"`
}

// ProviderError is the data of provider.refused.
type ProviderError struct {
	Op      string         `json:"op"`
	Code    providers.Code `json:"code"`
	Message string         `json:"message"`
}
