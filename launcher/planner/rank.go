package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/providers"
)

// Requests are what a provider is asked for: the offers for the head and for the workers of the job.
func Requests(job *jobspec.Job, block jobspec.Provider) (head, workers providers.OffersRequest) {
	h, w := job.HeadFor(block.Name), job.WorkersFor(block.Name)
	head = providers.OffersRequest{
		Config: []byte(block.Config), Role: providers.Head, Regions: block.Regions, Markets: []providers.Market{providers.OnDemand}, CPUs: h.CPUs, DiskGiB: h.DiskGiB,
	}
	if h.InstanceType != "" {
		head.InstanceTypes = []string{h.InstanceType}
	}
	workers = providers.OffersRequest{
		Config: []byte(block.Config), Role: providers.Worker, Regions: block.Regions, Markets: markets(w.Market), InstanceTypes: w.InstanceTypes, CPUs: w.CPUs,
		MemoryGiB: float64(w.MemoryGiB), DiskGiB: w.DiskGiB,
	}
	for _, g := range w.GPU {
		workers.GPUs = append(workers.GPUs, providers.GPU{Model: g.Model, Count: g.Count})
	}
	return head, workers
}

func markets(market string) []providers.Market {
	switch market {
	case jobspec.MarketOnDemand:
		return []providers.Market{providers.OnDemand}
	case jobspec.MarketSpotOrOnDemand:
		return []providers.Market{providers.Spot, providers.OnDemand}
	}
	return []providers.Market{providers.Spot}
}

// Rank makes candidates of offers and puts the best first: by price, or with prefer = "listed" by the order of provider blocks and their regions.
func Rank(job *jobspec.Job, sources []Source) Ranking {
	r := &ranker{job: job}
	for _, s := range sources {
		r.source(s)
	}
	order := func(c Candidate) (provider, region int) {
		provider = slices.IndexFunc(job.Providers, func(p jobspec.Provider) bool { return p.Name == c.Provider })
		if provider >= 0 {
			if region = slices.Index(job.Providers[provider].Regions, c.Region); region < 0 {
				region = len(job.Providers[provider].Regions)
			}
		}
		return provider, region
	}
	slices.SortStableFunc(r.out.Candidates, func(a, b Candidate) int {
		price := comparePrices(a.USDPerHour, b.USDPerHour)
		ap, ar := order(a)
		bp, br := order(b)
		if job.Placement.Prefer == jobspec.PreferListed {
			// Regions that the block does not name are the provider's own choice: among them the price decides.
			return cmp.Or(cmp.Compare(ap, bp), cmp.Compare(ar, br), price, strings.Compare(a.Region, b.Region))
		}
		return cmp.Or(price, cmp.Compare(ap, bp), cmp.Compare(ar, br), strings.Compare(a.Region, b.Region))
	})
	return r.out
}

type ranker struct {
	job *jobspec.Job
	out Ranking
}

func (r *ranker) reject(rejection Rejection) { r.out.Rejected = append(r.out.Rejected, rejection) }

func (r *ranker) source(s Source) {
	name := s.Block.Name
	if s.Err != "" {
		r.reject(Rejection{Provider: name, Why: s.Err})
		return
	}
	if s.Info.LeakBound < 0 && !r.job.Limits.UnboundedLeak && s.Block.SelfDeleteIdentity == "" {
		r.reject(Rejection{Provider: name, Why: "nothing bounds a leak: " + cmp.Or(s.Info.LeakBoundDoc, "a machine whose controllers are dead bills on") +
			"; name a self_delete_identity, or set unbounded_leak in limits"})
		return
	}
	heads, workers := r.usable(s, providers.Head, s.Head), r.usable(s, providers.Worker, s.Workers)
	var regions []string
	for _, o := range slices.Concat(heads, workers) {
		if !slices.Contains(regions, o.Region) {
			regions = append(regions, o.Region)
		}
	}
	slices.Sort(regions)
	for _, region := range regions {
		r.region(s, region, in(heads, region), in(workers, region))
	}
	if len(regions) == 0 && len(s.Head)+len(s.Workers) == 0 {
		r.reject(Rejection{Provider: name, Why: "nothing on offer fits the job"})
	}
}

// usable keeps the offers that may be taken, priced as the block says, best first.
func (r *ranker) usable(s Source, role providers.Role, offers []providers.Offer) []providers.Offer {
	var keep []providers.Offer
	for _, o := range offers {
		o = priced(s.Block, o)
		why := o.Rejected
		if why == "" && o.USDPerHour == nil && (r.job.Limits.BudgetUSD > 0 || r.job.Limits.MaxUSDPerHour > 0) {
			why = "its price is not known, and the job limits what it may cost"
		}
		if why != "" {
			r.reject(Rejection{Provider: s.Block.Name, Region: o.Region, Zone: o.Zone, Role: role, InstanceType: o.InstanceType, Market: o.Market, Why: why})
			continue
		}
		keep = append(keep, o)
	}
	slices.SortStableFunc(keep, func(a, b providers.Offer) int {
		return cmp.Or(comparePrices(a.USDPerHour, b.USDPerHour), strings.Compare(a.Zone, b.Zone), strings.Compare(a.InstanceType, b.InstanceType), strings.Compare(string(b.Market), string(a.Market)))
	})
	return keep
}

// priced applies the block's own prices: by instance type, by market, or for all.
func priced(block jobspec.Provider, o providers.Offer) providers.Offer {
	for _, key := range []string{o.InstanceType, string(o.Market), "*"} {
		if usd, ok := block.USDPerHour[key]; ok {
			o.USDPerHour, o.PriceSource, o.PriceDate = &usd, "usd_per_hour of the job file", time.Time{}
			return o
		}
	}
	return o
}

func (r *ranker) region(s Source, region string, heads, workers []providers.Offer) {
	refuse := func(why string) { r.reject(Rejection{Provider: s.Block.Name, Region: region, Why: why}) }
	switch {
	case len(heads) == 0:
		refuse("no offer for the head")
		return
	case len(workers) == 0:
		refuse("no offer for the workers")
		return
	}
	factor := s.Block.PriceFactor
	if factor <= 0 {
		factor = 1
	}
	c := Candidate{
		Provider: s.Block.Name, Region: region, Config: s.Block.Config, Info: s.Info, Factor: factor, Head: heads, Workers: workers, Count: r.job.Workers.Max,
	}
	limits := r.job.Limits
	if h, w := heads[0].USDPerHour, workers[0].USDPerHour; h != nil && w != nil {
		least := (*h + float64(r.job.Workers.Min)**w) * factor
		if limits.MaxUSDPerHour > 0 && least > limits.MaxUSDPerHour+1e-9 {
			refuse(fmt.Sprintf("%d workers and the head cost %.2f USD an hour at best, max_usd_per_hour is %.2f", r.job.Workers.Min, least, limits.MaxUSDPerHour))
			return
		}
		if limits.MaxUSDPerHour > 0 && *w > 0 { // the supervisor rents no more than that allows
			c.Count = min(c.Count, max(r.job.Workers.Min, int((limits.MaxUSDPerHour/factor-*h) / *w + 1e-9)))
		}
		total := (*h + float64(c.Count)**w) * factor
		worst := total * limits.MaxDuration.Hours()
		c.USDPerHour, c.WorstUSD = &total, &worst
		if limits.BudgetUSD > 0 && total > 0 {
			c.Buys = time.Duration(min(limits.BudgetUSD/total, float64(1<<62)/float64(time.Hour)) * float64(time.Hour))
			worst = min(worst, limits.BudgetUSD)
		}
	}
	r.out.Candidates = append(r.out.Candidates, c)
}

func in(offers []providers.Offer, region string) []providers.Offer {
	var found []providers.Offer
	for _, o := range offers {
		if o.Region == region {
			found = append(found, o)
		}
	}
	return found
}

// comparePrices puts the unknown last.
func comparePrices(a, b *float64) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return cmp.Compare(*a, *b)
}
