package local

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/providertest"
)

// The test binary is also the executable whose processes are machines, and a provider's host inside or beside them.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		switch os.Args[1] {
		case "machine":
			// Not os.Exit: the race detector lets it wait for a second.
			syscall.Exit(MachineMain(context.Background(), os.Args[2:]))
		case "rent":
			syscall.Exit(rentMain(os.Args[2:]))
		}
	}
	os.Exit(m.Run())
}

// rentMain is a provider's host of its own: rent REQUEST creates, list FILTER and delete RUN ID do as they say. Root and config come from the request.
func rentMain(args []string) int {
	p := New(Options{Executable: []string{os.Args[0], "machine"}})
	out, err := func() (any, error) {
		ctx := context.Background()
		switch args[0] {
		case "create":
			var req providers.CreateRequest
			if err := json.NewDecoder(os.Stdin).Decode(&req); err != nil {
				return nil, err
			}
			return p.Create(ctx, req)
		case "list":
			return p.List(ctx, providers.Filter{Run: args[1]})
		case "delete":
			return p.Delete(ctx, providers.DeleteRequest{Run: args[1], Resources: []providers.Resource{{ID: args[2]}}})
		}
		return nil, fmt.Errorf("rent what? %v", args)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	json.NewEncoder(os.Stdout).Encode(out)
	return 0
}

// cloud is an empty cloud for one test, and the means to look at it from the side.
type cloud struct {
	*Provider
	root       string
	host, user sshkey.Pair
	config     map[string]any
	capacity   atomic.Int64 // over all zones; 0: unlimited
	lost       atomic.Value // the operation whose next reply is lost
}

// newCloud makes one; whatever is left of it when the test ends is killed, and is an error.
func newCloud(t testing.TB) *cloud {
	t.Helper()
	return newCloudAt(t, t.TempDir())
}

func newCloudAt(t testing.TB, root string) *cloud {
	t.Helper()
	c := &cloud{root: root, host: pair(t), user: pair(t), config: map[string]any{}}
	c.Provider = New(Options{Root: root, Executable: []string{os.Args[0], "machine"}})
	t.Cleanup(func() {
		for _, left := range c.processes(t) {
			if !t.Failed() {
				t.Errorf("process %d is left", left.PID)
			}
			left.kill()
		}
		for _, pid := range strayed(t, c, "") {
			syscall.Kill(pid, syscall.SIGKILL) // of a test that failed in the middle
		}
		waitFor(t, "the last processes to go", func() bool { return len(c.processes(t)) == 0 })
		if !t.Failed() {
			for _, left := range c.folders() {
				t.Errorf("folder %s is left", left)
			}
		}
		removeAll(root) // what a failed test left may resist t.TempDir
		os.MkdirAll(root, 0o700)
	})
	return c
}

func pair(t testing.TB) sshkey.Pair {
	t.Helper()
	p, err := sshkey.New("test")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// processes lists what runs in the cloud's machines, hypervisors included.
func (c *cloud) processes(t testing.TB) []process {
	t.Helper()
	found, err := carriersOf(EnvRoot + "=" + c.root)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func (c *cloud) folders() []string {
	machines, _ := filepath.Glob(filepath.Join(c.root, "machines", "*"))
	prepared, _ := filepath.Glob(filepath.Join(c.root, "new", "*"))
	return append(machines, prepared...)
}

// waitFor looks until it is so; what it waits for has no event to offer.
func waitFor(t testing.TB, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !so() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited too long for %s", what)
		}
	}
}

func (c *cloud) block() json.RawMessage {
	data, err := json.Marshal(c.config)
	if err != nil {
		panic(err)
	}
	return data
}

// request asks for count machines of run "r".
func (c *cloud) request(t testing.TB, token string, count int) providers.CreateRequest {
	t.Helper()
	offers, err := c.Offers(t.Context(), providers.OffersRequest{Config: c.block(), Markets: []providers.Market{providers.Spot}})
	if err != nil {
		t.Fatal(err)
	}
	return providers.CreateRequest{
		Config: c.block(), Token: token, Run: "r", Role: providers.Worker, Offers: offers, Count: count, Min: count,
		Tags: map[string]string{providers.TagRun: "r", providers.TagOwner: "me", providers.TagRole: "worker"},
		TTL:  time.Minute, AuthorizedKeys: []string{c.user.Public}, BirthHostKey: c.host.Private,
	}
}

// rent creates machines and waits until they have addresses.
func (c *cloud) rent(t testing.TB, token string, count int) []providers.Resource {
	t.Helper()
	result, err := c.Create(t.Context(), c.request(t, token, count))
	if err != nil {
		t.Fatal(err)
	}
	var up []providers.Resource
	for _, m := range result.Machines {
		waitFor(t, "machine "+m.ID+" to run", func() bool {
			r := c.look(t, m.ID)
			if r.State == providers.Terminated {
				t.Fatalf("machine %s ended: %s", m.ID, r.Reason)
			}
			return r.State == providers.Running
		})
		up = append(up, c.look(t, m.ID))
	}
	return up
}

// look lists one machine.
func (c *cloud) look(t testing.TB, id string) providers.Resource {
	t.Helper()
	all := c.list(t)
	i := slices.IndexFunc(all, func(r providers.Resource) bool { return r.ID == id })
	if i < 0 {
		t.Fatalf("machine %s is not listed", id)
	}
	return all[i]
}

func (c *cloud) list(t testing.TB) []providers.Resource {
	t.Helper()
	all, err := c.List(context.Background(), providers.Filter{Run: "r", Config: c.block()})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// remove deletes machines of run "r" and checks that nothing is left of them at once.
func (c *cloud) remove(t testing.TB, machines ...providers.Resource) {
	t.Helper()
	left, err := c.Delete(context.Background(), providers.DeleteRequest{Config: c.block(), Run: "r", Resources: machines})
	if err != nil || len(left) > 0 {
		t.Fatalf("delete: left %v, error %v", left, err)
	}
	for _, m := range machines {
		if _, err := os.Stat((ledger{c.root}).dir(m.ID)); err == nil {
			t.Errorf("the folder of %s is left", m.ID)
		}
		carriers, err := carriersOf(EnvMachine + "=" + m.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range carriers {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
			t.Errorf("process %d of %s is left: %s", p.PID, m.ID, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
}

// ended waits for a machine to be listed as terminated, checks why, and that nothing of it is left.
func (c *cloud) ended(t *testing.T, id, reason string) {
	t.Helper()
	waitFor(t, id+" to end", func() bool { return c.look(t, id).State == providers.Terminated })
	if got := c.look(t, id).Reason; got != reason {
		t.Errorf("reason: got %q, want %q", got, reason)
	}
	waitFor(t, "the processes of "+id+" to go", func() bool {
		carriers, err := carriersOf(EnvMachine + "=" + id)
		return err == nil && len(carriers) == 0
	})
	waitFor(t, "the folder of "+id+" to go", func() bool { _, err := os.Stat((ledger{c.root}).dir(id)); return err != nil })
}

// login connects to a machine; hostKey is the public line it must prove.
func (c *cloud) login(t *testing.T, m providers.Resource, hostKey string) (*sshexec.Conn, error) {
	t.Helper()
	conn, err := sshexec.Dial(t.Context(), sshexec.Target{
		Addr: m.Machine.Address, User: m.Machine.User, Keys: [][]byte{c.user.Private}, HostKeys: []string{hostKey},
	})
	if err == nil {
		t.Cleanup(func() { conn.Close() })
	}
	return conn, err
}

// sh runs a command in a machine.
func (c *cloud) sh(t *testing.T, m providers.Resource, command string) string {
	t.Helper()
	conn, err := c.login(t, m, c.host.Public)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	result, err := conn.Run(t.Context(), command)
	if err != nil || !result.Exit.OK() {
		t.Fatalf("%s: %v, exit %v: %s", command, err, result.Exit, result.Stderr)
	}
	return strings.TrimSpace(string(result.Stdout))
}

// Create has a capacity that the suite changes as it goes, and may lose its reply.
func (c *cloud) Create(ctx context.Context, req providers.CreateRequest) (providers.CreateResult, error) {
	if n := c.capacity.Load(); n > 0 && json.Valid(req.Config) {
		req.Config = fmt.Appendf(nil, `{"zones":["a","b"],"capacity":%d}`, n/2)
	}
	result, err := c.Provider.Create(ctx, req)
	if err == nil && c.lost.CompareAndSwap("create", "") {
		return providers.CreateResult{}, providers.Errorf(providers.Unavailable, "create", "reply lost")
	}
	return result, err
}

// Delete may lose its reply.
func (c *cloud) Delete(ctx context.Context, req providers.DeleteRequest) ([]providers.Resource, error) {
	left, err := c.Provider.Delete(ctx, req)
	if err == nil && c.lost.CompareAndSwap("delete", "") {
		return nil, providers.Errorf(providers.Unavailable, "delete", "reply lost")
	}
	return left, err
}

func TestConformance(t *testing.T) {
	providertest.Run(t, providertest.Harness[*cloud]{
		Open: func(t *testing.T) (*cloud, providers.Provider, json.RawMessage) {
			c := newCloud(t)
			c.config["zones"] = []string{"a", "b"}
			return c, c, c.block()
		},
		ShortTTL: time.Second,
		BadConfigs: []providertest.BadConfig{
			{Config: `{"zones":"a"}`, Attribute: "zones"},
			{Config: `{"root":"relative"}`, Attribute: "root"},
			{Config: `{"boot":"soon"}`, Attribute: "boot"},
			{Config: `{"usd_per_hour":{"spot":-1}}`, Attribute: "usd_per_hour.spot"},
		},
		PageSize:  2, // there are no pages; a run of five machines is as good
		DropReply: func(c *cloud, op string) { c.lost.Store(op) },
		Limit:     func(c *cloud, n int) { c.capacity.Store(int64(n)) },
		Reopen:    func(t *testing.T, c *cloud) providers.Provider { return New(c.opts) },
		Noticed: func(ctx context.Context, c *cloud, machine string) (time.Time, error) {
			var n notice
			var err error
			for tick := time.NewTicker(5 * time.Millisecond); ctx.Err() == nil; <-tick.C {
				var data []byte
				if data, err = os.ReadFile(filepath.Join((ledger{c.root}).dir(machine), "notice.json")); err == nil {
					err = json.Unmarshal(data, &n)
					return n.Deadline, err
				}
			}
			return time.Time{}, err
		},
		Leftover: func(c *cloud) []string {
			left := c.folders()
			carriers, err := carriersOf(EnvRoot + "=" + c.root)
			if err != nil {
				return []string{err.Error()}
			}
			for _, p := range carriers {
				left = append(left, fmt.Sprintf("process %d", p.PID))
			}
			return left
		},
	})
}
