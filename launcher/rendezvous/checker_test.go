package rendezvous

import (
	"fmt"
	"time"
)

// A checker sees what goes into a Core and what comes out, and knows the promises but none of the rules.
type checker struct {
	cfg  Config
	core *Core

	joined, lost map[string]bool
	before       map[string]bool // lost to an older head process
	slot         map[string]int
	heard        map[string]time.Duration
	owes         map[string]int // the generation that may live there
	noticed      map[string]bool
	leaving      map[string]bool

	form     *Form
	closed   bool
	formed   bool            // by this core
	done     map[[2]int]bool // generation, rank
	charged  int
	first    *Charged
	finished bool
}

func newChecker(cfg Config, core *Core, past Past) *checker {
	k := &checker{
		cfg: cfg, core: core, joined: map[string]bool{}, lost: map[string]bool{}, slot: map[string]int{},
		heard: map[string]time.Duration{}, owes: map[string]int{}, noticed: map[string]bool{}, leaving: map[string]bool{},
		done: map[[2]int]bool{}, charged: past.Restarts, first: past.FirstCharge, closed: true,
	}
	if past.Generation > 0 {
		k.form = &Form{Generation: past.Generation, Members: past.Members}
		k.closed = past.Closed || len(past.Members) == 0
		for _, m := range past.Members {
			if !past.Closed {
				k.owes[m.Node] = past.Generation
			}
		}
	}
	return k
}

// see checks one step and returns what is broken.
func (k *checker) see(now time.Duration, in Input, outs []Output) error {
	if k.finished && len(outs) > 0 {
		return fmt.Errorf("%s after Finish", show(outs[0]))
	}
	k.learn(now, in)
	for _, o := range outs {
		if k.finished {
			return fmt.Errorf("%s after Finish", show(o))
		}
		if err := k.output(now, o); err != nil {
			return fmt.Errorf("%s: %w", show(o), err)
		}
	}
	next, ok := k.core.Next()
	if k.finished && ok {
		return fmt.Errorf("a wake-up at %v after Finish", next)
	}
	if _, beat := in.(Heard); ok && next <= now && !beat {
		return fmt.Errorf("Next is %v at %v: the shell would spin", next, now)
	}
	return nil
}

func (k *checker) learn(now time.Duration, in Input) {
	switch in := in.(type) {
	case Joined:
		if k.lost[in.Node] {
			return
		}
		if !k.joined[in.Node] {
			k.slot[in.Node] = in.Slot
		}
		k.joined[in.Node], k.heard[in.Node] = true, now
		switch current := k.form != nil && k.owes[in.Node] == k.form.Generation; {
		case current && k.formed:
		case in.Running != 0:
			k.owes[in.Node] = in.Running
		default:
			delete(k.owes, in.Node)
		}
	case Heard:
		if !k.lost[in.Node] {
			k.heard[in.Node] = now
		}
	case Gone:
		k.lost[in.Node] = true
		delete(k.owes, in.Node)
	case Ended:
		if k.owes[in.Node] == in.Generation {
			delete(k.owes, in.Node)
		}
	case Roster:
		clear(k.leaving)
		for _, e := range in.Nodes {
			k.leaving[e.Node] = e.Leaving
		}
	case Exited:
		if k.form != nil && in.Generation == k.form.Generation && in.Phase == ByItself && in.Code == 0 && in.Signal == "" {
			for _, m := range k.form.Members {
				for r := range m.Procs {
					if m.Node == in.Node && (r == in.LocalRank || k.cfg.OneExit) {
						k.done[[2]int{in.Generation, m.FirstRank + r}] = true
					}
				}
			}
		}
	}
}

func (k *checker) output(now time.Duration, o Output) error {
	switch o := o.(type) {
	case Form:
		return k.checkForm(now, o)
	case End:
		if len(o.Nodes) == 0 {
			return fmt.Errorf("for nobody")
		}
		for _, n := range o.Nodes {
			if k.lost[n] {
				return fmt.Errorf("sent to %s, which is lost", n)
			}
		}
	case Closed:
		if k.closed {
			return fmt.Errorf("closed twice")
		}
		k.closed = true
	case Lost:
		if k.lost[o.Node] && (o.Cause == LostSilent || o.Cause == LostStuck) {
			return fmt.Errorf("lost before")
		}
		if o.Cause == LostSilent && now < k.heard[o.Node]+k.cfg.LostAfter+leaseMargin {
			return fmt.Errorf("heard at %v", k.heard[o.Node])
		}
		k.lost[o.Node] = true
	case Charged:
		k.charged++
		if o.Restarts != k.charged || k.charged > o.Max+1 {
			return fmt.Errorf("is restart %d", k.charged)
		}
		if k.first == nil {
			k.first = &o
		}
	case Finish:
		k.finished = true
		switch {
		case o.Cause == FinishSuccess && !o.Success, o.Cause != FinishSuccess && o.Success:
			return fmt.Errorf("success is %v", o.Success)
		case o.Success:
			world := 0
			for _, m := range k.form.Members {
				world += m.Procs
			}
			for r := range world {
				if !k.done[[2]int{k.form.Generation, r}] {
					return fmt.Errorf("rank %d did not exit 0", r)
				}
			}
		case o.Cause == FinishJobFailed && (k.charged <= k.cfg.MaxRestarts || o.ExitCode != k.first.Code || o.Signal != k.first.Signal):
			return fmt.Errorf("with %d charged, the first %+v", k.charged, k.first)
		}
		if !k.closed {
			return fmt.Errorf("generation %d is not closed", k.form.Generation)
		}
	}
	return nil
}

func (k *checker) checkForm(now time.Duration, f Form) error {
	last := 0
	if k.form != nil {
		last = k.form.Generation
	}
	if f.Generation <= last {
		return fmt.Errorf("after generation %d", last)
	}
	if !k.closed {
		return fmt.Errorf("generation %d is not closed", last)
	}
	for n, g := range k.owes {
		if now < k.heard[n]+k.cfg.LostAfter+leaseMargin {
			return fmt.Errorf("generation %d may live on %s, heard at %v", g, n, k.heard[n])
		}
	}
	clear(k.owes)
	rank, slots := 0, map[int]bool{}
	for i, m := range f.Members {
		switch {
		case m.GroupRank != i || m.FirstRank != rank || m.Procs < 1:
			return fmt.Errorf("%s has group rank %d, ranks %d+%d at place %d, rank %d", m.Node, m.GroupRank, m.FirstRank, m.Procs, i, rank)
		case slots[m.Slot]:
			return fmt.Errorf("slot %d twice", m.Slot)
		case !k.joined[m.Node] || k.lost[m.Node]:
			return fmt.Errorf("%s: joined is %v, lost is %v", m.Node, k.joined[m.Node], k.lost[m.Node])
		case k.before[m.Node]:
			return fmt.Errorf("%s was lost to the head process before", m.Node)
		case k.leaving[m.Node]:
			return fmt.Errorf("%s is leaving", m.Node)
		}
		rank += m.Procs
		slots[m.Slot] = true
		k.owes[m.Node] = f.Generation
	}
	if rank != f.WorldSize {
		return fmt.Errorf("world size %d of %d ranks", f.WorldSize, rank)
	}
	if !k.cfg.Fixed && (len(f.Members) < k.cfg.Min || len(f.Members) > k.cfg.Max) {
		return fmt.Errorf("%d members", len(f.Members))
	}
	if f.Restarts != k.charged || k.charged > k.cfg.MaxRestarts {
		return fmt.Errorf("%d restarts are charged", k.charged)
	}
	if k.form != nil {
		for _, old := range k.form.Members {
			for _, m := range f.Members {
				if m.Slot == old.Slot && old.GroupRank < len(f.Members) && m.GroupRank != old.GroupRank {
					return fmt.Errorf("slot %d moved from %d to %d", m.Slot, old.GroupRank, m.GroupRank)
				}
			}
		}
	}
	k.form, k.closed, k.formed = &f, false, true
	return nil
}
