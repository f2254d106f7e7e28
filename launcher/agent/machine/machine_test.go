package machine

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMachineLeaseLine: the machine's timer gets a line, by FIFO or socket; one that nobody reads is an error, not a
// wait.
func TestMachineLeaseLine(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "lease")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	tell := Lease(fifo)
	if err := tell(t.Context(), time.Minute); err == nil {
		t.Error("no error without a reader")
	}
	reader, err := os.OpenFile(fifo, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := tell(t.Context(), 90500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 10)
	if n, _ := reader.Read(b); string(b[:n]) != "91\n" {
		t.Errorf("FIFO got %q, want 91", b[:n])
	}

	t.Chdir(dir)
	lis, err := net.Listen("unix", "socket")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	if err := Lease("socket")(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	conn, err := lis.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if n, _ := conn.Read(b); string(b[:n]) != "60\n" {
		t.Errorf("socket got %q, want 60", b[:n])
	}
	if Lease("") != nil {
		t.Error("a lease without a path")
	}
}

// TestCommands: power-off and rekey run what is on the PATH; the key goes by standard input.
func TestCommands(t *testing.T) {
	bin := t.TempDir()
	script := func(name, text string) {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	script("poweroff", "echo off >"+bin+"/said")
	script("launcher-machine-rekey", "cat >"+bin+"/key; echo $* >"+bin+"/args")
	script("broken", "echo why >&2; exit 3")
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(bin, name))
		return strings.TrimSpace(string(b))
	}
	if err := PowerOff(nil)(t.Context()); err != nil || read("said") != "off" {
		t.Errorf("power off: %v, said %q", err, read("said"))
	}
	if err := PowerOff([]string{"broken"})(t.Context()); err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("power off by a broken command: %v, want its words", err)
	}
	if err := Rekey(t.Context(), "PRIVATE"); err != nil {
		t.Fatal(err)
	}
	if read("key") != "PRIVATE" || read("args") != "" {
		t.Errorf("rekey got %q by input and %q by arguments", read("key"), read("args"))
	}
}

// TestFileNotices: a notice is seen at once when its file appears, or was there before, and when it goes.
func TestFileNotices(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "notice.json")
	write := func(deadline string) {
		temp := filepath.Join(dir, "temp")
		if err := os.WriteFile(temp, []byte(`{"action":"terminate","deadline":"`+deadline+`"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(temp, path); err != nil {
			t.Fatal(err)
		}
	}
	write("2026-01-02T03:04:05.5Z")
	ctx, cancel := context.WithCancel(t.Context())
	seen := make(chan Notice, 10)
	done := make(chan error, 1)
	go func() { done <- FileNotices{path}.Watch(ctx, func(n Notice) { seen <- n }) }()
	want := time.Date(2026, 1, 2, 3, 4, 5, 5e8, time.UTC)
	if n := <-seen; !n.Deadline.Equal(want) || n.Withdrawn || n.Source != "file" {
		t.Errorf("notice %+v, want deadline %v", n, want)
	}
	write("2026-01-02T03:04:06Z")
	if n := <-seen; n.Deadline.Second() != 6 {
		t.Errorf("notice %+v, want the new deadline", n)
	}
	os.Remove(path)
	if n := <-seen; !n.Withdrawn {
		t.Errorf("notice %+v, want it withdrawn", n)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := (FileNotices{filepath.Join(dir, "no", "notice")}).Watch(t.Context(), nil); err == nil {
		t.Error("no error without the folder")
	}
}

func TestFacts(t *testing.T) {
	f := Read()
	if f.CPUs < 1 || f.MemoryBytes < 1<<20 || f.Hostname == "" || f.BootID == "" {
		t.Errorf("facts %+v", f)
	}
	a := Uptime()
	if b := Uptime(); a <= 0 || b < a {
		t.Errorf("uptime %v, then %v", a, b)
	}
}
