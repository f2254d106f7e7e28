package jobspec

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// together holds the rules about more than one block.
func (d *decoder) together(b *block, j *Job) {
	elastic, limits := b.child("elastic"), b.child("limits")
	if j.Limits.NodeLease <= j.Elastic.LostAfter {
		at := limits
		name := "node_lease"
		if !limits.has(name) {
			at, name = elastic, "lost_after"
		}
		d.errorf(at.at(name), `"node_lease" is not longer than "lost_after"`,
			"A worker would end itself (node_lease, %s) before its rank is given away (lost_after, %s).", j.Limits.NodeLease, j.Elastic.LostAfter)
	}
	if limits.has("start_timeout") && limits.has("max_duration") && j.Limits.StartTimeout > j.Limits.MaxDuration {
		d.errorf(limits.at("start_timeout"), `"start_timeout" is longer than "max_duration"`, "The run would end (%s) before it may fail to start (%s).", j.Limits.MaxDuration, j.Limits.StartTimeout)
	}
	if head := b.child("head"); j.Head.Supervisor == SupervisorClient && head.has("identity") {
		d.warnf(head.at("identity"), `"identity" of the head is not used`, "With supervisor = \"client\" the head calls no cloud. Leave identity out.")
	}
	if j.Elastic.OnChange == OnChangeNotify && (j.Run.Type == RunTorchrun && j.Run.Elasticity == ElasticityLauncher) {
		d.errorf(elastic.at("on_change"), `Wrong value for "on_change"`,
			"torchrun restarts its processes with every world. \"notify\" is for run \"ranks\" and programs that re-form by themselves.")
	}
	if j.Checkpoint != nil && j.Outputs != nil && j.Checkpoint.Path != "" && j.Checkpoint.Path == j.Outputs.From {
		d.warnf(b.child("outputs").at("from"), "outputs and checkpoint are the same folder", "Each checkpoint would travel twice. Write results into a folder of their own.")
	}
}

// reservedNames are set by the launcher for every rank.
func reservedNames() []string {
	return []string{"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"}
}

// variableName checks a name of env or secrets.
func (d *decoder) variableName(attr, name string, b *block, at hcl.Range) bool {
	switch {
	case attr == "secrets" && strings.Contains(name, "="):
		d.errorf(at, `A secret is given by its name`, "Its value would be written to the file and the journal here. Name it, and set it in the environment of the command.")
	case !regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`).MatchString(name):
		d.errorf(at, fmt.Sprintf("Wrong variable name %q", short(name)), "The name of an environment variable has letters, digits and _, not a digit first.")
	case slices.Contains(reservedNames(), name) || strings.HasPrefix(name, "LAUNCHER_") || strings.HasPrefix(name, "TORCHELASTIC_") || strings.HasPrefix(name, "PET_"):
		d.errorf(at, fmt.Sprintf("Reserved variable %q", short(name)), "The launcher sets it for every rank, from what it knows of the world.%s", instead(name))
	default:
		return true
	}
	return false
}

func instead(name string) string {
	switch name {
	case "WORLD_SIZE", "PET_NNODES":
		return " The size of the world follows from count, or min and max, in workers."
	case "LOCAL_WORLD_SIZE", "PET_NPROC_PER_NODE":
		return " Say procs_per_node in run."
	case "PET_MAX_RESTARTS":
		return " Say max_restarts in elastic."
	}
	return ""
}

// secretsInEnv warns where env copies something that looks like a credential out of the caller's environment.
func (d *decoder) secretsInEnv(g *given) {
	if g == nil {
		return
	}
	object, ok := g.expr.(*hclsyntax.ObjectConsExpr)
	if !ok {
		return
	}
	for _, item := range object.Items {
		call, ok := item.ValueExpr.(*hclsyntax.FunctionCallExpr)
		if !ok || call.Name != "env" || len(call.Args) != 1 {
			continue
		}
		key, diags := item.KeyExpr.Value(nil)
		source, more := call.Args[0].Value(nil)
		if diags.HasErrors() || more.HasErrors() || !plainText(key) || !plainText(source) {
			continue
		}
		if regexp.MustCompile(`(?i)(secret|token|passw|_key$|credential)`).MatchString(source.AsString()) {
			detail := fmt.Sprintf("A value in env is written to the journal. If it is a credential: secrets = [%q].", source.AsString())
			if key.AsString() != source.AsString() {
				detail += fmt.Sprintf(" It then has the caller's name for it, %s.", source.AsString())
			}
			d.warnf(item.KeyExpr.Range(), fmt.Sprintf("%q in env looks like a secret", short(key.AsString())), "%s", detail)
		}
	}
}

func plainText(v cty.Value) bool {
	return v.Type() == cty.String && v.IsKnown() && !v.IsNull()
}

// command warns of what people bring along in the command line of torchrun.
func (d *decoder) command(b *block, r Run) {
	if strings.Contains(r.Command, "\r") {
		d.errorf(b.at("command"), "command has Windows line ends", "bash takes the carriage return as part of the last word. Save the file with Unix line ends.")
	}
	words := strings.Fields(r.Command)
	at := slices.IndexFunc(words, func(w string) bool {
		return path.Base(w) == "torchrun" || w == "torch.distributed.run" || w == "torch.distributed.launch"
	})
	switch {
	case r.Type == RunRanks && at >= 0:
		d.warnf(b.at("command"), `run "ranks" starts torchrun`, "Each rank would start a world of its own. Say run \"torchrun\" { … }, or start the program itself: \"python train.py\".")
		return
	case r.Type == RunTorchrun && at < 0 && strings.HasPrefix(path.Base(words[0]), "python"):
		d.warnf(b.at("command"), `run "torchrun" does not start torchrun`, "The command gets PET_* variables, which python does not read. Say run \"ranks\" { … }, or write \"torchrun train.py\".")
		return
	case r.Type != RunTorchrun || at < 0:
		return
	}
	for _, w := range words[at+1:] {
		name, _, _ := strings.Cut(w, "=")
		if !strings.HasPrefix(w, "-") {
			if strings.HasSuffix(w, ".py") {
				return // what follows is the script's
			}
			continue
		}
		switch name = strings.ReplaceAll(strings.TrimLeft(name, "-"), "_", "-"); name {
		case "m", "module", "no-python":
			return
		case "nnodes", "node-rank", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "standalone", "master-addr", "master-port":
			d.errorf(b.at("command"), fmt.Sprintf("torchrun's --%s is set by the launcher", name), "A flag wins over the variables that the launcher sets, and the nodes would not find each other. Leave --%s out.", name)
		case "nproc-per-node":
			d.warnf(b.at("command"), "torchrun's --nproc-per-node hides the world's size", "The launcher counts procs_per_node processes on each node. Say it there, and leave the flag out.")
		case "max-restarts":
			d.warnf(b.at("command"), "torchrun's --max-restarts hides failures", "The launcher counts failures itself: max_restarts in the elastic block. Leave the flag out.")
		}
	}
}

// cutScheme splits "s3://bucket/prefix".
func cutScheme(text string) (scheme, rest string, ok bool) {
	scheme, rest, ok = strings.Cut(text, "://")
	return scheme, rest, ok && regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*$`).MatchString(scheme)
}

// bucket checks the destination b.to.
func (d *decoder) bucket(b *block, to, is string, words []string) {
	schemes := []string{"s3", "gs", "azblob"}
	scheme, rest, ok := cutScheme(to)
	hint := didYouMean(to, words)
	switch {
	case ok && scheme == "gcs":
		hint = ` Did you mean "gs"?`
	case ok:
		hint = didYouMean(scheme, schemes)
	}
	if !ok || !slices.Contains(schemes, scheme) {
		d.errorf(b.at("to"), `Wrong value for "to"`, "It is %s, s3://…, gs://… or azblob://…, not %q.%s", is, short(to), hint)
		return
	}
	if !bucketName(rest) {
		d.errorf(b.at("to"), `Wrong value for "to"`, "%q names no bucket: write %s://BUCKET/PREFIX.", short(to), scheme)
	}
}

func bucketName(rest string) bool {
	name, _, _ := strings.Cut(rest, "/")
	return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`).MatchString(name)
}

// mountPath refuses places where a mount would take the machine's own files away.
func (d *decoder) mountPath(m *block) {
	clean := path.Clean(m.label)
	system := []string{"/", "/bin", "/boot", "/etc", "/home", "/lib", "/lib64", "/opt", "/root", "/sbin", "/tmp", "/usr", "/var"}
	kernel := regexp.MustCompile(`^/(dev|proc|sys|run)(/|$)`)
	switch {
	case !strings.HasPrefix(m.label, "/"):
		d.errorf(m.labelAt, fmt.Sprintf("Wrong mount path %q", short(m.label)), "A mount is at an absolute path of the worker, such as \"/data\".")
	case clean != m.label:
		d.errorf(m.labelAt, fmt.Sprintf("Wrong mount path %q", short(m.label)), "Write it as %q.", clean)
	case strings.ContainsAny(clean, " \t\n\r\x00:,\\"):
		d.errorf(m.labelAt, fmt.Sprintf("Wrong mount path %q", short(m.label)), "Spaces, commas, colons and backslashes do not survive the mount table. Use another name.")
	case slices.Contains(system, clean) || kernel.MatchString(clean):
		d.errorf(m.labelAt, fmt.Sprintf("Wrong mount path %q", short(m.label)), "The machine's own files are there. Mount it somewhere else, such as \"/data\" or \"/mnt/data\".")
	}
}

// mountSource checks that the source is what the type takes.
func (d *decoder) mountSource(m *block, mount Mount) {
	scheme := map[string]string{"s3": "s3", "gcs": "gs", "azblob": "azblob"}[mount.Type]
	form := map[string]*regexp.Regexp{
		"nfs":    regexp.MustCompile(`^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9][A-Za-z0-9.-]*):/`),
		"efs":    regexp.MustCompile(`^(fs|fsap)-[0-9a-f]+`),
		"lustre": regexp.MustCompile(`^(fs-[0-9a-f]+|[^/\s]+:/\S+|[A-Za-z][\w./-]*)$`),
	}[mount.Type]
	switch {
	case scheme != "":
		got, rest, ok := cutScheme(mount.Source)
		if !ok || got != scheme || !bucketName(rest) {
			d.errorf(m.at("source"), `Wrong value for "source"`, "A mount of type %s has the source %s://BUCKET or %s://BUCKET/PREFIX, not %q.", mount.Type, scheme, scheme, short(mount.Source))
		}
	case form != nil && !form.MatchString(mount.Source):
		want := map[string]string{"nfs": "HOST:/PATH", "efs": "the file system's id, fs-…", "lustre": "the file system's id, fs-…, or HOST@tcp:/NAME"}[mount.Type]
		d.errorf(m.at("source"), `Wrong value for "source"`, "A mount of type %s has as source %s, not %q.", mount.Type, want, short(mount.Source))
	case strings.ContainsAny(mount.Source, " \t\n\r"):
		d.errorf(m.at("source"), `Wrong value for "source"`, "%q has spaces in it.", short(mount.Source))
	}
}
