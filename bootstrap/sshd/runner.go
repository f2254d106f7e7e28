package sshd

import (
	"context"
	"fmt"
	"io"
	"sync"
)

// Runner starts what clients ask for.
type Runner interface {
	// Start begins the command. ctx ends when the session is over, at the latest
	// when the connection is; Start must not outlive it, a started process may
	// (Hangup comes for it). An error refuses the request; its text stays on the server.
	Start(ctx context.Context, c Command) (Process, error)
}

// Command is one exec or shell request.
type Command struct {
	User string
	Line string   // for a shell to interpret; empty asks for a login shell
	Env  []string // NAME=value, what AcceptEnv let through
	PTY  *PTY     // nil without a terminal

	// Stdin reads what the client sends, to io.EOF. Close, safe to call at any
	// time, ends a Read in progress: a process that has exited reads no more.
	Stdin          io.ReadCloser
	Stdout, Stderr io.Writer // with a PTY only Stdout is used
}

// PTY is a requested terminal (RFC 4254 §6.2).
type PTY struct {
	Term string
	Size WindowSize
}

// WindowSize is a terminal's size in characters.
type WindowSize struct{ Rows, Columns uint32 }

// Process is a started command.
type Process interface {
	// Wait returns once the command has ended and all its output is written. It
	// is called once.
	Wait() Exit
	// Signal delivers a signal by its RFC 4254 §6.10 name: "TERM", "INT", "KILL" …
	Signal(name string) error
	// Resize changes the terminal's size; without one it is an error.
	Resize(size WindowSize) error
	// Hangup is called when the client is gone. Wait must then return in
	// bounded time.
	Hangup()
}

// Exit is how a command ended: by itself with Code, or by Signal (RFC 4254 name).
type Exit struct {
	Code   int
	Signal string
}

// RunnerFunc runs commands in memory: each is one call, on its own goroutine.
// Any signal, and the end of the session, cancels the call's ctx; the cause of
// a signal's cancellation is a SignalError. The function must return soon after;
// what it returns is the exit, whatever the signal was.
type RunnerFunc func(ctx context.Context, c Command) Exit

// SignalError is the cause of a cancelled RunnerFunc context: the signal's RFC name.
type SignalError string

func (e SignalError) Error() string { return "signal " + string(e) }

// Start implements Runner.
func (f RunnerFunc) Start(ctx context.Context, c Command) (Process, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &funcProcess{cancel: cancel, done: make(chan struct{})}
	p.wg.Go(func() {
		defer close(p.done)
		p.exit = f(ctx, c)
	})
	return p, nil
}

type funcProcess struct {
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	done   chan struct{}
	exit   Exit // before done is closed
}

func (p *funcProcess) Wait() Exit {
	p.wg.Wait()
	p.cancel(nil)
	return p.exit
}

func (p *funcProcess) Signal(name string) error {
	p.cancel(SignalError(name))
	return nil
}

func (p *funcProcess) Resize(WindowSize) error { return fmt.Errorf("resize: no terminal") }
func (p *funcProcess) Hangup()                 { p.cancel(SignalError("HUP")) }
