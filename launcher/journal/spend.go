package journal

import (
	"math"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// SpendUSD is what the run's machines cost up to now, at list price × the provider's factor. A machine bills from its intent
// (the create call) until a listing shows it gone, by the whole billing interval. A create call whose outcome is not known counts as if it had given
// all it asked for. With a later now it is what they will have cost then, if nothing changes.
func (s *State) SpendUSD(now At) float64 {
	total := int64(0) // in billionths, because the sum of floats depends on the order of the map
	for _, n := range s.Nodes {
		usd, ok := n.USDPerHour()
		if !ok {
			continue
		}
		end := now
		if n.DeletedAt >= 0 {
			end = n.DeletedAt
		}
		billed := (end - n.IntendedAt).Duration()
		if s.Planned != nil {
			if step := s.Planned.Info.BillingInterval; step > 0 {
				billed = (billed + step - 1) / step * step
			}
		}
		total += int64(math.Round(usd * billed.Hours() * 1e9))
	}
	return float64(total) / 1e9 * s.factor()
}

// USDPerHour is what the living machines cost an hour, those included that a create call without an outcome may have given.
func (s *State) USDPerHour() float64 {
	total := int64(0)
	for _, n := range s.Nodes {
		if usd, ok := n.USDPerHour(); ok && !n.Phase.Ended() {
			total += int64(math.Round(usd * 1e9))
		}
	}
	return float64(total) / 1e9 * s.factor()
}

func (s *State) factor() float64 {
	if s.Planned == nil || s.Planned.Factor == 0 {
		return 1
	}
	return s.Planned.Factor
}

// Goodput is worker-time inside formed generations over billed worker-time, 0..1.
func (s *State) Goodput(now At) float64 {
	useful, billed := s.Useful, time.Duration(0)
	if g := s.Generation; g.Phase == GenFormed {
		useful += time.Duration(len(g.Members)) * (now - g.Since).Duration()
	}
	for _, n := range s.Nodes {
		if n.Role != providers.Worker || n.CreatedAt < 0 {
			continue
		}
		end := now
		if n.DeletedAt >= 0 {
			end = n.DeletedAt
		}
		billed += (end - n.IntendedAt).Duration()
	}
	if billed <= 0 {
		return 0
	}
	return float64(useful) / float64(billed)
}
