package local

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/providers"
)

// TestSibling: a machine rents another, which outlives it, and lists and deletes it from inside, where it cannot signal it.
func TestSibling(t *testing.T) {
	inEachSandbox(t, func(t *testing.T, c *cloud) {
		head := c.rent(t, "t", 1)[0]
		conn, err := c.login(t, head, c.host.Public)
		if err != nil {
			t.Fatal(err)
		}
		rent := func(input []byte, args string) string {
			var out, errs bytes.Buffer
			exit, err := conn.Stream(t.Context(), quote(os.Args[0])+" rent "+args, sshexec.Streams{Stdin: bytes.NewReader(input), Stdout: &out, Stderr: &errs})
			if err != nil || !exit.OK() {
				t.Fatalf("%s: %v %v: %s", args, err, exit, errs.String())
			}
			return out.String()
		}
		create := func(token string) string {
			req, err := json.Marshal(c.request(t, token, 1))
			if err != nil {
				t.Fatal(err)
			}
			var result providers.CreateResult
			if err := json.Unmarshal([]byte(rent(req, "create x")), &result); err != nil {
				t.Fatal(err)
			}
			id := result.Machines[0].ID
			waitFor(t, "the sibling to run", func() bool { return c.look(t, id).State == providers.Running })
			return id
		}
		first, second := create("t1"), create("t2")
		if got := rent(nil, "list r"); !strings.Contains(got, first) || !strings.Contains(got, second) {
			t.Errorf("list from inside: %s", got)
		}
		rent(nil, "delete r "+first)
		c.ended(t, first, "deleted")

		// One that died beyond its namespace's horizon is cleared away from inside too, with what is left of it there.
		c.sandbox = sandboxPlain
		third := c.rent(t, "t3", 1)[0]
		c.sh(t, third, "setsid sleep 1009 >/dev/null 2>&1 </dev/null &")
		waitFor(t, "the daemon", func() bool { return sleeping(t, c, third.ID) == 1 })
		rec, _, err := (ledger{c.root}).read(third.ID)
		if err != nil {
			t.Fatal(err)
		}
		c.killBoth(t, rec)
		rent(nil, "list r")
		if _, state, _ := (ledger{c.root}).find(third.ID); state != past {
			t.Error("the dead sibling was not cleared away from inside")
		}
		if n := sleeping(t, c, third.ID); n != 0 {
			t.Errorf("%d processes of the dead sibling are left", n)
		}

		conn.Close()
		c.remove(t, head)
		if got := c.sh(t, c.look(t, second), "echo $LAUNCHER_MACHINE"); got != second {
			t.Errorf("the sibling outlives the head: got %q, want %q", got, second)
		}
		c.remove(t, c.look(t, second))
	})
}

// TestCreatorDies: whenever the creator is killed, what it made is listed with its tags, the same token makes nothing
// more, and deleting leaves nothing.
func TestCreatorDies(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	for i := range 12 {
		token := fmt.Sprintf("t-%d", i)
		req := c.request(t, token, 4)
		data, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "rent", "create", "x")
		cmd.Env = append(os.Environ(), EnvRoot+"=") // of the test, else the sweep at its end takes it for a machine
		cmd.Stdin = bytes.NewReader(bytes.Replace(data, []byte(`"config":{}`), []byte(fmt.Sprintf(`"config":{"root":%q}`, c.root)), 1))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(time.Duration(i)*2*time.Millisecond, func() { cmd.Process.Kill() })
		cmd.Wait()
		timer.Stop()

		before := tokens(c.list(t), token)
		again, err := c.Create(t.Context(), req)
		if err != nil {
			t.Fatalf("killed after %d ms, then repeated: %v", 2*i, err)
		}
		if len(before) > 0 {
			for _, m := range again.Machines {
				if !slices.Contains(before, m.ID) {
					t.Errorf("killed after %d ms: the repetition made %s more", 2*i, m.ID)
				}
			}
		}
		c.remove(t, c.list(t)...)
		for _, r := range c.list(t) {
			if r.Alive() || r.Tags[providers.TagRun] != "r" {
				t.Errorf("killed after %d ms: %s is %s, tags %v", 2*i, r.ID, r.State, r.Tags)
			}
		}
		waitFor(t, "all processes to go", func() bool { return len(c.processes(t)) == 0 })
		if left, _ := filepath.Glob(filepath.Join(c.root, "machines", "*")); len(left) > 0 {
			t.Errorf("killed after %d ms: left %v", 2*i, left)
		}
	}
	// What it had half prepared goes with the next creation.
	c.remove(t, c.rent(t, "last", 1)...)
}

func tokens(resources []providers.Resource, token string) []string {
	var ids []string
	for _, r := range resources {
		if r.Machine.Token == token {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// TestDeepRoot: socket addresses are short, paths need not be.
func TestDeepRoot(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), strings.Repeat("deep/", 30)+"it's a \"root\" $HOME")
	if err := os.MkdirAll(root, 0o700); err != nil {
		t.Fatal(err)
	}
	c := newCloudAt(t, root)
	ms := c.rent(t, "t", 2)
	if got, want := c.sh(t, ms[0], "launcher-machine-lease 60 && echo $HOME"), filepath.Join((ledger{root}).dir(ms[0].ID), "home"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := c.Update(t.Context(), providers.UpdateRequest{Run: "r", Machine: ms[0].ID, Tags: map[string]string{"a": "b"}}); err != nil {
		t.Error(err)
	}
	// Folders that resist removal.
	c.sh(t, ms[0], "mkdir -p cache/mod && echo x >cache/mod/file && chmod 500 cache/mod cache")
	c.remove(t, ms...)
}

// TestTwoLaptops: whoever has the root has the cloud.
func TestTwoLaptops(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	m := c.rent(t, "t", 1)[0]
	other := New(Options{Executable: c.opts.Executable})
	config := fmt.Appendf(nil, `{"root":%q}`, c.root)
	all, err := other.List(t.Context(), providers.Filter{Run: "r", Config: config})
	if err != nil || len(all) != 1 || all[0].ID != m.ID {
		t.Fatalf("got %v, %v", all, err)
	}
	if left, err := other.Delete(t.Context(), providers.DeleteRequest{Run: "r", Config: config, Resources: all}); err != nil || len(left) > 0 {
		t.Fatalf("got %v, %v", left, err)
	}
	c.ended(t, m.ID, "deleted")
}
