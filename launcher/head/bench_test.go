package head

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/launcher/supervisor"
	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/local"
)

// benchRun is a run as a client supervises it: supervisor and world in this process, real machines, real agents. It reports errors instead of
// ending the benchmark, because several live at once.
type benchRun struct {
	id       string
	world    *World
	journal  *journal.Journal
	provider *lateCloud
	config   json.RawMessage
	shown    int
	close    func() error
}

// shipped is the agent as it ships: stripped, and compressed no more than once, as on a head that prepares while its workers boot.
type shipped struct {
	program  []byte
	sha256   string
	binaries *bootstrap.Binaries
}

var shippedAgent = sync.OnceValues(func() (s shipped, err error) {
	dir, err := os.MkdirTemp("", "launcher-agent-")
	if err != nil {
		return s, err
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir, "../../cmd/launcher-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return s, fmt.Errorf("build agent: %w: %s", err, out)
	}
	if s.program, err = os.ReadFile(filepath.Join(dir, "launcher-agent")); err != nil {
		return s, err
	}
	platform := runtime.GOOS + "-" + runtime.GOARCH
	s.sha256 = fmt.Sprintf("%x", sha256.Sum256(s.program))
	s.binaries, err = bootstrap.NewBinaries(fstest.MapFS{
		bootstrap.SumsFile:           {Data: []byte(s.sha256 + "  " + platform + "/launcher-agent\n")},
		platform + "/launcher-agent": {Data: s.program},
	})
	if err != nil {
		return s, err
	}
	_, err = s.binaries.Gzip(platform, "launcher-agent")
	return s, err
})

// lateCloud is a provider that may list a machine as running long after its death, so that nothing but silence tells.
type lateCloud struct {
	providers.Provider

	mu      sync.Mutex
	hidden  *providers.Resource // as it was while it lived
	created []time.Time         // when each Create was asked for
}

func (c *lateCloud) Create(ctx context.Context, req providers.CreateRequest) (providers.CreateResult, error) {
	c.mu.Lock()
	c.created = append(c.created, time.Now())
	c.mu.Unlock()
	return c.Provider.Create(ctx, req)
}

func (c *lateCloud) List(ctx context.Context, f providers.Filter) ([]providers.Resource, error) {
	all, err := c.Provider.List(ctx, f)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hidden != nil {
		all = slices.DeleteFunc(all, func(r providers.Resource) bool { return r.ID == c.hidden.ID })
		all = append(all, *c.hidden)
	}
	return all, err
}

func (c *lateCloud) Unwrap() providers.Provider { return c.Provider }

// benchOptions are what a benchRun is made of.
type benchOptions struct {
	id, hcl string
	boot    time.Duration // of every machine
	network Network
	// recorded sees what the world reports before it is on disk; nil: nobody does.
	recorded func(journal.Event)
}

// startBenchRun begins a run and waits for nothing. Close it.
func startBenchRun(b *testing.B, o benchOptions) (*benchRun, error) {
	ctx := context.Background()
	job, diags := jobspec.Parse([]byte(o.hcl), filepath.Join(b.TempDir(), "job.hcl"), jobspec.Options{})
	if diags.HasErrors() {
		return nil, diags
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	root := b.TempDir()
	r := &benchRun{id: o.id, config: json.RawMessage(fmt.Sprintf(`{"root":%q,"boot":%q}`, root, o.boot))}
	r.provider = &lateCloud{Provider: local.New(local.Options{Root: root, Executable: []string{self, "machine"}})}
	info, err := r.provider.Info(ctx)
	if err != nil {
		return nil, err
	}
	client, err := sshkey.New("")
	if err != nil {
		return nil, err
	}
	worker, err := sshkey.New("")
	if err != nil {
		return nil, err
	}
	program, err := shippedAgent()
	if err != nil {
		return nil, err
	}
	folder, clock := b.TempDir(), journal.StartClock(0, journal.BootTime)
	r.journal, err = journal.Create(ctx, folder, o.id, journal.Created{ClientKey: client.Public, WorkerKey: worker.Public}, journal.Options{Clock: clock})
	if err != nil {
		return nil, err
	}
	planned := journal.Planned{Provider: "local", Config: r.config, Info: info, Factor: 1}
	for _, role := range []struct {
		role   providers.Role
		market providers.Market
		offers *[]providers.Offer
	}{{providers.Head, providers.OnDemand, &planned.Head}, {providers.Worker, providers.Spot, &planned.Workers}} {
		*role.offers, err = r.provider.Offers(ctx, providers.OffersRequest{Config: r.config, Role: role.role, Markets: []providers.Market{role.market}})
		if err != nil {
			return nil, err
		}
	}
	if err := r.journal.Append(ctx, journal.NewEvent(journal.RunPlanned, "", 0, planned)); err != nil {
		return nil, err
	}
	r.world, err = NewWorld(WorldConfig{
		RunID: o.id, Epoch: 1, Job: job, Info: info, WorkerKey: worker.Private, Binaries: program.binaries, Folder: folder, Clock: clock,
		Record: func(ctx context.Context, events ...journal.Event) error {
			for _, e := range events {
				if o.recorded != nil {
					o.recorded(e)
				}
			}
			return r.journal.Append(ctx, events...)
		},
		Lease: func() time.Duration { return job.Limits.NodeLease }, Network: o.network,
	})
	if err != nil {
		return nil, err
	}
	keys := &supervisor.KeyFolder{Folder: b.TempDir(), Client: client.Public, Worker: worker.Public}
	super := supervisor.New(supervisor.Options{Job: job, Journal: r.journal, Provider: r.provider, Config: r.config, World: r.world, Keys: keys, Owner: "me"})
	ctx, cancel := context.WithCancel(ctx)
	worldEnded, superEnded := make(chan error, 1), make(chan error, 1)
	go func() { worldEnded <- r.world.Run(ctx) }()
	go func() {
		_, err := super.Run(ctx)
		superEnded <- err
	}()
	r.close = func() error {
		super.Stop(journal.Stopping{Cause: journal.CauseDown})
		var err error
		select {
		case err = <-superEnded:
		case <-time.After(60 * time.Second):
			err = errors.New("teardown: not in a minute")
		}
		cancel()
		<-worldEnded
		return errors.Join(err, r.journal.Close())
	}
	return r, nil
}

// await waits for an event that fits, from those that came after the last one awaited, and returns it.
func (r *benchRun) await(what string, fits func(journal.Event) bool) (journal.Event, error) {
	timeout := time.After(time.Minute)
	for {
		events, changed := r.journal.Since(r.shown)
		for _, e := range events {
			r.shown++
			if fits(e) {
				return e, nil
			}
		}
		select {
		case <-changed:
		case <-timeout:
			all, _ := r.journal.Since(0)
			var last strings.Builder
			for _, e := range all[max(0, len(all)-20):] {
				fmt.Fprintf(&last, "\n%8.3f %s %s g%d %.200s", time.Duration(e.At).Seconds(), e.Kind, e.Node, e.Generation, e.Data)
			}
			return journal.Event{}, fmt.Errorf("no %s within a minute: %s", what, &last)
		}
	}
}

// awaitKind waits for the next event of a kind, of any node where none is given.
func (r *benchRun) awaitKind(kind journal.Kind, node string) (journal.Event, error) {
	return r.await(string(kind)+" "+node, func(e journal.Event) bool { return e.Kind == kind && (node == "" || e.Node == node) })
}

// awaitUp waits until each member of the newest generation has written its first line, and returns when that was seen, on the run clock.
func (r *benchRun) awaitUp() (time.Duration, error) {
	timeout := time.After(time.Minute)
	for {
		_, changed := r.journal.Since(1 << 30)
		_, written, err := r.world.Logs().Read(1<<60, nil)
		if err != nil {
			return 0, err
		}
		text, err := os.ReadFile(filepath.Join(r.world.Folder, "logs", LogFileName))
		if err != nil {
			return 0, err
		}
		g := r.journal.State().Generation
		up := g.Phase == journal.GenFormed
		for _, m := range g.Members {
			up = up && strings.Contains(string(text), fmt.Sprintf("up g%d %s", g.Number, m.Node))
		}
		if up {
			return r.journal.Now(), nil
		}
		select {
		case <-written:
		case <-changed:
		case <-timeout:
			return 0, fmt.Errorf("generation %d: not all processes in a minute", g.Number)
		}
	}
}

// kill deletes a node's machine behind the supervisor's back. silent keeps the listing as it was.
func (r *benchRun) kill(node string, silent bool) (at time.Duration, err error) {
	id := r.journal.State().Nodes[node].Machine.ID
	all, err := r.provider.Provider.List(context.Background(), providers.Filter{Config: r.config, Run: r.id})
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(all, func(res providers.Resource) bool { return res.ID == id })
	if i < 0 {
		return 0, fmt.Errorf("kill %s: no machine %s", node, id)
	}
	if silent {
		r.provider.mu.Lock()
		r.provider.hidden = &all[i]
		r.provider.mu.Unlock()
	}
	at = r.journal.Now()
	_, err = r.provider.Provider.Delete(context.Background(), providers.DeleteRequest{Config: r.config, Run: r.id, Resources: all[i : i+1]})
	return at, err
}

// show lets the listing tell the truth again.
func (r *benchRun) show() {
	r.provider.mu.Lock()
	defer r.provider.mu.Unlock()
	r.provider.hidden = nil
}

// spread is a sorted sample in seconds.
type spread []float64

func newSpread(sample []time.Duration) spread {
	var s spread
	for _, d := range sample {
		s = append(s, d.Seconds())
	}
	slices.Sort(s)
	return s
}

func (s spread) median() float64 { return s[len(s)/2] }

func (s spread) String() string {
	return fmt.Sprintf("median %.3f s, %.3f to %.3f s in %d runs", s.median(), s[0], s[len(s)-1], len(s))
}

// torchrunLoss and torchrunJoin are stock torchrun's figures for the same events: torch 1.13, c10d rendezvous, gloo, min 2 max 3, all at their
// defaults, one Linux machine.
const (
	torchrunLoss = 46.7
	torchrunJoin = 6.6
)

func recoveryJob(lostAfter string) string {
	return `
job "t" {
  provider "local" {}
  workers {
    min = 1
    max = 2
  }
  run "ranks" { command = "echo up g$LAUNCHER_GENERATION $LAUNCHER_NODE; exec sleep 1000" }
  elastic { lost_after = "` + lostAfter + `" }
}`
}

// BenchmarkRecovery measures, on two workers of which one dies: from the death to the survivor's process
// running again, as the head sees its first line; and from the replacement's node.joined to both processes running again.
func BenchmarkRecovery(b *testing.B) {
	for _, c := range []struct {
		name      string
		lostAfter string
		silent    bool
		worlds    int
		runs      int // per world
		limit     string
	}{
		{"evidence", "10s", false, 2, 5, "3 s"},
		{"silent-2s", "2s", true, 10, 1, "2 s + 5 s"},
		{"silent-10s", "10s", true, 10, 1, "10 s + 5 s"},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				var mu sync.Mutex
				var losses, joins []time.Duration
				var work sync.WaitGroup
				for w := range c.worlds {
					work.Go(func() {
						loss, join, err := lossesAndJoins(b, fmt.Sprintf("bench-%s-%d", c.name, w), recoveryJob(c.lostAfter), c.silent, c.runs)
						mu.Lock()
						defer mu.Unlock()
						if err != nil {
							b.Error(err)
						}
						losses, joins = append(losses, loss...), append(joins, join...)
					})
				}
				work.Wait()
				if len(losses) == 0 {
					return
				}
				loss := newSpread(losses)
				b.ReportMetric(loss.median(), "s-loss")
				b.Logf("killed → survivors running, %s | %.1f s (torchrun) | %v: %.3f of it (at most %s)", c.name, torchrunLoss, loss, loss.median()/torchrunLoss, c.limit)
				if len(joins) == 0 {
					continue
				}
				join := newSpread(joins)
				b.ReportMetric(join.median(), "s-join")
				b.Logf("replacement joined → world running | %.1f s (torchrun) | %v: %.3f of it (at most 1 s)", torchrunJoin, join, join.median()/torchrunJoin)
			}
		})
	}
}

// settle lets a new generation become older than the least time that the rendezvous keeps generations apart: what happens to a world that has
// just begun is not what is measured.
func settle() { <-time.After(1500 * time.Millisecond) }

// lossesAndJoins kills the worker of slot 0 over and over; where that is silent, once, and nothing is joined.
func lossesAndJoins(b *testing.B, id, job string, silent bool, runs int) (losses, joins []time.Duration, err error) {
	r, err := startBenchRun(b, benchOptions{id: id, hcl: job, boot: 3 * time.Second})
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if _, err := r.awaitKind(journal.GenerationFormed, ""); err != nil {
		return nil, nil, err
	}
	if _, err := r.awaitUp(); err != nil {
		return nil, nil, err
	}
	for attempt := 1; attempt <= runs; attempt++ {
		settle()
		killed, err := r.kill(journal.NodeName(0, attempt), silent)
		if err != nil {
			return losses, joins, err
		}
		if _, err := r.awaitKind(journal.GenerationFormed, ""); err != nil {
			return losses, joins, err
		}
		up, err := r.awaitUp()
		if err != nil {
			return losses, joins, err
		}
		losses = append(losses, up-killed)
		if silent {
			r.show() // or the dead machine would be listed for ever
			continue
		}
		joined, err := r.awaitKind(journal.NodeJoined, journal.NodeName(0, attempt+1))
		if err != nil {
			return losses, joins, err
		}
		if _, err := r.awaitKind(journal.GenerationFormed, ""); err != nil {
			return losses, joins, err
		}
		if up, err = r.awaitUp(); err != nil {
			return losses, joins, err
		}
		joins = append(joins, up-time.Duration(joined.At))
	}
	return losses, joins, nil
}

// BenchmarkNotice measures from the cloud's notice on the node to node.notice on the head's disk, to the replacement being asked of the provider,
// and, once the replacement has joined, to the swapped world running.
func BenchmarkNotice(b *testing.B) {
	const runs = 5
	for b.Loop() {
		noticed, asked, swapped, err := notices(b, runs)
		if err != nil {
			b.Error(err)
		}
		if len(swapped) == 0 {
			return
		}
		b.ReportMetric(newSpread(noticed).median(), "s-noticed")
		b.ReportMetric(newSpread(asked).median(), "s-asked")
		b.Logf("notice on the node → node.notice | – | %v", newSpread(noticed))
		b.Logf("notice on the node → replacement asked | 5 to 65 s after the death (Ray) | %v (at most 1 s)", newSpread(asked))
		b.Logf("replacement joined → swapped world running | %.1f s (torchrun, a join) | %v (at most 1 s)", torchrunJoin, newSpread(swapped))
	}
}

func notices(b *testing.B, runs int) (noticed, asked, swapped []time.Duration, err error) {
	r, err := startBenchRun(b, benchOptions{id: "bench-notice", hcl: recoveryJob("10s"), boot: 2 * time.Second})
	if err != nil {
		return nil, nil, nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if _, err := r.awaitKind(journal.GenerationFormed, ""); err != nil {
		return nil, nil, nil, err
	}
	if _, err := r.awaitUp(); err != nil {
		return nil, nil, nil, err
	}
	drill, _ := providers.As[providers.Preempter](r.provider)
	for attempt := 1; attempt <= runs; attempt++ {
		settle()
		victim := journal.NodeName(0, attempt)
		began, at := time.Now(), r.journal.Now()
		err := drill.Preempt(context.Background(), providers.PreemptRequest{Config: r.config, Run: r.id, Machine: r.journal.State().Nodes[victim].Machine.ID, Notice: time.Minute})
		if err != nil {
			return noticed, asked, swapped, err
		}
		notice, err := r.awaitKind(journal.NodeNotice, victim)
		if err != nil {
			return noticed, asked, swapped, err
		}
		joined, err := r.awaitKind(journal.NodeJoined, journal.NodeName(0, attempt+1))
		if err != nil {
			return noticed, asked, swapped, err
		}
		if _, err := r.awaitKind(journal.GenerationFormed, ""); err != nil {
			return noticed, asked, swapped, err
		}
		up, err := r.awaitUp()
		if err != nil {
			return noticed, asked, swapped, err
		}
		r.provider.mu.Lock()
		created := r.provider.created[len(r.provider.created)-1]
		r.provider.mu.Unlock()
		noticed = append(noticed, time.Duration(notice.At)-at)
		asked = append(asked, created.Sub(began))
		swapped = append(swapped, up-time.Duration(joined.At))
	}
	return noticed, asked, swapped, nil
}
