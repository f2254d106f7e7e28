package sim

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// market is what can be had at what price.
type market struct {
	types  []Type             // a copy: SetPrice changes it
	factor map[string]float64 // of spot prices, by type and zone; 1 where absent
	next   time.Time          // when factors change next; zero: never
	step   int
	spells map[string]*spell // by zone
}

// spell is a time for which a zone has spot machines, or has none.
type spell struct {
	until time.Time
	dry   bool
	n     int
}

func newMarket(opts Options, now time.Time) market {
	m := market{types: slices.Clone(opts.Types), factor: map[string]float64{}, spells: map[string]*spell{}}
	if opts.PriceEvery > 0 {
		m.next = now.Add(opts.PriceEvery)
	}
	return m
}

func (c *Cloud) typeNamed(name string) (Type, bool) {
	for _, t := range c.market.types {
		if t.Name == name {
			return t, true
		}
	}
	return Type{}, false
}

// price is the present list price of a machine from the pool, 0 where there is none. mu is held.
func (c *Cloud) price(o providers.Offer) float64 {
	t, _ := c.typeNamed(o.InstanceType)
	if o.Market == providers.OnDemand {
		return t.USDPerHour
	}
	if f, ok := c.market.factor[o.InstanceType+" "+o.Zone]; ok {
		return t.SpotUSDPerHour * f
	}
	return t.SpotUSDPerHour
}

// SetPrice changes a list price, and with it what living machines bill from now on.
func (c *Cloud) SetPrice(instanceType string, market providers.Market, usdPerHour float64) {
	now := c.enter()
	defer c.leave()
	for i := range c.market.types {
		if t := &c.market.types[i]; t.Name == instanceType {
			if market == providers.OnDemand {
				t.USDPerHour = usdPerHour
			} else {
				t.SpotUSDPerHour = usdPerHour
			}
		}
	}
	c.reprice(now)
}

// repriceUntil takes the steps of the spot prices that are due. They are not events, because an endless row of timers
// would keep a bubble in which everybody waits from being seen as deadlocked. mu is held.
func (c *Cloud) repriceUntil(now time.Time) {
	for m := &c.market; !m.next.IsZero() && !m.next.After(now); m.next = m.next.Add(c.opts.PriceEvery) {
		m.step++
		for _, t := range m.types {
			for _, region := range c.opts.Regions {
				for _, zone := range region.Zones {
					key := t.Name + " " + zone
					f, ok := m.factor[key]
					if !ok {
						f = 1
					}
					f *= math.Exp(c.opts.PriceSigma * c.normal("price", key, strconv.Itoa(m.step)))
					m.factor[key] = math.Round(f*1e6) / 1e6
				}
			}
		}
		c.reprice(m.next)
	}
}

// reprice bills the living machines at their present price from now on. mu is held.
func (c *Cloud) reprice(now time.Time) {
	for _, r := range c.resources {
		if r.Machine == nil || !r.Alive() {
			continue
		}
		if usd := c.price(r.Machine.Offer); usd != c.ledger[r.entry].USDPerHour {
			c.ledger[r.entry].To = now
			c.bill(r, usd, now)
		}
	}
}

// SetCapacity limits the zone to n machines alive at a time, of all types and markets together.
func (c *Cloud) SetCapacity(zone string, n int) { c.SetPool(Pool{Zone: zone}, n) }

// SetPool limits the pool to n machines alive at a time; a negative n lifts the limit. Living machines stay.
func (c *Cloud) SetPool(pool Pool, n int) {
	c.enter()
	defer c.leave()
	c.caps = slices.DeleteFunc(c.caps, func(pc PoolCapacity) bool { return pc.Pool == pool })
	if n >= 0 {
		c.caps = append(c.caps, PoolCapacity{pool, n})
	}
}

// room is how many machines the pool has beside those alive and those already placed. mu is held.
func (c *Cloud) room(o providers.Offer, placed []providers.Offer, now time.Time) int {
	if o.Market == providers.Spot && c.dry(o.Zone, now) {
		return 0
	}
	room := math.MaxInt
	for _, limit := range c.caps {
		if !limit.matches(o) {
			continue
		}
		left := limit.Machines
		for _, r := range c.resources {
			if r.Machine != nil && r.Alive() && limit.matches(r.Machine.Offer) {
				left--
			}
		}
		for _, p := range placed {
			if limit.matches(p) {
				left--
			}
		}
		room = min(room, max(0, left))
	}
	return room
}

// quota is how many machines the account may still have. mu is held.
func (c *Cloud) quota(now time.Time) int {
	if c.opts.Quota == 0 {
		return math.MaxInt
	}
	left := c.opts.Quota
	for _, r := range c.resources {
		if r.Machine != nil && (r.Alive() || now.Sub(r.ended) < c.opts.QuotaLinger) {
			left--
		}
	}
	return max(0, left)
}

// dry tells whether the zone has no spot machines now: a two-state process of exponential spells. mu is held.
func (c *Cloud) dry(zone string, now time.Time) bool {
	if c.opts.DryEvery == 0 || c.opts.DryFor == 0 {
		return false
	}
	s := c.market.spells[zone]
	if s == nil {
		s = &spell{until: c.start.Add(c.exponential(c.opts.DryEvery, "spell", zone, "0"))}
		c.market.spells[zone] = s
	}
	for !s.until.After(now) {
		s.n++
		s.dry = !s.dry
		mean := c.opts.DryEvery
		if s.dry {
			mean = c.opts.DryFor
		}
		s.until = s.until.Add(c.exponential(mean, "spell", zone, strconv.Itoa(s.n)))
	}
	return s.dry
}
