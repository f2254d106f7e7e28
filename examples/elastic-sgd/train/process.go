package train

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Exit codes.
const (
	ExitDone   = 0  // trained to the last step
	ExitFailed = 1  // a peer was lost, or something else broke
	ExitUsage  = 2  // flags or environment make no sense
	ExitLeft   = 75 // told to stop by a signal; the same command goes on from the checkpoint (EX_TEMPFAIL)
)

// Main runs the program as the current process: it takes the signals, and
// errors go to standard error.
func Main(ctx context.Context, env func(string) string, stdout io.Writer, args []string) int {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	p := Process{Env: env, Args: args, Stdout: stdout, Stderr: os.Stderr, Signals: signals}
	return p.Run(ctx)
}

// Process is one rank. Several can run in one Go program, with folders of their
// own (-checkpoints, -out).
type Process struct {
	Env    func(string) string // as os.Getenv
	Args   []string            // flags, without the program's name
	Stdout io.Writer           // what happens, a line each
	Stderr io.Writer           // why it ended, if it failed

	// Signals to obey, nil for none. SIGUSR1 and SIGUSR2: finish the step with
	// all ranks, checkpoint, leave. Any other: checkpoint the last whole step
	// and leave at once.
	Signals <-chan os.Signal
}

var (
	errUsage = errors.New("usage")
	errLeft  = errors.New("left")
)

// Run trains and returns the exit code. Ending ctx is the same as SIGTERM.
func (p Process) Run(ctx context.Context) int {
	err := p.run(ctx)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return ExitDone
	case errors.Is(err, errUsage):
		fmt.Fprintln(p.Stderr, "elastic-sgd:", err)
		return ExitUsage
	case errors.Is(err, errLeft):
		fmt.Fprintln(p.Stderr, "elastic-sgd:", err)
		return ExitLeft
	default:
		fmt.Fprintln(p.Stderr, "elastic-sgd:", err)
		return ExitFailed
	}
}

func (p Process) run(ctx context.Context) error {
	o, err := p.parseFlags()
	if err != nil {
		return err
	}
	where, err := p.place()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	leave := make(chan struct{})
	var listening sync.WaitGroup
	listening.Go(func() { p.listen(ctx, leave, cancel) })
	defer listening.Wait()
	defer cancel(nil)

	t := &training{options: o, place: where, leave: leave, env: p.Env, stdout: p.Stdout}
	return t.run(ctx)
}

// listen turns signals into the two ways of stopping, until ctx ends.
func (p Process) listen(ctx context.Context, leave chan<- struct{}, cancel context.CancelCauseFunc) {
	asked := false
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-p.Signals:
			if s != syscall.SIGUSR1 && s != syscall.SIGUSR2 {
				cancel(fmt.Errorf("signal: %v", s))
				return
			}
			if !asked {
				close(leave)
				asked = true
			}
		}
	}
}

type options struct {
	steps           int
	stepTime        time.Duration
	checkpointEvery int
	logEvery        int
	seed            uint64
	checkpoints     string
	out             string
	timeout         time.Duration
}

func (p Process) parseFlags() (options, error) {
	var o options
	flags := flag.NewFlagSet("elastic-sgd", flag.ContinueOnError)
	flags.SetOutput(p.Stderr)
	flags.IntVar(&o.steps, "steps", 400, "train for so many `steps`")
	flags.DurationVar(&o.stepTime, "step-time", 0, "let each step last at least so long, as a larger model would")
	flags.IntVar(&o.checkpointEvery, "checkpoint-every", 50, "save a checkpoint every so many `steps`")
	flags.IntVar(&o.logEvery, "log-every", 20, "print a line every so many `steps`")
	flags.Uint64Var(&o.seed, "seed", 1, "of the first weights and of the order of the examples")
	flags.StringVar(&o.checkpoints, "checkpoints", "ckpt", "`folder` for checkpoints")
	flags.StringVar(&o.out, "out", "out", "`folder` for result.json")
	flags.DurationVar(&o.timeout, "timeout", 30*time.Second, "give up on another rank that is silent for so long")
	if err := flags.Parse(p.Args); err != nil {
		return o, errors.Join(errUsage, err)
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("%w: unexpected argument %q", errUsage, flags.Arg(0))
	case o.steps < 1, o.checkpointEvery < 1, o.logEvery < 1:
		return o, fmt.Errorf("%w: -steps, -checkpoint-every and -log-every are at least 1", errUsage)
	case o.timeout <= 0, o.stepTime < 0:
		return o, fmt.Errorf("%w: -timeout is above 0, -step-time not below", errUsage)
	}
	return o, nil
}

// place reads the environment; without RANK the process is a world of its own.
func (p Process) place() (place, error) {
	where := place{size: 1, generation: p.Env("LAUNCHER_GENERATION"), node: p.Env("LAUNCHER_NODE_ADDR")}
	if where.generation == "" {
		where.generation = p.Env("TORCHELASTIC_RESTART_COUNT") // under torchrun
	}
	if where.generation == "" {
		where.generation = "0"
	}
	if where.node == "" {
		where.node = "127.0.0.1"
	}
	if p.Env("RANK") == "" {
		return where, nil
	}
	var err error
	if where.rank, err = strconv.Atoi(p.Env("RANK")); err != nil {
		return where, fmt.Errorf("%w: RANK: %w", errUsage, err)
	}
	if where.size, err = strconv.Atoi(p.Env("WORLD_SIZE")); err != nil {
		return where, fmt.Errorf("%w: WORLD_SIZE: %w", errUsage, err)
	}
	if where.rank < 0 || where.rank >= where.size {
		return where, fmt.Errorf("%w: RANK %d of WORLD_SIZE %d", errUsage, where.rank, where.size)
	}
	host, port := p.Env("MASTER_ADDR"), p.Env("MASTER_PORT")
	if where.size > 1 && (host == "" || port == "") {
		return where, fmt.Errorf("%w: RANK is set but MASTER_ADDR and MASTER_PORT are not", errUsage)
	}
	where.store = net.JoinHostPort(host, port)
	return where, nil
}
