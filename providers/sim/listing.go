package sim

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// List implements [providers.Provider]. It reads page after page, each by an API call of its own, so the world may
// change in between.
func (c *Cloud) List(ctx context.Context, filter providers.Filter) ([]providers.Resource, error) {
	regions, err := c.within(opList, filter.Config, filter.Regions)
	if err != nil {
		return nil, err
	}
	matches := func(r providers.Resource) bool {
		run, owner := r.Tags[providers.TagRun], r.Tags[providers.TagOwner]
		return slices.Contains(regions, r.Region) && run != "" &&
			(filter.Run == "" || run == filter.Run) && (filter.Owner == "" || owner == filter.Owner)
	}
	subject := filter.Run + " " + filter.Owner
	var all []providers.Resource
	after, op := 0, opList
	for more := true; more; op = opPage {
		var page []providers.Resource
		var last int
		err := c.call(ctx, op, subject, func(now time.Time) error {
			page, last, more = c.page(now, after, c.replica(subject), matches)
			return nil
		})
		if err != nil {
			return nil, err
		}
		all, after = append(all, page...), last
	}
	return all, nil
}

// page returns up to a page of what the replica shows of the resources after the one numbered after. mu is held.
func (c *Cloud) page(now time.Time, after, replica int, matches func(providers.Resource) bool) (page []providers.Resource, last int, more bool) {
	c.forget(now)
	first, _ := slices.BinarySearchFunc(c.resources, after+1, func(r *resource, n int) int { return r.sequence - n })
	for _, r := range c.resources[first:] {
		seen, ok := c.seen(r, replica, now)
		if !ok || !matches(seen) {
			continue
		}
		if len(page) == c.opts.PageSize {
			return page, last, true
		}
		page, last = append(page, snapshot(seen)), r.sequence
	}
	return page, last, false
}

// replica is who answers the listing. mu is held.
func (c *Cloud) replica(subject string) int {
	n := c.subjects[opList+" "+subject]
	return int(c.draw("replica", subject, strconv.Itoa(n)) % uint64(c.opts.Replicas))
}

// seen is what the replica shows of the resource; false: nothing. mu is held.
func (c *Cloud) seen(r *resource, replica int, now time.Time) (providers.Resource, bool) {
	lag := c.listLag
	if w := c.opts.ConsistencyWindow; w > 0 {
		lag += time.Duration(c.uniform("lag", r.ID, strconv.Itoa(replica)) * float64(w))
	}
	at := now.Add(-lag)
	for _, v := range slices.Backward(r.history) {
		if v.at.After(at) {
			continue
		}
		if v.resource.State == providers.Terminated && at.Sub(v.at) >= c.opts.TerminatedFor {
			return providers.Resource{}, false
		}
		return v.resource, true
	}
	return providers.Resource{}, false
}

// forget drops resources that no listing can show any more, so that a long simulation does not grow. mu is held.
func (c *Cloud) forget(now time.Time) {
	longest := c.opts.TerminatedFor + c.opts.ConsistencyWindow + c.listLag + c.opts.QuotaLinger
	gone := func(r *resource) bool { return !r.Alive() && now.Sub(r.ended) > longest }
	if len(c.resources) == 0 || !gone(c.resources[0]) {
		return // cheap, and enough: the oldest go first
	}
	c.resources = slices.DeleteFunc(c.resources, func(r *resource) bool {
		if gone(r) {
			delete(c.byID, r.ID)
			return true
		}
		return false
	})
}

// Delete implements [providers.Provider]. Side resources are left while a machine of theirs is not Terminated.
func (c *Cloud) Delete(ctx context.Context, req providers.DeleteRequest) ([]providers.Resource, error) {
	if _, err := c.regions(opDelete, req.Config); err != nil {
		return nil, err
	}
	if req.Run == "" {
		return nil, providers.Errorf(providers.Invalid, opDelete, "no run")
	}
	resources := slices.Clone(req.Resources)
	var left []providers.Resource
	err := c.call(ctx, opDelete, req.Run, func(now time.Time) error {
		for _, named := range resources {
			// What the cloud knows counts, not what the caller says of it.
			if r := c.byID[named.ID]; r != nil && r.Tags[providers.TagRun] != req.Run {
				return providers.Errorf(providers.Invalid, opDelete, "%s is not of run %s", named.ID, req.Run)
			}
		}
		left = nil
		for _, named := range resources {
			if r := c.byID[named.ID]; r != nil && !c.remove(r, now) {
				left = append(left, snapshot(r.Resource))
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return left, nil
}

// remove orders the end of one resource and tells whether the order was accepted. mu is held.
func (c *Cloud) remove(r *resource, now time.Time) bool {
	if r.State == providers.Terminated {
		return true
	}
	if r.Machine == nil && c.inUse(r) {
		return false
	}
	f := c.faults.deletes[r.ID]
	if f == nil {
		f = c.faults.deletes[r.Kind]
	}
	if f == nil {
		f = &DeleteFault{}
	}
	switch {
	case f.Refuse > 0:
		f.Refuse--
		return false
	case f.Ignore > 0:
		f.Ignore--
		return true
	}
	if r.State != providers.Deleting {
		r.State = providers.Deleting
		c.changed(r, now)
	}
	if r.ending == nil && !f.Hang {
		r.ending = c.at(now.Add(f.Delay+c.sample(c.opts.DeleteTime, r.ID, "delete")), func(now time.Time) { c.end(r, now, "deleted") })
	}
	return true
}

// inUse tells whether a machine still needs the side resource. mu is held.
func (c *Cloud) inUse(side *resource) bool {
	if side.machine != nil {
		return side.machine.Alive()
	}
	return slices.ContainsFunc(c.resources, func(r *resource) bool {
		return r.Machine != nil && r.Alive() && r.Region == side.Region && r.Tags[providers.TagRun] == side.Tags[providers.TagRun]
	})
}

// Update implements [providers.Provider].
func (c *Cloud) Update(ctx context.Context, req providers.UpdateRequest) error {
	if _, err := c.regions(opUpdate, req.Config); err != nil {
		return err
	}
	for _, fixed := range []string{providers.TagRun, providers.TagOwner, providers.TagRole} {
		if _, ok := req.Tags[fixed]; ok {
			return providers.Errorf(providers.Invalid, opUpdate, "tag %s never changes", fixed)
		}
	}
	tags, ingress := maps.Clone(req.Tags), slices.Clone(req.Ingress)
	return c.call(ctx, opUpdate, req.Machine, func(now time.Time) error {
		r, err := c.ours(opUpdate, req.Run, req.Machine)
		if err != nil {
			return err
		}
		if len(tags) > 0 {
			maps.Copy(r.Tags, tags)
			c.changed(r, now)
		}
		if ingress != nil {
			c.ingress[req.Run] = ingress
		}
		return nil
	})
}

// ours finds a living machine of the run. mu is held.
func (c *Cloud) ours(op, run, machine string) (*resource, error) {
	r, ok := c.living(machine)
	if !ok || run == "" || r.Tags[providers.TagRun] != run {
		return nil, providers.Errorf(providers.NotFound, op, "no machine %s in run %s", machine, run)
	}
	return r, nil
}

// Preempt implements [providers.Preempter]. Machines of both markets can be preempted.
func (c *Cloud) Preempt(ctx context.Context, req providers.PreemptRequest) error {
	if _, err := c.regions(opPreempt, req.Config); err != nil {
		return err
	}
	if req.Notice < 0 {
		return providers.Errorf(providers.Invalid, opPreempt, "notice of %v", req.Notice)
	}
	return c.call(ctx, opPreempt, req.Machine, func(now time.Time) error {
		r, err := c.ours(opPreempt, req.Run, req.Machine)
		if err != nil {
			return err
		}
		c.announce(r, now, req.Notice)
		return nil
	})
}
