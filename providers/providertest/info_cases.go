package providertest

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/providers"
)

// testInfo: Info is complete, stable, and names the services that are there.
func testInfo(t *testing.T, f *fixture) {
	info := f.info
	if !regexp.MustCompile(`^[a-z][a-z0-9-]*$`).MatchString(info.Name) {
		t.Errorf("name %q is not usable as a block label", info.Name)
	}
	for what, value := range map[string]string{
		"version": info.Version, "notice source": info.NoticeSource, "default user": info.DefaultUser, "leak bound's doc": info.LeakBoundDoc,
	} {
		if value == "" {
			t.Errorf("no %s", what)
		}
	}
	if info.ConsistencyWindow < 0 || info.BillingInterval <= 0 {
		t.Errorf("consistency window %v, billing interval %v", info.ConsistencyWindow, info.BillingInterval)
	}
	seen := map[string]bool{}
	for _, a := range info.Schema {
		if a.Name == "" || a.Type == "" || a.Doc == "" || seen[a.Name] {
			t.Errorf("attribute %+v: name, type and doc are required, names unique", a)
		}
		seen[a.Name] = true
	}
	if _, ok := providers.As[providers.Preempter](f.provider); info.Has(providers.CanPreempt) && !ok {
		t.Error("names the drill and lacks it")
	}
	if _, ok := providers.As[providers.Checker](f.provider); info.Has(providers.CanCheck) && !ok {
		t.Error("names the check and lacks it")
	}
	again, err := f.provider.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(info, again); diff != "" {
		t.Errorf("info differs the second time:\n%s", diff)
	}
}

// testOffers: offers are what was asked for, priced with date and source, or rejected with a reason.
func testOffers(t *testing.T, f *fixture) {
	for _, o := range f.offers(t) {
		if o.Provider != f.info.Name || o.InstanceType == "" || o.Region == "" || o.Zone == "" {
			t.Errorf("offer %+v: provider, instance type, region and zone are required", o)
		}
		if !slices.Contains(f.want.Markets, o.Market) {
			t.Errorf("offer in market %q, asked for %q", o.Market, f.want.Markets)
		}
		if o.CPUs < f.want.CPUs || o.MemoryGiB < f.want.MemoryGiB {
			t.Errorf("offer of %d CPUs and %g GiB, asked for %d and %g", o.CPUs, o.MemoryGiB, f.want.CPUs, f.want.MemoryGiB)
		}
		if o.USDPerHour != nil && (*o.USDPerHour < 0 || o.PriceDate.IsZero() || o.PriceSource == "") {
			t.Errorf("price %v of %s in %s without date or source: %v, %q", *o.USDPerHour, o.InstanceType, o.Zone, o.PriceDate, o.PriceSource)
		}
	}
	for _, market := range f.want.Markets {
		req := f.want
		req.Markets = []providers.Market{market}
		offers, err := f.provider.Offers(t.Context(), req)
		if err != nil {
			t.Fatalf("offers: %v", err)
		}
		for _, o := range offers {
			if o.Market != market && o.Rejected == "" {
				t.Errorf("asked for %s, offered %s", market, o.Market)
			}
		}
	}
	huge := f.want
	huge.InstanceTypes, huge.GPUs, huge.CPUs = nil, nil, 1<<20
	offers, err := f.provider.Offers(t.Context(), huge)
	if err != nil {
		t.Fatalf("offers for a machine too large: %v", err)
	}
	for _, o := range offers {
		if o.Rejected == "" {
			t.Errorf("offers %d CPUs where %d were asked for", o.CPUs, huge.CPUs)
		}
	}
}

func testOffersNoEffect(t *testing.T, f *fixture) {
	f.offers(t)
	if all := f.list(t, ""); len(all) != 0 {
		t.Errorf("offers left %v behind", ids(all))
	}
}

// testAddress: an address appears sooner or later, as host:port, for the outside and for the run.
func testAddress(t *testing.T, f *fixture) {
	run := name("run")
	made := f.create(t, f.request(t, run, 2))
	f.addressed(t, run, made)
}

// addressed waits until the machines have addresses and returns them as listed.
func (f *fixture) addressed(t *testing.T, run string, made []providers.Machine) []providers.Machine {
	t.Helper()
	hostPort := regexp.MustCompile(`^(\[[0-9a-fA-F:]+\]|[^\s:\[\]]+):[0-9]+$`)
	var have []providers.Machine
	f.eventually(t, "addresses appear", func() (string, bool) {
		have = nil
		for _, r := range machines(f.list(t, run)) {
			if r.State == providers.Running && hostPort.MatchString(r.Machine.Address) && hostPort.MatchString(r.Machine.ClusterAddress) {
				have = append(have, *r.Machine)
			}
		}
		return fmt.Sprint(have), len(have) == len(made)
	})
	for _, m := range have {
		if m.User == "" {
			t.Errorf("machine %s has no user", m.ID)
		}
	}
	return have
}

// testBootLease: a machine that nobody reaches ends itself.
func testBootLease(t *testing.T, f *fixture) {
	run := name("run")
	req := f.request(t, run, 1)
	req.TTL = f.shortTTL
	made := f.create(t, req)
	began := time.Now()
	f.settle += f.shortTTL
	f.eventually(t, "the machine ends itself", func() (string, bool) {
		all := f.list(t, run)
		for _, r := range all {
			if r.ID == made[0].ID && r.State == providers.Terminated {
				if lived := time.Since(began); lived < f.shortTTL-time.Second { // clouds cut times to seconds
					t.Fatalf("machine ended after %v, before its boot lease of %v", lived, f.shortTTL)
				}
				return fmt.Sprintf("terminated, reason %q", r.Reason), r.Reason != ""
			}
		}
		alive := machines(all)
		return fmt.Sprint(ids(alive)), len(alive) == 0 && time.Since(began) > f.shortTTL+f.info.ConsistencyWindow
	})
}

// testPreempt: a drill ends the machine, without notice at once; it spares what the run does not own.
func testPreempt(t *testing.T, f *fixture) {
	if !f.info.Has(providers.CanPreempt) {
		return // testInfo holds it to that
	}
	drill, _ := providers.As[providers.Preempter](f.provider)
	run := name("run")
	made := f.create(t, f.request(t, run, 2))
	f.showing(t, run, made)
	err := drill.Preempt(t.Context(), providers.PreemptRequest{Config: f.config, Run: name("run"), Machine: made[0].ID})
	wantCode(t, "preempt a machine of another run", err, providers.NotFound, providers.Invalid)
	f.preempt(t, drill, providers.PreemptRequest{Config: f.config, Run: run, Machine: made[0].ID})
	f.showing(t, run, made[1:])
}

// preempt makes the drill's call, and again where its effect is uncertain: [providers.Retry] does not, because a
// repetition is a second announcement.
func (f *fixture) preempt(t *testing.T, drill providers.Preempter, req providers.PreemptRequest) {
	t.Helper()
	for attempt := range 10 {
		err := drill.Preempt(t.Context(), req)
		if err == nil || attempt > 0 && providers.CodeOf(err) == providers.NotFound {
			return
		}
		if !providers.CodeOf(err).Retryable() {
			t.Fatalf("preempt: %v", err)
		}
	}
	t.Fatal("preempt: uncertain ten times")
}

// testNotice: the machine's guest hears of the preemption while there is time.
func testNotice(t *testing.T, f *fixture) {
	drill, ok := providers.As[providers.Preempter](f.provider)
	if !ok || !f.info.Has(providers.CanPreempt) {
		t.Fatal("the harness can see notices of a provider without a drill")
	}
	run := name("run")
	made := f.create(t, f.request(t, run, 1))
	f.addressed(t, run, made)
	f.pass(t, f.info.ConsistencyWindow) // or a listing from before the machine passes for one from after it
	const notice = 3 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), f.settle)
	defer cancel()
	began := time.Now()
	f.preempt(t, drill, providers.PreemptRequest{Config: f.config, Run: run, Machine: made[0].ID, Notice: notice})
	deadline, err := f.noticed(ctx, made[0].ID)
	if err != nil {
		t.Fatalf("no notice: %v", err)
	}
	// Notices have whole seconds on some clouds.
	if early, late := began.Add(notice-time.Second), time.Now().Add(notice+time.Second); deadline.Before(early) || deadline.After(late) {
		t.Errorf("deadline %v, want between %v and %v", deadline, early, late)
	}
	f.showing(t, run, nil)
	if ended := time.Now(); ended.Before(deadline.Add(-time.Second)) {
		t.Errorf("machine gone at %v, before its deadline %v", ended, deadline)
	}
}

func testCheck(t *testing.T, f *fixture) {
	if !f.info.Has(providers.CanCheck) {
		return
	}
	check, _ := providers.As[providers.Checker](f.provider)
	id, err := check.Check(t.Context(), f.config)
	if err != nil {
		t.Fatalf("check: %v", err)
	}
	if id.Owner == "" {
		t.Error("check names no owner")
	}
	if all := f.list(t, ""); len(all) != 0 {
		t.Errorf("check left %v behind", ids(all))
	}
}

// callAll makes one valid call of each operation for a run that has one machine.
func (f *fixture) callAll(ctx context.Context, t *testing.T, m providers.Machine, req providers.CreateRequest, config []byte) map[string]func() error {
	t.Helper()
	run := req.Run
	req.Config = config
	want := f.want
	want.Config = config
	return map[string]func() error{
		"offers": func() error { _, err := f.provider.Offers(ctx, want); return err },
		"create": func() error { _, err := f.provider.Create(ctx, req); return err },
		"list":   func() error { _, err := f.provider.List(ctx, providers.Filter{Config: config, Run: run}); return err },
		"delete": func() error {
			_, err := f.provider.Delete(ctx, providers.DeleteRequest{Config: config, Run: run, Resources: []providers.Resource{{ID: m.ID, Kind: providers.KindMachine, Machine: &m, Region: m.Offer.Region, Tags: req.Tags}}})
			return err
		},
		"update": func() error {
			return f.provider.Update(ctx, providers.UpdateRequest{Config: config, Run: run, Machine: m.ID, Tags: map[string]string{"touched": "yes"}})
		},
	}
}

// ops is the order in which callAll's calls are made: delete last.
func ops() []string { return []string{"offers", "list", "create", "update", "delete"} }

// testCodes: a code arrives as it was given, also through wrapping.
func testCodes(t *testing.T, f *fixture) {
	run := name("run")
	req := f.request(t, run, 1)
	made := f.create(t, req)
	req.Token = name("t")
	calls := f.callAll(t.Context(), t, made[0], req, f.config)
	for _, op := range ops() {
		for _, code := range []providers.Code{
			providers.NotFound, providers.Capacity, providers.Quota, providers.Throttled, providers.Auth,
			providers.Invalid, providers.Unavailable, providers.Internal,
		} {
			f.fail(op, code)
			err := calls[op]()
			wantCode(t, op, err, code)
			wantCode(t, op+", wrapped", fmt.Errorf("outer: %w", errors.Join(err)), code)
			if e, ok := errors.AsType[*providers.Error](err); ok && e.Op != op {
				t.Errorf("%s failed with op %q", op, e.Op)
			}
		}
	}
	f.showing(t, run, made)
}

// testBadConfig: every method refuses a bad block, with the path to blame, and does nothing.
func testBadConfig(t *testing.T, f *fixture) {
	run := name("run")
	req := f.request(t, run, 1)
	made := f.create(t, req)
	f.showing(t, run, made)
	req.Token = name("t")
	for _, bad := range f.badConfigs {
		calls := f.callAll(t.Context(), t, made[0], req, []byte(bad.Config))
		for _, op := range ops() {
			err := calls[op]()
			wantCode(t, op+" with "+bad.Config, err, providers.Invalid)
			if e, ok := errors.AsType[*providers.Error](err); ok && e.Attribute != bad.Attribute {
				t.Errorf("%s with %s: blames %q, want %q", op, bad.Config, e.Attribute, bad.Attribute)
			}
		}
	}
	f.pass(t, f.info.ConsistencyWindow)
	f.showing(t, run, made)
}

// testEndedContext: a call whose context has ended returns soon, with an error, and does nothing.
func testEndedContext(t *testing.T, f *fixture) {
	run := name("run")
	req := f.request(t, run, 1)
	made := f.create(t, req)
	f.showing(t, run, made)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	calls := f.callAll(ended, t, made[0], req, f.config) // create with the same token: it may land all the same
	for _, op := range []string{"offers", "list", "create", "update"} {
		began := time.Now()
		if err := calls[op](); err == nil {
			t.Errorf("%s with an ended context: no error", op)
		}
		f.promptly(t, op, began)
	}
	f.pass(t, f.info.ConsistencyWindow)
	f.showing(t, run, made)
}
