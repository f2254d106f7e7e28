package plugin

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPrograms: the executables of other platforms are found where a build or a release puts them, and trusted as this computer's is.
func TestPrograms(t *testing.T) {
	self := runtime.GOOS + "-" + runtime.GOARCH
	place := func(folder, platform, content string) string {
		dir := filepath.Join(folder, platform)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		return install(t, dir, "lab", content, 0o755)
	}
	// As `make build` lays them out: folders of platforms, and a link to this one's.
	bin := t.TempDir()
	own := place(bin, self, "self")
	place(bin, "linux-riscv64", "other")
	place(bin, "plan9-amd64", "no machine's")
	place(bin, "data", "no platform's")
	install(t, filepath.Join(bin, "data"), "lab", "x", 0o755)
	link := filepath.Join(bin, Prefix+"lab")
	if err := os.Symlink(filepath.Join(self, Prefix+"lab"), link); err != nil {
		t.Fatal(err)
	}
	// A third party's: the platforms' folders beside the executable.
	vendor := t.TempDir()
	foreign := install(t, vendor, "lab", "self", 0o755)
	place(vendor, "linux-riscv64", "other")
	place(vendor, "linux-mips", "unlocked")

	sums := map[string]string{}
	for _, content := range []string{"self", "other"} {
		path := filepath.Join(t.TempDir(), "content")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		sum, err := Checksum(path)
		if err != nil {
			t.Fatal(err)
		}
		sums[content] = sum
	}
	lock := filepath.Join(vendor, LockName)
	pin := func(platform, sum string) {
		if err := AddPin(lock, Pin{Name: "lab", Platform: platform, Checksum: sum}); err != nil {
			t.Fatal(err)
		}
	}
	pin(Platform(), sums["self"])
	pin("linux/riscv64", sums["other"])

	for name, tc := range map[string]struct {
		search Search
		path   string
	}{
		"own, by the link":   {Search{Own: []string{bin}}, link},
		"own, by its folder": {Search{Own: []string{filepath.Join(bin, self)}}, own},
		"a third party's":    {Search{Others: []string{vendor}}, foreign},
	} {
		h, err := Resolve("lab", tc.search, lock, Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		programs, err := h.Programs()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := map[string]string{}
		for _, p := range programs {
			got[p.Platform] = p.SHA256
			if sum, err := Checksum(p.Path); err != nil || sum != p.SHA256 {
				t.Errorf("%s: %s has checksum %s (%v), want %s", name, p.Path, sum, err, p.SHA256)
			}
		}
		if diff := cmp.Diff(map[string]string{self: sums["self"], "linux-riscv64": sums["other"]}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if programs[0].Platform != self || programs[0].Path != tc.path {
			t.Errorf("%s: the first program is %+v, want this computer's, %s", name, programs[0], tc.path)
		}
	}

	// One that is there and is not what the lock has is no oversight.
	pin("linux/riscv64", strings.Repeat("0", 64))
	h, err := Resolve("lab", Search{Others: []string{vendor}}, lock, Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Programs()
	if locked := new(LockError); !errors.As(err, &locked) || locked.Pin.Platform != "linux/riscv64" {
		t.Errorf("a changed program of another platform: %v", err)
	}
	// And this computer's must be what it was when it was resolved.
	if err := os.WriteFile(foreign, []byte("changed"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Programs(); err == nil || !strings.Contains(err.Error(), "has changed") {
		t.Errorf("a changed program: %v", err)
	}
}
