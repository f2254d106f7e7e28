package main

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/ephemeral-launcher/launcher/launcher"
)

func (a *app) logsCommand() *cli.Command {
	return &cli.Command{
		Name: "logs", Usage: "show a run's output", ArgsUsage: "[RUN]",
		Flags: []cli.Flag{
			followFlag(),
			&cli.StringFlag{Name: "node", Usage: "only of this `NODE`: w2.1, or w2 for all machines that held slot 2"},
			&cli.StringFlag{Name: "rank", Usage: "only of this `RANK`"},
			outputFlag(),
		},
		Action: a.logs,
	}
}

func (a *app) logs(c *cli.Context) error {
	asJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	node, rank := c.String("node"), -1
	if text := c.String("rank"); text != "" {
		if rank, err = strconv.Atoi(text); err != nil || rank < 0 {
			return usagef("--rank %s: want a number from 0", text)
		}
	}
	return a.stream(c, stream{line: func(l launcher.LogLine) {
		if rank >= 0 && l.Rank != rank || node != "" && l.Node != node && !strings.HasPrefix(l.Node, node+".") {
			return
		}
		if !asJSON {
			a.ui.printf("%s\n", rankLine(l))
			return
		}
		b, err := json.Marshal(l)
		if err != nil {
			a.ui.notef("launcher: %v", err)
			return
		}
		a.ui.printf("%s\n", b)
	}})
}
