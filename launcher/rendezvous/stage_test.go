package rendezvous

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A stage plays shell, agents and supervisor to a Core in virtual time. Its script has one input per line, "SECONDS
// VERB ARGUMENTS"; a node is a letter for its slot and a number for its attempt, 1 if left out: c2 is the second
// machine of slot 2. Agents beat every second, start what Form says, and answer End with an exit by SIGTERM and
// Ended, after 0.5 s, gracefully after 2 s. The stage calls Tick exactly when Next asks for it.
//
//	join c2 d*4            agents join, d with 4 processes      rejoin a:3     with generation 3 running there
//	roster a b! c2+        expected; ! leaving, + coming         mute c         the machine is dead or cut off
//	unmute c               it is heard again                     gone c         evidence
//	notice c 125           with this deadline; 0 none            cancel c       the notice
//	exit c:0 7             local rank 0 exits with 7, by itself  exit c:0 KILL  by a signal
//	leased c:0             the agent killed it for its lease     ended c        all of c's processes are gone
//	wedge c                never answers End                     slow c 9       answers End after 9 s
//	checkpoint             scale 3                               stop budget    tick
type stage struct {
	t      failer
	core   *Core
	now    time.Duration
	queue  []cue
	agents map[string]*agent
	trace  []string
	outs   []Output
	done   bool
	watch  func(Input, []Output)
	leases bool // agents whose beats nobody answers kill their processes
}

// failer is what *testing.T and *rapid.T have in common here.
type failer interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

type cue struct {
	at time.Duration
	do func()
}

type agent struct {
	muted, wedged bool
	sick          bool // was wedged at some time
	stranger      bool // has not joined the head process that runs
	cut           bool // lost: nobody answers its beats any more
	answered      time.Duration
	replay        []Exited // what it tells a new head process
	slow          time.Duration
	running       int
	procs         int
	exited        map[int]bool
}

func newStage(t failer, cfg Config, past Past) *stage {
	return &stage{t: t, core: New(cfg, past), agents: map[string]*agent{}}
}

func (s *stage) at(at time.Duration, do func()) {
	i, _ := slices.BinarySearchFunc(s.queue, at, func(c cue, at time.Duration) int {
		if c.at <= at { // after those of the same moment
			return -1
		}
		return 1
	})
	s.queue = slices.Insert(s.queue, i, cue{at, do})
}

// run plays until the script and the clock are through.
func (s *stage) run(until time.Duration) {
	for {
		tick, ok := s.core.Next()
		tick = max(tick, s.now)
		switch {
		case len(s.queue) > 0 && s.queue[0].at <= until && (!ok || s.queue[0].at <= tick):
			c := s.queue[0]
			s.queue = s.queue[1:]
			s.now = c.at
			c.do()
		case ok && tick <= until:
			s.now = tick
			s.step(Tick{})
		default:
			s.now = until
			return
		}
	}
}

func (s *stage) step(in Input) {
	outs := s.core.Step(s.now, in)
	for _, o := range outs {
		s.trace = append(s.trace, fmt.Sprintf("%s %s", seconds(s.now), show(o)))
		s.obey(o)
	}
	s.outs = append(s.outs, outs...)
	if s.watch != nil {
		s.watch(in, outs)
	}
}

// obey is the agents' part.
func (s *stage) obey(o Output) {
	switch o := o.(type) {
	case Form:
		for name, a := range s.agents {
			if s.leases && a.running != 0 {
				s.t.Fatalf("%v: generation %d formed while %d lives on %s", s.now, o.Generation, a.running, name)
			}
		}
		for _, m := range o.Members {
			a := s.agent(m.Node)
			if s.leases && s.now >= a.answered+s.core.cfg.LostAfter {
				s.at(s.now, func() { s.step(Ended{Node: m.Node, Generation: o.Generation}) }) // it refuses
				continue
			}
			a.running, a.procs, a.exited, a.replay = o.Generation, m.Procs, map[int]bool{}, nil
		}
	case End:
		for _, name := range o.Nodes {
			a := s.agent(name)
			wait := 500 * time.Millisecond
			if o.Graceful {
				wait = 2 * time.Second
			}
			if a.slow > 0 {
				wait = a.slow
			}
			s.at(s.now+wait, func() {
				if a.wedged || a.muted {
					return
				}
				for r := range a.procs {
					if a.running == o.Generation && !a.exited[r] {
						s.step(Exited{Node: name, Generation: o.Generation, LocalRank: r, Signal: "SIGTERM", Phase: AfterTerm})
					}
				}
				if a.running == o.Generation {
					a.running = 0
				}
				s.step(Ended{Node: name, Generation: o.Generation})
			})
		}
	case Lost:
		s.agent(o.Node).cut = true
	case Finish:
		s.done = true
	}
}

func (s *stage) agent(name string) *agent {
	if s.agents[name] == nil {
		s.agents[name] = &agent{exited: map[int]bool{}}
	}
	return s.agents[name]
}

func (s *stage) beat(name string) {
	s.at(s.now+time.Second, func() {
		a := s.agent(name)
		switch {
		case s.done:
			return
		case !a.muted && !a.stranger && !(a.cut && s.leases): // without leases they go on as if nobody had told them
			a.answered = s.now
			s.step(Heard{Node: name})
		case s.leases && a.running != 0 && s.now >= a.answered+s.core.cfg.LostAfter:
			a.running = 0
		}
		s.beat(name)
	})
}

// play schedules a script.
func (s *stage) play(script string) (end time.Duration) {
	s.t.Helper()
	for line := range strings.Lines(script) {
		line, _, _ = strings.Cut(line, "#")
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		at, err := strconv.ParseFloat(f[0], 64)
		if err != nil || len(f) < 2 {
			s.t.Fatalf("script line %q", line)
		}
		end = max(end, time.Duration(at*float64(time.Second)))
		s.at(time.Duration(at*float64(time.Second)), func() { s.perform(f[1], f[2:]) })
	}
	return end
}

func (s *stage) perform(verb string, args []string) {
	num := func(i int) int {
		n, err := strconv.Atoi(args[i])
		if err != nil {
			s.t.Fatalf("%s %v: %v", verb, args, err)
		}
		return n
	}
	switch verb {
	case "join", "rejoin":
		for _, arg := range args {
			name, running, _ := strings.Cut(arg, ":")
			name, procs, _ := strings.Cut(name, "*")
			j := Joined{Node: name, Addr: name + ".example"}
			j.Slot, j.Attempt = place(name)
			j.Procs, _ = strconv.Atoi(procs)
			j.Running, _ = strconv.Atoi(running)
			a := s.agent(name)
			if running != "" {
				a.running, a.procs = j.Running, max(j.Procs, 1)
			}
			a.muted, a.answered = false, s.now
			s.step(j)
			if verb == "join" {
				s.beat(name)
			}
		}
	case "roster":
		var r Roster
		for _, arg := range args {
			e := Expected{Node: strings.Trim(arg, "!+"), Coming: strings.Contains(arg, "+"), Leaving: strings.Contains(arg, "!")}
			e.Slot, e.Attempt = place(e.Node)
			r.Nodes = append(r.Nodes, e)
		}
		s.step(r)
	case "mute", "unmute", "wedge":
		for _, arg := range args {
			a := s.agent(arg)
			a.muted = verb == "mute"
			a.wedged = verb == "wedge"
		}
	case "slow":
		slow, err := time.ParseDuration(args[1] + "s")
		if err != nil {
			s.t.Fatal(err)
		}
		s.agent(args[0]).slow = slow
	case "gone":
		for _, arg := range args {
			s.agent(arg).muted = true
			s.step(Gone{Node: arg, Evidence: "terminated"})
		}
	case "notice":
		s.step(Notice{Node: args[0], Deadline: time.Duration(num(1)) * time.Second})
	case "cancel":
		s.step(Notice{Node: args[0], Cancelled: true})
	case "exit", "leased":
		name, local, _ := strings.Cut(args[0], ":")
		a := s.agent(name)
		e := Exited{Node: name, Generation: a.running}
		e.LocalRank, _ = strconv.Atoi(local)
		a.exited[e.LocalRank] = true
		if verb == "leased" {
			e.Signal, e.Phase = "SIGKILL", AfterLease
		} else if code, err := strconv.Atoi(args[1]); err == nil {
			e.Code = code
		} else {
			e.Signal = "SIG" + args[1]
		}
		s.step(e)
	case "ended":
		a := s.agent(args[0])
		g := a.running
		a.running = 0
		s.step(Ended{Node: args[0], Generation: g})
	case "checkpoint":
		s.step(Checkpoint{Step: 1, Path: "ckpt"})
	case "scale":
		s.step(Scale{Workers: num(0)})
	case "stop":
		s.step(Stop{Reason: args[0]})
	case "tick":
		s.step(Tick{})
	default:
		s.t.Fatalf("no verb %q", verb)
	}
}

func place(name string) (slot, attempt int) {
	slot, attempt = int(name[0]-'a'), 1
	if n, err := strconv.Atoi(name[1:]); err == nil {
		attempt = n
	}
	return slot, attempt
}

func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64)
}

func show(o Output) string {
	mode := func(graceful bool) string {
		if graceful {
			return "gracefully"
		}
		return "hard"
	}
	switch o := o.(type) {
	case Form:
		var m []string
		for _, x := range o.Members {
			m = append(m, x.Node)
			if x.Procs != 1 {
				m[len(m)-1] += fmt.Sprintf("[%d-%d]", x.FirstRank, x.FirstRank+x.Procs-1)
			}
		}
		s := fmt.Sprintf("form %d %s %s", o.Generation, o.Cause, strings.Join(m, ","))
		if o.Restarts > 0 {
			s += fmt.Sprintf(" restarts %d", o.Restarts)
		}
		return s
	case End:
		return fmt.Sprintf("end %d %s %s %s", o.Generation, o.Cause, mode(o.Graceful), strings.Join(o.Nodes, ","))
	case Closed:
		return fmt.Sprintf("closed %d %s", o.Generation, o.Cause)
	case Lost:
		s := fmt.Sprintf("lost %s %s", o.Node, o.Cause)
		if o.Member {
			s += " member"
		}
		return s
	case Charged:
		return fmt.Sprintf("charged %d %s rank %d code %d%s, %d of %d", o.Generation, o.Node, o.Rank, o.Code, o.Signal, o.Restarts, o.Max)
	case Hold:
		return fmt.Sprintf("hold %d of %d since %s until %s", o.Have, o.Want, seconds(o.Since), seconds(o.Until))
	case Finish:
		s := "finish " + o.Cause
		if o.Reason != "" {
			s += " " + o.Reason
		}
		if o.Cause == FinishJobFailed {
			s += fmt.Sprintf(" %s rank %d code %d%s", o.Node, o.Rank, o.ExitCode, o.Signal)
		}
		return s
	}
	return fmt.Sprintf("%#v", o)
}
