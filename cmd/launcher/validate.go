package main

import "github.com/urfave/cli/v2"

func (a *app) validateCommand() *cli.Command {
	return &cli.Command{
		Name: "validate", Usage: "check a job file, and that the files it names exist", ArgsUsage: "FILE",
		Flags:  []cli.Flag{varFlag(), outputFlag()},
		Action: a.validate,
	}
}

func (a *app) validate(c *cli.Context) error {
	args, _, err := operands(c, 1, 1)
	if err != nil {
		return err
	}
	asJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	job, err := a.load(args[0], c.StringSlice("var"))
	if err != nil {
		return err
	}
	if asJSON {
		return a.ui.printJSON(job)
	}
	a.ui.printf("%s: job %s is valid\n", args[0], job.Name)
	return nil
}
