package head

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshd"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/sim"
)

const simRun = "sim-1"

// simulation is a whole launch in virtual time: a simulated cloud whose machines are real SSH servers on a network in memory, and in them the real
// head daemon and real agents. Only processes, disks' watchers and the machines' power are fakes.
//
//	client (host laptop) ── ssh ──▶ head machine: Daemon, supervisor, World, store ── ssh each ──▶ worker machines: agents, rank goroutines
//	         └────────────────────────────── sim.Cloud ◀──────────────────────────────┘
type simulation struct {
	t        *testing.T
	seed     uint64
	job      *jobspec.Job
	began    time.Time
	net      *sshd.Net
	cloud    *sim.Cloud
	provider *simProvider
	binaries fs.FS
	program  program
	client   *simClient
	// done is closed by finish: programs that wait for it exit 0.
	done chan struct{}
	// looks: at the end somebody looks with the provider's credentials, as `launcher down` does, and deletes what hung on the last machine.
	looks bool
	// fail makes one rank process that listens fail.
	fail chan struct{}
	// loseAdoptReply, if set, is closed when the head has taken over, and the client does not hear of it.
	loseAdoptReply chan struct{}
	finished       sync.Once

	mu      sync.Mutex // guards all below
	guests  []*guest   // in order of boot
	byID    map[string]*guest
	ended   map[string]time.Time // machines by when they ended
	spans   []*span
	badKeys int // so many of the next worker machines come up with a host key of their own
	mute    map[string]bool
	heads   int // daemons started
}

// simProvider is the cloud as launcher sees it; its machines want host keys of their own.
type simProvider struct {
	*sim.Cloud

	mu      sync.Mutex // guards creates
	creates []createCall
}

type createCall struct {
	at    time.Time
	role  providers.Role
	count int
}

// Info implements providers.Provider.
func (p *simProvider) Info(ctx context.Context) (providers.Info, error) {
	info, err := p.Cloud.Info(ctx)
	info.RotatesHostKeys = true
	return info, err
}

// Create implements providers.Provider.
func (p *simProvider) Create(ctx context.Context, req providers.CreateRequest) (providers.CreateResult, error) {
	p.mu.Lock()
	p.creates = append(p.creates, createCall{time.Now(), req.Role, req.Count})
	p.mu.Unlock()
	return p.Cloud.Create(ctx, req)
}

// createdSince lists the create calls since then.
func (p *simProvider) createdSince(t time.Time) []createCall {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.creates, func(c createCall) bool { return !c.at.Before(t) })
	if i < 0 {
		return nil
	}
	return slices.Clone(p.creates[i:])
}

// simOptions are what a story changes.
type simOptions struct {
	seed  uint64
	hcl   string
	cloud func(*sim.Options)
	// program is what each rank process does [trainUntilDone].
	program program
}

// simulate runs story in a bubble of virtual time, and checks at its end what always has to hold.
func simulate(t *testing.T, o simOptions, story func(s *simulation)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulation(t, o)
		defer s.close()
		story(s)
	})
}

func newSimulation(t *testing.T, o simOptions) *simulation {
	t.Helper()
	if o.seed == 0 {
		o.seed = 1
	}
	job, diags := jobspec.Parse([]byte(o.hcl), filepath.Join(t.TempDir(), "job.hcl"), jobspec.Options{})
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	s := &simulation{
		t: t, seed: o.seed, job: job, began: time.Now(), net: sshd.NewNet(o.seed, 2*time.Millisecond, 30*time.Millisecond), binaries: simBinaries(),
		program: o.program, done: make(chan struct{}), fail: make(chan struct{}), byID: map[string]*guest{}, ended: map[string]time.Time{}, mute: map[string]bool{},
	}
	if s.program == nil {
		s.program = trainUntilDone
	}
	opts := sim.Options{
		Seed: o.seed, NoticeSource: "file", Latency: sim.Dist{Median: 100 * time.Millisecond, Sigma: 0.3, Max: time.Second},
		CreateLatency: sim.Dist{Median: 800 * time.Millisecond, Sigma: 0.3, Max: 5 * time.Second}, Boot: sim.Dist{Median: 25 * time.Second, Sigma: 0.2, Max: time.Minute},
		DeleteTime: sim.Dist{Median: 5 * time.Second, Sigma: 0.3, Max: 30 * time.Second},
		OnBoot:     s.boot, OnNotice: s.notice, OnStop: s.stopped,
	}
	if o.cloud != nil {
		o.cloud(&opts)
	}
	s.cloud = sim.New(opts)
	s.provider = &simProvider{Cloud: s.cloud}
	return s
}

// simBinaries are two programs that nothing ever runs: what matters is that they arrive.
func simBinaries() fs.FS {
	files, sums := fstest.MapFS{}, ""
	for _, name := range []string{"launcher", agentName} {
		data := []byte("the program " + name)
		sum := sha256.Sum256(data)
		files["linux-amd64/"+name] = &fstest.MapFile{Data: data}
		sums += hex.EncodeToString(sum[:]) + "  linux-amd64/" + name + "\n"
	}
	files[bootstrap.SumsFile] = &fstest.MapFile{Data: []byte(sums)}
	return files
}

// elapsed is the source of every run clock: no machine is ever suspended here.
func (s *simulation) elapsed() time.Duration { return time.Since(s.began) + time.Hour }

func (s *simulation) log(where string) *slog.Logger {
	if !testing.Verbose() {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(simLog{s, where}, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

type simLog struct {
	s     *simulation
	where string
}

// Write implements io.Writer.
func (l simLog) Write(p []byte) (int, error) {
	l.s.t.Logf("%10.3f %-8s %s", time.Since(l.s.began).Seconds(), l.where, p)
	return len(p), nil
}

// network is how somebody on a host reaches machines.
func (s *simulation) network(host string) Network {
	return Network{Dial: func(ctx context.Context, t sshexec.Target) (*sshexec.Conn, error) {
		t.Dialer = s.net.Host(host).Dial
		h := fnv.New64a()
		fmt.Fprint(h, host, t.Addr, time.Since(s.began))
		return sshexec.DialWhenUp(ctx, t, sshexec.Pacing{Random: rand.New(rand.NewPCG(s.seed, h.Sum64())).Float64})
	}}
}

// finish lets programs that wait for it exit 0.
func (s *simulation) finish() { s.finished.Do(func() { close(s.done) }) }

// close ends what still runs.
func (s *simulation) close() {
	if s.client != nil {
		s.client.close()
	}
	s.cloud.Close()
	s.mu.Lock()
	guests := s.guests
	s.mu.Unlock()
	for _, g := range guests {
		g.kill()
	}
}

// audit looks at the ledger for what the run left behind.
func (s *simulation) audit() sim.RunReport {
	return sim.Audit(s.cloud.Ledger(), time.Now()).Run(simRun)
}

// now is the virtual time since the beginning.
func (s *simulation) now() time.Duration { return time.Since(s.began) }

// guestOf is the guest of the newest machine of a node.
func (s *simulation) guestOf(node string) *guest {
	s.t.Helper()
	n := s.state().Nodes[node]
	if n == nil || n.Machine == nil {
		s.t.Fatalf("no machine of node %s", node)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.byID[n.Machine.ID]
	if g == nil {
		s.t.Fatalf("the machine of node %s has not booted", node)
	}
	return g
}

// headGuest is the head's machine.
func (s *simulation) headGuest() *guest {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.guests, func(g *guest) bool { return g.req.Role == providers.Head }); i >= 0 {
		return s.guests[i]
	}
	s.t.Fatal("no head has booted")
	return nil
}

// state is what the run's journal adds up to, wherever it is written.
func (s *simulation) state() *journal.State {
	s.t.Helper()
	state, err := journal.Fold(s.events())
	if err != nil {
		s.t.Fatal(err)
	}
	return state
}

// events are those of whoever supervises: the head's file where it has taken over.
func (s *simulation) events() []journal.Event {
	s.t.Helper()
	s.mu.Lock()
	path := filepath.Join(s.client.folder, journal.FileName)
	for _, g := range s.guests {
		if g.req.Role == providers.Head {
			if _, err := journal.ReadFile(filepath.Join(g.headFolder(), journal.FileName)); err == nil {
				path = filepath.Join(g.headFolder(), journal.FileName)
			}
		}
	}
	s.mu.Unlock()
	events, err := journal.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.t.Fatal(err)
	}
	return events
}

// until waits for something to be so, for limit at most, and returns the state in which it was.
func (s *simulation) until(what string, limit time.Duration, ok func(*journal.State) bool) *journal.State {
	s.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(pollEvery) {
		if state := s.live(); ok(state) {
			return state
		}
		if time.Now().After(end) {
			s.show()
			s.t.Fatalf("no %s within %v", what, limit)
		}
	}
}

// pollEvery is odd so that looking falls together with nothing.
const pollEvery = 99_991 * time.Microsecond

// live is the state of the journal that is being written: the head's once it has adopted the run.
func (s *simulation) live() *journal.State {
	s.mu.Lock()
	guests := s.guests
	s.mu.Unlock()
	for _, g := range guests {
		if j := g.journal(); j != nil {
			return j.State()
		}
	}
	return s.client.journal.State()
}

// show writes the journal into the test's log.
func (s *simulation) show() {
	for _, e := range s.events() {
		data, _ := json.Marshal(e.Data)
		s.t.Logf("%10.3f %-20s %-6s g%d %.260s", e.At.Duration().Seconds(), e.Kind, e.Node, e.Generation, data)
	}
}
