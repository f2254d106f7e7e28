package supervisor

import (
	"slices"
	"strings"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

const (
	// listEvery is how often the provider is asked what there is while nothing is awaited.
	listEvery = 30 * time.Second
	// While something is awaited listings follow each other at half of the time waited so far, within these bounds: the
	// wait is then never more than half as long again as it had to be, and a slow cloud is not hammered.
	listSoonest = 100 * time.Millisecond
	listLatest  = 10 * time.Second
)

// Seen is what listings have shown. It is a value: Observe makes a new one.
type Seen struct {
	// At is when the newest listing was asked for; negative: never.
	At time.Duration
	// Resources are what it showed, in order of kind and id.
	Resources []providers.Resource
	// Absent holds, per node, when the first of an unbroken row of listings without its machine was asked for.
	Absent map[string]time.Duration
	// Empty is how many listings in a row showed nothing alive, and EmptySince when the first of them was asked for.
	Empty      int
	EmptySince time.Duration
}

// Observe takes in a listing that was asked for at the given time. Nodes whose create call was under way then are not judged by it.
func (s Seen) Observe(state *journal.State, at time.Duration, resources []providers.Resource, busy map[string]bool) Seen {
	next := Seen{At: at, Resources: slices.Clone(resources), Absent: map[string]time.Duration{}}
	slices.SortFunc(next.Resources, func(a, b providers.Resource) int {
		if c := strings.Compare(a.Kind, b.Kind); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	for name, n := range state.Nodes {
		if n.Phase.Ended() || busy[Create{Token: n.Intent.Token}.Key()] {
			continue
		}
		if n.Machine != nil && next.machine(n) != nil {
			continue
		}
		if n.Machine == nil && len(next.byToken(n.Intent.Token)) > 0 {
			continue
		}
		next.Absent[name] = at
		if since, ok := s.Absent[name]; ok {
			next.Absent[name] = since
		}
	}
	if !slices.ContainsFunc(resources, providers.Resource.Alive) {
		next.Empty, next.EmptySince = 1, at
		if s.Empty > 0 {
			next.Empty, next.EmptySince = s.Empty+1, s.EmptySince
		}
	}
	return next
}

// machine finds a node's machine in the newest listing; nil where it is not there.
func (s Seen) machine(n *journal.Node) *providers.Resource {
	if n.Machine == nil {
		return nil
	}
	for i, r := range s.Resources {
		if r.Kind == providers.KindMachine && r.ID == n.Machine.ID {
			return &s.Resources[i]
		}
	}
	return nil
}

// byToken lists the living machines a create call left, in order of id.
func (s Seen) byToken(token string) []providers.Machine {
	var machines []providers.Machine
	for _, r := range s.Resources {
		if r.Kind == providers.KindMachine && r.Machine != nil && r.Machine.Token == token && r.Alive() {
			machines = append(machines, *r.Machine)
		}
	}
	return machines
}

// leftovers lists what carries the run's tag, lives, and is no machine of a node that has not ended.
func (s Seen) leftovers(state *journal.State) []providers.Resource {
	var left []providers.Resource
	for _, r := range s.Resources {
		if !r.Alive() {
			continue
		}
		owned := false
		for _, n := range state.Nodes {
			if n.Machine != nil && n.Machine.ID == r.ID && !n.Phase.Ended() {
				owned = true
			}
			if n.Phase == journal.PhaseIntended && r.Machine != nil && r.Machine.Token == n.Intent.Token {
				owned = true
			}
		}
		if !owned {
			left = append(left, r)
		}
	}
	return left
}

// list decides when the next listing is due.
func (d *decider) list() {
	since, waiting := d.awaited()
	due := d.Seen.At + listEvery
	if d.Seen.At < 0 {
		due = listEvery
	}
	if waiting {
		due = since
		if d.Seen.At >= since {
			due = d.Seen.At + min(max((d.Seen.At-since)/2, listSoonest), listLatest)
		}
	}
	if due > d.Now {
		d.wake(due)
		return
	}
	d.do(List{})
}

// awaited tells whether only a listing can bring the run forward, and since when.
func (d *decider) awaited() (since time.Duration, waiting bool) {
	await := func(from time.Duration) {
		if !waiting || from > since {
			since, waiting = from, true
		}
	}
	for _, n := range d.State.Nodes {
		switch {
		case n.Phase.Ended():
		case n.Phase == journal.PhaseIntended:
			if d.State.Stopping != nil {
				await(d.State.StoppingAt.Duration())
			}
		case n.Phase == journal.PhaseDeleting:
			await(n.DeletingAt.Duration())
		case n.Machine.Address == "":
			await(n.CreatedAt.Duration())
		case n.Suspect != "":
			await(n.SuspectAt.Duration())
		case n.Notice != nil && n.Notice.DeadlineAt != nil && n.Notice.DeadlineAt.Duration() <= d.Now:
			await(n.Notice.DeadlineAt.Duration())
		}
	}
	if d.State.Finished != nil && !waiting && d.allEnded(providers.Worker) {
		last := d.State.FinishedAt.Duration()
		for _, n := range d.State.Nodes {
			last = max(last, n.DeletedAt.Duration())
		}
		await(last)
	}
	return since, waiting
}
