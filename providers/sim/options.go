package sim

import (
	"context"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// Options are the parameters of a cloud. The zero value is usable: one region of three zones, unlimited, without delays
// or faults. [Realistic] has published figures.
type Options struct {
	// Seed selects the draws.
	Seed uint64
	// Name is Info's Name ["sim"]; two clouds in one test need two.
	Name string
	// Owner is who Check says the caller is ["sim-owner"].
	Owner string
	// NoticeSource is Info's ["none"]; "file" where OnNotice writes the file that the agent watches.
	NoticeSource string
	// BillingInterval is Info's [1s].
	BillingInterval time.Duration

	// Regions [one, "sim-1", of zones a, b and c] and Types [sim.small, sim.large, sim.v100] are what is on offer.
	Regions []Region
	Types   []Type
	// Capacity limits pools; a pool that no entry matches is unlimited.
	Capacity []PoolCapacity
	// Quota is how many machines the account may have [0: unlimited]; ended ones count for QuotaLinger more.
	Quota       int
	QuotaLinger time.Duration
	// DryEvery and DryFor are the mean times for which a zone has spot machines, and has none [0: always has].
	DryEvery, DryFor time.Duration
	// PriceEvery is how often spot prices move, by a factor of exp(normal × PriceSigma) [0: never].
	PriceEvery time.Duration
	PriceSigma float64

	// Latency is that of one API call, half of it before the effect; Create's, where its Median is set, has its own.
	Latency, CreateLatency Dist
	// Boot is the time from creation until OnBoot.
	Boot Dist
	// NeverBoot and SlowBoot are the shares of machines that are listed as running but never come up, and that take five times as long.
	NeverBoot, SlowBoot float64
	// DeleteTime is the time from an accepted Delete until Terminated.
	DeleteTime Dist

	// ConsistencyWindow bounds how long a listing may show a resource's old state, or a new one not at all; each resource
	// draws its own lag. With Replicas > 1 each listing is answered by one of so many, each with its own lags, so what
	// one listing shows the next may not.
	ConsistencyWindow time.Duration
	Replicas          int
	// TerminatedFor is how long ended resources stay listed [1h].
	TerminatedFor time.Duration
	// PageSize is how many resources of a listing one API call returns [100].
	PageSize int
	// Throttle limits API calls, CreateThrottle machines created; a zero Bucket is no limit.
	Throttle, CreateThrottle Bucket
	// FailShare is the share of API calls that end with Unavailable, in half of which the effect has happened.
	FailShare float64
	// LateShare is the share of calls given up by the caller before they took effect that take effect all the same.
	LateShare float64

	// PreemptEvery is the mean life of a spot machine [0: unlimited], Notice the announcement before [2m], SilentShare the share that get none.
	PreemptEvery time.Duration
	Notice       time.Duration
	SilentShare  float64

	// Sides are the resources made with machines [nil: DefaultSides; empty: none]; OrphanShare is the share of those
	// that should end with their machine and do not.
	Sides       []Side
	OrphanShare float64

	// OnBoot starts the guest of a machine and returns the host:port its SSH server is reached at ["": the cloud's own, where nothing
	// answers]. ctx ends when the machine does. It is called once per machine, when its boot time is over; the machine is Pending until it returns.
	OnBoot func(ctx context.Context, m providers.Machine, req providers.CreateRequest) (address string, err error)
	// OnNotice tells the guest of a preemption; it may come more than once. A zero deadline calls it off.
	OnNotice func(machine string, deadline time.Time)
	// OnStop is called once per machine, after its OnBoot has returned, when the machine has ended or the cloud is closed.
	OnStop func(machine, reason string)
}

// Region is a region and its zones.
type Region struct {
	Name  string
	Zones []string
}

// Type is an instance type.
type Type struct {
	Name      string
	CPUs      int
	MemoryGiB float64
	GPU       providers.GPU
	// USDPerHour and SpotUSDPerHour are list prices. A zero price is an unknown one: its offers carry none.
	USDPerHour     float64
	SpotUSDPerHour float64
}

// Pool names machines that share a capacity. An empty field matches all.
type Pool struct {
	Type   string
	Zone   string
	Market providers.Market
}

func (p Pool) matches(o providers.Offer) bool {
	return (p.Type == "" || p.Type == o.InstanceType) && (p.Zone == "" || p.Zone == o.Zone) &&
		(p.Market == "" || p.Market == o.Market)
}

// PoolCapacity is how many machines of a pool can be alive at a time.
type PoolCapacity struct {
	Pool
	Machines int
}

// Dist is a log-normal distribution, cut off at Max [none]. The zero value draws nothing but jitter.
type Dist struct {
	Median time.Duration
	Sigma  float64
	Max    time.Duration
}

// Bucket is a token bucket that starts full.
type Bucket struct {
	Burst     int
	PerSecond float64
}

// Side is a kind of resource that comes with machines, one per machine or one per run and region.
type Side struct {
	Kind       string
	PerRun     bool
	USDPerHour float64
	// Survives tells that it does not end with its machine. Those per run always survive.
	Survives bool
}

// Kinds of the side resources of [DefaultSides].
const (
	KindDisk          = "disk"
	KindAddress       = "address"
	KindNIC           = "nic"
	KindSecurityGroup = "security-group"
)

// DefaultSides returns what Options.Sides defaults to: disk, address and network interface of each machine, which end
// with it, and a security group per run, which does not. None can be deleted before its machines are gone.
func DefaultSides() []Side {
	return []Side{
		{Kind: KindDisk, USDPerHour: 0.011},
		{Kind: KindAddress, USDPerHour: 0.005},
		{Kind: KindNIC},
		{Kind: KindSecurityGroup, PerRun: true},
	}
}

// Realistic returns a cloud with the delays, limits and faults of a large public one. Call latency: EC2 boot
// measurements (daemonology.net, 2021-08-12; brevdev/ec2-coldboot-research); boot: the same, and published GCE tables;
// call buckets: EC2's RunInstances and DescribeInstances limits (EC2 developer guide, "ec2-api-throttling"); the shares
// of failures are our assumptions.
func Realistic(seed uint64) Options {
	return Options{
		Seed:              seed,
		Latency:           Dist{Median: 300 * time.Millisecond, Sigma: 0.5, Max: 5 * time.Second},
		CreateLatency:     Dist{Median: 1500 * time.Millisecond, Sigma: 0.5, Max: 10 * time.Second},
		Boot:              Dist{Median: 25 * time.Second, Sigma: 0.25, Max: 5 * time.Minute},
		NeverBoot:         0.005,
		SlowBoot:          0.001,
		DeleteTime:        Dist{Median: 30 * time.Second, Sigma: 0.5, Max: 10 * time.Minute},
		ConsistencyWindow: time.Minute,
		QuotaLinger:       time.Minute,
		Throttle:          Bucket{Burst: 100, PerSecond: 20},
		CreateThrottle:    Bucket{Burst: 1000, PerSecond: 2},
		LateShare:         0.5,
		Notice:            2 * time.Minute,
		SilentShare:       0.05,
		BillingInterval:   time.Second,
	}
}

func (o Options) withDefaults() Options {
	if o.Name == "" {
		o.Name = "sim"
	}
	if o.Owner == "" {
		o.Owner = "sim-owner"
	}
	if o.NoticeSource == "" {
		o.NoticeSource = "none"
	}
	if o.BillingInterval == 0 {
		o.BillingInterval = time.Second
	}
	if o.Regions == nil {
		o.Regions = []Region{{Name: "sim-1", Zones: []string{"sim-1a", "sim-1b", "sim-1c"}}}
	}
	if o.Types == nil {
		o.Types = []Type{
			{Name: "sim.small", CPUs: 2, MemoryGiB: 8, USDPerHour: 0.10, SpotUSDPerHour: 0.03},
			{Name: "sim.large", CPUs: 16, MemoryGiB: 64, USDPerHour: 0.80, SpotUSDPerHour: 0.24},
			{Name: "sim.v100", CPUs: 32, MemoryGiB: 244, GPU: providers.GPU{Model: "V100", Count: 4}, USDPerHour: 12.24, SpotUSDPerHour: 3.67},
		}
	}
	if o.TerminatedFor == 0 {
		o.TerminatedFor = time.Hour
	}
	if o.PageSize <= 0 {
		o.PageSize = 100
	}
	if o.Replicas <= 0 {
		o.Replicas = 1
	}
	if o.Notice == 0 {
		o.Notice = 2 * time.Minute
	}
	if o.Sides == nil {
		o.Sides = DefaultSides()
	}
	return o
}
