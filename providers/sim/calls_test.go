package sim

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/providers"
)

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
