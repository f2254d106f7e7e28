package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/providers"
)

func TestScriptedErrors(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, c *Cloud) {
		create := func(token string) error {
			_, err := c.Create(t.Context(), request("r", token, 1))
			return err
		}
		for i, step := range []struct {
			name     string
			script   func()
			want     providers.Code
			machines int // so far
		}{
			{"healthy", func() {}, "", 1},
			{"without effect", func() { c.FailNext("create", providers.Throttled, false) }, providers.Throttled, 1},
			{"healed", func() {}, "", 2},
			{"with effect", func() { c.FailNext("create", providers.Internal, true) }, providers.Internal, 3},
			{"reply lost", func() { c.DropReply("create") }, providers.Unavailable, 4},
			{"any operation", func() { c.FailNext("*", providers.Auth, false) }, providers.Auth, 4},
			{"another operation", func() { c.FailNext("list", providers.Auth, false) }, "", 5},
			{"for a while", func() { c.FailFor("create", providers.Quota, time.Minute) }, providers.Quota, 5},
			{"still", func() { time.Sleep(50 * time.Second) }, providers.Quota, 5},
			{"no longer", func() { time.Sleep(10 * time.Second) }, "", 6},
			{"all for a while", func() { c.FailFor("*", providers.Auth, time.Hour) }, providers.Auth, 6},
			{"ended", func() { c.FailFor("*", providers.Auth, 0) }, "", 7},
		} {
			step.script()
			err := create(fmt.Sprintf("t-%d", i))
			if got := providers.CodeOf(err); got != step.want {
				t.Errorf("%s: got %v, want %q", step.name, err, step.want)
			}
			if got := len(ofKind(c, providers.KindMachine)); got != step.machines {
				t.Errorf("%s: %d machines, want %d", step.name, got, step.machines)
			}
		}
		if _, err := c.List(t.Context(), providers.Filter{}); providers.CodeOf(err) != providers.Auth {
			t.Errorf("list: got %v, want the error scripted for it", err)
		}
	})
}

func TestFaultyDeletes(t *testing.T) {
	for name, tc := range map[string]struct {
		fault DeleteFault
		// want is the state after each of a row of orders a minute apart; "!" says the order was refused.
		want []string
	}{
		"none":             {DeleteFault{}, []string{"terminated", "terminated"}},
		"refused":          {DeleteFault{Refuse: 2}, []string{"!running", "!running", "terminated"}},
		"ignored":          {DeleteFault{Ignore: 1}, []string{"running", "terminated"}},
		"refused, ignored": {DeleteFault{Refuse: 1, Ignore: 1}, []string{"!running", "running", "terminated"}},
		"slow":             {DeleteFault{Delay: 150 * time.Second}, []string{"deleting", "deleting", "terminated"}},
		"hanging":          {DeleteFault{Hang: true}, []string{"deleting", "deleting", "deleting"}},
	} {
		for _, key := range []string{"id", "kind"} {
			t.Run(name+" by "+key, func(t *testing.T) {
				inBubble(t, Options{}, func(t *testing.T, c *Cloud) {
					id := mustCreate(t, c, request("r", "t", 1))[0]
					time.Sleep(time.Second)
					c.FaultDelete(map[string]string{"id": id, "kind": providers.KindMachine}[key], tc.fault)
					var got []string
					for range tc.want {
						refused := ""
						if len(mustDelete(t, c, "r", id)) > 0 {
							refused = "!"
						}
						time.Sleep(time.Minute)
						got = append(got, refused+string(state(c, id)))
					}
					if diff := cmp.Diff(tc.want, got); diff != "" {
						t.Errorf("states (-want +got):\n%s", diff)
					}
					c.FaultDelete(id, DeleteFault{})
					mustDelete(t, c, "r", id)
					time.Sleep(2 * time.Minute)
					if got := state(c, id); got != providers.Terminated {
						t.Errorf("after the fault: %s", got)
					}
				})
			})
		}
	}
}

func TestADeletedMachineBillsUntilItIsGone(t *testing.T) {
	inBubble(t, Options{DeleteTime: Dist{Median: 10 * time.Minute}, Sides: []Side{}}, func(t *testing.T, c *Cloud) {
		id := mustCreate(t, c, request("r", "t", 1))[0]
		time.Sleep(50 * time.Minute)
		mustDelete(t, c, "r", id)
		time.Sleep(time.Hour)
		got := Audit(c.Ledger(), time.Now()).Run("r").SpendUSD
		if want := 0.03; got < want || got > want*1.001 {
			t.Errorf("spent %v, want one hour: %v", got, want)
		}
	})
}

func TestSides(t *testing.T) {
	opts := Options{Sides: []Side{{Kind: "disk", Survives: true}, {Kind: "nic"}, {Kind: "group", PerRun: true}}}
	inBubble(t, opts, func(t *testing.T, c *Cloud) {
		ids := mustCreate(t, c, request("r", "t", 2))
		mustCreate(t, c, request("other", "u", 1))
		disks, nics, groups := ofKind(c, "disk"), ofKind(c, "nic"), ofKind(c, "group")
		if len(disks) != 3 || len(nics) != 3 || len(groups) != 2 {
			t.Fatalf("%d disks, %d nics, %d groups; want 3, 3, 2", len(disks), len(nics), len(groups))
		}
		for _, r := range mustList(t, c, "r") {
			if r.Tags[providers.TagOwner] == "" {
				t.Errorf("%s %s has no owner", r.Kind, r.ID)
			}
		}
		inUse := []string{disks[0], disks[1], nics[0], nics[1], groups[0]}
		if diff := cmp.Diff(inUse, mustDelete(t, c, "r", inUse...)); diff != "" {
			t.Errorf("side resources in use were deleted (-want +got left):\n%s", diff)
		}
		c.PowerOff(ids[0], "done")
		time.Sleep(time.Second)
		if state(c, disks[0]) != providers.Running || state(c, nics[0]) != providers.Terminated {
			t.Errorf("after its machine: disk %s, nic %s", state(c, disks[0]), state(c, nics[0]))
		}
		if diff := cmp.Diff([]string{groups[0]}, mustDelete(t, c, "r", disks[0], groups[0])); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
		mustDelete(t, c, "r", ids[1])
		time.Sleep(time.Second)
		if left := mustDelete(t, c, "r", disks[1], groups[0]); len(left) != 0 {
			t.Errorf("left without machines: %v", left)
		}
		time.Sleep(time.Second)
		report := Audit(c.Ledger(), time.Now())
		if rr := report.Run("r"); len(rr.Billing)+len(rr.Residue) != 0 {
			t.Errorf("left over: %v %v", rr.Billing, rr.Residue)
		}
		if rr := report.Run("other"); len(rr.Billing) != 1 || len(rr.Residue) != 3 {
			t.Errorf("the other run has %d billing and %d residue, want 1 and 3", len(rr.Billing), len(rr.Residue))
		}
		mustCreate(t, c, request("r", "again", 1))
		if got := ofKind(c, "group"); len(got) != 3 {
			t.Errorf("%d groups after a machine of a cleaned run, want a new one", len(got))
		}
	})
}

func TestOrphans(t *testing.T) {
	inBubble(t, Options{OrphanShare: 0.5}, func(t *testing.T, c *Cloud) {
		for _, id := range mustCreate(t, c, request("r", "t", 100)) {
			c.KillSilently(id)
		}
		time.Sleep(time.Second)
		alive := 0
		for _, r := range c.World() {
			if r.Alive() {
				alive++
			}
		}
		if alive < 100 || alive > 200 { // of 300, and the group
			t.Errorf("%d of 301 side resources survive, want about half", alive)
		}
	})
}

func TestPlanted(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, c *Cloud) {
		c.Plant(providers.Resource{ID: "stranger", Kind: KindDisk, Region: "sim-1"}, 1)
		c.Plant(providers.Resource{ID: "stray", Kind: KindDisk, Region: "sim-1", Tags: map[string]string{providers.TagRun: "r", providers.TagOwner: "me"}}, 1)
		if got := mustList(t, c, ""); len(got) != 1 || got["stray"].ID == "" {
			t.Errorf("listed %v, want the tagged one", got)
		}
		time.Sleep(time.Hour)
		report := Audit(c.Ledger(), time.Now())
		if len(report.Untagged) != 1 || report.Untagged[0].Resource != "stranger" {
			t.Errorf("untagged: %v", report.Untagged)
		}
		if left := mustDelete(t, c, "r", "stray"); len(left) != 0 {
			t.Errorf("left %v", left)
		}
		for _, run := range []string{"r", ""} { // it carries no tag, which is no reason to call it run ""
			_, err := c.Delete(t.Context(), providers.DeleteRequest{Run: run, Resources: []providers.Resource{{ID: "stranger"}}})
			if providers.CodeOf(err) != providers.Invalid {
				t.Errorf("delete of a stranger for run %q: %v", run, err)
			}
		}
	})
}

func TestListingChangesBetweenPages(t *testing.T) {
	inBubble(t, Options{PageSize: 2, Latency: Dist{Median: time.Second}, Sides: []Side{}}, func(t *testing.T, c *Cloud) {
		ids := mustCreate(t, c, request("r", "t", 4))
		time.Sleep(time.Minute)
		done := make(chan map[string]providers.Resource)
		go func() { done <- mustList(t, c, "r") }()
		time.Sleep(1100 * time.Millisecond) // the first page is read
		c.KillSilently(ids[0])
		c.KillSilently(ids[3])
		list := <-done
		if got := list[ids[0]].State; got != providers.Running {
			t.Errorf("a machine of the first page is %s", got)
		}
		if got := list[ids[3]].State; got != providers.Terminated {
			t.Errorf("a machine of the second page is %s", got)
		}
		if diff := cmp.Diff(map[string]int{"create": 1, "list": 1, "page": 1}, c.Calls()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

func TestThrottling(t *testing.T) {
	opts := Options{Throttle: Bucket{Burst: 5, PerSecond: 1}, CreateThrottle: Bucket{Burst: 10, PerSecond: 2}}
	inBubble(t, opts, func(t *testing.T, c *Cloud) {
		codes := func(n int) (throttled int) {
			for range n {
				if _, err := c.List(t.Context(), providers.Filter{}); providers.CodeOf(err) == providers.Throttled {
					throttled++
				} else if err != nil {
					t.Error(err)
				}
			}
			return throttled
		}
		if got := codes(8); got != 3 {
			t.Errorf("%d of 8 calls throttled, want 3", got)
		}
		time.Sleep(3 * time.Second)
		if got := codes(4); got != 1 {
			t.Errorf("after 3 s %d of 4 calls throttled, want 1", got)
		}
		time.Sleep(time.Minute)
		mustCreate(t, c, request("r", "a", 10))
		if _, err := c.Create(t.Context(), request("r", "b", 4)); providers.CodeOf(err) != providers.Throttled {
			t.Errorf("got %v, want throttled", err)
		}
		time.Sleep(3 * time.Second)
		mustCreate(t, c, request("r", "b", 4))
	})
}
