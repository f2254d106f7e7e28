package journal

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// ErrCannotFollow is returned for an event about a node that has gone on to a phase the event cannot follow: a report that came too late.
var ErrCannotFollow = errors.New("the event comes too late")

// State is what the events of a run add up to. The zero value is the state before run.created.
// Apply changes it; what a [Journal] hands out is a snapshot that nothing changes any more.
type State struct {
	Run     string    `json:"run"`
	Created Created   `json:"created"`
	Began   time.Time `json:"began"`
	// At is the run clock of the newest event, Events how many were folded.
	At     At  `json:"at"`
	Events int `json:"events"`

	Planned *Planned `json:"planned,omitempty"`
	// Epoch is who may act: 1 the client, more the head. Offered is the epoch offered but not yet accepted; 0: none.
	Epoch   int `json:"epoch"`
	Offered int `json:"offered,omitempty"`

	Nodes map[string]*Node `json:"nodes"`
	// Want is how many workers are asked for; set by scale. 0: what the job says.
	Want int `json:"want,omitempty"`

	Generation Generation `json:"generation"`
	// Restarts counts what was charged to the job.
	Restarts   int         `json:"restarts"`
	Checkpoint *Checkpoint `json:"checkpoint,omitempty"`
	Progress   *Progress   `json:"progress,omitempty"`

	// Refusals are the newest refused create calls, oldest first, at most maxRefusals.
	Refusals []RefusedCreate `json:"refusals,omitempty"`
	// SetupFailures names the nodes on which the job's setup failed.
	SetupFailures []SetupFailure `json:"setup_failures,omitempty"`

	Preemptions int `json:"preemptions"`
	LostNodes   int `json:"lost_nodes"`
	// LastFailures holds the exits of the newest generation that did not end well.
	LastFailures []Failure `json:"last_failures,omitempty"`
	Stopping     *Stopping `json:"stopping,omitempty"`
	StoppingAt   At        `json:"stopping_at,omitempty"`
	Finished     *Finished `json:"finished,omitempty"`
	FinishedAt   At        `json:"finished_at,omitempty"`
	// Drained: no rank process runs any more, and outputs are off the workers.
	Drained bool   `json:"drained,omitempty"`
	Fetched bool   `json:"fetched,omitempty"`
	Clean   *Clean `json:"clean,omitempty"`

	// useful sums worker-time inside formed generations, for goodput.
	Useful time.Duration `json:"useful"`
}

// RefusedCreate is a create call that gave less than asked.
type RefusedCreate struct {
	At    At             `json:"at"`
	Token string         `json:"token"`
	Role  providers.Role `json:"role"`
	Code  providers.Code `json:"code"`
	Text  string         `json:"text"`
	// Zones are those whose offers gave less than asked.
	Zones []string `json:"zones"`
	// Count and Min are how many machines the call asked for, and with how few it would have been content: a zone that cannot give
	// all at once may well have one.
	Count int `json:"count"`
	Min   int `json:"min"`
}

// SetupFailure is a failed run of the job's setup.
type SetupFailure struct {
	Node string `json:"node"`
	Setup
}

// maxRefusals bounds State.Refusals: enough for the cool-down of every zone of a region, several times over.
const maxRefusals = 64

// Failure is the end of a rank process that failed.
type Failure struct {
	Node       string `json:"node"`
	Generation int    `json:"generation"`
	Exited
}

// Generation is the newest incarnation of the training world.
type Generation struct {
	Number    int      `json:"number"`
	Phase     GenPhase `json:"phase"`
	WorldSize int      `json:"world_size,omitempty"`
	Members   []Member `json:"members,omitempty"`
	Since     At       `json:"since"`
	Cause     string   `json:"cause,omitempty"`
}

// GenPhase is where a generation is.
type GenPhase string

// The phases of a generation.
const (
	GenNone    GenPhase = ""
	GenForming GenPhase = "forming"
	GenFormed  GenPhase = "formed"
	GenEnded   GenPhase = "ended"
)

// Fold applies the events in order and returns the state they add up to.
func Fold(events []Event) (*State, error) {
	s := &State{}
	for i, e := range events {
		if err := s.Apply(e); err != nil {
			return nil, fmt.Errorf("fold event %d: %w", i+1, err)
		}
	}
	return s, nil
}

// Apply folds one event in. An event that cannot follow is an error and changes nothing; kinds it does not know are passed over.
// It never writes to what it was handed before, so copies made by Clone stay as they are.
func (s *State) Apply(e Event) error {
	if s.Run == "" {
		if e.Kind != RunCreated {
			return fmt.Errorf("apply %s: the first event must be %s", e.Kind, RunCreated)
		}
		if err := e.Decode(&s.Created); err != nil {
			return err
		}
		s.Run, s.Began, s.Epoch, s.Nodes = e.Run, e.Time, 1, map[string]*Node{}
	} else {
		if e.Run != s.Run {
			return fmt.Errorf("apply %s: it belongs to run %q, not %q", e.Kind, e.Run, s.Run)
		}
		if e.At < s.At {
			return fmt.Errorf("apply %s: the run clock goes back from %v to %v", e.Kind, s.At.Duration(), e.At.Duration())
		}
		if err := s.apply(e); err != nil {
			return err
		}
	}
	s.At = e.At
	s.Events++
	return nil
}

func (s *State) apply(e Event) error {
	switch e.Kind {
	case RunCreated:
		return fmt.Errorf("apply %s: the run exists", e.Kind)
	case NodeIntended:
		return s.intend(e)
	case NodeCreated, NodeRefused, NodeAddressed, NodeReachable, NodeRekeying, NodeRekeyed, NodeJoined, NodeNotice, NodeSuspect,
		NodeLost, NodeDeleting, NodeDeleted:
		old := s.Nodes[e.Node]
		if old == nil {
			return fmt.Errorf("apply %s: no node %q was intended", e.Kind, e.Node)
		}
		copied := *old // snapshots share the old one
		n := &copied
		phase, ok := n.Phase.next(e.Kind)
		if !ok {
			return fmt.Errorf("apply %s: node %s is %s: %w", e.Kind, e.Node, n.Phase, ErrCannotFollow)
		}
		if err := s.applyNode(n, e); err != nil {
			return err
		}
		n.Phase = phase
		s.Nodes[e.Node] = n
		return nil
	case GenerationForming, GenerationFormed, GenerationEnded, ProcessExited:
		return s.applyGeneration(e)
	}
	return s.applyRun(e)
}

func (s *State) intend(e Event) error {
	var d Intended
	if err := e.Decode(&d); err != nil {
		return err
	}
	if s.Stopping != nil {
		return fmt.Errorf("apply %s: the run is stopping: %w", e.Kind, ErrCannotFollow)
	}
	if old := s.Nodes[e.Node]; old != nil && old.Phase != PhaseRefused { // the head has one name for all attempts
		return fmt.Errorf("apply %s: node %q exists", e.Kind, e.Node)
	}
	if d.With != "" {
		first := s.Nodes[d.With]
		if first == nil {
			return fmt.Errorf("apply %s: node %q has the offers of %q, which was not intended", e.Kind, e.Node, d.With)
		}
		d.Offers = first.Intent.Offers
	}
	s.Nodes[e.Node] = &Node{
		Name: e.Node, Role: d.Role, Slot: d.Slot, Attempt: d.Attempt, Intent: d, Phase: PhaseIntended, BirthKey: d.BirthKey,
		IntendedAt: e.At, CreatedAt: -1, JoinedAt: -1, NoticedAt: -1, SuspectAt: -1, LostAt: -1, DeletingAt: -1, DeletedAt: -1,
	}
	return nil
}

func (s *State) applyNode(n *Node, e Event) error {
	switch e.Kind {
	case NodeCreated, NodeAddressed:
		var d MachineCreated
		if err := e.Decode(&d); err != nil {
			return err
		}
		n.Machine = &d.Machine
		if e.Kind == NodeCreated {
			n.CreatedAt = e.At
		}
	case NodeRefused:
		var d Refused
		if err := e.Decode(&d); err != nil {
			return err
		}
		n.Refusal, n.Reason = d.Code, string(d.Code)+": "+d.Message
		n.DeletedAt = e.At
		s.refuse(n, d, e.At)
	case NodeReachable:
		n.Suspect = ""
	case NodeRekeying, NodeRekeyed:
		var d Rekeyed
		if err := e.Decode(&d); err != nil {
			return err
		}
		n.NewKey = d.HostKey
		if e.Kind == NodeRekeyed {
			n.HostKey = d.HostKey
		}
	case NodeJoined:
		var d Joined
		if err := e.Decode(&d); err != nil {
			return err
		}
		n.Procs, n.Suspect = d.Procs, ""
		if n.JoinedAt < 0 {
			n.JoinedAt = e.At
		}
	case NodeNotice:
		var d Noticed
		if err := e.Decode(&d); err != nil {
			return err
		}
		if n.Notice == nil {
			s.Preemptions++
			n.NoticedAt = e.At
		}
		n.Notice = &d
	case NodeSuspect:
		var d Suspected
		if err := e.Decode(&d); err != nil {
			return err
		}
		n.Suspect, n.SuspectAt = d.Reason, e.At
	case NodeLost:
		var d Lost
		if err := e.Decode(&d); err != nil {
			return err
		}
		n.LostAt, n.Reason = e.At, "lost: "+d.Cause
		if n.Notice == nil {
			s.LostNodes++
		}
	case NodeDeleting:
		var d DeletingNode
		if err := e.Decode(&d); err != nil {
			return err
		}
		if n.Reason == "" {
			n.Reason = d.Reason
		}
		if n.DeletingAt < 0 {
			n.DeletingAt = e.At
		}
	case NodeDeleted:
		n.DeletedAt = e.At
	}
	return nil
}

// refuse remembers a refused create call, once per token.
func (s *State) refuse(n *Node, d Refused, at At) {
	if slices.ContainsFunc(s.Refusals, func(r RefusedCreate) bool { return r.Token == n.Intent.Token }) {
		return
	}
	r := RefusedCreate{At: at, Token: n.Intent.Token, Role: n.Role, Code: d.Code, Text: d.Message, Count: n.Intent.Count, Min: n.Intent.Min}
	refused := n.Intent.Offers
	if len(d.Offers) > 0 { // some may not have been tried
		refused = nil
		for _, o := range d.Offers {
			refused = append(refused, o.Offer)
		}
	}
	for _, o := range refused {
		if !slices.Contains(r.Zones, o.Zone) {
			r.Zones = append(r.Zones, o.Zone)
		}
	}
	s.Refusals = append(s.Refusals[max(0, len(s.Refusals)+1-maxRefusals):], r)
}

func (s *State) applyGeneration(e Event) error {
	g := &s.Generation
	switch e.Kind {
	case GenerationForming:
		var d Forming
		if err := e.Decode(&d); err != nil {
			return err
		}
		if e.Generation <= g.Number && g.Phase != GenForming {
			return fmt.Errorf("apply %s: generation %d follows %d", e.Kind, e.Generation, g.Number)
		}
		s.Generation = Generation{Number: e.Generation, Phase: GenForming, Since: e.At, Cause: d.Cause}
	case GenerationFormed:
		var d Formed
		if err := e.Decode(&d); err != nil {
			return err
		}
		if e.Generation < g.Number || e.Generation == g.Number && g.Phase != GenForming {
			return fmt.Errorf("apply %s: generation %d follows %d", e.Kind, e.Generation, g.Number)
		}
		s.Generation = Generation{Number: e.Generation, Phase: GenFormed, Since: e.At, Cause: d.Cause, WorldSize: d.WorldSize, Members: d.Members}
		s.LastFailures = nil
	case GenerationEnded:
		var d Ended
		if err := e.Decode(&d); err != nil {
			return err
		}
		if e.Generation < g.Number {
			return fmt.Errorf("apply %s: generation %d is over, %d follows: %w", e.Kind, e.Generation, g.Number, ErrCannotFollow)
		}
		if g.Phase == GenFormed {
			s.Useful += time.Duration(len(g.Members)) * (e.At - g.Since).Duration()
		}
		g.Phase, g.Since, g.Cause = GenEnded, e.At, d.Cause
	case ProcessExited:
		var d Exited
		if err := e.Decode(&d); err != nil {
			return err
		}
		if (d.Code != 0 || d.Signal != "") && !d.Asked {
			s.LastFailures = append(s.LastFailures, Failure{Node: e.Node, Generation: e.Generation, Exited: d})
		}
	}
	return nil
}

func (s *State) applyRun(e Event) error {
	switch e.Kind {
	case RunPlanned:
		return decodeTo(&s.Planned, e)
	case RunScaled:
		var d Scaled
		if err := e.Decode(&d); err != nil {
			return err
		}
		s.Want = d.Workers
	case RunStopping:
		if s.Stopping != nil {
			return nil // the first cause stays
		}
		if err := decodeTo(&s.Stopping, e); err != nil {
			return err
		}
		s.StoppingAt = e.At
	case RunFinished:
		if s.Finished != nil {
			return nil // the first result stays
		}
		if err := decodeTo(&s.Finished, e); err != nil {
			return err
		}
		s.FinishedAt = e.At
	case RunDrained:
		s.Drained = true
	case SetupFinished:
		var d Setup
		if err := e.Decode(&d); err != nil {
			return err
		}
		if !d.OK {
			s.SetupFailures = append(s.SetupFailures, SetupFailure{Node: e.Node, Setup: d})
		}
	case RunFetched:
		s.Fetched = true
	case RunClean:
		return decodeTo(&s.Clean, e)
	case HandoverOffered, HandoverAccepted:
		var d Handover
		if err := e.Decode(&d); err != nil {
			return err
		}
		if e.Kind == HandoverOffered {
			s.Offered = d.Epoch
			return nil
		}
		if d.Epoch <= s.Epoch {
			return fmt.Errorf("apply %s: epoch %d follows %d", e.Kind, d.Epoch, s.Epoch)
		}
		s.Epoch, s.Offered = d.Epoch, 0
	case JobCharged:
		var d Charged
		if err := e.Decode(&d); err != nil {
			return err
		}
		s.Restarts = d.Restarts
	case CheckpointSaved:
		return decodeTo(&s.Checkpoint, e)
	case ProgressReported:
		return decodeTo(&s.Progress, e)
	}
	return nil
}

// decodeTo sets p to the event's data, or leaves it as it is.
func decodeTo[T any](p **T, e Event) error {
	v := new(T)
	if err := e.Decode(v); err != nil {
		return err
	}
	*p = v
	return nil
}

// Head returns the run's head; nil before it was intended.
func (s *State) Head() *Node { return s.Nodes[HeadName] }

// List returns the nodes of a role, or all for "", in order of slot and attempt; the head comes first.
func (s *State) List(role providers.Role) []*Node {
	var nodes []*Node
	for _, n := range s.Nodes {
		if role == "" || n.Role == role {
			nodes = append(nodes, n)
		}
	}
	sortNodes(nodes)
	return nodes
}

// Clone returns a copy that later events change independently of s. Nodes are shared, because Apply replaces them and never changes them in place.
func (s *State) Clone() *State {
	c := *s
	c.Nodes = maps.Clone(s.Nodes)
	c.LastFailures, c.Refusals, c.SetupFailures = slices.Clip(s.LastFailures), slices.Clip(s.Refusals), slices.Clip(s.SetupFailures)
	return &c
}
