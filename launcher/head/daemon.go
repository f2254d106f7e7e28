package head

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ephemeral-launcher/launcher/bootstrap"
	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/launcher/rendezvous"
	"github.com/ephemeral-launcher/launcher/launcher/supervisor"
	"github.com/ephemeral-launcher/launcher/providers"
)

// Options are what a head daemon works with.
type Options struct {
	// Folder is the head's own: uploads, journal, logs, checkpoints, outputs.
	Folder string
	// Runtime is a folder in memory (tmpfs) for keys and secrets; they outlive the process, not the machine.
	Runtime string
	// Provider opens a provider by name, with the environment a plugin may see. nil: this head cannot supervise.
	Provider func(name string, env map[string]string) (providers.Provider, error)
	Network  Network
	Version  string
	// Extend is told for how long the machine's own lease holds from now on.
	Extend func(time.Duration)
	// Elapsed is the source of the run clock; nil: journal.BootTime.
	Elapsed func() time.Duration
	Log     *slog.Logger
}

// Daemon is the head's control API and what it drives. Use NewDaemon, register it as a control.HeadServer, and Run it.
type Daemon struct {
	control.UnimplementedHeadServer
	Options
	instance uint64
	ctx      context.Context // ends with NewDaemon's, or when the daemon cannot go on
	fail     context.CancelCauseFunc
	running  sync.WaitGroup
	over     chan struct{} // closed when an adopted run is over

	mu      sync.Mutex // guards all below
	setup   *control.RunSetup
	epoch   uint64
	served  *service // client mode
	adopted *adopted
	world   *World
}

// adopted is a run this head supervises.
type adopted struct {
	journal    *journal.Journal
	supervisor *supervisor.Supervisor
	provider   providers.Provider
	config     json.RawMessage
}

// NewDaemon returns a daemon; if the folder holds a run that an older process of this head had adopted, it is taken up again.
func NewDaemon(ctx context.Context, opts Options) (*Daemon, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Elapsed == nil {
		opts.Elapsed = journal.BootTime
	}
	if opts.Extend == nil {
		opts.Extend = func(time.Duration) {}
	}
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, err
	}
	ctx, fail := context.WithCancelCause(ctx)
	d := &Daemon{Options: opts, ctx: ctx, fail: fail, instance: binary.LittleEndian.Uint64(b[:]), over: make(chan struct{})}
	if err := os.MkdirAll(opts.Folder, 0o700); err != nil {
		return nil, fmt.Errorf("make the head's folder: %w", err)
	}
	if err := d.resume(); err != nil {
		return nil, err
	}
	return d, nil
}

// Wait waits for everything the daemon has started, and gives up the journal; its context must have ended.
func (d *Daemon) Wait() {
	d.running.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.adopted != nil {
		d.adopted.journal.Close() // what was appended is on disk
	}
}

// Over is closed when the run this head supervised is over and its machine's deletion ordered.
func (d *Daemon) Over() <-chan struct{} { return d.over }

// Status implements control.HeadServer.
func (d *Daemon) Status(context.Context, *control.StatusRequest) (*control.StatusReply, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := &control.StatusReply{Epoch: d.epoch, Adopted: d.adopted != nil, Version: d.Version, Instance: d.instance}
	if d.setup != nil {
		r.Run = d.setup.Run
	}
	return r, nil
}

// check tells whether a Serve or Adopt for the run and epoch may go on. The caller holds mu.
func (d *Daemon) check(s *control.RunSetup) error {
	if d.setup != nil && d.setup.Run != s.Run {
		return status.Errorf(codes.FailedPrecondition, "this head belongs to run %s", d.setup.Run)
	}
	if s.Epoch < d.epoch {
		return status.Errorf(codes.FailedPrecondition, "epoch %d is over: this head is at %d", s.Epoch, d.epoch)
	}
	return nil
}

// newWorld makes the world of a run. The caller holds mu.
func (d *Daemon) newWorld(s *control.RunSetup, clock journal.Clock, cfg WorldConfig) (*World, error) {
	job, info := &jobspec.Job{}, providers.Info{}
	if err := json.Unmarshal(s.JobJson, job); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "decode job: %v", err)
	}
	if err := json.Unmarshal(s.InfoJson, &info); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "decode provider info: %v", err)
	}
	binaries, err := bootstrap.NewBinaries(os.DirFS(d.binaries()))
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "the agent's binaries were not uploaded: %v", err)
	}
	cfg.RunID, cfg.Epoch, cfg.Job, cfg.Info = s.Run, s.Epoch, job, info
	cfg.WorkerKey, cfg.Secrets, cfg.Binaries = s.WorkerKeyPem, s.Secrets, binaries
	cfg.WorkdirHash, cfg.Folder, cfg.Clock, cfg.Network, cfg.Log = s.WorkdirHash, d.Folder, clock, d.Network, d.Log
	if s.WorkdirHash != "" {
		cfg.Workdir = d.workdir(s.WorkdirHash)
		if _, err := os.Stat(cfg.Workdir); err != nil {
			return nil, status.Errorf(codes.FailedPrecondition, "the workdir was not uploaded")
		}
	}
	return NewWorld(cfg)
}

// runWorld drives the world until the daemon ends. A world that fails ends the process: a new one folds the journal.
func (d *Daemon) runWorld(w *World) {
	d.running.Go(func() {
		if err := w.Run(d.ctx); err != nil && d.ctx.Err() == nil {
			d.crash(fmt.Errorf("world: %w", err))
		}
	})
}

// Adopt implements control.HeadServer.
func (d *Daemon) Adopt(_ context.Context, req *control.AdoptRequest) (*control.AdoptReply, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.check(req.Setup); err != nil {
		return nil, err
	}
	if d.adopted != nil {
		return &control.AdoptReply{Epoch: d.epoch, Instance: d.instance}, nil
	}
	if d.served != nil {
		return nil, status.Error(codes.FailedPrecondition, "this head serves a client's supervisor")
	}
	var events []journal.Event
	for _, b := range req.EventsJson {
		var e journal.Event
		if err := json.Unmarshal(b, &e); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "decode event: %v", err)
		}
		events = append(events, e)
	}
	kept := &keptRun{
		At: time.Duration(req.AtNs), Elapsed: d.Elapsed(), Epoch: req.Setup.Epoch, Provider: req.Provider, Config: req.ProviderConfigJson,
		Owner: req.Owner, Tags: req.Tags, Ingress: req.Ingress, Env: req.ProviderEnv,
	}
	if err := d.begin(req.Setup, kept, events, req.BirthKeysPem); err != nil {
		return nil, err
	}
	return &control.AdoptReply{Epoch: d.epoch, Instance: d.instance}, nil
}

// keptRun is what a new process of this head needs besides the journal. It lies in Runtime, beside the setup with its secrets.
type keptRun struct {
	At       time.Duration     `json:"at"`
	Elapsed  time.Duration     `json:"elapsed"`
	Epoch    uint64            `json:"epoch"`
	Provider string            `json:"provider"`
	Config   json.RawMessage   `json:"config"`
	Owner    string            `json:"owner"`
	Tags     map[string]string `json:"tags"`
	Ingress  []string          `json:"ingress"`
	Env      map[string]string `json:"env"`
	Setup    json.RawMessage   `json:"setup"`
}

// clock goes on from what the sender's clock showed when it sent the run here, whichever process of this head asks.
func (k *keptRun) clock(elapsed func() time.Duration) journal.Clock {
	return func() time.Duration { return k.At + elapsed() - k.Elapsed }
}

func (d *Daemon) keptPath() string { return filepath.Join(d.Runtime, "run.json") }

// begin takes the run over: everything is on disk, then handover.accepted, then the first effect. The caller holds mu.
func (d *Daemon) begin(setup *control.RunSetup, kept *keptRun, events []journal.Event, births map[string][]byte) error {
	clock := kept.clock(d.Elapsed)
	if d.Provider == nil {
		return status.Error(codes.FailedPrecondition, "this head has no provider")
	}
	state, err := journal.Fold(events)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "fold journal: %v", err)
	}
	if err := d.pinned(state.Planned); err != nil {
		return err
	}
	provider, err := d.Provider(kept.Provider, kept.Env)
	if err != nil {
		return status.Errorf(codes.FailedPrecondition, "open provider %s: %v", kept.Provider, err)
	}
	keys, err := keysOf(setup, filepath.Join(d.Runtime, "keys"))
	if err != nil {
		return err
	}
	for token, private := range births {
		if err := keys.Put(token, private); err != nil {
			return status.Errorf(codes.Internal, "write birth key: %v", err)
		}
	}
	b, err := json.Marshal(setup)
	if err != nil {
		return err
	}
	kept.Setup = b
	if b, err = json.Marshal(kept); err != nil {
		return err
	}
	if err := supervisor.WriteSecret(d.keptPath(), b); err != nil {
		return status.Errorf(codes.Internal, "write keys: %v", err)
	}
	j, err := journal.Adopt(d.Folder, events, journal.Options{Clock: clock})
	if err != nil {
		return status.Errorf(codes.Internal, "%v", err)
	}
	return d.drive(setup, kept, j, provider, keys)
}

// drive starts world and supervisor over an open journal. The caller holds mu.
func (d *Daemon) drive(setup *control.RunSetup, kept *keptRun, j *journal.Journal, provider providers.Provider, keys *supervisor.KeyFolder) error {
	job := &jobspec.Job{}
	if err := json.Unmarshal(setup.JobJson, job); err != nil {
		return status.Errorf(codes.InvalidArgument, "decode job: %v", err)
	}
	lease := job.Limits.NodeLease
	world, err := d.newWorld(setup, j.Now, WorldConfig{
		Record: j.Append, Past: pastOf(j.State()), Notices: noticesOf(j.State()),
		Lease: func() time.Duration {
			if !outstayed(job, j.State(), j.Now()) {
				d.Extend(lease)
			}
			return lease
		},
	})
	if err != nil {
		j.Close()
		return err
	}
	if state := j.State(); state.Epoch < int(kept.Epoch) {
		if err := j.Append(d.ctx, journal.NewEvent(journal.HandoverAccepted, "", 0, journal.Handover{Epoch: int(kept.Epoch)})); err != nil {
			j.Close()
			return status.Errorf(codes.Internal, "accept: %v", err)
		}
	}
	s := supervisor.New(supervisor.Options{
		Job: job, Journal: j, Provider: provider, Config: kept.Config, World: world, Mode: supervisor.ModeHead, Keys: keys,
		Tags: kept.Tags, Owner: kept.Owner, Ingress: kept.Ingress, Log: d.Log,
	})
	d.setup, d.epoch, d.world = setup, kept.Epoch, world
	d.adopted = &adopted{journal: j, supervisor: s, provider: provider, config: kept.Config}
	d.Extend(lease)
	d.runWorld(world)
	d.running.Go(func() {
		outcome, err := s.Run(d.ctx)
		if err != nil && d.ctx.Err() == nil {
			d.crash(fmt.Errorf("supervisor: %w", err))
		}
		if err == nil && outcome == supervisor.Over {
			close(d.over)
		}
	})
	return nil
}

// longStay is how long after a run's end its head goes on trying to delete everything, itself last.
const longStay = time.Hour

// outstayed tells whether the machine's own lease is to end the head: a provider that refuses every call, because a right was taken
// away or an account closed, would else keep it there for good.
func outstayed(job *jobspec.Job, s *journal.State, now time.Duration) bool {
	if s.Finished == nil {
		return false
	}
	until := s.FinishedAt.Duration() + longStay
	if !s.Fetched {
		until += job.Limits.HoldResults
	}
	budget := job.Limits.BudgetUSD
	return now > until || budget > 0 && s.SpendUSD(journal.At(now)) >= budget
}

// crash ends the process so that its parent starts another, which folds the journal: who cannot write must not go on.
func (d *Daemon) crash(err error) {
	d.Log.Error("cannot go on", "error", err)
	d.fail(err)
}

// Failed is closed when the daemon cannot go on; Cause says why.
func (d *Daemon) Failed() <-chan struct{} { return d.ctx.Done() }

// Cause is why the daemon ended.
func (d *Daemon) Cause() error { return context.Cause(d.ctx) }

// resume takes up what an older process of this head had adopted.
func (d *Daemon) resume() error {
	b, err := os.ReadFile(d.keptPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	kept, setup := &keptRun{}, &control.RunSetup{}
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(kept); err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	if err := json.Unmarshal(kept.Setup, setup); err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	clock := kept.clock(d.Elapsed)
	j, err := journal.Open(d.Folder, journal.Options{Clock: clock})
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it died between the two: the client sends Adopt again
	}
	if err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	if err := d.pinned(j.State().Planned); err != nil {
		j.Close()
		return fmt.Errorf("resume: %w", err)
	}
	provider, err := d.Provider(kept.Provider, kept.Env)
	if err != nil {
		j.Close()
		return fmt.Errorf("resume: open provider %s: %w", kept.Provider, err)
	}
	keys, err := keysOf(setup, filepath.Join(d.Runtime, "keys"))
	if err != nil {
		j.Close()
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.drive(setup, kept, j, provider, keys)
}

func keysOf(s *control.RunSetup, folder string) (*supervisor.KeyFolder, error) {
	if len(s.AuthorizedKeys) != 2 {
		return nil, status.Errorf(codes.InvalidArgument, "want the client's and the worker key, got %d keys", len(s.AuthorizedKeys))
	}
	return &supervisor.KeyFolder{Folder: folder, Client: s.AuthorizedKeys[0], Worker: s.AuthorizedKeys[1]}, nil
}

// pastOf is what the journal says of the world an older head process had.
func pastOf(s *journal.State) rendezvous.Past {
	p := rendezvous.Past{Restarts: s.Restarts, Workers: s.Want, Checkpoints: s.Checkpoint != nil, Generation: s.Generation.Number}
	if s.Generation.Phase == journal.GenForming {
		p.Generation--
	}
	if s.Generation.Phase != journal.GenFormed {
		return p
	}
	for _, m := range s.Generation.Members {
		p.Members = append(p.Members, rendezvous.Member{Node: m.Node, Slot: m.Slot, GroupRank: m.GroupRank, FirstRank: m.FirstRank, Procs: m.Procs})
	}
	return p
}

// noticesOf are the deadlines of the preemptions the journal tells of, of nodes that are there still.
func noticesOf(s *journal.State) map[string]time.Duration {
	deadlines := map[string]time.Duration{}
	for name, n := range s.Nodes {
		if n.Notice == nil || n.Phase == journal.PhaseLost || n.Phase == journal.PhaseDeleting || n.Phase.Ended() {
			continue
		}
		deadlines[name] = max(n.NoticedAt.Duration(), 1)
		if n.Notice.DeadlineAt != nil {
			deadlines[name] = n.Notice.DeadlineAt.Duration()
		}
	}
	return deadlines
}
