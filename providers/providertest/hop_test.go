package providertest_test

import (
	"context"
	"sync"
	"testing"

	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/providertest"
	"github.com/ephemeral-launcher/launcher/providers/sim"
)

// fakeHop is a hop without a process: a killed plugin answers the calls in flight with Gone, and the next call has a new one.
type fakeHop struct {
	providers.Provider
	mu      sync.Mutex // guards all
	entered chan struct{}
	killed  chan struct{}
}

func (h *fakeHop) Create(ctx context.Context, req providers.CreateRequest) (providers.CreateResult, error) {
	result, err := h.Provider.Create(ctx, req)
	h.mu.Lock()
	entered, killed := h.entered, h.killed
	h.entered = nil
	h.mu.Unlock()
	if entered == nil {
		return result, err
	}
	close(entered) // and the reply is held back
	select {
	case <-killed:
		return providers.CreateResult{}, providers.Errorf(providers.Gone, "create", "plugin killed")
	case <-ctx.Done():
		return providers.CreateResult{}, providers.Errorf(providers.Unavailable, "create", "%w", ctx.Err())
	}
}

func TestHopCases(t *testing.T) {
	providertest.RunHop(t, providertest.HopHarness{
		Open: func(t *testing.T) providertest.HopSubject {
			cloud := sim.New(sim.Options{})
			t.Cleanup(cloud.Close)
			h := &fakeHop{Provider: cloud, killed: make(chan struct{})}
			return providertest.HopSubject{
				Provider: h,
				Entered: func() <-chan struct{} {
					h.mu.Lock()
					defer h.mu.Unlock()
					h.entered = make(chan struct{})
					return h.entered
				},
				Kill:    func() { close(h.killed) },
				Environ: func() []string { return []string{"SIM_TOKEN=x", "PATH=/bin"} },
				Allowed: []string{"SIM_TOKEN", "PATH"},
			}
		},
		HostKilled: func(*testing.T) <-chan struct{} {
			gone := make(chan struct{})
			close(gone)
			return gone
		},
	})
}
