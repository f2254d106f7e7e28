package jobspec

import "time"

// kind is how the value of an attribute is read; its text is what documentation calls the type.
type kind string

const (
	kindString    kind = "string"
	kindCount     kind = "whole number"
	kindNumber    kind = "number"
	kindBool      kind = "bool"
	kindDuration  kind = "duration"
	kindList      kind = "list(string)"
	kindOneOrList kind = "string or list(string)"
	kindMap       kind = "map(string)"
	kindPrices    kind = "number or map(number)"
	kindProcs     kind = `number or "gpu"`
	kindBandwidth kind = "bandwidth"
	kindAny       kind = "any"
	kindType      kind = "type" // the type of a variable: read as an expression, never evaluated
)

// attribute is one row of the table.
type attribute struct {
	name     string
	kind     kind
	def      string   // the default as HCL; empty: none
	unset    string   // what being left out means, where there is no default
	required bool     // and not null
	values   []string // the words allowed, if only some are
	min      float64  // counts and durations (seconds): at least so much; numbers: more than so much
	doc      string
}

// block is one kind of block. Its name, label and rows are looked up while a file is read.
type blockSpec struct {
	name   string
	label  string // what the label is, for messages; empty: takes none
	labels []string
	many   bool
	must   bool
	attrs  []attribute
	blocks []blockSpec
	doc    string
}

func words(name, def, doc string, values ...string) attribute {
	return attribute{name: name, kind: kindString, def: def, values: values, doc: doc}
}

func duration(name, def string, min time.Duration, doc string) attribute {
	return attribute{name: name, kind: kindDuration, def: def, min: min.Seconds(), doc: doc}
}

func fileSpec() blockSpec {
	return blockSpec{blocks: []blockSpec{
		{
			name: "variable", label: "its name", many: true, doc: "a value the caller may set with --var NAME=VALUE and the job reads as var.NAME",
			attrs: []attribute{
				{name: "default", kind: kindAny, unset: "the caller must set it", doc: "the value without --var"},
				{name: "type", kind: kindType, unset: "the default's type, else string", doc: "string, number, bool, list(string), …"},
				{name: "description", kind: kindString, unset: "none", doc: "for people"},
			},
		},
		jobBlock(),
	}}
}

func jobBlock() blockSpec {
	return blockSpec{
		name: "job", label: "its name", must: true, doc: "what to run",
		attrs: []attribute{
			{name: "tags", kind: kindMap, unset: "none", doc: "put on every cloud resource beside the launcher's own"},
			{name: "setup", kind: kindString, unset: "none", doc: "a script for bash -euo pipefail in the workdir on each worker; failure is final after one try on another node"},
			{name: "env", kind: kindMap, unset: "none", doc: "environment of setup and of every rank"},
			{name: "secrets", kind: kindList, unset: "none", doc: "names of variables taken from the caller's environment; never in journal, argv, user data or logs"},
		},
		blocks: []blockSpec{
			providerBlock(), placementBlock(), networkBlock(), headBlock(), workersBlock(), workdirBlock(), mountBlock(),
			runBlock(), elasticBlock(), preemptionBlock(), checkpointBlock(), preflightBlock(), containerBlock(),
			outputsBlock(), limitsBlock(),
		},
	}
}

func providerBlock() blockSpec {
	return blockSpec{
		name: "provider", label: "the provider's name", many: true, must: true,
		doc: "a provider that may rent the machines; several: candidates from all, one run lives in one region of one of them",
		attrs: []attribute{
			{name: "regions", kind: kindList, unset: "the provider's own choice", doc: "regions to look for offers in"},
			{name: "price_factor", kind: kindNumber, def: "1", doc: "credits or discounts, for ranking and budget"},
			{name: "subnet", kind: kindString, unset: "the default one", doc: "existing subnet for all nodes, as the provider names it"},
			{name: "usd_per_hour", kind: kindPrices, unset: "list prices", doc: "your own price: of any machine, or by instance type or market"},
			{name: "self_delete_identity", kind: kindString, unset: "none", doc: "existing identity with which a node may delete itself, and nothing else"},
		},
		blocks: []blockSpec{
			{name: "head", doc: "wins over the job's head block with this provider", attrs: []attribute{
				{name: "instance_type", kind: kindString, unset: "the job's", doc: "the provider's own name"},
				{name: "identity", kind: kindString, unset: "the job's", doc: "existing instance profile, service account or managed identity"},
			}},
			{name: "workers", doc: "wins over the job's workers block with this provider", attrs: []attribute{
				{name: "instance_type", kind: kindOneOrList, unset: "the job's", doc: "the provider's own name; a list: any of them"},
				{name: "vm_image", kind: kindString, unset: "the job's", doc: "the provider's own id"},
				{name: "identity", kind: kindString, unset: "the job's", doc: "existing identity for buckets and registries"},
			}},
			mountBlock(),
		},
	}
}

func placementBlock() blockSpec {
	return blockSpec{name: "placement", doc: "which offer is taken", attrs: []attribute{
		words("prefer", `"cheapest"`, `"listed": exhaust the first provider and region first`, PreferCheapest, PreferListed),
		words("same_zone", `"prefer"`, `first all in one zone; replacements there first, elsewhere after two failures or below min`,
			SameZonePrefer, SameZoneRequire, SameZoneNo),
		{name: "relocate_after", kind: kindDuration, unset: "never", min: 1, doc: "short of workers for so long and the region dry: move the whole world"},
	}}
}

func networkBlock() blockSpec {
	return blockSpec{name: "network", doc: "who reaches whom", attrs: []attribute{
		words("egress", `"auto"`, `"public_ip" opens nothing inbound; auto: NAT if the subnet has it, else public_ip`,
			EgressAuto, EgressNAT, EgressPublicIP, EgressNone),
		{name: "ssh_from", kind: kindList, def: `["caller"]`, doc: "who may reach the head's port 22 (keys only, host key pinned): the caller, CIDRs"},
		words("fabric", `"best"`, `EFA, InfiniBand, GPUDirect: "required" fails if not really used`, FabricBest, FabricRequired, FabricNone),
	}}
}

func headBlock() blockSpec {
	return blockSpec{name: "head", doc: "the on-demand machine that supervises", attrs: []attribute{
		{name: "cpus", kind: kindCount, def: "2", min: 1, doc: "at least so many; or instance_type"},
		{name: "instance_type", kind: kindString, unset: "the cheapest with cpus", doc: "the provider's own name"},
		{name: "disk_gib", kind: kindCount, def: "30", min: 1, doc: "its disk"},
		words("supervisor", `"head"`, `"client": the caller stays, and no cloud rights leave it`, SupervisorHead, SupervisorClient),
		{name: "identity", kind: kindString, unset: `none; clouds then need supervisor = "client"`, doc: "existing instance profile, service account or managed identity"},
	}}
}

func workersBlock() blockSpec {
	return blockSpec{name: "workers", must: true, doc: "the machines that train", attrs: []attribute{
		{name: "count", kind: kindCount, unset: "min and max", min: 1, doc: "a fixed world, held until replaced"},
		{name: "min", kind: kindCount, unset: "count", min: 1, doc: "an elastic world: the fewest to train with"},
		{name: "max", kind: kindCount, unset: "count", min: 1, doc: "an elastic world: the most to rent"},
		{name: "gpu", kind: kindOneOrList, unset: "no GPUs asked for", doc: `"MODEL:COUNT" per node; a list: any of them, ranked by price`},
		{name: "instance_type", kind: kindOneOrList, unset: "any that fits", doc: "the provider's own name; a list: any of them"},
		{name: "cpus", kind: kindCount, unset: "any", min: 1, doc: "at least so many per node"},
		{name: "memory_gib", kind: kindCount, unset: "any", min: 1, doc: "at least so much per node"},
		words("market", `"spot"`, "how they are rented", MarketSpot, MarketOnDemand, MarketSpotOrOnDemand),
		{name: "disk_gib", kind: kindCount, def: "100", min: 1, doc: "the disk of each"},
		{name: "vm_image", kind: kindString, unset: "the provider's image fit for that GPU", doc: "the provider's own id"},
		{name: "identity", kind: kindString, unset: "none", doc: "existing identity for buckets and registries; never made or widened by the launcher"},
		{name: "spares", kind: kindCount, def: "0", doc: "after max: extra nodes booted and idle, first in line"},
	}}
}

func workdirBlock() blockSpec {
	return blockSpec{name: "workdir", doc: "a folder of the caller that travels to every worker; left out: no workdir", attrs: []attribute{
		{name: "source", kind: kindString, def: `"."`, doc: ".gitignore and .launcherignore are honoured; .git, sockets and devices never travel"},
		{name: "exclude", kind: kindList, unset: "nothing more", doc: "patterns as in .gitignore"},
	}}
}

func mountBlock() blockSpec {
	return blockSpec{name: "mount", label: "the path on the worker", many: true, doc: "a shared file system or bucket on every worker", attrs: []attribute{
		{name: "type", kind: kindString, required: true, values: []string{"nfs", "efs", "lustre", "s3", "gcs", "azblob"}, doc: "what is mounted"},
		{name: "source", kind: kindString, required: true, doc: "HOST:/PATH for nfs, the file system's id or name for efs and lustre, s3://, gs:// or azblob:// for buckets"},
	}}
}

func runBlock() blockSpec {
	return blockSpec{
		name: "run", label: "its type", labels: []string{RunRanks, RunTorchrun, RunHorovod, RunRay, RunMPI}, must: true,
		doc: `what the workers execute: "ranks" starts procs_per_node processes with torchrun's variables set, "torchrun" your own torchrun line`,
		attrs: []attribute{
			{name: "command", kind: kindString, required: true, doc: "a line for bash"},
			{name: "procs_per_node", kind: kindProcs, unset: `"gpu" where workers have GPUs, else 1`, min: 1, doc: "processes per node"},
			words("elasticity", `"launcher"`, `torchrun only: "torchrun" hands min:max to TorchElastic`, ElasticityLauncher, ElasticityTorchrun),
			{name: "hang_timeout", kind: kindDuration, unset: "off", min: 1, doc: "no output, progress, CPU or GPU use on any rank for so long: the run hangs"},
		},
	}
}

func elasticBlock() blockSpec {
	return blockSpec{name: "elastic", doc: "when the world is re-formed", attrs: []attribute{
		duration("start_wait", `"60s"`, 0, "first generation: all of max, or at least min and this long since min was reached"),
		duration("lost_after", `"10s"`, time.Second, "the member lease: silence after which a worker's ranks are given away"),
		duration("grow_every", `"10m"`, 0, "growth re-forms at most so often, and waits for the next checkpoint"),
		duration("below_min", `"30m"`, time.Second, "fewer than min for so long: give up"),
		words("on_change", `"restart"`, `processes restart from their checkpoint; "notify": they are told`, OnChangeRestart, OnChangeNotify),
		{name: "max_restarts", kind: kindCount, def: "3", doc: "of the job's own failures; preemptions and lost nodes do not count"},
	}}
}

func preemptionBlock() blockSpec {
	return blockSpec{name: "preemption", doc: "what ranks hear before their generation is ended on purpose", attrs: []attribute{
		{name: "signal", kind: kindString, unset: "none", values: signals(), doc: "to every rank process of the generation, never to torchrun itself"},
		duration("grace", `"20s"`, 0, "from the signal to SIGTERM; without a signal it is skipped"),
	}}
}

// signals are those with one meaning on Linux and darwin that a process can catch, by name.
func signals() []string {
	return []string{"SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGCONT", "SIGURG", "SIGWINCH"}
}

func checkpointBlock() blockSpec {
	return blockSpec{name: "checkpoint", doc: "copies checkpoints off the node, and onto every node before a generation starts; left out: off", attrs: []attribute{
		{name: "path", kind: kindString, required: true, doc: "a file renamed into place here, or announced by POST /v1/progress, is a checkpoint"},
		{name: "to", kind: kindString, def: `"head"`, doc: "or s3://, gs://, azblob://"},
		{name: "keep", kind: kindCount, def: "2", min: 1, doc: "so many of the newest"},
	}}
}

func preflightBlock() blockSpec {
	return blockSpec{name: "preflight", doc: "tests before the first generation; the node to blame is swapped; left out: off", attrs: []attribute{
		{name: "bandwidth", kind: kindBandwidth, unset: "not measured", doc: "at least so much between two nodes"},
		{name: "latency", kind: kindDuration, unset: "not measured", min: 1e-9, doc: "at most so long a round trip"},
		{name: "gpu", kind: kindBool, def: "false", doc: "every GPU computes and reports no errors"},
	}}
}

func containerBlock() blockSpec {
	return blockSpec{name: "container", doc: "the ranks run in it: host network, GPUs, /dev/shm sized; the agent stays on the host; left out: off", attrs: []attribute{
		{name: "image", kind: kindString, required: true, doc: "as docker pull takes it"},
		words("login", `"none"`, "registry to log in to with the workers' identity", LoginNone, LoginECR, LoginGAR, LoginACR),
	}}
}

func outputsBlock() blockSpec {
	return blockSpec{name: "outputs", doc: "what comes back: every minute, at a notice, at the end; left out: nothing", attrs: []attribute{
		{name: "from", kind: kindString, required: true, doc: "a folder of the workdir on the node"},
		{name: "to", kind: kindString, required: true, doc: "a folder of the caller, or s3://, gs://, azblob://"},
		words("nodes", `"rank0"`, `"all": into folders by node`, OutputsRank0, OutputsAll),
	}}
}

func limitsBlock() blockSpec {
	return blockSpec{name: "limits", doc: "ends a run that takes too much", attrs: []attribute{
		{name: "budget_usd", kind: kindNumber, unset: "none", doc: "counted spend of the run"},
		{name: "max_usd_per_hour", kind: kindNumber, unset: "none", doc: "of all nodes together"},
		duration("max_duration", `"24h"`, time.Second, "from up to the end"),
		duration("start_timeout", `"20m"`, time.Second, "from up to the first generation"),
		duration("node_lease", `"5m"`, time.Second, "a node nobody renews ends itself"),
		duration("hold_results", `"24h"`, 0, "how long the head waits for a caller to fetch"),
		{name: "unbounded_leak", kind: kindBool, def: "false", doc: "start although a provider cannot bound a leak"},
	}}
}

// synonyms are the words people bring from other tools, and what they are called here. A word is only suggested
// where that attribute or block is allowed.
func synonyms() map[string][]string {
	return map[string][]string{
		"nodes": {"count", "workers"}, "num_nodes": {"count"}, "num_workers": {"count"}, "replicas": {"count"}, "size": {"count"}, "instances": {"count"},
		"min_workers": {"min"}, "max_workers": {"max"}, "accelerators": {"gpu"}, "gpus": {"gpu"}, "machine_type": {"instance_type"},
		"vm_size": {"instance_type"}, "spot": {"market"}, "use_spot": {"market"}, "disk_size": {"disk_gib"}, "disk": {"disk_gib"},
		"memory": {"memory_gib"}, "ram": {"memory_gib"}, "vcpus": {"cpus"}, "image": {"vm_image", "container"}, "image_id": {"vm_image"}, "ami": {"vm_image"},
		"preemptible": {"spot"}, "region": {"regions"}, "cloud": {"provider"}, "resources": {"workers"}, "cmd": {"command"}, "script": {"command"}, "entrypoint": {"command"},
		"args": {"command"}, "nproc_per_node": {"procs_per_node"}, "envs": {"env"}, "environment": {"env"}, "budget": {"budget_usd"},
		"timeout": {"max_duration"}, "labels": {"tags"}, "file_mounts": {"mount"}, "volume": {"mount"}, "retries": {"max_restarts"},
		"service_account": {"identity"}, "instance_profile": {"identity"}, "docker": {"container"}, "ignore": {"exclude"}, "path": {"source", "from"},
	}
}
