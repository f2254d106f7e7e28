package supervisor

import (
	"fmt"
	"hash/fnv"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

const (
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
	// failures counts machines in a row that never joined; zone is where the last of them was.
	failures  int
	zone      string
	notBefore time.Duration
}

// slot looks at the machines of one slot. A noticed machine holds its slot no more: its replacement is ordered at the notice.
func (d *decider) slot(number int) slot {
	s := slot{number: number, attempt: 1}
	var ended time.Duration
	young := 0 // members in a row that died young
	for _, n := range d.bySlot[number] {
		s.attempt = n.Attempt + 1
		if !n.Leaving() {
			s.held = true
		}
		switch {
		case n.JoinedAt >= 0 && diedYoung(n):
			s.failures = 0
			young, ended = young+1, n.LostAt.Duration()
		case n.JoinedAt >= 0:
			s.failures, young = 0, 0
		case n.Phase == journal.PhaseRefused: // the zones' cool-down paces those
		case n.Leaving():
			s.failures++
			if n.Machine != nil {
				s.zone = n.Machine.Offer.Zone
			}
			ended = max(n.LostAt, n.DeletingAt, n.NoticedAt).Duration()
		}
	}
	if tries := max(s.failures, young); tries > 1 {
		s.notBefore = ended + min(bootBackoff<<min(tries-2, 10), maxBootBackoff)
	}
	s.name = journal.NodeName(number, s.attempt)
	return s
}

// youngDeath is how long a member must have lived for its loss to say nothing about the next one: a job that kills its machines is
// not to be given one after the other at once.
const youngDeath = time.Minute

// diedYoung tells whether the node was lost, without a notice, soon after it had joined.
func diedYoung(n *journal.Node) bool {
	return n.Notice == nil && n.LostAt >= 0 && (n.LostAt-n.JoinedAt).Duration() < youngDeath
}

// order asks for a machine per slot in one create call, from the pools that are worth trying now.
func (d *decider) order(role providers.Role, slots []slot, avoid string) {
	offers, least := d.pools(role, slots, avoid)
	if len(offers) == 0 {
		if len(d.offers(role)) == 0 {
			d.stop(journal.Stopping{Cause: journal.CauseLimit, Text: fmt.Sprintf("no offer for a %s has a price, so no limit could be kept", role)})
		}
		return
	}
	slots, offers = d.affordable(role, slots, offers)
	if len(slots) == 0 || d.ends || d.blind() {
		return
	}
	c := Create{Token: d.token(role), New: true}
	for _, s := range slots {
		c.Nodes = append(c.Nodes, s.name)
	}
	c.Want = journal.Intended{Role: role, Token: c.Token, Count: len(slots), Min: min(least, len(slots)), Offers: offers}
	d.do(c)
	d.ordered[role]++
	d.usdOrder += float64(len(slots)) * dearest(offers) * d.factor()
}

// token names a create call: the run, the role, and how many calls came before, so that it is new and can be derived again
// from the state. The state goes from epoch to epoch, and what an epoch may not know of its predecessor's last calls its own number keeps apart.
func (d *decider) token(role providers.Role) string {
	if role == providers.Head { // a refused head is overwritten by the next attempt
		attempt := d.ordered[role] + 1
		if head := d.State.Head(); head != nil {
			attempt += head.Attempt
		}
		return tokenPrefix(d.State) + "h" + strconv.Itoa(attempt)
	}
	calls := d.ordered[role] + 1
	for _, call := range d.byToken {
		if call[0].Role == role {
			calls++
		}
	}
	epoch := ""
	if d.State.Epoch > 1 {
		epoch = "e" + strconv.Itoa(d.State.Epoch)
	}
	return tokenPrefix(d.State) + epoch + "w" + strconv.Itoa(calls)
}

// tokenPrefix is what the tokens of a run begin with. A caller may use a run id again after the run is over, and a cloud
// remembers tokens for longer: the run's own key tells the two apart. Tokens are at most 64 bytes of [a-z0-9-].
func tokenPrefix(s *journal.State) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s %s %d", s.Run, s.Created.ClientKey, s.Began.UnixMicro())
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, strings.ToLower(s.Run))
	return fmt.Sprintf("%s-%08x-", name[:min(len(name), 38)], h.Sum32())
}

// affordable cuts the order down to what max_usd_per_hour and budget_usd still allow: first to cheaper offers, then to
// fewer machines. Where not even min workers fit before the run has begun, it is stopped; later the order waits.
func (d *decider) affordable(role providers.Role, slots []slot, offers []providers.Offer) ([]slot, []providers.Offer) {
	if d.Job.Limits.MaxUSDPerHour == 0 && d.Job.Limits.BudgetUSD == 0 {
		return slots, offers
	}
	fits, price := -1, 0.0
	for _, o := range offers {
		n := min(d.fits(*o.USDPerHour*d.factor()), len(slots))
		if n > fits || n == fits && *o.USDPerHour > price {
			fits, price = n, *o.USDPerHour
		}
	}
	var within []providers.Offer
	for _, o := range offers {
		if *o.USDPerHour <= price {
			within = append(within, o)
		}
	}
	if !d.started() && (role == providers.Head && fits < 1 || role == providers.Worker && d.coming()+fits < Least(d.Job, d.State)) {
		d.stop(journal.Stopping{Cause: journal.CauseLimit, Text: fmt.Sprintf("what budget_usd and max_usd_per_hour leave does not pay for a head and %d workers: a %s costs %s an hour", Least(d.Job, d.State), role, dollars(price*d.factor()))})
		return nil, nil
	}
	return slots[:fits], within
}

// fits is how many more machines the limits allow at a price.
func (d *decider) fits(usdPerHour float64) int {
	if usdPerHour <= 0 {
		return math.MaxInt
	}
	fits := math.MaxInt
	if most := d.Job.Limits.MaxUSDPerHour; most > 0 {
		fits = min(fits, int((most-d.State.USDPerHour()-d.usdOrder)/usdPerHour+1e-9))
	}
	if d.Job.Limits.BudgetUSD > 0 {
		// One machine more costs its price for as long as it takes to end in order, and what is left then must be more than nothing.
		hours := d.billed(d.reserve()).Hours()
		fits = min(fits, int(math.Ceil((d.left()-d.usdOrder*hours)/(usdPerHour*hours)-1e-9))-1)
	}
	return max(fits, 0)
}

func (d *decider) factor() float64 {
	if f := d.State.Planned.Factor; f > 0 {
		return f
	}
	return 1
}

func dearest(offers []providers.Offer) float64 {
	usd := 0.0
	for _, o := range offers {
		if o.USDPerHour != nil {
			usd = max(usd, *o.USDPerHour)
		}
	}
	return usd
}

// coming counts the workers that are members or may become one.
func (d *decider) coming() int {
	count := 0
	for _, n := range d.workers {
		if !n.Leaving() {
			count++
		}
	}
	return count
}
