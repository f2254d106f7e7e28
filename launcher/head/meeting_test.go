package head

import (
	"net"
	"sync/atomic"
	"testing"

	"github.com/ephemeral-launcher/launcher/launcher/rendezvous"
	"github.com/ephemeral-launcher/launcher/launcher/rendezvous/tcpstore"
)

// TestMasterAddress: whatever name a torchrun gives itself, the others read the cluster's address of its node.
func TestMasterAddress(t *testing.T) {
	const round = "torch.rendezvous.r-1-2.0"
	for name, test := range map[string]struct {
		node, key, value string
		want, leader     string
	}{
		"an unresolvable name":        {"w1.1", "/" + round + "/MASTER_ADDR", "ip-10-0-0-2.internal", "10.0.0.2", "w1.1"},
		"what we called it":           {"w0.1", "/" + round + "/MASTER_ADDR", "000000.10.0.0.1", "10.0.0.1", "w0.1"},
		"no address known":            {"w2.1", "/" + round + "/MASTER_ADDR", "gpu7", "gpu7", "w2.1"},
		"no member":                   {"w9.1", "/" + round + "/MASTER_ADDR", "gpu9", "gpu9", "w0.1"},
		"its port":                    {"w1.1", "/" + round + "/MASTER_PORT", "4242", "4242", "w0.1"},
		"a key of the training's own": {"w1.1", "/default_pg/MASTER_ADDR", "here", "here", "w0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			l := &worldLoop{}
			l.generation.Members = []rendezvous.Member{
				{Node: "w2.1", GroupRank: 2}, {Node: "w0.1", Addr: "10.0.0.1"}, {Node: "w1.1", GroupRank: 1, Addr: "10.0.0.2"},
			}
			server := tcpstore.New(storeOptions(&l.meeting))
			l.meeting.Store(newMeeting(l.generation.Members))
			near, far := net.Pipe()
			served := make(chan error, 1)
			go func() { served <- server.ServeConn(t.Context(), far, test.node) }()
			t.Cleanup(func() {
				near.Close()
				<-served
			})
			client, err := tcpstore.NewClient(t.Context(), near, tcpstore.ClientOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := client.Set(t.Context(), test.key, []byte(test.value)); err != nil {
				t.Fatal(err)
			}
			got, err := client.Get(t.Context(), test.key)
			if err != nil || string(got) != test.want {
				t.Errorf("%s after SET %q: %q, %v; want %q", test.key, test.value, got, err, test.want)
			}
			if got := l.rankZero(); got != test.leader {
				t.Errorf("rank 0 on %q, want %q", got, test.leader)
			}
		})
	}
}

// TestMasterAddressBeforeAWorld: a hook without a generation changes nothing.
func TestMasterAddressBeforeAWorld(t *testing.T) {
	var none atomic.Pointer[meeting]
	if got := storeOptions(&none).OnSet(tcpstore.ConnInfo{Node: "w0.1"}, "/torch.rendezvous.r.0/MASTER_ADDR", []byte("a")); string(got) != "a" {
		t.Errorf("got %q, want a", got)
	}
}
