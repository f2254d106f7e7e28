package sim_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/providertest"
	"github.com/ephemeral-launcher/launcher/providers/sim"
)

// guests records what guests are told.
type guests struct {
	*sim.Cloud
	mu      sync.Mutex // guards notices
	notices map[string]time.Time
	told    chan struct{} // one place: something was recorded
}

func newGuests(opts sim.Options) *guests {
	g := &guests{notices: map[string]time.Time{}, told: make(chan struct{}, 1)}
	opts.OnBoot = func(_ context.Context, m providers.Machine, _ providers.CreateRequest) (string, error) {
		return "guest-" + m.ID + ":22", nil
	}
	opts.OnNotice = func(machine string, deadline time.Time) {
		g.mu.Lock()
		g.notices[machine] = deadline
		g.mu.Unlock()
		select {
		case g.told <- struct{}{}:
		default:
		}
	}
	g.Cloud = sim.New(opts)
	return g
}

func noticed(ctx context.Context, g *guests, machine string) (time.Time, error) {
	for {
		g.mu.Lock()
		deadline, ok := g.notices[machine]
		g.mu.Unlock()
		if ok {
			return deadline, nil
		}
		select {
		case <-g.told:
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}

func leftover(g *guests) []string {
	var left []string
	report := sim.Audit(g.Ledger(), time.Now())
	for _, e := range report.Untagged {
		left = append(left, "untagged "+e.Resource)
	}
	for _, run := range report.Runs {
		for _, e := range append(run.Billing, run.Residue...) {
			left = append(left, e.Resource)
		}
	}
	return left
}

// harness is a simulated cloud in virtual time, behind the decorators if there are any.
func harness(opts sim.Options, decorate func(providers.Provider) providers.Provider) providertest.Harness[*guests] {
	if decorate == nil {
		decorate = func(p providers.Provider) providers.Provider { return p }
	}
	return providertest.Harness[*guests]{
		Open: func(t *testing.T) (*guests, providers.Provider, json.RawMessage) {
			g := newGuests(opts)
			t.Cleanup(g.Close)
			return g, decorate(g.Cloud), json.RawMessage(`{"regions":["sim-1"]}`)
		},
		Around:      synctest.Test,
		Poll:        time.Second,
		Settle:      30 * time.Minute,
		CancelAfter: []time.Duration{0, 1, 100 * time.Microsecond, 300 * time.Millisecond, 700 * time.Millisecond, 1200 * time.Millisecond, 2 * time.Second},
		PageSize:    opts.PageSize,
		ShortTTL:    3 * time.Minute,
		BadConfigs: []providertest.BadConfig{
			{Config: `{"regions":["sim-1","mars"]}`, Attribute: "regions[1]"},
			{Config: `{"regions":"sim-1"}`, Attribute: "regions"},
			{Config: `{"region":["sim-1"]}`, Attribute: "region"},
			{Config: `[]`, Attribute: ""},
		},
		Limit:     func(g *guests, n int) { g.SetPool(sim.Pool{}, n) },
		DropReply: func(g *guests, op string) { g.DropReply(op) },
		Fail:      func(g *guests, op string, code providers.Code) { g.FailNext(op, code, false) },
		FailPage:  func(g *guests) { g.FailNext("page", providers.Unavailable, false) },
		Reopen:    func(_ *testing.T, g *guests) providers.Provider { return decorate(g.Cloud) },
		Noticed:   noticed,
		Leftover:  leftover,
	}
}

// slow has the delays of a large cloud, without its faults.
func slow(seed uint64) sim.Options {
	opts := sim.Realistic(seed)
	opts.PageSize = 5
	opts.Replicas = 3
	opts.NeverBoot = 0
	opts.CreateThrottle = sim.Bucket{}
	opts.Throttle = sim.Bucket{}
	return opts
}

func TestConformance(t *testing.T) {
	t.Run("instant", func(t *testing.T) { providertest.Run(t, harness(sim.Options{PageSize: 5}, nil)) })
	t.Run("real time", func(t *testing.T) {
		h := harness(sim.Options{PageSize: 5, ConsistencyWindow: 50 * time.Millisecond}, nil)
		h.Around, h.Poll, h.Settle, h.ShortTTL = nil, 5*time.Millisecond, 30*time.Second, 300*time.Millisecond
		h.CancelAfter = nil
		providertest.Run(t, h)
	})
	for seed := range uint64(2) {
		t.Run(fmt.Sprintf("slow/%d", seed), func(t *testing.T) { providertest.Run(t, harness(slow(seed), nil)) })
	}
}

func TestConformanceDecorated(t *testing.T) {
	layers := map[string]func(providers.Provider) providers.Provider{
		"limit": func(p providers.Provider) providers.Provider {
			return providers.Limit(p, providers.LimitOptions{PerSecond: 5, Burst: 3})
		},
		"log": func(p providers.Provider) providers.Provider { return providers.Log(p, slog.New(slog.DiscardHandler)) },
	}
	for name, layer := range layers {
		t.Run(name, func(t *testing.T) { providertest.Run(t, harness(slow(7), layer)) })
	}

	// A cloud that throttles and fails every tenth call, made bearable.
	opts := slow(8)
	opts.FailShare = 0.1
	opts.Throttle = sim.Bucket{Burst: 20, PerSecond: 4}
	h := harness(opts, func(p providers.Provider) providers.Provider {
		var log bytes.Buffer
		p = providers.Log(p, slog.New(slog.NewTextHandler(&log, nil)))
		p = providers.Limit(p, providers.LimitOptions{PerSecond: 10, Burst: 10})
		return providers.Retry(p, providers.RetryOptions{Attempts: 20, Budget: time.Hour})
	})
	h.Fail = nil // what is retried does not arrive
	t.Run("retry", func(t *testing.T) { providertest.Run(t, h) })
}
