package supervisor

import (
	"context"

	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

// World is the training side of a run, as the supervisor sees it: the head process here, or over a connection. What happens in it
// arrives in the journal. All methods return at once; the newest roster wins. Safe for concurrent use.
type World interface {
	// SetRoster says which nodes there are and what is wanted of them.
	SetRoster(Roster)
	// Gone says that the provider lists a node as gone: evidence, which saves waiting for its lease.
	Gone(node, evidence string)
	// Drain ends all rank processes, in order where graceful, copies outputs and the newest checkpoint off the workers, and
	// reports run.drained. It may be said again.
	Drain(cause journal.Cause)
}

// Recorder takes what the world reports. It returns when the events are on disk: an effect that needs an event first waits for it.
// journal.ErrCannotFollow means that the event came too late, and the node is not the world's any more.
type Recorder func(ctx context.Context, events ...journal.Event) error

// Roster is what a world is to make of its nodes.
type Roster struct {
	Nodes []RosterNode `json:"nodes"`
	// Want is how many workers are asked for.
	Want int `json:"want"`
}

// RosterNode is one node of a roster.
type RosterNode struct {
	Name    string         `json:"name"`
	Role    providers.Role `json:"role"`
	Slot    int            `json:"slot"`
	Attempt int            `json:"attempt"`
	// Address is how the one who dials it reaches its SSH server, ClusterAddress how the other machines of the run reach it. Empty: it has none yet, and is only expected.
	Address        string   `json:"address"`
	ClusterAddress string   `json:"cluster_address"`
	User           string   `json:"user"`
	HostKeys       []string `json:"host_keys"`
	// Rekeyed: it has its own host key already.
	Rekeyed bool `json:"rekeyed"`
	// Leaving: it is to give its slot up, in order: scaled away.
	Leaving bool `json:"leaving,omitempty"`
}

// RosterOf derives the roster from the state.
func RosterOf(job *jobspec.Job, s *journal.State) Roster {
	r := Roster{Want: Wanted(job, s)}
	for _, n := range s.List("") {
		if n.Phase == journal.PhaseLost || n.Phase == journal.PhaseDeleting || n.Phase.Ended() {
			continue
		}
		node := RosterNode{
			Name: n.Name, Role: n.Role, Slot: n.Slot, Attempt: n.Attempt, HostKeys: n.HostKeys(), Rekeyed: n.HostKey != "",
			Leaving: n.Role == providers.Worker && n.Slot >= r.Want,
		}
		if n.Machine != nil {
			node.Address, node.ClusterAddress, node.User = n.Machine.Address, n.Machine.ClusterAddress, n.Machine.User
			if node.ClusterAddress == "" {
				node.ClusterAddress = node.Address
			}
		}
		r.Nodes = append(r.Nodes, node)
	}
	return r
}
