package head

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/ephemeral-launcher/launcher/bootstrap"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/launcher/planner"
	"github.com/ephemeral-launcher/launcher/launcher/supervisor"
	"github.com/ephemeral-launcher/launcher/providers"
)

// simClient is the laptop: the supervisor until the head takes over, and what follows the head then.
type simClient struct {
	s              *simulation
	folder         string
	journal        *journal.Journal
	keys           *supervisor.KeyFolder
	client, worker sshkey.Pair
	ctx            context.Context
	leave          context.CancelFunc
	running        sync.WaitGroup
	adopted        chan struct{} // closed when the head has answered Adopt
	fetched        chan struct{} // closed when everything is fetched
}

// launch starts the run from the laptop, as `launcher up` does. It returns when the run is planned.
func (s *simulation) launch() *simClient {
	s.t.Helper()
	c := &simClient{s: s, folder: s.t.TempDir(), adopted: make(chan struct{}), fetched: make(chan struct{})}
	c.ctx, c.leave = context.WithCancel(context.Background())
	s.client = c
	var err error
	if c.client, err = sshkey.New("client"); err != nil {
		s.t.Fatal(err)
	}
	if c.worker, err = sshkey.New("worker"); err != nil {
		s.t.Fatal(err)
	}
	c.keys = &supervisor.KeyFolder{Folder: filepath.Join(c.folder, "keys"), Client: c.client.Public, Worker: c.worker.Public}
	// The client key in the journal only makes the tokens this run's own. Keys differ from one time to the next, the simulation must not.
	created := journal.Created{JobName: s.job.Name, Owner: "sim-owner", ClientKey: "client"}
	if created.Job, err = json.Marshal(s.job); err != nil {
		s.t.Fatal(err)
	}
	clock := journal.StartClock(0, s.elapsed)
	if c.journal, err = journal.Create(c.ctx, c.folder, simRun, created, journal.Options{Clock: clock}); err != nil {
		s.t.Fatal(err)
	}
	if err := c.journal.Append(c.ctx, c.plan()); err != nil {
		s.t.Fatal(err)
	}
	if s.job.Head.Supervisor == "client" {
		c.running.Go(c.serveWorld)
	} else {
		c.running.Go(c.handOver)
	}
	return c
}

// plan asks the provider what it has, as `launcher plan` does.
func (c *simClient) plan() journal.Event {
	t, p, block := c.s.t, providers.Retry(c.s.provider, providers.RetryOptions{}), c.s.job.Providers[0]
	t.Helper()
	info, err := p.Info(c.ctx)
	if err != nil {
		t.Fatal(err)
	}
	head, workers := planner.Requests(c.s.job, block)
	source := planner.Source{Block: block, Info: info}
	if source.Head, err = p.Offers(c.ctx, head); err != nil {
		t.Fatal(err)
	}
	if source.Workers, err = p.Offers(c.ctx, workers); err != nil {
		t.Fatal(err)
	}
	ranking := planner.Rank(c.s.job, []planner.Source{source})
	if len(ranking.Candidates) == 0 {
		t.Fatalf("no candidate: %v", ranking.Rejected)
	}
	best := ranking.Candidates[0]
	return journal.NewEvent(journal.RunPlanned, "", 0, journal.Planned{
		Provider: best.Provider, Config: json.RawMessage(best.Config), Region: best.Region, Info: best.Info, Factor: best.Factor, Head: best.Head, Workers: best.Workers,
	})
}

// close is the laptop's lid: nothing of the client runs after it.
func (c *simClient) close() {
	c.leave()
	c.running.Wait()
	c.journal.Close()
}

func (c *simClient) options(mode supervisor.Mode, world supervisor.World) supervisor.Options {
	return supervisor.Options{
		Job: c.s.job, Journal: c.journal, Provider: c.s.provider, Config: c.journal.State().Planned.Config, World: world, Mode: mode, Keys: c.keys,
		Owner: "sim-owner", Log: c.s.log("client"),
	}
}

// simLine is one connection to the head.
type simLine struct {
	ssh  *sshexec.Conn
	grpc *grpc.ClientConn
	api  control.HeadClient
}

func (l *simLine) Close() {
	l.grpc.Close()
	l.ssh.Close()
}

// dial reaches the head, waiting until it is there.
func (c *simClient) dial(ctx context.Context) (*simLine, error) {
	head, err := c.awaitHead(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := c.s.network("laptop").dial(ctx, sshexec.Target{
		Addr: head.Machine.Address, User: head.Machine.User, Keys: [][]byte{c.client.Private}, HostKeys: head.HostKeys(),
	})
	if err != nil {
		return nil, err
	}
	binaries, err := bootstrap.NewBinaries(c.s.binaries)
	if err != nil {
		c.s.t.Fatal(err)
	}
	join, err := json.Marshal(Join{Run: simRun, NodeLease: c.s.job.Limits.NodeLease})
	if err != nil {
		c.s.t.Fatal(err)
	}
	stream, err := bootstrap.Start(ctx, conn, bootstrap.Program{Name: "launcher", Args: "head join", Greeting: Greeting, Join: join, Binaries: binaries})
	if err != nil {
		conn.Close()
		return nil, err
	}
	client, err := control.DialConn(stream)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &simLine{ssh: conn, grpc: client, api: control.NewHeadClient(client)}, nil
}

func (c *simClient) awaitHead(ctx context.Context) (*journal.Node, error) {
	for {
		_, changed := c.journal.Since(1 << 30)
		if n := c.journal.State().Head(); n != nil && n.Machine != nil && n.Machine.Address != "" {
			return n, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// prepare brings the agent's binary to the head and journals that the head is there.
func (c *simClient) prepare(ctx context.Context, l *simLine) error {
	binaries, err := bootstrap.NewBinaries(c.s.binaries)
	if err != nil {
		return err
	}
	hashes, err := binaries.Hashes(agentName)
	if err != nil {
		return err
	}
	data, err := binaries.Gzip(hashes[0].Platform, agentName)
	if err != nil {
		return err
	}
	call, err := l.api.Upload(ctx)
	if err != nil {
		return err
	}
	err = call.Send(&control.UploadChunk{Kind: control.UploadKind_AGENT_BINARY, Name: hashes[0].Platform, Sha256: hashes[0].SHA256, Gzip: true, Size: int64(len(data)), Data: data})
	if err != nil {
		return err
	}
	if _, err = call.CloseAndRecv(); err != nil {
		return err
	}
	return c.journal.Append(ctx, journal.NewEvent(journal.NodeReachable, journal.HeadName, 0, journal.Reachable{}), journal.NewEvent(journal.NodeJoined, journal.HeadName, 0, journal.Joined{}))
}

// handOver supervises until the head is ready, asks it to take over, and follows it.
func (c *simClient) handOver() {
	ready := make(chan struct{})
	var line *simLine
	c.running.Go(func() {
		for c.ctx.Err() == nil {
			l, err := c.dial(c.ctx)
			if err == nil {
				if err = c.prepare(c.ctx, l); err == nil {
					line = l
					close(ready)
					return
				}
				l.Close()
			}
			c.s.log("client").Info("head not ready", "error", err)
			pause(c.ctx, time.Second)
		}
	})
	opts := c.options(supervisor.ModeLaunch, launchWorld{c})
	opts.HandOver = ready
	outcome, err := supervisor.New(opts).Run(c.ctx)
	if err != nil || outcome != supervisor.HandingOver {
		if err != nil && c.ctx.Err() == nil {
			c.s.t.Errorf("launch: %v", err)
		}
		return
	}
	if err := c.journal.Append(c.ctx, journal.NewEvent(journal.HandoverOffered, "", 0, journal.Handover{Epoch: 2})); err != nil {
		c.s.t.Errorf("offer: %v", err)
		return
	}
	c.follow(line)
}

// follow asks the head to take over and copies its journal, over as many connections as it takes, until all is fetched.
func (c *simClient) follow(line *simLine) {
	for c.ctx.Err() == nil {
		if line != nil {
			err := c.session(line)
			line.Close()
			if err == nil {
				return
			}
			c.s.log("client").Info("line ended", "error", err)
			pause(c.ctx, 250*time.Millisecond)
		}
		dialing, cancel := context.WithTimeout(c.ctx, time.Minute)
		line, _ = c.dial(dialing)
		cancel()
	}
}

func (c *simClient) session(line *simLine) error {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	if err := c.adopt(ctx, line.api); err != nil {
		return err
	}
	call, err := line.api.Follow(ctx, &control.FollowRequest{After: uint64(c.journal.State().Events)})
	if err != nil {
		return err
	}
	for {
		if s := c.journal.State(); s.Finished != nil && !s.Fetched {
			if _, err := line.api.Order(ctx, &control.OrderRequest{Body: &control.OrderRequest_Fetched{Fetched: true}}); err != nil {
				return err
			}
			close(c.fetched)
			return nil
		}
		batch, err := call.Recv()
		if err != nil {
			return err
		}
		for _, b := range batch.EventsJson {
			var e journal.Event
			if err := json.Unmarshal(b, &e); err != nil {
				return err
			}
			if err := c.journal.AppendStamped(ctx, e); err != nil {
				return err
			}
		}
	}
}

// adopt asks the head to take over, unless it has.
func (c *simClient) adopt(ctx context.Context, api control.HeadClient) error {
	status, err := api.Status(ctx, &control.StatusRequest{})
	if err != nil {
		return err
	}
	if !status.Adopted {
		if _, err := api.Adopt(ctx, c.adoption()); err != nil {
			return err
		}
		if lost := c.s.loseAdoptReply; lost != nil {
			select {
			case <-lost:
			default:
				close(lost)
				return errors.New("the reply is lost")
			}
		}
	}
	select {
	case <-c.adopted:
	default:
		close(c.adopted)
	}
	return nil
}

// adoption is what the head is sent to take over.
func (c *simClient) adoption() *control.AdoptRequest {
	s := c.journal.State()
	var tokens []string
	for _, n := range s.Nodes {
		if n.HostKey == "" && !n.Phase.Ended() {
			tokens = append(tokens, n.Intent.Token)
		}
	}
	births, err := c.keys.All(tokens)
	if err != nil {
		c.s.t.Error(err)
	}
	req := &control.AdoptRequest{Setup: c.setup(2), Provider: "sim", ProviderConfigJson: s.Planned.Config, BirthKeysPem: births, Owner: "sim-owner", AtNs: int64(c.journal.Now())}
	events, _ := c.journal.Since(0)
	for _, e := range events {
		b, err := json.Marshal(e)
		if err != nil {
			c.s.t.Error(err)
		}
		req.EventsJson = append(req.EventsJson, b)
	}
	return req
}

func (c *simClient) setup(epoch uint64) *control.RunSetup {
	job, err := json.Marshal(c.s.job)
	if err != nil {
		c.s.t.Error(err)
	}
	info, err := json.Marshal(c.journal.State().Planned.Info)
	if err != nil {
		c.s.t.Error(err)
	}
	return &control.RunSetup{
		Run: simRun, Epoch: epoch, JobJson: job, InfoJson: info, WorkerKeyPem: c.worker.Private, AuthorizedKeys: []string{c.client.Public, c.worker.Public},
	}
}

// order gives the head an order over a connection of its own.
func (c *simClient) order(o *control.OrderRequest) error {
	ctx, cancel := context.WithTimeout(c.ctx, time.Minute)
	defer cancel()
	line, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer line.Close()
	_, err = line.api.Order(ctx, o)
	return err
}

// launchWorld is the World before the hand-over: nothing that could be drained or told.
type launchWorld struct{ c *simClient }

// SetRoster implements supervisor.World.
func (launchWorld) SetRoster(supervisor.Roster) {}

// Gone implements supervisor.World.
func (w launchWorld) Gone(node, evidence string) {
	w.append(journal.NewEvent(journal.NodeLost, node, 0, journal.Lost{Cause: evidence, Evidence: true}))
}

// Drain implements supervisor.World.
func (w launchWorld) Drain(journal.Cause) { w.append(journal.NewEvent(journal.RunDrained, "", 0, nil)) }

func (w launchWorld) append(e journal.Event) {
	if err := w.c.journal.Append(w.c.ctx, e); err != nil && !errors.Is(err, journal.ErrCannotFollow) {
		w.c.s.t.Error(err)
	}
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// living are the run's machines that the cloud still has.
func (s *simulation) living(role providers.Role) (ids []string) {
	for _, r := range s.cloud.World() {
		if r.Kind == providers.KindMachine && r.Alive() && (role == "" || r.Tags[providers.TagRole] == string(role)) {
			ids = append(ids, r.ID)
		}
	}
	return ids
}
