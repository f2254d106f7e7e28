package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/providers"
)

// TestCreatorDiesBetween: intents whose creator died before it started anything.
func TestCreatorDiesBetween(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	l := ledger{c.root}
	if err := l.create(); err != nil {
		t.Fatal(err)
	}
	cfg, err := c.parse("create", c.block())
	if err != nil {
		t.Fatal(err)
	}
	b := &batch{ledger: l, cfg: cfg, req: c.request(t, "t", 2), command: c.opts.Executable}
	if known, err := b.intend(t.Context()); err != nil || known {
		t.Fatalf("intend: %v, %v", known, err)
	}
	if all := c.list(t); len(all) != 2 || all[0].State != providers.Pending || all[0].Tags[providers.TagRun] != "r" {
		t.Errorf("while the creator lives: %+v", all)
	}
	again, err := c.Create(t.Context(), b.req)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(machinesOf(b.records), again.Machines); diff != "" {
		t.Errorf("repeated while the creator lives (-want +got):\n%s", diff)
	}
	b.release() // as the kernel does
	again, err = c.Create(t.Context(), b.req)
	if err != nil || len(again.Machines) != 0 {
		t.Errorf("repeated: %v, %v", again.Machines, err)
	}
	for _, r := range c.list(t) {
		if r.State != providers.Terminated || r.Reason != "creation was interrupted" {
			t.Errorf("%s is %s: %q", r.ID, r.State, r.Reason)
		}
	}
	if left := c.folders(); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

// TestStartFails: with no machine to be had, none is left.
func TestStartFails(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.opts.Executable = []string{filepath.Join(c.root, "absent"), "machine"}
	_, err := c.Create(t.Context(), c.request(t, "t", 2))
	e, ok := errors.AsType[*providers.Error](err)
	if !ok || e.Code != providers.Unavailable || len(e.Offers) != 2 {
		t.Errorf("got %+v", err)
	}
	for _, r := range c.list(t) {
		if r.Alive() {
			t.Errorf("%s is %s", r.ID, r.State)
		}
	}
}

func TestBrokenRecord(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.remove(t, c.rent(t, "t", 1)...) // makes the folders
	l := ledger{c.root}
	dir := l.dir("m-0123456789ab")
	for name, text := range map[string]string{"machine.json": `{"id":`, "alive": "", "home/cache/file": "x"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if all := c.list(t); len(all) != 1 {
		t.Errorf("listed: %v", all)
	}
	if left := c.folders(); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// TestBurySparesTheLiving: a machine that only looked dead, or was named by mistake, is left alone.
func TestBurySparesTheLiving(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	m := c.rent(t, "t", 1)[0]
	if err := (ledger{c.root}).buryAll(t.Context(), []string{m.ID, "m-000000000000"}); err != nil {
		t.Fatal(err)
	}
	if got := c.look(t, m.ID); got.State != providers.Running {
		t.Errorf("the machine is %s", got.State)
	}
	c.remove(t, m)
}

func TestPrune(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	l := ledger{c.root}
	if err := l.create(); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for id, age := range map[string]time.Duration{"m-000000000000": tombstoneAge - time.Minute, "m-000000000001": tombstoneAge + time.Minute} {
		rec := record{ID: id, Tags: map[string]string{providers.TagRun: "r"}, EndedAt: now.Add(-age)}
		if err := l.entomb(rec); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(l.newDir("m-000000000002/bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	c.remove(t, c.rent(t, "t", 1)...)
	if _, state, _ := l.find("m-000000000000"); state != past {
		t.Error("forgot a machine within the day")
	}
	if _, state, _ := l.find("m-000000000001"); state != absent {
		t.Error("remembers a machine for longer than a day")
	}
	if left := c.folders(); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// TestLock: a lock that another holds is waited for, but not for longer than the caller wants.
func TestLock(t *testing.T) {
	t.Parallel()
	l := ledger{t.TempDir()}
	unlock, err := l.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := l.lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second lock: %v", err)
	}
	unlock()
	if unlock, err = l.lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	unlock()
}

// TestKillOnlyThatProcess: a pid that is another process by now, or counts in another namespace, is spared.
func TestKillOnlyThatProcess(t *testing.T) {
	me, err := self()
	if err != nil {
		t.Fatal(err)
	}
	later, elsewhere, unknown := me, me, me
	later.Start += "1"
	elsewhere.Space += "1"
	unknown.Space = ""
	for name, p := range map[string]process{
		"other start time": later, "other namespace": elsewhere, "unknown namespace": unknown, "none": {}, "init": {PID: 1, Start: me.Start, Space: me.Space},
	} {
		if p.kill() { // would be our end
			t.Errorf("%s: killed", name)
		}
	}
}

func TestSweepSparesOthers(t *testing.T) {
	carriers, err := carriersOf(EnvMachine + "=m-no-such-machine")
	if err != nil || len(carriers) != 0 {
		t.Errorf("got %v, %v", carriers, err)
	}
	if home := os.Getenv("HOME"); home != "" {
		// A part of an entry is no entry.
		if carriers, err = carriersOf("HOME=" + home[:len(home)-1]); err != nil {
			t.Error(err)
		}
		me, _ := self()
		if slices.Contains(carriers, me) {
			t.Error("a prefix of an entry matches")
		}
		if carriers, err = carriersOf("HOME=" + home); err != nil || !slices.Contains(carriers, me) {
			t.Errorf("an entry of our own does not match: %v, %v", carriers, err)
		}
	}
}

func TestInvalidIDsAreNoPaths(t *testing.T) {
	for _, id := range []string{"", "m-", "../../etc", "m-../../../..x", "m-0123456789aB", "m-0123456789ab/"} {
		if validID(id) {
			t.Errorf("%q is taken for an id", id)
		}
	}
	if id := newID(); !validID(id) {
		t.Errorf("%q is not taken for an id", id)
	}
}

func TestConfig(t *testing.T) {
	p := New(Options{Root: "/somewhere"})
	for block, want := range map[string]string{
		`{"zones":["A"]}`:                  "zones",
		`{"zones":["a","a"]}`:              "zones",
		`{"zones":["../x"]}`:               "zones",
		`{"capacity":-1}`:                  "capacity",
		`{"capacity":"many"}`:              "capacity",
		`{"boot":"-1s"}`:                   "boot",
		`{"notice":"x"}`:                   "notice",
		`{"silent":1.5}`:                   "silent",
		`{"usd_per_hour":{"on-demand":1}}`: "usd_per_hour",
		`{"usd_per_hour":{"spot":null}}`:   "usd_per_hour.spot",
		`{"isolation":"vm"}`:               "isolation",
		`{"isolation":"netns"}`:            "isolation",
		`{"root":"x"}`:                     "root",
		`[]`:                               "",
	} {
		_, err := p.parse("list", []byte(block))
		e, ok := errors.AsType[*providers.Error](err)
		if !ok || e.Code != providers.Invalid || e.Attribute != want || e.Op != "list" {
			t.Errorf("%s: got %+v, want the blame on %q", block, err, want)
		}
	}
	got, err := p.parse("list", []byte(`{"root":"/r/","zones":["z"],"capacity":0,"boot":"1s","notice":"2m","silent":0.5,"usd_per_hour":{"spot":1},"isolation":"none","price_factor":0.9}`))
	if err != nil {
		t.Fatal(err)
	}
	want := settings{
		root: "/r", zones: []string{"z"}, boot: time.Second, notice: 2 * time.Minute, silent: 0.5,
		price:     map[providers.Market]float64{providers.Spot: 1, providers.OnDemand: 0.10},
		priceDate: got.priceDate, priceSource: "usd_per_hour of the job file",
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(settings{})); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

// TestSchema: what the block takes is what Info says, and nothing else.
func TestSchema(t *testing.T) {
	info, err := New(Options{}).Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, a := range info.Schema {
		got = append(got, a.Name)
	}
	for f := range reflect.TypeFor[block]().Fields() {
		want = append(want, f.Tag.Get("json"))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("schema (-want +got):\n%s", diff)
	}
}

func TestRootByEnvironment(t *testing.T) {
	for _, tc := range []struct{ configured, option, root, home, state, user, want string }{
		{"/c", "/o", "/r", "/h", "/s", "/u", "/c"},
		{"", "/o", "/r", "/h", "/s", "/u", "/o"},
		{"", "", "/r", "/h", "/s", "/u", "/r"},
		{"", "", "", "/h", "/s", "/u", "/h/local"},
		{"", "", "", "", "/s", "/u", "/s/launcher/local"},
		{"", "", "", "", "", "/u", "/u/.local/state/launcher/local"},
	} {
		for name, value := range map[string]string{EnvRoot: tc.root, "LAUNCHER_HOME": tc.home, "XDG_STATE_HOME": tc.state, "HOME": tc.user} {
			t.Setenv(name, value)
		}
		got, err := New(Options{Root: tc.option}).root(tc.configured)
		if err != nil || got != tc.want {
			t.Errorf("got %q, %v, want %q", got, err, tc.want)
		}
	}
}

func TestOffers(t *testing.T) {
	p := New(Options{Root: t.TempDir()})
	both := []providers.Market{providers.Spot, providers.OnDemand}
	for name, tc := range map[string]struct {
		req      providers.OffersRequest
		want     int
		rejected string
	}{
		"both markets":      {providers.OffersRequest{Markets: both}, 6, ""},
		"this region":       {providers.OffersRequest{Markets: both, Regions: []string{"elsewhere", Region}}, 6, ""},
		"another region":    {providers.OffersRequest{Markets: both, Regions: []string{"elsewhere"}}, 0, ""},
		"its type":          {providers.OffersRequest{Markets: both, InstanceTypes: []string{"x", InstanceType}, CPUs: 1 << 20}, 6, ""},
		"another type":      {providers.OffersRequest{Markets: both, InstanceTypes: []string{"x"}}, 6, "only instance type"},
		"a GPU":             {providers.OffersRequest{Markets: both, GPUs: []providers.GPU{{Model: "h100", Count: 8}}}, 6, "no GPU"},
		"too many CPUs":     {providers.OffersRequest{Markets: both, CPUs: 1 << 20}, 6, "CPUs"},
		"too much memory":   {providers.OffersRequest{Markets: both, MemoryGiB: 1 << 20}, 6, "memory"},
		"one market":        {providers.OffersRequest{Markets: both[:1]}, 3, ""},
		"without a market?": {providers.OffersRequest{}, 0, ""},
	} {
		offers, err := p.Offers(t.Context(), tc.req)
		if err != nil || len(offers) != tc.want {
			t.Errorf("%s: got %d offers, error %v, want %d", name, len(offers), err, tc.want)
		}
		for _, o := range offers {
			if (o.Rejected == "") != (tc.rejected == "") || !strings.Contains(o.Rejected, tc.rejected) {
				t.Errorf("%s: rejected: got %q, want %q", name, o.Rejected, tc.rejected)
			}
			if want := map[providers.Market]float64{providers.Spot: 0.03, providers.OnDemand: 0.10}[o.Market]; *o.USDPerHour != want {
				t.Errorf("%s: price: got %v, want %v", name, *o.USDPerHour, want)
			}
		}
	}
}

func TestCheckNamesWhatIsMissing(t *testing.T) {
	p := New(Options{})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	id, err := p.Check(t.Context(), []byte(`{"root":"`+file+`/cloud"}`))
	if err != nil || !slices.Equal(id.Missing, []string{"write " + file}) {
		t.Errorf("got %+v, %v", id, err)
	}
	root := filepath.Join(t.TempDir(), "a", "b")
	id, err = p.Check(t.Context(), []byte(`{"root":"`+root+`"}`))
	if err != nil || len(id.Missing) > 0 || !strings.HasPrefix(id.Owner, "local:") {
		t.Errorf("got %+v, %v", id, err)
	}
	if _, err := os.Stat(root); err == nil {
		t.Error("check created the root")
	}
}
