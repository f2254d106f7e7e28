package planner

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/providers"
)

func usd(v float64) *float64 { return &v }

func offer(region, zone, instanceType string, market providers.Market, price *float64) providers.Offer {
	return providers.Offer{Region: region, Zone: zone, InstanceType: instanceType, Market: market, USDPerHour: price}
}

func source(name string, factor float64, head, worker map[string]float64) Source {
	s := Source{Block: jobspec.Provider{Name: name, PriceFactor: factor}, Info: providers.Info{Name: name}}
	for region, price := range head {
		s.Head = append(s.Head, offer(region, region+"a", "h", providers.OnDemand, usd(price)))
	}
	for region, price := range worker {
		s.Workers = append(s.Workers, offer(region, region+"a", "w", providers.Spot, usd(price)))
	}
	return s
}

func testJob(change func(*jobspec.Job)) *jobspec.Job {
	job := &jobspec.Job{
		Providers: []jobspec.Provider{{Name: "one", Regions: []string{"west", "east"}}, {Name: "two"}},
		Placement: jobspec.Placement{Prefer: jobspec.PreferCheapest}, Workers: jobspec.Workers{Min: 2, Max: 4},
		Limits: jobspec.Limits{MaxDuration: 10 * time.Hour},
	}
	if change != nil {
		change(job)
	}
	return job
}

func TestRankOrder(t *testing.T) {
	one := source("one", 1, map[string]float64{"west": 0.1, "east": 0.1}, map[string]float64{"west": 1, "east": 0.9})
	two := source("two", 0.5, map[string]float64{"north": 0.1}, map[string]float64{"north": 1.7})
	unpriced := source("two", 1, map[string]float64{"north": 0.1}, nil)
	unpriced.Workers = []providers.Offer{offer("north", "na", "w", providers.Spot, nil)}
	for _, c := range []struct {
		name    string
		prefer  string
		sources []Source
		want    []string
	}{
		{"cheapest, price factor counted", jobspec.PreferCheapest, []Source{one, two}, []string{"two north", "one east", "one west"}},
		{"listed: blocks and their regions in order", jobspec.PreferListed, []Source{two, one}, []string{"one west", "one east", "two north"}},
		{"no price comes last", jobspec.PreferCheapest, []Source{unpriced, one}, []string{"one east", "one west", "two north"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, candidate := range Rank(testJob(func(j *jobspec.Job) { j.Placement.Prefer = c.prefer }), c.sources).Candidates {
				got = append(got, candidate.Provider+" "+candidate.Region)
			}
			if diff := cmp.Diff(got, c.want); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRankAmounts(t *testing.T) {
	s := source("one", 0.5, map[string]float64{"west": 0.2}, map[string]float64{"west": 1})
	for _, c := range []struct {
		name   string
		limits jobspec.Limits
		count  int
		rate   float64
		buys   time.Duration
		worst  float64
	}{
		{"no limits", jobspec.Limits{MaxDuration: 10 * time.Hour}, 4, 2.1, 0, 21},
		{"budget", jobspec.Limits{MaxDuration: 10 * time.Hour, BudgetUSD: 4.2}, 4, 2.1, 2 * time.Hour, 4.2},
		{"budget beyond max_duration", jobspec.Limits{MaxDuration: time.Hour, BudgetUSD: 4.2}, 4, 2.1, 2 * time.Hour, 2.1},
		{"an hourly cap takes workers", jobspec.Limits{MaxDuration: 10 * time.Hour, MaxUSDPerHour: 1.7}, 3, 1.6, 0, 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Rank(testJob(func(j *jobspec.Job) { j.Limits = c.limits }), []Source{s})
			if len(r.Candidates) != 1 {
				t.Fatalf("got %d candidates, want 1; rejected: %+v", len(r.Candidates), r.Rejected)
			}
			got := r.Candidates[0]
			near := func(got *float64, want float64) bool { return got != nil && *got > want-1e-9 && *got < want+1e-9 }
			if got.Count != c.count || !near(got.USDPerHour, c.rate) || got.Buys.Round(time.Second) != c.buys || !near(got.WorstUSD, c.worst) {
				t.Errorf("got %d workers, %v USD/h, buys %v, worst %v; want %d, %v, %v, %v", got.Count, *got.USDPerHour, got.Buys, *got.WorstUSD, c.count, c.rate, c.buys, c.worst)
			}
		})
	}
}

func TestRankRejections(t *testing.T) {
	priced := func(price *float64) Source {
		s := source("one", 1, map[string]float64{"west": 0.2}, nil)
		s.Workers = []providers.Offer{offer("west", "westa", "w", providers.Spot, price)}
		return s
	}
	leaky := priced(usd(1))
	leaky.Info.LeakBound = -1
	ending := leaky
	ending.Block.SelfDeleteIdentity = "me"
	own := priced(nil)
	own.Block.USDPerHour = map[string]float64{"*": 0.7}
	dry := priced(usd(1))
	dry.Workers[0].Rejected = "not in this zone"
	headless := priced(usd(1))
	headless.Head = nil
	for _, c := range []struct {
		name       string
		source     Source
		limits     jobspec.Limits
		candidates int
		why        []string
	}{
		{"no price is taken without a limit", priced(nil), jobspec.Limits{}, 1, nil},
		{"no price, but a budget", priced(nil), jobspec.Limits{BudgetUSD: 1}, 0, []string{"its price is not known, and the job limits what it may cost", "no offer for the workers"}},
		{"no price, but an hourly cap", priced(nil), jobspec.Limits{MaxUSDPerHour: 9}, 0, []string{"its price is not known, and the job limits what it may cost", "no offer for the workers"}},
		{"the block's own price", own, jobspec.Limits{BudgetUSD: 1}, 1, nil},
		{"too dear for min workers", priced(usd(1)), jobspec.Limits{MaxUSDPerHour: 2}, 0, []string{"2 workers and the head cost 2.20 USD an hour at best, max_usd_per_hour is 2.00"}},
		{"unbounded leak", leaky, jobspec.Limits{}, 0, []string{"nothing bounds a leak: a machine whose controllers are dead bills on; name a self_delete_identity, or set unbounded_leak in limits"}},
		{"unbounded leak allowed", leaky, jobspec.Limits{UnboundedLeak: true}, 1, nil},
		{"unbounded leak but for the identity", ending, jobspec.Limits{}, 1, nil},
		{"rejected by the provider", dry, jobspec.Limits{}, 0, []string{"not in this zone", "no offer for the workers"}},
		{"no head", headless, jobspec.Limits{}, 0, []string{"no offer for the head"}},
		{"not asked", Source{Block: jobspec.Provider{Name: "one"}, Err: "no credentials"}, jobspec.Limits{}, 0, []string{"no credentials"}},
		{"nothing there", Source{Block: jobspec.Provider{Name: "one"}}, jobspec.Limits{}, 0, []string{"nothing on offer fits the job"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Rank(testJob(func(j *jobspec.Job) { j.Limits = c.limits }), []Source{c.source})
			var why []string
			for _, rejected := range r.Rejected {
				why = append(why, rejected.Why)
			}
			if len(r.Candidates) != c.candidates || !cmp.Equal(why, c.why) {
				t.Errorf("got %d candidates, rejected %q; want %d, %q", len(r.Candidates), why, c.candidates, c.why)
			}
		})
	}
}

func TestRankOffersWithinARegion(t *testing.T) {
	s := source("one", 1, map[string]float64{"west": 0.2}, nil)
	s.Workers = []providers.Offer{
		offer("west", "b", "w", providers.Spot, usd(1)), offer("west", "a", "w", providers.OnDemand, usd(3)),
		offer("west", "a", "w", providers.Spot, usd(1)), offer("west", "a", "big", providers.Spot, nil),
	}
	r := Rank(testJob(nil), []Source{s})
	var got []string
	for _, o := range r.Candidates[0].Workers {
		got = append(got, o.Zone+" "+o.InstanceType+" "+string(o.Market))
	}
	if want := []string{"a w spot", "b w spot", "a w on_demand", "a big spot"}; !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
