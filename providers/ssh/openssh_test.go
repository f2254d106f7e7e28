package ssh

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
	"github.com/ephemeral-launcher/launcher/providers"
)

// openSSH runs the system's own SSH server as a host.
func openSSH(t *testing.T, user sshkey.Pair) *testHost {
	t.Helper()
	sshd, err := exec.LookPath("/usr/sbin/sshd")
	if err != nil {
		t.Skip("no OpenSSH server here")
	}
	h := &testHost{home: t.TempDir(), key: pair(t)}
	l, err := net.Listen("tcp", "127.0.0.1:0") // to find a free port
	if err != nil {
		t.Fatal(err)
	}
	h.address = l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(h.address)
	authorized := filepath.Join(h.home, ".ssh", "authorized_keys")
	config := fmt.Sprintf("ListenAddress 127.0.0.1:%s\nHostKey %s/host_key\nAuthorizedKeysFile %s\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPidFile none\nPermitRootLogin yes\nSetEnv HOME=%s\nPerSourcePenalties no\n",
		port, h.home, authorized, h.home)
	if out, _ := exec.Command(sshd, "-V").CombinedOutput(); !strings.Contains(string(out), "OpenSSH_9.8") && !strings.Contains(string(out), "OpenSSH_9.9") && !strings.Contains(string(out), "OpenSSH_1") {
		config = strings.ReplaceAll(config, "PerSourcePenalties no\n", "") // unknown before 9.8
	}
	for name, text := range map[string]string{"host_key": string(h.key.Private), "config": config, ".ssh/authorized_keys": user.Public + "\n"} {
		path := filepath.Join(h.home, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(sshd, "-t", "-f", filepath.Join(h.home, "config")).CombinedOutput(); err != nil {
		t.Skipf("OpenSSH's server does not run here: %s", out)
	}
	cmd := exec.Command(sshd, "-D", "-e", "-f", filepath.Join(h.home, "config"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return h
}

// TestOpenSSH: a run's own key gets into the machine by the forced command, and no longer when it is deleted.
func TestOpenSSH(t *testing.T) {
	s := &site{Provider: New(), user: pair(t)}
	h := openSSH(t, s.user)
	s.hosts = []*testHost{h}
	account := "root"
	if name := os.Getenv("USER"); os.Getuid() != 0 && name != "" {
		account = name
	}
	config := strings.Replace(string(s.config()), `"user":"me"`, fmt.Sprintf(`"user":%q`, account), 1)
	target := sshexec.Target{Addr: h.address, User: account, Keys: [][]byte{s.user.Private}, HostKeys: []string{h.key.Public}}
	up, err := sshexec.DialWhenUp(t.Context(), target, sshexec.Pacing{})
	if err != nil {
		t.Fatal(err)
	}
	up.Close()

	run := pair(t)
	offers, err := s.Offers(t.Context(), providers.OffersRequest{Config: []byte(config), Markets: []providers.Market{providers.Spot}})
	if err != nil || offers[0].Rejected != "" {
		t.Fatalf("offers: %+v, %v", offers, err)
	}
	req := providers.CreateRequest{
		Config: []byte(config), Token: "t", Run: "r", Offers: offers, Count: 1, TTL: 1e12, AuthorizedKeys: []string{run.Public},
		Tags: map[string]string{providers.TagRun: "r", providers.TagOwner: "me", providers.TagRole: "worker"},
	}
	result, err := s.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	m := result.Machines[0]
	target.User, target.Keys = m.User, [][]byte{run.Private}
	conn, err := sshexec.Dial(t.Context(), target)
	if err != nil {
		t.Fatalf("login with the run's key: %v", err)
	}
	got, err := conn.Run(t.Context(), `echo "$LAUNCHER_MACHINE it's $(basename "$HOME")"; cat | wc -c; exit 7`)
	if err != nil || got.Exit.Code != 7 || string(got.Stdout) != m.ID+" it's home\n0\n" {
		t.Errorf("got %q, %v, %v: %s", got.Stdout, got.Exit, err, got.Stderr)
	}
	conn.Close()
	left, err := s.Delete(t.Context(), providers.DeleteRequest{Config: []byte(config), Run: "r", Resources: []providers.Resource{{ID: m.ID}}})
	if err != nil || len(left) > 0 {
		t.Fatalf("delete: %v, %v", left, err)
	}
	if _, err := sshexec.Dial(t.Context(), target); sshexec.Classify(err) != sshexec.AuthRefused {
		t.Errorf("login after the end: %v", err)
	}
}
