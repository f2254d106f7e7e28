package local

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestUnprivileged runs the tests that depend on rights again, as nobody in particular, where we are root.
func TestUnprivileged(t *testing.T) {
	if os.Getuid() != 0 {
		return // then the others have done so
	}
	t.Parallel()
	const nobody = 65534
	dir, err := os.MkdirTemp("", "local")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	binary := filepath.Join(dir, "test")
	if err := copyFile(binary, os.Args[0]); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, binary} {
		if err := os.Chown(path, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(binary, "-test.run=^(TestGuestEnvironment|TestSibling|TestDeleteEndsDaemons|TestCrash|TestDeepRoot|TestCreatorDiesBetween)$")
	cmd.Dir = dir
	cmd.Env = []string{"HOME=" + dir, "TMPDIR=" + dir, "PATH=" + guestPath}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("as user %d: %v\n%s", nobody, err, out)
	}
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// BenchmarkBoot is the time from Create to 16 machines listed with an address, and to their being gone.
func BenchmarkBoot(b *testing.B) {
	c := newCloud(b)
	for i := 0; b.Loop(); i++ {
		c.remove(b, c.rent(b, fmt.Sprintf("t-%d", i), 16)...)
	}
}
