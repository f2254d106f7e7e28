package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ephemeral-launcher/launcher/examples/elastic-sgd/train"
	"github.com/ephemeral-launcher/launcher/launcher"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/local"
)

// noticeTime is how long before its end the preempted worker is told: longer than a machine takes to boot, so that the swap comes first.
const noticeTime = 12 * time.Second

// play is the story: a job, a preemption, a loss, the end.
func (s *stage) play(ctx context.Context) error {
	s.say("launcher runs a training job on rented machines of its own. Here the machines are processes of this computer: nothing is rented, nothing costs.")
	file, err := s.setting()
	if err != nil {
		return err
	}
	opts := launcher.Options{Home: s.home(), Version: version}
	s.hear(ctx, &opts)
	job, err := launcher.Load(file, launcher.LoadOptions{Vars: map[string]string{"root": s.root()}})
	if err != nil {
		return err
	}
	s.say("A head and four spot workers are created at once; the job is happy with two.")
	if s.handle, err = launcher.Up(ctx, job, opts); err != nil {
		return err
	}
	err = s.story(ctx)
	if err != nil {
		s.stop(ctx)
	}
	result, werr := s.end(ctx)
	if err = errors.Join(err, werr, context.Cause(ctx)); err != nil {
		return err
	}
	return s.verify(result)
}

// stop ends a run whose story went wrong, or was interrupted: everything is deleted all the same. Wait tells what came of it.
func (s *stage) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = s.handle.Stop(ctx, journal.Stopping{Cause: journal.CauseInterrupted, Text: "the demo was ended"})
}

// story is what happens while the job trains.
func (s *stage) story(ctx context.Context) error {
	if err := s.until(ctx, "four workers train", func() bool { return s.formedOf(4, "") && s.step >= 60 }); err != nil {
		return err
	}
	victim := s.node(2)
	s.say("The provider announces that it takes %s away in %s. Its replacement is ordered at once; training goes on meanwhile.", victim, noticeTime)
	if err := s.handle.Preempt(ctx, victim, noticeTime); err != nil {
		return err
	}
	if err := s.until(ctx, "the replacement trains", func() bool { return s.formedOf(4, victim) }); err != nil {
		return err
	}
	if n, r := s.state.Nodes[victim], s.replacementOf(victim); n != nil && r != nil && n.NoticedAt >= 0 {
		s.say("%s was ordered %s after the notice and trains %s after it, from the checkpoint that %s made when it was asked to leave.",
			r.Name, span((r.IntendedAt - n.NoticedAt).Duration()), span((s.state.Generation.Since - n.NoticedAt).Duration()), victim)
	}
	from := s.step
	if err := s.until(ctx, "training goes on", func() bool { return s.step >= from+60 }); err != nil {
		return err
	}
	victim = s.node(1)
	s.say("Now %s dies without a word. The others go on at once, and only it is replaced.", victim)
	if err := s.handle.Preempt(ctx, victim, 0); err != nil {
		return err
	}
	if err := s.until(ctx, "the others go on", func() bool { return s.lost(victim) && s.formedOf(0, victim) }); err != nil {
		return err
	}
	return s.until(ctx, "the lost worker is replaced", func() bool { return s.formedOf(4, victim) })
}

// endTimeout bounds the teardown of a demo that was interrupted or went wrong.
const endTimeout = time.Minute

// end waits for the end of the run and tells it. When ctx ends before, it ends the run.
func (s *stage) end(ctx context.Context) (*launcher.Result, error) {
	waiting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	interrupted := ctx.Done()
	type outcome struct {
		result *launcher.Result
		err    error
	}
	over := make(chan outcome, 1)
	go func() { // ends with waiting
		r, err := s.handle.Wait(waiting)
		over <- outcome{r, err}
	}()
	for {
		select {
		case h := <-s.happenings:
			if err := s.take(h); err != nil {
				return nil, err
			}
		case <-interrupted:
			interrupted = nil
			s.stop(ctx)
			defer time.AfterFunc(endTimeout, cancel).Stop()
		case o := <-over:
			for len(s.happenings) > 0 {
				if err := s.take(<-s.happenings); err != nil {
					return nil, err
				}
			}
			if o.result == nil {
				o.result = s.handle.Leave()
			}
			return o.result, o.err
		}
	}
}

// formedOf tells whether a generation trains with so many workers (0: any number), without one of them.
func (s *stage) formedOf(workers int, without string) bool {
	g := s.state.Generation
	return g.Phase == journal.GenFormed && (workers == 0 || len(g.Members) == workers) &&
		!slices.ContainsFunc(g.Members, func(m journal.Member) bool { return m.Node == without })
}

func (s *stage) lost(node string) bool {
	n := s.state.Nodes[node]
	return n != nil && (n.LostAt >= 0 || n.DeletedAt >= 0 || n.Notice != nil)
}

// node is the member in a slot.
func (s *stage) node(slot int) string {
	for _, m := range s.state.Generation.Members {
		if m.Slot == slot {
			return m.Node
		}
	}
	return journal.NodeName(slot, 1)
}

// replacementOf is the node that took a node's slot after it.
func (s *stage) replacementOf(node string) *journal.Node {
	old := s.state.Nodes[node]
	for _, n := range s.state.List(providers.Worker) {
		if old != nil && n.Slot == old.Slot && n.Attempt > old.Attempt {
			return n
		}
	}
	return nil
}

// verify looks whether all went as told.
func (s *stage) verify(r *launcher.Result) error {
	s.say("The loss, generation by generation:")
	numbers := slices.Sorted(maps.Keys(s.losses))
	for _, n := range numbers {
		l := s.losses[n]
		s.show(fmt.Sprintf("generation %d, world size %d: steps %3d to %3d, loss %.4f to %.4f", n, l.world, l.firstStep, l.lastStep, l.first, l.last))
	}
	trained, err := s.trained(r)
	if err != nil {
		return err
	}
	s.say("%s after %s: accuracy %.1f %%. It cost %s; goodput %.0f %%, with %s, %s and %s.", resultText(r), span(r.Duration), 100*trained.Accuracy,
		dollars(r.SpendUSD), 100*r.Goodput, count(r.Generations, "generation"), count(r.Preemptions, "preemption"), lostText(r.Lost))
	var wrong []error
	expect := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Errorf(format, args...))
		}
	}
	expect(r.Exit == 0, "the run ended with %d: %s", r.Exit, resultText(r))
	expect(r.Clean, "the run was not seen clean: %s", strings.Join(r.Left, ", "))
	expect(r.Preemptions >= 1, "no preemption was counted")
	expect(r.Lost >= 1, "no lost node was counted")
	expect(trained.Accuracy > 0.9, "the accuracy is %.3f", trained.Accuracy)
	for i := 1; i < len(numbers); i++ {
		before, after := s.losses[numbers[i-1]], s.losses[numbers[i]]
		expect(after.firstStep > before.firstStep, "generation %d began at step %d, before where generation %d did", numbers[i], after.firstStep, numbers[i-1])
	}
	if len(numbers) > 0 {
		first, last := s.losses[numbers[0]].first, s.losses[numbers[len(numbers)-1]].last
		expect(last < first/2, "the loss went from %.3f to %.3f", first, last)
	}
	expect(r.Generations >= 3, "there were %d generations: no swap and no loss was seen", r.Generations)
	return errors.Join(wrong...)
}

// trained reads what the job left in its outputs.
func (s *stage) trained(r *launcher.Result) (train.Result, error) {
	var t train.Result
	b, err := os.ReadFile(filepath.Join(r.Outputs, "result.json"))
	if err == nil {
		err = json.Unmarshal(b, &t)
	}
	if err != nil {
		return t, fmt.Errorf("read the job's outputs: %w", err)
	}
	return t, nil
}

// remains looks for what is left, in the ledger of the "cloud", and among the processes of this computer where they can be told.
func (s *stage) remains() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	listed, err := local.New(local.Options{Root: s.root()}).List(ctx, providers.Filter{})
	if err != nil {
		return err
	}
	var left []string
	for _, r := range listed {
		if r.Alive() {
			left = append(left, r.Kind+" "+r.ID)
		}
	}
	left = append(left, carriers(local.EnvRoot+"="+s.root())...)
	if len(left) > 0 {
		return fmt.Errorf("left behind: %s", strings.Join(left, ", "))
	}
	return nil
}

// carriers lists the processes whose environment has an entry; none where the system does not show it.
func carriers(entry string) []string {
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil
	}
	var found []string
	for _, path := range environs {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // gone meanwhile, or not ours
		}
		if slices.Contains(strings.Split(string(b), "\x00"), entry) {
			found = append(found, "process "+filepath.Base(filepath.Dir(path)))
		}
	}
	return found
}
