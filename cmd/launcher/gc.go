package main

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/ephemeral-launcher/launcher/launcher"
)

func (a *app) gcCommand() *cli.Command {
	return &cli.Command{
		Name: "gc", Usage: "find what dead runs of yours have left, and delete it after a yes", ArgsUsage: " ",
		Description: "What cannot be judged is listed, never deleted.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "owner", Usage: "look at the runs of another `OWNER`; default: the caller"},
			&cli.StringFlag{Name: "job", Usage: "look with the provider blocks of this job `FILE`"},
			&cli.StringSliceFlag{Name: "provider", Usage: "look with this provider only; may be repeated", DefaultText: "all"},
			&cli.BoolFlag{Name: "dry-run", Aliases: []string{"n"}, Usage: "only list"},
			&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask"},
			varFlag(), outputFlag(),
		},
		Action: a.gc,
	}
}

// gcReport is what `gc -o json` prints.
type gcReport struct {
	Runs        []launcher.GCRun       `json:"runs"`
	NotLookedAt []launcher.NotLookedAt `json:"not_looked_at,omitempty"`
	Collected   []*launcher.DownResult `json:"collected"`
}

func (a *app) gc(c *cli.Context) error {
	if _, _, err := operands(c, 0, 0); err != nil {
		return err
	}
	asJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	if !a.ui.asks() && !c.Bool("yes") && !c.Bool("dry-run") {
		return usagef("there is no terminal to ask on whether to delete").hint("launcher gc --dry-run", "launcher gc -y")
	}
	down, err := a.downOptions(c)
	if err != nil {
		return err
	}
	var refused []launcher.NotLookedAt
	if down.Job == nil && len(c.StringSlice("provider")) == 0 {
		a.providers().addAll("")
		refused = a.providers().notAsked()
	}
	opts := launcher.GCOptions{Options: down.Options, Owner: c.String("owner"), Job: down.Job}
	ctx, cancel := interruptible(c.Context)
	defer cancel()
	runs, skipped, err := launcher.GC(ctx, opts)
	if err != nil {
		return err
	}
	skipped = append(skipped, refused...)
	report := gcReport{Runs: runs, NotLookedAt: skipped, Collected: []*launcher.DownResult{}}
	if report.Runs == nil {
		report.Runs = []launcher.GCRun{}
	}
	var dead []launcher.GCRun
	for _, r := range runs {
		if r.Dead {
			dead = append(dead, r)
		}
	}
	if !asJSON {
		a.ui.remains(runs, skipped)
	}
	if len(dead) > 0 && !c.Bool("dry-run") && (c.Bool("yes") || a.ui.ask(fmt.Sprintf("Delete what %s left?", count(len(dead), "dead run")))) {
		for _, r := range dead {
			result, cerr := launcher.Collect(ctx, r, opts)
			err = errors.Join(err, cerr)
			if result == nil {
				continue
			}
			report.Collected = append(report.Collected, result)
			if !asJSON {
				err = errors.Join(err, a.ui.downResult(result, false))
			}
		}
	}
	if asJSON {
		err = errors.Join(err, a.ui.printJSON(report))
	}
	return err
}

// remains lists what carries our tag.
func (u *ui) remains(runs []launcher.GCRun, skipped []launcher.NotLookedAt) {
	for _, r := range runs {
		verdict := "kept"
		if r.Dead {
			verdict = "dead"
		}
		u.printf("%s %s on %s, of %s, %s: %s\n", verdict, r.Run, r.Provider, orNone(r.Owner), count(len(r.Resources), "resource"), r.Why)
	}
	if len(runs) == 0 {
		u.printf("nothing carries launcher's tag\n")
	}
	for _, s := range skipped {
		u.notef("launcher: not looked at: %s: %s", s.Provider, s.Why)
	}
}
