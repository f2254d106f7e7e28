// Command launcher-agent is what launcher puts on every worker: one small binary.
//
//	launcher-agent join       reads one line of JSON (control.Join) from standard input, starts the agent where none
//	                          runs for that node, prints one line, and becomes the bridge to it
//	launcher-agent connect    becomes the bridge to the agent that runs
//	launcher-agent daemon     is the agent itself; join starts it
//	launcher-agent version    prints the version
//
// The line before the bridge is control.ReadyLine, or control.ErrorPrefix and a text. Exit codes: 0 done, 1 error,
// 2 usage.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/ephemeral-launcher/launcher/launcher/control"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	if len(args) == 0 || len(args) > 2 {
		return usage()
	}
	folder := ""
	if len(args) == 2 {
		folder = args[1]
	}
	switch args[0] {
	case "join":
		return bridgeBy(func() (*bridge, error) { return join(os.Stdin) })
	case "connect":
		return bridgeBy(func() (*bridge, error) { return connect(folder) })
	case "daemon":
		if err := daemon(folder); err != nil {
			fmt.Fprintf(os.Stderr, "launcher-agent: %v\n", err)
			return 1
		}
		return 0
	case "version":
		fmt.Println(version())
		return 0
	}
	return usage()
}

func usage() int {
	fmt.Fprintln(os.Stderr, "usage: launcher-agent join | connect [FOLDER] | daemon FOLDER | version")
	return 2
}

// bridgeBy runs a bridge, or says in one line why there is none.
func bridgeBy(open func() (*bridge, error)) int {
	b, err := open()
	if err != nil {
		text := strings.Join(strings.Fields(err.Error()), " ")
		fmt.Fprint(os.Stdout, control.ErrorPrefix+text+"\n")
		return 1
	}
	if err := b.run(); err != nil {
		fmt.Fprintf(os.Stderr, "launcher-agent: %v\n", err)
		return 1
	}
	return 0
}

// agentFolder is the agent's folder on this machine.
func agentFolder(folder string) (string, error) {
	if folder != "" {
		return filepath.Abs(folder)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find the agent's folder: %w", err)
	}
	if home == "" || home == "/nonexistent" {
		return "", errors.New("find the agent's folder: no home")
	}
	return filepath.Join(home, ".launcher"), nil
}

// version is that of the module, or the commit it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return s.Value[:12]
		}
	}
	return info.Main.Version
}
