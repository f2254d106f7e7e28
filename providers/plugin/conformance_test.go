package plugin

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/local"
	"github.com/ephemeral-launcher/launcher/providers/providertest"
	"github.com/ephemeral-launcher/launcher/providers/sim"
)

// joined puts the wire between a provider and a host, without a process.
func joined(t *testing.T, p providers.Provider) *Host {
	t.Helper()
	listener := bufconn.Listen(64 << 10)
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))
	newService(p).register(server)
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(listener) })
	conn, err := grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		wg.Wait()
	})
	h, err := Open(Options{Path: os.Args[0]})
	if err != nil {
		t.Fatal(err)
	}
	h.live, h.ready = &session{conn: conn, process: newProcess("", nil, &journalist{log: h.opts.Log})}, true
	return h
}

// guests is a simulated cloud that records what guests are told.
type guests struct {
	*sim.Cloud
	mu      sync.Mutex // guards notices
	notices map[string]time.Time
	told    chan struct{} // one place: something was recorded
}

func newGuests(opts sim.Options) *guests {
	g := &guests{notices: map[string]time.Time{}, told: make(chan struct{}, 1)}
	opts.OnBoot = func(_ context.Context, m providers.Machine, _ providers.CreateRequest) (string, error) {
		return "guest-" + m.ID + ":22", nil
	}
	opts.OnNotice = func(machine string, deadline time.Time) {
		g.mu.Lock()
		g.notices[machine] = deadline
		g.mu.Unlock()
		select {
		case g.told <- struct{}{}:
		default:
		}
	}
	g.Cloud = sim.New(opts)
	return g
}

func noticed(ctx context.Context, g *guests, machine string) (time.Time, error) {
	for {
		g.mu.Lock()
		deadline, ok := g.notices[machine]
		g.mu.Unlock()
		if ok {
			return deadline, nil
		}
		select {
		case <-g.told:
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}

// TestConformanceSim runs the suite across the wire over a cloud whose every fault can be had.
func TestConformanceSim(t *testing.T) {
	providertest.Run(t, providertest.Harness[*guests]{
		Open: func(t *testing.T) (*guests, providers.Provider, json.RawMessage) {
			g := newGuests(sim.Options{PageSize: 5, ConsistencyWindow: 50 * time.Millisecond})
			t.Cleanup(g.Close)
			return g, joined(t, g.Cloud), json.RawMessage(`{"regions":["sim-1"]}`)
		},
		Poll: 5 * time.Millisecond, ShortTTL: 300 * time.Millisecond, PageSize: 5,
		BadConfigs: []providertest.BadConfig{
			{Config: `{"regions":["sim-1","mars"]}`, Attribute: "regions[1]"},
			{Config: `{"regions":"sim-1"}`, Attribute: "regions"},
			{Config: `[]`, Attribute: ""},
		},
		Limit:     func(g *guests, n int) { g.SetPool(sim.Pool{}, n) },
		DropReply: func(g *guests, op string) { g.DropReply(op) },
		Fail:      func(g *guests, op string, code providers.Code) { g.FailNext(op, code, false) },
		FailPage:  func(g *guests) { g.FailNext("page", providers.Unavailable, false) },
		Reopen:    func(t *testing.T, g *guests) providers.Provider { return joined(t, g.Cloud) },
		Noticed:   noticed,
		Leftover: func(g *guests) []string {
			var left []string
			report := sim.Audit(g.Ledger(), time.Now())
			for _, e := range report.Untagged {
				left = append(left, "untagged "+e.Resource)
			}
			for _, run := range report.Runs {
				for _, e := range append(run.Billing, run.Residue...) {
					left = append(left, e.Resource)
				}
			}
			return left
		},
	})
}

// localCloud is an empty cloud of local machines, cleared away with the test.
func localCloud(t *testing.T) (root string, config json.RawMessage) {
	t.Helper()
	root = t.TempDir()
	config, err := json.Marshal(map[string]any{"root": root, "zones": []string{"a", "b"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // what a failed test left
		self, err := os.Executable()
		if err != nil {
			t.Error(err)
			return
		}
		p := local.New(local.Options{Executable: []string{self, "machine"}})
		all, err := p.List(context.Background(), providers.Filter{Config: config})
		if err != nil {
			t.Error(err)
		}
		for _, r := range all {
			if r.Alive() {
				req := providers.DeleteRequest{Config: config, Run: r.Tags[providers.TagRun], Resources: []providers.Resource{r}}
				if _, err := p.Delete(context.Background(), req); err != nil {
					t.Error(err)
				}
			}
		}
	})
	return root, config
}

// TestConformanceLocal runs the suite across a real process, over machines that are processes too.
func TestConformanceLocal(t *testing.T) {
	shared := opened(t, "local", Options{Name: "local", Env: meeting(t.TempDir())})
	providertest.Run(t, providertest.Harness[string]{
		Open: func(t *testing.T) (string, providers.Provider, json.RawMessage) {
			root, config := localCloud(t)
			return root, shared, config
		},
		ShortTTL: time.Second, PageSize: 2,
		BadConfigs: []providertest.BadConfig{
			{Config: `{"zones":"a"}`, Attribute: "zones"},
			{Config: `{"usd_per_hour":{"spot":-1}}`, Attribute: "usd_per_hour.spot"},
		},
		Reopen: func(t *testing.T, _ string) providers.Provider {
			return opened(t, "local", Options{Name: "local", Env: meeting(t.TempDir())})
		},
	})
}

func TestHop(t *testing.T) {
	providertest.RunHop(t, providertest.HopHarness{
		Open: func(t *testing.T) providertest.HopSubject {
			_, config := localCloud(t)
			folder := t.TempDir()
			h := opened(t, "local", Options{Name: "local", Folder: folder, Env: meeting(folder)})
			return providertest.HopSubject{
				Provider: h, Config: config,
				Entered: func() <-chan struct{} {
					if err := os.WriteFile(filepath.Join(folder, "hold"), nil, 0o600); err != nil {
						t.Fatal(err)
					}
					return fifo(t, folder, "entered")
				},
				Kill: func() { h.live.process.cmd.Process.Kill() },
				Environ: func() []string {
					var all []string
					data, err := os.ReadFile(filepath.Join(folder, "environ"))
					if err == nil {
						err = json.Unmarshal(data, &all)
					}
					if err != nil || len(all) == 0 {
						t.Errorf("environment of the plugin: %v, %v", all, err)
					}
					return all
				},
				Allowed: append(hostVariables(), folderVariable, cookieKey,
					"PLUGIN_MIN_PORT", "PLUGIN_MAX_PORT", "PLUGIN_PROTOCOL_VERSIONS", "PLUGIN_CLIENT_CERT", "PLUGIN_UNIX_SOCKET_DIR"),
			}
		},
		HostKilled: func(t *testing.T) <-chan struct{} {
			folder := shortFolder(t)
			entered, gone := fifo(t, folder, "entered"), fifo(t, folder, "alive")
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			host := exec.Command(self, "host", executableOf(t, "odd"))
			host.Env = append(os.Environ(), folderVariable+"="+folder)
			host.Stderr = os.Stderr
			if err := host.Start(); err != nil {
				t.Fatal(err)
			}
			await(t, "entered", entered)
			sockets := func() []string {
				all, err := filepath.Glob(filepath.Join(folder, "plugin-dir*"))
				if err != nil {
					t.Fatal(err)
				}
				return all
			}
			if len(sockets()) != 1 {
				t.Errorf("folders of sockets while the plugin lives: %v, want 1", sockets())
			}
			host.Process.Kill()
			host.Wait()
			t.Cleanup(func() {
				if left := sockets(); len(left) > 0 {
					t.Errorf("the killed host's plugin left %v", left)
				}
			})
			return gone
		},
	})
}

// shortFolder is a folder whose name is short enough for sockets in it; t.TempDir's may not be.
func shortFolder(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	return folder
}

// TestRetryAcrossDeath: what the decorator makes of a plugin that dies under a Create is one Create.
func TestRetryAcrossDeath(t *testing.T) {
	birth, err := sshkey.New("birth")
	if err != nil {
		t.Fatal(err)
	}
	_, config := localCloud(t)
	folder := t.TempDir()
	h := opened(t, "local", Options{Env: meeting(folder)})
	p := providers.Retry(h, providers.RetryOptions{Base: time.Millisecond})
	offers, err := p.Offers(t.Context(), providers.OffersRequest{Config: config, Markets: []providers.Market{providers.Spot}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "hold"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	entered := fifo(t, folder, "entered")
	go func() {
		<-entered
		h.live.process.cmd.Process.Kill()
	}()
	result, err := p.Create(t.Context(), providers.CreateRequest{
		Config: config, Token: "t-1", Run: "r-1", Role: providers.Worker, Offers: offers, Count: 1, Min: 1, TTL: time.Minute,
		Tags: map[string]string{providers.TagRun: "r-1", providers.TagOwner: "o", providers.TagRole: "worker"}, BirthHostKey: birth.Private,
	})
	if err != nil {
		t.Fatal(err)
	}
	all, err := p.List(t.Context(), providers.Filter{Config: config, Run: "r-1"})
	if err != nil {
		t.Fatal(err)
	}
	alive := slices.DeleteFunc(all, func(r providers.Resource) bool { return !r.Alive() })
	if len(alive) != 1 || len(result.Machines) != 1 || alive[0].ID != result.Machines[0].ID {
		t.Errorf("listed %v, created %v, want the same one machine", alive, result.Machines)
	}
}
