package main

import (
	"context"
	_ "embed" // for the demo's job
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ephemeral-launcher/launcher/launcher"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// demoProgram is the name under which this executable is the demo's training program.
const demoProgram = "elastic-sgd"

// demoTimeout bounds the whole demo; it takes about a minute.
const demoTimeout = 4 * time.Minute

//go:embed demo/job.hcl
var demoJob []byte

func (a *app) demoCommand() *cli.Command {
	return &cli.Command{
		Name: "demo", Usage: "a whole job on this computer: a preemption, a loss, replacements, teardown; about a minute", ArgsUsage: " ",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "keep", Usage: "leave the demo's folder, with journal and logs"}},
		Action: func(c *cli.Context) error {
			if _, _, err := operands(c, 0, 0); err != nil {
				return err
			}
			return a.demo(c.Context, c.Bool("keep"))
		},
	}
}

// demo makes a folder of its own, runs the job in it, and proves that nothing is left.
func (a *app) demo(ctx context.Context, keep bool) error {
	ctx, cancel := interruptible(ctx)
	defer cancel()
	ctx, done := context.WithTimeoutCause(ctx, demoTimeout, fmt.Errorf("the demo took longer than %s", demoTimeout))
	defer done()
	folder, err := os.MkdirTemp("", "launcher-demo-")
	if err != nil {
		return err
	}
	if folder, err = filepath.EvalSymlinks(folder); err != nil {
		return err
	}
	s := &stage{ui: a.ui, folder: folder, began: time.Now(), happenings: make(chan happening, 4096), losses: map[int]*lossRange{}}
	err = s.play(ctx)
	if left := s.remains(); left != nil {
		// What may still run needs its folder for `down`.
		return &hinted{err: errors.Join(err, left), hints: []string{s.recovery()}}
	}
	if keep {
		s.say("The folder %s is kept: LAUNCHER_HOME=%s launcher logs", folder, s.home())
		return err
	}
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		a.ui.notef("launcher: demo: interrupted; everything was deleted")
		err = exitCode(launcher.ExitInterrupted)
	}
	if rerr := os.RemoveAll(folder); rerr != nil {
		return errors.Join(err, rerr)
	}
	if _, serr := os.Stat(folder); serr == nil {
		return errors.Join(err, fmt.Errorf("folder %s is still there", folder))
	}
	if err == nil {
		s.say("Nothing is left: no machine is listed, no process of one runs, and the demo's folder is gone. It took %s.", span(time.Since(s.began)))
	}
	return err
}

// happening is one thing that the run told: an event or a line of output.
type happening struct {
	event *launcher.Event
	line  *launcher.LogLine
}

// stage tells the story. One goroutine reads happenings; the run's own only write them.
type stage struct {
	ui         *ui
	folder     string
	began      time.Time
	happenings chan happening
	handle     *launcher.Handle

	// What was seen so far; play's goroutine owns it.
	state    journal.State
	step     int
	losses   map[int]*lossRange // by generation
	toldLoss int                // the step of the last line about the loss
}

// lossRange is how the loss went in one generation.
type lossRange struct {
	world               int
	firstStep, lastStep int
	first, last         float64
}

func (s *stage) home() string { return filepath.Join(s.folder, "home") }
func (s *stage) root() string { return filepath.Join(s.folder, "cloud") }
func (s *stage) recovery() string {
	run := s.state.Run
	if run == "" {
		run = "--all"
	}
	return fmt.Sprintf("LAUNCHER_HOME=%s LAUNCHER_LOCAL_ROOT=%s launcher down %s", s.home(), s.root(), run)
}

// say prints a line of the story, show one of the run.
func (s *stage) say(format string, args ...any) { s.ui.printf("\n"+format+"\n", args...) }

func (s *stage) show(text string) { s.ui.printf("  %s\n", text) }

// setting makes the job's folder: the job file, and this executable under the name of the training program.
func (s *stage) setting() (string, error) {
	work := filepath.Join(s.folder, "job")
	if err := os.Mkdir(work, 0o700); err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if err := copyProgram(self, filepath.Join(work, demoProgram)); err != nil {
		return "", fmt.Errorf("copy this program: %w", err)
	}
	file := filepath.Join(work, "job.hcl")
	return file, os.WriteFile(file, demoJob, 0o600)
}

func copyProgram(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// hear is handed to the run. It never blocks the run: the channel holds more than the demo makes.
func (s *stage) hear(ctx context.Context, opts *launcher.Options) {
	put := func(h happening) {
		select {
		case s.happenings <- h:
		case <-ctx.Done():
		}
	}
	opts.OnEvent = func(e launcher.Event) { put(happening{event: &e}) }
	opts.OnLog = func(l launcher.LogLine) { put(happening{line: &l}) }
}

// until reads happenings until met says so.
func (s *stage) until(ctx context.Context, what string, met func() bool) error {
	for !met() {
		select {
		case h := <-s.happenings:
			if err := s.take(h); err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, context.Cause(ctx))
		}
		if why := s.state.Stopping; why != nil && !met() {
			return fmt.Errorf("wait until %s: the run ended before: %s", what, endText(*why))
		}
	}
	return nil
}

// take folds one happening in and shows it, if it belongs to the story.
func (s *stage) take(h happening) error {
	if h.line != nil {
		s.takeLine(*h.line)
		return nil
	}
	e := *h.event
	if err := s.state.Apply(e); err != nil {
		return err
	}
	switch e.Kind {
	case journal.NodeRefused, journal.NodeReachable, journal.NodeDeleting, journal.CheckpointSaved, journal.ProcessExited, journal.RunCreated,
		journal.GenerationForming, journal.NodeSuspect, journal.RunPlanned, journal.HandoverAccepted, journal.RunStopping:
		return nil // true, but not the story
	}
	if t, ok := narrate(e); ok {
		s.show(t.line(e.At, s.ui.colour(s.ui.outTerminal)))
	}
	return nil
}

// shownSteps is how many steps lie between two lines about the loss.
const shownSteps = 50

// takeLine reads the training's progress lines, "step 20/400 loss 1.5822 acc 0.710 world 1", of rank 0.
func (s *stage) takeLine(l launcher.LogLine) {
	var step, steps, world int
	var loss, accuracy float64
	if l.Rank == 0 && strings.HasPrefix(l.Text, "accuracy ") {
		s.show(rankLine(l))
	}
	if n, _ := fmt.Sscanf(l.Text, "step %d/%d loss %g acc %g world %d", &step, &steps, &loss, &accuracy, &world); n != 5 || l.Rank != 0 {
		return
	}
	s.step = step
	r := s.losses[l.Generation]
	if r == nil {
		r = &lossRange{world: world, firstStep: step, first: loss}
		s.losses[l.Generation] = r
	}
	r.lastStep, r.last = step, loss
	if step >= s.toldLoss+shownSteps || r.firstStep == step {
		s.toldLoss = step
		s.show(rankLine(l))
	}
}
