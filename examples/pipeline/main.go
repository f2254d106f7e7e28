// Command pipeline runs two jobs one after the other inside a program of its own: the second works on what the first has left.
//
//	make build && go run ./examples/pipeline
//
// It needs launcher's binaries for the machines: $LAUNCHER_BINARIES, or bin/ of the folder it is run in.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/ephemeral-launcher/launcher/launcher"
)

func main() {
	binaries := flag.String("binaries", os.Getenv("LAUNCHER_BINARIES"), "folder with launcher's binaries by platform [bin]")
	jobs := flag.String("jobs", filepath.Join("examples", "pipeline"), "folder with prepare.hcl and train.hcl")
	flag.Parse()
	if *binaries == "" {
		*binaries = "bin"
	}
	// Cancelling the context of Run tears the run down, as Ctrl-C does for the command.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := pipeline(ctx, *jobs, *binaries); err != nil {
		fmt.Fprintln(os.Stderr, "pipeline:", err)
		os.Exit(1)
	}
}

func pipeline(ctx context.Context, jobs, binaries string) error {
	prepared, err := run(ctx, filepath.Join(jobs, "prepare.hcl"), binaries, nil)
	if err != nil {
		return err
	}
	trained, err := run(ctx, filepath.Join(jobs, "train.hcl"), binaries, map[string]string{"data": prepared.Outputs})
	if err != nil {
		return err
	}
	report, err := os.ReadFile(filepath.Join(trained.Outputs, "report.txt"))
	if err != nil {
		return err
	}
	fmt.Printf("%scost: %.4f USD\n", report, prepared.SpendUSD+trained.SpendUSD)
	return nil
}

// run is one job, from file to outputs.
func run(ctx context.Context, file, binaries string, vars map[string]string) (*launcher.Result, error) {
	job, err := launcher.Load(file, launcher.LoadOptions{Vars: vars})
	if err != nil {
		return nil, err
	}
	result, err := launcher.Run(ctx, job, launcher.Options{
		Binaries: os.DirFS(binaries),
		OnEvent: func(e launcher.Event) {
			fmt.Printf("%8.2fs %-20s %s\n", e.At.Duration().Seconds(), e.Kind, e.Node)
		},
		OnLog: func(l launcher.LogLine) { fmt.Printf("%10s %s rank %d | %s\n", "", l.Node, l.Rank, l.Text) },
	})
	if err != nil {
		return nil, err
	}
	if result.Exit != 0 {
		return nil, fmt.Errorf("%s ended with %d: %s", result.Run, result.Exit, result.Text)
	}
	return result, nil
}
