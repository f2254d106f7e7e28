package journal

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ephemeral-launcher/launcher/providers"
)

// Phase is where a node is in its life. The whole table:
//
//	           create call        SSH handshake         agent up
//	intended ─────────────▶ created ──────▶ reachable ──────▶ joined
//	   │                      │                 │               │
//	   │ refused              │  gone, given up, replaced,      │ silent, or seen gone
//	   ▼                      ▼  or no longer wanted            ▼
//	refused (end)          deleting ◀──────────────────────── lost
//	                          │  listings show it gone
//	                          ▼
//	                       deleted (end)
//
// A node never goes back: one that was lost and is heard again is deleted all the same.
type Phase string

// The phases.
const (
	PhaseIntended  Phase = "intended"
	PhaseCreated   Phase = "created"
	PhaseReachable Phase = "reachable"
	PhaseJoined    Phase = "joined"
	PhaseLost      Phase = "lost"
	PhaseDeleting  Phase = "deleting"
	PhaseDeleted   Phase = "deleted"
	PhaseRefused   Phase = "refused"
)

// next is the transition table: from a phase, on an event, to a phase. What is not in it is refused by the fold.
func (p Phase) next(k Kind) (Phase, bool) {
	switch k {
	case NodeCreated:
		return PhaseCreated, p == PhaseIntended
	case NodeRefused:
		return PhaseRefused, p == PhaseIntended
	case NodeReachable:
		// A re-dialled node is reachable again; that does not undo its having joined.
		if p == PhaseJoined {
			return PhaseJoined, true
		}
		return PhaseReachable, p == PhaseCreated || p == PhaseReachable
	case NodeJoined:
		return PhaseJoined, p == PhaseReachable || p == PhaseJoined
	case NodeLost:
		return PhaseLost, p == PhaseCreated || p == PhaseReachable || p == PhaseJoined
	case NodeDeleting:
		return PhaseDeleting, p != PhaseIntended && !p.Ended()
	case NodeDeleted:
		return PhaseDeleted, p != PhaseIntended && !p.Ended()
	}
	return p, p != PhaseIntended && !p.Ended()
}

// Ended tells whether the node can neither bill nor come back.
func (p Phase) Ended() bool { return p == PhaseDeleted || p == PhaseRefused }

// Coming tells whether the node may still become a member.
func (p Phase) Coming() bool {
	return p == PhaseIntended || p == PhaseCreated || p == PhaseReachable
}

// Node is one rented machine as the run sees it: a slot and an attempt. The head's slot is -1.
type Node struct {
	Name    string         `json:"name"`
	Role    providers.Role `json:"role"`
	Slot    int            `json:"slot"`
	Attempt int            `json:"attempt"`
	// Intent is the create call that asks for it, shared by all nodes of the call.
	Intent   Intended           `json:"intent"`
	Phase    Phase              `json:"phase"`
	Machine  *providers.Machine `json:"machine,omitempty"`
	BirthKey string             `json:"birth_key"`
	// NewKey is the host key announced by node.rekeying, HostKey the one confirmed by node.rekeyed.
	NewKey  string `json:"new_key,omitempty"`
	HostKey string `json:"host_key,omitempty"`

	Notice  *Noticed `json:"notice,omitempty"`
	Suspect string   `json:"suspect,omitempty"`
	// Reason says why it is leaving or has left.
	Reason  string         `json:"reason,omitempty"`
	Refusal providers.Code `json:"refusal,omitempty"`
	Procs   int            `json:"procs,omitempty"`

	// When, on the run clock; -1: not yet.
	IntendedAt At `json:"intended_at"`
	CreatedAt  At `json:"created_at"`
	JoinedAt   At `json:"joined_at"`
	NoticedAt  At `json:"noticed_at"`
	SuspectAt  At `json:"suspect_at"`
	LostAt     At `json:"lost_at"`
	DeletingAt At `json:"deleting_at"`
	DeletedAt  At `json:"deleted_at"`
}

// HostKeys lists the public host keys this node may present: those it had before it was ours, else the birth key until the first handshake with a key made for it.
func (n *Node) HostKeys() []string {
	if n.HostKey != "" {
		return []string{n.HostKey}
	}
	if n.Machine != nil && len(n.Machine.HostKeys) > 0 {
		return n.Machine.HostKeys
	}
	keys := []string{n.BirthKey}
	if n.NewKey != "" {
		keys = append(keys, n.NewKey)
	}
	return keys
}

// Leaving tells whether a replacement should take the node's slot: it is noticed, lost or on its way out.
func (n *Node) Leaving() bool {
	return n.Notice != nil || n.Phase == PhaseLost || n.Phase == PhaseDeleting || n.Phase.Ended()
}

// USDPerHour is the list price of the node's machine; ok is false where none is known or none was rented. A listing may
// not know prices: then it is that of the offer it was rented from. While the outcome of the create call is not known it
// is the dearest offer asked for, because the machine may be there.
func (n *Node) USDPerHour() (usd float64, ok bool) {
	if n.Phase == PhaseRefused {
		return 0, false
	}
	if n.Machine != nil && n.Machine.Offer.USDPerHour != nil {
		return *n.Machine.Offer.USDPerHour, true
	}
	exact := false
	for _, o := range n.Intent.Offers {
		if o.USDPerHour == nil {
			continue
		}
		if n.Machine != nil && o.InstanceType == n.Machine.Offer.InstanceType && o.Zone == n.Machine.Offer.Zone && o.Market == n.Machine.Offer.Market {
			if !exact || *o.USDPerHour > usd {
				usd = *o.USDPerHour
			}
			exact, ok = true, true
		} else if !exact {
			usd, ok = max(usd, *o.USDPerHour), true
		}
	}
	return usd, ok
}

// HeadName is the name of the run's head.
const HeadName = "head"

// NodeName is the name of a worker: its slot and which machine in that slot it is, as in w2.1.
func NodeName(slot, attempt int) string {
	return "w" + strconv.Itoa(slot) + "." + strconv.Itoa(attempt)
}

// ParseNodeName is the inverse of NodeName; attempt is 0 where the name leaves it out ("w2": whoever holds the slot).
func ParseNodeName(name string) (slot, attempt int, err error) {
	rest, ok := strings.CutPrefix(name, "w")
	if !ok {
		return 0, 0, fmt.Errorf("parse node name %q: want head, wSLOT or wSLOT.ATTEMPT", name)
	}
	s, a, dotted := strings.Cut(rest, ".")
	if slot, err = strconv.Atoi(s); err != nil || slot < 0 {
		return 0, 0, fmt.Errorf("parse node name %q: want head, wSLOT or wSLOT.ATTEMPT", name)
	}
	if dotted {
		if attempt, err = strconv.Atoi(a); err != nil || attempt < 1 {
			return 0, 0, fmt.Errorf("parse node name %q: want head, wSLOT or wSLOT.ATTEMPT", name)
		}
	}
	return slot, attempt, nil
}

// sortNodes orders nodes for people: the head, then by slot and attempt.
func sortNodes(nodes []*Node) {
	slices.SortFunc(nodes, func(a, b *Node) int {
		if a.Slot != b.Slot {
			return a.Slot - b.Slot
		}
		return a.Attempt - b.Attempt
	})
}
