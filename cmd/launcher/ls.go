package main

import (
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ephemeral-launcher/launcher/launcher"
)

func (a *app) lsCommand() *cli.Command {
	return &cli.Command{
		Name: "ls", Usage: "list the runs of this state folder that live", ArgsUsage: " ",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "those that are over and seen gone too"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "only the ids, one a line"},
			outputFlag(),
		},
		Action: a.ls,
	}
}

func (a *app) ls(c *cli.Context) error {
	if _, _, err := operands(c, 0, 0); err != nil {
		return err
	}
	asJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	opts, err := a.options()
	if err != nil {
		return err
	}
	all, err := launcher.List(c.Context, opts)
	if err != nil {
		return err
	}
	shown, over := []launcher.RunInfo{}, 0
	for _, r := range all {
		if r.Living() || c.Bool("all") {
			shown = append(shown, r)
		} else {
			over++
		}
	}
	switch {
	case asJSON:
		return a.ui.printJSON(shown)
	case c.Bool("quiet"):
		for _, r := range shown {
			a.ui.printf("%s\n", r.Run)
		}
		return nil
	case len(shown) > 0:
		a.ui.runs(shown, time.Now())
	}
	if over > 0 {
		a.ui.notef("%s over: launcher ls --all", count(over, "run"))
	}
	return nil
}

func (u *ui) runs(runs []launcher.RunInfo, now time.Time) {
	rows := [][]string{{"RUN", "STATE", "NODES", "GENERATION", "SPEND", "AGE", "SUPERVISOR", "PROVIDER", "END"}}
	for _, r := range runs {
		end := string(r.Cause)
		if r.Exit != nil {
			end += " " + strconv.Itoa(*r.Exit)
		}
		rows = append(rows, []string{
			r.Run, r.State, strconv.Itoa(r.Nodes), strconv.Itoa(r.Generation), dollars(r.SpendUSD), span(now.Sub(r.Since)), r.Supervisor, orNone(r.Provider), end,
		})
	}
	u.table(rows)
}
