// Package rendezvous decides the generations of a run: who is in, which rank, when to re-form.
//
// Core is pure: inputs with the time go in, outputs come out. It does no I/O, reads no clock, starts no goroutine,
// throws no dice and never lets the order of a map show, so the same inputs give the same outputs. The head's shell
// feeds it and carries out what it says, in order. The supervisor rents machines by itself and only tells the core,
// through Roster, what is coming and going.
//
//	           enough members, nothing of an older generation alive
//	┌───────────┐ ──────────────────── Form ──────────────────▶ ┌─────────┐
//	│  forming  │                                               │ running │── every rank exited 0 ──┐
//	│ (holding  │                ┌────────┐  loss, failed rank, └─────────┘                         │
//	│ below min)│ ◀── Closed ────│ ending │◀── End ── notice, swap, growth, scale, stop             │
//	└───────────┘ each member    └────────┘── every rank had exited 0 before SIGTERM ───────────────┤
//	      │       Ended, or lost                                                                    ▼
//	      └─ stopped, below_min over, or failures charged beyond max_restarts ────────────── Finish: finished
//
// # Leases
//
// A node is lost after lost_after + 2 s of silence (its agent has killed the ranks 2 s before), or at once on
// evidence. No generation is formed before every member of the last one has reported Ended or is lost. A node whose
// processes do not end within the sequence and a minute is lost as stuck: the shell stops answering its beats, and
// its place in the barrier is free when that lease has run out. When the shell itself was away, all leases and
// open verdicts start again. A new head process waits as long for the members of the last generation to come back,
// ends what still runs there, and goes on from that.
//
// # Who is in
//
// Members of the last generation first, then who fills a slot that was lost, then the lowest slot, up to the
// wanted size; never two of one slot, never a noticed or leaving node. A group rank belongs to the slot as long
// as the world is large enough for it; only ranks beyond its end move, into the lowest free places.
//
// A generation in which a rank has exited 0 is about to be done: only a loss, a failure, a deadline or Stop ends it,
// not what would merely make it larger.
//
// # Blame
//
// A failed rank ends its generation at once, but the verdict falls lost_after + 2 s later: a loss or notice of a
// member seen from the forming to then excuses it. The survivors need not wait for the verdict as long as all the
// open ones together, charged, would stay within max_restarts; beyond that the core waits, so a job with
// max_restarts = 0 is not started again to fail again. One generation is charged once, for its first failed rank;
// the exit code of the run is that of the first rank ever charged.
package rendezvous

import (
	"cmp"
	"slices"
	"time"
)

// Times that no job changes.
const (
	defaultLostAfter = 10 * time.Second
	leaseMargin      = 2 * time.Second  // between the agent killing its ranks and the head giving them away
	deadlineSlack    = 2 * time.Second  // an ending for a notice starts grace and this before the deadline
	termWait         = 10 * time.Second // SIGTERM to SIGKILL in an ending on purpose
	killWait         = time.Second      // the same after a loss or a failed rank
	// stuckAfter is what an agent gets beyond the sequence to report Ended. Freeing the memory of a large
	// process takes tens of seconds, and being stuck costs a machine.
	stuckAfter = time.Minute
	// outliveAfter is how long after its deadline a noticed node must still be heard to count as healthy again.
	// Clouds are late by seconds, not minutes.
	outliveAfter = 2 * time.Minute
	// formEvery keeps apart generations that die at once, as where an agent refuses to start.
	formEvery = time.Second
	// A node whose processes vanish without an exit in so many generations in a row, each less than unfitAfter old,
	// is lost.
	unfitHoles = 3
	unfitAfter = time.Minute
	// completeAfter is how long nobody else must have been coming before the first generation starts below max: the
	// supervisor takes a moment to order again, elsewhere, what was refused.
	completeAfter = time.Second
)

const never = time.Duration(1<<63 - 1)

// Config is what the job file says about the world. Zero durations mean at once; BelowMin 0 means never give up.
type Config struct {
	Min, Max int
	Fixed    bool // Min = Max = count: held until a lost worker is replaced
	Procs    int  // rank processes per node where Joined does not say; 0: 1
	OneExit  bool // one process per node stands for all its ranks (torchrun)

	StartWait time.Duration // first generation: from min to starting without the rest
	LostAfter time.Duration // the member lease; 0: 10 s
	GrowEvery time.Duration // from forming a generation to ending it for growth
	BelowMin  time.Duration // held for so long, give up
	Grace     time.Duration // preemption.grace
	Signal    string        // preemption.signal; empty: an ending skips Grace

	MaxRestarts int
	Checkpoints bool          // the job has a checkpoint block: growth waits for a checkpoint from the beginning
	Coalesce    time.Duration // after an ending began, or enough members are there, for others to show; see DefaultCoalesce
}

// DefaultCoalesce is the design's window for losses and joins that belong together.
const DefaultCoalesce = 200 * time.Millisecond

// Past is what a head process knows of the one before it. The zero value is a new run.
type Past struct {
	Generation  int      // the last one formed
	Members     []Member // of it; if they are unknown, whoever they were is waited out for one lease
	Closed      bool     // nothing of it lives any more
	Slots       []int    // that a loss or notice left empty
	Restarts    int      // charged so far
	FirstCharge *Charged // nil if Restarts is 0
	Checkpoints bool     // the job ever reported one
	Workers     int      // of the last Scale; 0: Max
}

type phase int

const (
	forming phase = iota
	running
	ending
	finished
)

// node is what is known of one machine until it is lost and owes nothing.
type node struct {
	name          string
	slot, attempt int
	procs         int
	addr          string

	listed, coming, leaving bool // in the last Roster
	joined, lost            bool
	heard                   time.Duration

	noticed  bool
	deadline time.Duration // of the notice; the time of the notice where it had none
	outlived bool          // nothing came of the notice with that deadline

	member    int // the generation it was last in
	groupRank int // and its place there

	holes  int           // generations in a row that died young for want of its processes
	owes   int           // the generation that may still have processes there
	endAt  time.Duration // when it was told to end that
	endFor time.Duration // how long the sequence takes; 0: not told
}

// blame is a failure that waits for its verdict.
type blame struct {
	charge  Charged
	members []Member // a loss or notice of one of them excuses it
	at      time.Duration
}

// Core holds the membership of one run. Use New. It is not safe for concurrent use: one goroutine owns it.
type Core struct {
	cfg    Config
	target int // wanted size
	phase  phase
	now    time.Duration
	next   time.Duration // earliest moment some rule waits for
	floor  time.Duration // no lease counts from before: start, or the last time the shell was away
	quiet  time.Duration // nothing is formed before: unknown ranks of an older head process may live
	begun  bool

	nodes   []*node          // by slot, attempt, name, without the lost that owe nothing
	byName  map[string]*node // all ever seen; looked up, never walked
	current bool             // a Roster came after the last loss or notice

	generation int     // the last one formed
	world      *world  // the last one formed; nil before the first
	slots      []int   // filled by the last generation, or left empty by a loss or notice since the world was last full
	restored   bool    // world is a former head process's
	cause      Cause   // of the next Form
	blames     []blame // in the order of failing
	charged    int
	first      *Charged

	saves  bool // the job reports checkpoints
	saved  bool // it did in this very step
	stop   *Stop
	enough struct { // since when enough members were known while none trains
		ok    bool
		since time.Duration
	}
	complete struct { // since when nobody else is coming, before the first generation
		ok    bool
		since time.Duration
	}
	short struct { // below min
		ok    bool
		since time.Duration
		told  Hold
	}
	out []Output
}

// New returns the core of a run, or of a new head process that takes over an old run.
func New(cfg Config, past Past) *Core {
	cfg.Procs = max(cfg.Procs, 1)
	cfg.Min = max(cfg.Min, 1)
	cfg.Max = max(cfg.Max, cfg.Min)
	if cfg.LostAfter <= 0 {
		cfg.LostAfter = defaultLostAfter
	}
	c := &Core{
		cfg: cfg, target: cfg.Max, next: never, byName: map[string]*node{},
		generation: past.Generation, slots: slices.Clone(past.Slots), cause: CauseStart,
		charged: past.Restarts, first: past.FirstCharge, saves: cfg.Checkpoints || past.Checkpoints,
	}
	if past.Workers > 0 {
		c.scale(past.Workers)
	}
	if past.Generation == 0 {
		return c
	}
	c.cause, c.restored = CauseHeadRestarted, true
	if len(past.Members) == 0 {
		return c
	}
	c.world = newWorld(past.Generation, past.Members, 0)
	c.world.ending, c.world.graceful = CauseHeadRestarted, true // without their store the ranks can still save
	if !past.Closed {
		c.phase = ending
	}
	for i, m := range c.world.members {
		n := &node{name: m.Node, slot: m.Slot, procs: m.Procs, addr: m.Addr}
		n.member, n.groupRank = past.Generation, i
		if !past.Closed {
			n.owes = past.Generation
		}
		c.insert(n)
		c.slots = append(c.slots, m.Slot)
	}
	return c
}

// Next is when Step(Tick) is due if nothing else happens before; ok is false if nothing is waited for.
func (c *Core) Next() (at time.Duration, ok bool) {
	return c.next, c.next != never
}

// Step takes one input at the run clock's now and returns what is to be done, in order. Time never runs backwards:
// an earlier now counts as the last one. After Finish it returns nothing.
func (c *Core) Step(now time.Duration, in Input) []Output {
	if c.phase == finished {
		return nil
	}
	c.begin(now)
	c.out, c.saved = nil, false
	if beat, ok := in.(Heard); ok && c.now < c.next && !c.hear(beat) {
		return nil // of a thousand workers that is nearly every input; c.next is too early now, which costs one Tick
	}
	c.apply(in)
	for c.settle() {
	}
	return c.out
}

// begin moves the clock. If the shell comes far too late, beats have waited unread behind it, so silence proves
// nothing: leases and verdicts start again.
func (c *Core) begin(now time.Duration) {
	c.now = max(now, c.now)
	if !c.begun {
		c.begun, c.floor = true, c.now
		if c.restored && c.world == nil {
			c.quiet = c.now + c.lease()
		}
		c.enough.ok, c.enough.since = c.restored, c.now
		return
	}
	if c.next != never && c.now > c.next+c.cfg.LostAfter/2 {
		c.floor = c.now
		for i := range c.blames {
			c.blames[i].at = c.now
		}
	}
}

// settle applies every rule once to what is known and reports whether the phase changed, which calls for another
// round. Each rule asks due, so what is waited for and when to wake cannot disagree.
func (c *Core) settle() (again bool) {
	before := c.phase
	c.next = never
	if before == finished {
		return false
	}
	c.expire()
	c.judge()
	switch c.phase {
	case forming:
		c.tryForm()
	case running:
		c.tryEnd()
	case ending:
		c.tryClose()
	}
	return c.phase != before
}

// due reports whether t has come; if not, the core wakes then.
func (c *Core) due(t time.Duration) bool {
	if c.now >= t {
		return true
	}
	c.next = min(c.next, t)
	return false
}

func (c *Core) emit(o Output) { c.out = append(c.out, o) }

// lease is the silence after which a rank is given away.
func (c *Core) lease() time.Duration { return c.cfg.LostAfter + leaseMargin }

// need is how many members a generation must have.
func (c *Core) need() int {
	if c.cfg.Fixed {
		return c.target
	}
	return c.cfg.Min
}

func (c *Core) scale(workers int) {
	if c.cfg.Fixed {
		c.target = max(workers, 1)
		return
	}
	c.target = min(max(workers, c.cfg.Min), c.cfg.Max)
}

func (c *Core) finish(f Finish) {
	if f.Cause != FinishJobFailed {
		f.Rank = -1
	}
	c.emit(f)
	c.phase = finished
}

// insert keeps nodes in an order that does not depend on when they became known.
func (c *Core) insert(n *node) {
	at, _ := slices.BinarySearchFunc(c.nodes, n, compareNodes)
	c.nodes = slices.Insert(c.nodes, at, n)
	c.byName[n.name] = n
}

func compareNodes(a, b *node) int {
	return cmp.Or(cmp.Compare(a.slot, b.slot), cmp.Compare(a.attempt, b.attempt), cmp.Compare(a.name, b.name))
}
