package launcher

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// patient bounds a test's waits: nothing in memory takes so long.
func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func bothSupervisors(t *testing.T, f func(t *testing.T, supervisor string)) {
	for _, supervisor := range []string{jobspec.SupervisorClient, jobspec.SupervisorHead} {
		t.Run(supervisor, func(t *testing.T) {
			t.Parallel()
			f(t, supervisor)
		})
	}
}

func TestRun(t *testing.T) {
	bothSupervisors(t, func(t *testing.T, supervisor string) {
		s := newSite(t)
		opts := s.options(t.TempDir())
		var kinds []journal.Kind
		var lines []string
		opts.OnEvent = func(e Event) { kinds = append(kinds, e.Kind) }
		opts.OnLog = func(l LogLine) { lines = append(lines, l.Text) }
		r, err := Run(patient(t), s.job(supervisor), opts)
		if err != nil || r.Exit != 0 || !r.Clean || r.Generations != 1 {
			t.Fatalf("got %+v, %v; want exit 0, clean, one generation", r, err)
		}
		s.mustBeGone()
		for _, k := range []journal.Kind{journal.RunCreated, journal.NodeRekeyed, journal.GenerationFormed, journal.RunDrained, journal.RunFinished, journal.RunClean} {
			if !slices.Contains(kinds, k) {
				t.Errorf("no event %s among %s", k, kinds)
			}
		}
		if kinds[len(kinds)-1] != journal.RunClean {
			t.Errorf("the last event is %s", kinds[len(kinds)-1])
		}
		slices.Sort(lines)
		if want := []string{"rank 0 of 2", "rank 1 of 2"}; !slices.Equal(lines, want) {
			t.Errorf("got output %q, want %q", lines, want)
		}
		// The same id again gives the stored result and starts nothing.
		calls := s.cloud.Calls()["create"]
		again, err := Run(patient(t), s.job(supervisor), s.options(opts.Home))
		if err != nil || again.Exit != 0 || !again.Clean || s.cloud.Calls()["create"] != calls {
			t.Errorf("again: got %+v, %v, %d create calls; want the stored result and %d calls", again, err, s.cloud.Calls()["create"], calls)
		}
		// And so does another caller without the folder: nothing is found.
		d, err := Down(patient(t), "run-1", DownOptions{Options: s.options(t.TempDir())})
		if err != nil || len(d.Found) > 0 {
			t.Errorf("down elsewhere: got %+v, %v; want nothing found", d, err)
		}
	})
}

func TestCancelledRunIsTornDown(t *testing.T) {
	bothSupervisors(t, func(t *testing.T, supervisor string) {
		s := newSite(t)
		s.work = time.Hour
		opts := s.options(t.TempDir())
		ctx, cancel := context.WithCancel(t.Context())
		opts.OnEvent = func(e Event) {
			if e.Kind == journal.GenerationFormed {
				cancel()
			}
		}
		r, err := Run(ctx, s.job(supervisor), opts)
		if err != nil || r.Exit != ExitInterrupted || !r.Clean {
			t.Errorf("got %+v, %v; want exit 130 and clean", r, err)
		}
		s.mustBeGone()
	})
}

// awaitEvent waits until an event of the kind is known to h.
func awaitEvent(t *testing.T, h *Handle, kind journal.Kind) {
	t.Helper()
	ctx := patient(t)
	for {
		events, changed := h.Since(0)
		if slices.ContainsFunc(events, func(e Event) bool { return e.Kind == kind }) {
			return
		}
		select {
		case <-changed:
		case <-h.Done():
			t.Fatalf("the run is over without %s", kind)
		case <-ctx.Done():
			t.Fatalf("no %s: %v", kind, ctx.Err())
		}
	}
}

func TestDetachAttachDown(t *testing.T) {
	s := newSite(t)
	s.work = time.Hour
	opts := s.options(t.TempDir())
	job := s.job(jobspec.SupervisorHead)
	h, err := Up(patient(t), job, opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Detach(patient(t)); err != nil {
		t.Fatal(err)
	}
	if r := h.Leave(); r.Exit != ExitDetached || r.Clean {
		t.Errorf("detached: got %+v, want exit 0", r)
	}
	if h, err = Attach(patient(t), "run-1", opts); err != nil {
		t.Fatal(err)
	}
	awaitEvent(t, h, journal.GenerationFormed)
	// A second process is the guest of the first and ends the run through it.
	guest, err := Attach(patient(t), "run-1", opts)
	if err != nil {
		t.Fatal(err)
	}
	if guest.Owner() || !h.Owner() {
		t.Errorf("owner: got %v and %v, want the first alone", h.Owner(), guest.Owner())
	}
	if err := guest.Scale(patient(t), 0); err == nil {
		t.Error("scale to 0 is taken")
	}
	d, err := Down(patient(t), "run-1", DownOptions{Options: opts})
	if err != nil || len(d.Found) != 3 || len(d.Deleted) != 3 {
		t.Errorf("down: got %d found, %d deleted, %v; want 3 and 3", len(d.Found), len(d.Deleted), err)
	}
	for name, h := range map[string]*Handle{"owner": h, "guest": guest} {
		if r, err := h.Wait(patient(t)); err != nil || r.Exit != ExitInterrupted || !r.Clean {
			t.Errorf("%s: got %+v, %v; want exit 130", name, r, err)
		}
	}
	s.mustBeGone()
}

func TestGuestInheritsTheRun(t *testing.T) {
	s := newSite(t)
	s.work = time.Hour
	opts := s.options(t.TempDir())
	h, err := Up(patient(t), s.job(jobspec.SupervisorHead), opts)
	if err != nil {
		t.Fatal(err)
	}
	awaitEvent(t, h, journal.GenerationFormed)
	guest, err := Attach(patient(t), "run-1", opts)
	if err != nil {
		t.Fatal(err)
	}
	h.Leave()
	if err := guest.Stop(patient(t), journal.Stopping{Cause: journal.CauseDown}); err != nil {
		t.Fatal(err)
	}
	if r, err := guest.Wait(patient(t)); err != nil || r.Exit != ExitInterrupted || !r.Clean {
		t.Errorf("got %+v, %v; want exit 130", r, err)
	}
	s.mustBeGone()
}

func TestClientSupervisedRunIsNotDetachable(t *testing.T) {
	s := newSite(t)
	s.work = time.Hour
	h, err := Up(patient(t), s.job(jobspec.SupervisorClient), s.options(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Detach(patient(t)); !errors.Is(err, ErrNotDetachable) {
		t.Errorf("got %v, want %v", err, ErrNotDetachable)
	}
	awaitEvent(t, h, journal.NodeCreated)
	if r := h.Leave(); r.Exit != ExitTeardownUnfinished || len(r.Left) == 0 || r.Recover == "" {
		t.Errorf("left: got %+v, want exit 124 with what is left", r)
	}
	if _, err := Down(patient(t), "run-1", DownOptions{Options: s.options(h.opts.Home)}); err != nil {
		t.Error(err)
	}
	s.mustBeGone()
}

func TestLivingRunElsewhere(t *testing.T) {
	s := newSite(t)
	s.work = time.Hour
	h, err := Up(patient(t), s.job(jobspec.SupervisorHead), s.options(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	awaitEvent(t, h, journal.GenerationFormed)
	_, err = Up(patient(t), s.job(jobspec.SupervisorHead), s.options(t.TempDir()))
	if living, ok := errors.AsType[*LivingRunError](err); !ok || len(living.IDs) != 3 {
		t.Errorf("up without the folder: got %v, want a LivingRunError with 3 ids", err)
	}
	d, err := Down(patient(t), "run-1", DownOptions{Options: s.options(t.TempDir())})
	if err != nil || len(d.Deleted) != 3 {
		t.Errorf("down without the folder: got %+v, %v; want 3 deleted", d, err)
	}
	// The first caller sees its head gone, and nothing left.
	if r, err := h.Wait(patient(t)); err != nil || !r.Clean || r.Exit != ExitLauncher {
		t.Errorf("got %+v, %v; want exit 125, clean", r, err)
	}
	s.mustBeGone()
}

func TestHeadLost(t *testing.T) {
	bothSupervisors(t, func(t *testing.T, supervisor string) {
		s := newSite(t)
		s.work = time.Hour
		h, err := Up(patient(t), s.job(supervisor), s.options(t.TempDir()))
		if err != nil {
			t.Fatal(err)
		}
		awaitEvent(t, h, journal.GenerationFormed)
		s.cloud.PowerOff(h.State().Head().Machine.ID, "gone")
		r, err := h.Wait(patient(t))
		if err != nil || !r.Clean || r.Exit != ExitLauncher {
			t.Errorf("got %+v, %v; want exit 125, clean", r, err)
		}
		s.mustBeGone()
	})
}

func TestSilentHeadIsFenced(t *testing.T) {
	bothSupervisors(t, func(t *testing.T, supervisor string) {
		s := newSite(t)
		s.work = time.Hour
		opts := s.options(t.TempDir())
		h, err := Up(patient(t), s.job(supervisor), opts)
		if err != nil {
			t.Fatal(err)
		}
		awaitEvent(t, h, journal.GenerationFormed)
		s.silence(h.State().Head().Machine.Address)
		h.Leave()
		f, err := opts.folder("run-1")
		if err != nil {
			t.Fatal(err)
		}
		b, err := open(patient(t), f, opts)
		if err != nil {
			t.Fatal(err)
		}
		h = newHandle(opts, f, h.job, b, 300*time.Millisecond) // Down's own patience is 30 s
		asking, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := h.Stop(asking, journal.Stopping{Cause: journal.CauseDown}); supervisor == jobspec.SupervisorHead && err == nil {
			t.Error("a silent head took the order")
		}
		r, err := h.Wait(patient(t))
		if err != nil || !r.Clean || r.Exit != ExitInterrupted {
			t.Errorf("got %+v, %v; want exit 130, clean", r, err)
		}
		s.mustBeGone()
	})
}

// A caller that dies at any of its effects, before it, after it or without its reply, is run again with the same id: the job ends well, and nothing is left.
func TestCrashedCallerIsRunAgain(t *testing.T) {
	bothSupervisors(t, func(t *testing.T, supervisor string) {
		whole := &journal.Door{}
		s := newSite(t)
		opts := s.options(t.TempDir())
		opts.Door = whole
		if r, err := Run(patient(t), s.job(supervisor), opts); err != nil || r.Exit != 0 {
			t.Fatalf("got %+v, %v; want exit 0", r, err)
		}
		job := s.job(supervisor)
		var crashing sync.WaitGroup
		places := make(chan struct{}, 12) // they mostly wait for the disk, so more than there are processors
		for number := 1; number <= whole.Count(); number++ {
			// Up to the hand-over both supervisors have the same effects: one dies before it, the other after it.
			acts := (number%2 == 0) == (supervisor == jobspec.SupervisorHead)
			places <- struct{}{}
			crashing.Go(func() {
				defer func() { <-places }()
				crashAndRunAgain(t, job, number, acts)
			})
		}
		crashing.Wait()
	})
}

func crashAndRunAgain(t *testing.T, job *Job, number int, acts bool) {
	s := newSite(t)
	defer s.close()
	opts := s.options(t.TempDir())
	var at journal.Effect
	crashing := opts
	crashing.Door = &journal.Door{Guard: func(n int, e journal.Effect, act func() error) error {
		switch {
		case n < number:
			return act()
		case n == number:
			at = e
			if acts {
				_ = act()
			}
		}
		return journal.ErrCrashed // a dead process has no further effect
	}}
	if h, err := Up(patient(t), job, crashing); err == nil {
		if _, err := h.Wait(patient(t)); errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("crashed at effect %d, %v, done: %v: the dead caller goes on", number, at, acts)
		}
		h.Leave()
	}
	r, err := Run(patient(t), job, opts)
	if err != nil || r.Exit != 0 || !r.Clean {
		t.Errorf("crashed at effect %d, %v, done: %v: got %+v, %v; want exit 0, clean", number, at, acts, r, err)
	}
	s.mustBeGone()
}
