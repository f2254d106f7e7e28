package supervisor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/sim"
)

// mishap is what befalls the process at one of its effects.
type mishap int

const (
	diesBefore mishap = iota
	diesAfter
	losesReply
)

func (m mishap) String() string {
	return [...]string{"dies before", "dies after", "loses the reply of"}[m]
}

// plan of a crash: what happens at which effects, counted over all processes of the run.
type crashes map[int]mishap

func (c crashes) guard(kill func()) func(int, journal.Effect, func() error) error {
	var mu sync.Mutex // guards dead
	dead := map[int]bool{}
	return func(number int, e journal.Effect, act func() error) error {
		how, strikes := c[number]
		mu.Lock()
		again := dead[number]
		dead[number] = true
		mu.Unlock()
		switch {
		case !strikes || again:
			return act()
		case how == diesBefore:
			kill()
			return fmt.Errorf("before %s: %w", e.Name, journal.ErrCrashed)
		case how == diesAfter:
			_ = act()
			kill()
			return fmt.Errorf("after %s: %w", e.Name, journal.ErrCrashed)
		}
		if err := act(); err != nil {
			return err
		}
		return providers.Errorf(providers.Unavailable, e.Name, "the reply got lost")
	}
}

// crashCloud shows everything at once and boots fast: the crashes are what is tested. Calls take a while, so that some are under way.
func crashCloud() sim.Options {
	return sim.Options{
		Seed: 11, Latency: sim.Dist{Median: 200 * time.Millisecond, Sigma: 0.3, Max: time.Second}, Boot: sim.Dist{Median: 5 * time.Second, Sigma: 0.3},
		DeleteTime: sim.Dist{Median: 3 * time.Second, Sigma: 0.3}, ConsistencyWindow: 2 * time.Second, LateShare: 0.5,
	}
}

// crashed runs a three-worker run through its mishaps. After the first death it is either resumed, or taken down; a process that dies again is started again.
func crashed(t *testing.T, c crashes, down bool) (effects int) {
	synctest.Test(t, func(t *testing.T) {
		l := newLife(t, crashCloud())
		l.job.Workers = jobspec.Workers{Min: 3, Max: 3, Fixed: true}
		l.job.Limits.BudgetUSD = 1
		l.work = 5 * time.Second
		deaths := 0
		for {
			ctx, kill := context.WithCancelCause(t.Context())
			l.door.Guard = c.guard(func() { kill(journal.ErrCrashed) })
			outcome, err := l.process(ctx, down && deaths > 0)
			kill(nil)
			if err == nil && outcome == Over {
				break
			}
			if deaths++; deaths > 10 {
				t.Fatalf("%v, down %v: it dies and dies: %v", c, down, err)
			}
			if ctx.Err() == nil && !errors.Is(err, journal.ErrCrashed) && providers.CodeOf(err) != providers.Unavailable {
				t.Fatalf("%v, down %v: ended by %v", c, down, err)
			}
			time.Sleep(time.Second)
		}
		effects = l.door.Count()
		time.Sleep(time.Minute) // what comes late
		if err := l.audit(); err != nil {
			t.Errorf("%v, down %v: %v", c, down, err)
		}
		run := sim.Audit(l.cloud.Ledger(), time.Now()).Run(lifeRun)
		if run.Peak[providers.Worker] > 3 || run.Peak[providers.Head] > 1 || run.SpendUSD > 1 {
			t.Errorf("%v, down %v: at most %v machines at once, want 3 workers and a head; %.3f USD of 1", c, down, run.Peak, run.SpendUSD)
		}
		if s := l.state(); s.Clean == nil || s.Finished == nil {
			t.Errorf("%v, down %v: finished %v, clean %v", c, down, s.Finished, s.Clean)
		} else if !down && s.Stopping.Cause != journal.CauseSucceeded {
			t.Errorf("%v: resumed, and ended by %+v", c, s.Stopping)
		}
	})
	return effects
}

// TestCrashPoints lets the process die before, and after, every effect of a run, and lose the reply of every one; then the run is
// resumed, or taken down. The auditor sees nothing but the cloud's ledger.
func TestCrashPoints(t *testing.T) {
	effects := crashed(t, nil, false)
	points := 0
	for number := 1; number <= effects; number++ {
		for _, how := range []mishap{diesBefore, diesAfter, losesReply} {
			for _, down := range []bool{false, true} {
				crashed(t, crashes{number: how}, down)
				points++
			}
		}
		if t.Failed() {
			break
		}
	}
	t.Logf("%d effects, %d crash points", effects, points)
}

// TestCrashPairs is a sample of two mishaps in one run.
func TestCrashPairs(t *testing.T) {
	const sample = 150
	r := rand.New(rand.NewPCG(1, 2))
	for range sample {
		first := 1 + r.IntN(70)
		c := crashes{first: mishap(r.IntN(3)), first + 1 + r.IntN(12): mishap(r.IntN(3))}
		crashed(t, c, r.IntN(2) == 1)
		if t.Failed() {
			break
		}
	}
	t.Logf("%d pairs", sample)
}
