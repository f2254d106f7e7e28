package head

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ephemeral-launcher/launcher/launcher/agent/process"
	"github.com/ephemeral-launcher/launcher/launcher/rendezvous/tcpstore"
)

// program is what a rank process does. ctx ends when it is signalled; the exit is then that of the signal, whatever is returned.
type program func(ctx context.Context, r *rank) (code int)

// rank is one rank process.
type rank struct {
	g    *guest
	env  map[string]string
	out  io.Writer
	told <-chan syscall.Signal // the job's own signal
}

func (r *rank) number(name string) int {
	n, err := strconv.Atoi(r.env[name])
	if err != nil {
		panic(fmt.Sprintf("%s is %q", name, r.env[name]))
	}
	return n
}

// store connects to MASTER_ADDR:MASTER_PORT.
func (r *rank) store(ctx context.Context) (*tcpstore.Client, error) {
	conn, err := r.g.s.net.Host(r.g.host).Dial(ctx, "tcp", r.g.host+":"+r.env["MASTER_PORT"])
	if err != nil {
		return nil, err
	}
	return tcpstore.NewClient(ctx, conn, tcpstore.ClientOptions{})
}

// trainUntilDone meets the other ranks in the store, and then goes on until the simulation is told to finish.
func trainUntilDone(ctx context.Context, r *rank) int {
	c, err := r.store(ctx)
	if err != nil {
		fmt.Fprintln(r.out, "store:", err)
		return 1
	}
	defer c.Close()
	if err := c.Barrier(ctx, "begin", int64(r.number("WORLD_SIZE"))); err != nil {
		fmt.Fprintln(r.out, "barrier:", err)
		return 1
	}
	fmt.Fprintf(r.out, "rank %s of %s\n", r.env["RANK"], r.env["WORLD_SIZE"])
	select {
	case <-r.g.s.done:
	case <-ctx.Done():
	}
	return 0
}

// trainAlone is trainUntilDone without a store, for volume.
func trainAlone(ctx context.Context, r *rank) int {
	select {
	case <-r.g.s.done:
	case <-ctx.Done():
	}
	return 0
}

// span is the life of one rank process.
type span struct {
	node             string
	generation, rank int
	from, to         time.Time // to is zero while it lives
	code             int
	signal           string
}

// simRunner runs rank processes as goroutines.
type simRunner struct {
	g *guest

	mu   sync.Mutex // guards pids
	pids int
}

type simProcess struct {
	pid    int
	cancel context.CancelCauseFunc
	told   chan syscall.Signal
	exited chan process.Exit
}

type killed struct{ signal syscall.Signal }

func (k killed) Error() string { return unix.SignalName(k.signal) }

// Start implements process.Runner.
func (r *simRunner) Start(spec process.Spec) (process.Process, error) {
	r.mu.Lock()
	r.pids++
	pid := 1000 + r.pids
	r.mu.Unlock()
	env := map[string]string{}
	for _, e := range spec.Env {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	p := &simProcess{pid: pid, cancel: cancel, told: make(chan syscall.Signal, 1), exited: make(chan process.Exit, 1)}
	s := r.g.s
	k := &rank{g: r.g, env: env, out: spec.Stdout, told: p.told}
	life := &span{node: env["LAUNCHER_NODE"], generation: k.number("LAUNCHER_GENERATION"), rank: k.number("RANK"), from: time.Now()}
	s.mu.Lock()
	s.spans = append(s.spans, life)
	s.mu.Unlock()
	r.g.running.Go(func() {
		exit := process.Exit{Code: s.program(ctx, k)}
		if cause := (killed{}); errors.As(context.Cause(ctx), &cause) {
			exit = process.Exit{Code: -1, Signal: cause.Error()}
		}
		cancel(nil)
		s.mu.Lock()
		life.to, life.code, life.signal = time.Now(), exit.Code, exit.Signal
		s.mu.Unlock()
		p.exited <- exit
	})
	return p, nil
}

// Sweep implements process.Runner: these processes have no children.
func (r *simRunner) Sweep(context.Context, []string, []int) error { return nil }

func (p *simProcess) Pid() int            { return p.pid }
func (p *simProcess) Wait() process.Exit  { return <-p.exited }
func (p *simProcess) Drain(time.Duration) {}
func (p *simProcess) Close()              {}

func (p *simProcess) Signal(sig syscall.Signal) error {
	p.cancel(killed{sig})
	return nil
}

func (p *simProcess) Tell(sig syscall.Signal) error {
	select {
	case p.told <- sig:
	default:
	}
	return nil
}

// overlaps tells of rank processes that lived beside one of another generation, or beside another of the same rank: what no training survives.
func (s *simulation) overlaps() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []string
	for i, a := range s.spans {
		for _, b := range s.spans[i+1:] {
			if a.generation == b.generation && a.rank != b.rank {
				continue
			}
			if (a.to.IsZero() || a.to.After(b.from)) && (b.to.IsZero() || b.to.After(a.from)) {
				found = append(found, fmt.Sprintf("rank %d of generation %d on %s lives beside rank %d of generation %d on %s",
					a.rank, a.generation, a.node, b.rank, b.generation, b.node))
			}
		}
	}
	return found
}

// alive are the rank processes that live.
func (s *simulation) alive() (ranks []span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.spans {
		if p.to.IsZero() {
			ranks = append(ranks, *p)
		}
	}
	return ranks
}
