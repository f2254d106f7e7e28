package head

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

// simJob is a job file with the given workers block, and whatever else.
func simJob(workers, more string) string {
	return fmt.Sprintf("job \"sim\" {\n  provider \"sim\" {}\n  workers {\n    %s\n  }\n  run \"ranks\" { command = \"train\" }\n  %s\n}\n", workers, more)
}

// end finishes the job and waits until everything is deleted.
func (s *simulation) end() *journal.State {
	s.t.Helper()
	s.finish()
	select {
	case <-s.client.fetched:
	case <-time.After(5 * time.Minute):
		s.show()
		s.t.Fatal("the run does not end")
	}
	s.gone(2 * time.Minute)
	state := s.state()
	if got, want := state.Stopping.Cause, journal.CauseSucceeded; got != want {
		s.t.Errorf("cause %q, want %q", got, want)
	}
	return state
}

// up launches and waits for the first generation.
func (s *simulation) up() {
	s.t.Helper()
	s.launch()
	s.until("generation 1", 5*time.Minute, formed(1))
	time.Sleep(5 * time.Second)
}

func TestSimRun(t *testing.T) {
	simulate(t, simOptions{hcl: simJob("count = 3", "")}, func(s *simulation) {
		s.up()
		time.Sleep(time.Minute)
		s.end()
		s.expectGenerations("start")
		finished := s.find(journal.RunFinished, "")
		if len(finished) != 1 {
			t.Fatalf("finished %d times", len(finished))
		}
		s.checkSpend(finished[0].At, 2*time.Second)
		if got, want := s.audit().Machines, map[providers.Role]int{providers.Head: 1, providers.Worker: 3}; got[providers.Head] != 1 || got[providers.Worker] != 3 {
			t.Errorf("machines %v, want %v", got, want)
		}
	})
}

const simElastic = "min = 2\n max = 3"

func TestSimNotice(t *testing.T) {
	simulate(t, simOptions{hcl: simJob(simElastic, "")}, func(s *simulation) {
		s.up()
		victim := s.guestOf("w1.1")
		noticed := time.Now()
		s.cloud.Reclaim(victim.machine.ID, 2*time.Minute)
		s.until("generation 2", 2*time.Minute, formed(2))
		calls := s.provider.createdSince(noticed)
		if len(calls) != 1 {
			t.Fatalf("create calls %v, want one", calls)
		}
		if got := calls[0].at.Sub(noticed); got > time.Second {
			t.Errorf("the replacement was ordered %v after the notice", got)
		} else {
			t.Logf("notice to create call: %v", got)
		}
		time.Sleep(30 * time.Second)
		state := s.end()
		s.expectGenerations("start", "swap")
		if got, want := state.Nodes["w1.1"].Phase, journal.PhaseDeleted; got != want {
			t.Errorf("the victim is %s, want %s", got, want)
		}
		if got := s.endedAt(victim).Sub(noticed); got > 2*time.Minute {
			t.Errorf("the victim was deleted %v after the notice", got)
		}
		if got := state.Preemptions; got != 1 {
			t.Errorf("%d preemptions, want 1", got)
		}
		if got := state.Restarts; got != 0 {
			t.Errorf("%d restarts charged, want 0", got)
		}
	})
}

// endedAt is when the machine ended.
func (s *simulation) endedAt(g *guest) time.Time {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.ended[g.machine.ID]
	if !ok {
		s.t.Fatalf("%s has not ended", g.host)
	}
	return at
}

func TestSimSilentDeath(t *testing.T) {
	simulate(t, simOptions{hcl: simJob(simElastic, "")}, func(s *simulation) {
		s.up()
		// The machine hangs: the cloud goes on showing it as running.
		hung := time.Now()
		s.guestOf("w1.1").fallSilent(true)
		s.until("loss", time.Minute, func(j *journal.State) bool { return j.Nodes["w1.1"].LostAt >= 0 })
		lost := s.find(journal.NodeLost, "w1.1")[0]
		after := since(hung, lost)
		t.Logf("hung to lost: %v", after)
		// Its last beat was up to a quarter of lost_after old, and half as old again by the way back.
		if after < 9*time.Second || after > 12*time.Second+100*time.Millisecond {
			t.Errorf("lost after %v, want 12 s from the last beat", after)
		}
		if d := decode[journal.Lost](s, lost); d.Evidence {
			t.Errorf("lost on evidence: %s", d.Cause)
		}
		s.until("generation 2 of two", 3*time.Second, formed(2))
		s.until("generation 3", 2*time.Minute, formed(3))
		s.end()
		s.expectGenerations("start", "loss", "replacement")
	})
}

func TestSimDeathWithEvidence(t *testing.T) {
	simulate(t, simOptions{hcl: simJob(simElastic, "")}, func(s *simulation) {
		s.up()
		died := time.Now()
		s.cloud.KillSilently(s.guestOf("w1.1").machine.ID)
		s.until("generation 2", 15*time.Second, formed(2))
		lost := s.find(journal.NodeLost, "w1.1")[0]
		again := s.find(journal.GenerationFormed, "")[1]
		t.Logf("died to lost %v, to re-formed %v", since(died, lost), since(died, again))
		if got := since(died, lost); got > time.Second {
			t.Errorf("lost %v after its death", got)
		}
		if got := since(died, again); got > 3*time.Second {
			t.Errorf("re-formed %v after its death", got)
		}
		if d := decode[journal.Lost](s, lost); !d.Evidence {
			t.Errorf("lost without evidence: %s", d.Cause)
		}
		s.until("generation 3", 2*time.Minute, formed(3))
		s.end()
		s.expectGenerations("start", "loss", "replacement")
	})
}

func TestSimHalfGone(t *testing.T) {
	simulate(t, simOptions{hcl: simJob("min = 2\n max = 8", "")}, func(s *simulation) {
		s.up()
		for _, node := range []string{"w0.1", "w2.1", "w4.1", "w6.1"} {
			s.cloud.KillSilently(s.guestOf(node).machine.ID)
		}
		state := s.until("generation 2", 15*time.Second, formed(2))
		if got, want := members(state), []string{"w1.1", "w3.1", "w5.1", "w7.1"}; !slices.Equal(sorted(got), want) {
			t.Errorf("members %v, want %v", got, want)
		}
		s.until("all eight", 3*time.Minute, func(j *journal.State) bool {
			return j.Generation.Phase == journal.GenFormed && len(j.Generation.Members) == 8
		})
		t.Logf("generations: %v", s.generations())
		s.end()
	})
}

func sorted(s []string) []string {
	s = slices.Clone(s)
	slices.Sort(s)
	return s
}

// count adds to one counter of the store until it is told to finish, ten times a second; then all meet, and see whether one addition was lost.
func count(ctx context.Context, r *rank) int {
	c, err := r.store(ctx)
	if err != nil {
		return 1
	}
	defer c.Close()
	world := int64(r.number("WORLD_SIZE"))
	own := int64(0)
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			return 1
		case <-tick.C:
			if _, err := c.Add(ctx, "sum", 1); err != nil {
				fmt.Fprintln(r.out, "add:", err)
				return 2
			}
			own++
			continue
		case <-r.g.s.done:
			tick.Stop()
		}
		break
	}
	if _, err := c.Add(ctx, "own", own); err != nil {
		return 3
	}
	if err := c.Barrier(ctx, "end", world); err != nil {
		return 4
	}
	sum, err := c.Add(ctx, "sum", 0)
	if err != nil {
		return 5
	}
	if all, err := c.Add(ctx, "own", 0); err != nil || all != sum {
		fmt.Fprintf(r.out, "the store has %d additions, %d were made (%v)\n", sum, all, err)
		return 6
	}
	if err := c.Barrier(ctx, "seen", world); err != nil {
		return 7
	}
	return 0
}

func TestSimHeadUnreachableForAWhile(t *testing.T) {
	simulate(t, simOptions{hcl: simJob("count = 3", ""), program: count}, func(s *simulation) {
		s.up()
		head := s.headGuest()
		before := len(s.alive())
		for range 3 {
			head.fallSilent(true)
			for _, host := range s.hosts() {
				s.net.Cut(head.host, host)
			}
			time.Sleep(3 * time.Second)
			head.fallSilent(false)
			time.Sleep(10 * time.Second)
		}
		if got := len(s.alive()); got != before || before != 3 {
			t.Errorf("%d rank processes live, %d before", got, before)
		}
		s.end()
		s.expectGenerations("start")
	})
}

func TestSimHeadUnreachableForTheMemberLease(t *testing.T) {
	simulate(t, simOptions{hcl: simJob("count = 3", "")}, func(s *simulation) {
		s.up()
		head := s.headGuest()
		head.fallSilent(true)
		for _, host := range s.hosts() {
			s.net.Cut(head.host, host)
		}
		// The agents count from the report before the last beat, which is two quarters of the lease old at most; the head from the last report.
		time.Sleep(8200 * time.Millisecond)
		if alive := s.alive(); len(alive) > 0 {
			t.Errorf("ranks live on without a member lease: %v", alive)
		}
		head.fallSilent(false)
		s.until("generation 2", 30*time.Second, formed(2))
		time.Sleep(10 * time.Second)
		state := s.end()
		s.expectGenerations("start", "loss")
		if state.LostNodes != 0 || state.Restarts != 0 {
			t.Errorf("%d nodes lost and %d restarts charged, want none", state.LostNodes, state.Restarts)
		}
	})
}

// Who is back before an agent's lease is over keeps it, though the next beat would come too late.
func TestSimHeadBackInTime(t *testing.T) {
	simulate(t, simOptions{hcl: simJob("count = 3", "")}, func(s *simulation) {
		s.up()
		// Beats go out every quarter of the lease from the beginning of the world on. An agent's lease counts from the last but one.
		quarter := s.job.Elastic.LostAfter / 4
		began := s.find(journal.HandoverAccepted, "")[0].Time
		time.Sleep(quarter - time.Since(began)%quarter + 500*time.Millisecond)
		head := s.headGuest()
		head.fallSilent(true)
		for _, host := range s.hosts() {
			s.net.Cut(head.host, host)
		}
		time.Sleep(3*quarter - 500*time.Millisecond - 1200*time.Millisecond)
		for _, host := range s.hosts() {
			s.net.SetLatency(head.host, host, 50*time.Millisecond)
		}
		head.fallSilent(false)
		time.Sleep(20 * time.Second)
		s.end()
		s.expectGenerations("start")
	})
}

// Without a broken connection what was said in the meantime still arrives, old stamps and all.
func TestSimHeadSilentForTheMemberLease(t *testing.T) {
	simulate(t, simOptions{hcl: simJob("count = 3", "")}, func(s *simulation) {
		s.up()
		head := s.headGuest()
		head.fallSilent(true)
		time.Sleep(8200 * time.Millisecond)
		if alive := s.alive(); len(alive) > 0 {
			t.Errorf("ranks live on without a member lease: %v", alive)
		}
		head.fallSilent(false)
		s.until("generation 2", 30*time.Second, formed(2))
		time.Sleep(10 * time.Second)
		state := s.end()
		s.expectGenerations("start", "loss")
		if state.LostNodes != 0 || state.Restarts != 0 {
			t.Errorf("%d nodes lost and %d restarts charged, want none", state.LostNodes, state.Restarts)
		}
	})
}

func TestSimScaleDown(t *testing.T) {
	simulate(t, simOptions{hcl: simJob("min = 2\n max = 5", "")}, func(s *simulation) {
		s.up()
		s.cloud.KillSilently(s.guestOf("w0.1").machine.ID)
		s.until("generation 2", 15*time.Second, formed(2))
		if err := s.client.order(&control.OrderRequest{Body: &control.OrderRequest_Scale{Scale: 3}, By: "test"}); err != nil {
			t.Fatal(err)
		}
		state := s.until("three of the first slots", 2*time.Minute, func(j *journal.State) bool {
			return j.Generation.Phase == journal.GenFormed && slices.Equal(sorted(members(j)), []string{"w0.2", "w1.1", "w2.1"})
		})
		time.Sleep(30 * time.Second)
		if got := s.live().Generation.Number; got != state.Generation.Number {
			t.Errorf("generation %d follows %d: nothing has changed", got, state.Generation.Number)
		}
		if got := len(s.living(providers.Worker)); got != 3 {
			t.Errorf("%d workers live, want 3", got)
		}
		t.Logf("generations: %v", s.generations())
		s.end()
	})
}

// The agent has told of the notice once: a new head process must know of it.
func TestSimHeadProcessDiesAfterANotice(t *testing.T) {
	simulate(t, simOptions{hcl: simJob(simElastic, "")}, func(s *simulation) {
		s.up()
		s.cloud.Reclaim(s.guestOf("w1.1").machine.ID, 10*time.Minute)
		time.Sleep(5 * time.Second)
		s.headGuest().crashDaemon()
		s.until("generation 2", time.Minute, formed(2))
		state := s.until("generation 3", time.Minute, formed(3))
		if got, want := sorted(members(state)), []string{"w0.1", "w1.2", "w2.1"}; !slices.Equal(got, want) {
			t.Errorf("members %v, want %v", got, want)
		}
		time.Sleep(time.Minute)
		s.end()
		s.expectGenerations("start", "head_restarted", "replacement")
	})
}

func TestSimNoticeWithdrawn(t *testing.T) {
	simulate(t, simOptions{hcl: simJob(simElastic, "")}, func(s *simulation) {
		s.up()
		victim := s.guestOf("w1.1")
		s.cloud.Reclaim(victim.machine.ID, 2*time.Minute)
		time.Sleep(5 * time.Second)
		s.cloud.CallOffReclaim(victim.machine.ID)
		s.until("generation 2", 2*time.Minute, formed(2))
		time.Sleep(time.Minute)
		if got := len(s.living(providers.Worker)); got != 3 {
			t.Errorf("%d workers live, want 3", got)
		}
		s.end()
		s.expectGenerations("start", "swap")
	})
}

func TestSimHeadProcessDies(t *testing.T) {
	simulate(t, simOptions{hcl: simJob("count = 3", "")}, func(s *simulation) {
		s.up()
		for generation := 2; generation < 4; generation++ {
			s.headGuest().crashDaemon()
			died := time.Now()
			s.until("another generation", time.Minute, formed(generation))
			t.Logf("head process died to re-formed: %v", time.Since(died))
			time.Sleep(20 * time.Second)
		}
		state := s.end()
		s.expectGenerations("start", "head_restarted", "head_restarted")
		if state.LostNodes != 0 || state.Restarts != 0 {
			t.Errorf("%d nodes lost and %d restarts charged, want none", state.LostNodes, state.Restarts)
		}
	})
}

func TestSimClientSupervises(t *testing.T) {
	simulate(t, simOptions{hcl: simJob(simElastic, `head { supervisor = "client" }`)}, func(s *simulation) {
		s.up()
		s.cloud.KillSilently(s.guestOf("w1.1").machine.ID)
		s.until("generation 3", 2*time.Minute, formed(3))
		s.end()
		s.expectGenerations("start", "loss", "replacement")
	})
}

func TestSimWrongHostKey(t *testing.T) {
	simulate(t, simOptions{hcl: simJob("count = 3", "")}, func(s *simulation) {
		s.badKeys = 1
		s.up()
		var wrong []*guest
		s.mu.Lock()
		for _, g := range s.guests {
			if g.commands == 0 {
				wrong = append(wrong, g)
			}
		}
		s.mu.Unlock()
		if len(wrong) != 1 {
			t.Fatalf("%d machines were sent nothing, want 1", len(wrong))
		}
		state := s.end()
		s.expectGenerations("start")
		var given []string
		for name, n := range state.Nodes {
			if n.Machine != nil && n.Machine.ID == wrong[0].machine.ID {
				given = append(given, name)
				t.Logf("%s: %s", name, n.Reason)
			}
		}
		if len(given) != 1 || state.Nodes[given[0]].Phase != journal.PhaseDeleted {
			t.Errorf("nodes %v stand for the machine with the wrong key", given)
		}
	})
}
