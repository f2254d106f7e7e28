package ssh

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// Offers lists each host in each market asked for: it serves either, and is never preempted. Hosts that do not answer, or lack
// something, are rejected.
func (p *Provider) Offers(ctx context.Context, req providers.OffersRequest) ([]providers.Offer, error) {
	s, err := parse("offers", req.Config)
	if err != nil {
		return nil, err
	}
	if len(req.Regions) > 0 && !slices.Contains(req.Regions, Region) {
		return nil, nil
	}
	for _, m := range req.Markets {
		if m != providers.Spot && m != providers.OnDemand {
			return nil, providers.Errorf(providers.Invalid, "offers", "unknown market %q", m)
		}
	}
	all := make([]facts, len(s.hosts))
	errs := everywhere(ctx, s.hosts, func(ctx context.Context, i int, h host) (err error) {
		all[i], err = h.probe(ctx, s.key)
		return err
	})
	if err := ctx.Err(); err != nil {
		return nil, failed("offers", err)
	}
	var offers []providers.Offer
	for _, market := range req.Markets {
		for i, h := range s.hosts {
			o := providers.Offer{
				Provider: Name, InstanceType: InstanceType, Region: Region, Zone: h.address, Market: market,
				CPUs: all[i].cpus, MemoryGiB: all[i].memory, GPU: all[i].gpu,
				USDPerHour: new(s.price), PriceDate: time.Now().UTC().Truncate(24 * time.Hour), PriceSource: "usd_per_hour of the job file",
			}
			if o.Rejected = all[i].reject(req); errs[i] != nil {
				o.Rejected = errs[i].Error()
			}
			offers = append(offers, o)
		}
	}
	return offers, nil
}

// facts is what a host is made of.
type facts struct {
	cpus   int
	memory float64 // GiB
	gpu    providers.GPU
}

func (h host) probe(ctx context.Context, key []byte) (facts, error) {
	lines, err := h.visit(ctx, key, order{op: opProbe})
	if err != nil {
		return facts{}, err
	}
	var f facts
	for _, line := range lines {
		name, value, _ := strings.Cut(line, " ")
		switch name {
		case "cpus":
			f.cpus, err = strconv.Atoi(value)
		case "kib":
			var kib int64
			kib, err = strconv.ParseInt(value, 10, 64)
			f.memory = float64(kib) / (1 << 20)
		case "gpu":
			f.gpu.Model = value
			f.gpu.Count++
		case "done":
			return f, nil
		}
		if err != nil {
			return facts{}, fmt.Errorf("probe %s: %w", h.address, err)
		}
	}
	return facts{}, providers.Errorf(providers.Unavailable, "", "probe %s: cut short", h.address)
}

func (f facts) reject(req providers.OffersRequest) string {
	if slices.Contains(req.InstanceTypes, InstanceType) {
		return ""
	}
	if len(req.InstanceTypes) > 0 && len(req.GPUs) == 0 {
		return fmt.Sprintf("the only instance type is %q", InstanceType)
	}
	if len(req.GPUs) > 0 && !slices.ContainsFunc(req.GPUs, f.has) {
		return fmt.Sprintf("has %d GPUs %q", f.gpu.Count, f.gpu.Model)
	}
	switch {
	case req.CPUs > f.cpus:
		return fmt.Sprintf("has %d CPUs", f.cpus)
	case req.MemoryGiB > f.memory:
		return fmt.Sprintf("has %.1f GiB of memory", f.memory)
	}
	return ""
}

// has compares with the driver's name of the GPU ("NVIDIA A100-SXM4-80GB"): it must have each part of ours ("a100-80gb").
func (f facts) has(want providers.GPU) bool {
	name := strings.ToLower(f.gpu.Model)
	for _, part := range strings.FieldsFunc(strings.ToLower(want.Model), func(r rune) bool { return r == '-' || r == ' ' || r == '_' }) {
		if !strings.Contains(name, part) {
			return false
		}
	}
	return f.gpu.Count >= want.Count && f.gpu.Count > 0
}

// Check tells which hosts cannot be used. It leases nothing.
func (p *Provider) Check(ctx context.Context, raw json.RawMessage) (providers.Identity, error) {
	s, err := parse("check", raw)
	if err != nil {
		return providers.Identity{}, err
	}
	errs := everywhere(ctx, s.hosts, func(ctx context.Context, _ int, h host) error {
		_, err := h.probe(ctx, s.key)
		return err
	})
	if err := ctx.Err(); err != nil {
		return providers.Identity{}, failed("check", err)
	}
	id := providers.Identity{Owner: "ssh:" + s.hosts[0].user}
	for i, err := range errs {
		switch providers.CodeOf(err) {
		case "":
		case providers.Auth:
			id.Missing = append(id.Missing, "login on "+s.hosts[i].address)
		default:
			id.Notes = append(id.Notes, fmt.Sprintf("%s: %v", s.hosts[i].address, err))
		}
	}
	return id, nil
}

// List reads the lease files of all hosts. A host that cannot be read makes it an error. A lease found to be over is cleared away.
func (p *Provider) List(ctx context.Context, filter providers.Filter) ([]providers.Resource, error) {
	s, err := parse("list", filter.Config)
	if err != nil {
		return nil, err
	}
	if len(filter.Regions) > 0 && !slices.Contains(filter.Regions, Region) {
		return nil, nil
	}
	all, err := s.listAll(ctx)
	if err != nil {
		return nil, failed("list", err)
	}
	var resources []providers.Resource
	for _, f := range all {
		if filter.Run != "" && f.Tags[providers.TagRun] != filter.Run || filter.Owner != "" && f.Tags[providers.TagOwner] != filter.Owner {
			continue
		}
		resources = append(resources, f.resource(f.host, f.state, f.reason))
	}
	return resources, nil
}

// Delete gives hosts back: it ends the run's processes there and removes its folder, keys and lease.
func (p *Provider) Delete(ctx context.Context, req providers.DeleteRequest) ([]providers.Resource, error) {
	s, err := parse("delete", req.Config)
	if err != nil {
		return nil, err
	}
	if req.Run == "" {
		return nil, providers.Errorf(providers.Invalid, "delete", "no run")
	}
	var hosts []host
	wanted := map[string][]providers.Resource{} // by address
	for _, r := range req.Resources {
		h, ok := s.hostOf(r.ID)
		if !ok {
			return nil, providers.Errorf(providers.Invalid, "delete", "%s %s is on none of the hosts", r.Kind, r.ID)
		}
		if wanted[h.address] == nil {
			hosts = append(hosts, h)
		}
		wanted[h.address] = append(wanted[h.address], r)
	}

	// First a look at all: one foreign machine, and nothing is deleted.
	lists := make([][]found, len(hosts))
	errs := everywhere(ctx, hosts, func(ctx context.Context, i int, h host) (err error) {
		lists[i], err = h.list(ctx, s.key)
		return err
	})
	if err := ctx.Err(); err != nil {
		return nil, failed("delete", err)
	}
	targets := make([]*found, len(hosts))
	for i, h := range hosts {
		for _, f := range lists[i] {
			if !slices.ContainsFunc(wanted[h.address], func(r providers.Resource) bool { return r.ID == f.ID }) {
				continue
			}
			if f.Tags[providers.TagRun] != req.Run {
				return nil, providers.Errorf(providers.Invalid, "delete", "machine %s belongs to run %q, not %q", f.ID, f.Tags[providers.TagRun], req.Run)
			}
			if f.state != providers.Terminated {
				targets[i] = &f
			}
		}
	}
	ends := everywhere(ctx, hosts, func(ctx context.Context, i int, h host) error {
		if errs[i] != nil || targets[i] == nil {
			return errs[i]
		}
		_, err := h.visit(ctx, s.key, order{op: opEnd, id: targets[i].ID, run: req.Run})
		return err
	})
	var left []providers.Resource
	for i, h := range hosts {
		if ends[i] != nil {
			left = append(left, wanted[h.address]...)
		}
	}
	if err := ctx.Err(); err != nil {
		return left, failed("delete", err)
	}
	return left, nil
}

// hostOf finds the host that a machine's id names.
func (s settings) hostOf(id string) (host, bool) {
	parts := strings.Split(id, "-")
	if len(parts) != 3 || parts[0] != "h" {
		return host{}, false
	}
	for _, h := range s.hosts {
		if h.mark() == parts[1] {
			return h, true
		}
	}
	return host{}, false
}

// updateTries bounds how often an update that lost a race is repeated.
const updateTries = 5

// Update changes a machine's tags. Ingress is the host's own firewall's matter.
func (p *Provider) Update(ctx context.Context, req providers.UpdateRequest) error {
	s, err := parse("update", req.Config)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return failed("update", err)
	}
	absent := providers.Errorf(providers.NotFound, "update", "run %q has no machine %s", req.Run, req.Machine)
	if run, ok := req.Tags[providers.TagRun]; ok && run != req.Run {
		return providers.Errorf(providers.Invalid, "update", "the run of machine %s cannot change", req.Machine)
	}
	h, ok := s.hostOf(req.Machine)
	if !ok {
		return absent
	}
	for range updateTries {
		all, err := h.list(ctx, s.key)
		if err != nil {
			return failed("update", err)
		}
		i := slices.IndexFunc(all, func(f found) bool {
			return f.ID == req.Machine && f.Tags[providers.TagRun] == req.Run && f.state != providers.Terminated
		})
		if i < 0 {
			return absent
		}
		f := all[i]
		f.Tags = maps.Clone(f.Tags)
		maps.Copy(f.Tags, req.Tags)
		text, err := f.line()
		if err != nil {
			return failed("update", err)
		}
		lines, err := h.visit(ctx, s.key, order{op: opUpdate, id: f.ID, run: req.Run, record: text, previous: f.text})
		if err != nil {
			return failed("update", err)
		}
		switch lines[0] {
		case "updated":
			return nil
		case "absent":
			return absent
		}
	}
	return providers.Errorf(providers.Unavailable, "update", "machine %s: others change it all the time", req.Machine)
}
