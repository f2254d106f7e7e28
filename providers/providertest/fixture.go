package providertest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// fixture is one case's provider over an empty cloud, and the hooks of the harness bound to it.
type fixture struct {
	provider providers.Provider
	info     providers.Info
	config   json.RawMessage
	want     providers.OffersRequest
	owner    string
	keys     []string
	birth    []byte

	settle, poll, prompt time.Duration
	cancelAfter          []time.Duration
	pageSize             int
	shortTTL             time.Duration
	badConfigs           []BadConfig

	limit     func(n int)
	dropReply func(op string)
	fail      func(op string, code providers.Code)
	failPage  func()
	reopen    func(t *testing.T) providers.Provider
	noticed   func(ctx context.Context, machine string) (time.Time, error)
	leftover  func() []string
}

// name makes a name that no other case or earlier test has: a run or a token.
func name(what string) string {
	return what + "-" + strings.ToLower(rand.Text())[:10]
}

// offers returns usable offers of one region, spot before on-demand because drills need spot.
func (f *fixture) offers(t *testing.T) []providers.Offer {
	t.Helper()
	all, err := f.provider.Offers(t.Context(), f.want)
	if err != nil {
		t.Fatalf("offers: %v", err)
	}
	usable := slices.DeleteFunc(all, func(o providers.Offer) bool { return o.Rejected != "" })
	if len(usable) == 0 {
		t.Fatalf("offers: none usable for %+v", f.want)
	}
	region := usable[0].Region
	usable = slices.DeleteFunc(usable, func(o providers.Offer) bool { return o.Region != region })
	slices.SortStableFunc(usable, func(a, b providers.Offer) int { return strings.Compare(string(b.Market), string(a.Market)) })
	return usable
}

// request asks for count machines, all or none.
func (f *fixture) request(t *testing.T, run string, count int) providers.CreateRequest {
	t.Helper()
	return providers.CreateRequest{
		Config: f.config, Token: name("t"), Run: run, Role: f.want.Role, Offers: f.offers(t), Count: count, Min: count,
		Tags: map[string]string{
			providers.TagRun: run, providers.TagOwner: f.owner, providers.TagRole: string(f.want.Role), "purpose": "conformance",
		},
		TTL: time.Hour, AuthorizedKeys: f.keys, BirthHostKey: f.birth,
	}
}

// create makes machines that the case needs.
func (f *fixture) create(t *testing.T, req providers.CreateRequest) []providers.Machine {
	t.Helper()
	result, err := f.provider.Create(t.Context(), req)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	if len(result.Machines) < req.Min || len(result.Machines) > req.Count {
		t.Fatalf("create: got %d machines, want %d to %d", len(result.Machines), req.Min, req.Count)
	}
	return result.Machines
}

// list lists a run; "": whatever carries the tag.
func (f *fixture) list(t *testing.T, run string) []providers.Resource {
	t.Helper()
	resources, err := f.provider.List(t.Context(), providers.Filter{Config: f.config, Run: run})
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	return resources
}

// remove orders the deletion of resources.
func (f *fixture) remove(t *testing.T, run string, resources []providers.Resource) []providers.Resource {
	t.Helper()
	left, err := f.provider.Delete(t.Context(), providers.DeleteRequest{Config: f.config, Run: run, Resources: resources})
	if err != nil {
		t.Fatalf("delete: %v", err)
	}
	return left
}

// eventually waits for ok, which looks at the cloud and says what it saw.
func (f *fixture) eventually(t *testing.T, what string, ok func() (saw string, done bool)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), f.settle)
	defer cancel()
	tick := time.NewTicker(f.poll)
	defer tick.Stop()
	for {
		saw, done := ok()
		if done {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within %v; last seen: %s", what, f.settle, saw)
		}
	}
}

// showing waits until a run's listing has exactly the machines, in any order, and returns the listing.
func (f *fixture) showing(t *testing.T, run string, want []providers.Machine) []providers.Resource {
	t.Helper()
	var all []providers.Resource
	f.eventually(t, fmt.Sprintf("list shows the %d machines of %s", len(want), run), func() (string, bool) {
		all = f.list(t, run)
		alive := machines(all)
		return fmt.Sprint(ids(alive)), slices.Equal(sorted(ids(alive)), sorted(machineIDs(want)))
	})
	return all
}

// pass lets a time go by in which something must not happen.
func (f *fixture) pass(t *testing.T, d time.Duration) {
	t.Helper()
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// nothingLeft deletes whatever carries a run's tag, waits until two listings a consistency window apart show nothing alive, and asks
// the harness whether it agrees.
func (f *fixture) nothingLeft(t *testing.T) {
	t.Helper()
	empty := func() (string, bool) {
		byRun := map[string][]providers.Resource{}
		alive := 0
		for _, r := range f.list(t, "") {
			if r.Alive() {
				run := r.Tags[providers.TagRun]
				byRun[run] = append(byRun[run], r)
				alive++
			}
		}
		for run, resources := range byRun {
			f.remove(t, run, resources)
		}
		return fmt.Sprintf("%d resources alive in %v", alive, byRun), alive == 0
	}
	f.eventually(t, "nothing is left", empty)
	f.pass(t, f.info.ConsistencyWindow)
	f.eventually(t, "nothing is left, a consistency window later", empty)
	if f.leftover != nil {
		f.eventually(t, "nothing is left in the cloud's own view", func() (string, bool) {
			left := f.leftover()
			return fmt.Sprint(left), len(left) == 0
		})
	}
}

// promptly fails the test if a call whose context has ended does not return soon.
func (f *fixture) promptly(t *testing.T, op string, ended time.Time) {
	t.Helper()
	if took := time.Since(ended); took > f.prompt {
		t.Errorf("%s returned %v after its context ended, want at most %v", op, took, f.prompt)
	}
}

func ids(resources []providers.Resource) []string {
	var all []string
	for _, r := range resources {
		all = append(all, r.ID)
	}
	return all
}

func machineIDs(ms []providers.Machine) []string {
	var all []string
	for _, m := range ms {
		all = append(all, m.ID)
	}
	return all
}

func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }

// wantCode fails the test unless err has the code.
func wantCode(t *testing.T, what string, err error, want ...providers.Code) {
	t.Helper()
	if got := providers.CodeOf(err); !slices.Contains(want, got) {
		t.Errorf("%s: got code %q (%v), want %q", what, got, err, want)
	}
}
