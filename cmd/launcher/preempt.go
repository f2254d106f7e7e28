package main

import (
	"context"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ephemeral-launcher/launcher/launcher"
)

func (a *app) preemptCommand() *cli.Command {
	return &cli.Command{
		Name: "preempt", Usage: "a drill: have the provider preempt a node", ArgsUsage: "RUN NODE",
		Flags:  []cli.Flag{&cli.DurationFlag{Name: "notice", Usage: "how long before it is taken away the node is told; 0s: not at all", Value: 30 * time.Second}},
		Action: a.preempt,
	}
}

func (a *app) preempt(c *cli.Context) error {
	args, _, err := operands(c, 2, 2)
	if err != nil {
		return err
	}
	notice := c.Duration("notice")
	switch {
	case notice < 0:
		return usagef("--notice %s is negative", notice)
	case !isNode(args[1]):
		return usagef("%q is no node: want head, w2 or w2.1", args[1]).hint("launcher status " + args[0])
	}
	ctx, cancel := interruptible(c.Context)
	defer cancel()
	return a.orderRun(ctx, args[:1], func(ctx context.Context, h *launcher.Handle) error {
		if err := h.Preempt(ctx, args[1], notice); err != nil {
			return err
		}
		a.ui.printf("%s: %s will be preempted in %s\n", h.Run(), args[1], notice)
		return nil
	})
}
