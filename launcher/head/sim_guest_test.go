package head

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshd"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
	"github.com/ephemeral-launcher/launcher/launcher/agent"
	"github.com/ephemeral-launcher/launcher/launcher/agent/machine"
	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

// guest is what runs on one simulated machine.
type guest struct {
	s       *simulation
	machine providers.Machine
	req     providers.CreateRequest
	host    string
	folder  string
	booted  time.Time
	server  *sshd.Server
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	notices chan machine.Notice

	mu       sync.Mutex // guards all below
	sent     map[string]bool
	commands int // what SSH clients have asked to be run
	agent    *control.ConnListener
	node     string
	daemon   *Daemon
	listener *control.ConnListener // the daemon's
	stop     context.CancelFunc    // the daemon's
	stopped  chan struct{}         // closed when that has ended
	hung     bool                  // no other is started

	leaseMu sync.Mutex // guards all below
	lease   *time.Timer
	until   time.Time
}

// boot implements sim.Options.OnBoot.
func (s *simulation) boot(_ context.Context, m providers.Machine, req providers.CreateRequest) (string, error) {
	g := &guest{
		s: s, machine: m, req: req, host: m.ID, folder: s.t.TempDir(), booted: time.Now(), notices: make(chan machine.Notice, 16), sent: map[string]bool{},
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	key := req.BirthHostKey
	s.mu.Lock()
	if s.badKeys > 0 && req.Role == providers.Worker {
		s.badKeys--
		key = nil
	}
	s.mu.Unlock()
	if key == nil {
		pair, err := sshkey.New("")
		if err != nil {
			return "", err
		}
		key = pair.Private
	}
	var err error
	if g.server, err = sshd.New(sshd.Options{HostKey: key, AuthorizedKeys: req.AuthorizedKeys, Runner: sshd.RunnerFunc(g.command), Random: func() float64 { return 0.5 }}); err != nil {
		return "", err
	}
	lis, err := s.net.Host(g.host).Listen(":22")
	if err != nil {
		return "", err
	}
	s.net.SetLatency(g.host, g.host, 30*time.Microsecond)
	g.running.Go(func() { g.server.Serve(g.ctx, lis) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.guests = append(s.guests, g)
	s.byID[m.ID] = g
	return lis.Addr().String(), nil
}

// notice implements sim.Options.OnNotice.
func (s *simulation) notice(id string, deadline time.Time) {
	s.mu.Lock()
	g := s.byID[id]
	s.mu.Unlock()
	if g == nil {
		return
	}
	n := machine.Notice{ID: "notice", Source: "file", Deadline: deadline, Withdrawn: deadline.IsZero()}
	select {
	case g.notices <- n:
	default:
	}
}

// Watch implements machine.NoticeWatcher.
func (g *guest) Watch(ctx context.Context, seen func(machine.Notice)) error {
	for {
		select {
		case n := <-g.notices:
			seen(n)
		case <-ctx.Done():
			return nil
		}
	}
}

// stopped implements sim.Options.OnStop: the machine's power is off. Its connections are reset, or, of a mute one, just say nothing any more.
func (s *simulation) stopped(id, _ string) {
	s.mu.Lock()
	g := s.byID[id]
	s.ended[id] = time.Now()
	mute := s.mute[id]
	s.mu.Unlock()
	if g == nil {
		return
	}
	if mute {
		g.fallSilent(true)
	} else {
		s.net.Crash(g.host)
	}
	g.kill()
}

// fallSilent holds back all that goes to and from the machine.
func (g *guest) fallSilent(on bool) {
	for _, other := range g.s.hosts() {
		if other != g.host {
			g.s.net.Stall(g.host, other, on)
			g.s.net.Stall(other, g.host, on)
		}
	}
}

// hosts are all there have been.
func (s *simulation) hosts() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	hosts := []string{"laptop"}
	for _, g := range s.guests {
		hosts = append(hosts, g.host)
	}
	return hosts
}

// kill ends all that runs on the machine, at once, and waits for it.
func (g *guest) kill() {
	g.cancel()
	g.leaseMu.Lock()
	if g.lease != nil {
		g.lease.Stop()
	}
	g.leaseMu.Unlock()
	g.running.Wait()
}

var (
	scriptHash = regexp.MustCompile(`p=linux-amd64 h=([0-9a-f]{64})`)
	scriptName = regexp.MustCompile(`f=\$d/(\S+)-\$h`)
)

// command is what the machine's shell is for SSH clients: it understands package bootstrap's script, and no other command.
func (g *guest) command(ctx context.Context, c sshd.Command) sshd.Exit {
	stop := context.AfterFunc(ctx, func() { c.Stdin.Close() })
	defer stop()
	ended := context.AfterFunc(g.ctx, func() { c.Stdin.Close() })
	defer ended()
	g.mu.Lock()
	g.commands++
	g.mu.Unlock()
	hash, name := scriptHash.FindStringSubmatch(c.Line), scriptName.FindStringSubmatch(c.Line)
	if hash == nil || name == nil {
		fmt.Fprintf(c.Stderr, "sh: what is %.60q?\n", c.Line)
		return sshd.Exit{Code: 127}
	}
	conn, err := g.bootstrap(c, name[1], hash[1])
	if err != nil {
		fmt.Fprintln(c.Stderr, err)
		return sshd.Exit{Code: 1}
	}
	defer conn.Close()
	severed := context.AfterFunc(ctx, func() { conn.Close() })
	defer severed()
	var in sync.WaitGroup
	in.Go(func() {
		io.Copy(conn, c.Stdin)
		conn.Close()
	})
	io.Copy(c.Stdout, conn)
	c.Stdin.Close()
	in.Wait()
	return sshd.Exit{}
}

// bootstrap speaks the machine's part of package bootstrap's conversation, starts the program if it does not run, and connects to it.
func (g *guest) bootstrap(c sshd.Command, name, hash string) (net.Conn, error) {
	g.mu.Lock()
	have := g.sent[hash]
	g.mu.Unlock()
	if have {
		io.WriteString(c.Stdout, "LAUNCHER-BOOTSTRAP 1 have linux-amd64\n")
	} else if err := g.takeProgram(c, hash); err != nil {
		return nil, err
	}
	join, err := line(c.Stdin)
	if err != nil {
		return nil, err
	}
	var lis *control.ConnListener
	greeting := strings.TrimSuffix(control.ReadyLine, "\n")
	if name == agentName {
		lis, err = g.startAgent(join)
	} else {
		greeting = Greeting + " ready"
		lis, err = g.startDaemon(join)
	}
	if err != nil {
		fmt.Fprintf(c.Stdout, "%s error %v\n", strings.TrimSuffix(greeting, " ready"), err)
		return nil, err
	}
	near, far := sshd.Pipe(0)
	if err := lis.Deliver(far); err != nil {
		near.Close()
		return nil, err
	}
	_, err = io.WriteString(c.Stdout, greeting+"\n")
	return near, err
}

func (g *guest) takeProgram(c sshd.Command, hash string) error {
	io.WriteString(c.Stdout, "LAUNCHER-BOOTSTRAP 1 need linux-amd64\n")
	text, err := line(c.Stdin)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(c.Stdin, data); err != nil {
		return err
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return err
	}
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != hash {
		return fmt.Errorf("corrupt %s", got)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sent[hash] = true
	return nil
}

// line reads up to a newline and no byte further.
func line(r io.Reader) (string, error) {
	var text []byte
	for b := make([]byte, 1); ; text = append(text, b[0]) {
		if _, err := io.ReadFull(r, b); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			return string(text), nil
		}
	}
}

// startAgent starts the agent unless it runs.
func (g *guest) startAgent(line string) (*control.ConnListener, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.agent != nil {
		return g.agent, nil
	}
	join := control.Join{}
	if err := json.Unmarshal([]byte(line), &join); err != nil {
		return nil, err
	}
	join.Folder = filepath.Join(g.folder, "agent")
	store, err := g.s.net.Host(g.host).Listen(":29400")
	if err != nil {
		return nil, err
	}
	lis := control.NewConnListener()
	a, err := agent.New(agent.Options{
		Join: join, Version: "sim", Control: lis, Store: store, Runner: &simRunner{g: g}, Uptime: func() time.Duration { return time.Since(g.booted) + 1 },
		Facts: machine.Facts{BootID: g.machine.ID, CPUs: 2, Addresses: []string{g.host}}, Notices: []machine.NoticeWatcher{g},
		WatchFolder: func(ctx context.Context, _ string, began func(), _ func(string)) error {
			began()
			<-ctx.Done()
			return nil
		},
		PowerOff: func(context.Context) error {
			g.s.cloud.PowerOff(g.machine.ID, "node lease over")
			return nil
		},
		Rekey: func(_ context.Context, key string) error { return g.server.SetHostKey([]byte(key)) },
		Log:   g.s.log(join.Node),
	})
	if err != nil {
		return nil, err
	}
	g.agent, g.node = lis, join.Node
	g.s.cloud.Reached(g.machine.ID)
	g.running.Go(func() { a.Run(g.ctx) })
	return lis, nil
}

func (g *guest) headFolder() string { return filepath.Join(g.folder, "head") }

// startDaemon starts the head's daemon and its parent unless they run.
func (g *guest) startDaemon(line string) (*control.ConnListener, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener != nil {
		return g.listener, nil
	}
	if g.daemon != nil {
		return nil, errors.New("the daemon is being started again")
	}
	join := Join{}
	if err := json.Unmarshal([]byte(line), &join); err != nil {
		return nil, err
	}
	g.s.cloud.Reached(g.machine.ID)
	g.leaseMu.Lock()
	g.until = time.Now().Add(join.NodeLease)
	g.lease = time.AfterFunc(join.NodeLease, func() { g.s.cloud.PowerOff(g.machine.ID, "head lease over") })
	g.leaseMu.Unlock()
	if err := g.serveDaemon(); err != nil {
		return nil, err
	}
	g.running.Go(g.keepDaemon)
	return g.listener, nil
}

// extend renews the machine's lease as the daemon's parent does.
func (g *guest) extend(lease time.Duration) {
	g.leaseMu.Lock()
	defer g.leaseMu.Unlock()
	if until := time.Now().Add(lease); until.After(g.until.Add(lease/20)) && g.ctx.Err() == nil {
		g.until = until
		g.lease.Reset(lease)
	}
}

// serveDaemon starts one daemon process. The caller holds mu.
func (g *guest) serveDaemon() error {
	ctx, cancel := context.WithCancel(g.ctx)
	s := g.s
	s.mu.Lock()
	s.heads++
	s.mu.Unlock()
	d, err := NewDaemon(ctx, Options{
		Folder: g.headFolder(), Runtime: filepath.Join(g.folder, "runtime"), Version: "sim", Network: s.network(g.host), Elapsed: s.elapsed, Log: s.log("head"),
		Extend:   g.extend,
		Provider: func(string, map[string]string) (providers.Provider, error) { return s.provider, nil },
	})
	if err != nil {
		cancel()
		return err
	}
	lis := control.NewConnListener()
	g.daemon, g.listener, g.stop, g.stopped = d, lis, cancel, make(chan struct{})
	stopped := g.stopped
	g.running.Go(func() {
		defer close(stopped)
		ends := context.AfterFunc(d.ctx, cancel)
		defer ends()
		control.Serve(ctx, lis, func(r *grpc.Server) { control.RegisterHeadServer(r, d) })
		d.Wait()
	})
	return nil
}

// keepDaemon starts the daemon again when it ends.
func (g *guest) keepDaemon() {
	for {
		g.mu.Lock()
		stopped := g.stopped
		g.mu.Unlock()
		<-stopped
		g.mu.Lock()
		g.listener = nil
		g.mu.Unlock()
		g.mu.Lock()
		hung := g.hung
		g.mu.Unlock()
		if hung {
			return
		}
		select {
		case <-g.ctx.Done():
			return
		case <-time.After(firstRestart):
		}
		g.mu.Lock()
		if err := g.serveDaemon(); err != nil {
			g.s.t.Errorf("start the daemon again: %v", err)
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
	}
}

// crashDaemon ends the daemon's process; its parent starts another.
func (g *guest) crashDaemon() {
	g.mu.Lock()
	stop, stopped := g.stop, g.stopped
	g.mu.Unlock()
	stop()
	<-stopped
}

// hangDaemon ends the daemon's process for good.
func (g *guest) hangDaemon() {
	g.mu.Lock()
	g.hung = true
	g.mu.Unlock()
	g.crashDaemon()
}

// journal is that of the run this machine's daemon supervises; nil: none.
func (g *guest) journal() *journal.Journal {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.daemon == nil {
		return nil
	}
	if a, err := g.daemon.run(); err == nil {
		return a.journal
	}
	return nil
}
