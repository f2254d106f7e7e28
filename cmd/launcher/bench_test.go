package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// BenchmarkCommands measures whole processes, built as they ship.
func BenchmarkCommands(b *testing.B) {
	binary := filepath.Join(b.TempDir(), "launcher")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build launcher: %v: %s", err, out)
	}
	job, err := filepath.Abs("../../examples/elastic-sgd/job.hcl")
	if err != nil {
		b.Fatal(err)
	}
	home := b.TempDir()
	for _, c := range []struct {
		name  string
		args  []string
		limit string
	}{
		{"launcher --help", []string{"--help"}, "30 ms"},
		{"launcher up --help", []string{"up", "--help"}, "30 ms"},
		{"launcher plan, offline", []string{"plan", job}, "150 ms"},
	} {
		b.Run(c.name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				cmd := exec.Command(binary, c.args...)
				cmd.Env = append(os.Environ(), "LAUNCHER_HOME="+home)
				began := time.Now()
				if out, err := cmd.CombinedOutput(); err != nil {
					b.Fatalf("%s: %v: %s", c.name, err, out)
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			median := took[len(took)/2]
			b.ReportMetric(float64(median.Microseconds())/1000, "ms-median")
			b.Logf("%s | – | median %.1f ms, %.1f to %.1f ms in %d runs (at most %s)", c.name, ms(median), ms(took[0]), ms(took[len(took)-1]), len(took), c.limit)
		})
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
