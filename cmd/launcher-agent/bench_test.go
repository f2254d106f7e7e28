package main

import (
	"bytes"
	"compress/gzip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// BenchmarkSize builds the agent as it ships and compresses it as it is sent; zstd at its best is there to compare.
func BenchmarkSize(b *testing.B) {
	file := filepath.Join(b.TempDir(), "launcher-agent")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", file, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("build agent: %v: %s", err, out)
	}
	program, err := os.ReadFile(file)
	if err != nil {
		b.Fatal(err)
	}
	var sent bytes.Buffer
	for b.Loop() {
		sent.Reset()
		w := gzip.NewWriter(&sent)
		if _, err := w.Write(program); err != nil {
			b.Fatal(err)
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
	}
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(8<<20))
	if err != nil {
		b.Fatal(err)
	}
	best := encoder.EncodeAll(program, nil)
	const mib = 1 << 20
	b.ReportMetric(float64(len(program))/mib, "MiB")
	b.ReportMetric(float64(sent.Len())/mib, "MiB-sent")
	b.Logf("agent binary as sent | – | %.2f MiB gzip (at most 6), %.2f MiB before, %.2f MiB with zstd at its best", float64(sent.Len())/mib, float64(len(program))/mib, float64(len(best))/mib)
}
