package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// resource is the truth about one resource. Cloud.mu guards it.
type resource struct {
	providers.Resource
	sequence int
	ended    time.Time
	entry    int // of the ledger, the latest
	history  []view

	// Of a machine:
	request  providers.CreateRequest
	sides    []*resource
	host     int  // number of its address; -1: none of the cloud's own
	up       bool // OnBoot has returned
	stop     context.CancelFunc
	deadline time.Time // of the preemption that is announced
	boot     *event
	lease    *event
	reclaim  *event
	hooks    []func()
	hooking  bool

	// Of a side resource:
	machine  *resource // nil: of the whole run
	survives bool

	ending *event
}

// view is what the resource was like from a time on.
type view struct {
	at       time.Time
	resource providers.Resource
}

// changed records what the resource is like now, for listings that lag, and forgets what none can show any more. mu is held.
func (c *Cloud) changed(r *resource, now time.Time) {
	r.history = append(r.history, view{now, snapshot(r.Resource)})
	horizon := now.Add(-c.opts.ConsistencyWindow - c.listLag)
	for len(r.history) > 1 && r.history[1].at.Before(horizon) {
		r.history = r.history[1:]
	}
}

// snapshot is a copy that shares nothing with the original.
func snapshot(r providers.Resource) providers.Resource {
	r.Tags = maps.Clone(r.Tags)
	if r.Machine != nil {
		m := *r.Machine
		if m.Offer.USDPerHour != nil {
			usd := *m.Offer.USDPerHour
			m.Offer.USDPerHour = &usd
		}
		r.Machine = &m
	}
	return r
}

// add puts a new resource into the world. mu is held.
func (c *Cloud) add(r *resource, usdPerHour float64, now time.Time) {
	c.sequence++
	r.sequence = c.sequence
	r.CreatedAt = wall(now)
	c.resources = append(c.resources, r)
	c.byID[r.ID] = r
	c.bill(r, usdPerHour, now)
	c.changed(r, now)
}

// wall is a time as a cloud reports it: without a monotonic reading.
func wall(t time.Time) time.Time { return t.Round(0).UTC() }

// rent makes one machine, its sides, and its future. mu is held.
func (c *Cloud) rent(id string, o providers.Offer, req providers.CreateRequest, now time.Time) *resource {
	r := &resource{
		Resource: providers.Resource{
			ID: id, Kind: providers.KindMachine, State: providers.Pending, Region: o.Region, Tags: maps.Clone(req.Tags),
			Machine: &providers.Machine{ID: id, Token: req.Token, Offer: o, User: "sim", Image: req.Image, CreatedAt: wall(now)},
		},
		request: req,
		host:    -1,
	}
	if r.Machine.Image == "" {
		r.Machine.Image = "sim-image-1"
	}
	c.add(r, c.price(o), now)
	for _, side := range c.opts.Sides {
		if side.PerRun {
			c.rentRunSide(side, r, now)
			continue
		}
		s := &resource{
			Resource: providers.Resource{ID: c.name(side.Kind, id), Kind: side.Kind, State: providers.Running, Region: o.Region, Tags: maps.Clone(req.Tags)},
			machine:  r,
			survives: side.Survives || c.chance(c.opts.OrphanShare, id, side.Kind, "orphan"),
		}
		c.add(s, side.USDPerHour, now)
		r.sides = append(r.sides, s)
	}

	if req.TTL > 0 {
		r.lease = c.at(now.Add(req.TTL), func(now time.Time) { c.end(r, now, "lease over") })
	}
	boot := c.sample(c.opts.Boot, id, "boot")
	if c.chance(c.opts.SlowBoot, id, "slow boot") {
		boot *= 5
	}
	dead := c.chance(c.opts.NeverBoot, id, "never boot") || c.faults.neverBoot > 0
	c.faults.neverBoot = max(0, c.faults.neverBoot-1)
	r.boot = c.at(now.Add(boot), func(now time.Time) { c.bootOver(r, now, dead) })
	if o.Market == providers.Spot && c.opts.PreemptEvery > 0 {
		life := c.exponential(c.opts.PreemptEvery, id, "life")
		notice := c.opts.Notice
		if c.chance(c.opts.SilentShare, id, "silent") {
			notice = 0
		}
		r.reclaim = c.at(now.Add(max(0, life-notice)), func(now time.Time) { c.announce(r, now, notice) })
	}
	return r
}

// rentRunSide makes the run's side resource unless the run has it in that region. mu is held.
func (c *Cloud) rentRunSide(side Side, m *resource, now time.Time) {
	run := m.Tags[providers.TagRun]
	n := 0
	for _, r := range c.resources {
		if r.Kind == side.Kind && r.Region == m.Region && r.Tags[providers.TagRun] == run {
			n++
			if r.State == providers.Running {
				return
			}
		}
	}
	c.add(&resource{
		Resource: providers.Resource{
			ID: c.name(side.Kind, run, m.Region, fmt.Sprint(n)), Kind: side.Kind, State: providers.Running, Region: m.Region, Tags: maps.Clone(m.Tags),
		},
		survives: true,
	}, side.USDPerHour, now)
}

// bootOver starts the guest, or, where the machine is dead, only says it runs. mu is held.
func (c *Cloud) bootOver(r *resource, now time.Time, dead bool) {
	if dead || c.opts.OnBoot == nil {
		c.booted(r, now, "")
		r.up = !dead
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	machine, req := *snapshot(r.Resource).Machine, r.request
	c.hook(r, func() {
		address, err := c.opts.OnBoot(ctx, machine, req)
		now := c.enter()
		defer c.leave()
		if err != nil {
			r.Reason = "boot: " + err.Error()
			c.booted(r, now, "")
			return
		}
		r.up = true
		c.booted(r, now, address)
		if !r.deadline.IsZero() && r.Alive() {
			c.notify(r)
		}
	})
}

// booted says the machine runs at the address; "": one where nothing of the guest answers. mu is held.
func (c *Cloud) booted(r *resource, now time.Time, address string) {
	if r.State != providers.Pending {
		return
	}
	if address == "" {
		address = c.freeAddress(r)
	}
	r.State = providers.Running
	r.Machine.Address, r.Machine.ClusterAddress = address, address
	c.changed(r, now)
}

// freeAddress takes the lowest address that no living machine has: addresses come back soon after their machine's end, as
// they do in a subnet, so whoever takes an address for an identity is found out. mu is held.
func (c *Cloud) freeAddress(r *resource) string {
	for c.hosts[c.firstFree] {
		c.firstFree++
	}
	r.host = c.firstFree
	c.hosts[r.host] = true
	n := r.host + 10
	return fmt.Sprintf("10.%d.%d.%d:22", n>>16&255, n>>8&255, n&255)
}

// end makes the resource Terminated. mu is held.
func (c *Cloud) end(r *resource, now time.Time, reason string) {
	if r.State == providers.Terminated {
		return
	}
	for _, e := range []*event{r.boot, r.lease, r.reclaim, r.ending} {
		c.callOff(e)
	}
	r.State, r.Reason, r.ended = providers.Terminated, reason, now
	c.ledger[r.entry].To = now
	c.changed(r, now)
	if r.Machine == nil {
		return
	}
	if r.host >= 0 {
		delete(c.hosts, r.host)
		c.firstFree = min(c.firstFree, r.host)
	}
	for _, s := range r.sides {
		if !s.survives && s.ending == nil {
			s.ending = c.at(now.Add(c.jitter(0, s.ID, "end")), func(now time.Time) { c.end(s, now, "machine gone") })
		}
	}
	c.stopGuest(r, reason)
}

// stopGuest ends the guest and tells OnStop. mu is held.
func (c *Cloud) stopGuest(r *resource, reason string) {
	if r.stop != nil {
		r.stop()
	}
	if c.opts.OnStop != nil {
		c.hook(r, func() { c.opts.OnStop(r.ID, reason) })
	}
}

// announce is the cloud's decision to take the machine back after notice. An earlier deadline stays. mu is held.
func (c *Cloud) announce(r *resource, now time.Time, notice time.Duration) {
	if !r.Alive() {
		return
	}
	if notice <= 0 {
		c.end(r, now, "preempted")
		return
	}
	if deadline := now.Add(notice); r.deadline.IsZero() || deadline.Before(r.deadline) {
		r.deadline = deadline
		c.callOff(r.reclaim)
		r.reclaim = c.at(deadline, func(now time.Time) { c.end(r, now, "preempted") })
	}
	if r.up {
		c.notify(r)
	}
}

// notify tells the guest what is announced. mu is held.
func (c *Cloud) notify(r *resource) {
	if deadline := r.deadline; c.opts.OnNotice != nil {
		c.hook(r, func() { c.opts.OnNotice(r.ID, deadline) })
	}
}

// living finds a machine that is alive in a cloud that goes on. mu is held.
func (c *Cloud) living(machine string) (*resource, bool) {
	r := c.byID[machine]
	return r, r != nil && r.Machine != nil && r.Alive() && !c.closed
}

// Reached ends the boot lease: the guest has been reached, and from now on the node lease, which is the guest's own
// affair, ends the machine through [Cloud.PowerOff].
func (c *Cloud) Reached(machine string) {
	c.enter()
	defer c.leave()
	if r, ok := c.living(machine); ok {
		c.callOff(r.lease)
	}
}

// PowerOff is the guest ending its own machine. The reason is what the cloud then says of it.
func (c *Cloud) PowerOff(machine, reason string) {
	now := c.enter()
	defer c.leave()
	if r, ok := c.living(machine); ok {
		c.end(r, now, reason)
	}
}

// Reclaim preempts a machine as the cloud does; 0: without notice. Of several deadlines the first one holds, but each is announced.
func (c *Cloud) Reclaim(machine string, notice time.Duration) {
	now := c.enter()
	defer c.leave()
	if r, ok := c.living(machine); ok {
		c.announce(r, now, notice)
	}
}

// CallOffReclaim takes an announced preemption back.
func (c *Cloud) CallOffReclaim(machine string) {
	c.enter()
	defer c.leave()
	if r, ok := c.living(machine); ok && !r.deadline.IsZero() {
		c.callOff(r.reclaim)
		r.deadline = time.Time{}
		if r.up {
			c.notify(r)
		}
	}
}

// KillSilently preempts a machine without notice.
func (c *Cloud) KillSilently(machine string) { c.Reclaim(machine, 0) }

// Plant puts a resource into the world that no Create made: somebody else's, an untagged one, one with a run's tag that
// nobody asked for. It bills at usdPerHour until it is deleted. Its ID must be new.
func (c *Cloud) Plant(planted providers.Resource, usdPerHour float64) {
	now := c.enter()
	defer c.leave()
	if c.byID[planted.ID] != nil {
		panic("sim: plant " + planted.ID + ": it exists")
	}
	r := &resource{Resource: snapshot(planted), survives: true}
	if r.State == "" {
		r.State = providers.Running
	}
	c.add(r, usdPerHour, now)
}

// World returns every resource as it truly is now, without lag, in order of creation.
func (c *Cloud) World() []providers.Resource {
	c.enter()
	defer c.leave()
	world := make([]providers.Resource, 0, len(c.resources))
	for _, r := range c.resources {
		world = append(world, snapshot(r.Resource))
	}
	return world
}

// Ingress returns the CIDRs that may reach port 22 of the run from outside, sorted.
func (c *Cloud) Ingress(run string) []string {
	c.enter()
	defer c.leave()
	return slices.Sorted(slices.Values(c.ingress[run]))
}
