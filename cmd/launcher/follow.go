package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// follower shows a run and hears the signals while it does. Use newFollower, then begin and wait; end in any case.
type follower struct {
	ui *ui
	// onlyFollows: the command is attach or wait.
	onlyFollows bool
	// json: events and output as objects, one a line; quiet: neither.
	json, quiet bool
	screen      *screen
	signals     chan os.Signal
	answers     chan string
	reading     sync.Once
	asked       bool // the question stands; only wait's loop knows

	mu     sync.Mutex // guards handle and began
	handle *launcher.Handle
	began  time.Time
}

func (u *ui) follow(json, quiet, onlyFollows bool) *follower {
	f := &follower{ui: u, json: json, quiet: quiet, onlyFollows: onlyFollows, signals: make(chan os.Signal, 4), answers: make(chan string)}
	var block func(int, int) []string
	if u.outTerminal && !json && !quiet {
		block = f.block
	}
	f.screen = newScreen(u.out, u.size, block)
	signal.Notify(f.signals, interrupting()...)
	if !onlyFollows {
		signal.Ignore(syscall.SIGPIPE) // `launcher up | head` must not leave the run without its supervisor
	}
	return f
}

// end stops hearing signals and erases the block.
func (f *follower) end() {
	signal.Stop(f.signals)
	f.screen.close()
}

// options adds to the library's options what shows the run.
func (f *follower) options(opts launcher.Options) launcher.Options {
	opts.OnEvent, opts.OnLog = f.event, f.output
	return opts
}

func (f *follower) event(e launcher.Event) {
	if f.quiet {
		return
	}
	if f.json {
		f.object(e)
		return
	}
	if t, ok := narrate(e); ok {
		f.screen.print(t.line(e.At, f.ui.colour(f.ui.outTerminal)))
		return
	}
	f.screen.touch()
}

// outputObject is a line of output among the events of `up -o json`.
type outputObject struct {
	Kind string `json:"kind"`
	launcher.LogLine
}

func (f *follower) output(l launcher.LogLine) {
	switch {
	case f.quiet:
	case f.json:
		f.object(outputObject{Kind: "output", LogLine: l})
	default:
		f.screen.print(rankLine(l))
	}
}

func (f *follower) object(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		b, _ = json.Marshal(map[string]string{"error": err.Error()})
	}
	f.screen.print(string(b))
}

// block is the present, for the screen.
func (f *follower) block(width, height int) []string {
	f.mu.Lock()
	h, began := f.handle, f.began
	f.mu.Unlock()
	if h == nil {
		return nil
	}
	s := h.State()
	now := s.At
	if s.Clean == nil && s.Finished == nil {
		now = max(now, journal.At(time.Since(s.Began)), journal.At(time.Since(began)))
	}
	return statusBlock(s, now, width, height)
}

// begin starts or finds the run. A signal in the meantime ends the attempt: nothing was rented yet.
func (f *follower) begin(ctx context.Context, start func(context.Context) (*launcher.Handle, error)) (*launcher.Handle, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var h *launcher.Handle
	var err error
	started := make(chan struct{})
	go func() { // awaited below
		defer close(started)
		h, err = start(ctx)
	}()
	var interrupted os.Signal
	for waiting := true; waiting; {
		select {
		case <-started:
			waiting = false
		case interrupted = <-f.signals:
			cancel()
		}
	}
	if err != nil {
		if interrupted == nil {
			return nil, err
		}
		if f.onlyFollows {
			return nil, errInterrupted
		}
		f.ui.notef("launcher: interrupted; nothing was started")
		return nil, exitCode(launcher.ExitInterrupted)
	}
	f.mu.Lock()
	f.handle, f.began = h, time.Now()
	f.mu.Unlock()
	if interrupted != nil { // too late: the run exists, and wait decides
		if !f.onlyFollows && interrupted == os.Interrupt {
			interrupted = syscall.SIGTERM // there is nothing to ask: who interrupts a start wants none
		}
		f.signals <- interrupted
	}
	f.screen.touch()
	return h, nil
}

// errInterrupted: a signal came before attach or wait had found its run.
var errInterrupted = errors.New("interrupted")

// needs tells whether the run needs this process. A run whose head has accepted it never does, also in the moment in which this process takes over from
// the client that followed it before.
func needs(h *launcher.Handle) bool {
	select {
	case <-h.HandedOver():
		return false
	default:
		return h.State().Epoch%2 != 0
	}
}

type waited struct {
	result *launcher.Result
	err    error
}

// wait follows the run to its end, or until a signal ends the following. detached is true where the run goes on.
func (f *follower) wait(ctx context.Context, detachNow bool) (result *launcher.Result, detached bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	h := f.handle
	over, left, stopped := make(chan waited, 1), make(chan error, 1), make(chan error, 1)
	tasks.Go(func() {
		r, err := h.Wait(ctx)
		over <- waited{r, err}
	})
	var (
		stopping, detaching bool
		stopErr             error
		tooLong             <-chan time.Time
		last                os.Signal
		lastAt              time.Time
	)
	startDetach := func() {
		if !detaching {
			detaching = true
			tasks.Go(func() { left <- h.Detach(ctx) })
		}
	}
	startStop := func(text string) {
		if !stopping {
			stopping = true
			f.say("stopping: all machines of %s are being deleted; %s", h.Run(), text)
			tasks.Go(func() {
				stopped <- h.Stop(ctx, journal.Stopping{Cause: journal.CauseInterrupted, Text: "interrupted"})
			})
		}
	}
	if detachNow {
		startDetach()
	}
	for {
		what := response(0)
		select {
		case w := <-over: // after a Detach too, which may have come too late: then it is the end
			return w.result, detaching && w.result != nil && w.result.Exit == launcher.ExitDetached && !w.result.Clean, w.err
		case err := <-left:
			if err == nil {
				continue
			}
			detaching = false
			if detachNow || f.onlyFollows {
				return nil, false, err
			}
			f.say("cannot detach: %v", err)
		case stopErr = <-stopped:
			if stopErr != nil {
				f.say("the order to stop did not arrive: %v", stopErr)
				stopping = false
			}
		case <-tooLong:
			what = leave
		case answer := <-f.answers:
			if !f.asked { // typed ahead
				continue
			}
			what = answered(answer)
			f.settle()
			if what == 0 {
				f.say("going on")
			}
		case s := <-f.signals:
			terminal := f.ui.asks() && f.ui.outTerminal
			if s == last && !terminal && time.Since(lastAt) < sameSignal {
				continue
			}
			last, lastAt = s, time.Now()
			sig, _ := s.(syscall.Signal)
			what = respond(interruption{
				signal: sig, terminal: terminal, needed: needs(h), follower: f.onlyFollows, asked: f.asked, stopping: stopping || tooLong != nil,
			})
		}
		if what != ask && what != 0 {
			f.settle()
		}
		switch what {
		case ask:
			f.question(h)
		case detach:
			startDetach()
		case stop:
			startStop("Ctrl-C again leaves at once")
		case stopBriefly:
			startStop("this process leaves within 5 s")
			tooLong = time.After(briefly)
		case leave:
			r := h.Leave()
			if stopErr != nil && r.Exit == launcher.ExitHandedOver { // handed over to nobody
				r.Exit, r.Recover = launcher.ExitTeardownUnfinished, "launcher down "+h.Run()
			}
			return r, false, nil
		}
	}
}

// say writes a line beside the run's own.
func (f *follower) say(format string, args ...any) {
	f.screen.pause()
	f.ui.notef("launcher: "+format, args...)
	if !f.asked {
		f.screen.resume()
	}
}

// question asks what a Ctrl-C means; the answer comes on answers.
func (f *follower) question(h *launcher.Handle) {
	f.asked = true
	f.screen.pause()
	choices := "[d]etach and let it go on, [s]top and delete, or [g]o on"
	if needs(h) && h.ClientSupervised() {
		choices = "[s]top and delete, or [g]o on" // without this process it would end
	}
	fmt.Fprintf(f.ui.err, "\n%s: %s? ", h.Run(), choices)
	f.reading.Do(func() {
		go func() { // until the input ends: a read of a terminal cannot be called off
			lines := bufio.NewReader(f.ui.in)
			for {
				line, err := lines.ReadString('\n')
				if err != nil {
					return
				}
				f.answers <- line
			}
		}()
	})
}

// settle ends a question.
func (f *follower) settle() {
	if f.asked {
		f.asked = false
		f.screen.resume()
	}
}

// answered reads an answer; 0 goes on.
func answered(answer string) response {
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "d", "detach":
		return detach
	case "s", "stop":
		return stop
	}
	return 0
}

// finish prints the end of a run and returns the exit code as an error.
func (f *follower) finish(result *launcher.Result, detached bool, err error, file string) error {
	run := ""
	if f.handle != nil {
		run = f.handle.Run()
	}
	f.end()
	if detached {
		err = nil
	}
	if result == nil {
		var unfinished *launcher.UnfinishedError
		if err != nil && !errors.As(err, &unfinished) && run != "" {
			err = &hinted{err: err, hints: []string{"launcher attach " + run, "launcher down " + run}}
		}
		return err
	}
	if err != nil {
		f.ui.notef("launcher: %v", err)
	}
	if file != "" {
		if werr := writeResult(file, result); werr != nil {
			f.ui.notef("launcher: --result: %v", werr)
		}
	}
	if detached {
		f.ui.notef("launcher: detached from %s, which goes on", run)
		if job := f.handle.Job(); job != nil {
			f.ui.notef("  at its end the workers are deleted; the head keeps logs, outputs and result until they are fetched, for %s at most", span(job.Limits.HoldResults))
		}
		for _, c := range []string{"attach", "status", "down"} {
			f.ui.notef("hint: launcher %s %s", c, run)
		}
		return nil
	}
	f.ui.result(result, f.json)
	return exitCode(result.Exit)
}
