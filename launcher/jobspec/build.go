package jobspec

import (
	"fmt"
	"maps"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
)

// job builds the Job from the job block. What this file and rules.go complain about are values that do not fit
// together or into their form; names and types were checked while the block was read.
func (d *decoder) job(b *block, opts Options) *Job {
	d.name(b, "a job's name")
	j := &Job{
		Name:   b.label,
		Tags:   d.tags(b),
		Setup:  d.setup(b),
		Ranges: d.ranges,
		Files:  d.files,
	}
	d.environment(b, j)
	for _, p := range b.blocks["provider"] {
		provider, ok := d.provider(p, opts)
		if slices.ContainsFunc(j.Providers, func(other Provider) bool { return ok && other.Name == provider.Name }) {
			d.errorf(p.header, fmt.Sprintf("Provider %q is named twice", p.label), "One block says all about a provider. Put the regions of both into it.")
			continue
		}
		if ok {
			j.Providers = append(j.Providers, provider)
		}
	}
	j.Placement = d.placement(b.child("placement"), j)
	j.Network = d.network(b.child("network"))
	j.Head = d.head(b.child("head"))
	j.Workers = d.workers(b.child("workers"), j)
	j.Mounts = d.mounts(b)
	j.Run = d.run(b.child("run"), j)
	j.Elastic = d.elastic(b.child("elastic"))
	j.Preemption = d.preemption(b.child("preemption"))
	j.Limits = d.limits(b.child("limits"))
	if w := b.child("workdir"); w.written {
		j.Workdir = &Workdir{Source: opts.abs(get[string](w, "source")), Exclude: get[[]string](w, "exclude")}
	}
	if c := b.child("checkpoint"); c.written {
		j.Checkpoint = d.checkpoint(c)
	}
	if p := b.child("preflight"); p.written {
		j.Preflight = d.preflight(p, j)
	}
	if c := b.child("container"); c.written {
		j.Container = d.container(c)
	}
	if o := b.child("outputs"); o.written {
		j.Outputs = d.outputs(o, opts)
	}
	d.together(b, j)
	for _, s := range b.spec.blocks {
		if s.must && len(b.blocks[s.name]) == 0 {
			d.errorf(b.header, fmt.Sprintf("Missing block %q", s.name), "A job needs a %s { … } block: %s.", header(&s), s.doc)
		}
	}
	return j
}

// name checks the label of a job or provider block.
func (d *decoder) name(b *block, what string) bool {
	if b.labelAt == b.header { // missing, reported
		return false
	}
	if regexp.MustCompile(`^[a-z][a-z0-9-]{0,29}$`).MatchString(b.label) {
		return true
	}
	hint := ""
	fixed := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(b.label), "-")
	fixed = strings.TrimLeft(fixed, "-0123456789")
	if len(fixed) > 30 {
		fixed = fixed[:30]
	}
	if fixed = strings.TrimRight(fixed, "-"); fixed != "" {
		hint = fmt.Sprintf(" %q would do.", fixed)
	}
	d.errorf(b.labelAt, fmt.Sprintf("Wrong name %q", short(b.label)), "%s has 1 to 30 small letters, digits and dashes, a letter first.%s", capital(what), hint)
	return false
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func (d *decoder) tags(b *block) map[string]string {
	tags := get[map[string]string](b, "tags")
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		at := b.at("tags")
		if g := b.attrs["tags"]; g != nil {
			at = g.entry(key)
		}
		switch {
		case strings.HasPrefix(strings.ToLower(key), "launcher-"):
			d.errorf(at, fmt.Sprintf("Reserved tag %q", short(key)), "Tags that begin with launcher- are how the launcher finds what it made.")
		case key == "" || len(key) > 128:
			d.errorf(at, fmt.Sprintf("Wrong tag %q", short(key)), "The name of a tag has 1 to 128 characters.")
		case len(tags[key]) > 256:
			d.errorf(at, fmt.Sprintf("Wrong tag %q", short(key)), "The value of a tag has at most 256 characters, not %d.", len(tags[key]))
		}
	}
	return notEmpty(tags)
}

// notEmpty makes an empty map nil, which is what it is after a journey through JSON.
func notEmpty[M ~map[string]V, V any](m M) M {
	if len(m) == 0 {
		return nil
	}
	return m
}

func (d *decoder) setup(b *block) string {
	text := get[string](b, "setup")
	first, _, _ := strings.Cut(text, "\n")
	switch {
	case strings.Contains(text, "\r\n"):
		d.errorf(b.at("setup"), "setup has Windows line ends", "bash takes the carriage return as part of each command. Save the script with Unix line ends, or say replace(…, \"\\r\\n\", \"\\n\").")
	case strings.HasPrefix(first, "#!") && !strings.Contains(first, "sh"):
		d.errorf(b.at("setup"), "setup is run by bash", "Its first line asks for another interpreter: %q. Put the program into the workdir and call it from setup.", short(first))
	case first == text && regexp.MustCompile(`^[\w-]+\.(sh|bash)$`).MatchString(text):
		d.warnf(b.at("setup"), "setup is a script, not a path", "bash will look for a command called %q. If the text of that file is meant: setup = file(%q).", text, text)
	}
	if strings.TrimSpace(text) == "" {
		return ""
	}
	return text
}

func (d *decoder) environment(b *block, j *Job) {
	env := get[map[string]string](b, "env")
	g := b.attrs["env"]
	for _, key := range slices.Sorted(maps.Keys(env)) {
		at := g.entry(key)
		d.ranges["env."+key] = at
		d.variableName("env", key, b, at)
	}
	d.secretsInEnv(g)
	j.Env = notEmpty(env)

	for i, name := range get[[]string](b, "secrets") {
		at := b.attrs["secrets"].item(i)
		if _, both := env[name]; both {
			d.errorf(at, fmt.Sprintf("%q is in env and in secrets", short(name)), "A value in env is written to the journal. Keep it in one of the two.")
			continue
		}
		if slices.Contains(j.Secrets, name) {
			d.errorf(at, fmt.Sprintf("Secret %q is named twice", short(name)), "Name it once.")
			continue
		}
		if d.variableName("secrets", name, b, at) {
			d.ranges["secrets."+name] = at
			j.Secrets = append(j.Secrets, name)
		}
	}
}

func (d *decoder) placement(b *block, j *Job) Placement {
	p := Placement{
		Prefer:        get[string](b, "prefer"),
		SameZone:      get[string](b, "same_zone"),
		RelocateAfter: get[time.Duration](b, "relocate_after"),
	}
	if p.RelocateAfter > 0 && len(j.Providers) == 1 && len(j.Providers[0].Regions) == 1 {
		d.warnf(b.at("relocate_after"), `"relocate_after" has nowhere to go`, "The job has one provider with one region. Name more of either, or leave relocate_after out.")
	}
	return p
}

func (d *decoder) network(b *block) Network {
	n := Network{Egress: get[string](b, "egress"), Fabric: get[string](b, "fabric")}
	list := get[[]string](b, "ssh_from")
	if len(list) == 0 {
		d.errorf(b.at("ssh_from"), `Wrong value for "ssh_from"`, "The list is empty: nobody could reach the head. \"caller\" is the address this command is seen from.")
	}
	for i, from := range list {
		at := b.at("ssh_from")
		if g := b.attrs["ssh_from"]; g != nil {
			at = g.item(i)
		}
		prefix, err := netip.ParsePrefix(from)
		switch {
		case from == SSHFromCaller:
		case err != nil:
			hint := didYouMean(from, []string{SSHFromCaller})
			if address, err := netip.ParseAddr(from); err == nil {
				hint = fmt.Sprintf(" For this one address: %q.", netip.PrefixFrom(address, address.BitLen()))
			}
			d.errorf(at, `Wrong value for "ssh_from"`, "%q is neither \"caller\" nor a CIDR such as \"10.0.0.0/8\".%s", short(from), hint)
			continue
		case prefix.Masked() != prefix:
			d.errorf(at, `Wrong value for "ssh_from"`, "%s has bits behind its mask. For the network: %q; for the one address: %q.", short(from),
				prefix.Masked(), netip.PrefixFrom(prefix.Addr(), prefix.Addr().BitLen()))
			continue
		case prefix.Bits() == 0:
			d.warnf(at, "Port 22 of the head is open to everybody", "%s is every address there is. Only keys are accepted there; \"caller\" is narrower.", from)
			from = prefix.String()
		default:
			from = prefix.String()
		}
		if !slices.Contains(n.SSHFrom, from) {
			n.SSHFrom = append(n.SSHFrom, from)
		}
	}
	return n
}

func (d *decoder) head(b *block) Head {
	h := Head{
		CPUs:         get[int](b, "cpus"),
		InstanceType: get[string](b, "instance_type"),
		DiskGiB:      get[int](b, "disk_gib"),
		Supervisor:   get[string](b, "supervisor"),
		Identity:     get[string](b, "identity"),
	}
	if b.has("instance_type") {
		if b.has("cpus") {
			d.errorf(b.at("cpus"), `"cpus" and "instance_type" exclude each other`, "The instance type says how many CPUs there are. Keep one of the two.")
		}
		h.CPUs = 0
	}
	return h
}

func (d *decoder) workers(b *block, j *Job) Workers {
	w := Workers{
		InstanceTypes: unique(get[[]string](b, "instance_type")),
		CPUs:          get[int](b, "cpus"),
		MemoryGiB:     get[int](b, "memory_gib"),
		Market:        get[string](b, "market"),
		DiskGiB:       get[int](b, "disk_gib"),
		VMImage:       get[string](b, "vm_image"),
		Identity:      get[string](b, "identity"),
		Spares:        get[int](b, "spares"),
	}
	d.size(b, &w)
	for i, text := range get[[]string](b, "gpu") {
		if g, ok := d.gpu(b.attrs["gpu"].item(i), text); ok && !slices.Contains(w.GPU, g) {
			w.GPU = append(w.GPU, g)
		}
	}
	d.hardware(b)
	if b.has("vm_image") && len(j.Providers) > 1 {
		d.errorf(b.at("vm_image"), `"vm_image" needs to know its provider`, "The job has %d providers, and an image id means something to one of them. Move it: provider %q { workers { vm_image = … } }.",
			len(j.Providers), j.Providers[0].Name)
	}
	return w
}

func (d *decoder) size(b *block, w *Workers) {
	count, low, high := get[int](b, "count"), get[int](b, "min"), get[int](b, "max")
	switch {
	case !b.written:
	case b.has("count") && (b.has("min") || b.has("max")):
		d.errorf(b.at("count"), `"count" excludes "min" and "max"`, "count is a fixed world; min and max are an elastic one. Keep one of the two.")
	case b.has("count"):
		w.Min, w.Max, w.Fixed = count, count, true
	case b.has("min") && !b.has("max"):
		d.errorf(b.at("min"), `"min" without "max"`, "An elastic world has both; for a fixed one say count = %d.", max(low, 1))
	case b.has("max") && !b.has("min"):
		d.errorf(b.at("max"), `"max" without "min"`, "An elastic world has both; for a fixed one say count = %d.", max(high, 1))
	case !b.has("min"):
		d.errorf(b.header, "The workers have no size", "Say count = 4 for a fixed world, or min = 2 and max = 4 for an elastic one.")
	case low > high && high > 0:
		d.errorf(b.at("min"), `"min" is more than "max"`, "min is %d and max is %d.", low, high)
	default:
		w.Min, w.Max = low, high
	}
}

// hardware lets one way of asking for machines through.
func (d *decoder) hardware(b *block) {
	for _, name := range []string{"gpu", "instance_type"} {
		if b.has(name) && b.attrs[name].value != nil && len(get[[]string](b, name)) == 0 {
			d.errorf(b.at(name), fmt.Sprintf("Wrong value for %q", name), "The list is empty, so no machine would do. Leave %s out to ask for nothing.", name)
		}
	}
	switch {
	case b.has("gpu") && b.has("instance_type"):
		d.errorf(b.at("instance_type"), `"gpu" and "instance_type" exclude each other`, "The instance type says which GPUs there are. Keep one of the two.")
	case b.has("gpu") || b.has("instance_type"):
		for _, name := range []string{"cpus", "memory_gib"} {
			if b.has(name) {
				other := "gpu"
				if b.has("instance_type") {
					other = "instance_type"
				}
				d.errorf(b.at(name), fmt.Sprintf("%q and %q exclude each other", name, other), "%s already says which machines will do. Keep one of the two.", other)
			}
		}
	}
}

func unique(list []string) []string {
	var out []string
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

func (d *decoder) mounts(b *block) []Mount {
	var mounts []Mount
	for _, m := range b.blocks["mount"] {
		mount := Mount{Path: m.label, Type: get[string](m, "type"), Source: get[string](m, "source")}
		if m.labelAt == m.header {
			continue // reported
		}
		d.mountPath(m)
		if mount.Source != "" {
			d.mountSource(m, mount)
		}
		if slices.ContainsFunc(mounts, func(other Mount) bool { return other.Path == mount.Path }) {
			d.errorf(m.labelAt, fmt.Sprintf("Two mounts at %q", short(m.label)), "A path can hold one mount. Give the second another path.")
			continue
		}
		mounts = append(mounts, mount)
	}
	return mounts
}

func (d *decoder) run(b *block, j *Job) Run {
	r := Run{
		Type:         b.label,
		Command:      strings.TrimSpace(get[string](b, "command")),
		ProcsPerNode: get[int](b, "procs_per_node"),
		Elasticity:   get[string](b, "elasticity"),
		HangTimeout:  get[time.Duration](b, "hang_timeout"),
	}
	w := j.Workers
	if b.has("procs_per_node") && b.attrs["procs_per_node"].value == any(0) && len(w.GPU) == 0 && (w.CPUs > 0 || w.MemoryGiB > 0) {
		d.errorf(b.at("procs_per_node"), `Wrong value for "procs_per_node"`, "The workers have no GPUs. Say how many processes each shall run, or leave it out for one.")
	}
	if r.Elasticity == ElasticityTorchrun {
		switch {
		case r.Type != RunTorchrun:
			d.errorf(b.at("elasticity"), `Wrong value for "elasticity"`, "%q is for run \"torchrun\" only; a run %q re-forms by the launcher.", r.Elasticity, short(r.Type))
		case w.Fixed:
			d.warnf(b.at("elasticity"), `"elasticity" has no effect on a fixed world`, "TorchElastic would be told %d:%d. Say min and max in workers for an elastic world.", w.Min, w.Max)
		}
	}
	if r.Command != "" {
		d.command(b, r)
	}
	return r
}

func (d *decoder) elastic(b *block) Elastic {
	return Elastic{
		StartWait:   get[time.Duration](b, "start_wait"),
		LostAfter:   get[time.Duration](b, "lost_after"),
		GrowEvery:   get[time.Duration](b, "grow_every"),
		BelowMin:    get[time.Duration](b, "below_min"),
		OnChange:    get[string](b, "on_change"),
		MaxRestarts: get[int](b, "max_restarts"),
	}
}

func (d *decoder) preemption(b *block) Preemption {
	if b.has("grace") && !b.has("signal") {
		d.warnf(b.at("grace"), `"grace" without "signal" has no effect`, "grace is the time from the signal to SIGTERM. Name the signal that makes your program save its state: signal = \"SIGUSR1\".")
	}
	return Preemption{Signal: get[string](b, "signal"), Grace: get[time.Duration](b, "grace")}
}

func (d *decoder) checkpoint(b *block) *Checkpoint {
	c := &Checkpoint{Path: d.nodePath(b, "path"), To: get[string](b, "to"), Keep: get[int](b, "keep")}
	if b.has("to") && c.To != CheckpointToHead {
		d.bucket(b, c.To, `"head" or a bucket`, []string{CheckpointToHead})
	}
	return c
}

func (d *decoder) preflight(b *block, j *Job) *Preflight {
	p := &Preflight{BandwidthBits: get[int64](b, "bandwidth"), Latency: get[time.Duration](b, "latency"), GPU: get[bool](b, "gpu")}
	if !b.has("bandwidth") && !b.has("latency") && !b.has("gpu") {
		d.warnf(b.header, "The preflight block tests nothing", "Name what the nodes must show: bandwidth, latency or gpu = true.")
	}
	if p.GPU && len(j.Workers.GPU) == 0 && (j.Workers.CPUs > 0 || j.Workers.MemoryGiB > 0) {
		d.errorf(b.at("gpu"), `Wrong value for "gpu"`, "The workers have no GPUs to test. Leave gpu out, or ask for GPUs in workers.")
	}
	return p
}

func (d *decoder) container(b *block) *Container {
	c := &Container{Image: get[string](b, "image"), Login: get[string](b, "login")}
	if strings.ContainsAny(c.Image, " \t\n") || strings.Contains(c.Image, "://") {
		d.errorf(b.at("image"), `Wrong value for "image"`, "An image is written as for docker pull, such as \"pytorch/pytorch:2.4.0\", without a scheme and without spaces.")
	}
	host := map[string]string{LoginECR: ".dkr.ecr.", LoginGAR: "-docker.pkg.dev/", LoginACR: ".azurecr."}[c.Login]
	if c.Image != "" && host != "" && !strings.Contains(c.Image, host) && !(c.Login == LoginGAR && strings.Contains(c.Image, "gcr.io/")) {
		d.warnf(b.at("login"), fmt.Sprintf("The image is not in a registry of login %q", c.Login), "Its names have %q in them. Public images need no login.", host)
	}
	return c
}

func (d *decoder) outputs(b *block, opts Options) *Outputs {
	o := &Outputs{From: d.nodePath(b, "from"), To: get[string](b, "to"), Nodes: get[string](b, "nodes")}
	switch {
	case o.To == "":
	case Bucket(o.To):
		d.bucket(b, o.To, "a folder of the caller or a bucket", nil)
	default:
		o.To = opts.abs(o.To)
	}
	return o
}

func (d *decoder) limits(b *block) Limits {
	return Limits{
		BudgetUSD:     get[float64](b, "budget_usd"),
		MaxUSDPerHour: get[float64](b, "max_usd_per_hour"),
		MaxDuration:   get[time.Duration](b, "max_duration"),
		StartTimeout:  get[time.Duration](b, "start_timeout"),
		NodeLease:     get[time.Duration](b, "node_lease"),
		HoldResults:   get[time.Duration](b, "hold_results"),
		UnboundedLeak: get[bool](b, "unbounded_leak"),
	}
}

// gpu reads "MODEL:COUNT"; a model alone is one GPU.
func (d *decoder) gpu(at hcl.Range, text string) (GPU, bool) {
	model, count, counted := strings.Cut(text, ":")
	n := 1
	var err error
	if counted {
		n, err = strconv.Atoi(count)
	}
	if err == nil && n >= 1 && n <= 64 && regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]*$`).MatchString(model) {
		return GPU{Model: model, Count: n}, true
	}
	hint := ""
	if m := regexp.MustCompile(`^(\d+)\s*[x:* ]\s*([A-Za-z][\w.-]*)$`).FindStringSubmatch(text); m != nil {
		hint = fmt.Sprintf(" Did you mean \"%s:%s\"?", m[2], m[1])
	} else if m := regexp.MustCompile(`^([A-Za-z][\w.-]*)\s*[*, =]\s*(\d+)$`).FindStringSubmatch(text); m != nil {
		hint = fmt.Sprintf(" Did you mean \"%s:%s\"?", m[1], m[2])
	}
	d.errorf(at, `Wrong value for "gpu"`, "A GPU is MODEL:COUNT with 1 to 64 of them per node, such as \"V100:4\", not %q.%s", short(text), hint)
	return GPU{}, false
}

// nodePath reads a path on the node and cleans it.
func (d *decoder) nodePath(b *block, name string) string {
	text := get[string](b, name)
	if text == "" {
		return ""
	}
	clean := path.Clean(text)
	switch {
	case strings.HasPrefix(text, "~"):
		d.errorf(b.at(name), fmt.Sprintf("Wrong value for %q", name), "%s is a path on the worker, where ~ means nothing. Write it relative to the workdir, or absolute.", name)
	case clean == ".." || strings.HasPrefix(clean, "../") || clean == "/":
		d.errorf(b.at(name), fmt.Sprintf("Wrong value for %q", name), "%q leads out of the workdir. Write a path inside of it, or an absolute one below /.", short(text))
	case Bucket(text):
		d.errorf(b.at(name), fmt.Sprintf("Wrong value for %q", name), "%s is a path on the worker; the bucket belongs into \"to\".", name)
	}
	return clean
}
