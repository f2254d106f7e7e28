package main

import (
	"context"

	"github.com/urfave/cli/v2"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/launcher"
)

func (a *app) execCommand() *cli.Command {
	return &cli.Command{
		Name: "exec", Usage: "run a command on a node, and exit with its code", ArgsUsage: "[RUN] -- CMD",
		Description: "One argument is a line for the node's shell, several are run as they are. Input, where it is no terminal, goes to the command.",
		Flags:       []cli.Flag{&cli.StringFlag{Name: "node", Usage: "`NODE`: head, w2 or w2.1", Value: "head"}},
		Action:      a.exec,
	}
}

func (a *app) exec(c *cli.Context) error {
	args, command, err := operands(c, 0, 1)
	if err != nil {
		return err
	}
	if len(command) == 0 {
		return usagef("want the command after --").hint("launcher exec RUN -- hostname")
	}
	ctx, cancel := interruptible(c.Context)
	defer cancel()
	streams := sshexec.Streams{Stdout: a.ui.out, Stderr: a.ui.err}
	if !a.ui.inTerminal {
		streams.Stdin = a.ui.in
	}
	return a.orderRun(ctx, args, func(ctx context.Context, h *launcher.Handle) error {
		exit, err := h.Exec(ctx, c.String("node"), launcher.Command{Argv: command, Streams: streams})
		if err != nil {
			return err
		}
		return exitOf(exit)
	})
}

// exitOf is the end of a remote command as ours: its code, and as shells do 128 and more for a signal.
func exitOf(e sshexec.Exit) error {
	if e.Signal != "" {
		return exitCode(128)
	}
	return exitCode(e.Code)
}
