package providertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/providers"
)

// testCreate: machines are as asked for, and listed with all tags.
func testCreate(t *testing.T, f *fixture) {
	run := name("run")
	req := f.request(t, run, 3)
	made := f.create(t, req)
	seen := map[string]bool{}
	for _, m := range made {
		if m.ID == "" || seen[m.ID] {
			t.Errorf("id %q is empty or not unique", m.ID)
		}
		seen[m.ID] = true
		if m.Token != req.Token || m.User == "" || m.CreatedAt.IsZero() {
			t.Errorf("machine %+v: token, user and time of creation are required", m)
		}
		if !slices.ContainsFunc(req.Offers, func(o providers.Offer) bool { return samePool(o, m.Offer) }) {
			t.Errorf("machine %s is of an offer that was not in the request: %+v", m.ID, m.Offer)
		}
	}
	all := f.showing(t, run, made)
	for _, r := range all {
		if r.Tags[providers.TagRun] != run || r.Tags[providers.TagOwner] != f.owner {
			t.Errorf("%s %s carries tags %v", r.Kind, r.ID, r.Tags)
		}
		if r.Region == "" || r.Kind == "" || r.State == "" {
			t.Errorf("resource %+v: region, kind and state are required", r)
		}
	}
	for _, r := range machines(all) {
		for k, v := range req.Tags {
			if r.Tags[k] != v {
				t.Errorf("machine %s: tag %s is %q, want %q", r.ID, k, r.Tags[k], v)
			}
		}
		if r.Machine == nil || r.Machine.ID != r.ID || r.Machine.Token != req.Token || r.Region != req.Offers[0].Region {
			t.Errorf("machine %s is listed as %+v in %s", r.ID, r.Machine, r.Region)
		}
	}
}

func samePool(a, b providers.Offer) bool {
	return a.InstanceType == b.InstanceType && a.Region == b.Region && a.Zone == b.Zone && a.Market == b.Market
}

// testCreateInvalid: a request that can never succeed is refused as such and leaves nothing.
func testCreateInvalid(t *testing.T, f *fixture) {
	elsewhere := func(r *providers.CreateRequest) {
		o := r.Offers[0]
		o.Region += "-elsewhere"
		r.Offers = append(slices.Clone(r.Offers), o)
	}
	for name, spoil := range map[string]func(r *providers.CreateRequest){
		"no token":        func(r *providers.CreateRequest) { r.Token = "" },
		"long token":      func(r *providers.CreateRequest) { r.Token = strings.Repeat("a", 65) },
		"strange token":   func(r *providers.CreateRequest) { r.Token = "a/../b" },
		"count 0":         func(r *providers.CreateRequest) { r.Count, r.Min = 0, 0 },
		"min above count": func(r *providers.CreateRequest) { r.Min = r.Count + 1 },
		"no offers":       func(r *providers.CreateRequest) { r.Offers = nil },
		"two regions":     elsewhere,
		"no run tag":      func(r *providers.CreateRequest) { delete(r.Tags, providers.TagRun) },
		"no owner tag":    func(r *providers.CreateRequest) { delete(r.Tags, providers.TagOwner) },
		"other run's tag": func(r *providers.CreateRequest) { r.Tags[providers.TagRun] += "x" },
		"no ttl":          func(r *providers.CreateRequest) { r.TTL = 0 },
	} {
		req := f.request(t, "run-invalid", 1)
		spoil(&req)
		_, err := f.provider.Create(t.Context(), req)
		wantCode(t, name, err, providers.Invalid)
	}
	f.pass(t, f.info.ConsistencyWindow)
	if all := f.list(t, ""); len(all) != 0 {
		t.Errorf("refused requests left %v behind", ids(all))
	}
}

// testCreateAgain: the same request again returns the same machines in the same order.
func testCreateAgain(t *testing.T, f *fixture) {
	run := name("run")
	req := f.request(t, run, 3)
	made := f.create(t, req)
	f.same(t, "repeated", made, f.create(t, req))
	f.showing(t, run, made)
	f.same(t, "repeated once listed", made, f.create(t, req))
	other := req
	other.Token = name("t")
	more := f.create(t, other)
	f.showing(t, run, append(slices.Clone(made), more...))
}

func (f *fixture) same(t *testing.T, what string, want, got []providers.Machine) {
	t.Helper()
	if diff := cmp.Diff(machineIDs(want), machineIDs(got)); diff != "" {
		t.Errorf("%s: other machines (-want +got):\n%s", what, diff)
	}
}

// testCreateReopened: the token holds for another process too.
func testCreateReopened(t *testing.T, f *fixture) {
	run := name("run")
	req := f.request(t, run, 2)
	made := f.create(t, req)
	f.provider = f.reopen(t)
	f.same(t, "repeated by another process", made, f.create(t, req))
	f.showing(t, run, made)
}

// testCreateConcurrently: many at once make the machines once.
func testCreateConcurrently(t *testing.T, f *fixture) {
	run := name("run")
	req := f.request(t, run, 2)
	const callers = 6
	results := make([]providers.CreateResult, callers)
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() { results[i], errs[i] = f.provider.Create(t.Context(), req) })
	}
	wg.Wait()
	made := f.create(t, req) // what the token stands for, whoever came first
	for i := range callers {
		if errs[i] == nil {
			f.same(t, fmt.Sprintf("caller %d", i), made, results[i].Machines)
		} else if code := providers.CodeOf(errs[i]); !code.Retryable() {
			t.Errorf("caller %d: %v", i, errs[i])
		}
	}
	f.pass(t, f.info.ConsistencyWindow)
	f.showing(t, run, made)
}

// testCreateLostReply: what was made although the reply was lost is found by List and by the same token.
func testCreateLostReply(t *testing.T, f *fixture) {
	run := name("run")
	req := f.request(t, run, 2)
	f.dropReply("create")
	first, err := f.provider.Create(t.Context(), req)
	if err != nil && !providers.CodeOf(err).Retryable() {
		t.Fatalf("create with a lost reply: %v", err)
	}
	made := f.create(t, req)
	if err == nil { // a decorator repeated the call
		f.same(t, "repeated", made, first.Machines)
	}
	f.pass(t, f.info.ConsistencyWindow)
	f.showing(t, run, made)
}

// testCreateAfterEnd: a token never tops up. What it made may end; repeating it returns those that are left.
func testCreateAfterEnd(t *testing.T, f *fixture) {
	run := name("run")
	req := f.request(t, run, 2)
	made := f.create(t, req)
	listed := machines(f.showing(t, run, made))
	i := slices.IndexFunc(listed, func(r providers.Resource) bool { return r.ID == made[0].ID })
	f.remove(t, run, listed[i:i+1])
	f.showing(t, run, made[1:])
	f.pass(t, f.info.ConsistencyWindow)
	result, err := f.provider.Create(t.Context(), req)
	if err != nil {
		t.Fatalf("create again after one has ended: %v", err)
	}
	f.same(t, "repeated after one has ended", made[1:], result.Machines)
	f.remove(t, run, f.list(t, run))
	f.showing(t, run, nil)
	f.pass(t, f.info.ConsistencyWindow)
	if result, err := f.provider.Create(t.Context(), req); err == nil && len(result.Machines) != 0 {
		t.Errorf("repeated after all have ended: %v", machineIDs(result.Machines))
	}
	f.pass(t, f.info.ConsistencyWindow)
	f.showing(t, run, nil)
}

// testCreateCancelled: whenever it is given up, a Create leaves nothing untagged and nothing that its token does not find.
func testCreateCancelled(t *testing.T, f *fixture) {
	for _, after := range f.cancelAfter {
		run := name("run")
		req := f.request(t, run, 2)
		ctx, cancel := context.WithCancel(t.Context())
		timer := time.AfterFunc(after, cancel)
		began := time.Now()
		result, err := f.provider.Create(ctx, req)
		f.promptly(t, "create", began.Add(after))
		timer.Stop()
		cancel()
		made := f.create(t, req)
		if err == nil {
			f.same(t, "repeated", made, result.Machines)
		}
		f.pass(t, f.info.ConsistencyWindow)
		f.showing(t, run, made)

		// And one that is never repeated: nothingLeft finds it by its tags.
		req = f.request(t, name("run"), 1)
		ctx, cancel = context.WithCancel(t.Context())
		timer = time.AfterFunc(after, cancel)
		_, _ = f.provider.Create(ctx, req) // either outcome is right
		timer.Stop()
		cancel()
	}
}

// testPartialCapacity: fewer than asked for, but at least min, is a success that says why the rest is missing.
func testPartialCapacity(t *testing.T, f *fixture) {
	run := name("run")
	f.limit(2)
	req := f.request(t, run, 4)
	req.Min = 1
	result, err := f.provider.Create(t.Context(), req)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	if len(result.Machines) != 2 {
		t.Errorf("got %d machines, want the 2 there are", len(result.Machines))
	}
	f.refusals(t, result.Refused)
	f.same(t, "repeated", result.Machines, f.create(t, req))
	f.limit(8)
	f.same(t, "repeated when there is more", result.Machines, f.create(t, req))
	f.pass(t, f.info.ConsistencyWindow)
	f.showing(t, run, result.Machines)
}

// testBelowMin: fewer than min is an error, leaves nothing behind, and the next try starts afresh.
func testBelowMin(t *testing.T, f *fixture) {
	run := name("run")
	f.limit(2)
	req := f.request(t, run, 4)
	req.Min = 3
	_, err := f.provider.Create(t.Context(), req)
	wantCode(t, "create", err, providers.Capacity, providers.Quota)
	if e, ok := errors.AsType[*providers.Error](err); ok {
		f.refusals(t, e.Offers)
	}
	f.pass(t, f.info.ConsistencyWindow)
	f.showing(t, run, nil)
	f.limit(8)
	req.Token = name("t")
	made := f.create(t, req)
	if len(made) != 4 {
		t.Errorf("got %d machines once there was room, want 4", len(made))
	}
	f.showing(t, run, made)
}

func (f *fixture) refusals(t *testing.T, refused []providers.Refusal) {
	t.Helper()
	if len(refused) == 0 {
		t.Error("no offer is said to have refused")
	}
	for _, r := range refused {
		if r.Code != providers.Capacity && r.Code != providers.Quota || r.Message == "" || r.Offer.InstanceType == "" {
			t.Errorf("refusal %+v: want an offer, a code of capacity or quota, and a message", r)
		}
	}
}
