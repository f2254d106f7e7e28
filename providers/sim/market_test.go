package sim

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/providers"
)

func TestCapacity(t *testing.T) {
	all := []providers.Offer{offer("sim-1a", providers.Spot), offer("sim-1b", providers.Spot), offer("sim-1b", providers.OnDemand)}
	for name, tc := range map[string]struct {
		opts     Options
		script   func(c *Cloud)
		count    int
		min      int
		want     []string // pools of the machines, or the code
		refusals []string
	}{
		"unlimited": {count: 3, want: []string{"sim-1a spot", "sim-1a spot", "sim-1a spot"}},
		"zone": {
			script: func(c *Cloud) { c.SetCapacity("sim-1a", 1) }, count: 2, min: 2,
			want: []string{"sim-1a spot", "sim-1b spot"}, refusals: []string{"sim-1a spot capacity"},
		},
		"market": {
			script: func(c *Cloud) { c.SetPool(Pool{Market: providers.Spot}, 1) }, count: 3, min: 3,
			want: []string{"sim-1a spot", "sim-1b on_demand", "sim-1b on_demand"}, refusals: []string{"sim-1a spot capacity", "sim-1b spot capacity"},
		},
		"two limits": {
			opts:  Options{Capacity: []PoolCapacity{{Pool{Zone: "sim-1a"}, 0}, {Pool{}, 2}}},
			count: 3, min: 1,
			want: []string{"sim-1b spot", "sim-1b spot"}, refusals: []string{"sim-1a spot capacity", "sim-1b spot capacity", "sim-1b on_demand capacity"},
		},
		"below min": {
			script: func(c *Cloud) { c.SetPool(Pool{}, 2) }, count: 3, min: 3,
			want: []string{"capacity"}, refusals: []string{"sim-1a spot capacity", "sim-1b spot capacity", "sim-1b on_demand capacity"},
		},
		"none at all, none needed": {
			script: func(c *Cloud) { c.SetPool(Pool{}, 0) }, count: 1,
			refusals: []string{"sim-1a spot capacity", "sim-1b spot capacity", "sim-1b on_demand capacity"},
		},
		"quota": {
			opts: Options{Quota: 2}, count: 3, min: 3,
			want: []string{"quota"}, refusals: []string{"sim-1a spot quota", "sim-1b spot quota", "sim-1b on_demand quota"},
		},
		"quota, partly": {
			opts: Options{Quota: 2}, count: 3, min: 1,
			want: []string{"sim-1a spot", "sim-1a spot"}, refusals: []string{"sim-1a spot quota", "sim-1b spot quota", "sim-1b on_demand quota"},
		},
		"limit lifted": {
			opts:   Options{Capacity: []PoolCapacity{{Pool{Zone: "sim-1a"}, 0}}},
			script: func(c *Cloud) { c.SetCapacity("sim-1a", -1) }, count: 1, want: []string{"sim-1a spot"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, tc.opts, func(t *testing.T, c *Cloud) {
				if tc.script != nil {
					tc.script(c)
				}
				req := request("r", "t", tc.count)
				req.Offers, req.Min = all, tc.min
				result, err := c.Create(t.Context(), req)
				var got, refusals []string
				for _, m := range result.Machines {
					got = append(got, m.Offer.Zone+" "+string(m.Offer.Market))
				}
				refused := result.Refused
				if err != nil {
					got = append(got, string(providers.CodeOf(err)))
					refused = err.(*providers.Error).Offers
				}
				for _, r := range refused {
					refusals = append(refusals, r.Offer.Zone+" "+string(r.Offer.Market)+" "+string(r.Code))
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("machines (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tc.refusals, refusals); diff != "" {
					t.Errorf("refusals (-want +got):\n%s", diff)
				}
				if err != nil && len(c.World()) != 0 {
					t.Errorf("a refusal left %v", c.World())
				}
			})
		})
	}
}

func TestCapacityComesBack(t *testing.T) {
	inBubble(t, Options{Quota: 1, QuotaLinger: time.Minute}, func(t *testing.T, c *Cloud) {
		c.SetCapacity("sim-1a", 1)
		id := mustCreate(t, c, request("r", "a", 1))[0]
		c.KillSilently(id)
		if _, err := c.Create(t.Context(), request("r", "b", 1)); providers.CodeOf(err) != providers.Quota {
			t.Errorf("got %v, want quota: ended machines count for a while", err)
		}
		time.Sleep(time.Minute)
		mustCreate(t, c, request("r", "b", 1))
	})
}

func TestUnknownPool(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, c *Cloud) {
		req := request("r", "t", 1)
		req.Offers = []providers.Offer{offer("sim-1z", providers.Spot)}
		if _, err := c.Create(t.Context(), req); providers.CodeOf(err) != providers.Invalid {
			t.Errorf("got %v, want invalid", err)
		}
	})
}

func TestPriceChangesWhatLivingMachinesBill(t *testing.T) {
	inBubble(t, Options{Sides: []Side{}}, func(t *testing.T, c *Cloud) {
		req := request("r", "t", 2)
		req.TTL = 24 * time.Hour
		mustCreate(t, c, req)
		time.Sleep(time.Hour)
		c.SetPrice("sim.small", providers.Spot, 0.30)
		c.SetPrice("sim.small", providers.OnDemand, 9)
		time.Sleep(time.Hour)
		report := Audit(c.Ledger(), time.Now()).Run("r")
		if want := 2*0.03 + 2*0.30; math.Abs(report.SpendUSD-want) > 1e-6 {
			t.Errorf("spent %v, want %v", report.SpendUSD, want)
		}
		if report.Peak[providers.Worker] != 2 || report.Machines[providers.Worker] != 2 {
			t.Errorf("a change of price counts as machines: %v, %v", report.Peak, report.Machines)
		}
	})
}

func TestSpotPricesMove(t *testing.T) {
	inBubble(t, Options{PriceEvery: time.Hour, PriceSigma: 0.2}, func(t *testing.T, c *Cloud) {
		mustCreate(t, c, request("r", "t", 1))
		c.Reached(ofKind(c, providers.KindMachine)[0])
		prices := map[string]bool{}
		for range 10 {
			offers, err := c.Offers(t.Context(), providers.OffersRequest{Markets: []providers.Market{providers.Spot, providers.OnDemand}, InstanceTypes: []string{"sim.small"}})
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range offers {
				switch {
				case o.Rejected != "":
				case o.Market == providers.OnDemand && *o.USDPerHour != 0.10:
					t.Errorf("on-demand price moved to %v", *o.USDPerHour)
				case o.Market == providers.Spot:
					prices[fmt.Sprint(o.Zone, *o.USDPerHour)] = true
				}
			}
			time.Sleep(time.Hour)
		}
		if len(prices) < 20 {
			t.Errorf("%d prices in 3 zones over 10 hours", len(prices))
		}
		entries := 0
		for _, e := range c.Ledger() {
			if e.Kind == providers.KindMachine {
				entries++
			}
		}
		if entries < 9 {
			t.Errorf("the machine was billed at %d prices in 10 hours", entries)
		}
	})
}

func TestDryZones(t *testing.T) {
	inBubble(t, Options{DryEvery: time.Hour, DryFor: time.Hour}, func(t *testing.T, c *Cloud) {
		dry := 0
		for i := range 200 {
			spot, demand := request("r", fmt.Sprintf("s%d", i), 1), request("r", fmt.Sprintf("d%d", i), 1)
			demand.Offers = []providers.Offer{offer("sim-1a", providers.OnDemand)}
			if _, err := c.Create(t.Context(), spot); providers.CodeOf(err) == providers.Capacity {
				dry++
			}
			mustCreate(t, c, demand)
			time.Sleep(time.Hour)
		}
		if dry < 60 || dry > 140 {
			t.Errorf("dry %d times in 200, want about half", dry)
		}
	})
}

func TestPreemptions(t *testing.T) {
	inBubble(t, Options{PreemptEvery: 5 * time.Hour, SilentShare: 0.25}, func(t *testing.T, c *Cloud) {
		req := request("r", "t", 400)
		req.TTL = 1000 * time.Hour
		mustCreate(t, c, req)
		demand := request("r", "d", 20)
		demand.TTL = 1000 * time.Hour
		demand.Offers = []providers.Offer{offer("sim-1a", providers.OnDemand)}
		mustCreate(t, c, demand)
		time.Sleep(5 * time.Hour)
		spot, ended := 0, 0
		for _, r := range c.World() {
			if r.Machine == nil {
				continue
			}
			if r.Machine.Offer.Market == providers.OnDemand {
				if !r.Alive() {
					t.Errorf("on-demand machine %s: %s", r.ID, r.Reason)
				}
				continue
			}
			spot++
			if r.Reason == "preempted" {
				ended++
			}
		}
		if share := float64(ended) / float64(spot); math.Abs(share-(1-1/math.E)) > 0.1 {
			t.Errorf("%.2f of the spot machines ended within their mean life, want %.2f", share, 1-1/math.E)
		}
	})
}

func TestDistributions(t *testing.T) {
	c := New(Options{Seed: 5})
	defer c.Close()
	d := Dist{Median: 25 * time.Second, Sigma: 0.25, Max: time.Minute}
	const n = 4000
	above, twice := 0, 0
	seen := map[time.Duration]bool{}
	for i := range n {
		v := c.sample(d, "test", fmt.Sprint(i))
		if v > d.Max+2*time.Millisecond || v < time.Second {
			t.Errorf("drew %v", v)
		}
		if v > d.Median {
			above++
		}
		if seen[v] {
			twice++
		}
		seen[v] = true
	}
	if math.Abs(float64(above)/n-0.5) > 0.03 || twice > 2 {
		t.Errorf("%d of %d above the median, %d drawn twice", above, n, twice)
	}
	if first, second := c.sample(d, "test", "1"), c.sample(d, "test", "1"); first != second {
		t.Error("one name, two draws")
	}
}

func TestAudit(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(minutes int) time.Time { return t0.Add(time.Duration(minutes) * time.Minute) }
	machine := func(id string, role providers.Role, from, to int) Entry {
		e := Entry{Resource: id, Kind: providers.KindMachine, Run: "r", Owner: "me", Role: role, From: at(from), USDPerHour: 6}
		if to > 0 {
			e.To = at(to)
		}
		return e
	}
	ledger := Ledger{
		machine("h", providers.Head, 0, 0),
		machine("a", providers.Worker, 0, 10),
		machine("b", providers.Worker, 5, 20),
		machine("c", providers.Worker, 10, 30), // begins when a ends
		{Resource: "d", Kind: KindDisk, Run: "r", Owner: "me", From: at(0), USDPerHour: 0.6},
		{Resource: "g", Kind: KindSecurityGroup, Run: "r", Owner: "me", From: at(0)},
		{Resource: "x", Kind: KindDisk, Run: "other", From: at(0), To: at(60), USDPerHour: 1},
		{Resource: "future", Kind: KindDisk, Run: "other", Owner: "me", From: at(500), USDPerHour: 1},
	}
	report := Audit(ledger, at(60))
	r := report.Run("r")
	ids := func(entries []Entry) (all []string) {
		for _, e := range entries {
			all = append(all, e.Resource)
		}
		return all
	}
	for what, diff := range map[string]string{
		"billing":  cmp.Diff([]string{"h", "d"}, ids(r.Billing)),
		"residue":  cmp.Diff([]string{"g"}, ids(r.Residue)),
		"untagged": cmp.Diff([]string{"x"}, ids(report.Untagged)),
		"peak":     cmp.Diff(map[providers.Role]int{providers.Head: 1, providers.Worker: 2}, r.Peak),
		"machines": cmp.Diff(map[providers.Role]int{providers.Head: 1, providers.Worker: 3}, r.Machines),
	} {
		if diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	if want := 6 + 1 + 1.5 + 2 + 0.6; math.Abs(r.SpendUSD-want) > 1e-9 || math.Abs(report.SpendUSD-want-1) > 1e-9 {
		t.Errorf("spent %v and %v in all, want %v and %v", r.SpendUSD, report.SpendUSD, want, want+1)
	}
	if none := report.Run("unknown"); none.SpendUSD != 0 || len(none.Billing) != 0 {
		t.Errorf("unknown run: %+v", none)
	}
}

func BenchmarkCreateAndList(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for i := range b.N {
				c := New(Options{Seed: uint64(i)})
				if _, err := c.Create(b.Context(), request("r", "t", n)); err != nil {
					b.Fatal(err)
				}
				if _, err := c.List(b.Context(), providers.Filter{Run: "r"}); err != nil {
					b.Fatal(err)
				}
				c.Close()
			}
		})
	}
}
