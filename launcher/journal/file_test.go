package journal

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/providers"
)

func still() time.Duration { return 0 }

func volatile(c Clock) Options { return Options{Clock: c, Volatile: true} }

// written is a journal of a few events on disk, closed.
func written(t testing.TB) (folder string, events []Event) {
	t.Helper()
	folder = t.TempDir()
	now := time.Duration(0)
	j, err := Create(context.Background(), folder, "run-1", Created{JobName: "j"}, Options{Clock: func() time.Duration { now += time.Second; return now }})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []Event{
		NewEvent(NodeIntended, "w0.1", 0, intent("t", 1)), NewEvent(NodeCreated, "w0.1", 0, made("m")), NewEvent(RunScaled, "", 0, Scaled{Workers: 3}),
	} {
		if err := j.Append(context.Background(), e); err != nil {
			t.Fatal(err)
		}
	}
	events, _ = j.Since(0)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return folder, events
}

func TestJournalComesBack(t *testing.T) {
	folder, events := written(t)
	j, err := Open(folder, volatile(still))
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if got, _ := j.Since(0); cmp.Diff(events, got) != "" {
		t.Errorf("(-written +read)\n%s", cmp.Diff(events, got))
	}
	if got := j.State().Want; got != 3 {
		t.Errorf("want is %d after opening, want 3", got)
	}
	if got, newest := j.Now(), events[len(events)-1].At.Duration(); got < newest {
		t.Errorf("the run clock shows %v, before the newest event at %v", got, newest)
	}
	if _, err := Open(folder, volatile(still)); !errors.Is(err, ErrLocked) {
		t.Errorf("a second Open: %v, want ErrLocked", err)
	}
	if _, err := Adopt(folder, events, volatile(still)); !errors.Is(err, ErrLocked) {
		t.Errorf("Adopt over a journal that is held: %v, want ErrLocked", err)
	}
	if _, err := Create(t.Context(), folder, "run-1", Created{}, volatile(still)); !errors.Is(err, ErrLocked) {
		t.Errorf("Create over a journal that is held: %v, want ErrLocked", err)
	}
}

func TestCreateAndAdopt(t *testing.T) {
	folder, events := written(t)
	if _, err := Create(t.Context(), folder, "run-1", Created{}, volatile(still)); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Create over a journal: %v, want fs.ErrExist", err)
	}
	j, err := Adopt(folder, events[:2], volatile(still))
	if err != nil {
		t.Fatal(err)
	}
	if got := j.State().Events; got != 2 {
		t.Errorf("adopted %d events, want 2", got)
	}
	j.Close()
	if _, err := Adopt(folder, events[1:], volatile(still)); err == nil {
		t.Error("adopted a journal without its beginning")
	}
	if _, err := Open(filepath.Join(folder, "nowhere"), volatile(still)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open of nothing: %v, want fs.ErrNotExist", err)
	}
	// A creator that died before its first event was on disk leaves nothing that counts.
	empty := t.TempDir()
	if err := os.WriteFile(filepath.Join(empty, FileName), []byte(`{"time":"20`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(empty, volatile(still)); err == nil {
		t.Error("opened a journal without an event")
	}
	j, err = Create(t.Context(), empty, "run-2", Created{}, volatile(still))
	if err != nil {
		t.Fatal(err)
	}
	j.Close()
	if events, err := ReadFile(filepath.Join(empty, FileName)); err != nil || len(events) != 1 {
		t.Errorf("%d events, %v", len(events), err)
	}
}

// TestTornTail cuts the file at every byte: what was whole is there, and the journal goes on after it.
func TestTornTail(t *testing.T) {
	folder, events := written(t)
	path := filepath.Join(folder, FileName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	firstLine := bytes.IndexByte(whole, '\n') + 1
	for cut := firstLine; cut <= len(whole); cut += 3 {
		for _, junk := range []string{"", "\x00\x00\x00", "{\n"} {
			if err := os.WriteFile(path, append(whole[:cut:cut], junk...), 0o600); err != nil {
				t.Fatal(err)
			}
			lines := bytes.Count(whole[:cut], []byte{'\n'})
			j, err := Open(folder, volatile(still))
			if err != nil {
				t.Fatalf("cut at %d%q: %v", cut, junk, err)
			}
			if err := j.Append(t.Context(), NewEvent(RunDrained, "", 0, nil)); err != nil {
				t.Fatal(err)
			}
			j.Close()
			got, err := ReadFile(path)
			if err != nil || len(got) != lines+1 || cmp.Diff(events[:lines], got[:lines]) != "" {
				t.Fatalf("cut at %d%q: %d events, %v; want %d and the new one", cut, junk, len(got), err, lines)
			}
		}
	}
}

func TestDamageIsAnError(t *testing.T) {
	folder, _ := written(t)
	path := filepath.Join(folder, FileName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	whole[bytes.IndexByte(whole, '\n')-2] = 'x'
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(folder, volatile(still)); err == nil {
		t.Error("opened a journal with damage in its middle")
	}
}

func TestAppend(t *testing.T) {
	folder, events := written(t)
	now := 10 * time.Second
	j, err := Open(folder, volatile(func() time.Duration { return now }))
	if err != nil {
		t.Fatal(err)
	}
	// All or nothing: the second cannot follow, so the first is not written either.
	err = j.Append(t.Context(), NewEvent(RunDrained, "", 0, nil), NewEvent(NodeJoined, "w0.1", 0, Joined{}))
	if !errors.Is(err, ErrCannotFollow) {
		t.Errorf("got %v, want ErrCannotFollow", err)
	}
	if j.State().Drained || j.Err() != nil {
		t.Error("half of a batch was taken, or the journal was given up")
	}
	// The clock never goes back.
	if err := j.Append(t.Context(), NewEvent(RunDrained, "", 0, nil)); err != nil {
		t.Fatal(err)
	}
	now = 5 * time.Second
	_, changed := j.Since(1 << 30)
	if err := j.Append(t.Context(), NewEvent(RunFetched, "", 0, nil)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	default:
		t.Error("the follower was not told")
	}
	got, _ := j.Since(len(events))
	if got[1].At < got[0].At || j.Now() < got[1].At.Duration() {
		t.Errorf("the clock goes from %v to %v, now %v", got[0].At.Duration(), got[1].At.Duration(), j.Now())
	}
	// What another holder stamped keeps its stamps.
	stamped := NewEvent(RunScaled, "", 0, Scaled{Workers: 9})
	stamped.Run, stamped.At, stamped.Time = "run-1", At(time.Hour), time.Unix(1, 0).UTC()
	if err := j.AppendStamped(t.Context(), stamped); err != nil {
		t.Fatal(err)
	}
	if got, _ := j.Since(len(events) + 2); got[0].At != At(time.Hour) || !got[0].Time.Equal(time.Unix(1, 0)) {
		t.Errorf("stamped anew: %+v", got[0])
	}
	j.Close()
	if err := j.Append(t.Context(), stamped); err == nil {
		t.Error("appended to a closed journal")
	}
}

// TestFailedWrite: after an error of the disk nothing is taken any more, and who follows is told.
func TestFailedWrite(t *testing.T) {
	full := errors.New("disk full")
	door := &Door{Guard: func(number int, _ Effect, act func() error) error {
		if number == 2 {
			return full
		}
		return act()
	}}
	j, err := Create(t.Context(), t.TempDir(), "run-1", Created{}, Options{Clock: still, Door: door, Volatile: true})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	_, changed := j.Since(1)
	for range 2 {
		if err := j.Append(t.Context(), NewEvent(RunDrained, "", 0, nil)); !errors.Is(err, full) {
			t.Errorf("got %v, want the disk's error", err)
		}
	}
	<-changed
	if !errors.Is(j.Err(), full) || j.State().Drained {
		t.Errorf("err %v, drained %v", j.Err(), j.State().Drained)
	}
	if got := door.Count(); got != 2 {
		t.Errorf("%d effects, want 2", got)
	}
}

func TestConcurrentAppends(t *testing.T) {
	j, err := Create(t.Context(), t.TempDir(), "run-1", Created{}, volatile(BootTime))
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	var writing sync.WaitGroup
	for range 8 {
		writing.Go(func() {
			for range 50 {
				if err := j.Append(t.Context(), NewEvent(ProgressReported, "", 0, Progress{})); err != nil {
					t.Error(err)
				}
				_ = j.State().SpendUSD(0)
			}
		})
	}
	writing.Wait()
	events, _ := j.Since(0)
	if len(events) != 401 || !slices.IsSortedFunc(events, func(a, b Event) int { return int(a.At - b.At) }) {
		t.Errorf("%d events, in order of time: %v", len(events), slices.IsSortedFunc(events, func(a, b Event) int { return int(a.At - b.At) }))
	}
}

func TestDoor(t *testing.T) {
	var d *Door
	if err := d.Pass(t.Context(), Effect{}, func() error { return nil }); err != nil || d.Count() != 0 {
		t.Errorf("no door: %v, %d", err, d.Count())
	}
	d = &Door{Guard: func(int, Effect, func() error) error { return ErrCrashed }}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Pass(ctx, Effect{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a dead process acts: %v", err)
	}
}

func TestStartClock(t *testing.T) {
	elapsed := time.Hour
	c := StartClock(time.Minute, func() time.Duration { return elapsed })
	elapsed += time.Second
	if got, want := c(), time.Minute+time.Second; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if a, b := BootTime(), BootTime(); a <= 0 || b < a {
		t.Errorf("boot time goes from %v to %v", a, b)
	}
}

// FuzzReadFile: whatever a crash or a failing disk makes of the file, it is an error or a run that folds, and what folds can be gone on with.
func FuzzReadFile(f *testing.F) {
	folder, _ := written(f)
	whole, err := os.ReadFile(filepath.Join(folder, FileName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole, 0, byte(0))
	f.Add(whole, len(whole)/2, byte(4))
	f.Add(whole[:len(whole)-5], 20, byte(0))
	f.Add([]byte("\n\n\n"), 0, byte(0))
	f.Add([]byte(`{"time":"2026-01-02T03:04:05Z","at":1e99,"kind":"run.created","run":"r"}`+"\n"), 0, byte(0))
	f.Fuzz(func(t *testing.T, file []byte, flip int, bits byte) {
		if flip >= 0 && flip < len(file) {
			file = slices.Clone(file)
			file[flip] ^= bits
		}
		folder := t.TempDir()
		path := filepath.Join(folder, FileName)
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		events, err := ReadFile(path)
		if err != nil {
			return
		}
		j, err := Open(folder, volatile(still))
		if err != nil {
			return
		}
		defer j.Close()
		s := j.State()
		if s.Events != len(events) {
			t.Fatalf("Open folds %d events, ReadFile reads %d", s.Events, len(events))
		}
		for _, n := range s.List("") {
			_, _ = n.USDPerHour()
			_ = n.HostKeys()
		}
		_, _ = s.SpendUSD(s.At), s.Goodput(s.At)
		if err := j.Append(t.Context(), NewEvent(RunFetched, "", 0, nil)); err != nil {
			t.Fatalf("append to what was opened: %v", err)
		}
		again, err := ReadFile(path)
		if err != nil {
			t.Fatalf("read what was appended to: %v", err)
		}
		if folded, err := Fold(again); err != nil || folded.Events != s.Events+1 {
			t.Fatalf("fold what was appended to: %v", err)
		}
	})
}

// BenchmarkJoin is the journal's part in 1,000 workers joining: five events each.
func BenchmarkJoin(b *testing.B) {
	for b.Loop() {
		j, err := Create(b.Context(), b.TempDir(), "run-1", Created{}, volatile(BootTime))
		if err != nil {
			b.Fatal(err)
		}
		var intents []Event
		for i := range 1000 {
			in := intent("t", 1000)
			in.Slot = i
			intents = append(intents, NewEvent(NodeIntended, NodeName(i, 1), 0, in))
		}
		if err := j.Append(b.Context(), intents...); err != nil {
			b.Fatal(err)
		}
		for i := range 1000 {
			name := NodeName(i, 1)
			for _, e := range []Event{
				NewEvent(NodeCreated, name, 0, made(name)), NewEvent(NodeReachable, name, 0, Reachable{}), NewEvent(NodeRekeying, name, 0, Rekeyed{HostKey: "k"}),
				NewEvent(NodeRekeyed, name, 0, Rekeyed{HostKey: "k"}), NewEvent(NodeJoined, name, 0, Joined{}),
			} {
				if err := j.Append(b.Context(), e); err != nil {
					b.Fatal(err)
				}
			}
		}
		if got := len(j.State().List(providers.Worker)); got != 1000 {
			b.Fatalf("%d workers", got)
		}
		j.Close()
	}
}
