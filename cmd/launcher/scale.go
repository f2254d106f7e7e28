package main

import (
	"context"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/ephemeral-launcher/launcher/launcher"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

func (a *app) scaleCommand() *cli.Command {
	return &cli.Command{
		Name: "scale", Usage: "change the number of workers, within the job's min and max", ArgsUsage: "RUN N",
		Description: "On a fixed world it sets count.",
		Action:      a.scale,
	}
}

func (a *app) scale(c *cli.Context) error {
	args, _, err := operands(c, 2, 2)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(args[1])
	if err != nil || n < 1 {
		return usagef("%q is no number of workers", args[1])
	}
	ctx, cancel := interruptible(c.Context)
	defer cancel()
	return a.orderRun(ctx, args[:1], func(ctx context.Context, h *launcher.Handle) error {
		if err := h.Scale(ctx, n); err != nil {
			return err
		}
		a.ui.printf("%s: %s asked for\n", h.Run(), count(n, "worker"))
		return nil
	})
}

// isNode tells whether a word names a node rather than a run.
func isNode(word string) bool {
	if word == journal.HeadName {
		return true
	}
	_, _, err := journal.ParseNodeName(word)
	return err == nil
}
