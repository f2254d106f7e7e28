package launcher

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"google.golang.org/grpc"

	"github.com/ephemeral-launcher/launcher/bootstrap"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshd"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/head"
	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/sim"
)

// site is a whole world in memory: a simulated cloud whose machines have SSH servers, real heads, and agents that play a short job.
type site struct {
	t     *testing.T
	cloud *sim.Cloud
	// work is how long the rank processes take.
	work    time.Duration
	running sync.WaitGroup

	mu       sync.Mutex // guards all below
	machines map[string]*machine
	conns    map[*sshexec.Conn]*machine
}

// machine is one machine's guest.
type machine struct {
	site   *site
	ctx    context.Context
	server *sshd.Server
	lis    *control.ConnListener
	// silent: it takes connections no more, and answers none.
	silent bool
}

// rekeying is the simulated cloud with machines that are born with our key.
type rekeying struct{ *sim.Cloud }

// Info implements providers.Provider.
func (r rekeying) Info(ctx context.Context) (providers.Info, error) {
	info, err := r.Cloud.Info(ctx)
	info.RotatesHostKeys = true
	return info, err
}

func newSite(t *testing.T) *site {
	s := &site{t: t, work: 50 * time.Millisecond, machines: map[string]*machine{}, conns: map[*sshexec.Conn]*machine{}}
	s.cloud = sim.New(sim.Options{Seed: 1, Sides: []sim.Side{}, OnBoot: s.boot})
	t.Cleanup(s.close)
	return s
}

// close ends all machines; it may be called again.
func (s *site) close() {
	s.cloud.Close()
	s.running.Wait()
}

// boot starts a machine's guest.
func (s *site) boot(ctx context.Context, m providers.Machine, req providers.CreateRequest) (string, error) {
	guest := &machine{site: s, ctx: ctx, lis: control.NewConnListener()}
	server, err := sshd.New(sshd.Options{HostKey: req.BirthHostKey, AuthorizedKeys: req.AuthorizedKeys, Runner: sshd.RunnerFunc(guest.command)})
	if err != nil {
		return "", err
	}
	guest.server = server
	var register func(*grpc.Server)
	if req.Role == providers.Head {
		folder := s.t.TempDir()
		d, err := head.NewDaemon(ctx, head.Options{
			Folder: folder, Runtime: filepath.Join(folder, "runtime"), Network: s.network(),
			Provider: func(string, map[string]string) (providers.Provider, error) { return rekeying{s.cloud}, nil },
		})
		if err != nil {
			return "", err
		}
		register = func(g *grpc.Server) { control.RegisterHeadServer(g, d) }
		s.running.Go(func() {
			<-ctx.Done()
			d.Wait()
		})
	} else {
		a := &agent{work: s.work, instance: uint64(time.Now().UnixNano()), news: make(chan struct{})}
		register = func(g *grpc.Server) { control.RegisterAgentServer(g, a) }
	}
	s.running.Go(func() { _ = control.Serve(ctx, guest.lis, register) })
	s.mu.Lock()
	defer s.mu.Unlock()
	address := m.ID + ":22"
	s.machines[address] = guest
	s.cloud.Reached(m.ID)
	return address, nil
}

// command plays what the client runs on a machine by name: the change of its host key.
func (m *machine) command(_ context.Context, c sshd.Command) sshd.Exit {
	if c.Line != rekeyCommand {
		_, _ = fmt.Fprintln(c.Stdout, "ran", c.Line)
		return sshd.Exit{Code: 3}
	}
	key, err := io.ReadAll(c.Stdin)
	if err == nil {
		err = m.server.SetHostKey(key)
	}
	if err != nil {
		_, _ = fmt.Fprintln(c.Stderr, err)
		return sshd.Exit{Code: 1}
	}
	return sshd.Exit{}
}

// network reaches the machines of the site.
func (s *site) network() head.Network {
	return head.Network{
		Dial: func(ctx context.Context, t sshexec.Target) (*sshexec.Conn, error) {
			s.mu.Lock()
			m := s.machines[t.Addr]
			down := m == nil || m.silent || m.ctx.Err() != nil
			s.mu.Unlock()
			if down {
				return nil, &sshexec.Error{Class: sshexec.NotUp, Addr: t.Addr, Err: syscall.ECONNREFUSED}
			}
			t.Dialer = func(context.Context, string, string) (net.Conn, error) {
				near, far := sshd.Pipe(0)
				s.running.Go(func() { _ = m.server.ServeConn(m.ctx, far) })
				return near, nil
			}
			conn, err := sshexec.Dial(ctx, t)
			if err == nil {
				s.mu.Lock()
				s.conns[conn] = m
				s.mu.Unlock()
			}
			return conn, err
		},
		Start: func(_ context.Context, conn *sshexec.Conn, _ bootstrap.Program) (net.Conn, error) {
			s.mu.Lock()
			m := s.conns[conn]
			s.mu.Unlock()
			near, far := sshd.Pipe(0)
			s.running.Go(func() { // the channel ends with its connection
				<-conn.Done()
				near.Close()
			})
			return near, m.lis.Deliver(far)
		},
	}
}

// silence makes the run's head unreachable, though its machine lives.
func (s *site) silence(address string) {
	s.mu.Lock()
	m := s.machines[address]
	m.silent = true
	var cut []*sshexec.Conn
	for c, on := range s.conns {
		if on == m {
			cut = append(cut, c)
		}
	}
	s.mu.Unlock()
	for _, c := range cut {
		c.Close()
	}
}

// options are those of a caller with a state folder of its own.
func (s *site) options(home string) Options {
	binary := []byte("#!/bin/false\n")
	sum := fmt.Sprintf("%x", sha256.Sum256(binary))
	return Options{
		Home: home, RunID: "run-1", Providers: map[string]providers.Provider{"sim": rekeying{s.cloud}}, Network: s.network(), CallerCIDRs: []string{"198.51.100.7/32"},
		Env: func(string) (string, bool) { return "", false },
		Binaries: fstest.MapFS{
			bootstrap.SumsFile:            {Data: []byte(sum + "  linux-amd64/launcher\n" + sum + "  linux-amd64/launcher-agent\n")},
			"linux-amd64/" + program:      {Data: binary},
			"linux-amd64/" + agentProgram: {Data: binary},
		},
	}
}

func (s *site) job(supervisor string) *Job {
	s.t.Helper()
	job, diags := jobspec.Parse([]byte(fmt.Sprintf(`job "j" {
		provider "sim" {}
		head { supervisor = %q }
		workers { count = 2 }
		preemption { grace = "1s" }
		run "ranks" { command = "train" }
	}`, supervisor)), "job.hcl", jobspec.Options{})
	if diags.HasErrors() {
		s.t.Fatal(diags)
	}
	return job
}

// mustBeGone fails the test where anything of a run lives.
func (s *site) mustBeGone() {
	s.t.Helper()
	for _, r := range s.cloud.World() {
		if r.Alive() {
			s.t.Errorf("%s %s lives", r.Kind, r.ID)
		}
	}
}

// agent plays a worker's agent: rank processes that write a line and end well after a while. It lives as long as its machine.
type agent struct {
	control.UnimplementedAgentServer
	work     time.Duration
	instance uint64

	mu         sync.Mutex // guards all below
	reports    []*control.Report
	news       chan struct{} // closed and replaced at each report
	generation uint64
	state      control.GenerationState
	start      *control.Start
	logged     []*control.LogChunk
}

func (a *agent) report(r *control.Report) {
	r.Number = uint64(len(a.reports) + 1)
	a.reports = append(a.reports, r)
	close(a.news)
	a.news = make(chan struct{})
}

// end reports the processes' end. The caller holds mu.
func (a *agent) end(generation uint64, code int32, phase control.Phase) {
	if a.generation != generation || a.state != control.GenerationState_RUNNING {
		return
	}
	a.state = control.GenerationState_ENDED
	for i := range a.start.Procs {
		a.report(&control.Report{Body: &control.Report_Exited{Exited: &control.Exited{Generation: generation, LocalRank: i, Rank: a.start.FirstRank + i, Code: code, Phase: phase}}})
	}
	a.report(&control.Report{Body: &control.Report_Ended{Ended: &control.Ended{Generation: generation}}})
}

func (a *agent) order(o *control.Order) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch b := o.Body.(type) {
	case *control.Order_Renew:
		close(a.news) // Session acknowledges
		a.news = make(chan struct{})
	case *control.Order_Rekey:
		a.report(&control.Report{Body: &control.Report_Rekeyed{Rekeyed: &control.Rekeyed{Id: b.Rekey.Id}}})
	case *control.Order_Start:
		generation := b.Start.World.Generation
		if generation <= a.generation {
			return
		}
		a.generation, a.state, a.start = generation, control.GenerationState_RUNNING, b.Start
		a.logged = append(a.logged, &control.LogChunk{
			Stream: &control.LogStream{Generation: generation, Rank: b.Start.FirstRank, Kind: control.LogKind_STDOUT},
			Data:   []byte(fmt.Sprintf("rank %d of %d\n", b.Start.FirstRank, b.Start.WorldSize)), End: true,
		})
		close(a.news)
		a.news = make(chan struct{})
		time.AfterFunc(a.work, func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.end(generation, 0, control.Phase(0))
		})
	case *control.Order_End:
		a.end(b.End.Generation, -1, control.Phase_TERMINATED)
	}
}

// Session implements control.AgentServer.
func (a *agent) Session(call grpc.BidiStreamingServer[control.Order, control.Report]) error {
	first, err := call.Recv()
	if err != nil {
		return err
	}
	sent := first.Received
	a.mu.Lock()
	if first.GetHello().GetInstance() != a.instance {
		sent = 0
	}
	hello := &control.HelloReport{Instance: a.instance, Cpus: 1, Generation: a.generation, State: a.state}
	a.mu.Unlock()
	if err := call.Send(&control.Report{Body: &control.Report_Hello{Hello: hello}}); err != nil {
		return err
	}
	received := make(chan error, 1)
	go func() {
		for {
			o, err := call.Recv()
			if err != nil {
				received <- err
				return
			}
			a.order(o)
		}
	}()
	for {
		a.mu.Lock()
		reports, news := a.reports[sent:], a.news
		a.mu.Unlock()
		if err := call.Send(&control.Report{StampNs: time.Now().UnixNano(), Body: &control.Report_Ack{Ack: &control.Ack{}}}); err != nil {
			return err
		}
		for _, r := range reports {
			if err := call.Send(r); err != nil {
				return err
			}
			sent++
		}
		select {
		case <-news:
		case err := <-received:
			return err
		}
	}
}

// Tunnel implements control.AgentServer.
func (a *agent) Tunnel(call grpc.BidiStreamingServer[control.Frame, control.Frame]) error {
	<-call.Context().Done()
	return nil
}

// Logs implements control.AgentServer.
func (a *agent) Logs(req *control.LogsRequest, call grpc.ServerStreamingServer[control.LogChunk]) error {
	sent := len(req.After) // each stream is one chunk
	for {
		a.mu.Lock()
		chunks, news := a.logged[min(sent, len(a.logged)):], a.news
		a.mu.Unlock()
		for _, c := range chunks {
			if err := call.Send(c); err != nil {
				return err
			}
			sent++
		}
		select {
		case <-news:
		case <-call.Context().Done():
			return nil
		}
	}
}
