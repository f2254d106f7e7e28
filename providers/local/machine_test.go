package local

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/providers"
)

// inEachSandbox runs a test in every way to confine a guest that this kernel grants us.
func inEachSandbox(t *testing.T, body func(t *testing.T, c *cloud)) {
	for _, sandbox := range sandboxes("") {
		t.Run(sandbox, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			c.sandbox = sandbox
			body(t, c)
		})
	}
}

// daemons starts processes that got away from their session, their parent, and (those of a namespace need not care) their environment.
const daemons = `
setsid sleep 1001 >/dev/null 2>&1 </dev/null &
(setsid sh -c 'sleep 1002 & sleep 1003' >/dev/null 2>&1 </dev/null &)
nohup sleep 1004 >/dev/null 2>&1 </dev/null &
env -i /bin/sh -c 'sleep 1005 & exit' >/dev/null 2>&1 </dev/null
while ! pgrep -f '^sleep 100[1-5]$' >/dev/null; do :; done`

func TestDeleteEndsDaemons(t *testing.T) {
	inEachSandbox(t, func(t *testing.T, c *cloud) {
		m := c.rent(t, "t", 1)[0]
		c.sh(t, m, daemons)
		waitFor(t, "all daemons", func() bool { return sleeping(t, c, m.ID) >= 5 })
		c.remove(t, m)
		if n := sleeping(t, c, m.ID); n != 0 {
			t.Errorf("%d processes outlived the machine", n)
		}
		if conn, err := net.Dial("tcp", m.Machine.Address); err == nil {
			conn.Close()
			t.Error("the port is still open")
		}
		if got := c.look(t, m.ID); got.State != providers.Terminated || got.Reason != "deleted" {
			t.Errorf("listed as %s, %q", got.State, got.Reason)
		}
		rec, _, err := (ledger{c.root}).find(m.ID)
		if err != nil || !rec.EndedAt.After(rec.CreatedAt) {
			t.Errorf("billed from %v to %v, error %v", rec.CreatedAt, rec.EndedAt, err)
		}
	})
}

func TestCrash(t *testing.T) {
	victims := map[string]func(record) process{
		"outer": func(r record) process { return r.Outer },
		"init":  func(r record) process { return r.Init },
	}
	for name, victim := range victims {
		t.Run(name, func(t *testing.T) {
			inEachSandbox(t, func(t *testing.T, c *cloud) {
				ms := c.rent(t, "t", 2)
				m := ms[0]
				if confined(c.sandbox) {
					c.sh(t, m, daemons)
				} else {
					// Without a namespace, who dropped their environment and lost their subreaper cannot be told from others.
					c.sh(t, m, regexp.MustCompile(`(?m)^env -i.*$`).ReplaceAllString(daemons, ""))
				}
				rec, _, err := (ledger{c.root}).read(m.ID)
				if err != nil {
					t.Fatal(err)
				}
				if !victim(rec).kill() {
					t.Fatal("no such process")
				}
				if name == "outer" {
					// All inside goes by itself, before anybody looks.
					waitFor(t, "the guest to go", func() bool { return sleeping(t, c, m.ID) == 0 })
				}
				c.ended(t, m.ID, "crashed")
				if n := sleeping(t, c, m.ID); n != 0 {
					t.Errorf("%d processes outlived the machine", n)
				}
				c.remove(t, ms...)
			})
		})
	}
}

// TestStoppedInitDies: a guest that cannot notice the end of its hypervisor ends all the same.
func TestStoppedInitDies(t *testing.T) {
	inEachSandbox(t, func(t *testing.T, c *cloud) {
		m := c.rent(t, "t", 1)[0]
		c.sh(t, m, daemons)
		rec, _, err := (ledger{c.root}).read(m.ID)
		if err != nil {
			t.Fatal(err)
		}
		if confined(c.sandbox) {
			syscall.Kill(rec.Init.PID, syscall.SIGSTOP)
			rec.Outer.kill()
			waitFor(t, "the guest to go", func() bool { return sleeping(t, c, m.ID) == 0 })
		} else {
			c.killBoth(t, rec)
			waitFor(t, "the port to close", func() bool {
				conn, err := net.Dial("tcp", m.Machine.Address)
				if err == nil {
					conn.Close()
				}
				return err != nil
			})
			if sleeping(t, c, m.ID) == 0 {
				t.Error("nothing to sweep is left, so this tests nothing")
			}
		}
		// Whoever looks next sweeps what carries the machine's id.
		c.ended(t, m.ID, "crashed")
		for _, p := range strayed(t, c, m.ID) {
			syscall.Kill(p, syscall.SIGKILL) // without its environment nothing tells whose it is
		}
	})
}

// killBoth ends a machine's two processes without giving either the time to end the guest.
func (c *cloud) killBoth(t *testing.T, rec record) {
	t.Helper()
	syscall.Kill(rec.Outer.PID, syscall.SIGSTOP)
	if !rec.Init.kill() || !rec.Outer.kill() {
		t.Fatalf("kill %v and %v: no such processes", rec.Init, rec.Outer)
	}
	waitFor(t, "the lock of "+rec.ID, func() bool { alive, err := (ledger{c.root}).alive(rec.ID); return err == nil && !alive })
}

// TestHungHypervisor: a stopped hypervisor answers nobody, and can be deleted all the same.
func TestHungHypervisor(t *testing.T) {
	inEachSandbox(t, func(t *testing.T, c *cloud) {
		c.patience = 50 * time.Millisecond
		m := c.rent(t, "t", 1)[0]
		rec, _, err := (ledger{c.root}).read(m.ID)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(rec.Outer.PID, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		c.remove(t, m)
	})
}

func TestGuestEnvironment(t *testing.T) {
	t.Setenv("LAUNCHER_TEST_SECRET", "hunter2")
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT) // as under nohup
	defer signal.Reset(syscall.SIGHUP, syscall.SIGINT)
	c := newCloud(t)
	m := c.rent(t, "t", 1)[0]
	dir := (ledger{c.root}).dir(m.ID)
	env := map[string]string{}
	for line := range strings.Lines(c.sh(t, m, "env")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		env[name] = value
	}
	delete(env, "PWD")
	delete(env, "OLDPWD")
	delete(env, "SHLVL")
	delete(env, "_")
	want := map[string]string{
		"HOME": dir + "/home", "PATH": env["PATH"], "TMPDIR": dir + "/tmp", "XDG_RUNTIME_DIR": dir + "/run", "USER": guestUser(), "LOGNAME": guestUser(),
		"SHELL": "/bin/sh", "LANG": "C.UTF-8", EnvMachine: m.ID, EnvNotice: dir + "/notice.json", EnvLease: dir + "/lease", EnvRoot: c.root,
	}
	if diff := cmp.Diff(want, env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if got, want := c.sh(t, m, "command -v poweroff; pwd; stat -c %a $XDG_RUNTIME_DIR 2>/dev/null || stat -f %Lp $XDG_RUNTIME_DIR"), dir+"/bin/poweroff\n"+dir+"/home\n700"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if sandboxes("")[0] != sandboxPlain {
		if got := c.sh(t, m, `echo $$ $(cut -d' ' -f1 /proc/self/stat) && ps -o pid= -p 1 && stat -f -c %T $XDG_RUNTIME_DIR`); !strings.HasSuffix(got, "1\ntmpfs") || len(got) > 40 {
			t.Errorf("pids and run folder: %q", got)
		}
		if got := c.sh(t, m, `ps -o args= -p 1`); !strings.Contains(got, " machine init "+dir) {
			t.Errorf("process 1: %q", got)
		}
		// Signals 32 and 33 are the C library's own: whoever runs the tests may have left them ignored.
		got := c.sh(t, m, `grep SigIgn /proc/self/status`)
		mask, err := strconv.ParseUint(strings.TrimSpace(strings.TrimPrefix(got, "SigIgn:")), 16, 64)
		if err != nil || mask&^(1<<31|1<<32) != 0 {
			t.Errorf("a guest ignores signals: %s", got)
		}
		if got := c.sh(t, m, `kill -TERM 1; kill -KILL 1; grep CapEff /proc/self/status`); os.Getuid() != 0 && !strings.HasSuffix(got, "0000000000000000") {
			t.Errorf("capabilities of a guest: %s", got)
		}
	}
	c.remove(t, m)
}

func TestZombiesAreReaped(t *testing.T) {
	inEachSandbox(t, func(t *testing.T, c *cloud) {
		m := c.rent(t, "t", 1)[0]
		c.sh(t, m, "for i in 1 2 3 4 5; do (sleep 0.01 >/dev/null 2>&1 &); done")
		waitFor(t, "zombies to go", func() bool {
			return c.sh(t, m, "ps -eo stat,comm,ppid | grep '^Z.*sleep' | wc -l") == "0"
		})
		c.remove(t, m)
	})
}

func TestPoweroff(t *testing.T) {
	for _, command := range []string{"poweroff", "shutdown -h now", "echo poweroff >$LAUNCHER_MACHINE_LEASE", "launcher-machine-lease 0"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			m := c.rent(t, "t", 1)[0]
			conn, err := c.login(t, m, c.host.Public)
			if err != nil {
				t.Fatal(err)
			}
			conn.Run(t.Context(), command) // the connection dies, sooner or later
			reason := "powered off"
			if strings.HasSuffix(command, " 0") {
				reason = "lease over"
			}
			c.ended(t, m.ID, reason)
		})
	}
}

func TestLease(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	renewed := c.rent(t, "renewed", 1)[0].ID
	// Without a reader, so without a hypervisor, opening for writing fails.
	fifo, err := os.OpenFile(filepath.Join((ledger{c.root}).dir(renewed), "lease"), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer fifo.Close()
	io.WriteString(fifo, "nonsense\n-5\n0.0001e9\n3600\n")
	req := c.request(t, "left", 1)
	req.TTL = 100 * time.Millisecond
	result, err := c.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	c.ended(t, result.Machines[0].ID, "lease over")
	if got := c.look(t, renewed); !got.Alive() {
		t.Errorf("the machine that was renewed is %s: %s", got.State, got.Reason)
	}
	io.WriteString(fifo, "0.05\n")
	c.ended(t, renewed, "lease over")
}

func TestBoot(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.config["boot"] = "400ms"
	began := time.Now()
	result, err := c.Create(t.Context(), c.request(t, "t", 1))
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 350*time.Millisecond {
		t.Logf("create took %v on this computer: too slow to look at the booting machine", took)
	} else if m := c.look(t, result.Machines[0].ID); m.State != providers.Pending || m.Machine.Address != "" {
		t.Errorf("while it boots: %s at %q", m.State, m.Machine.Address)
	}
	waitFor(t, "the boot", func() bool { return c.look(t, result.Machines[0].ID).State == providers.Running })
	if took := time.Since(began); took < 400*time.Millisecond {
		t.Errorf("up after %v", took)
	}
	c.remove(t, c.list(t)...)
}

func TestPreempt(t *testing.T) {
	for _, tc := range []struct {
		name   string
		silent float64
		notice time.Duration
		told   bool
	}{
		{"with notice", 0, time.Hour, true},
		{"silent", 1, time.Hour, false},
		{"the block's notice", 0, -1, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			c.config["silent"] = tc.silent
			c.config["notice"] = "1h"
			m := c.rent(t, "t", 1)[0]
			req := providers.PreemptRequest{Run: "r", Machine: m.ID, Notice: tc.notice, Config: c.block()}
			if err := c.Preempt(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(filepath.Join((ledger{c.root}).dir(m.ID), "notice.json"))
			if got := err == nil; got != tc.told {
				t.Fatalf("notice file: got %v (%v), want %v", got, err, tc.told)
			}
			if tc.told {
				var n notice
				if err := json.Unmarshal(data, &n); err != nil || n.Action != "terminate" || n.Deadline.Sub(n.At) != time.Hour || n.At.IsZero() {
					t.Errorf("notice %s: %v", data, err)
				}
			}
			// A second drill cannot put it off, only hasten it.
			for _, notice := range []time.Duration{200 * time.Millisecond, time.Hour} {
				req.Notice = notice
				if err := c.Preempt(t.Context(), req); err != nil && providers.CodeOf(err) != providers.NotFound {
					t.Fatal(err)
				}
			}
			c.ended(t, m.ID, "preempted")
		})
	}
}

func TestLuckIsFixed(t *testing.T) {
	silent := 0
	for i := range 1000 {
		id := "m-" + strconv.Itoa(i)
		if luck(id, "silent") != luck(id, "silent") {
			t.Fatal("luck changes")
		}
		if luck(id, "silent") < 0.3 {
			silent++
		}
	}
	if silent < 250 || silent > 350 {
		t.Errorf("%d of 1000 below 0.3", silent)
	}
}

// TestRekey: connections made after the rekeying prove the new key alone, those before live on.
func TestRekey(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	m := c.rent(t, "t", 1)[0]
	before, err := c.login(t, m, c.host.Public)
	if err != nil {
		t.Fatal(err)
	}
	if result, err := before.Run(t.Context(), "echo nonsense | launcher-machine-rekey"); err != nil || result.Exit.Code != 1 {
		t.Errorf("nonsense: %v, %v", result.Exit, err)
	}
	next := pair(t)
	exit, err := before.Stream(t.Context(), "launcher-machine-rekey", sshexec.Streams{Stdin: bytes.NewReader(next.Private)})
	if err != nil || !exit.OK() {
		t.Fatalf("rekey: %v, %v", exit, err)
	}
	if _, err := c.login(t, m, next.Public); err != nil {
		t.Errorf("login with the new key: %v", err)
	}
	if _, err := c.login(t, m, c.host.Public); sshexec.Classify(err) != sshexec.HostKeyMismatch {
		t.Errorf("login with the old key: %v", err)
	}
	if _, err := before.Run(t.Context(), "true"); err != nil {
		t.Errorf("the old connection: %v", err)
	}
	before.Close()
	c.remove(t, m)
}
