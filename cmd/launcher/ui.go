package main

// The rules of the output:
//
//   - What a command was asked for goes to stdout; everything about how it went goes to stderr: errors, hints, questions, warnings.
//   - An error is one line, "launcher: " and a lower-case phrase with no period at its end. Below it stand "hint: " lines, each one command to paste.
//     The problems of a job file are hcl's own diagnostics instead, with their source lines.
//   - up and attach scroll on stdout: a line per event worth telling, "ELAPSED  WHO  WHAT", and each line of a rank unchanged after "NODE rRANK | ".
//     Nothing that was printed is changed afterwards, so a scroll-back, a pipe and a file hold the same.
//   - On a terminal, and only there, a block below the scrolling lines shows the present; it is redrawn and in the end erased.
//     Colour likewise, and never with $NO_COLOR. Colour says nothing that the words do not say.
//   - -o json is one document for a listing, one object per line for a stream, with the field names of the journal and the library.
//   - Money is in dollars with as many digits as it needs; times are since the run began.
//   - A question is only asked on a terminal. Where it cannot be asked, the command refuses and says which flag answers it.
//   - Secrets are never known here.

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"golang.org/x/term"

	"github.com/ephemeral-launcher/launcher/launcher"
)

// ui is where a command reads and writes.
type ui struct {
	in       *os.File
	out, err io.Writer
	env      func(string) string
	// The streams that are terminals.
	inTerminal, outTerminal, errTerminal bool
}

func newUI(in, out, err *os.File, env func(string) string) *ui {
	terminal := func(f *os.File) bool { return term.IsTerminal(int(f.Fd())) && env("TERM") != "dumb" }
	return &ui{in: in, out: out, err: err, env: env, inTerminal: terminal(in), outTerminal: terminal(out), errTerminal: terminal(err)}
}

// asks tells whether a question can be put and answered.
func (u *ui) asks() bool { return u.inTerminal && u.errTerminal }

// size is the terminal's; 80 × 24 where it is not known.
func (u *ui) size() (width, height int) {
	if f, ok := u.out.(*os.File); ok {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 0 {
			return w, h
		}
	}
	return 80, 24
}

func (u *ui) colour(terminal bool) bool { return terminal && u.env("NO_COLOR") == "" }

func (u *ui) printf(format string, args ...any) { fmt.Fprintf(u.out, format, args...) }

// notef writes a line about how it goes.
func (u *ui) notef(format string, args ...any) { fmt.Fprintf(u.err, format+"\n", args...) }

func (u *ui) printJSON(v any) error {
	enc := json.NewEncoder(u.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// usageError is a command line or job file that makes no sense: nothing was started.
type usageError struct {
	text  string
	hints []string
}

func usagef(format string, args ...any) *usageError {
	return &usageError{text: fmt.Sprintf(format, args...)}
}

func (e *usageError) Error() string { return e.text }

func (e *usageError) hint(commands ...string) *usageError {
	e.hints = append(e.hints, commands...)
	return e
}

// hinted is an error with commands that help.
type hinted struct {
	err   error
	hints []string
}

func (e *hinted) Error() string { return e.err.Error() }
func (e *hinted) Unwrap() error { return e.err }

// exitCode ends the program with a code; all that is to say was said.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// fail prints an error and returns the exit code that it means for the command.
func (u *ui) fail(command string, err error) int {
	var (
		code     exitCode
		usage    *usageError
		diags    *launcher.DiagnosticsError
		hints    *hinted
		left     *launcher.UnfinishedError
		living   *launcher.LivingRunError
		none     *launcher.NoCandidateError
		follows  = command == "up" || command == "attach" || command == "wait"
		pick     = func(following, other int) int { return map[bool]int{true: following, false: other}[follows] }
		complain = func(text string, commands ...string) {
			u.notef("launcher: %s", text)
			for _, c := range commands {
				u.notef("hint: %s", c)
			}
		}
	)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &usage):
		text := usage.text
		if command != "" {
			text = command + ": " + text
		}
		complain(text, usage.hints...)
		return pick(launcher.ExitUsage, 2)
	case errors.As(err, &diags):
		u.diagnostics(diags)
		return pick(launcher.ExitUsage, 2)
	case errors.As(err, &left):
		complain(left.Error(), left.Command)
		return launcher.ExitTeardownUnfinished
	case errors.As(err, &living):
		complain(fmt.Sprintf("run %s lives, but not in this state folder (%s); nothing was started", living.Run, strings.Join(living.IDs, ", ")), living.Command)
		return pick(launcher.ExitLauncher, 1)
	case errors.As(err, &none):
		if errors.As(err, &hints) {
			complain(none.Error(), hints.hints...)
		} else {
			complain(none.Error())
		}
		for _, p := range none.Providers {
			if p.Error != "" {
				u.notef("  %s: %s", p.Name, p.Error)
			}
		}
		return pick(launcher.ExitNoCapacity, 1)
	case errors.Is(err, launcher.ErrNotDetachable):
		complain(err.Error())
		return pick(launcher.ExitUsage, 1)
	case errors.Is(err, launcher.ErrRunID):
		complain(err.Error())
		return pick(launcher.ExitUsage, 2)
	case errors.As(err, &hints):
		complain(err.Error(), hints.hints...)
	default:
		complain(err.Error())
	}
	return pick(launcher.ExitLauncher, 1)
}

// diagnostics prints what is wrong with a job file, with its source lines.
func (u *ui) diagnostics(e *launcher.DiagnosticsError) {
	var diags hcl.Diagnostics
	if !errors.As(e, &diags) {
		u.notef("launcher: %v", e)
		return
	}
	files := map[string]*hcl.File{}
	for name, src := range e.Files {
		f, _ := hclsyntax.ParseConfig(src, name, hcl.InitialPos) // only for the source lines and the names of the blocks around them
		if f == nil {
			f = &hcl.File{Bytes: src}
		}
		files[name] = f
	}
	width, _ := u.size()
	if !u.errTerminal {
		width = 0 // no wrapping: the lines are for whoever reads the file
	}
	if err := hcl.NewDiagnosticTextWriter(u.err, files, uint(width), u.colour(u.errTerminal)).WriteDiagnostics(diags); err != nil {
		u.notef("launcher: %v", e)
	}
}

// ask puts a question that is answered with yes or no; anything but a yes is a no.
func (u *ui) ask(question string) bool {
	fmt.Fprintf(u.err, "%s [y/N] ", question)
	line, _ := bufio.NewReader(u.in).ReadString('\n') // the end of the input is a no
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return true
	}
	return false
}

// table prints rows in columns. The first row is the heading.
func (u *ui) table(rows [][]string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell)
			line.WriteString(strings.Repeat(" ", widths[i]-len([]rune(cell))+2))
		}
		u.printf("%s\n", strings.TrimRight(line.String(), " "))
	}
}

// dollars writes an amount with as many digits as it needs: a demo's spend is a fraction of a cent.
func dollars(usd float64) string {
	switch {
	case usd == 0:
		return "$0"
	case usd < 0.0001:
		return "<$0.0001"
	case usd < 0.1:
		return fmt.Sprintf("$%.4f", usd)
	case usd < 1:
		return fmt.Sprintf("$%.3f", usd)
	}
	return fmt.Sprintf("$%.2f", usd)
}

// price is a price an hour, which may not be known.
func price(usd *float64) string {
	if usd == nil {
		return "price unknown"
	}
	return dollars(*usd) + "/h"
}

// span writes a duration for people: 0.4s, 12.3s, 3m05s, 2h07m, 1d02h.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + span(-d)
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		d = d.Round(time.Second)
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// bytesText writes a size for people.
func bytesText(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// count writes "1 machine", "4 machines".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func dirOf(path string) string { return filepath.Dir(path) }
