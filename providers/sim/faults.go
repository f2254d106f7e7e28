package sim

import (
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// The operations that faults name: the methods, and each further page of a listing.
const (
	opOffers  = "offers"
	opCreate  = "create"
	opList    = "list"
	opPage    = "page"
	opDelete  = "delete"
	opUpdate  = "update"
	opPreempt = "preempt"
	opCheck   = "check"
)

// faults are the scripted ones. Cloud.mu guards them.
type faults struct {
	queued    map[string][]fault // by operation, first in first out
	until     map[string]lasting // by operation
	deletes   map[string]*DeleteFault
	neverBoot int
}

type fault struct {
	code   providers.Code
	effect bool
}

type lasting struct {
	fault
	until time.Time
}

func newFaults() faults {
	return faults{queued: map[string][]fault{}, until: map[string]lasting{}, deletes: map[string]*DeleteFault{}}
}

// next takes the fault that the next call of op meets. A queued one comes before a lasting one, op before "*".
func (f *faults) next(op string, now time.Time) (fault, bool) {
	for _, name := range []string{op, "*"} {
		if q := f.queued[name]; len(q) > 0 {
			f.queued[name] = q[1:]
			return q[0], true
		}
	}
	for _, name := range []string{op, "*"} {
		if l, ok := f.until[name]; ok && now.Before(l.until) {
			return l.fault, true
		}
	}
	return fault{}, false
}

// FailNext makes one call of op end with code, with or without its effect. Faults queue. op is the name of a method in
// lower case, "page" for the further pages of a listing, or "*" for any call.
func (c *Cloud) FailNext(op string, code providers.Code, effectHappens bool) {
	c.enter()
	defer c.leave()
	c.faults.queued[op] = append(c.faults.queued[op], fault{code, effectHappens})
}

// DropReply makes one call of op take effect and its caller see Unavailable.
func (c *Cloud) DropReply(op string) { c.FailNext(op, providers.Unavailable, true) }

// FailFor makes every call of op end with code, without effect, for so long; 0 ends that.
func (c *Cloud) FailFor(op string, code providers.Code, d time.Duration) {
	now := c.enter()
	defer c.leave()
	c.faults.until[op] = lasting{fault{code: code}, now.Add(d)}
}

// DeleteFault is what is wrong with the deletion of a resource.
type DeleteFault struct {
	// Refuse is how many orders are refused: the resource is among what Delete returns.
	Refuse int
	// Ignore is how many orders after those are accepted and forgotten.
	Ignore int
	// Delay makes the deletion take so much longer; Hang, for ever.
	Delay time.Duration
	Hang  bool
}

// FaultDelete scripts the deletion of one resource, or of all of a kind that have no script of their own, which then
// share its counts. The zero DeleteFault ends that, and a deletion that hangs goes on with the next order.
func (c *Cloud) FaultDelete(idOrKind string, f DeleteFault) {
	c.enter()
	defer c.leave()
	c.faults.deletes[idOrKind] = &f
}

// NeverBoot makes the next n machines run without ever coming up.
func (c *Cloud) NeverBoot(n int) {
	c.enter()
	defer c.leave()
	c.faults.neverBoot = n
}

// SetListLag makes every listing show the world as it was d ago, whatever Info says; 0 ends that.
func (c *Cloud) SetListLag(d time.Duration) {
	c.enter()
	defer c.leave()
	c.listLag = d
}
