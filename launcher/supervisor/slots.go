package supervisor

import (
	"fmt"
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
	// bootBackoff is the pause before a slot whose machines keep dying in boot is tried a third time; it doubles from there.
	bootBackoff    = 5 * time.Second
	maxBootBackoff = 2 * time.Minute
)

// slot is a place among the workers and what became of the machines it has had.
type slot struct {
	number  int
	attempt int    // of the next machine
	name    string // of the next node
	held    bool   // somebody is in it, or on the way
	// failures counts machines in a row that never joined.
	failures  int
	notBefore time.Duration
}

// slot looks at the machines of one slot. A noticed machine holds its slot no more: its replacement is ordered at the notice.
func (d *decider) slot(number int) slot {
	s := slot{number: number, attempt: 1}
	var ended time.Duration
	for _, n := range d.State.List(providers.Worker) {
		if n.Slot != number {
			continue
		}
		s.attempt = n.Attempt + 1
		if !n.Leaving() {
			s.held = true
		}
		switch {
		case n.JoinedAt >= 0:
			s.failures = 0
		case n.Phase == journal.PhaseRefused: // the zones' cool-down paces those
		case n.Leaving():
			s.failures++
			ended = max(n.LostAt, n.DeletedAt, n.NoticedAt).Duration()
		}
	}
	if s.failures > 1 {
		s.notBefore = ended + min(bootBackoff<<min(s.failures-2, 10), maxBootBackoff)
	}
	s.name = journal.NodeName(number, s.attempt)
	return s
}

// order asks for a machine per slot in one create call, from the pools that are worth trying now.
func (d *decider) order(role providers.Role, slots []slot) {
	offers, least := d.pools(role, slots)
	if len(offers) == 0 {
		return
	}
	slots = d.affordable(role, slots, offers)
	if len(slots) == 0 {
		return
	}
	c := Create{Token: d.token(role), New: true}
	for _, s := range slots {
		c.Nodes = append(c.Nodes, s.name)
	}
	if d.Busy[c.Key()] {
		return
	}
	c.Want = journal.Intended{Role: role, Token: c.Token, Count: len(slots), Min: min(least, len(slots)), Offers: offers}
	d.do(c)
}

// pools picks the offers for a create call and how many machines it must give to be worth keeping.
//
// With same_zone = "prefer" the first try is all machines in one zone, the next zone after a refusal, and a mix only when
// every zone has refused; replacements go where the others are, and elsewhere after two failures there or below min.
func (d *decider) pools(role providers.Role, slots []slot) (offers []providers.Offer, least int) {
	all := d.State.Planned.Workers
	if role == providers.Head {
		all = d.State.Planned.Head
	}
	zones := zonesOf(all)
	home := d.homeZone()
	if role == providers.Head || d.Job.Placement.SameZone == jobspec.SameZoneNo {
		return d.warm(role, all, zones), 1
	}
	if home != "" {
		if d.Job.Placement.SameZone == jobspec.SameZoneRequire {
			return d.warm(role, all, []string{home}), 1
		}
		failures := d.refusedInRow(role, home)
		for _, s := range slots {
			failures = max(failures, s.failures)
		}
		if failures < 2 && d.members() >= Least(d.Job, d.State) {
			return d.warm(role, all, []string{home}), 1
		}
		zones = slices.DeleteFunc(zones, func(z string) bool { return z == home })
		return d.warm(role, all, append([]string{home}, zones...)), 1
	}
	// Nobody is there yet: a zone that has never refused gets the chance to take all.
	for _, z := range zones {
		if d.refusedInRow(role, z) == 0 {
			return filterZone(all, z), len(slots)
		}
	}
	if d.Job.Placement.SameZone == jobspec.SameZoneRequire {
		// One zone it must be: whichever has cooled down first, and any number of machines is a beginning.
		for _, z := range zones {
			if o := d.warm(role, all, []string{z}); len(o) > 0 {
				return o, 1
			}
		}
		return nil, 1
	}
	return d.warm(role, all, zones), 1
}

// warm returns the offers in the given zones, in that order, without those that refused lately, and wakes when the first of them may be tried again.
func (d *decider) warm(role providers.Role, all []providers.Offer, zones []string) []providers.Offer {
	var offers []providers.Offer
	for _, z := range zones {
		if n := d.refusedInRow(role, z); n > 0 {
			until := d.lastRefusal(role, z) + min(coolDown<<min(n-1, 10), maxCoolDown)
			if until > d.Now {
				d.wake(until)
				continue
			}
		}
		offers = append(offers, filterZone(all, z)...)
	}
	return offers
}

// refusedInRow counts the refusals of a zone since it last gave a machine.
func (d *decider) refusedInRow(role providers.Role, zone string) int {
	var given journal.At = -1
	for _, n := range d.State.Nodes {
		if n.Role == role && n.Machine != nil && n.Machine.Offer.Zone == zone {
			given = max(given, n.CreatedAt)
		}
	}
	count := 0
	for _, r := range d.State.Refusals {
		if r.Role == role && r.At > given && slices.Contains(r.Zones, zone) {
			count++
		}
	}
	return count
}

func (d *decider) lastRefusal(role providers.Role, zone string) time.Duration {
	last := time.Duration(0)
	for _, r := range d.State.Refusals {
		if r.Role == role && slices.Contains(r.Zones, zone) {
			last = max(last, r.At.Duration())
		}
	}
	return last
}

// homeZone is the zone most of the living workers are in; "" where there are none.
func (d *decider) homeZone() string {
	count := map[string]int{}
	home := ""
	for _, n := range d.State.List(providers.Worker) {
		if n.Machine == nil || n.Leaving() {
			continue
		}
		z := n.Machine.Offer.Zone
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
	for _, n := range d.State.List(providers.Worker) {
		if n.Phase == journal.PhaseJoined && !n.Leaving() {
			count++
		}
	}
	return count
}

// affordable cuts the order down to what max_usd_per_hour and budget_usd still allow. Where not even min workers fit, the run is stopped.
func (d *decider) affordable(role providers.Role, slots []slot, offers []providers.Offer) []slot {
	limits := d.Job.Limits
	if limits.MaxUSDPerHour == 0 && limits.BudgetUSD == 0 {
		return slots
	}
	dearest := 0.0
	for _, o := range offers {
		if o.USDPerHour != nil {
			dearest = max(dearest, *o.USDPerHour)
		}
	}
	dearest *= d.factor()
	if dearest == 0 {
		return slots
	}
	rate := d.State.USDPerHour() + d.pendingUSDPerHour()
	fits := len(slots)
	if most := limits.MaxUSDPerHour; most > 0 {
		fits = min(fits, int((most-rate)/dearest+1e-9))
	}
	if budget := limits.BudgetUSD; budget > 0 {
		hours := (d.Job.Preemption.Grace + limits.NodeLease).Hours()
		left := budget - d.State.SpendUSD(journal.At(d.Now)) - rate*hours
		fits = min(fits, int(left/(dearest*hours)+1e-9))
	}
	fits = max(fits, 0)
	if role == providers.Worker && d.State.Generation.Number > 0 || fits == len(slots) {
		return slots[:fits]
	}
	if role == providers.Head && fits < 1 || role == providers.Worker && d.coming()+fits < Least(d.Job, d.State) {
		d.do(Stop{Why: journal.Stopping{Cause: journal.CauseLimit, Text: fmt.Sprintf("the limits do not allow %d workers at %.2f USD an hour each", Least(d.Job, d.State), dearest)}})
		return nil
	}
	return slots[:fits]
}

// pendingUSDPerHour is what create calls without an outcome may come to cost.
func (d *decider) pendingUSDPerHour() float64 {
	total := 0.0
	for _, n := range d.State.Nodes {
		if n.Phase != journal.PhaseIntended {
			continue
		}
		dearest := 0.0
		for _, o := range n.Intent.Offers {
			if o.USDPerHour != nil {
				dearest = max(dearest, *o.USDPerHour)
			}
		}
		total += dearest
	}
	return total * d.factor()
}

func (d *decider) factor() float64 {
	if f := d.State.Planned.Factor; f > 0 {
		return f
	}
	return 1
}

// coming counts the workers that are members or may become one.
func (d *decider) coming() int {
	count := 0
	for _, n := range d.State.List(providers.Worker) {
		if !n.Leaving() {
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

func filterZone(offers []providers.Offer, zone string) []providers.Offer {
	var in []providers.Offer
	for _, o := range offers {
		if o.Zone == zone {
			in = append(in, o)
		}
	}
	return in
}
