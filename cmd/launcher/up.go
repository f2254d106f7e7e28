package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/urfave/cli/v2"

	"github.com/ephemeral-launcher/launcher/launcher"
	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
)

type upOptions struct {
	file   string
	vars   []string
	detach bool
	yes    bool
	json   bool
	run    string
	result string
}

func (a *app) upCommand() *cli.Command {
	return &cli.Command{
		Name: "up", Usage: "rent the machines of a job, run it, delete them all", ArgsUsage: "FILE",
		Description: "With the --run-id of a living run it attaches to it, with that of a finished one it returns the stored result.",
		Flags: []cli.Flag{
			varFlag(),
			&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "leave as soon as the run's head supervises it"},
			&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask"},
			&cli.StringFlag{Name: "run-id", Usage: "the run's `ID`; default: the job's name and six characters"},
			&cli.StringFlag{Name: "result", Usage: "write how it ended into `FILE`, as JSON"},
			outputFlag(),
		},
		Action: func(c *cli.Context) error {
			args, _, err := operands(c, 1, 1)
			if err != nil {
				return err
			}
			asJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			return a.up(c.Context, upOptions{
				file: args[0], vars: c.StringSlice("var"), detach: c.Bool("detach"), yes: c.Bool("yes"), json: asJSON, run: c.String("run-id"), result: c.String("result"),
			})
		},
	}
}

func (a *app) up(ctx context.Context, o upOptions) error {
	job, err := a.load(o.file, o.vars)
	if err != nil {
		return err
	}
	if o.detach && job.Head.Supervisor == jobspec.SupervisorClient {
		return notDetachable(job)
	}
	opts, err := a.options()
	if err != nil {
		return err
	}
	opts.RunID = o.run
	if err := a.confirm(ctx, job, opts, o); err != nil {
		return err
	}
	if o.result != "" {
		if _, err := os.Stat(dirOf(o.result)); err != nil {
			return usagef("--result: %v", err) // now, and not when there is a result to lose
		}
		if err := os.Remove(o.result); err != nil && !errors.Is(err, fs.ErrNotExist) { // an old result must not pass for this one
			return usagef("--result: %v", err)
		}
	}
	f := a.ui.follow(o.json, false, false)
	h, err := f.begin(ctx, func(ctx context.Context) (*launcher.Handle, error) { return launcher.Up(ctx, job, f.options(opts)) })
	if err != nil {
		return f.failed(err, o)
	}
	if o.run == "" && !o.json {
		f.screen.print("run " + h.Run() + " in " + h.Folder())
	}
	result, detached, err := f.wait(ctx, o.detach)
	return f.finish(result, detached, err, o.result)
}

// failed is the end of an up that started nothing, with a result for whoever asked for one.
func (f *follower) failed(err error, o upOptions) error {
	f.end()
	if none := new(launcher.NoCandidateError); errors.As(err, &none) {
		err = &hinted{err: err, hints: []string{"launcher plan " + o.file}}
	}
	if o.result != "" {
		quiet := &ui{out: f.ui.out, err: discard{}, env: f.ui.env}
		r := &launcher.Result{Run: o.run, Exit: quiet.fail("up", err), Text: err.Error(), Clean: true}
		if werr := writeResult(o.result, r); werr != nil {
			f.ui.notef("launcher: --result: %v", werr)
		}
	}
	return err
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// confirm shows what will be rented and asks. A run that exists already was confirmed once.
func (a *app) confirm(ctx context.Context, job *launcher.Job, opts launcher.Options, o upOptions) error {
	if o.yes {
		return nil
	}
	if o.run != "" {
		if _, err := launcher.ReadEvents(o.run, opts); err == nil {
			return nil
		}
	}
	if !a.ui.asks() {
		return usagef("there is no terminal to ask on whether to rent machines").hint(strings.Join([]string{"launcher up -y", o.file}, " "))
	}
	plan, err := launcher.Plan(ctx, job, opts)
	if err != nil {
		return err
	}
	if len(plan.Candidates) == 0 {
		return &launcher.NoCandidateError{Job: job.Name, Rejected: plan.Rejected, Providers: plan.Providers}
	}
	short := *plan
	short.Candidates, short.Rejected = plan.Candidates[:1], nil
	shown := *a.ui
	shown.out = a.ui.err
	shown.plan(&short, time.Now())
	if !a.ui.ask("Rent this?") {
		return usagef("not confirmed; nothing was started")
	}
	return nil
}

// notDetachable points at the line that keeps the supervisor here.
func notDetachable(job *launcher.Job) error {
	d := &hcl.Diagnostic{
		Severity: hcl.DiagError,
		Summary:  "A run that is supervised here cannot be detached",
		Detail: `With supervisor = "client" this process supervises the run, and the machines end themselves when it is gone. ` +
			`Leave out --detach, or let the head supervise: supervisor = "head".`,
	}
	if r, ok := job.Ranges["head.supervisor"]; ok {
		d.Subject = &r
	}
	files := map[string][]byte{}
	if src, err := os.ReadFile(job.File); err == nil { // only for the source lines
		files[job.File] = src
		if d.Subject != nil {
			files[d.Subject.Filename] = src
		}
	}
	return &launcher.DiagnosticsError{Err: hcl.Diagnostics{d}, Files: files}
}
