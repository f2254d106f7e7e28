package providertest

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/providers"
)

// testListFilters: by run, by owner, by region, by nothing.
func testListFilters(t *testing.T, f *fixture) {
	a, b, c := name("run"), name("run"), name("run")
	inA := f.create(t, f.request(t, a, 2))
	inB := f.create(t, f.request(t, b, 1))
	f.owner = "providertest-other"
	inC := f.create(t, f.request(t, c, 1))
	f.showing(t, a, inA)
	f.showing(t, b, inB)
	f.showing(t, c, inC)
	f.pass(t, f.info.ConsistencyWindow)
	region := inA[0].Offer.Region
	both := append(slices.Clone(inA), inB...)
	for name, tc := range map[string]struct {
		filter providers.Filter
		want   []providers.Machine
	}{
		"run":               {providers.Filter{Run: a}, inA},
		"owner":             {providers.Filter{Owner: "providertest"}, both},
		"other owner":       {providers.Filter{Owner: "providertest-other"}, inC},
		"run and owner":     {providers.Filter{Run: b, Owner: "providertest"}, inB},
		"not of this owner": {providers.Filter{Run: b, Owner: "providertest-other"}, nil},
		"prefix of a run":   {providers.Filter{Run: a[:len(a)-1]}, nil},
		"prefix of owner":   {providers.Filter{Owner: "providertes"}, nil},
		"unknown run":       {providers.Filter{Run: "run-unknown"}, nil},
		"all":               {providers.Filter{}, append(slices.Clone(both), inC...)},
		"region":            {providers.Filter{Run: a, Regions: []string{region}}, inA},
	} {
		tc.filter.Config = f.config
		all, err := f.provider.List(t.Context(), tc.filter)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(sorted(machineIDs(tc.want)), sorted(ids(machines(all)))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// testListPages: a listing of several pages has every machine once.
func testListPages(t *testing.T, f *fixture) {
	run := name("run")
	made := f.create(t, f.request(t, run, 2*f.pageSize+1))
	all := f.showing(t, run, made)
	if got := ids(all); len(slices.Compact(sorted(got))) != len(got) {
		t.Errorf("a resource is listed twice: %v", sorted(got))
	}
}

// testListBrokenPage: a listing that breaks in the middle is an error, never a shorter list.
func testListBrokenPage(t *testing.T, f *fixture) {
	run := name("run")
	made := f.create(t, f.request(t, run, 2*f.pageSize+1))
	f.showing(t, run, made)
	f.pass(t, f.info.ConsistencyWindow) // or a whole listing may be shorter too
	f.failPage()
	all, err := f.provider.List(t.Context(), providers.Filter{Config: f.config, Run: run})
	if err == nil && len(machines(all)) != len(made) { // a decorator or the SDK may have asked again
		t.Errorf("a broken listing shows %d of %d machines and no error", len(machines(all)), len(made))
	}
	if err != nil && len(all) != 0 {
		t.Errorf("an error and %d resources", len(all))
	}
}

// testDeleteTwice: the gone are not an error, in whatever state the cloud shows them.
func testDeleteTwice(t *testing.T, f *fixture) {
	run := name("run")
	made := f.create(t, f.request(t, run, 2))
	listed := f.showing(t, run, made)
	f.remove(t, run, listed)
	f.remove(t, run, listed)
	f.showing(t, run, nil)
	f.pass(t, f.info.ConsistencyWindow)
	if left := machines(f.remove(t, run, listed)); len(left) != 0 {
		t.Errorf("machines that are gone could not be deleted: %v", ids(left))
	}
	f.remove(t, run, f.list(t, run))
}

// testDeleteUnknown: what never was counts as gone. Deleting nothing is fine.
func testDeleteUnknown(t *testing.T, f *fixture) {
	run := name("run")
	made := f.create(t, f.request(t, run, 1))
	listed := machines(f.showing(t, run, made))
	f.remove(t, run, nil)
	f.remove(t, run, listed)
	f.showing(t, run, nil)
	never := listed[0]
	machine := *never.Machine
	machine.ID = unlike(machine.ID)
	never.ID, never.Machine = machine.ID, &machine
	if left := f.remove(t, run, []providers.Resource{never}); len(left) != 0 {
		t.Errorf("what never was is left: %v", ids(left))
	}
}

// unlike is another id of the same form.
func unlike(id string) string {
	last := id[len(id)-1]
	if last == '0' {
		return id[:len(id)-1] + "1"
	}
	return id[:len(id)-1] + "0"
}

// testDeleteForeign: one resource of another run in the request, and nothing is deleted, whatever the request says of its tags.
func testDeleteForeign(t *testing.T, f *fixture) {
	ours, theirs := name("run"), name("run")
	mine := f.create(t, f.request(t, ours, 1))
	foreign := f.create(t, f.request(t, theirs, 1))
	own := machines(f.showing(t, ours, mine))
	before := machines(f.showing(t, theirs, foreign))

	forged := before[0]
	forged.Tags = maps.Clone(forged.Tags)
	forged.Tags[providers.TagRun] = ours
	for name, resources := range map[string][]providers.Resource{
		"foreign":        before,
		"forged":         {forged},
		"own, foreign":   append(slices.Clone(own), before...),
		"own and forged": append(slices.Clone(own), forged),
	} {
		_, err := f.provider.Delete(t.Context(), providers.DeleteRequest{Config: f.config, Run: ours, Resources: resources})
		wantCode(t, name, err, providers.Invalid)
	}
	_, err := f.provider.Delete(t.Context(), providers.DeleteRequest{Config: f.config, Resources: own})
	wantCode(t, "no run", err, providers.Invalid)

	f.pass(t, f.info.ConsistencyWindow)
	f.showing(t, ours, mine)
	after := machines(f.showing(t, theirs, foreign))
	if diff := cmp.Diff(before[0].Tags, after[0].Tags); diff != "" {
		t.Errorf("the foreign machine's tags changed:\n%s", diff)
	}
}

// testDeleteLostReply: an order that was carried out although its reply was lost can be repeated.
func testDeleteLostReply(t *testing.T, f *fixture) {
	run := name("run")
	made := f.create(t, f.request(t, run, 2))
	listed := machines(f.showing(t, run, made))
	f.dropReply("delete")
	_, err := f.provider.Delete(t.Context(), providers.DeleteRequest{Config: f.config, Run: run, Resources: listed})
	if err != nil && !providers.CodeOf(err).Retryable() {
		t.Fatalf("delete with a lost reply: %v", err)
	}
	f.remove(t, run, listed)
	f.showing(t, run, nil)
}

// testUpdate: tags are merged into those that are there, and doing it twice is doing it once.
func testUpdate(t *testing.T, f *fixture) {
	run := name("run")
	req := f.request(t, run, 2)
	made := f.create(t, req)
	f.showing(t, run, made)
	steps := []map[string]string{
		{providers.TagExpires: "2026-01-02T03:04:05Z", providers.TagAddress: "192.0.2.1:22"},
		{providers.TagExpires: "2026-01-02T03:05:05Z"},
		{providers.TagExpires: "2026-01-02T03:05:05Z"},
	}
	for _, tags := range steps {
		update := providers.UpdateRequest{Config: f.config, Run: run, Machine: made[0].ID, Tags: tags}
		if err := f.provider.Update(t.Context(), update); err != nil {
			t.Fatalf("update: %v", err)
		}
	}
	if err := f.provider.Update(t.Context(), providers.UpdateRequest{Config: f.config, Run: run, Machine: made[0].ID, Ingress: []string{"192.0.2.0/24"}}); err != nil {
		t.Errorf("update of ingress: %v", err)
	}
	want := maps.Clone(req.Tags)
	maps.Copy(want, map[string]string{providers.TagExpires: "2026-01-02T03:05:05Z", providers.TagAddress: "192.0.2.1:22"})
	f.eventually(t, "tags show", func() (string, bool) {
		all := machines(f.list(t, run))
		i := slices.IndexFunc(all, func(r providers.Resource) bool { return r.ID == made[0].ID })
		if i < 0 {
			return "no machine", false
		}
		for k, v := range want {
			if all[i].Tags[k] != v {
				return cmp.Diff(want, all[i].Tags), false
			}
		}
		return "", true
	})
	for _, r := range machines(f.list(t, run)) {
		if r.ID != made[0].ID && r.Tags[providers.TagAddress] != "" {
			t.Errorf("update reached %s too", r.ID)
		}
	}
}

// testUpdateForeign: a machine that is not the run's, or not there, is not found.
func testUpdateForeign(t *testing.T, f *fixture) {
	ours, theirs := name("run"), name("run")
	mine := f.create(t, f.request(t, ours, 1))
	foreign := f.create(t, f.request(t, theirs, 1))
	f.showing(t, ours, mine)
	f.showing(t, theirs, foreign)
	for name, machine := range map[string]string{"foreign": foreign[0].ID, "unknown": unlike(mine[0].ID)} {
		err := f.provider.Update(t.Context(), providers.UpdateRequest{
			Config: f.config, Run: ours, Machine: machine, Tags: map[string]string{"touched": "yes"},
		})
		wantCode(t, name, err, providers.NotFound)
	}
	f.pass(t, f.info.ConsistencyWindow)
	for _, r := range machines(f.showing(t, theirs, foreign)) {
		if r.Tags["touched"] != "" {
			t.Errorf("%s was touched", r.ID)
		}
	}
}
