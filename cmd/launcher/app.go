package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"github.com/ephemeral-launcher/launcher/launcher"
)

// app is the table of commands and what they share. Nothing here reads a file, starts a process or asks a provider before a command runs:
// `--help` is instant.
type app struct {
	ui       *ui
	commands []*cli.Command
	// known are the providers, once a command needs them; see providers.
	known *providerSet
}

func newApp(u *ui) *app {
	a := &app{ui: u}
	a.commands = []*cli.Command{
		a.initCommand(), a.demoCommand(), a.validateCommand(), a.planCommand(), a.upCommand(), a.attachCommand(), a.waitCommand(), a.downCommand(),
		a.lsCommand(), a.statusCommand(), a.eventsCommand(), a.logsCommand(), a.execCommand(), a.sshCommand(), a.scaleCommand(), a.preemptCommand(),
		a.gcCommand(), a.providersCommand(), a.completionCommand(),
	}
	for _, c := range a.commands {
		c.HideHelpCommand = true // else a run called "help" could not be named
		name := c.Name
		c.OnUsageError = func(_ *cli.Context, err error, _ bool) error {
			return usagef("%v", err).hint("launcher " + name + " --help")
		}
	}
	return a
}

const about = `One job, one disposable cluster: launcher rents a head and spot workers for one training job, replaces the workers that are preempted,
and deletes everything it made when the job is over. It leaves no server behind, and nothing that bills.

State: $LAUNCHER_HOME, else $XDG_STATE_HOME/launcher, else ~/.local/state/launcher. RUN may be a unique prefix of a run's id.

Exit codes of up, attach and wait; the first that applies:
  124  teardown unfinished: what may still bill, and the command that finishes it
  129  interrupted, the teardown was handed to the run's supervisor
  130  interrupted or ended by ` + "`launcher down`" + `, and seen gone
  120  a limit was reached (budget_usd, max_usd_per_hour, max_duration)
  121  no capacity, quota or valid credentials
  122  too few workers for longer than allowed
  123  wrong usage or job file; nothing was started
  125  another failure of the launcher
  119  the job ended by a signal or with a code of 119 or more
    0  detached; else the job's own code, 0 to 118
Other commands: 0 done, 1 error, 2 wrong usage or job file; down also 124; exec and ssh the code of what they ran.`

// run parses the command line, runs the command and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	name, ordered, err := a.order(args)
	if err == nil {
		err = a.cli().RunContext(ctx, ordered)
	}
	if a.known != nil {
		a.known.close()
	}
	return a.ui.fail(name, err)
}

func (a *app) cli() *cli.App {
	return &cli.App{
		Name: "launcher", Usage: "gives one training job its own disposable cluster", UsageText: "launcher COMMAND [flags] [arguments]", Description: about,
		Version: version, Commands: a.commands, Writer: a.ui.out, ErrWriter: a.ui.err, HideHelpCommand: true,
		DisableSliceFlagSeparator: true, // --var a=1,2 is one value
		OnUsageError:              func(_ *cli.Context, err error, _ bool) error { return usagef("%v", err) },
		ExitErrHandler:            func(*cli.Context, error) {}, // run maps errors to exit codes, after everything was torn down
	}
}

// order puts the flags of a command before its arguments, because the parser below stops at the first argument and takes the rest for arguments.
// A "--" and what follows stays last, with the "--" itself, see operands. It returns the command's name.
func (a *app) order(args []string) (string, []string, error) {
	if len(args) < 2 {
		return "", args, nil
	}
	name, rest := args[1], args[2:]
	if name == "help" {
		if len(rest) == 0 {
			return "", []string{args[0], "--help"}, nil
		}
		name, rest = rest[0], []string{"--help"}
	}
	if strings.HasPrefix(name, "-") {
		if !slices.Contains([]string{"--help", "-h", "--version", "-v"}, name) {
			return "", nil, usagef("no flag %s before the command", name).hint("launcher --help")
		}
		return "", []string{args[0], name}, nil
	}
	c := a.command(name)
	if c == nil {
		err := usagef("no command %q", name).hint("launcher --help")
		var names []string
		for _, c := range a.commands {
			names = append(names, c.Name)
		}
		if near := nearest(name, names); near != "" {
			err.hints[0] = "launcher " + near
		}
		return "", nil, err
	}
	ordered, err := reorder(c, rest)
	return name, append([]string{args[0], name}, ordered...), err
}

func (a *app) command(name string) *cli.Command {
	for _, c := range a.commands {
		if c.HasName(name) {
			return c
		}
	}
	return nil
}

func reorder(c *cli.Command, args []string) ([]string, error) {
	takesValue := map[string]bool{"help": false, "h": false}
	for _, f := range c.Flags {
		_, isSwitch := f.(*cli.BoolFlag)
		for _, n := range f.Names() {
			takesValue[n] = !isSwitch
		}
	}
	var flags, operands []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			operands = append(operands, args[i:]...)
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			operands = append(operands, arg)
			continue
		}
		name, _, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		value, known := takesValue[name]
		if !known {
			err := usagef("no flag %s", arg).hint("launcher " + c.Name + " --help")
			if near := nearest(name, slices.Collect(maps.Keys(takesValue))); near != "" {
				err.text += fmt.Sprintf("; did you mean --%s?", near)
			}
			return nil, err
		}
		flags = append(flags, arg)
		if value && !joined {
			if i++; i == len(args) {
				return nil, usagef("flag %s needs a value", arg).hint("launcher " + c.Name + " --help")
			}
			flags = append(flags, args[i])
		}
	}
	return append(append(flags, "--"), operands...), nil
}

// nearest is the name that is at most two typing errors away; "" where none is, or the word is too short to tell.
func nearest(word string, names []string) string {
	best, found := 3, ""
	slices.Sort(names)
	for _, name := range names {
		if d := distance(word, name); d < best && d < len(word)-1 {
			best, found = d, name
		}
	}
	return found
}

// distance counts the letters to insert, delete or replace between two words (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0]++
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// operands are the arguments before a "--", and after it; after is nil where there was none. At least min and at most max are taken before it.
func operands(c *cli.Context, min, max int) (before, after []string, err error) {
	before = c.Args().Slice()
	if i := slices.Index(before, "--"); i >= 0 {
		before, after = before[:i], append([]string{}, before[i+1:]...)
	}
	if c.Command.Name != "exec" {
		before, after = append(before, after...), nil
	}
	switch {
	case len(before) < min:
		return nil, nil, usagef("%s is missing", missing(c.Command.ArgsUsage, len(before))).hint("launcher " + c.Command.Name + " --help")
	case len(before) > max:
		return nil, nil, usagef("%q is one argument too many", before[max]).hint("launcher " + c.Command.Name + " --help")
	}
	return before, after, nil
}

// missing names the n-th argument in a command's usage line.
func missing(usage string, n int) string {
	words := strings.Fields(usage)
	if n < len(words) {
		return strings.Trim(words[n], "[]")
	}
	return "an argument"
}

// options are the library's, for this command line.
func (a *app) options() (launcher.Options, error) {
	opts := launcher.Options{Version: version, Providers: a.providers().all} // the map itself: a plugin that is added later is there too
	// For developers, like TF_LOG: a file that diagnostics are appended to.
	if path := a.ui.env("LAUNCHER_LOG"); path != "" {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return opts, fmt.Errorf("open $LAUNCHER_LOG: %w", err)
		}
		opts.Log = slog.New(slog.NewTextHandler(f, &slog.HandlerOptions{Level: slog.LevelDebug})) // open until the process ends
	}
	return opts, nil
}

// providers are those this program hands to the library.
func (a *app) providers() *providerSet {
	if a.known == nil {
		a.known = newProviderSet()
	}
	return a.known
}

// load reads a job file. Warnings are printed.
func (a *app) load(path string, vars []string) (*launcher.Job, error) {
	values, err := parseVars(vars)
	if err != nil {
		return nil, err
	}
	if err := a.providers().addBlocks(path); err != nil {
		return nil, err
	}
	job, err := launcher.Load(path, launcher.LoadOptions{Vars: values, Providers: a.providers().all, OnWarnings: a.ui.diagnostics})
	if wrong := new(launcher.DiagnosticsError); err != nil && !errors.As(err, &wrong) {
		return nil, usagef("%v", err).hint("launcher init")
	}
	return job, err
}

func parseVars(vars []string) (map[string]string, error) {
	values := map[string]string{}
	for _, v := range vars {
		name, value, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			return nil, usagef("--var %s: want NAME=VALUE", v)
		}
		if !utf8.ValidString(v) {
			return nil, usagef("--var %s: its value is not UTF-8 text", name)
		}
		if _, twice := values[name]; twice {
			return nil, usagef("--var %s is given twice", name)
		}
		values[name] = value
	}
	return values, nil
}

// findRun resolves what the user named a run by; no name is the one run that lives. It finds the plugin of that run too.
func (a *app) findRun(names []string, opts launcher.Options) (string, error) {
	name := ""
	if len(names) > 0 {
		if name = names[0]; name == "" {
			return "", usagef("the run's id is empty") // a script's unset variable is not "the one that lives"
		}
	}
	run, err := launcher.FindRun(name, opts)
	var many *launcher.AmbiguousRunError
	switch {
	case errors.As(err, &many) && name == "":
		return "", usagef("%d runs live: %s", len(many.Runs), strings.Join(many.Runs, ", ")).hint("launcher ls")
	case errors.As(err, &many):
		return "", usagef("%v", err).hint("launcher ls")
	case errors.Is(err, launcher.ErrUnknownRun) && name == "":
		return "", &hinted{err: errors.New("no run lives"), hints: []string{"launcher ls --all"}}
	case errors.Is(err, launcher.ErrUnknownRun):
		return "", &hinted{err: fmt.Errorf("no run %s in this state folder", name), hints: []string{"launcher ls --all"}}
	}
	if err == nil {
		err = a.providers().addOf(run, opts)
	}
	return run, err
}

// Flags that several commands have.

func varFlag() cli.Flag {
	return &cli.StringSliceFlag{Name: "var", Usage: "set a variable of the job file; may be repeated", DefaultText: "none"}
}

func outputFlag() cli.Flag {
	return &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT`: text or json", Value: "text"}
}

func followFlag() cli.Flag {
	return &cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on with what comes, until the run is over"}
}

// wantsJSON reads -o.
func wantsJSON(c *cli.Context) (bool, error) {
	switch o := c.String("output"); o {
	case "json":
		return true, nil
	case "text":
		return false, nil
	default:
		return false, usagef("-o %s: want text or json", o)
	}
}

// writeFileOf is where a command's document goes that the user wants in a file: whole or not at all.
func writeFileOf(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(dirOf(path), ".launcher-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(write(f), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
