package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/urfave/cli/v2"

	"github.com/ephemeral-launcher/launcher/launcher"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

func (a *app) eventsCommand() *cli.Command {
	return &cli.Command{
		Name: "events", Usage: "show a run's journal", ArgsUsage: "[RUN]",
		Flags:  []cli.Flag{followFlag(), outputFlag()},
		Action: a.events,
	}
}

func (a *app) events(c *cli.Context) error {
	asJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	show := func(e launcher.Event) { a.ui.printf("%s\n", eventText(e)) }
	if asJSON {
		show = func(e launcher.Event) {
			b, err := json.Marshal(e)
			if err != nil {
				a.ui.notef("launcher: %v", err)
				return
			}
			a.ui.printf("%s\n", b)
		}
	}
	return a.stream(c, stream{event: show})
}

// eventText is an event in one line: nothing is left out, so that what `up` does not tell is found here.
func eventText(e launcher.Event) string {
	who := e.Node
	if e.Generation > 0 {
		who = strings.TrimSpace(fmt.Sprintf("%s gen %d", who, e.Generation))
	}
	if who == "" {
		who = "-"
	}
	rest := string(e.Data)
	if t, _ := narrate(e); t.rest != "" {
		rest = t.rest
	}
	return strings.TrimRight(fmt.Sprintf("%s %8s  %-18s %-12s %s", e.Time.Format("15:04:05.000"), span(e.At.Duration()), e.Kind, who, rest), " ")
}

// stream is what `events` and `logs` show of a run.
type stream struct {
	event func(launcher.Event)
	line  func(launcher.LogLine)
}

// stream shows what there is, and with -f what comes, until the run is over. What is here already is read without asking anybody; the head of a
// run that it supervises is asked for the rest.
func (a *app) stream(c *cli.Context, s stream) error {
	args, _, err := operands(c, 0, 1)
	if err != nil {
		return err
	}
	opts, err := a.options()
	if err != nil {
		return err
	}
	run, err := a.findRun(args, opts)
	if err != nil {
		return err
	}
	ctx, cancel := interruptible(c.Context)
	defer cancel()
	events, err := launcher.ReadEvents(run, opts)
	if err != nil {
		return err
	}
	state, err := journal.Fold(events)
	if err != nil {
		return err
	}
	if state.Clean != nil || !c.Bool("follow") && !headHasIt(state) {
		return a.copied(run, opts, events, s)
	}
	if c.Bool("follow") {
		return a.streamOn(ctx, run, opts, s)
	}
	// What the head has more than is here comes by Sync; after it the copy has all.
	sctx, done := context.WithTimeout(ctx, syncTimeout)
	defer done()
	opts.OnlyNew = true
	h, err := launcher.Attach(sctx, run, opts)
	if err == nil {
		err = h.Sync(sctx)
		h.Leave()
	}
	if err != nil {
		a.ui.notef("launcher: the head of %s does not answer; this may not be all: %v", run, err)
	}
	if events, err = launcher.ReadEvents(run, opts); err != nil {
		return err
	}
	return a.copied(run, opts, events, s)
}

// copied shows what the state folder has.
func (a *app) copied(run string, opts launcher.Options, events []launcher.Event, s stream) error {
	if s.event != nil {
		for _, e := range events {
			s.event(e)
		}
	}
	if s.line != nil {
		return launcher.ReadLogs(run, opts, s.line)
	}
	return nil
}

// streamOn follows the run; a signal ends the following, not the run.
func (a *app) streamOn(ctx context.Context, run string, opts launcher.Options, s stream) error {
	var mu sync.Mutex // events and lines come from a goroutine each
	if s.event != nil {
		opts.OnEvent = func(e launcher.Event) { mu.Lock(); defer mu.Unlock(); s.event(e) }
	}
	if s.line != nil {
		opts.OnLog = func(l launcher.LogLine) { mu.Lock(); defer mu.Unlock(); s.line(l) }
	}
	h, err := launcher.Attach(ctx, run, opts)
	if err != nil {
		return err
	}
	defer h.Leave()
	if h.Owner() && needs(h) && !headHasIt(h.State()) {
		return &hinted{
			err:   fmt.Errorf("nobody supervises run %s: the process that did is gone", run),
			hints: []string{"launcher attach " + run, "launcher down " + run},
		}
	}
	if _, err = h.Wait(ctx); ctx.Err() != nil {
		return nil // Ctrl-C is how one stops watching
	}
	return err
}
