// Package providers defines what launcher asks of a place that rents machines, and the vocabulary both sides share.
//
// A provider is dumb: it translates one request into the calls of one cloud and reports what happened with a [Code].
// Retrying, rate limiting and logging are decorators ([Retry], [Limit], [Log]); deciding what to rent, when to replace
// and what to delete is the supervisor's. Every value here is plain data, because it crosses a process boundary when the
// provider is a plugin.
package providers

import (
	"context"
	"encoding/json"
	"time"
)

// Provider rents machines. All methods may be called concurrently. A method returns promptly when its context ends; what
// a cancelled call leaves behind is said at each method. Errors are or wrap [*Error]; anything else counts as [Internal].
type Provider interface {
	// Info describes the provider. It needs no credentials and no network.
	Info(ctx context.Context) (Info, error)

	// Offers lists what would satisfy the request, in no particular order, rejected candidates included with the reason.
	// No effect. Codes: Auth, Invalid, Throttled, Unavailable, Internal.
	Offers(ctx context.Context, req OffersRequest) ([]Offer, error)

	// Create rents up to req.Count machines from any of req.Offers, in their order of preference, all in one region.
	//
	// It either returns at least req.Min machines, or leaves none behind and returns an *Error whose Offers field carries a code per
	// offer. A result with Min ≤ n < Count machines is not an error; Result.Refused then says why the rest is missing.
	// Machines carry req.Tags from birth. The call is idempotent by req.Token: a repetition, also by another process and
	// after a lost reply, returns the same machines in the same order (those that still exist) and creates nothing new; it never tops up.
	// A cancelled call leaves nothing untagged; what it leaves is found by List and by repeating the call.
	// A machine may not have an address yet; List shows it later.
	// Codes: Capacity, Quota, Throttled, Auth, Invalid, Unavailable, Internal.
	Create(ctx context.Context, req CreateRequest) (CreateResult, error)

	// List returns every resource of every kind and state that matches the filter, in all regions the filter names or, where it names
	// none, all the provider block uses. A partial listing is an error, never a shorter list. Machines that ended stay
	// listed as Terminated for as long as the cloud shows them. No effect.
	// Codes: Throttled, Auth, Invalid, Unavailable, Internal.
	List(ctx context.Context, filter Filter) ([]Resource, error)

	// Delete orders the deletion of the given resources, which must carry req.Run's tag: others are refused with Invalid and nothing is deleted.
	// Resources that are gone already are not an error. It returns those that could not be deleted yet. The order being accepted proves nothing: only List does.
	// Codes: Throttled, Auth, Invalid, Unavailable, Internal.
	Delete(ctx context.Context, req DeleteRequest) ([]Resource, error)

	// Update changes what a living run's resources say of it. Unset fields stay. Idempotent.
	// Codes: NotFound, Throttled, Auth, Invalid, Unavailable, Internal.
	Update(ctx context.Context, req UpdateRequest) error
}

// Preempter is implemented by providers whose Info names [CanPreempt]: a drill that preempts one machine as the cloud would.
type Preempter interface {
	// Preempt announces the preemption of the machine and carries it out after notice (0: without one).
	Preempt(ctx context.Context, req PreemptRequest) error
}

// Checker is implemented by providers whose Info names [CanCheck].
type Checker interface {
	// Check says who the caller is and what is missing before anything is spent. It never creates.
	Check(ctx context.Context, config json.RawMessage) (Identity, error)
}

// Capability names an optional service of a provider. They cross the plugin hop as data, because a stub satisfies every interface.
type Capability string

// The optional services.
const (
	CanCheck   Capability = "check"
	CanPreempt Capability = "preempt"
	CanBlobs   Capability = "blobs"
)

// Info describes a provider.
type Info struct {
	Name         string       `json:"name"`
	Version      string       `json:"version"`
	Capabilities []Capability `json:"capabilities,omitempty"`
	// Schema describes the attributes of the provider's block in a job file, beyond those that every provider has.
	Schema []Attribute `json:"schema,omitempty"`
	// NoticeSource names the watcher that the agent runs on this provider's machines: "file" (a JSON file in the machine's own folder), "none", or a metadata service's name.
	NoticeSource string `json:"notice_source"`
	// DefaultUser is the SSH user where an image does not say otherwise.
	DefaultUser string `json:"default_user"`
	// ConsistencyWindow is how long after a change List may still show the old state. "Gone" needs two listings this far apart.
	ConsistencyWindow time.Duration `json:"consistency_window"`
	// BillingInterval is the granularity of billing.
	BillingInterval time.Duration `json:"billing_interval"`
	// LeakBound says how long a machine can outlive all its controllers, beyond the node lease; negative: unbounded.
	LeakBound time.Duration `json:"leak_bound"`
	// LeakBoundDoc says in one line who ends the machine then.
	LeakBoundDoc string `json:"leak_bound_doc"`
	// CredentialEnv names the environment variables its credentials come from; a plugin sees these and no others.
	CredentialEnv []string `json:"credential_env,omitempty"`
	// RotatesHostKeys: machines are born with our birth host key, which is replaced at first contact. False where a host keeps a key of its own (ssh).
	RotatesHostKeys bool `json:"rotates_host_keys"`
	// SeparateHosts is false where machines share one loopback interface (local): nodes are then told 127.0.0.1 as cluster address.
	SeparateHosts bool `json:"separate_hosts"`
	// FixedHosts: machines are hosts that stay when they are given back (ssh). Who may reach their port 22 is their own firewall's matter, so that
	// Ingress means nothing to the provider.
	FixedHosts bool `json:"fixed_hosts,omitempty"`
}

// Has tells whether the provider offers the optional service.
func (i Info) Has(c Capability) bool {
	for _, have := range i.Capabilities {
		if have == c {
			return true
		}
	}
	return false
}

// Attribute is one attribute of a provider's block.
type Attribute struct {
	Name string `json:"name"`
	// Type is a type expression of HCL: string, number, bool, list(string), map(number) …; "path" is a string that is made absolute from the job file's folder,
	// "file" likewise, of a file that must be there. Where the run is handed over to a head, a file's content goes there in place of its path.
	Type     string `json:"type"`
	Required bool   `json:"required,omitempty"`
	Default  string `json:"default,omitempty"`
	Doc      string `json:"doc"`
}

// Role is what a node is for.
type Role string

// The two roles.
const (
	Head   Role = "head"
	Worker Role = "worker"
)

// Market is how a machine is bought.
type Market string

// The two markets of an offer.
const (
	Spot     Market = "spot"
	OnDemand Market = "on_demand"
)

// GPU asks for, or describes, the GPUs of one machine.
type GPU struct {
	Model string `json:"model"`
	Count int    `json:"count"`
}

// OffersRequest asks what machines are on offer for one role.
type OffersRequest struct {
	// Config is the provider's block as JSON: an object of the attributes in Info.Schema.
	Config  json.RawMessage `json:"config,omitempty"`
	Role    Role            `json:"role"`
	Regions []string        `json:"regions,omitempty"`
	Markets []Market        `json:"markets"`
	// GPUs, InstanceTypes: any of them will do. Without either, at least CPUs and MemoryGiB.
	GPUs          []GPU    `json:"gpus,omitempty"`
	InstanceTypes []string `json:"instance_types,omitempty"`
	CPUs          int      `json:"cpus,omitempty"`
	MemoryGiB     float64  `json:"memory_gib,omitempty"`
	DiskGiB       int      `json:"disk_gib,omitempty"`
}

// Offer is one (instance type, zone, market, price) that would satisfy a request.
type Offer struct {
	Provider     string  `json:"provider"`
	InstanceType string  `json:"instance_type"`
	Region       string  `json:"region"`
	Zone         string  `json:"zone"`
	Market       Market  `json:"market"`
	CPUs         int     `json:"cpus"`
	MemoryGiB    float64 `json:"memory_gib"`
	GPU          GPU     `json:"gpu"`
	// USDPerHour is the list price of one machine; nil: not known.
	USDPerHour  *float64  `json:"usd_per_hour"`
	PriceDate   time.Time `json:"price_date,omitzero"`
	PriceSource string    `json:"price_source,omitempty"`
	// Rejected says why this candidate cannot be used; empty: it can.
	Rejected string `json:"rejected,omitempty"`
}

// CreateRequest asks for machines.
type CreateRequest struct {
	Config json.RawMessage `json:"config,omitempty"`
	// Token makes the call idempotent. It is unique over runs and attempts and at most 64 bytes of [a-z0-9-].
	Token string `json:"token"`
	Run   string `json:"run"`
	Role  Role   `json:"role"`
	// Offers are the pools to try, best first, all in one region.
	Offers []Offer `json:"offers"`
	Count  int     `json:"count"`
	Min    int     `json:"min"`
	// Tags are set in the create call itself. They always hold TagRun, TagOwner and TagRole.
	Tags map[string]string `json:"tags"`
	// TTL is the boot lease: a machine that nobody has reached by then ends itself.
	TTL time.Duration `json:"ttl"`
	// AuthorizedKeys are the SSH public keys (authorized_keys lines) that may log in.
	AuthorizedKeys []string `json:"authorized_keys"`
	// BirthHostKey is the private host key (OpenSSH PEM) that the machine serves SSH with until it is rekeyed. It is
	// the one secret in user data and is worth nothing after first contact.
	BirthHostKey []byte `json:"birth_host_key"`
	// Ingress lists the CIDRs that may reach port 22 of these machines from outside the run; empty: nobody outside the run.
	Ingress  []string `json:"ingress,omitempty"`
	DiskGiB  int      `json:"disk_gib,omitempty"`
	Image    string   `json:"image,omitempty"`
	Identity string   `json:"identity,omitempty"`
	Egress   string   `json:"egress,omitempty"`
}

// CreateResult is what Create rented.
type CreateResult struct {
	Machines []Machine `json:"machines"`
	// Refused says, per offer that was tried and gave less than asked, why.
	Refused []Refusal `json:"refused,omitempty"`
}

// Refusal is why one offer gave nothing, or less than asked.
type Refusal struct {
	Offer   Offer  `json:"offer"`
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

// Machine is one rented machine.
type Machine struct {
	ID    string `json:"id"`
	Token string `json:"token"`
	Offer Offer  `json:"offer"`
	// Address is host:port of its SSH server as the outside reaches it, ClusterAddress host:port as the other machines of the run do. Empty: not known yet.
	Address        string `json:"address,omitempty"`
	ClusterAddress string `json:"cluster_address,omitempty"`
	User           string `json:"user"`
	// HostKeys are the machine's own host keys (authorized_keys lines), where it was not born with the birth host key of the request.
	HostKeys  []string  `json:"host_keys,omitempty"`
	Image     string    `json:"image,omitempty"`
	CreatedAt time.Time `json:"created_at"`
}

// ResourceState is where a resource is in its life.
type ResourceState string

// The states. Pending, Running and Deleting resources bill; Stopped ones may; Terminated ones do not.
const (
	Pending    ResourceState = "pending"
	Running    ResourceState = "running"
	Stopped    ResourceState = "stopped"
	Deleting   ResourceState = "deleting"
	Terminated ResourceState = "terminated"
)

// Resource kinds that every provider shares; others are the cloud's own words.
const (
	KindMachine = "machine"
)

// Resource is anything a provider made and tagged.
type Resource struct {
	ID    string            `json:"id"`
	Kind  string            `json:"kind"`
	State ResourceState     `json:"state"`
	Tags  map[string]string `json:"tags"`
	// Region is where it lives.
	Region    string    `json:"region"`
	CreatedAt time.Time `json:"created_at"`
	// Machine is set for Kind machine.
	Machine *Machine `json:"machine,omitempty"`
	// Reason says, for a machine that ended, why, as far as the cloud tells ("preempted", "lease over", "deleted").
	Reason string `json:"reason,omitempty"`
}

// Alive tells whether the resource can still bill.
func (r Resource) Alive() bool { return r.State != Terminated }

// Filter selects resources by tag. Empty fields match all; an all-empty Run and Owner matches whatever carries TagRun.
type Filter struct {
	Config  json.RawMessage `json:"config,omitempty"`
	Run     string          `json:"run,omitempty"`
	Owner   string          `json:"owner,omitempty"`
	Regions []string        `json:"regions,omitempty"`
}

// DeleteRequest names resources of one run.
type DeleteRequest struct {
	Config    json.RawMessage `json:"config,omitempty"`
	Run       string          `json:"run"`
	Resources []Resource      `json:"resources"`
}

// UpdateRequest changes tags and ingress of a run's head.
type UpdateRequest struct {
	Config json.RawMessage `json:"config,omitempty"`
	Run    string          `json:"run"`
	// Machine is the id of the machine whose tags change.
	Machine string `json:"machine"`
	// Tags are merged into the machine's.
	Tags map[string]string `json:"tags,omitempty"`
	// Ingress, when not nil, replaces the CIDRs that may reach port 22.
	Ingress []string `json:"ingress,omitzero"`
}

// PreemptRequest asks for a drill.
type PreemptRequest struct {
	Config  json.RawMessage `json:"config,omitempty"`
	Run     string          `json:"run"`
	Machine string          `json:"machine"`
	Notice  time.Duration   `json:"notice"`
}

// Identity is who the provider sees as the caller.
type Identity struct {
	// Owner goes into TagOwner.
	Owner string `json:"owner"`
	// Missing lists rights the caller lacks, as the cloud names them.
	Missing []string `json:"missing,omitempty"`
	// Notes are lines for people: quota and the like.
	Notes []string `json:"notes,omitempty"`
}

// The tags on every resource, from birth.
const (
	TagRun     = "launcher-run"
	TagOwner   = "launcher-owner"
	TagRole    = "launcher-role"
	TagExpires = "launcher-expires"  // head: RFC 3339; renewed every third of a node lease
	TagAddress = "launcher-address"  // head: host:port of its SSH server
	TagHostKey = "launcher-host-key" // head: SHA256 fingerprint of its pinned host key
	TagNode    = "launcher-node"     // the node's name, where one machine was asked for
)
