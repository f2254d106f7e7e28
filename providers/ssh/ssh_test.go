package ssh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshd"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/providertest"
)

// site is a list of hosts: SSH servers of this process, each with a home folder of its own.
type site struct {
	*Provider
	hosts []*testHost
	user  sshkey.Pair
	limit atomic.Int64
	lost  atomic.Value // the operation whose next reply is lost
}

type testHost struct {
	address string
	home    string
	key     sshkey.Pair
	stop    func()
}

func newSite(t *testing.T, count int) *site {
	t.Helper()
	s := &site{Provider: New(), user: pair(t)}
	for range count {
		s.hosts = append(s.hosts, newHost(t, s.user))
	}
	return s
}

func newHost(t *testing.T, user sshkey.Pair) *testHost {
	t.Helper()
	h := &testHost{home: t.TempDir(), key: pair(t)}
	server, err := sshd.New(sshd.Options{
		HostKey: h.key.Private, AuthorizedKeys: []string{user.Public},
		Runner: sshd.Shell{Dir: h.home, Env: []string{"HOME=" + h.home, "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.address = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(ctx, l) })
	h.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(h.stop)
	return h
}

func pair(t *testing.T) sshkey.Pair {
	t.Helper()
	p, err := sshkey.New("test")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// knownLine is the host's line in known_hosts.
func (h *testHost) knownLine() string {
	_, port, _ := net.SplitHostPort(h.address)
	return "[127.0.0.1]:" + port + " " + h.key.Public
}

func (s *site) config() json.RawMessage {
	var hosts, lines []string
	for _, h := range s.hosts {
		hosts = append(hosts, h.address)
		lines = append(lines, h.knownLine())
	}
	data, err := json.Marshal(map[string]any{"hosts": hosts, "key": string(s.user.Private), "host_key": strings.Join(lines, "\n"), "user": "me"})
	if err != nil {
		panic(err)
	}
	return data
}

func (s *site) request(t *testing.T, run, token string, count int) providers.CreateRequest {
	t.Helper()
	offers, err := s.Offers(t.Context(), providers.OffersRequest{Config: s.config(), Markets: []providers.Market{providers.OnDemand}})
	if err != nil {
		t.Fatal(err)
	}
	return providers.CreateRequest{
		Config: s.config(), Token: token, Run: run, Role: providers.Worker, Offers: offers, Count: count, Min: count,
		Tags: map[string]string{providers.TagRun: run, providers.TagOwner: "me", providers.TagRole: "worker"},
		TTL:  time.Minute, AuthorizedKeys: []string{s.user.Public},
	}
}

func (s *site) list(t *testing.T) []providers.Resource {
	t.Helper()
	all, err := s.List(context.Background(), providers.Filter{Config: s.config()})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// sh runs a command on a host as its account.
func (s *site) sh(t *testing.T, h *testHost, command string) string {
	t.Helper()
	lines, err := host{address: h.address, user: "me", keys: []string{h.key.Public}}.run(t.Context(), s.user.Private, command)
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return strings.Join(lines, "\n")
}

// Create is limited as the suite wants, and may lose its reply.
func (s *site) Create(ctx context.Context, req providers.CreateRequest) (providers.CreateResult, error) {
	if n := int(s.limit.Load()); n > 0 && len(s.hosts) > n {
		usable := map[string]bool{}
		for _, h := range s.hosts[:n] {
			usable[h.address] = true
		}
		req.Offers = slices.DeleteFunc(slices.Clone(req.Offers), func(o providers.Offer) bool { return !usable[o.Zone] })
	}
	result, err := s.Provider.Create(ctx, req)
	if err == nil && s.lost.CompareAndSwap("create", "") {
		return providers.CreateResult{}, providers.Errorf(providers.Unavailable, "create", "reply lost")
	}
	return result, err
}

// Delete may lose its reply.
func (s *site) Delete(ctx context.Context, req providers.DeleteRequest) ([]providers.Resource, error) {
	left, err := s.Provider.Delete(ctx, req)
	if err == nil && s.lost.CompareAndSwap("delete", "") {
		return nil, providers.Errorf(providers.Unavailable, "delete", "reply lost")
	}
	return left, err
}

func TestConformance(t *testing.T) {
	providertest.Run(t, providertest.Harness[*site]{
		Open: func(t *testing.T) (*site, providers.Provider, json.RawMessage) {
			s := newSite(t, 6) // no case has more machines at once
			return s, s, s.config()
		},
		ShortTTL:    2 * time.Second,
		CancelAfter: []time.Duration{0, 20 * time.Millisecond},
		PageSize:    2, // there are no pages
		BadConfigs: []providertest.BadConfig{
			{Config: `{}`, Attribute: "hosts"},
			{Config: `{"hosts":"a"}`, Attribute: "hosts"},
		},
		Limit:     func(s *site, n int) { s.limit.Store(int64(n)) },
		DropReply: func(s *site, op string) { s.lost.Store(op) },
		Reopen:    func(*testing.T, *site) providers.Provider { return New() },
		Leftover: func(s *site) []string {
			var left []string
			for _, h := range s.hosts {
				for _, pattern := range []string{"*/lease", "*/m", "*/.lease", "login", ".login"} {
					found, _ := filepath.Glob(filepath.Join(h.home, ".launcher-host", pattern))
					left = append(left, found...)
				}
				if data, err := os.ReadFile(filepath.Join(h.home, ".ssh", "authorized_keys")); err == nil && len(data) > 0 {
					left = append(left, "keys of "+h.address)
				}
			}
			return left
		},
	})
}

// TestMachine: what a forced command puts a login into, and that nothing of it stays.
func TestMachine(t *testing.T) {
	s := newSite(t, 1)
	h := s.hosts[0]
	if err := os.Mkdir(filepath.Join(h.home, ".ssh"), 0o700); err != nil {
		t.Fatal(err)
	}
	authorized := filepath.Join(h.home, ".ssh", "authorized_keys")
	own := "ssh-ed25519 AAAA user's own, not launcher-machine-x's\n"
	if err := os.WriteFile(authorized, []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	result, err := s.Create(t.Context(), s.request(t, "r", "t", 1))
	if err != nil {
		t.Fatal(err)
	}
	m := result.Machines[0]
	folder := filepath.Join(base(t, h), "m", m.ID)
	data, err := os.ReadFile(authorized)
	if err != nil {
		t.Fatal(err)
	}
	want := own + fmt.Sprintf("command=\"%s/.launcher-host/login r\",no-agent-forwarding,no-X11-forwarding %s launcher-machine-%s\n", h.home, strings.TrimSuffix(s.user.Public, " test"), m.ID)
	if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Errorf("authorized_keys (-want +got):\n%s", diff)
	}
	login := "SSH_ORIGINAL_COMMAND=%s " + quote(h.home+"/.launcher-host/login") + " r"
	if got := s.sh(t, h, quote(h.home+"/.launcher-host/login")+" other 2>/dev/null || echo refused"); got != "refused" {
		t.Errorf("login of another run: %s", got)
	}
	got := s.sh(t, h, fmt.Sprintf(login, quote(`echo "$LAUNCHER_MACHINE|$HOME|$TMPDIR|$LAUNCHER_HOST_HOME|$LAUNCHER_MACHINE_LEASE|$(command -v poweroff)|$(pwd)"`)))
	if want := strings.Join([]string{m.ID, folder + "/home", folder + "/tmp", h.home, folder + "/lease", folder + "/bin/poweroff", folder + "/home"}, "|"); got != want {
		t.Errorf("login:\ngot  %s\nwant %s", got, want)
	}
	s.sh(t, h, fmt.Sprintf(login, quote(`(setsid sleep 1011 >/dev/null 2>&1 </dev/null &); mkdir ro; touch ro/x; chmod 500 ro`)))
	if s.sh(t, h, carriersOf(m.ID)) == "" {
		t.Error("nothing carries the machine's id")
	}
	all := s.list(t)
	left, err := s.Delete(t.Context(), providers.DeleteRequest{Config: s.config(), Run: "r", Resources: all})
	if err != nil || len(left) > 0 {
		t.Fatalf("delete: %v, %v", left, err)
	}
	if got := s.sh(t, h, carriersOf(m.ID)); got != "" {
		t.Errorf("processes are left: %s", got)
	}
	if data, err = os.ReadFile(authorized); err != nil || string(data) != own {
		t.Errorf("authorized_keys after: %q, %v", data, err)
	}
	if _, err := os.Stat(folder); err == nil {
		t.Error("the folder is left")
	}
	if all = s.list(t); len(all) != 1 || all[0].State != providers.Terminated || all[0].Reason != "deleted" {
		t.Errorf("listed: %+v", all)
	}
}

// base is the host's own folder.
func base(t *testing.T, h *testHost) string {
	t.Helper()
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(h.home, ".launcher-host", name)
}

// carriersOf asks the script itself.
func carriersOf(id string) string {
	return "op=none; eval " + quote(strings.TrimSuffix(hostScript, "main </dev/null\n")) + "; carriers " + id
}

// TestLease: the file that the guest writes moves the end, and says when it is now.
func TestLease(t *testing.T) {
	s := newSite(t, 2)
	req := s.request(t, "r", "t", 2)
	req.TTL = 2 * time.Second
	result, err := s.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	renewed, left := result.Machines[0], result.Machines[1]
	lease := func(m providers.Machine) string {
		i := slices.IndexFunc(s.hosts, func(h *testHost) bool { return h.address == m.Address })
		return filepath.Join(base(t, s.hosts[i]), "m", m.ID, "lease")
	}
	if err := os.WriteFile(lease(renewed), []byte("nonsense\n3600\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	state := func(id string) string {
		for _, r := range s.list(t) {
			if r.ID == id {
				return string(r.State) + " " + r.Reason
			}
		}
		return ""
	}
	await(t, func() bool { return state(left.ID) == "terminated lease over" })
	if got := state(renewed.ID); got != "running " {
		t.Errorf("the machine that was renewed: %s", got)
	}
	if err := os.WriteFile(lease(renewed), []byte("3600\npoweroff\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := state(renewed.ID); got != "terminated powered off" {
		t.Errorf("after poweroff: %s", got)
	}
}

func await(t *testing.T, so func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.After(20 * time.Second)
	for !so() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatal("waited too long")
		}
	}
}

// TestPoweroff: the command on PATH ends what runs in the machine and nothing else.
func TestPoweroff(t *testing.T) {
	s := newSite(t, 1)
	result, err := s.Create(t.Context(), s.request(t, "r", "t", 1))
	if err != nil {
		t.Fatal(err)
	}
	m, h := result.Machines[0], s.hosts[0]
	folder := filepath.Join(base(t, h), "m", m.ID)
	run := func(command string) string {
		return "SSH_ORIGINAL_COMMAND=" + quote(command) + " " + quote(folder+"/login")
	}
	s.sh(t, h, run("(setsid sleep 1012 >/dev/null 2>&1 </dev/null &)"))
	s.sh(t, h, run("poweroff; true")+" || true") // it kills its caller too
	if got := s.sh(t, h, carriersOf(m.ID)); got != "" {
		t.Errorf("processes are left: %s", got)
	}
	if got := s.sh(t, h, run("echo in")+" 2>&1 || true"); got != "this machine is off" {
		t.Errorf("login after poweroff: %q", got)
	}
	if all := s.list(t); len(all) != 1 || all[0].State != providers.Terminated || all[0].Reason != "powered off" {
		t.Errorf("listed: %+v", all)
	}
}

// TestTwoRuns: a leased host is refused to others until its lease is over, and then is theirs, swept.
func TestTwoRuns(t *testing.T) {
	s := newSite(t, 1)
	req := s.request(t, "r1", "t1", 1)
	req.TTL = time.Hour
	first, err := s.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	other := New() // another computer
	_, err = other.Create(t.Context(), s.request(t, "r2", "t2", 1))
	e, ok := errors.AsType[*providers.Error](err)
	if !ok || e.Code != providers.Capacity || len(e.Offers) != 1 || !strings.Contains(e.Offers[0].Message, "is leased until") {
		t.Fatalf("second run: %+v", err)
	}
	h := s.hosts[0]
	folder := filepath.Join(base(t, h), "m", first.Machines[0].ID)
	s.sh(t, h, "SSH_ORIGINAL_COMMAND="+quote("(setsid sleep 1013 >/dev/null 2>&1 </dev/null &)")+" "+quote(folder+"/login"))
	// An hour and a second later:
	lease := filepath.Join(base(t, h), "lease")
	data, err := os.ReadFile(lease)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(data), "\n")
	lines[3] = fmt.Sprint(time.Now().Unix() - 1)
	if err := os.WriteFile(lease, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	second, err := other.Create(t.Context(), s.request(t, "r2", "t3", 1))
	if err != nil {
		t.Fatal(err)
	}
	if got := s.sh(t, h, carriersOf(first.Machines[0].ID)); got != "" {
		t.Errorf("processes of the first run are left: %s", got)
	}
	var got []string
	for _, r := range s.list(t) {
		got = append(got, r.Tags[providers.TagRun]+" "+string(r.State)+" "+r.Reason)
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"r1 terminated lease over", "r2 running "}, got); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
	// The first run's order to delete comes too late to hurt.
	if _, err := s.Delete(t.Context(), providers.DeleteRequest{Config: s.config(), Run: "r1", Resources: []providers.Resource{{ID: first.Machines[0].ID}}}); err != nil {
		t.Error(err)
	}
	if left, err := s.Delete(t.Context(), providers.DeleteRequest{Config: s.config(), Run: "r2", Resources: []providers.Resource{{ID: second.Machines[0].ID}}}); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// TestLock: whatever changes a host waits for the lock on its home folder.
func TestLock(t *testing.T) {
	s := newSite(t, 1)
	if _, err := exec.LookPath("flock"); err != nil {
		t.Skip("no flock(1) here")
	}
	home, err := os.Open(s.hosts[0].home)
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	if err := syscall.Flock(int(home.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if all, err := s.List(ctx, providers.Filter{Config: s.config()}); providers.CodeOf(err) != providers.Unavailable {
		t.Errorf("while it is locked: %v, %v", all, err)
	}
	if err := syscall.Flock(int(home.Fd()), syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	s.list(t)
}

// TestUpdateLosesNoChange: an update made from what another has changed since is not written.
func TestUpdateLosesNoChange(t *testing.T) {
	s := newSite(t, 1)
	result, err := s.Create(t.Context(), s.request(t, "r", "t", 1))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := parse("update", s.config())
	if err != nil {
		t.Fatal(err)
	}
	lines, err := cfg.hosts[0].visit(t.Context(), cfg.key, order{op: opUpdate, id: result.Machines[0].ID, run: "r", record: "{}", previous: "stale"})
	if err != nil || lines[0] != "changed" {
		t.Errorf("got %v, %v", lines, err)
	}
}

// TestRace: many runs at once for few hosts; each host goes to one.
func TestRace(t *testing.T) {
	s := newSite(t, 2)
	const runs = 6
	var wg sync.WaitGroup
	var won atomic.Int64
	for i := range runs {
		req := s.request(t, fmt.Sprintf("r%d", i), fmt.Sprintf("t%d", i), 1)
		wg.Go(func() {
			result, err := New().Create(context.Background(), req)
			if err == nil {
				won.Add(int64(len(result.Machines)))
			} else if providers.CodeOf(err) != providers.Capacity {
				t.Errorf("run %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 2 || len(s.list(t)) != 2 {
		t.Errorf("%d machines given, %d listed, want 2", won.Load(), len(s.list(t)))
	}
	for _, r := range s.list(t) {
		s.Delete(t.Context(), providers.DeleteRequest{Config: s.config(), Run: r.Tags[providers.TagRun], Resources: []providers.Resource{r}})
	}
}

// TestHostDown: a listing without one host is no listing; an offer of it is rejected; deleting says what is left.
func TestHostDown(t *testing.T) {
	s := newSite(t, 2)
	result, err := s.Create(t.Context(), s.request(t, "r", "t", 2))
	if err != nil {
		t.Fatal(err)
	}
	all := s.list(t)
	down := result.Machines[1]
	for _, h := range s.hosts {
		if h.address == down.Address {
			h.stop()
		}
	}
	if all, err := s.List(t.Context(), providers.Filter{Config: s.config()}); providers.CodeOf(err) != providers.Unavailable || all != nil {
		t.Errorf("list: %v, %v", all, err)
	}
	offers, err := s.Offers(t.Context(), providers.OffersRequest{Config: s.config(), Markets: []providers.Market{providers.Spot}})
	if err != nil || len(offers) != 2 {
		t.Fatalf("offers: %v, %v", offers, err)
	}
	for _, o := range offers {
		if (o.Rejected != "") != (o.Zone == down.Address) {
			t.Errorf("offer of %s: rejected %q", o.Zone, o.Rejected)
		}
	}
	if _, err := s.Create(t.Context(), providers.CreateRequest{
		Config: s.config(), Token: "t2", Run: "r", Offers: offers[:1], Count: 1, TTL: time.Minute,
		Tags: map[string]string{providers.TagRun: "r", providers.TagOwner: "me", providers.TagRole: "worker"},
	}); providers.CodeOf(err) != providers.Unavailable {
		t.Errorf("create: %v", err)
	}
	left, err := s.Delete(t.Context(), providers.DeleteRequest{Config: s.config(), Run: "r", Resources: all})
	if err != nil || len(left) != 1 || left[0].ID != down.ID {
		t.Errorf("delete: %v, %v", left, err)
	}
	id, err := s.Check(t.Context(), s.config())
	if err != nil || len(id.Notes) != 1 || !strings.Contains(id.Notes[0], down.Address) {
		t.Errorf("check: %+v, %v", id, err)
	}
}

func TestHostKeysAreHeldTo(t *testing.T) {
	s := newSite(t, 1)
	keys, err := s.HostKeys(s.config(), s.hosts[0].address)
	if err != nil || !slices.Equal(keys, []string{strings.TrimSuffix(s.hosts[0].key.Public, " test")}) {
		t.Errorf("host keys: %v, %v", keys, err)
	}
	s.hosts[0].key = pair(t) // another than the host has
	if _, err := s.List(t.Context(), providers.Filter{Config: s.config()}); providers.CodeOf(err) != providers.Auth {
		t.Errorf("list with another host key: %v", err)
	}
}
