package supervisor

import (
	"slices"
	"strings"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

const (
	// listEvery is how often the provider is asked what there is while nothing is awaited, and at most a quarter of the node lease.
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
	// Absent holds, per node, when the first of an unbroken row of listings without its machine was asked for. A node whose create call has no
	// outcome is in it where the listing showed no machine that it could get.
	Absent map[string]time.Duration
	// Empty is how many listings in a row showed nothing alive, and EmptySince when the first of them was asked for.
	Empty      int
	EmptySince time.Duration
	// Alone and AloneSince say the same of listings that showed no living machine but the head's.
	Alone      int
	AloneSince time.Duration

	byID    map[string]int   // of machines, into Resources
	byToken map[string][]int // of living machines
}

// Observe takes in a listing that was asked for at the given time. unsure tells whether a create call was under way then, by its token: its nodes
// are not judged. What carries another run's tag, or none, is not of this run, whatever the provider thinks.
func (s Seen) Observe(state *journal.State, at time.Duration, resources []providers.Resource, unsure func(token string) bool) Seen {
	next := Seen{At: at, Absent: map[string]time.Duration{}, byID: map[string]int{}, byToken: map[string][]int{}}
	for _, r := range resources {
		if r.Tags[providers.TagRun] == state.Run {
			next.Resources = append(next.Resources, r)
		}
	}
	slices.SortFunc(next.Resources, func(a, b providers.Resource) int {
		if c := strings.Compare(a.Kind, b.Kind); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	for i, r := range next.Resources {
		if r.Kind != providers.KindMachine {
			continue
		}
		next.byID[r.ID] = i
		if r.Machine != nil && r.Alive() {
			next.byToken[r.Machine.Token] = append(next.byToken[r.Machine.Token], i)
		}
	}
	found := map[string]bool{} // calls with machines that no node stands for yet
	owned := map[string]bool{}
	for _, n := range state.Nodes {
		if n.Machine != nil {
			owned[n.Machine.ID] = true
		}
	}
	for token, machines := range next.byToken {
		found[token] = slices.ContainsFunc(machines, func(i int) bool { return !owned[next.Resources[i].ID] })
	}
	for name, n := range state.Nodes {
		if n.Phase.Ended() || n.Machine != nil && next.machine(n) != nil {
			continue
		}
		if token := n.Intent.Token; n.Machine == nil && (unsure(token) || found[token]) {
			continue
		}
		next.Absent[name] = at
		if since, ok := s.Absent[name]; ok {
			next.Absent[name] = since
		}
	}
	head := state.Head()
	if !slices.ContainsFunc(next.Resources, func(r providers.Resource) bool {
		return r.Kind == providers.KindMachine && r.Alive() && (head == nil || head.Machine == nil || head.Machine.ID != r.ID)
	}) {
		next.Alone, next.AloneSince = 1, at
		if s.Alone > 0 {
			next.Alone, next.AloneSince = s.Alone+1, s.AloneSince
		}
	}
	if !slices.ContainsFunc(next.Resources, providers.Resource.Alive) {
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
	if i, ok := s.byID[n.Machine.ID]; ok {
		return &s.Resources[i]
	}
	return nil
}

// unowned lists the living machines of a create call that no node stands for, in order of id.
func (s Seen) unowned(state *journal.State, token string) []providers.Machine {
	if len(s.byToken[token]) == 0 {
		return nil
	}
	owned := map[string]bool{}
	for _, n := range state.Nodes {
		if n.Machine != nil && n.Intent.Token == token {
			owned[n.Machine.ID] = true
		}
	}
	var machines []providers.Machine
	for _, i := range s.byToken[token] {
		if m := s.Resources[i].Machine; !owned[m.ID] {
			machines = append(machines, *m)
		}
	}
	return machines
}

// leftovers lists what lives and is no machine of a node that has not ended, nor of a call without an outcome.
func (s Seen) leftovers(state *journal.State) []providers.Resource {
	if len(s.Resources) == 0 {
		return nil
	}
	owned, open := map[string]bool{}, map[string]bool{}
	for _, n := range state.Nodes {
		if n.Machine != nil && !n.Phase.Ended() {
			owned[n.Machine.ID] = true
		}
		if n.Phase == journal.PhaseIntended {
			open[n.Intent.Token] = true
		}
	}
	var left []providers.Resource
	for _, r := range s.Resources {
		machine := r.Kind == providers.KindMachine
		if !r.Alive() || machine && owned[r.ID] || machine && r.Machine != nil && open[r.Machine.Token] {
			continue
		}
		left = append(left, r)
	}
	return left
}

// list decides when the next listing is due.
func (d *decider) list() {
	every := min(listEvery, d.Job.Limits.NodeLease/4)
	since, waiting := d.awaited()
	due := d.Seen.At + every
	if d.Seen.At < 0 {
		due = every
	}
	if waiting {
		due = since
		if d.Seen.At >= since {
			due = d.Seen.At + min(max((d.Seen.At-since)/d.patience(), listSoonest), listLatest)
		}
	}
	switch {
	case d.ActFrom > 0 && d.Seen.At < d.ActFrom:
		due = d.Now
	case d.blind():
		due = min(due, d.Seen.At+time.Second)
	}
	if due > d.Now {
		d.wake(due)
		return
	}
	d.do(List{})
}

// patience is which part of the time waited so far may pass until the next listing. Half is enough where nobody waits for the answer; a machine's
// address holds everybody up, and may come at most 3 % late.
func (d *decider) patience() time.Duration {
	if d.State.Stopping == nil && slices.ContainsFunc(d.nodes, func(n *journal.Node) bool {
		return n.Phase == journal.PhaseCreated && n.Machine.Address == ""
	}) {
		return 32
	}
	return 2
}

// awaited tells whether only a listing can bring the run forward, and since when.
func (d *decider) awaited() (since time.Duration, waiting bool) {
	await := func(from time.Duration) {
		if !waiting || from > since {
			since, waiting = from, true
		}
	}
	for _, n := range d.nodes {
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
		case n.Notice != nil && n.Notice.DeadlineAt == nil:
			await(n.NoticedAt.Duration())
		case n.Notice != nil && n.Notice.DeadlineAt.Duration() <= d.Now:
			await(n.Notice.DeadlineAt.Duration())
		}
	}
	if d.State.Finished != nil && !waiting && d.allEnded(providers.Worker) && !(d.Mode == ModeHead && d.confirmed()) {
		await(max(d.State.FinishedAt.Duration(), d.lastDeleted()))
	}
	return since, waiting
}

// lastDeleted is when the last node was seen gone.
func (d *decider) lastDeleted() time.Duration {
	last := time.Duration(0)
	for _, n := range d.nodes {
		last = max(last, n.DeletedAt.Duration())
	}
	return last
}
