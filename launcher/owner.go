package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ephemeral-launcher/launcher/bootstrap"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/launcher/supervisor"
	"github.com/ephemeral-launcher/launcher/providers"
)

// owner holds a run's folder and goes on with the run, whatever state it is in:
//
//	epoch 1, nothing offered ──▶ supervise ──▶ over: deleted and seen gone
//	                                 │ head { supervisor = "head" }, and the head is ready
//	                                 ▼
//	offered, or epoch 2 ───────▶ follow ────▶ fetched ──▶ look ──▶ clean, or given up
//	                                 │ the head is seen terminated, or was fenced
//	                                 ▼
//	epoch 3 ───────────────────▶ supervise, to delete the rest
//
// One goroutine drives; what others order is kept under mu and told to whoever supervises.
type owner struct {
	dialer
	opts     Options
	folder   folder
	journal  *journal.Journal
	keys     *userKeys
	births   *supervisor.KeyFolder
	provider providers.Provider
	config   json.RawMessage
	logs     *logCopy
	log      *slog.Logger
	// patience is how long a head may be unreachable, or do nothing after an order to stop, before it is fenced; 0: for ever.
	patience time.Duration

	handedOver chan struct{} // closed when the run needs this process no more
	once       sync.Once     // closes handedOver

	mu         sync.Mutex // guards all below
	supervisor *supervisor.Supervisor
	connection *connection
	connected  chan struct{} // closed and replaced when connection changes
	stopping   *journal.Stopping
	scaled     *scaling
	ordered    chan struct{} // closed and replaced when stopping or scaled change
	told       bool          // the head has the order to stop
	toldNow    chan struct{} // closed when told is set
	leases     uint64
	failure    error
	broken     context.CancelCauseFunc
	headGone   bool
	givenUp    []string // what may still bill where looking was given up
}

type scaling struct {
	workers int
	by      string
	told    bool
}

// newOwner takes over an open journal.
func newOwner(opts Options, f folder, j *journal.Journal) (*owner, error) {
	job, err := jobOf(j.State())
	if err != nil {
		return nil, err
	}
	o := blankOwner(opts, f, j)
	o.job = job
	if o.keys, o.births, err = f.keys(opts.Door); err != nil {
		return nil, err
	}
	o.clientKey = o.keys.client
	if o.logs, err = openLogCopy(f.logs()); err != nil {
		return nil, err
	}
	if o.binaries, err = opts.binaries(); err != nil && !opts.ending {
		return nil, err
	}
	if planned := j.State().Planned; planned != nil {
		o.config = planned.Config
		if o.provider, err = opts.provider(planned.Provider); err != nil {
			return nil, err
		}
		if err := opts.checkPins(planned); err != nil {
			if !opts.ending {
				return nil, err
			}
			o.log.Warn("plugin", "error", err) // whatever is trusted now may delete
		}
	}
	return o, nil
}

func blankOwner(opts Options, f folder, j *journal.Journal) *owner {
	o := &owner{
		opts: opts, folder: f, journal: j, log: opts.log().With("run", f.run), handedOver: make(chan struct{}),
		connected: make(chan struct{}), ordered: make(chan struct{}), toldNow: make(chan struct{}),
	}
	o.run, o.network = f.run, opts.Network
	return o
}

// adopted tells whether the head supervises.
func adopted(s *journal.State) bool { return s.Epoch%2 == 0 }

// offered tells whether the head was asked to supervise: from then on this process only asks again, follows or fences.
func offered(s *journal.State) bool { return adopted(s) || s.Offered > s.Epoch }

// drive goes on with the run until it is over, given up, or ctx ends.
func (o *owner) drive(ctx context.Context) error {
	ctx, broken := context.WithCancelCause(ctx)
	defer broken(nil)
	o.mu.Lock()
	o.broken = broken
	o.mu.Unlock()
	for {
		s := o.journal.State()
		var err error
		switch {
		case s.Clean != nil:
			return nil
		case s.Planned == nil:
			return errors.New("the run was never planned: nothing was rented")
		case !offered(s):
			err = o.supervise(ctx)
		case s.Fetched || o.lost():
			err = o.look(ctx)
			if errors.Is(err, errGivenUp) {
				return nil
			}
		default:
			err = o.follow(ctx)
		}
		if errors.Is(err, errHeadGone) {
			err = o.takeOver(ctx)
		}
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}
	}
}

// lost tells whether the job's end is known and the head is gone: only the listing is missing.
func (o *owner) lost() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.headGone && o.journal.State().Finished != nil
}

// supervise runs the supervisor in this process, until everything is deleted or the head may take over.
func (o *owner) supervise(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	handOver := make(chan struct{})
	s := o.journal.State()
	opts := supervisor.Options{
		Job: o.job, Journal: o.journal, Provider: o.provider, Config: o.config, World: emptyWorld{o}, Mode: supervisor.ModeClient, Keys: o.births,
		Tags: o.job.Tags, Owner: s.Created.Owner, Door: o.opts.Door, Log: o.log,
	}
	var err error
	if opts.Ingress, err = ingress(o.job, s.Planned.Info, o.opts.CallerCIDRs); err != nil {
		return err
	}
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel(nil)
	switch {
	case s.Epoch > 1: // after a fence: there is no world any more
	case o.job.Head.Supervisor == jobspec.SupervisorClient:
		w := newClientWorld(o)
		opts.World = w
		if o.patience > 0 {
			beside.Go(func() { w.impatience(ctx) })
		}
		beside.Go(func() {
			if err := w.run(ctx); err != nil {
				o.orderStop(journal.Stopping{Cause: journal.CauseLauncher, Text: err.Error()})
			}
		})
	default:
		opts.Mode, opts.HandOver = supervisor.ModeLaunch, handOver
		beside.Go(func() {
			if err := o.readyHead(ctx); err == nil {
				close(handOver)
			} else if permanent(err) {
				o.orderStop(journal.Stopping{Cause: journal.CauseLauncher, Text: err.Error()})
			}
		})
	}
	if opts.Mode == supervisor.ModeLaunch || opts.World != (emptyWorld{o}) {
		beside.Go(o.warm)
	}
	sup := supervisor.New(opts)
	o.mu.Lock()
	o.supervisor = sup
	if o.stopping != nil {
		sup.Stop(*o.stopping)
	}
	if o.scaled != nil && !o.scaled.told {
		if err := sup.Scale(o.scaled.workers, o.scaled.by); err != nil {
			o.log.Warn("scale", "error", err)
		}
	}
	o.mu.Unlock()
	outcome, err := sup.Run(ctx)
	o.mu.Lock()
	o.supervisor = nil
	o.mu.Unlock()
	if err != nil {
		return err
	}
	if outcome == supervisor.HandingOver {
		return o.journal.Append(ctx, journal.NewEvent(journal.HandoverOffered, "", 0, journal.Handover{Epoch: s.Epoch + 1}))
	}
	return nil
}

// warm compresses what the machines will most likely need while they boot: it takes a second that they would wait for.
func (o *owner) warm() {
	if o.binaries == nil {
		return
	}
	for _, platform := range []string{"linux-amd64", hostPlatform()} {
		for _, name := range []string{program, agentProgram} {
			if _, err := o.binaries.Gzip(platform, name); err != nil {
				o.log.Debug("compress", "platform", platform, "name", name, "error", err)
			}
		}
	}
}

// readyHead brings the head to where it may be asked to take over. The connection stays for that.
func (o *owner) readyHead(ctx context.Context) error {
	for pause := firstRedial; ; pause = min(2*pause, lastRedial) {
		c, err := o.connect(ctx)
		if err == nil {
			if err = o.prepare(ctx, c); err == nil {
				err = o.record(ctx, journal.NewEvent(journal.NodeJoined, journal.HeadName, 0, journal.Joined{}))
			}
			if err == nil {
				o.setConnection(c)
				return nil
			}
			c.Close()
		}
		if ctx.Err() != nil || errors.Is(err, errHeadGone) || permanent(err) {
			return err
		}
		o.log.Info("head not ready", "error", err)
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// permanent tells an error that no waiting cures.
func permanent(err error) bool {
	if err == nil {
		return false
	}
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.InvalidArgument, codes.Unimplemented:
		return true
	}
	return errors.Is(err, journal.ErrCrashed) || errors.Is(err, bootstrap.ErrPlatform) || errors.Is(err, errNoPlugin) || sshexec.Classify(err) == sshexec.BadTarget
}

// setup is what Serve and Adopt share. A secret that is not set here is left out: the head has it from the first time.
func (o *owner) setup(epoch uint64) (*control.RunSetup, error) {
	s := o.journal.State()
	job, err := json.Marshal(o.job)
	if err != nil {
		return nil, fmt.Errorf("encode job: %w", err)
	}
	info, err := json.Marshal(s.Planned.Info)
	if err != nil {
		return nil, fmt.Errorf("encode provider info: %w", err)
	}
	secrets := map[string]string{}
	for _, name := range o.job.Secrets {
		if v := o.opts.env(name); v != "" {
			secrets[name] = v
		}
	}
	return &control.RunSetup{
		Run: o.run, Epoch: epoch, JobJson: job, WorkerKeyPem: o.keys.worker, Secrets: secrets, WorkdirHash: s.Created.Workdir, InfoJson: info,
		AuthorizedKeys: []string{o.keys.clientPublic, o.keys.workerPublic},
	}, nil
}

// ingress is who may reach the head's port 22.
func ingress(job *Job, info providers.Info, caller []string) ([]string, error) {
	var cidrs []string
	for _, from := range job.Network.SSHFrom {
		if from != jobspec.SSHFromCaller {
			cidrs = append(cidrs, from)
			continue
		}
		if len(caller) == 0 && info.SeparateHosts && !info.FixedHosts {
			return nil, errors.New(`network.ssh_from: the address that "caller" is seen from is not known here: write it as a CIDR`)
		}
		cidrs = append(cidrs, caller...)
	}
	return cidrs, nil
}

func (o *owner) setConnection(c *connection) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.connection = c
	close(o.connected)
	o.connected = make(chan struct{})
}

// takeConnection hands the living connection over; nil where there is none.
func (o *owner) takeConnection() *connection {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.connection
	o.connection = nil
	if c == nil || c.ssh.Err() != nil {
		return nil
	}
	return c
}

func (o *owner) nextLease() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.leases++
	return o.leases
}

// fail ends the drive: this process cannot go on.
func (o *owner) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failure == nil {
		o.failure = err
	}
	if o.broken != nil {
		o.broken(err)
	}
}

// orderStop keeps an order to end the run and tells a supervisor in this process; follow tells the head.
func (o *owner) orderStop(why journal.Stopping) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopping == nil {
		o.stopping = &why
		o.signal()
	}
	if o.supervisor != nil {
		o.supervisor.Stop(*o.stopping)
	}
}

// signal says that an order came. The caller holds mu.
func (o *owner) signal() {
	close(o.ordered)
	o.ordered = make(chan struct{})
}

func (o *owner) scale(workers int, by string) error {
	w := o.job.Workers
	if workers < 1 || !w.Fixed && (workers < w.Min || workers > w.Max) {
		return fmt.Errorf("scale to %d: the job allows %d to %d workers", workers, w.Min, w.Max)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.scaled = &scaling{workers: workers, by: by}
	o.signal()
	if o.supervisor != nil {
		return o.supervisor.Scale(workers, by)
	}
	return nil
}

// preempt drills: from here while this process supervises, else on the head.
func (o *owner) preempt(ctx context.Context, node string, notice time.Duration) error {
	n, err := findNode(o.journal.State(), node)
	if err != nil {
		return err
	}
	if offered(o.journal.State()) {
		c, err := o.await(ctx)
		if err != nil {
			return err
		}
		_, err = c.api.Order(ctx, &control.OrderRequest{Body: &control.OrderRequest_Preempt{Preempt: &control.Preempt{Node: n.Name, NoticeMs: notice.Milliseconds()}}})
		if err != nil {
			return fmt.Errorf("preempt %s: %w", n.Name, err)
		}
		return nil
	}
	drill, ok := providers.As[providers.Preempter](o.provider)
	if !ok || !o.journal.State().Planned.Info.Has(providers.CanPreempt) {
		return fmt.Errorf("preempt %s: provider %s has no preemption drill", n.Name, o.journal.State().Planned.Provider)
	}
	return drill.Preempt(ctx, providers.PreemptRequest{Config: o.config, Run: o.run, Machine: n.Machine.ID, Notice: notice})
}

// await waits for a connection to the head.
func (o *owner) await(ctx context.Context) (*connection, error) {
	for {
		o.mu.Lock()
		c, changed := o.connection, o.connected
		o.mu.Unlock()
		if c != nil {
			return c, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("reach the head: %w", context.Cause(ctx))
		}
	}
}

// findNode finds a living node by its name; "w2" is whoever holds slot 2 now, "" the head.
func findNode(s *journal.State, name string) (*journal.Node, error) {
	if name == "" {
		name = journal.HeadName
	}
	if n := s.Nodes[name]; n != nil {
		if n.Machine == nil || n.Phase.Ended() {
			return nil, fmt.Errorf("find node %s: it is %s", name, n.Phase)
		}
		return n, nil
	}
	slot, _, err := journal.ParseNodeName(name)
	if err != nil {
		return nil, err
	}
	var found *journal.Node
	for _, n := range s.List(providers.Worker) {
		if n.Slot == slot && n.Machine != nil && !n.Phase.Ended() && (found == nil || found.Leaving() || !n.Leaving() && n.Phase == journal.PhaseJoined) {
			found = n
		}
	}
	if found == nil {
		return nil, fmt.Errorf("find node %s: nobody lives in that slot", name)
	}
	return found, nil
}
