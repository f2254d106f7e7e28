package jobspec

import (
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// Feature is something a job file can ask for that a build may not serve yet. Its text is the attribute or block,
// and after an equals sign the value that matters.
type Feature string

// The features, as Features lists them.
const (
	FeatureSupervisorClient   Feature = "head.supervisor=client"
	FeatureRelocateAfter      Feature = "placement.relocate_after"
	FeatureSameZoneRequire    Feature = "placement.same_zone=require"
	FeatureFabricRequired     Feature = "network.fabric=required"
	FeatureSpares             Feature = "workers.spares"
	FeatureSpotOrOnDemand     Feature = "market=spot_or_on_demand"
	FeatureMount              Feature = "mount"
	FeatureRunTorchrun        Feature = "run=torchrun"
	FeatureRunHorovod         Feature = "run=horovod"
	FeatureRunRay             Feature = "run=ray"
	FeatureRunMPI             Feature = "run=mpi"
	FeatureElasticityTorchrun Feature = "run.elasticity=torchrun"
	FeatureHangTimeout        Feature = "run.hang_timeout"
	FeatureOnChangeNotify     Feature = "elastic.on_change=notify"
	FeatureCheckpoint         Feature = "checkpoint"
	FeatureCheckpointBucket   Feature = "checkpoint.to=bucket"
	FeaturePreflight          Feature = "preflight"
	FeatureContainer          Feature = "container"
	FeatureOutputs            Feature = "outputs"
	FeatureOutputsAllNodes    Feature = "outputs.nodes=all"
	FeatureOutputsBucket      Feature = "outputs.to=bucket"
)

// Capabilities are the features that a build serves. Nil serves none of them, only what is no Feature.
type Capabilities map[Feature]bool

// AllCapabilities is a build that serves everything; the caller takes out what its own does not.
func AllCapabilities() Capabilities {
	all := Capabilities{}
	for _, row := range features() {
		all[row.feature] = true
	}
	return all
}

// Features lists every feature, in the order of the job file's documentation.
func Features() []Feature {
	var all []Feature
	for _, row := range features() {
		all = append(all, row.feature)
	}
	return all
}

// feature says which places of a job ask for a feature, as keys of Ranges, and what to do without it.
type feature struct {
	feature Feature
	asked   func(*Job) []string
	without string
}

func features() []feature {
	at := func(path string, asks func(*Job) bool) func(*Job) []string {
		return func(j *Job) []string {
			if asks(j) {
				return []string{path}
			}
			return nil
		}
	}
	leave := "Leave it out."
	return []feature{
		{FeatureSupervisorClient, at("head.supervisor", func(j *Job) bool { return j.Head.Supervisor == SupervisorClient }), `Only supervisor = "head" is.`},
		{FeatureRelocateAfter, at("placement.relocate_after", func(j *Job) bool { return j.Placement.RelocateAfter > 0 }), leave},
		{FeatureSameZoneRequire, at("placement.same_zone", func(j *Job) bool { return j.Placement.SameZone == SameZoneRequire }), `"prefer" takes one zone where it can.`},
		{FeatureFabricRequired, at("network.fabric", func(j *Job) bool { return j.Network.Fabric == FabricRequired }), `"best" takes what there is.`},
		{FeatureSpares, at("workers.spares", func(j *Job) bool { return j.Workers.Spares > 0 }), leave},
		{FeatureSpotOrOnDemand, at("workers.market", func(j *Job) bool { return j.Workers.Market == MarketSpotOrOnDemand }), `Say "spot" or "on_demand".`},
		{FeatureMount, mountPaths, "Fetch the data in setup, or put it into the workdir."},
		{FeatureRunTorchrun, at("run", func(j *Job) bool { return j.Run.Type == RunTorchrun }), `run "ranks" starts a program with torchrun's variables set.`},
		{FeatureRunHorovod, at("run", func(j *Job) bool { return j.Run.Type == RunHorovod }), `run "ranks" and run "torchrun" are.`},
		{FeatureRunRay, at("run", func(j *Job) bool { return j.Run.Type == RunRay }), `run "ranks" and run "torchrun" are.`},
		{FeatureRunMPI, at("run", func(j *Job) bool { return j.Run.Type == RunMPI }), `run "ranks" and run "torchrun" are.`},
		{FeatureElasticityTorchrun, at("run.elasticity", func(j *Job) bool { return j.Run.Elasticity == ElasticityTorchrun }), `"launcher" re-forms the world by itself.`},
		{FeatureHangTimeout, at("run.hang_timeout", func(j *Job) bool { return j.Run.HangTimeout > 0 }), "Leave it out; max_duration in limits ends a run that hangs."},
		{FeatureOnChangeNotify, at("elastic.on_change", func(j *Job) bool { return j.Elastic.OnChange == OnChangeNotify }), `"restart" starts processes from their checkpoint.`},
		{FeatureCheckpoint, at("checkpoint", func(j *Job) bool { return j.Checkpoint != nil }), "Let the program copy its checkpoints to storage of yours."},
		{FeatureCheckpointBucket, at("checkpoint.to", func(j *Job) bool { return j.Checkpoint != nil && Bucket(j.Checkpoint.To) }), `Say to = "head".`},
		{FeaturePreflight, at("preflight", func(j *Job) bool { return j.Preflight != nil }), leave},
		{FeatureContainer, at("container", func(j *Job) bool { return j.Container != nil }), "Leave it out, and install what the program needs in setup."},
		{FeatureOutputs, at("outputs", func(j *Job) bool { return j.Outputs != nil }), "Let the program copy its results to storage of yours."},
		{FeatureOutputsAllNodes, at("outputs.nodes", func(j *Job) bool { return j.Outputs != nil && j.Outputs.Nodes == OutputsAll }), `Only "rank0" is.`},
		{FeatureOutputsBucket, at("outputs.to", func(j *Job) bool { return j.Outputs != nil && Bucket(j.Outputs.To) }), "Say a folder of yours."},
	}
}

func mountPaths(j *Job) []string {
	var paths []string
	for _, m := range j.Mounts {
		paths = append(paths, "mount."+m.Path)
	}
	for _, p := range j.Providers {
		for _, m := range p.Mounts {
			paths = append(paths, "provider."+p.Name+".mount."+m.Path)
		}
	}
	return paths
}

// CheckAvailable refuses what the job asks for and this build does not serve. The diagnostics have the ranges of
// the file; for a job that came by wire they have none.
func CheckAvailable(job *Job, serves Capabilities) hcl.Diagnostics {
	var diags hcl.Diagnostics
	for _, row := range features() {
		if serves[row.feature] {
			continue
		}
		for _, path := range row.asked(job) {
			diags = diags.Append(&hcl.Diagnostic{
				Severity: hcl.DiagError,
				Summary:  fmt.Sprintf("%s is not available in this build", row.feature),
				Detail:   fmt.Sprintf("The launcher knows %s but does not serve it yet. %s", spelled(row.feature), row.without),
				Subject:  job.Range(path),
			})
		}
	}
	return sorted(diags)
}

// spelled is the feature as a job file spells it.
func spelled(f Feature) string {
	path, value, ok := strings.Cut(string(f), "=")
	switch {
	case !ok || value == "bucket":
		return path
	case path == "run":
		return fmt.Sprintf("run %q", value)
	}
	return fmt.Sprintf("%s = %q", path, value)
}

// Range is where the file says what path names: the attribute, or else the nearest block around it, or else the
// job block. Nil for a job without Ranges. It is how a complaint that carries only an attribute's path, such as a
// provider's "provider.aws.regions", gets its line.
func (j *Job) Range(path string) *hcl.Range {
	for {
		if r, ok := j.Ranges[path]; ok {
			return &r
		}
		if path == "" {
			return nil
		}
		cut := strings.LastIndex(path, ".")
		path = path[:max(cut, 0)]
	}
}
