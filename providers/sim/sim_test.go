package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/providers"
)

// request asks for count machines of one pool, at least one of them.
func request(run, token string, count int) providers.CreateRequest {
	return providers.CreateRequest{
		Token: token, Run: run, Role: providers.Worker, Count: count, Min: 1, TTL: time.Hour,
		Offers: []providers.Offer{offer("sim-1a", providers.Spot)},
		Tags: map[string]string{
			providers.TagRun: run, providers.TagOwner: "sim-owner", providers.TagRole: string(providers.Worker),
		},
	}
}

func offer(zone string, market providers.Market) providers.Offer {
	return providers.Offer{Provider: "sim", InstanceType: "sim.small", Region: "sim-1", Zone: zone, Market: market}
}

// inBubble runs body with a cloud in virtual time.
func inBubble(t *testing.T, opts Options, body func(t *testing.T, c *Cloud)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := New(opts)
		defer c.Close()
		body(t, c)
	})
}

func mustCreate(t *testing.T, c *Cloud, req providers.CreateRequest) []string {
	t.Helper()
	result, err := c.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, m := range result.Machines {
		ids = append(ids, m.ID)
	}
	return ids
}

func mustList(t *testing.T, c *Cloud, run string) map[string]providers.Resource {
	t.Helper()
	list, err := c.List(t.Context(), providers.Filter{Run: run})
	if err != nil {
		t.Fatal(err)
	}
	byID := map[string]providers.Resource{}
	for _, r := range list {
		byID[r.ID] = r
	}
	return byID
}

func mustDelete(t *testing.T, c *Cloud, run string, ids ...string) []string {
	t.Helper()
	req := providers.DeleteRequest{Run: run}
	for _, id := range ids {
		req.Resources = append(req.Resources, providers.Resource{ID: id})
	}
	left, err := c.Delete(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range left {
		names = append(names, r.ID)
	}
	return names
}

// state is the true state of one resource.
func state(c *Cloud, id string) providers.ResourceState {
	for _, r := range c.World() {
		if r.ID == id {
			return r.State
		}
	}
	return ""
}

func ofKind(c *Cloud, kind string) []string {
	var ids []string
	for _, r := range c.World() {
		if r.Kind == kind {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

func TestSameSeedSameCloud(t *testing.T) {
	play := func(t *testing.T, seed uint64) (ledger Ledger, world []providers.Resource, trace []string) {
		opts := Realistic(seed)
		opts.PreemptEvery = 20 * time.Minute
		opts.SilentShare = 0.3
		opts.PriceEvery, opts.PriceSigma = 7*time.Minute, 0.1
		opts.DryEvery, opts.DryFor = 10*time.Minute, 5*time.Minute
		opts.FailShare = 0.05
		opts.Replicas = 2
		var mu sync.Mutex // guards trace
		note := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			trace = append(trace, time.Now().Format("15:04:05.000000000 ")+fmt.Sprintf(format, args...))
		}
		opts.OnBoot = func(_ context.Context, m providers.Machine, _ providers.CreateRequest) (string, error) {
			note("boot %s", m.ID)
			return m.ID + ":22", nil
		}
		opts.OnNotice = func(m string, d time.Time) { note("notice %s %v", m, d) }
		opts.OnStop = func(m, reason string) { note("stop %s %s", m, reason) }
		inBubble(t, opts, func(t *testing.T, c *Cloud) {
			for round := range 6 {
				var wg sync.WaitGroup
				for caller := range 8 {
					wg.Go(func() {
						run := fmt.Sprintf("r%d", caller)
						_, err := c.Create(t.Context(), request(run, fmt.Sprintf("t-%d-%d", caller, round), 1+caller))
						note("%s %v", run, err)
						list, err := c.List(t.Context(), providers.Filter{Run: run})
						note("%s %d %v", run, len(list), err)
					})
				}
				wg.Wait()
				time.Sleep(10 * time.Minute)
			}
			ledger, world = c.Ledger(), c.World()
		})
		return ledger, world, trace
	}
	ledger, world, trace := play(t, 1)
	if len(ledger) < 500 {
		t.Errorf("only %d entries: the scenario is too tame", len(ledger))
	}
	for range 2 {
		ledger2, world2, trace2 := play(t, 1)
		for what, diff := range map[string]string{
			"ledger": cmp.Diff(ledger, ledger2), "world": cmp.Diff(world, world2), "trace": cmp.Diff(trace, trace2),
		} {
			if diff != "" {
				t.Fatalf("the same seed gave another %s:\n%s", what, diff)
			}
		}
	}
	if other, _, _ := play(t, 2); cmp.Equal(ledger, other) {
		t.Error("another seed gave the same ledger")
	}
}

func TestHooks(t *testing.T) {
	var mu sync.Mutex // guards got
	var got []string
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, what)
	}
	var guest context.Context
	opts := Options{
		Boot: Dist{Median: 10 * time.Second},
		OnBoot: func(ctx context.Context, m providers.Machine, req providers.CreateRequest) (string, error) {
			guest = ctx
			note("boot " + req.Token + " " + m.Offer.Zone)
			time.Sleep(5 * time.Second)
			if ctx.Err() != nil {
				note("boot given up")
			}
			return "guest:22", nil
		},
		OnNotice: func(_ string, deadline time.Time) {
			if deadline.IsZero() {
				note("called off")
				return
			}
			note("notice " + time.Until(deadline).Round(time.Second).String())
		},
		OnStop: func(_, reason string) { note("stop: " + reason) },
	}
	for name, tc := range map[string]struct {
		script func(c *Cloud, id string)
		want   []string
	}{
		"notice and end": {func(c *Cloud, id string) {
			time.Sleep(20 * time.Second)
			c.Reclaim(id, 30*time.Second)
			c.Reclaim(id, time.Minute) // later than the first: announced, not postponed
			time.Sleep(29 * time.Second)
			if guest.Err() != nil {
				t.Error("the guest ended before its deadline")
			}
			time.Sleep(2 * time.Second)
			if guest.Err() == nil {
				t.Error("the guest outlived its deadline")
			}
		}, []string{"boot t sim-1a", "notice 30s", "notice 30s", "stop: preempted"}},
		"notice while booting": {func(c *Cloud, id string) {
			time.Sleep(12 * time.Second)
			c.Reclaim(id, time.Minute)
			time.Sleep(10 * time.Second)
		}, []string{"boot t sim-1a", "notice 57s", "stop: cloud closed"}},
		"notice called off": {func(c *Cloud, id string) {
			time.Sleep(20 * time.Second)
			c.Reclaim(id, 30*time.Second)
			time.Sleep(10 * time.Second)
			c.CallOffReclaim(id)
			time.Sleep(time.Minute)
		}, []string{"boot t sim-1a", "notice 30s", "called off", "stop: cloud closed"}},
		"silent": {func(c *Cloud, id string) {
			time.Sleep(20 * time.Second)
			c.KillSilently(id)
			c.KillSilently(id)
		}, []string{"boot t sim-1a", "stop: preempted"}},
		"killed while booting": {func(c *Cloud, id string) {
			time.Sleep(12 * time.Second)
			c.KillSilently(id)
			time.Sleep(time.Minute)
			if got := state(c, id); got != providers.Terminated {
				t.Errorf("a guest that came up late made its machine %s", got)
			}
		}, []string{"boot t sim-1a", "boot given up", "stop: preempted"}},
		"closed while booting": {func(c *Cloud, id string) {
			time.Sleep(12 * time.Second)
			c.Reclaim(id, time.Minute)
			c.Close()
		}, []string{"boot t sim-1a", "boot given up", "stop: cloud closed"}},
		"killed before boot": {func(c *Cloud, id string) {
			c.KillSilently(id)
			time.Sleep(time.Minute)
		}, []string{"stop: preempted"}},
		"powered off": {func(c *Cloud, id string) {
			time.Sleep(20 * time.Second)
			c.PowerOff(id, "node lease over")
		}, []string{"boot t sim-1a", "stop: node lease over"}},
		"never booted": {func(c *Cloud, id string) {
			time.Sleep(time.Minute)
		}, []string{"stop: cloud closed"}},
	} {
		t.Run(name, func(t *testing.T) {
			got = nil
			inBubble(t, opts, func(t *testing.T, c *Cloud) {
				if name == "never booted" {
					c.NeverBoot(1)
				}
				id := mustCreate(t, c, request("r", "t", 1))[0]
				tc.script(c, id)
				synctest.Wait()
				if name == "never booted" && state(c, id) != providers.Running {
					t.Errorf("a machine that never boots is %s", state(c, id))
				}
			})
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("hooks (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNothingHappensAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stops := 0
		c := New(Options{CreateLatency: Dist{Median: 10 * time.Second}, OnStop: func(string, string) { stops++ }})
		id := mustCreate(t, c, request("r", "before", 1))[0]
		late := make(chan error)
		go func() {
			_, err := c.Create(t.Context(), request("r", "during", 1))
			late <- err
		}()
		time.Sleep(time.Second)
		c.Close()
		c.Close()
		c.PowerOff(id, "too late")
		if err := <-late; providers.CodeOf(err) != providers.Unavailable {
			t.Errorf("a call in flight: %v, want unavailable", err)
		}
		if _, err := c.List(t.Context(), providers.Filter{}); providers.CodeOf(err) != providers.Unavailable {
			t.Errorf("a later call: %v, want unavailable", err)
		}
		time.Sleep(2 * time.Hour) // beyond the boot lease
		if got := len(ofKind(c, providers.KindMachine)); got != 1 || stops != 1 || state(c, id) != providers.Running {
			t.Errorf("%d machines, %d stops, the first is %s; want 1, 1, running", got, stops, state(c, id))
		}
	})
}

func TestBootErrorLeavesADeadMachine(t *testing.T) {
	opts := Options{OnBoot: func(context.Context, providers.Machine, providers.CreateRequest) (string, error) {
		return "", errors.New("no room for a guest")
	}}
	inBubble(t, opts, func(t *testing.T, c *Cloud) {
		id := mustCreate(t, c, request("r", "t", 1))[0]
		time.Sleep(time.Second)
		r := mustList(t, c, "r")[id]
		if r.State != providers.Running || r.Machine.Address == "" || r.Reason != "boot: no room for a guest" {
			t.Errorf("got %s at %q, reason %q", r.State, r.Machine.Address, r.Reason)
		}
	})
}

func TestBootLease(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, c *Cloud) {
		req := request("r", "t", 2)
		req.TTL = 10 * time.Minute
		ids := mustCreate(t, c, req)
		time.Sleep(9 * time.Minute)
		c.Reached(ids[0])
		time.Sleep(2 * time.Minute)
		if got := state(c, ids[0]); got != providers.Running {
			t.Errorf("the machine that was reached is %s", got)
		}
		if got := mustList(t, c, "r")[ids[1]]; got.State != providers.Terminated || got.Reason != "lease over" {
			t.Errorf("the machine nobody reached is %s, %q", got.State, got.Reason)
		}
	})
}

func TestAddressesComeBack(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, c *Cloud) {
		address := func(token string) (id, address string) {
			id = mustCreate(t, c, request("r", token, 1))[0]
			time.Sleep(time.Second)
			return id, mustList(t, c, "r")[id].Machine.Address
		}
		first, a := address("a")
		_, b := address("b")
		c.KillSilently(first)
		_, again := address("c")
		if a == b || a != again {
			t.Errorf("addresses %s, %s, then %s; want the first one again", a, b, again)
		}
	})
}

func TestEventsOfOneInstantKeepTheirOrder(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, c *Cloud) {
		var got, want []int
		c.enter()
		for i := range 20 {
			want = append(want, i)
			c.at(c.start.Add(time.Second), func(time.Time) { got = append(got, i) })
		}
		c.leave()
		time.Sleep(2 * time.Second)
		c.enter()
		defer c.leave()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	})
}

func TestBootsRarelyShareAnInstant(t *testing.T) {
	boots := map[time.Time]int{}
	var mu sync.Mutex // guards boots
	opts := Options{OnBoot: func(_ context.Context, m providers.Machine, _ providers.CreateRequest) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		boots[time.Now()]++
		return m.ID + ":22", nil
	}}
	inBubble(t, opts, func(t *testing.T, c *Cloud) {
		mustCreate(t, c, request("r", "t", 500))
		time.Sleep(time.Second)
		mu.Lock()
		defer mu.Unlock()
		if len(boots) < 495 {
			t.Errorf("500 machines booted at %d instants", len(boots))
		}
	})
}

func TestRealTime(t *testing.T) {
	stopped := make(chan string, 1)
	c := New(Options{OnStop: func(machine, _ string) { stopped <- machine }})
	defer c.Close()
	req := request("r", "t", 1)
	req.TTL = 20 * time.Millisecond
	ids := mustCreate(t, c, req)
	select {
	case got := <-stopped:
		if got != ids[0] {
			t.Errorf("%s stopped, want %s", got, ids[0])
		}
	case <-time.After(10 * time.Second):
		t.Error("the boot lease did not end the machine")
	}
	if !slices.Contains(ofKind(c, providers.KindMachine), ids[0]) || state(c, ids[0]) != providers.Terminated {
		t.Errorf("the machine is %s", state(c, ids[0]))
	}
}
