package train

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func testState(step int) *state {
	s := newState(1)
	s.step = step
	s.velocity[3] = float64(step)
	return s
}

func save(t *testing.T, folder string, step int) string {
	t.Helper()
	path, err := saveCheckpoint(folder, testState(step), recipe(1))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCheckpointHoldsTheWholeState(t *testing.T) {
	folder := t.TempDir()
	save(t, folder, 30)
	got, _ := newestCheckpoint([]string{folder}, recipe(1), func(path string, why error) { t.Errorf("%s: %v", path, why) })
	if diff := cmp.Diff(got, testState(30), cmp.AllowUnexported(state{})); diff != "" {
		t.Errorf("-got +want:\n%s", diff)
	}
}

func TestDamagedCheckpointsAreSkipped(t *testing.T) {
	damage := func(change func(content []byte) []byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, change(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, path string)
		want  string
	}{
		{"empty", damage(func([]byte) []byte { return nil }), "not a whole checkpoint"},
		{"cut short", damage(func(b []byte) []byte { return b[:len(b)-1] }), "not a whole checkpoint"},
		{"too long", damage(func(b []byte) []byte { return append(b, 0) }), "not a whole checkpoint"},
		{"too long to read", func(t *testing.T, path string) {
			if err := os.Truncate(path, 1<<40); err != nil {
				t.Fatal(err)
			}
		}, "not a whole checkpoint"},
		{"a bit flipped", damage(func(b []byte) []byte { b[1000] ^= 4; return b }), "checksum differs"},
		{"all zeros", damage(func(b []byte) []byte { clear(b); return b }), "not a whole checkpoint"},
		{"of another step", damage(func([]byte) []byte { return testState(19).encode(recipe(1)) }), "holds step 19"},
		{"of another seed", damage(func([]byte) []byte { return testState(20).encode(recipe(2)) }), "made with another seed, rate or batch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			folder := t.TempDir()
			save(t, folder, 10)
			newest := save(t, folder, 20)
			c.spoil(t, newest)
			skipped := map[string]string{}
			got, _ := newestCheckpoint([]string{folder}, recipe(1), func(path string, why error) { skipped[path] = why.Error() })
			if got == nil || got.step != 10 {
				t.Errorf("got %v, want step 10", got)
			}
			if diff := cmp.Diff(skipped, map[string]string{newest: c.want}); diff != "" {
				t.Errorf("skipped -got +want:\n%s", diff)
			}
		})
	}
}

func TestNewestCheckpointOfTwoFolders(t *testing.T) {
	launchers, own := t.TempDir(), t.TempDir()
	save(t, launchers, 40)
	save(t, own, 50)
	for _, c := range []struct {
		name    string
		folders []string
		want    int
	}{
		{"own is newer", []string{launchers, own}, 50},
		{"the launcher's is newer", []string{own, launchers}, 50},
		{"own only", []string{"", own}, 50},
		{"own is not there", []string{launchers, filepath.Join(own, "none")}, 40},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _ := newestCheckpoint(c.folders, recipe(1), func(path string, why error) { t.Errorf("%s: %v", path, why) })
			if got == nil || got.step != c.want {
				t.Errorf("got %v, want step %d", got, c.want)
			}
		})
	}
	if got, _ := newestCheckpoint([]string{"", t.TempDir()}, recipe(1), func(string, error) {}); got != nil {
		t.Errorf("got step %d out of nothing", got.step)
	}
}

func TestOldCheckpointsGo(t *testing.T) {
	folder := t.TempDir()
	// Newer, and no start: they must not push out what is good.
	for _, name := range []string{"step-000900.ckpt", "step-000901.ckpt", "step-000902.ckpt", "notes.txt", ".writing"} {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for step := 10; step <= 50; step += 10 {
		save(t, folder, step)
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	want := []string{
		"notes.txt", "step-000030.ckpt", "step-000040.ckpt", "step-000050.ckpt",
		"step-000900.ckpt", "step-000901.ckpt", "step-000902.ckpt",
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("-got +want:\n%s", diff)
	}
}
