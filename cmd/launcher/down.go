package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ephemeral-launcher/launcher/launcher"
	"github.com/ephemeral-launcher/launcher/providers"
)

func (a *app) downCommand() *cli.Command {
	return &cli.Command{
		Name: "down", Usage: "delete everything of a run, look again, and say what was found", ArgsUsage: "RUN",
		Description: "It never asks. Without the run's state folder it looks with the provider blocks of --job FILE, else with --provider, else with every provider that has credentials.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Usage: "all runs of this state folder"},
			&cli.StringFlag{Name: "job", Usage: "look with the provider blocks of this job `FILE`"},
			&cli.StringSliceFlag{Name: "provider", Usage: "look with this provider only; may be repeated", DefaultText: "all"},
			varFlag(), outputFlag(),
		},
		Action: a.down,
	}
}

func (a *app) down(c *cli.Context) error {
	args, _, err := operands(c, 0, 1)
	if err != nil {
		return err
	}
	asJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	if c.Bool("all") == (len(args) == 1) {
		return usagef("want a RUN, or --all").hint("launcher ls")
	}
	opts, err := a.downOptions(c)
	if err != nil {
		return err
	}
	ctx, cancel := interruptible(c.Context)
	defer cancel()
	if !c.Bool("all") {
		run, err := a.downRun(args[0], opts.Options)
		if err != nil {
			return err
		}
		var skipped []launcher.NotLookedAt
		if _, err := launcher.ReadEvents(run, opts.Options); err == nil {
			err = a.providers().addOf(run, opts.Options)
			if err != nil {
				return err
			}
		} else if opts.Job == nil && len(c.StringSlice("provider")) == 0 {
			a.providers().addAll("")
			opts.Providers, skipped = withoutBlocks(ctx, opts.Providers)
			skipped = append(skipped, a.providers().notAsked()...)
		}
		result, err := launcher.Down(ctx, run, opts)
		if result != nil {
			result.NotLookedAt = append(result.NotLookedAt, skipped...)
			err = errors.Join(err, a.ui.downResult(result, asJSON))
		}
		return err
	}
	runs, err := launcher.List(ctx, opts.Options)
	if err != nil {
		return err
	}
	results, failed := []*launcher.DownResult{}, []error{}
	for _, r := range runs {
		if !r.Living() {
			continue
		}
		if err := a.providers().addOf(r.Run, opts.Options); err != nil {
			failed = append(failed, err)
			continue
		}
		result, err := launcher.Down(ctx, r.Run, opts)
		if result != nil {
			results = append(results, result)
			if !asJSON {
				err = errors.Join(err, a.ui.downResult(result, false))
			}
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", r.Run, err))
		}
	}
	if asJSON {
		failed = append(failed, a.ui.printJSON(results))
	} else if len(results) == 0 {
		a.ui.printf("no run lives in this state folder\n")
	}
	for _, err := range failed { // each with its own command
		if unfinished := new(launcher.UnfinishedError); errors.As(err, &unfinished) && len(failed) > 1 {
			a.ui.notef("launcher: %v", err)
			a.ui.notef("hint: %s", unfinished.Command)
		}
	}
	return errors.Join(failed...)
}

// downRun is the run to end: a prefix of one in the state folder, else the id as it is: it may be a run of another state folder.
func (a *app) downRun(name string, opts launcher.Options) (string, error) {
	if name == "" {
		return "", usagef("the run's id is empty")
	}
	run, err := launcher.FindRun(name, opts)
	if errors.Is(err, launcher.ErrUnknownRun) {
		return name, nil
	}
	if many := new(launcher.AmbiguousRunError); errors.As(err, &many) {
		return "", usagef("%v", err).hint("launcher ls")
	}
	return run, err
}

func (a *app) downOptions(c *cli.Context) (launcher.DownOptions, error) {
	opts := launcher.DownOptions{}
	var err error
	if opts.Options, err = a.options(); err != nil {
		return opts, err
	}
	if names := c.StringSlice("provider"); len(names) > 0 {
		for _, name := range names {
			if err := a.providers().add(name, c.String("job")); err != nil {
				return opts, err
			}
		}
		if opts.Providers, err = chosen(opts.Providers, names); err != nil {
			return opts, err
		}
	}
	if file := c.String("job"); file != "" {
		opts.Job, err = a.load(file, c.StringSlice("var"))
	}
	return opts, err
}

// chosen are the providers of these names.
func chosen(all map[string]providers.Provider, names []string) (map[string]providers.Provider, error) {
	some := map[string]providers.Provider{}
	for _, name := range names {
		p, ok := all[name]
		if !ok {
			return nil, usagef("no provider %q; there are %s", name, strings.Join(slices.Sorted(maps.Keys(all)), ", ")).hint("launcher providers")
		}
		some[name] = p
	}
	return some, nil
}

// downResult says what was found and what became of it.
func (u *ui) downResult(r *launcher.DownResult, asJSON bool) error {
	if asJSON {
		return u.printJSON(r)
	}
	if len(r.Found) == 0 && len(r.Left) == 0 {
		u.printf("%s: nothing found: nothing of it can bill\n", r.Run)
	} else {
		u.printf("%s: found %s, deleted and seen gone: %d\n", r.Run, count(len(r.Found), "resource"), len(r.Deleted))
		for _, f := range r.Found {
			state := "left"
			if slices.Contains(r.Deleted, f.ID) {
				state = "gone"
			}
			u.printf("  %-5s %s %s\n", state, f.Kind, f.ID)
		}
	}
	for _, n := range r.NotLookedAt {
		u.notef("launcher: not looked at: %s: %s", n.Provider, n.Why)
	}
	if r.Result != nil {
		u.printf("  spend %s, goodput %.0f %%\n", dollars(r.Result.SpendUSD), 100*r.Result.Goodput)
		if r.Result.Outputs != "" {
			u.printf("  outputs %s\n", r.Result.Outputs)
		}
	}
	return nil
}

// interruptible is a context that the usual signals end: for commands that order or look, and hold nothing.
func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, func() { time.AfterFunc(sameSignal, stop) }) // a second one ends the process
	return ctx, stop
}
