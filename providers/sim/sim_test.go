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

var _ = []any{providers.Preempter((*Cloud)(nil)), providers.Checker((*Cloud)(nil))}

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
	for range 3 {
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
	boots := 0
	opts := Options{
		Boot: Dist{Median: 10 * time.Second},
		OnBoot: func(ctx context.Context, m providers.Machine, req providers.CreateRequest) (string, error) {
			boots++
			guest = ctx
			note("boot " + req.Token + " " + m.Offer.Zone)
			time.Sleep(5 * time.Second)
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
		}, []string{"boot t sim-1a", "stop: preempted"}},
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
			got, boots = nil, 0
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

func TestConsistencyWindow(t *testing.T) {
	for _, replicas := range []int{1, 4} {
		inBubble(t, Options{ConsistencyWindow: time.Minute, Replicas: replicas, Seed: 3}, func(t *testing.T, c *Cloud) {
			ids := mustCreate(t, c, request("r", "t", 30))
			late, flickers := 0, 0
			shown := map[string]bool{}
			for range 61 {
				list := mustList(t, c, "r")
				for _, id := range ids {
					if _, ok := list[id]; ok {
						shown[id] = true
					} else if shown[id] {
						flickers++
					} else {
						late++
					}
				}
				time.Sleep(time.Second)
			}
			if late == 0 {
				t.Error("every machine was listed at once")
			}
			if (flickers > 0) != (replicas > 1) {
				t.Errorf("%d replicas: machines vanished %d times", replicas, flickers)
			}
			if len(shown) != len(ids) || len(mustList(t, c, "r")) < len(ids) {
				t.Error("a machine is not shown after the window")
			}
			mustDelete(t, c, "r", ids...)
			time.Sleep(time.Second)
			stale := 0
			for _, r := range mustList(t, c, "r") {
				if r.Machine != nil && r.State == providers.Running {
					stale++
				}
			}
			if stale == 0 {
				t.Error("every listing knew of the deletion at once")
			}
			time.Sleep(time.Minute)
			for _, r := range mustList(t, c, "r") {
				if r.Machine != nil && r.Alive() {
					t.Errorf("%s is listed as %s a window after its deletion", r.ID, r.State)
				}
			}
		})
	}
}

func TestListLagAndForgetting(t *testing.T) {
	inBubble(t, Options{TerminatedFor: 10 * time.Minute}, func(t *testing.T, c *Cloud) {
		ids := mustCreate(t, c, request("r", "t", 1))
		time.Sleep(time.Second)
		c.SetListLag(5 * time.Minute)
		if got := len(mustList(t, c, "r")); got != 0 {
			t.Errorf("a listing that lags shows %d resources that are new", got)
		}
		c.SetListLag(0)
		mustDelete(t, c, "r", ids...)
		time.Sleep(9 * time.Minute)
		if _, ok := mustList(t, c, "r")[ids[0]]; !ok {
			t.Error("the ended machine is not listed")
		}
		time.Sleep(2 * time.Minute)
		if _, ok := mustList(t, c, "r")[ids[0]]; ok {
			t.Error("the ended machine is still listed")
		}
		for range 3 { // the oldest go first, the group is alive
			mustDelete(t, c, "r", ofKind(c, KindSecurityGroup)...)
			time.Sleep(time.Hour)
			mustList(t, c, "r")
		}
		if got := len(c.World()); got != 0 {
			t.Errorf("the cloud still remembers %d resources", got)
		}
		if got := mustCreate(t, c, request("r", "t", 1)); len(got) != 0 {
			t.Errorf("a forgotten machine's token made %v", got)
		}
	})
}

func TestAGivenUpCreateMayLandLater(t *testing.T) {
	opts := Options{LateShare: 1, CreateLatency: Dist{Median: 10 * time.Second}}
	inBubble(t, opts, func(t *testing.T, c *Cloud) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Create(ctx, request("r", "t", 2))
		if providers.CodeOf(err) != providers.Unavailable || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want unavailable because of the deadline", err)
		}
		if got := len(c.World()); got != 0 {
			t.Errorf("%d resources at once", got)
		}
		time.Sleep(10 * time.Second)
		machines := ofKind(c, providers.KindMachine)
		if len(machines) != 2 {
			t.Fatalf("%d machines later, want 2", len(machines))
		}
		if diff := cmp.Diff(machines, mustCreate(t, c, request("r", "t", 2))); diff != "" {
			t.Errorf("the token stands for others:\n%s", diff)
		}
	})
}

func TestOneTokenOneRequest(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, c *Cloud) {
		mustCreate(t, c, request("r", "t", 1))
		for _, req := range []providers.CreateRequest{request("r", "t", 2), request("other", "t", 1)} {
			if _, err := c.Create(t.Context(), req); providers.CodeOf(err) != providers.Invalid {
				t.Errorf("run %s, count %d: got %v, want invalid", req.Run, req.Count, err)
			}
		}
	})
}

func TestUpdateSparesIdentityTags(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, c *Cloud) {
		id := mustCreate(t, c, request("r", "t", 1))[0]
		for _, tag := range []string{providers.TagRun, providers.TagOwner, providers.TagRole} {
			err := c.Update(t.Context(), providers.UpdateRequest{Run: "r", Machine: id, Tags: map[string]string{tag: "x"}})
			if providers.CodeOf(err) != providers.Invalid {
				t.Errorf("%s: got %v, want invalid", tag, err)
			}
		}
		if err := c.Update(t.Context(), providers.UpdateRequest{Run: "r", Machine: id, Ingress: []string{"192.0.2.1/32"}}); err != nil {
			t.Fatal(err)
		}
		if err := c.Update(t.Context(), providers.UpdateRequest{Run: "r", Machine: id, Tags: map[string]string{"a": "b"}}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"192.0.2.1/32"}, c.Ingress("r")); diff != "" {
			t.Errorf("ingress:\n%s", diff)
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
