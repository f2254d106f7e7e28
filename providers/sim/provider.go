package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// Info implements [providers.Provider].
func (c *Cloud) Info(ctx context.Context) (providers.Info, error) {
	if err := ctx.Err(); err != nil {
		return providers.Info{}, providers.Errorf(providers.Unavailable, "info", "not asked: %w", err)
	}
	return providers.Info{
		Name:         c.opts.Name,
		Version:      "1",
		Capabilities: []providers.Capability{providers.CanCheck, providers.CanPreempt},
		Schema: []providers.Attribute{
			{Name: "regions", Type: "list(string)", Default: "all", Doc: "regions to rent in"},
		},
		NoticeSource:      c.opts.NoticeSource,
		DefaultUser:       "sim",
		ConsistencyWindow: c.opts.ConsistencyWindow,
		BillingInterval:   c.opts.BillingInterval,
		LeakBoundDoc:      "the simulated cloud ends a machine that nobody reached; a guest that was reached ends its own",
		SeparateHosts:     true,
	}, nil
}

// regions decodes the provider block and returns the regions it allows.
func (c *Cloud) regions(op string, config json.RawMessage) ([]string, error) {
	var all []string
	for _, r := range c.opts.Regions {
		all = append(all, r.Name)
	}
	if len(config) == 0 || string(config) == "null" {
		return all, nil
	}
	var attributes map[string]json.RawMessage
	if err := json.Unmarshal(config, &attributes); err != nil {
		return nil, providers.Errorf(providers.Invalid, op, "provider block is not an object: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		if name != "regions" {
			return nil, invalidAttribute(op, name, "unknown attribute")
		}
	}
	raw, ok := attributes["regions"]
	if !ok || string(raw) == "null" {
		return all, nil
	}
	var chosen []string
	if err := json.Unmarshal(raw, &chosen); err != nil {
		return nil, invalidAttribute(op, "regions", "not a list of strings")
	}
	return chosen, c.knownRegions(op, "regions", chosen)
}

func (c *Cloud) knownRegions(op, path string, names []string) error {
	for i, name := range names {
		if !slices.ContainsFunc(c.opts.Regions, func(r Region) bool { return r.Name == name }) {
			return invalidAttribute(op, fmt.Sprintf("%s[%d]", path, i), fmt.Sprintf("no region %q", name))
		}
	}
	return nil
}

func invalidAttribute(op, path, message string) error {
	return &providers.Error{Code: providers.Invalid, Op: op, Message: message, Attribute: path}
}

// within returns the regions of a request: those it names, all of which the block must allow, or the block's.
func (c *Cloud) within(op string, config json.RawMessage, named []string) ([]string, error) {
	allowed, err := c.regions(op, config)
	if err != nil || len(named) == 0 {
		return allowed, err
	}
	if err := c.knownRegions(op, "", named); err != nil {
		return nil, providers.Errorf(providers.Invalid, op, "regions of the request: %v", err)
	}
	return named, nil
}

// Offers implements [providers.Provider]. It offers every type in every zone and market asked for.
func (c *Cloud) Offers(ctx context.Context, req providers.OffersRequest) ([]providers.Offer, error) {
	regions, err := c.within(opOffers, req.Config, req.Regions)
	if err != nil {
		return nil, err
	}
	var offers []providers.Offer
	err = c.call(ctx, opOffers, string(req.Role), func(now time.Time) error {
		offers = nil
		for _, region := range c.opts.Regions {
			if !slices.Contains(regions, region.Name) {
				continue
			}
			for _, zone := range region.Zones {
				for _, t := range c.market.types {
					for _, market := range req.Markets {
						o := providers.Offer{
							Provider: c.opts.Name, InstanceType: t.Name, Region: region.Name, Zone: zone, Market: market,
							CPUs: t.CPUs, MemoryGiB: t.MemoryGiB, GPU: t.GPU, Rejected: misfit(t, req),
						}
						if usd := c.price(o); usd > 0 {
							o.USDPerHour, o.PriceDate, o.PriceSource = &usd, wall(now), "simulation"
						}
						offers = append(offers, o)
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return offers, nil
}

// misfit says why the type does not do; "" if it does.
func misfit(t Type, req providers.OffersRequest) string {
	switch {
	case len(req.InstanceTypes) > 0 && !slices.Contains(req.InstanceTypes, t.Name):
		return "not among the instance types asked for"
	case len(req.GPUs) > 0 && !slices.Contains(req.GPUs, t.GPU):
		return fmt.Sprintf("has %d GPUs %s", t.GPU.Count, t.GPU.Model)
	case len(req.InstanceTypes)+len(req.GPUs) > 0:
		return ""
	case t.CPUs < req.CPUs:
		return fmt.Sprintf("has %d CPUs", t.CPUs)
	case t.MemoryGiB < req.MemoryGiB:
		return fmt.Sprintf("has %g GiB of memory", t.MemoryGiB)
	}
	return ""
}

// Create implements [providers.Provider]. Its whole effect happens at one instant.
func (c *Cloud) Create(ctx context.Context, req providers.CreateRequest) (providers.CreateResult, error) {
	if _, err := c.regions(opCreate, req.Config); err != nil {
		return providers.CreateResult{}, err
	}
	if problem := problemOf(req); problem != "" {
		return providers.CreateResult{}, providers.Errorf(providers.Invalid, opCreate, "%s", problem)
	}
	// The effect may come after the caller has given up and reused its maps.
	req.Tags = maps.Clone(req.Tags)
	req.Offers = slices.Clone(req.Offers)
	var result providers.CreateResult
	err := c.call(ctx, opCreate, req.Token, func(now time.Time) (err error) {
		result, err = c.create(now, req)
		return err
	})
	if err != nil {
		return providers.CreateResult{}, err
	}
	return result, nil
}

// problemOf says what is wrong with the request as such; "" if nothing is.
func problemOf(req providers.CreateRequest) string {
	switch {
	case !regexp.MustCompile(`^[a-z0-9-]{1,64}$`).MatchString(req.Token):
		return fmt.Sprintf("token %q is not 1 to 64 of a-z, 0-9 and -", req.Token)
	case req.Run == "" || req.Tags[providers.TagRun] != req.Run:
		return fmt.Sprintf("tag %s is %q in run %q", providers.TagRun, req.Tags[providers.TagRun], req.Run)
	case req.Tags[providers.TagOwner] == "" || req.Tags[providers.TagRole] != string(req.Role) || req.Role == "":
		return fmt.Sprintf("tags %s and %s are not both set", providers.TagOwner, providers.TagRole)
	case req.Count < 1 || req.Min < 0 || req.Min > req.Count:
		return fmt.Sprintf("count %d, min %d", req.Count, req.Min)
	case req.TTL <= 0:
		return "no ttl: nothing would end a machine that nobody reaches"
	case len(req.Offers) == 0:
		return "no offers"
	}
	for _, o := range req.Offers {
		if o.Region != req.Offers[0].Region {
			return fmt.Sprintf("offers in regions %s and %s", req.Offers[0].Region, o.Region)
		}
	}
	return ""
}

// create places and rents. mu is held.
func (c *Cloud) create(now time.Time, req providers.CreateRequest) (providers.CreateResult, error) {
	if earlier := c.tokens[req.Token]; earlier != nil {
		return c.again(earlier, req)
	}
	if !c.creates.take(now, req.Count) {
		return providers.CreateResult{}, providers.Errorf(providers.Throttled, opCreate, "resource rate limit exceeded")
	}
	var placed []providers.Offer
	var refused []providers.Refusal
	quota := c.quota(now)
	for _, o := range req.Offers {
		missing := req.Count - len(placed)
		if missing == 0 {
			break
		}
		refusal := providers.Refusal{Offer: o}
		room := 0
		if !c.sells(o) {
			refusal.Code, refusal.Message = providers.Invalid, fmt.Sprintf("no %s of %s in %s", o.Market, o.InstanceType, o.Zone)
		} else {
			room = c.room(o, placed, now)
			refusal.Code, refusal.Message = providers.Capacity, fmt.Sprintf("%d of %d available", min(room, missing), missing)
			if left := max(0, quota-len(placed)); left < min(room, missing) {
				room = left
				refusal.Code, refusal.Message = providers.Quota, fmt.Sprintf("quota of %d machines reached", c.opts.Quota)
			}
		}
		for range min(room, missing) {
			placed = append(placed, o)
		}
		if room < missing {
			refused = append(refused, refusal)
		}
	}
	if len(placed) < req.Min {
		return providers.CreateResult{}, &providers.Error{
			Code: hopeful(refused), Op: opCreate, Offers: refused,
			Message: fmt.Sprintf("%d machines available, at least %d wanted", len(placed), req.Min),
		}
	}
	earlier := &order{run: req.Run, count: req.Count, refused: refused}
	c.tokens[req.Token] = earlier
	result := providers.CreateResult{Refused: refused}
	for i, o := range placed {
		r := c.rent(c.name("m", req.Token, strconv.Itoa(i)), o, req, now)
		earlier.ids = append(earlier.ids, r.ID)
		result.Machines = append(result.Machines, *snapshot(r.Resource).Machine)
	}
	if req.Ingress != nil {
		c.ingress[req.Run] = slices.Clone(req.Ingress)
	}
	return result, nil
}

// again answers a repeated Create. mu is held.
func (c *Cloud) again(earlier *order, req providers.CreateRequest) (providers.CreateResult, error) {
	if earlier.run != req.Run || earlier.count != req.Count {
		return providers.CreateResult{}, providers.Errorf(providers.Invalid, opCreate, "token %s was used for another request", req.Token)
	}
	result := providers.CreateResult{Refused: slices.Clone(earlier.refused)}
	for _, id := range earlier.ids {
		if r := c.byID[id]; r != nil && (r.State == providers.Pending || r.State == providers.Running) {
			result.Machines = append(result.Machines, *snapshot(r.Resource).Machine)
		}
	}
	return result, nil
}

// hopeful is the code of the whole refusal: the one that leaves most hope.
func hopeful(refused []providers.Refusal) providers.Code {
	for _, code := range []providers.Code{providers.Capacity, providers.Quota} {
		if slices.ContainsFunc(refused, func(r providers.Refusal) bool { return r.Code == code }) {
			return code
		}
	}
	return providers.Invalid
}

// sells tells whether the pool exists. mu is held.
func (c *Cloud) sells(o providers.Offer) bool {
	_, ok := c.typeNamed(o.InstanceType)
	return ok && (o.Market == providers.Spot || o.Market == providers.OnDemand) && slices.ContainsFunc(c.opts.Regions, func(r Region) bool {
		return r.Name == o.Region && slices.Contains(r.Zones, o.Zone)
	})
}

// Check implements [providers.Checker].
func (c *Cloud) Check(ctx context.Context, config json.RawMessage) (providers.Identity, error) {
	if _, err := c.regions(opCheck, config); err != nil {
		return providers.Identity{}, err
	}
	id := providers.Identity{Owner: c.opts.Owner}
	if c.opts.Quota > 0 {
		id.Notes = []string{fmt.Sprintf("quota: %d machines", c.opts.Quota)}
	}
	if err := c.call(ctx, opCheck, "", func(time.Time) error { return nil }); err != nil {
		return providers.Identity{}, err
	}
	return id, nil
}
