package main

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"
)

// pluginsRunning [kill] FOLDER: plugin processes of executables below the folder are running; all of them are killed. With ! there are none.
func pluginsRunning(ts *testscript.TestScript, neg bool, args []string) {
	kill := len(args) == 2 && args[0] == "kill"
	if len(args) != 1 && !kill || neg && kill {
		ts.Fatalf("usage: plugins [kill] FOLDER")
	}
	folder := args[len(args)-1] + string(filepath.Separator)
	out, err := exec.Command("ps", "-axww", "-o", "pid=,command=").Output()
	ts.Check(err)
	var found []string
	for line := range strings.Lines(string(out)) {
		pid, command, _ := strings.Cut(strings.TrimSpace(line), " ")
		// Without arguments, which machines have.
		if command = strings.TrimSpace(command); !strings.HasPrefix(command, folder) || !strings.HasPrefix(filepath.Base(command), "launcher-provider-") || strings.Contains(command, " ") {
			continue
		}
		found = append(found, command)
		n, err := strconv.Atoi(pid)
		ts.Check(err)
		if kill {
			ts.Check(syscall.Kill(n, syscall.SIGKILL))
		}
	}
	switch {
	case neg && len(found) > 0:
		ts.Fatalf("plugins run: %q", found)
	case !neg && len(found) == 0:
		ts.Fatalf("no plugin of %s runs", folder)
	}
}
