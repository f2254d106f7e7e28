package main

import "github.com/urfave/cli/v2"

func (a *app) waitCommand() *cli.Command {
	return &cli.Command{
		Name: "wait", Usage: "wait for the end of a run and exit with its code", ArgsUsage: "RUN",
		Description: "Interrupted, it leaves the run alone and exits with 125.",
		Flags:       []cli.Flag{resultFlag(), outputFlag()},
		Action: func(c *cli.Context) error {
			args, _, err := operands(c, 0, 1)
			if err != nil {
				return err
			}
			return a.followRun(c, args, true)
		},
	}
}
