package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/launcher"
)

func (a *app) sshCommand() *cli.Command {
	return &cli.Command{
		Name: "ssh", Usage: "a shell on a node", ArgsUsage: "[RUN] [NODE]",
		Description: "NODE is head, w2 or w2.1; default: head. A single argument is the run, unless it names a node.",
		Action:      a.ssh,
	}
}

func (a *app) ssh(c *cli.Context) error {
	args, _, err := operands(c, 0, 2)
	if err != nil {
		return err
	}
	node := ""
	if len(args) == 2 {
		node, args = args[1], args[:1]
	} else if len(args) == 1 && isNode(args[0]) {
		node, args = args[0], nil
	}
	return a.orderRun(c.Context, args, func(ctx context.Context, h *launcher.Handle) error {
		out, isFile := a.ui.out.(*os.File)
		if !a.ui.inTerminal || !isFile || !a.ui.outTerminal { // a script on stdin
			exit, err := h.Exec(ctx, node, launcher.Command{
				Argv: []string{"exec ${SHELL:-/bin/sh}"}, Streams: sshexec.Streams{Stdin: a.ui.in, Stdout: a.ui.out, Stderr: a.ui.err},
			})
			if err != nil {
				return err
			}
			return exitOf(exit)
		}
		return a.shell(ctx, h, node, out)
	})
}

// shell connects this terminal to a shell on the node: raw, so that each key goes there, Ctrl-C too.
func (a *app) shell(ctx context.Context, h *launcher.Handle, node string, out *os.File) error {
	before, err := term.MakeRaw(int(a.ui.in.Fd()))
	if err != nil {
		return err
	}
	defer term.Restore(int(a.ui.in.Fd()), before)
	resized, sizes := make(chan os.Signal, 1), make(chan sshexec.WindowSize, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-resized:
				if w, hgt, err := term.GetSize(int(out.Fd())); err == nil {
					select {
					case sizes <- sshexec.WindowSize{Rows: hgt, Columns: w}:
					case <-ctx.Done():
						return
					}
				}
			}
		}
	})
	w, hgt := a.ui.size()
	exit, err := h.Exec(ctx, node, launcher.Command{
		Terminal: &sshexec.Terminal{Term: a.ui.env("TERM"), Size: sshexec.WindowSize{Rows: hgt, Columns: w}, Resize: sizes},
		Streams:  sshexec.Streams{Stdin: a.ui.in, Stdout: out, Stderr: a.ui.err},
	})
	if err != nil {
		return err
	}
	return exitOf(exit)
}
