package jobspec

import (
	"encoding/json"
	"time"

	"github.com/hashicorp/hcl/v2"
)

// Values of the attributes that are one of a few words.
const (
	PreferCheapest = "cheapest"
	PreferListed   = "listed"

	SameZonePrefer  = "prefer"
	SameZoneRequire = "require"
	SameZoneNo      = "no"

	EgressAuto     = "auto"
	EgressNAT      = "nat"
	EgressPublicIP = "public_ip"
	EgressNone     = "none"

	FabricBest     = "best"
	FabricRequired = "required"
	FabricNone     = "none"

	// SSHFromCaller in Network.SSHFrom stands for the address the caller is seen from.
	SSHFromCaller = "caller"

	SupervisorHead   = "head"
	SupervisorClient = "client"

	MarketSpot           = "spot"
	MarketOnDemand       = "on_demand"
	MarketSpotOrOnDemand = "spot_or_on_demand"

	RunRanks    = "ranks"
	RunTorchrun = "torchrun"
	RunHorovod  = "horovod"
	RunRay      = "ray"
	RunMPI      = "mpi"

	ElasticityLauncher = "launcher"
	ElasticityTorchrun = "torchrun"

	OnChangeRestart = "restart"
	OnChangeNotify  = "notify"

	LoginNone = "none"
	LoginECR  = "ecr"
	LoginGAR  = "gar"
	LoginACR  = "acr"

	// CheckpointToHead in Checkpoint.To keeps checkpoints on the head's disk.
	CheckpointToHead = "head"

	OutputsRank0 = "rank0"
	OutputsAll   = "all"
)

// Job is one job file with every default applied: consumers never default again.
//
// It survives encoding/json unchanged, except Ranges and Files, because it travels to the head. It holds the names of
// secrets, never a value. Paths of the caller's disk (File, Workdir.Source, Outputs.To when it is a folder) are
// absolute. A zero duration, count or amount means what the field's comment says, usually "off". Durations are
// nanoseconds in JSON.
type Job struct {
	Name string            `json:"name"`
	File string            `json:"file"` // the job file itself; launcher.lock lies beside it
	Tags map[string]string `json:"tags,omitempty"`

	Providers  []Provider        `json:"providers"` // in the order of the file, which "listed" follows
	Placement  Placement         `json:"placement"`
	Network    Network           `json:"network"`
	Head       Head              `json:"head"`
	Workers    Workers           `json:"workers"`
	Workdir    *Workdir          `json:"workdir,omitempty"` // nil: nothing is sent
	Mounts     []Mount           `json:"mounts,omitempty"`
	Setup      string            `json:"setup,omitempty"` // text of a bash script; empty: none
	Env        map[string]string `json:"env,omitempty"`
	Secrets    []string          `json:"secrets,omitempty"` // names of the caller's environment variables
	Run        Run               `json:"run"`
	Elastic    Elastic           `json:"elastic"`
	Preemption Preemption        `json:"preemption"`
	Checkpoint *Checkpoint       `json:"checkpoint,omitempty"` // nil: off
	Preflight  *Preflight        `json:"preflight,omitempty"`  // nil: off
	Container  *Container        `json:"container,omitempty"`  // nil: ranks run on the host
	Outputs    *Outputs          `json:"outputs,omitempty"`    // nil: nothing is fetched
	Limits     Limits            `json:"limits"`

	// Ranges holds where each attribute and block of the file was written. It stays on the caller's side.
	Ranges Ranges `json:"-"`
	// Files are the provider attributes of type "file" by their path in Ranges, for CheckFiles.
	Files map[string]string `json:"-"`
}

// Ranges maps the path of what the file says to the place where it says so: "run", "run.hang_timeout",
// "provider.aws", "provider.aws.regions", "provider.aws.workers.identity", "mount./data.source",
// "env.EPOCHS", "secrets.WANDB_API_KEY". The job block is "". What was left out has no entry.
type Ranges map[string]hcl.Range

// Provider is one provider block: where candidates may come from.
type Provider struct {
	Name        string   `json:"name"`
	Regions     []string `json:"regions,omitempty"` // empty: the provider's own choice
	PriceFactor float64  `json:"price_factor"`      // list price × this is what counts; > 0

	Subnet             string             `json:"subnet,omitempty"`
	USDPerHour         map[string]float64 `json:"usd_per_hour,omitempty"` // by instance type or market; "*" for a bare number
	SelfDeleteIdentity string             `json:"self_delete_identity,omitempty"`

	// Config is a JSON object of the attributes this package has no field for, plus those that the provider's
	// schema names too. It goes to the provider as it is.
	Config Config `json:"config"`

	Head    HeadOverride    `json:"head,omitzero"`    // wins over Job.Head; see Job.HeadFor
	Workers WorkersOverride `json:"workers,omitzero"` // wins over Job.Workers; see Job.WorkersFor
	Mounts  []Mount         `json:"mounts,omitempty"` // wins by path over Job.Mounts; see Job.MountsFor
}

// HeadOverride is what a provider block says about the head; empty fields say nothing.
type HeadOverride struct {
	InstanceType string `json:"instance_type,omitempty"`
	Identity     string `json:"identity,omitempty"`
}

// WorkersOverride is what a provider block says about the workers; empty fields say nothing.
type WorkersOverride struct {
	InstanceTypes []string `json:"instance_types,omitempty"`
	VMImage       string   `json:"vm_image,omitempty"`
	Identity      string   `json:"identity,omitempty"`
}

// Placement says which offer is taken.
type Placement struct {
	Prefer        string        `json:"prefer"`                   // PreferCheapest, PreferListed
	SameZone      string        `json:"same_zone"`                // SameZonePrefer, SameZoneRequire, SameZoneNo
	RelocateAfter time.Duration `json:"relocate_after,omitempty"` // 0: never
}

// Network says who reaches whom.
type Network struct {
	Egress  string   `json:"egress"`   // EgressAuto, EgressNAT, EgressPublicIP, EgressNone
	SSHFrom []string `json:"ssh_from"` // CIDRs in canonical form and SSHFromCaller; never empty
	Fabric  string   `json:"fabric"`   // FabricBest, FabricRequired, FabricNone
}

// Head is the machine that supervises.
type Head struct {
	CPUs         int    `json:"cpus,omitempty"`          // at least so many; 0 where InstanceType is set
	InstanceType string `json:"instance_type,omitempty"` // empty: the cheapest with CPUs
	DiskGiB      int    `json:"disk_gib"`
	Supervisor   string `json:"supervisor"`         // SupervisorHead, SupervisorClient
	Identity     string `json:"identity,omitempty"` // empty: none
}

// Workers is the group of machines that train. At most one of GPU, InstanceTypes and (CPUs, MemoryGiB) is set;
// with none of them any machine will do.
type Workers struct {
	Min int `json:"min"` // ≥ 1
	Max int `json:"max"` // ≥ Min
	// Fixed: the file said count. The world is held at Min = Max until a lost worker is replaced.
	Fixed bool `json:"fixed,omitempty"`

	GPU           []GPU    `json:"gpu,omitempty"`            // any one of them
	InstanceTypes []string `json:"instance_types,omitempty"` // any one of them
	CPUs          int      `json:"cpus,omitempty"`
	MemoryGiB     int      `json:"memory_gib,omitempty"`
	Market        string   `json:"market"` // MarketSpot, MarketOnDemand, MarketSpotOrOnDemand
	DiskGiB       int      `json:"disk_gib"`
	VMImage       string   `json:"vm_image,omitempty"` // empty: the provider's image fit for the GPU
	Identity      string   `json:"identity,omitempty"`
	Spares        int      `json:"spares,omitempty"` // after Max: extra nodes booted and idle
}

// GPU is one "MODEL:COUNT" of workers.gpu.
type GPU struct {
	Model string `json:"model"` // as written; catalogues compare without regard to case
	Count int    `json:"count"` // per node, ≥ 1
}

// Workdir is the caller's folder that travels to every worker.
type Workdir struct {
	Source  string   `json:"source"`            // absolute path on the caller's disk
	Exclude []string `json:"exclude,omitempty"` // patterns of .gitignore
}

// Mount is a shared file system or bucket at an absolute path of every worker.
type Mount struct {
	Path   string `json:"path"`
	Type   string `json:"type"` // nfs, efs, lustre, s3, gcs, azblob
	Source string `json:"source"`
}

// Run is what the workers execute.
type Run struct {
	Type         string        `json:"type"` // RunRanks, RunTorchrun, RunHorovod, RunRay, RunMPI
	Command      string        `json:"command"`
	ProcsPerNode int           `json:"procs_per_node,omitempty"` // 0: one per GPU of the node, and 1 where it has none
	Elasticity   string        `json:"elasticity"`               // ElasticityLauncher, ElasticityTorchrun
	HangTimeout  time.Duration `json:"hang_timeout,omitempty"`   // 0: off
}

// Elastic says when the world is re-formed.
type Elastic struct {
	StartWait   time.Duration `json:"start_wait"`
	LostAfter   time.Duration `json:"lost_after"` // the member lease
	GrowEvery   time.Duration `json:"grow_every"`
	BelowMin    time.Duration `json:"below_min"`
	OnChange    string        `json:"on_change"` // OnChangeRestart, OnChangeNotify
	MaxRestarts int           `json:"max_restarts"`
}

// Preemption says what the ranks hear before their generation is ended on purpose.
type Preemption struct {
	Signal string        `json:"signal,omitempty"` // name as in "SIGUSR1"; empty: none, and Grace is skipped
	Grace  time.Duration `json:"grace"`
}

// Checkpoint says where checkpoints appear on a node and where copies go.
type Checkpoint struct {
	Path string `json:"path"` // relative to the workdir on the node, or absolute there
	To   string `json:"to"`   // CheckpointToHead, or an s3://, gs:// or azblob:// URL
	Keep int    `json:"keep"` // ≥ 1
}

// Preflight is what the nodes must show before the first generation.
type Preflight struct {
	BandwidthBits int64         `json:"bandwidth_bits,omitempty"` // bits per second between two nodes; 0: not measured
	Latency       time.Duration `json:"latency,omitempty"`        // round trip; 0: not measured
	GPU           bool          `json:"gpu,omitempty"`
}

// Container is the image the ranks run in.
type Container struct {
	Image string `json:"image"`
	Login string `json:"login"` // LoginNone, LoginECR, LoginGAR, LoginACR
}

// Outputs is what comes back.
type Outputs struct {
	From  string `json:"from"`  // relative to the workdir on the node, or absolute there
	To    string `json:"to"`    // absolute folder of the caller, or an s3://, gs:// or azblob:// URL
	Nodes string `json:"nodes"` // OutputsRank0, OutputsAll
}

// Limits ends a run that takes too much.
type Limits struct {
	BudgetUSD     float64       `json:"budget_usd,omitempty"`       // 0: none
	MaxUSDPerHour float64       `json:"max_usd_per_hour,omitempty"` // 0: none
	MaxDuration   time.Duration `json:"max_duration"`
	StartTimeout  time.Duration `json:"start_timeout"` // also the boot lease
	NodeLease     time.Duration `json:"node_lease"`
	HoldResults   time.Duration `json:"hold_results"` // 0: not held
	UnboundedLeak bool          `json:"unbounded_leak,omitempty"`
}

// Config is a JSON object in one canonical spelling, so that two equal blocks are equal bytes also after a
// journey through encoding/json. Nil means {}.
type Config []byte

// MarshalJSON returns the object itself.
func (c Config) MarshalJSON() ([]byte, error) {
	if len(c) == 0 {
		return []byte("{}"), nil
	}
	return c, nil
}

// UnmarshalJSON keeps a compact copy of data.
func (c *Config) UnmarshalJSON(data []byte) error {
	compact, err := json.Marshal(json.RawMessage(data))
	if err != nil {
		return err
	}
	*c = compact
	return nil
}

// Bucket reports whether a destination (Checkpoint.To, Outputs.To) is a bucket's URL and not a place on a disk.
func Bucket(to string) bool {
	_, _, ok := cutScheme(to)
	return ok
}

// HeadFor is the head as the named provider shall rent it.
func (j *Job) HeadFor(provider string) Head {
	h := j.Head
	for _, p := range j.Providers {
		if p.Name != provider {
			continue
		}
		if p.Head.InstanceType != "" {
			h.InstanceType, h.CPUs = p.Head.InstanceType, 0
		}
		if p.Head.Identity != "" {
			h.Identity = p.Head.Identity
		}
	}
	return h
}

// WorkersFor is the worker group as the named provider shall rent it.
func (j *Job) WorkersFor(provider string) Workers {
	w := j.Workers
	for _, p := range j.Providers {
		if p.Name != provider {
			continue
		}
		if len(p.Workers.InstanceTypes) > 0 {
			w.InstanceTypes, w.GPU, w.CPUs, w.MemoryGiB = p.Workers.InstanceTypes, nil, 0, 0
		}
		if p.Workers.VMImage != "" {
			w.VMImage = p.Workers.VMImage
		}
		if p.Workers.Identity != "" {
			w.Identity = p.Workers.Identity
		}
	}
	return w
}

// MountsFor is what nodes of the named provider mount: the provider's own, then those of the job at other paths.
func (j *Job) MountsFor(provider string) []Mount {
	var mounts []Mount
	taken := map[string]bool{}
	for _, p := range j.Providers {
		if p.Name != provider {
			continue
		}
		for _, m := range p.Mounts {
			taken[m.Path] = true
			mounts = append(mounts, m)
		}
	}
	for _, m := range j.Mounts {
		if !taken[m.Path] {
			mounts = append(mounts, m)
		}
	}
	return mounts
}
