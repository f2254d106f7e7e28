package launcher

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

func writeRun(t *testing.T, opts Options, run string, events ...journal.Event) {
	t.Helper()
	f, err := opts.folder(run)
	if err != nil {
		t.Fatal(err)
	}
	created := journal.NewEvent(journal.RunCreated, "", 0, journal.Created{Job: []byte(`{"name":"j","head":{"supervisor":"head"}}`), JobName: "j"})
	all := append([]journal.Event{created}, events...)
	for i := range all {
		all[i].Run, all[i].Time, all[i].At = run, time.Unix(1000+int64(len(run)), 0).UTC(), journal.At(i)*journal.At(time.Second)
	}
	if err := os.MkdirAll(f.path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := journal.WriteFile(f.journal(), all); err != nil {
		t.Fatal(err)
	}
}

func TestListAndFind(t *testing.T) {
	opts := Options{Home: t.TempDir()}
	if runs, err := List(t.Context(), opts); err != nil || len(runs) != 0 {
		t.Errorf("no state folder: got %v, %v; want nothing", runs, err)
	}
	stopping := journal.NewEvent(journal.RunStopping, "", 0, journal.Stopping{Cause: journal.CauseFailed, Exit: exit(3)})
	finished := journal.NewEvent(journal.RunFinished, "", 0, journal.Finished{Stopping: journal.Stopping{Cause: journal.CauseFailed, Exit: exit(3)}})
	writeRun(t, opts, "ab-one")
	writeRun(t, opts, "ab-two22", stopping)
	writeRun(t, opts, "over", stopping, finished, journal.NewEvent(journal.RunClean, "", 0, journal.Clean{SpendUSD: 2}))
	if err := os.MkdirAll(filepath.Join(opts.Home, "runs", "keys-only"), 0o700); err != nil {
		t.Fatal(err)
	}
	runs, err := List(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range runs {
		code := "-"
		if r.Exit != nil {
			code = string(rune('0' + *r.Exit))
		}
		got = append(got, r.Run+" "+r.State+" "+code)
	}
	if want := []string{"ab-two22 stopping -", "ab-one starting -", "over clean 3"}; !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, c := range []struct {
		prefix, want string
		ambiguous    int
		unknown      bool
	}{
		{prefix: "ab-one", want: "ab-one"},
		{prefix: "ov", want: "over"},
		{prefix: "ab-t", want: "ab-two22"},
		{prefix: "ab", ambiguous: 2},
		{prefix: "", ambiguous: 2},
		{prefix: "x", unknown: true},
		{prefix: "keys-only", unknown: true},
	} {
		got, err := FindRun(c.prefix, opts)
		several, isAmbiguous := errors.AsType[*AmbiguousRunError](err)
		if got != c.want || isAmbiguous != (c.ambiguous > 0) || isAmbiguous && len(several.Runs) != c.ambiguous || errors.Is(err, ErrUnknownRun) != c.unknown {
			t.Errorf("find %q: got %q, %v", c.prefix, got, err)
		}
	}
	if _, err := ReadResult("ab-one", opts); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("result of a living run: got %v", err)
	}
	if _, err := Attach(t.Context(), "nobody", opts); !errors.Is(err, ErrUnknownRun) {
		t.Errorf("attach: got %v, want %v", err, ErrUnknownRun)
	}
}

func TestRunIDs(t *testing.T) {
	for run, ok := range map[string]bool{"a": true, "a-1": true, "A": false, "1a": false, "": false, "a/b": false, "..": false, "a_b": false, newRunID("job"): true} {
		if err := checkRunID(run); (err == nil) != ok {
			t.Errorf("run id %q: got %v, want ok: %v", run, err, ok)
		}
	}
	if first, second := newRunID("j"), newRunID("j"); first == second {
		t.Error("two run ids are the same")
	}
}

func TestHomeFolder(t *testing.T) {
	env := func(vars map[string]string) func(string) (string, bool) {
		return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
	}
	for _, c := range []struct {
		opts Options
		want string
	}{
		{Options{Home: "/h", Env: env(map[string]string{envHome: "/x"})}, "/h"},
		{Options{Env: env(map[string]string{envHome: "/x", envState: "/s"})}, "/x"},
		{Options{Env: env(map[string]string{envState: "/s"})}, "/s/launcher"},
	} {
		if got, err := c.opts.HomeFolder(); err != nil || got != c.want {
			t.Errorf("got %q, %v; want %q", got, err, c.want)
		}
	}
}

func TestJudge(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	opts := GCOptions{NodeLease: 5 * time.Minute, StartTimeout: 20 * time.Minute}
	machine := func(role string, age time.Duration, expires string) providers.Resource {
		return providers.Resource{
			ID: role, Kind: providers.KindMachine, State: providers.Running, CreatedAt: now.Add(-age),
			Tags: map[string]string{providers.TagRole: role, providers.TagExpires: expires},
		}
	}
	at := func(d time.Duration) string { return now.Add(d).Format(time.RFC3339) }
	for _, c := range []struct {
		name      string
		resources []providers.Resource
		want      bool
	}{
		{"workers without a head, old", []providers.Resource{machine("worker", time.Hour, "")}, true},
		{"workers without a head, a start may be under way", []providers.Resource{machine("worker", 29*time.Minute, "")}, false},
		{"one of them is young", []providers.Resource{machine("worker", time.Hour, ""), machine("worker", time.Minute, "")}, false},
		{"the head's expiry is ahead", []providers.Resource{machine("head", time.Hour, at(time.Minute))}, false},
		{"the head's expiry is less than a lease past", []providers.Resource{machine("head", time.Hour, at(-4*time.Minute))}, false},
		{"the head's expiry is a lease past", []providers.Resource{machine("head", time.Hour, at(-6*time.Minute))}, true},
		{"an expiry that cannot be read", []providers.Resource{machine("head", time.Hour, "soon")}, false},
		{"an age that is not known", []providers.Resource{{ID: "x", State: providers.Running}}, false},
	} {
		if got, why := judge(c.resources, now, opts); got != c.want {
			t.Errorf("%s: got %v (%s), want %v", c.name, got, why, c.want)
		}
	}
}

func TestGCCollectsOnlyTheDead(t *testing.T) {
	s := newSite(t)
	s.work = time.Hour
	h, err := Up(patient(t), s.job(jobspec.SupervisorHead), s.options(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	awaitEvent(t, h, journal.GenerationFormed)
	s.cloud.Plant(providers.Resource{
		ID: "orphan", Kind: "disk", State: providers.Running, Region: "sim-1", CreatedAt: time.Now().Add(-time.Hour),
		Tags: map[string]string{providers.TagRun: "old-1", providers.TagOwner: "sim-owner", providers.TagRole: "worker"},
	}, 0)
	opts := GCOptions{Options: s.options(t.TempDir()), NodeLease: time.Nanosecond, StartTimeout: time.Nanosecond} // a planted resource is born now
	runs, skipped, err := GC(patient(t), opts)
	if err != nil || len(skipped) > 0 || len(runs) != 2 || runs[0].Run != "old-1" || !runs[0].Dead || runs[1].Dead {
		t.Fatalf("got %+v, %v, %v; want old-1 dead and run-1 alive", runs, skipped, err)
	}
	if _, err := Collect(patient(t), runs[1], opts); err == nil {
		t.Error("a living run is collected")
	}
	if d, err := Collect(patient(t), runs[0], opts); err != nil || !cmp.Equal(d.Deleted, []string{"orphan"}) {
		t.Errorf("got %+v, %v; want the orphan deleted", d, err)
	}
	if err := h.Stop(patient(t), journal.Stopping{Cause: journal.CauseDown}); err != nil {
		t.Error(err)
	}
	if r, err := h.Wait(patient(t)); err != nil || !r.Clean {
		t.Errorf("got %+v, %v; want clean", r, err)
	}
	s.mustBeGone()
}
