package local

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
)

// sleeping counts the processes that daemons started in this machine, told by their folder: some have no environment.
func sleeping(t *testing.T, c *cloud, id string) int {
	t.Helper()
	return len(strayed(t, c, id))
}

// strayed lists them.
func strayed(t testing.TB, c *cloud, id string) []int {
	t.Helper()
	all, err := pids()
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, pid := range all {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !bytes.HasPrefix(line, []byte("sleep\x00100")) {
			continue
		}
		if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err == nil && strings.HasPrefix(cwd, (ledger{c.root}).dir(id)) {
			found = append(found, pid)
		}
	}
	return found
}
