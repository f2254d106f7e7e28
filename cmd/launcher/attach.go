package main

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ephemeral-launcher/launcher/launcher"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

func (a *app) attachCommand() *cli.Command {
	return &cli.Command{
		Name: "attach", Usage: "follow a run; Ctrl-C leaves it", ArgsUsage: "[RUN]",
		Flags: []cli.Flag{resultFlag(), outputFlag()},
		Action: func(c *cli.Context) error {
			args, _, err := operands(c, 0, 1)
			if err != nil {
				return err
			}
			return a.followRun(c, args, false)
		},
	}
}

func resultFlag() cli.Flag {
	return &cli.StringFlag{Name: "result", Usage: "write how it ended into `FILE`, as JSON"}
}

// followRun is attach and wait: wait shows nothing but the end.
func (a *app) followRun(c *cli.Context, names []string, quiet bool) error {
	asJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	opts, err := a.options()
	if err != nil {
		return err
	}
	run, err := a.findRun(names, opts)
	if err != nil {
		var unknown *hinted
		if errors.As(err, &unknown) { // nothing was started: the same code as other wrong usage
			return &usageError{text: unknown.Error(), hints: unknown.hints}
		}
		return err
	}
	if result, err := stored(run, opts); err != nil || result != nil {
		return a.told(result, asJSON, err, c.String("result"))
	}
	opts.OnlyNew = !asJSON
	f := a.ui.follow(asJSON && !quiet, quiet, true)
	h, err := f.begin(c.Context, func(ctx context.Context) (*launcher.Handle, error) { return launcher.Attach(ctx, run, f.options(opts)) })
	if err != nil {
		f.end()
		if errors.Is(err, errInterrupted) {
			return left(run, quiet)
		}
		return err
	}
	if !quiet && !asJSON {
		f.screen.print(statusBlock(h.State(), max(h.State().At, journal.At(time.Since(h.State().Began))), 200, 1000)[1:]...)
	}
	result, detached, err := f.wait(c.Context, false)
	if detached && quiet {
		f.end()
		return left(run, quiet)
	}
	if quiet && asJSON && result != nil {
		f.end()
		return a.told(result, true, err, c.String("result"))
	}
	return f.finish(result, detached, err, c.String("result"))
}

// left is how attach and wait end when a signal comes and the run goes on. That is what a Ctrl-C on attach is for; whoever waits for a result, though,
// did not get one.
func left(run string, waits bool) error {
	if !waits {
		return nil
	}
	return &hinted{err: errors.New("wait: interrupted; run " + run + " goes on"), hints: []string{"launcher wait " + run}}
}

// stored is the result of a run that is over and seen gone; nil for the others.
func stored(run string, opts launcher.Options) (*launcher.Result, error) {
	result, err := launcher.ReadResult(run, opts)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !result.Clean {
		return nil, nil
	}
	return result, err
}

// told prints a result that needs no following.
func (a *app) told(result *launcher.Result, asJSON bool, err error, file string) error {
	if err != nil {
		return err
	}
	if file != "" {
		if err := writeResult(file, result); err != nil {
			return err
		}
	}
	if asJSON {
		if err := a.ui.printJSON(result); err != nil {
			return err
		}
	}
	a.ui.result(result, asJSON)
	return exitCode(result.Exit)
}
