package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/control"
)

// TestKilledDaemon: when the agent is killed its ranks die with it, and the next join starts another one.
func TestKilledDaemon(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	folder := t.TempDir()
	j := &control.Join{Run: "r-killed", Node: "n0", Folder: folder, PowerOff: []string{"true"}}
	begin := func() (control.Agent_SessionClient, *control.HelloReport) {
		agent, _, err := bridgeTo(t, j, "join")
		if err != nil {
			t.Fatal(err)
		}
		s, err := agent.Session(ctx)
		if err != nil {
			t.Fatal(err)
		}
		s.Send(&control.Order{Body: &control.Order_Hello{Hello: &control.HelloOrder{
			Run: "r-killed", Node: "n0", Renew: &control.Renew{MemberLeaseMs: 30_000},
		}}})
		hello := await(t, s, (*control.Report).GetHello)
		t.Cleanup(func() { syscall.Kill(int(hello.Pid), syscall.SIGKILL) })
		return s, hello
	}
	s, first := begin()
	path := fifo(t, folder)
	s.Send(&control.Order{Body: &control.Order_Start{Start: &control.Start{
		World: &control.World{Generation: 1}, Procs: 1, WorldSize: 1, Command: "exec 3>" + path + "; echo up >&3; exec sleep 1000",
	}}})
	alive, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	if _, err := io.ReadFull(alive, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(int(first.Pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	died := func() {
		t.Helper()
		alive.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := alive.Read(make([]byte, 1)); err != io.EOF { // once nobody holds the other end
			t.Errorf("read: %v", err)
		}
	}
	if runtime.GOOS == "linux" { // elsewhere the next agent kills it
		died()
	}
	s, second := begin()
	if second.Instance == first.Instance || second.State != control.GenerationState_NONE {
		t.Errorf("after the kill: instance %x, state %v", second.Instance, second.State)
	}
	died()
	s.CloseSend()
}

func TestBoundedFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	b := &boundedFile{name: name, limit: 100}
	defer b.Close()
	for range 25 {
		if _, err := b.Write([]byte(strings.Repeat("x", 9) + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	now, err := os.ReadFile(name)
	if err != nil || len(now) != 50 {
		t.Errorf("the log has %d bytes, %v, want 50", len(now), err)
	}
	before, err := os.ReadFile(name + ".1")
	if err != nil || len(before) != 100 {
		t.Errorf("what was before has %d bytes, %v, want 100", len(before), err)
	}
}
