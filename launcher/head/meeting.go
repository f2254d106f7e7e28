package head

import (
	"strings"
	"sync/atomic"

	"github.com/ephemeral-launcher/launcher/launcher/rendezvous"
	"github.com/ephemeral-launcher/launcher/launcher/rendezvous/tcpstore"
)

// meeting is where the torchruns of one generation meet: what the store's hook reads, on the goroutines of its connections, and notes.
//
// The torchrun that counts as group rank 0 writes where the workers find their own store, under torch.rendezvous.ID.ROUND/MASTER_ADDR: its host's name up to
// 1.13, --local-addr up to 2.3, again the name in 2.4, --local-addr later (torch/distributed/elastic/agent/server/api.py, rendezvous/api.py). On clouds such names
// often do not resolve. All read it back from the store, so what stands there holds for every version.
type meeting struct {
	addresses map[string]string      // by node
	leader    atomic.Pointer[string] // the node that wrote MASTER_ADDR last
}

func newMeeting(members []rendezvous.Member) *meeting {
	m := &meeting{addresses: map[string]string{}}
	for _, member := range members {
		m.addresses[member.Node] = member.Addr
	}
	return m
}

// onSet is the store's hook: MASTER_ADDR becomes the cluster's address of the node that says it.
func (m *meeting) onSet(node, key string, value []byte) []byte {
	address, member := m.addresses[node]
	if !member || !strings.HasSuffix(key, "/MASTER_ADDR") || !strings.Contains(key, "torch.rendezvous.") {
		return value
	}
	m.leader.Store(&node)
	if address == "" {
		return value
	}
	return []byte(address)
}

// storeOptions are those of the store that all generations meet in, one after the other.
func storeOptions(current *atomic.Pointer[meeting]) tcpstore.Options {
	return tcpstore.Options{OnSet: func(conn tcpstore.ConnInfo, key string, value []byte) []byte {
		if m := current.Load(); m != nil {
			return m.onSet(conn.Node, key, value)
		}
		return value
	}}
}

// rankZero is the node that has rank 0: of torchrun's own counting where it has counted, which up to 1.13 it does by host name and pid.
func (l *worldLoop) rankZero() string {
	if m := l.meeting.Load(); m != nil {
		if leader := m.leader.Load(); leader != nil {
			return *leader
		}
	}
	for _, m := range l.generation.Members {
		if m.GroupRank == 0 {
			return m.Node
		}
	}
	return ""
}
