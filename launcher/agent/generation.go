package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/agent/output"
	"github.com/ephemeral-launcher/launcher/launcher/agent/process"
	"github.com/ephemeral-launcher/launcher/launcher/control"
)

const (
	// drainLimit is how long the report of an exit waits for the last lines of output.
	drainLimit = 100 * time.Millisecond
	// sweepLimit bounds one try to sweep; a process stuck in the kernel (a GPU that hangs) takes several.
	sweepLimit = 10 * time.Second

	tailLines = 20
	tailSize  = 4 << 10
)

// generation is one incarnation of the world on this node. One goroutine, keep, owns it; the fields below mu of
// Agent are shared.
type generation struct {
	number uint64
	spec   *control.Start
	ends   chan *control.End
	exits  chan rankExit
	gone   chan struct{} // closed when nothing of it is left

	ending ending         // owned by keep
	ranks  []*ranking     // owned by keep
	work   sync.WaitGroup // of keep's own goroutines

	state    control.GenerationState // guarded by Agent.mu, like all below
	sessions []int                   // of its processes
	began    time.Time
}

// ranking is one rank process.
type ranking struct {
	process.Process
	local, rank uint32
	stdout      *output.Writer
	stderr      *output.Writer
	exited      bool
}

type rankExit struct {
	local int
	exit  process.Exit
}

// request asks keep to end the generation. It never waits: where so many requests are on their way, the fastest is
// most likely among them, and the head repeats.
func (g *generation) request(end *control.End) {
	select {
	case g.ends <- end:
	default:
	}
}

// start begins a generation, unless it is not newer than what was started or ended before.
func (a *Agent) start(spec *control.Start) {
	number := spec.GetWorld().GetGeneration()
	a.mu.Lock()
	if number <= a.newest {
		a.mu.Unlock()
		return
	}
	prior := a.current
	g := &generation{
		number: number, spec: spec, state: control.GenerationState_RUNNING, began: time.Now(),
		ends: make(chan *control.End, 16), exits: make(chan rankExit, spec.Procs), gone: make(chan struct{}),
	}
	a.newest, a.current = number, g
	a.setWorld(spec.World)
	a.mu.Unlock()
	a.spawn(func(ctx context.Context) { a.keep(ctx, g, prior) })
}

// end ends a generation and all before it.
func (a *Agent) end(end *control.End) {
	a.mu.Lock()
	a.newest = max(a.newest, end.Generation)
	g := a.current
	if g != nil && g.number > end.Generation {
		a.mu.Unlock()
		return // a newer one was started, which implies that this one was gone
	}
	running := g != nil && g.state != control.GenerationState_ENDED
	if running {
		g.request(end)
	}
	a.mu.Unlock()
	switch {
	case !running:
		a.reportEnded(end.Generation)
	case g.number < end.Generation:
		a.spawn(func(ctx context.Context) {
			select {
			case <-g.gone:
				a.reportEnded(end.Generation)
			case <-ctx.Done():
			}
		})
	}
}

func (a *Agent) reportEnded(number uint64) {
	a.reports.add(&control.Report{Body: &control.Report_Ended{Ended: &control.Ended{Generation: number}}})
}

// keep runs a generation from its start until nothing of it is left.
func (a *Agent) keep(ctx context.Context, g, prior *generation) {
	defer close(g.gone)
	if prior != nil {
		prior.request(&control.End{Generation: prior.number, Mode: control.EndMode_KILL})
		<-prior.gone
		a.logs.Forget(prior.number)
	}
	a.show()
	if err := a.launch(ctx, g); err != nil {
		a.log.Error("start generation", "generation", g.number, "error", err)
		a.setState(g, control.GenerationState_ENDED)
		a.reports.add(&control.Report{Body: &control.Report_StartFailed{
			StartFailed: &control.StartFailed{Generation: g.number, Error: err.Error()},
		}})
		if len(g.ends) > 0 { // its end was ordered before it was seen to fail, and is waited for
			a.reportEnded(g.number)
		}
		return
	}
	a.mind(ctx, g)
	a.clear(ctx, g)
	a.setState(g, control.GenerationState_ENDED)
	a.reportEnded(g.number)
}

func (a *Agent) setState(g *generation, state control.GenerationState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g.state = state
}

// launch starts the rank processes, all or none.
func (a *Agent) launch(ctx context.Context, g *generation) error {
	if _, member := a.leases.left(); member <= 0 {
		return fmt.Errorf("start generation %d: no member lease", g.number)
	}
	if g.spec.Procs < 1 {
		return fmt.Errorf("start generation %d: %d processes", g.number, g.spec.Procs)
	}
	shell, err := findShell()
	if err != nil {
		return err
	}
	if err := a.watchCheckpoints(g.spec.Checkpoint); err != nil {
		return err
	}
	n := int(g.spec.Procs)
	if g.spec.Kind == control.RunKind_TORCHRUN {
		n = 1
	}
	started := &control.Started{Generation: g.number}
	for local := range n {
		r := &ranking{local: uint32(local), rank: g.spec.FirstRank + uint32(local)}
		r.stdout = a.logs.Open(output.Key{Generation: g.number, Rank: r.rank, Kind: output.Stdout})
		r.stderr = a.logs.Open(output.Key{Generation: g.number, Rank: r.rank, Kind: output.Stderr})
		r.Process, err = a.o.Runner.Start(process.Spec{
			Argv: []string{shell, "-c", g.spec.Command}, Dir: a.o.Join.Workdir,
			Env: a.rankEnvironment(g.spec, uint32(local)), Stdout: r.stdout, Stderr: r.stderr,
		})
		if err != nil {
			r.stdout.Close()
			r.stderr.Close()
			err = fmt.Errorf("start rank %d: %w", r.rank, err)
			break
		}
		g.ranks = append(g.ranks, r)
		started.Pids = append(started.Pids, uint32(r.Pid()))
		g.work.Go(func() { g.exits <- rankExit{local, r.Wait()} })
	}
	a.mu.Lock()
	for _, r := range g.ranks {
		g.sessions = append(g.sessions, r.Pid())
	}
	a.mu.Unlock()
	if err != nil {
		g.ending.order(&control.End{Mode: control.EndMode_KILL}, time.Now())
		a.signal(g, syscall.SIGKILL)
		for range g.ranks {
			<-g.exits
		}
		a.clear(ctx, g)
		return err
	}
	a.log.Info("generation runs", "generation", g.number, "ranks", n, "first", g.spec.FirstRank)
	a.reports.add(&control.Report{Body: &control.Report_Started{Started: started}})
	return nil
}

// mind reports exits and carries out orders to end, until every rank process is gone.
func (a *Agent) mind(ctx context.Context, g *generation) {
	for left := len(g.ranks); left > 0; {
		now := time.Now()
		changed, next := g.ending.due(now)
		if changed {
			switch g.ending.phase {
			case control.Phase_TERMINATED:
				a.signal(g, syscall.SIGTERM)
			case control.Phase_KILLED:
				a.signal(g, syscall.SIGKILL)
			}
		}
		var timer <-chan time.Time
		var stop func() bool
		if !next.IsZero() {
			t := time.NewTimer(next.Sub(now))
			timer, stop = t.C, t.Stop
		}
		select {
		case <-timer:
		case e := <-g.exits:
			left--
			r, phase := g.ranks[e.local], g.ending.phase
			r.exited = true
			g.work.Go(func() { a.reportExit(g, r, e.exit, phase) })
		case end := <-g.ends:
			a.setState(g, control.GenerationState_ENDING)
			if name := g.ending.order(end, time.Now()); name != "" {
				a.tell(g, name)
			}
		case <-ctx.Done():
			// The agent ends. Ranks without it would have no lease.
			a.signal(g, syscall.SIGKILL)
			for ; left > 0; left-- {
				<-g.exits
			}
		}
		if stop != nil {
			stop()
		}
	}
	g.work.Wait() // all exits are reported before the end is
}

// reportExit says how a rank ended, with its last words.
func (a *Agent) reportExit(g *generation, r *ranking, exit process.Exit, phase control.Phase) {
	r.Drain(drainLimit)
	tail := a.logs.Tail(output.Key{Generation: g.number, Rank: r.rank, Kind: output.Stderr}, tailLines, tailSize)
	if tail == "" {
		tail = a.logs.Tail(output.Key{Generation: g.number, Rank: r.rank, Kind: output.Stdout}, tailLines, tailSize)
	}
	a.log.Info("rank process exited", "generation", g.number, "rank", r.rank, "code", exit.Code, "signal", exit.Signal,
		"phase", phase)
	a.reports.add(&control.Report{Body: &control.Report_Exited{Exited: &control.Exited{
		Generation: g.number, LocalRank: r.local, Rank: r.rank,
		Code: int32(exit.Code), Signal: exit.Signal, Phase: phase, LastLines: tail,
	}}})
}

// signal goes to the process groups of all ranks, also of those that have exited: their children may be there.
func (a *Agent) signal(g *generation, sig syscall.Signal) {
	for _, r := range g.ranks {
		if err := r.Signal(sig); err != nil {
			a.log.Warn("signal rank", "generation", g.number, "rank", r.rank, "signal", sig, "error", err)
		}
	}
}

// tell sends the job's own signal to the processes that work.
func (a *Agent) tell(g *generation, name string) {
	sig, err := process.ParseSignal(name)
	if err != nil {
		a.log.Error("signal before the end", "error", err)
		return
	}
	for _, r := range g.ranks {
		if r.exited {
			continue
		}
		if err := r.Tell(sig); err != nil {
			a.log.Warn("signal rank", "generation", g.number, "rank", r.rank, "signal", name, "error", err)
		}
	}
}

// clear kills what the ranks have left behind, and does not give up: a new generation must not meet it.
func (a *Agent) clear(ctx context.Context, g *generation) {
	a.mu.Lock()
	sessions := g.sessions
	a.mu.Unlock()
	for {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepLimit)
		err := a.o.Runner.Sweep(limit, a.generationMarkers(g.number), sessions)
		cancel()
		if err == nil || ctx.Err() != nil {
			break
		}
		a.log.Error("sweep generation", "generation", g.number, "error", err)
	}
	for _, r := range g.ranks {
		r.Drain(drainLimit)
		r.Close()
		r.stdout.Close()
		r.stderr.Close()
	}
}

// findShell is bash, or sh where there is none.
func findShell() (string, error) {
	for _, path := range []string{"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh"} {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("find a shell: %w", os.ErrNotExist)
}

// inWorkdir is a path of the job on this node.
func (a *Agent) inWorkdir(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(a.o.Join.Workdir, path)
}
