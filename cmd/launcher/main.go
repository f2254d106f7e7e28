// Command launcher gives one training job its own disposable cluster. `launcher --help` lists its commands; each command is one file.
package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/ephemeral-launcher/launcher/examples/elastic-sgd/train"
	"github.com/ephemeral-launcher/launcher/launcher/head"
	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/local"
	"github.com/ephemeral-launcher/launcher/providers/plugin"
	"github.com/ephemeral-launcher/launcher/providers/ssh"
)

// version is set by the linker.
var version = "dev"

func main() { os.Exit(run(context.Background(), os.Args)) }

// run is main without the exit. The hidden commands come before everything else: they start in milliseconds, on machines.
func run(ctx context.Context, args []string) int {
	if filepath.Base(args[0]) == demoProgram { // a copy of this executable is the demo's training program
		return train.Main(ctx, os.Getenv, os.Stdout, args[1:])
	}
	if len(args) > 1 {
		switch args[1] {
		case "machine":
			return local.MachineMain(ctx, args[2:])
		case "head":
			return headProcess().Command(ctx, args[2:])
		case "demo-train":
			return train.Main(ctx, os.Getenv, os.Stdout, args[2:])
		}
	}
	return newApp(newUI(os.Stdin, os.Stdout, os.Stderr, os.Getenv)).run(ctx, args)
}

// headProcess is what the hidden command `launcher head` runs with.
func headProcess() head.Process {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return head.Process{
		Self: []string{self, "head"}, Version: version,
		Provider: func(folder, name string, env map[string]string) (providers.Provider, error) {
			switch name {
			case local.Name:
				return local.New(local.Options{Executable: []string{self, "machine"}}), nil
			case ssh.Name:
				return ssh.New(), nil
			}
			sum, err := head.PluginChecksum(folder, name)
			if err != nil {
				return nil, err
			}
			return plugin.Open(plugin.Options{Name: name, Path: head.PluginPath(folder, name), Checksum: sum, Folder: folder, Env: func(key string) (string, bool) {
				if value, ok := env[key]; ok {
					return value, true
				}
				return os.LookupEnv(key) // the machine's own, and of those only what Info names
			}})
		},
	}
}
