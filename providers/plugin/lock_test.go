package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), LockName)
	if pins, err := ReadLock(path); err != nil || pins != nil {
		t.Errorf("no file: %v, %v", pins, err)
	}
	sum := func(digit string) string { return strings.Repeat(digit, 64) }
	for _, pin := range []Pin{
		{Name: "lab", Platform: "linux/amd64", Checksum: sum("a"), Version: "1.0"},
		{Name: "lab", Platform: "darwin/arm64", Checksum: sum("b")},
		{Name: "lab", Platform: "linux/amd64", Checksum: sum("c"), Version: "1.1"},
	} {
		if err := AddPin(path, pin); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := "# Plugins that this job may run. NAME OS/ARCH sha256:HEX VERSION\n" +
		"lab darwin/arm64 sha256:" + sum("b") + "\n" +
		"lab linux/amd64 sha256:" + sum("c") + " 1.1\n"
	if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}
	pins, err := ReadLock(path)
	if err != nil || len(pins) != 2 {
		t.Errorf("read back: %v, %v", pins, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("folder has %v, want the lock alone", entries)
	}
	for _, bad := range []Pin{
		{Name: "Lab", Platform: "a/b", Checksum: sum("a")},
		{Name: "lab", Platform: "ab", Checksum: sum("a")},
		{Name: "lab", Platform: "a/b", Checksum: sum("A")},
		{Name: "lab", Platform: "a/b", Checksum: "a"},
		{Name: "lab", Platform: "a/b", Checksum: sum("a"), Version: "1\nlab a/b sha256:" + sum("e")},
	} {
		if err := AddPin(path, bad); err == nil {
			t.Errorf("wrote %+v", bad)
		}
	}
}

func FuzzLock(f *testing.F) {
	f.Add([]byte("# c\n\nlab a/b sha256:" + strings.Repeat("0", 64) + " 1\n"))
	f.Add([]byte("lab a/b sha256:x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		pins, err := parseLock("f", data)
		if err != nil {
			return
		}
		for _, pin := range pins {
			again, ok, err := parsePin(pin.String())
			if err != nil || !ok || again != pin {
				t.Errorf("%+v became %+v, %v", pin, again, err)
			}
		}
	})
}
