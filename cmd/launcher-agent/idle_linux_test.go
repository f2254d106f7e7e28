package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/ephemeral-launcher/launcher/launcher/control"
)

// BenchmarkIdle is what a worker pays for its agent while ranks train: memory and CPU of the daemon with an open
// session, tunnel and logs and a renewal every 2.5 s, memory of the bridge, and the size of the binary as sent.
func BenchmarkIdle(b *testing.B) {
	binary := filepath.Join(b.TempDir(), "launcher-agent")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	j := &control.Join{Run: "r-idle", Node: "n0", Folder: b.TempDir(), PowerOff: []string{"true"}}
	agent, bridge, err := bridgeWith(b, binary, j, "join")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	session, err := agent.Session(ctx)
	if err != nil {
		b.Fatal(err)
	}
	renew := &control.Renew{NodeLeaseMs: 60_000, MemberLeaseMs: 10_000}
	session.Send(&control.Order{Body: &control.Order_Hello{Hello: &control.HelloOrder{Run: "r-idle", Node: "n0", Renew: renew}}})
	first, err := session.Recv()
	if err != nil {
		b.Fatal(err)
	}
	pid := int(first.GetHello().Pid)
	defer func() {
		p, _ := os.FindProcess(pid)
		p.Kill()
	}()
	if _, err := agent.Tunnel(ctx); err != nil {
		b.Fatal(err)
	}
	if _, err := agent.Logs(ctx, &control.LogsRequest{}); err != nil {
		b.Fatal(err)
	}
	began, ticks := time.Now(), cpuTicks(b, pid)
	b.ResetTimer()
	for range b.N {
		renew.Seq++
		session.Send(&control.Order{Body: &control.Order_Renew{Renew: renew}})
		for got := (*control.Ack)(nil); got.GetSeq() != renew.Seq; {
			report, err := session.Recv()
			if err != nil {
				b.Fatal(err)
			}
			renew.HeardStampNs, got = report.StampNs, report.GetAck()
		}
		select {
		case <-time.After(2500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	took := time.Since(began)
	const ticksPerSecond = 100 // USER_HZ, which the kernel keeps for user space
	b.ReportMetric(100*float64(cpuTicks(b, pid)-ticks)/ticksPerSecond/took.Seconds(), "%core")
	b.ReportMetric(rss(b, pid), "MiB-rss")
	b.ReportMetric(rss(b, bridge.Process.Pid), "MiB-rss-bridge")
	data, err := os.ReadFile(binary)
	if err != nil {
		b.Fatal(err)
	}
	z, _ := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	b.ReportMetric(float64(len(z.EncodeAll(data, nil)))/(1<<20), "MiB-sent")
}

func cpuTicks(b *testing.B, pid int) (ticks int) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	var user, system int
	fmt.Sscan(fields[11], &user)
	fmt.Sscan(fields[12], &system)
	return user + system
}

func rss(b *testing.B, pid int) float64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "VmRSS:")
	var kib float64
	fmt.Sscan(rest, &kib)
	return kib / 1024
}
