//go:build integration

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
)

// sshHost is an OpenSSH server on loopback with a home folder of its own: to whoever logs in, a host.
type sshHost struct {
	address, home string
	key           sshkey.Pair
}

// lab is three hosts and what it takes to be a user of them.
type lab struct {
	t        *testing.T
	binaries string
	home     string // of launcher
	folder   string // of the job
	user     sshkey.Pair
	account  string
	hosts    []*sshHost
}

func newLab(t *testing.T, binaries string) *lab {
	t.Helper()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, binaries: binaries, home: t.TempDir(), folder: t.TempDir(), user: newPair(t), account: me.Username}
	for range 3 {
		l.hosts = append(l.hosts, l.openSSH())
	}
	write(t, filepath.Join(l.folder, "key"), string(l.user.Private))
	l.known(l.hosts)
	return l
}

func newPair(t *testing.T) sshkey.Pair {
	t.Helper()
	pair, err := sshkey.New("")
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// openSSH starts the system's own server, which ends with the test.
func (l *lab) openSSH() *sshHost {
	t := l.t
	t.Helper()
	const sshd = "/usr/sbin/sshd"
	if _, err := os.Stat(sshd); err != nil {
		t.Skip("no OpenSSH server here")
	}
	// Short, because sockets lie below it.
	home, err := os.MkdirTemp("", "host")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	h := &sshHost{home: home, key: newPair(t)}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.address = free.Addr().String()
	free.Close()
	_, port, err := net.SplitHostPort(h.address)
	if err != nil {
		t.Fatal(err)
	}
	settings := t.TempDir()
	config := filepath.Join(settings, "config")
	write(t, filepath.Join(settings, "host_key"), string(h.key.Private))
	write(t, filepath.Join(home, ".ssh", "authorized_keys"), l.user.Public+"\n")
	write(t, config, fmt.Sprintf("ListenAddress 127.0.0.1:%s\nHostKey %s/host_key\nAuthorizedKeysFile %s/.ssh/authorized_keys\nStrictModes no\nUsePAM no\n"+
		"PasswordAuthentication no\nPidFile none\nPermitRootLogin yes\nMaxStartups 100\nSetEnv HOME=%s\n", port, settings, home, home))
	if out, err := exec.Command(sshd, "-t", "-f", config).CombinedOutput(); err != nil {
		t.Skipf("OpenSSH's server does not run here: %s", out)
	}
	cmd := exec.Command(sshd, "-D", "-e", "-f", config)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := sshexec.DialWhenUp(ctx, sshexec.Target{Addr: h.address, User: l.account, Keys: [][]byte{l.user.Private}, HostKeys: []string{h.key.Public}}, sshexec.Pacing{})
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	return h
}

// known writes the known_hosts of the job.
func (l *lab) known(hosts []*sshHost) {
	var lines strings.Builder
	for i, h := range l.hosts {
		host, port, _ := net.SplitHostPort(h.address)
		fmt.Fprintf(&lines, "[%s]:%s %s\n", host, port, hosts[i].key.Public)
	}
	write(l.t, filepath.Join(l.folder, "known_hosts"), lines.String())
}

// job writes a job for two workers.
func (l *lab) job(supervisor, command, limits string) string {
	var hosts []string
	for _, h := range l.hosts {
		hosts = append(hosts, fmt.Sprintf("%q", h.address))
	}
	path := filepath.Join(l.folder, "job.hcl")
	write(l.t, path, fmt.Sprintf(`job "lab" {
  provider "ssh" {
    hosts    = [%s]
    user     = %q
    key      = "key"
    host_key = file("known_hosts")
  }
  head {
    supervisor = %q
    cpus       = 1
  }
  workers {
    count = 2
    cpus  = 1
  }
  run "ranks" { command = %q }
  outputs {
    from = "out"
    to   = "./results"
  }
  limits {
    %s
  }
}
`, strings.Join(hosts, ", "), l.account, supervisor, command, limits))
	return path
}

// launcher prepares a command of the program, in a state folder and with an environment of its own.
func (l *lab) launcher(ctx context.Context, args ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.CommandContext(ctx, filepath.Join(l.binaries, runtime.GOOS+"-"+runtime.GOARCH, "launcher"), args...)
	cmd.Dir = l.folder
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "LAUNCHER_") && !strings.HasPrefix(e, "XDG_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, "LAUNCHER_HOME="+l.home, "LAUNCHER_BINARIES="+l.binaries, "LAUNCHER_LOG="+filepath.Join(l.home, "log"))
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = 5 * time.Second
	return cmd, out
}

// run runs the program and returns its exit code and what it wrote.
func (l *lab) run(args ...string) (int, string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 2*time.Minute)
	defer cancel()
	cmd, out := l.launcher(ctx, args...)
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		l.t.Fatalf("launcher %v: %v\n%s", args, err, out)
	}
	return exitCodeOf(err), out.String()
}

// returned fails the test where a run left anything on a host.
func (l *lab) returned() {
	t := l.t
	t.Helper()
	for _, h := range l.hosts {
		for _, pattern := range []string{"*/lease", "*/m/*", "login"} {
			if left, err := filepath.Glob(filepath.Join(h.home, ".launcher-host", pattern)); err != nil || len(left) > 0 {
				t.Errorf("%s: left behind: %v, %v", h.address, left, err)
			}
		}
		entries, err := os.ReadDir(h.home)
		if err != nil {
			t.Error(err)
		}
		for _, e := range entries {
			if e.Name() != ".ssh" && e.Name() != ".launcher-host" { // the latter has notes on machines that ended
				t.Errorf("%s: left behind: %s", h.address, e.Name())
			}
		}
		keys, err := os.ReadFile(filepath.Join(h.home, ".ssh", "authorized_keys"))
		if err != nil || string(keys) != l.user.Public+"\n" {
			t.Errorf("%s: authorized keys: %q, %v", h.address, keys, err)
		}
		for _, p := range carriers("LAUNCHER_HOST_HOME=" + h.home) {
			t.Errorf("%s: left behind: %s", h.address, p)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		conn, err := sshexec.Dial(ctx, sshexec.Target{Addr: h.address, User: l.account, Keys: [][]byte{l.user.Private}, HostKeys: []string{h.key.Public}})
		if err != nil {
			t.Errorf("%s: the host's own key: %v", h.address, err)
		} else {
			conn.Close()
		}
		cancel()
	}
}

const rankCommand = `sh -c 'mkdir -p out && echo rank $RANK of $WORLD_SIZE on $LAUNCHER_NODE | tee out/said'`

// TestIntegrationSSH is the ssh provider in whole runs.
func TestIntegrationSSH(t *testing.T) {
	binaries := buildBinaries(t)
	for name, test := range map[string]func(*testing.T, string){
		"run": testSSHRun, "wrong host key": testSSHWrongHostKey, "two runs": testSSHTwoRuns, "loss": testSSHLoss, "killed": testSSHKilled,
	} {
		t.Run(name, func(t *testing.T) { test(t, binaries) })
	}
}

// testSSHRun: whole runs on hosts of a fixed list, supervised by the head and by the client. They are given back as they were.
func testSSHRun(t *testing.T, binaries string) {
	l := newLab(t, binaries)
	for _, supervisor := range []string{"head", "client"} {
		t.Run(supervisor, func(t *testing.T) {
			l.t = t
			job := l.job(supervisor, rankCommand, "")
			results := filepath.Join(l.folder, "results")
			if code, out := l.run("up", "-y", job); code != 0 {
				log, _ := os.ReadFile(filepath.Join(l.home, "log"))
				t.Fatalf("exit code %d\n%s\n%s", code, out, log)
			}
			said, err := filepath.Glob(filepath.Join(results, "said"))
			if err != nil || len(said) != 1 {
				t.Fatalf("outputs: %v, %v", said, err)
			}
			if b, err := os.ReadFile(said[0]); err != nil || !strings.HasPrefix(string(b), "rank 0 of 2 on w") {
				t.Errorf("outputs: %q, %v", b, err)
			}
			if err := os.RemoveAll(results); err != nil {
				t.Fatal(err)
			}
			l.returned()
			l.secretive()
		})
	}
}

// secretive fails the test where the user's own key is in the state folder.
func (l *lab) secretive() {
	l.t.Helper()
	body := strings.Split(strings.TrimSpace(string(l.user.Private)), "\n")
	err := filepath.WalkDir(l.home, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(body[2])) {
			l.t.Errorf("%s has the user's key", path)
		}
		return err
	})
	if err != nil {
		l.t.Error(err)
	}
}

// testSSHWrongHostKey: a host that does not have the key of its line is not used, and nor is its list: whether it is leased cannot be known.
func testSSHWrongHostKey(t *testing.T, binaries string) {
	l := newLab(t, binaries)
	l.known([]*sshHost{l.hosts[0], l.hosts[1], {key: newPair(t)}})
	job := l.job("head", rankCommand, "")
	code, out := l.run("up", "-y", job)
	if code != 121 || !strings.Contains(out, "login on "+l.hosts[2].address) {
		t.Errorf("exit code %d, want 121\n%s", code, out)
	}
	l.returned()
}

// testSSHTwoRuns: hosts that one run has are refused to another, from another state folder, and the first is none the worse for it.
func testSSHTwoRuns(t *testing.T, binaries string) {
	l := newLab(t, binaries)
	release := filepath.Join(l.folder, "release")
	job := l.job("head", fmt.Sprintf(`sh -c 'mkdir -p out; echo begun; until [ -e %s ]; do sleep 0.2; done'`, release), `start_timeout = "15s"`)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	first, _ := l.launcher(ctx, "up", "-y", job)
	first.Stdout = nil
	out, err := first.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	said, begun := &bytes.Buffer{}, false
	lines := bufio.NewScanner(out)
	for !begun && lines.Scan() {
		fmt.Fprintln(said, lines.Text())
		begun = strings.HasSuffix(lines.Text(), "begun")
	}
	if !begun {
		_ = first.Wait()
		t.Fatalf("the first run never began:\n%s%s", said, first.Stderr)
	}
	other := *l
	other.home = t.TempDir()
	if code, out := other.run("up", "-y", job); code != 121 || !strings.Contains(out, "is leased until") {
		t.Errorf("exit code %d, want 121\n%s", code, out)
	}
	write(t, release, "")
	for lines.Scan() { // to its end, as Wait wants it
		fmt.Fprintln(said, lines.Text())
	}
	if err := first.Wait(); err != nil {
		t.Errorf("the first run: %v\n%s%s", err, said, first.Stderr)
	}
	l.returned()
}

// testSSHLoss: a host that ends its machine in mid-run is leased again for the replacement.
func testSSHLoss(t *testing.T, binaries string) {
	l := newLab(t, binaries)
	// What shares the disk here would not with a real head: while it rents the replacement, the user's key is not where the block says.
	key, away := filepath.Join(l.folder, "key"), filepath.Join(l.folder, "away")
	job := l.job("head", fmt.Sprintf(`sh -c 'mkdir -p out; echo $LAUNCHER_NODE | tee out/said
		case $LAUNCHER_GENERATION/$LAUNCHER_SLOT in
		1/0) sleep 60 ;;
		1/1) mv %[1]s %[2]s; poweroff; sleep 60 ;;
		2/1) mv %[2]s %[1]s ;;
		esac'`, key, away), "")
	if code, out := l.run("up", "-y", job); code != 0 || !strings.Contains(out, "1 nodes lost") && !strings.Contains(out, "1 node lost") {
		t.Errorf("exit code %d, want 0 with one node lost\n%s", code, out)
	}
	l.returned()
}

// testSSHKilled: what a killed client leaves on the hosts is ended by down, from the job file alone.
func testSSHKilled(t *testing.T, binaries string) {
	for _, supervisor := range []string{"client", "head"} {
		t.Run(supervisor, func(t *testing.T) {
			l := newLab(t, binaries)
			job := l.job(supervisor, `sh -c 'echo begun; sleep 300'`, "")
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			up, _ := l.launcher(ctx, "up", "-y", job, "--run-id", "killed")
			up.Stdout = nil
			out, err := up.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := up.Start(); err != nil {
				t.Fatal(err)
			}
			begun := false
			for lines := bufio.NewScanner(out); !begun && lines.Scan(); {
				begun = strings.HasSuffix(lines.Text(), "begun")
			}
			if err := up.Process.Kill(); err != nil || !begun {
				t.Errorf("the run began: %v, kill: %v", begun, err)
			}
			_ = up.Wait() // killed
			other := *l
			other.t, other.home = t, t.TempDir()
			if code, out := other.run("down", "killed", "--job", job); code != 0 || !strings.Contains(out, "deleted and seen gone: 3") {
				t.Errorf("exit code %d, want 0\n%s", code, out)
			}
			l.t = t
			l.returned()
		})
	}
}
