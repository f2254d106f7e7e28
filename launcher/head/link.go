package head

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/ephemeral-launcher/launcher/bootstrap"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/control/tunnel"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/launcher/supervisor"
)

const (
	// bootstrapTimeout bounds one try to bring the agent up, the transfer of its binary included.
	bootstrapTimeout = 3 * time.Minute
	// redialPause keeps a node that drops every connection at once from being dialled in a circle.
	redialPause = 500 * time.Millisecond
)

// link is one worker: its connection, and what it is to be told. Its run is one goroutine that dials, bootstraps and serves the
// session, over and over until it is stopped.
type link struct {
	world         *World
	name          string
	slot, attempt int
	mux           *tunnel.Mux
	quit          context.CancelFunc
	ctx           context.Context
	member        bool // owned by the loop: the core has been told that it joined

	mu     sync.Mutex // guards all below
	node   supervisor.RosterNode
	start  *control.Order // the newest Start, sent again on each connection
	end    *control.Order // the newest End, likewise
	queue  []*control.Order
	client control.AgentClient // nil while not connected
	begin  func()              // starts a goroutine that calls send; nil while not connected
	sends  bool                // it runs

	// Reports are numbered per agent instance; what was taken over is said with each order.
	instance uint64
	received uint64
	stamp    int64 // newest Report.stamp_ns
	seq      uint64

	greeted bool // this head has heard the agent before
	setup   setupState
	// logs holds how far each stream was taken over.
	logs map[streamKey]uint64
}

func newLink(w *World, n supervisor.RosterNode) *link {
	ctx, quit := context.WithCancel(context.Background())
	k := &link{world: w, name: n.Name, slot: n.Slot, attempt: n.Attempt, node: n, ctx: ctx, quit: quit, logs: w.logs.positions(n.Name)}
	k.mux = tunnel.NewAcceptorFunc(k.accept)
	return k
}

func (k *link) update(n supervisor.RosterNode) {
	k.mu.Lock()
	defer k.mu.Unlock()
	keys := k.node.HostKeys
	k.node = n
	if len(n.HostKeys) == 0 {
		k.node.HostKeys = keys
	}
}

// stop ends the link; its node is not ours any more.
func (k *link) stop() { k.quit() }

// order queues an order. Starts and ends are kept and sent again on each new connection.
func (k *link) order(o *control.Order) {
	k.mu.Lock()
	switch o.Body.(type) {
	case *control.Order_Start:
		k.start = o
	case *control.Order_End:
		k.end = o
	}
	k.queue = append(k.queue, o)
	k.poke()
	k.mu.Unlock()
}

// poke has the queue sent. There is a goroutine for it only while there is something to send: most of the time a thousand links have
// nothing. Callers hold mu.
func (k *link) poke() {
	if k.begin != nil && !k.sends {
		k.sends = true
		k.begin()
	}
}

// beat queues a renewal of both leases.
func (k *link) beat(lease time.Duration) {
	k.mu.Lock()
	connected := k.client != nil
	k.mu.Unlock()
	if connected {
		k.order(&control.Order{Body: &control.Order_Renew{Renew: k.renew(lease)}})
	}
}

func (k *link) renew(lease time.Duration) *control.Renew {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seq++
	return &control.Renew{Seq: k.seq, HeardStampNs: k.stamp, NodeLeaseMs: lease.Milliseconds(), MemberLeaseMs: k.world.Job.Elastic.LostAfter.Milliseconds()}
}

// run keeps the node connected until it is stopped or ctx ends.
func (k *link) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, k.quit)
	defer stop()
	defer k.quit()
	defer k.mux.Close()
	for k.ctx.Err() == nil {
		began := time.Now()
		err := k.connect(k.ctx)
		if k.ctx.Err() != nil {
			return
		}
		k.world.Log.Info("link ended", "node", k.name, "error", err)
		k.suspect(err)
		if sshexec.Classify(err) == sshexec.HostKeyMismatch || errors.Is(err, bootstrap.ErrPlatform) {
			// No waiting cures that: the node is given up.
			k.world.post(func(l *worldLoop) { l.lose(k.name, err.Error(), false) })
			return
		}
		if wait := redialPause - time.Since(began); wait > 0 {
			select {
			case <-k.ctx.Done():
			case <-time.After(wait):
			}
		}
	}
}

func (k *link) suspect(err error) {
	k.mu.Lock()
	greeted := k.greeted
	k.mu.Unlock()
	if greeted {
		k.world.post(func(l *worldLoop) {
			if l.links[k.name] == k {
				l.record(nil, journal.NewEvent(journal.NodeSuspect, k.name, 0, journal.Suspected{Reason: err.Error()}))
			}
		})
	}
}

// contact is one connection to an agent, with the calls that are open as long as it.
type contact struct {
	quit    context.CancelFunc // ends the calls
	conn    *sshexec.Conn
	client  *grpc.ClientConn
	agent   control.AgentClient
	session grpc.BidiStreamingClient[control.Order, control.Report]
	tunnel  grpc.BidiStreamingClient[control.Frame, control.Frame]
	logs    grpc.ServerStreamingClient[control.LogChunk] // nil: they cannot be followed
	hello   *control.HelloReport
}

func (c *contact) close() {
	c.quit()
	if c.client != nil {
		c.client.Close()
	}
	if c.conn != nil {
		c.conn.Close()
	}
}

// connect dials, bootstraps and serves one connection until it ends.
func (k *link) connect(ctx context.Context) error {
	ctx, quit := context.WithCancel(ctx)
	c := &contact{quit: quit}
	defer c.close()
	var opening sync.WaitGroup
	var err error
	// On a goroutine that ends: the stack that it takes would stay with this one, and with those of a thousand links.
	opening.Go(func() { err = k.open(ctx, c) })
	opening.Wait()
	if err != nil {
		return err
	}
	return k.serve(ctx, c)
}

// open makes a contact. What it has made when it fails is in c, too.
func (k *link) open(ctx context.Context, c *contact) (err error) {
	k.mu.Lock()
	node := k.node
	k.mu.Unlock()
	c.conn, err = k.world.Network.dial(ctx, sshexec.Target{
		Addr: node.ClusterAddress, User: node.User, Keys: [][]byte{k.world.WorkerKey}, HostKeys: node.HostKeys,
	})
	if err != nil {
		return err
	}
	k.world.post(func(l *worldLoop) {
		l.record(nil, journal.NewEvent(journal.NodeReachable, node.Name, 0, journal.Reachable{Address: node.ClusterAddress}))
	})
	stream, err := k.bootstrap(ctx, c.conn, node)
	if err != nil {
		return err
	}
	if c.client, err = control.DialConn(stream); err != nil {
		return err
	}
	c.agent = control.NewAgentClient(c.client)
	if c.session, err = c.agent.Session(ctx); err != nil {
		return fmt.Errorf("open session: %w", err)
	}
	if c.hello, err = k.greet(c.session); err != nil {
		return err
	}
	if c.tunnel, err = c.agent.Tunnel(ctx); err != nil {
		return fmt.Errorf("open tunnel: %w", err)
	}
	if c.logs, err = k.openLogs(ctx, c.agent); err != nil {
		k.world.Log.Warn("follow logs", "node", k.name, "error", err)
		c.logs = nil
	}
	return nil
}

func (k *link) bootstrap(ctx context.Context, conn *sshexec.Conn, node supervisor.RosterNode) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, bootstrapTimeout)
	defer cancel()
	join, err := json.Marshal(control.Join{
		Run: k.world.RunID, Node: node.Name, Slot: uint32(node.Slot), Attempt: uint32(node.Attempt),
		NodeLease: k.world.Job.Limits.NodeLease, MemberLease: k.world.Job.Elastic.LostAfter, NoticeSource: k.world.Info.NoticeSource,
	})
	if err != nil {
		return nil, err
	}
	return k.world.Network.start(ctx, conn, bootstrap.Program{
		Name: "launcher-agent", Args: "join", Greeting: "LAUNCHER-AGENT 1", Join: join, Binaries: k.world.Binaries,
	})
}

// serve runs the calls of one connection: the session, and beside it the tunnel, the logs and the preparation of the node.
func (k *link) serve(ctx context.Context, c *contact) error {
	var beside sync.WaitGroup
	defer beside.Wait()
	defer c.quit()
	defer func() {
		k.mu.Lock()
		k.client, k.begin = nil, nil
		k.mu.Unlock()
	}()
	failed := make(chan error, 4) // one of each below
	renewal := &control.Order{Body: &control.Order_Renew{Renew: k.renew(k.world.Lease())}}
	k.mu.Lock()
	k.client = c.agent
	// The hello's renewal counted from what was heard before the connection broke. A generation must not start on what was left of that.
	k.queue = []*control.Order{renewal}
	if k.start != nil {
		k.queue = append(k.queue, k.start)
	}
	if k.end != nil {
		k.queue = append(k.queue, k.end)
	}
	k.sends = false
	k.begin = func() {
		beside.Go(func() {
			if err := k.send(c.session); err != nil {
				failed <- err
			}
		})
	}
	k.poke()
	k.mu.Unlock()
	beside.Go(func() { failed <- k.receive(c.session) })
	beside.Add(1)
	k.mux.Start(ctx, c.tunnel, func(err error) {
		failed <- err
		beside.Done()
	})
	if c.logs != nil {
		beside.Go(func() { k.followLogs(c.logs) })
	}
	p := &preparation{link: k, agent: c.agent, hello: c.hello, pinned: c.conn.PinnedKey()}
	beside.Go(func() {
		if err := p.run(ctx); err != nil {
			failed <- err
		}
	})
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// greet says hello and takes in what the agent says of itself.
func (k *link) greet(session grpc.BidiStreamingClient[control.Order, control.Report]) (*control.HelloReport, error) {
	lease := k.world.Lease()
	renew := k.renew(lease)
	k.mu.Lock()
	order := &control.Order{Received: k.received, Body: &control.Order_Hello{Hello: &control.HelloOrder{
		Run: k.world.RunID, Node: k.name, Slot: uint32(k.slot), Attempt: uint32(k.attempt), Epoch: k.world.Epoch, Instance: k.instance, Renew: renew,
	}}}
	k.mu.Unlock()
	if err := session.Send(order); err != nil {
		return nil, fmt.Errorf("greet agent: %w", err)
	}
	report, err := session.Recv()
	if err != nil {
		return nil, fmt.Errorf("greet agent: %w", err)
	}
	hello := report.GetHello()
	if hello == nil {
		return nil, fmt.Errorf("greet agent: its first report is %T", report.Body)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.instance != hello.Instance {
		k.instance, k.received = hello.Instance, 0
		clear(k.logs)
	}
	k.stamp, k.greeted = report.StampNs, true
	return hello, nil
}

// send sends queued orders, each with how far reports were taken over, until there are none.
func (k *link) send(session grpc.BidiStreamingClient[control.Order, control.Report]) error {
	for {
		k.mu.Lock()
		queue, received := k.queue, k.received
		k.queue = nil
		k.sends = len(queue) > 0
		k.mu.Unlock()
		if len(queue) == 0 {
			return nil
		}
		for _, o := range queue {
			o := &control.Order{Received: received, Body: o.Body}
			if err := session.Send(o); err != nil {
				return fmt.Errorf("send order: %w", err)
			}
		}
	}
}

// receive hands reports to the world's loop.
func (k *link) receive(session grpc.BidiStreamingClient[control.Order, control.Report]) error {
	for {
		r, err := session.Recv()
		if err != nil {
			return fmt.Errorf("receive report: %w", err)
		}
		k.mu.Lock()
		k.stamp = max(k.stamp, r.StampNs)
		news := r.Number == 0 || r.Number > k.received
		if r.Number > 0 && news {
			k.received = r.Number
		}
		k.mu.Unlock()
		if news {
			k.world.post(func(l *worldLoop) { l.report(k, r) })
		}
	}
}

// accept serves the store to a process of this node. A stream of another generation than the running one is reset: what hangs on in a
// process that is being ended must not reach the new world's store.
func (k *link) accept(c *tunnel.Conn) {
	k.world.post(func(l *worldLoop) {
		if !l.formed || c.Label() != uint64(l.generation.Generation) || k.ctx.Err() != nil {
			c.Reset()
			return
		}
		server := l.server
		l.start(func() {
			if err := server.ServeConn(k.ctx, c, k.name); err != nil {
				l.Log.Debug("store connection", "node", k.name, "error", err)
			}
		})
	})
}

// agent returns the client of the living connection.
func (k *link) agent() (control.AgentClient, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.client == nil {
		return nil, fmt.Errorf("reach %s: not connected", k.name)
	}
	return k.client, nil
}
