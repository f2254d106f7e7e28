package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/agent/output"
	"github.com/ephemeral-launcher/launcher/launcher/agent/process"
	"github.com/ephemeral-launcher/launcher/launcher/control"
)

// setup runs the job's setup script, once per hash; a repeated order repeats the result.
func (a *Agent) setup(order *control.Setup) {
	a.mu.Lock()
	done, known := a.setups[order.Hash]
	if !known {
		a.setups[order.Hash] = nil
	}
	a.mu.Unlock()
	switch {
	case !known:
		a.spawn(func(ctx context.Context) {
			done := a.runSetup(ctx, order)
			a.mu.Lock()
			a.setups[order.Hash] = done
			a.mu.Unlock()
			a.reports.add(&control.Report{Body: &control.Report_SetupDone{SetupDone: done}})
		})
	case done != nil:
		a.reports.add(&control.Report{Body: &control.Report_SetupDone{SetupDone: done}})
	}
}

func (a *Agent) runSetup(ctx context.Context, order *control.Setup) *control.SetupDone {
	a.settingUp.Lock() // one at a time
	defer a.settingUp.Unlock()
	done := &control.SetupDone{Hash: order.Hash, Code: -1}
	if order.TimeoutMs > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(order.TimeoutMs)*time.Millisecond,
			errors.New("setup took longer than allowed"))
		defer cancel()
	}
	shell, err := findShell()
	if err != nil {
		done.Error = err.Error()
		return done
	}
	options := "-euo pipefail"
	if !strings.HasSuffix(shell, "bash") {
		options = "-eu"
	}
	// The script goes by standard input's sibling, a file, not argv: argv is readable for everybody.
	file := a.path("tmp/setup-" + safeName(order.Hash))
	if err := os.WriteFile(file, []byte("set "+options+"\n"+order.Script+"\n"), 0o600); err != nil {
		done.Error = fmt.Sprintf("write setup: %v", err)
		return done
	}
	defer os.Remove(file)
	w := a.logs.Open(output.Key{Kind: output.Setup})
	defer w.Close()
	exit, err := a.runToEnd(ctx, process.Spec{
		Argv: []string{shell, file}, Dir: a.o.Join.Workdir, Env: a.jobEnvironment(order.Env, order.Secrets),
		Stdout: w, Stderr: w,
	})
	done.Code = int32(exit.Code)
	done.LastLines = a.logs.Tail(output.Key{Kind: output.Setup}, tailLines, tailSize)
	switch {
	case err != nil:
		done.Error = err.Error()
	case exit.Signal != "":
		done.Error = "setup ended by " + exit.Signal
	case exit.Code != 0:
		done.Error = fmt.Sprintf("setup ended with code %d", exit.Code)
	}
	a.log.Info("setup ended", "code", exit.Code, "signal", exit.Signal, "error", done.Error)
	return done
}

// runToEnd runs a process until it exits, or kills it when ctx ends. What it leaves in its session goes on: setup may
// start a service.
func (a *Agent) runToEnd(ctx context.Context, s process.Spec) (process.Exit, error) {
	p, err := a.o.Runner.Start(s)
	if err != nil {
		return process.Exit{Code: -1}, err
	}
	exited := make(chan process.Exit, 1)
	go func() { exited <- p.Wait() }()
	var exit process.Exit
	select {
	case exit = <-exited:
	case <-ctx.Done():
		err = context.Cause(ctx)
		p.Signal(syscall.SIGKILL)
		exit = <-exited
	}
	p.Drain(drainLimit)
	p.Close()
	return exit, errors.Join(err, exit.Err)
}

// safeName keeps what may be a file's name.
func safeName(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '_'
	}, s)
}

// rekey has the machine take its new host key.
func (a *Agent) rekey(ctx context.Context, order *control.Rekey) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	done := &control.Rekeyed{Id: order.Id}
	if err := a.o.Rekey(ctx, order.PrivateKeyPem); err != nil {
		done.Error = err.Error()
	}
	a.log.Info("host key replaced", "id", order.Id, "error", done.Error)
	a.reports.add(&control.Report{Body: &control.Report_Rekeyed{Rekeyed: done}})
}
