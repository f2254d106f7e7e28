package agent

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ephemeral-launcher/launcher/launcher/agent/process"
	"github.com/ephemeral-launcher/launcher/launcher/control"
)

// Exec runs a command of the user.
func (a *Agent) Exec(stream grpc.BidiStreamingServer[control.ExecInput, control.ExecOutput]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return status.Error(codes.InvalidArgument, "the first input is not a start")
	}
	spec, err := a.execSpec(start)
	if err != nil {
		return stream.Send(execFailed(err))
	}
	e := &execution{send: stream.Send}
	if start.Tty {
		near, far, err := process.OpenTerminal(sizeOf(start.Size))
		if err != nil {
			return stream.Send(execFailed(err))
		}
		spec.Terminal, e.terminal = far, near
		defer near.Close()
	} else {
		// A pipe for what the user types, and outputs that go straight into the call.
		r, w := io.Pipe()
		spec.Stdin, e.stdin = r, w
		defer r.Close()
		spec.Stdout = writerFunc(func(p []byte) error {
			return e.output(&control.ExecOutput{Body: &control.ExecOutput_Stdout{Stdout: append([]byte(nil), p...)}})
		})
		spec.Stderr = writerFunc(func(p []byte) error {
			return e.output(&control.ExecOutput{Body: &control.ExecOutput_Stderr{Stderr: append([]byte(nil), p...)}})
		})
	}
	p, err := a.o.Runner.Start(spec)
	if spec.Terminal != nil {
		spec.Terminal.Close()
	}
	if err != nil {
		return stream.Send(execFailed(err))
	}
	defer p.Close()
	stop := context.AfterFunc(stream.Context(), func() { p.Signal(syscall.SIGKILL) })
	defer stop()
	a.spawn(func(context.Context) { e.inputs(stream.Recv, p) }) // ends with the call
	var wg sync.WaitGroup
	if e.terminal != nil {
		wg.Go(func() {
			io.Copy(writerFunc(func(b []byte) error {
				return e.output(&control.ExecOutput{Body: &control.ExecOutput_Stdout{Stdout: append([]byte(nil), b...)}})
			}), e.terminal)
		})
	}
	exit := p.Wait()
	p.Signal(syscall.SIGHUP) // as a terminal that goes away does to what runs on in the background
	p.Drain(drainLimit)
	if e.terminal != nil {
		e.drainTerminal(&wg)
	}
	return e.output(&control.ExecOutput{Body: &control.ExecOutput_Exit{
		Exit: &control.ExecExit{Code: int32(exit.Code), Signal: exit.Signal},
	}})
}

func execFailed(err error) *control.ExecOutput {
	return &control.ExecOutput{Body: &control.ExecOutput_Exit{Exit: &control.ExecExit{Code: 127, Error: err.Error()}}}
}

func (a *Agent) execSpec(start *control.ExecStart) (process.Spec, error) {
	spec := process.Spec{Argv: start.Argv, Dir: a.o.Join.Workdir, Env: a.jobEnvironment(start.Env)}
	if start.Dir != "" {
		spec.Dir = a.inWorkdir(start.Dir)
	}
	if start.Tty && start.Term != "" {
		spec.Env = append(spec.Env, "TERM="+start.Term)
	}
	if len(start.Argv) > 1 {
		return spec, nil
	}
	shell, err := findShell()
	if err != nil {
		return spec, err
	}
	spec.Argv = []string{shell, "-l"}
	if len(start.Argv) == 1 {
		spec.Argv = []string{shell, "-c", start.Argv[0]}
	}
	return spec, nil
}

// execution is one call of Exec.
type execution struct {
	stdin    *io.PipeWriter    // without a terminal
	terminal *process.Terminal // with one

	mu   sync.Mutex // one output at a time
	send func(*control.ExecOutput) error
}

func (e *execution) output(o *control.ExecOutput) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.send(o)
}

// inputs passes on what the user types and does, until the call ends.
func (e *execution) inputs(recv func() (*control.ExecInput, error), p process.Process) {
	var to io.Writer = e.stdin
	if e.terminal != nil {
		to = e.terminal
	}
	closeInput := func(err error) {
		if e.stdin != nil {
			e.stdin.CloseWithError(err)
		}
	}
	for {
		in, err := recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			closeInput(err)
			return
		}
		switch body := in.Body.(type) {
		case *control.ExecInput_Stdin:
			to.Write(body.Stdin) // a command that reads no more has its reasons
		case *control.ExecInput_StdinEof:
			if e.terminal != nil {
				e.terminal.Write([]byte{4}) // end of transmission, which a terminal turns into an end of file
			}
			closeInput(nil)
		case *control.ExecInput_Resize:
			if e.terminal != nil {
				e.terminal.Resize(sizeOf(body.Resize))
			}
		case *control.ExecInput_Signal:
			if sig, err := process.ParseSignal(body.Signal); err == nil {
				p.Signal(sig)
			}
		}
	}
}

// drainTerminal waits for the last output: all of it, unless something left behind still holds the terminal.
func (e *execution) drainTerminal(reading *sync.WaitGroup) {
	e.terminal.SetReadDeadline(drainLimit)
	reading.Wait()
}

func sizeOf(s *control.WindowSize) process.Size {
	return process.Size{Rows: uint16(s.GetRows()), Columns: uint16(s.GetColumns())}
}

type writerFunc func([]byte) error

func (f writerFunc) Write(p []byte) (int, error) {
	if err := f(p); err != nil {
		return 0, err
	}
	return len(p), nil
}
