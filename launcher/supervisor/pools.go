package supervisor

import (
	"slices"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

const (
	// coolDown is how long a zone that refused is left alone the first time; it doubles with each refusal in a row.
	coolDown = 15 * time.Second
	// maxCoolDown bounds it: capacity comes back within minutes as often as not.
	maxCoolDown = 5 * time.Minute
)

// dry is what a zone has refused since it last gave a machine.
type dry struct {
	// refusals are all of them; hard are those of calls content with one machine, and until is how long the zone rests after the last of these.
	refusals, hard int
	until          time.Duration
	// asked is the smallest number of machines that was too much.
	asked int
}

// pools picks the offers for a create call and how many machines it must give to be worth keeping.
//
// With same_zone = "prefer" the first try is all machines in one zone, the next zone after a refusal; then as many as can
// train at all in one zone; then a mix. Replacements go where the others are, and elsewhere after two refusals there or
// below min, and where machines keep dying in boot in one zone (avoid), there last.
func (d *decider) pools(role providers.Role, slots []slot, avoid string) (offers []providers.Offer, least int) {
	all := d.offers(role)
	same := d.Job.Placement.SameZone
	// A fixed host is a zone of its own, where no two workers fit.
	if role == providers.Head || same == jobspec.SameZoneNo || d.State.Planned.Info.FixedHosts {
		return d.warm(role, zonesFirst(all, nil, avoid)), 1
	}
	home := d.homeZone()
	switch {
	case home == "":
		return d.firstPools(all, len(slots))
	case same == jobspec.SameZoneRequire:
		return d.warm(role, inZone(all, home)), 1
	case avoid == "" && d.dryness(role)[home].refusals < 2 && d.members() >= Least(d.Job, d.State):
		return d.warm(role, inZone(all, home)), 1
	}
	return d.warm(role, zonesFirst(all, append([]string{home}, zonesOf(all)...), avoid)), 1
}

// firstPools is the ladder of pools while no worker is anywhere yet.
func (d *decider) firstPools(all []providers.Offer, count int) (offers []providers.Offer, least int) {
	zones := zonesOf(all)
	for _, least := range []int{count, min(count, Least(d.Job, d.State))} {
		for _, z := range zones {
			if zone := d.dryness(providers.Worker)[z]; zone.refusals == 0 || least > 1 && least < zone.asked {
				return inZone(all, z), least
			}
		}
	}
	if d.Job.Placement.SameZone != jobspec.SameZoneRequire {
		return d.warm(providers.Worker, zonesFirst(all, zones, "")), 1
	}
	// One zone it must be: whichever has cooled down first, and any number of machines is a beginning.
	for _, z := range zones {
		if o := d.warm(providers.Worker, inZone(all, z)); len(o) > 0 {
			return o, 1
		}
	}
	return nil, 1
}

// offers are the planned pools of a role. Where a limit counts money, an offer without a price is none.
func (d *decider) offers(role providers.Role) []providers.Offer {
	all := d.State.Planned.Workers
	if role == providers.Head {
		all = d.State.Planned.Head
	}
	if d.Job.Limits.BudgetUSD > 0 || d.Job.Limits.MaxUSDPerHour > 0 {
		return slices.DeleteFunc(slices.Clone(all), func(o providers.Offer) bool { return o.USDPerHour == nil })
	}
	return all
}

// warm leaves out the offers of zones that refused lately, and wakes when the first of them may be tried again.
func (d *decider) warm(role providers.Role, all []providers.Offer) []providers.Offer {
	zones := d.dryness(role)
	var offers []providers.Offer
	for _, o := range all {
		if until := zones[o.Zone].until; until > d.Now {
			d.wake(until)
			continue
		}
		offers = append(offers, o)
	}
	return offers
}

// dryness is what each zone has refused since it last gave a machine.
func (d *decider) dryness(role providers.Role) map[string]dry {
	if zones, ok := d.dry[role]; ok {
		return zones
	}
	given := map[string]journal.At{}
	for _, n := range d.nodes {
		if n.Role == role && n.Machine != nil {
			z := n.Machine.Offer.Zone
			given[z] = max(given[z], n.CreatedAt)
		}
	}
	zones := map[string]dry{}
	for _, r := range d.State.Refusals {
		if r.Role != role {
			continue
		}
		for _, z := range r.Zones {
			// What gave less than asked, at one moment, has nothing left.
			if at, ok := given[z]; ok && r.At < at {
				continue
			}
			zone := zones[z]
			if zone.refusals++; zone.asked == 0 || r.Min < zone.asked {
				zone.asked = r.Min
			}
			if at, ok := given[z]; r.Min <= 1 || ok && r.At == at {
				zone.until = r.At.Duration() + min(coolDown<<min(zone.hard, 10), maxCoolDown)
				zone.hard++
			}
			zones[z] = zone
		}
	}
	if d.dry == nil {
		d.dry = map[providers.Role]map[string]dry{}
	}
	d.dry[role] = zones
	return zones
}

// homeZone is the zone most of the workers are in, or are being rented in; "" where there are none.
func (d *decider) homeZone() string {
	count := map[string]int{}
	home := ""
	for _, n := range d.workers {
		if n.Leaving() {
			continue
		}
		z := ""
		if n.Machine != nil {
			z = n.Machine.Offer.Zone
		} else if zones := zonesOf(n.Intent.Offers); len(zones) == 1 {
			z = zones[0]
		}
		if z == "" {
			continue
		}
		count[z]++
		if home == "" || count[z] > count[home] {
			home = z
		}
	}
	return home
}

// members counts the workers that train or could.
func (d *decider) members() int {
	count := 0
	for _, n := range d.workers {
		if n.Phase == journal.PhaseJoined && !n.Leaving() {
			count++
		}
	}
	return count
}

// zonesOf lists the zones in the order the offers have them.
func zonesOf(offers []providers.Offer) []string {
	var zones []string
	for _, o := range offers {
		if !slices.Contains(zones, o.Zone) {
			zones = append(zones, o.Zone)
		}
	}
	return zones
}

func inZone(offers []providers.Offer, zone string) []providers.Offer {
	var in []providers.Offer
	for _, o := range offers {
		if o.Zone == zone {
			in = append(in, o)
		}
	}
	return in
}

// zonesFirst groups the offers by zone in the given order; with none, they stay in theirs. What lies in the zone to avoid comes last.
func zonesFirst(offers []providers.Offer, zones []string, avoid string) []providers.Offer {
	sorted := slices.Clone(offers)
	place := func(o providers.Offer) int {
		if avoid != "" && o.Zone == avoid {
			return len(zones) + 1
		}
		if i := slices.Index(zones, o.Zone); i >= 0 {
			return i
		}
		return 0
	}
	slices.SortStableFunc(sorted, func(a, b providers.Offer) int { return place(a) - place(b) })
	return sorted
}
