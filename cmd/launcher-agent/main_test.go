package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/control"
)

// TestMain lets the test binary be the agent's binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		os.Exit(run(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// pipeConn is the near side of a bridge as a connection.
type pipeConn struct {
	net.Conn // for what nobody calls
	r        io.Reader
	w        io.WriteCloser
}

func (c pipeConn) Read(p []byte) (int, error)       { return c.r.Read(p) }
func (c pipeConn) Write(p []byte) (int, error)      { return c.w.Write(p) }
func (c pipeConn) Close() error                     { return c.w.Close() }
func (c pipeConn) SetDeadline(time.Time) error      { return nil }
func (c pipeConn) SetReadDeadline(time.Time) error  { return nil }
func (c pipeConn) SetWriteDeadline(time.Time) error { return nil }
func (c pipeConn) LocalAddr() net.Addr              { return &net.UnixAddr{} }
func (c pipeConn) RemoteAddr() net.Addr             { return &net.UnixAddr{} }

// bridgeTo runs the agent's binary and gives a client over its standard streams.
func bridgeTo(t *testing.T, j *control.Join, args ...string) (control.AgentClient, *exec.Cmd, error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return bridgeWith(t, self, j, args...)
}

func bridgeWith(t testing.TB, binary string, j *control.Join, args ...string) (control.AgentClient, *exec.Cmd, error) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	if j != nil {
		line, err := json.Marshal(j)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.Write(append(line, '\n')); err != nil {
			t.Fatal(err)
		}
	}
	r := bufio.NewReader(out)
	if err := control.AwaitReady(r); err != nil {
		return nil, cmd, err
	}
	client, err := control.DialConn(pipeConn{r: r, w: in})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return control.NewAgentClient(client), cmd, nil
}

// await reads reports until one fits.
func await[T any](t *testing.T, s control.Agent_SessionClient, pick func(*control.Report) T) T {
	t.Helper()
	var none T
	for {
		r, err := s.Recv()
		if err != nil {
			t.Fatalf("await %T: %v", none, err)
		}
		if got := pick(r); any(got) != any(none) {
			return got
		}
	}
}

// TestJoin is the whole way: join starts the daemon, which outlives the bridge and keeps its processes; connect finds
// it again; its end is ordered by a power-off.
func TestJoin(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	// Longer than a unix socket's path may be.
	folder := filepath.Join(t.TempDir(), strings.Repeat("long", 30), "agent")
	off := filepath.Join(t.TempDir(), "off")
	j := &control.Join{
		Run: "r-1", Node: "n0", Folder: folder, NodeLease: time.Minute, MemberLease: 10 * time.Second,
		PowerOff: []string{"sh", "-c", `echo x >"$0"; kill "$(cat "$1")"`, off, filepath.Join(folder, "pid")},
	}
	agent, first, err := bridgeTo(t, j, "join")
	if err != nil {
		t.Fatal(err)
	}
	open := func(agent control.AgentClient) (control.Agent_SessionClient, *control.HelloReport) {
		s, err := agent.Session(ctx)
		if err != nil {
			t.Fatal(err)
		}
		err = s.Send(&control.Order{Body: &control.Order_Hello{Hello: &control.HelloOrder{
			Run: "r-1", Node: "n0", Epoch: 1, Renew: &control.Renew{Seq: 1, NodeLeaseMs: 60_000, MemberLeaseMs: 30_000},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return s, await(t, s, (*control.Report).GetHello)
	}
	s, hello := open(agent)
	if err := os.WriteFile(filepath.Join(folder, "pid"), []byte(itoa(hello.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p, err := os.FindProcess(int(hello.Pid)); err == nil {
			p.Kill()
		}
	})
	s.Send(&control.Order{Body: &control.Order_Start{Start: &control.Start{
		World: &control.World{Generation: 1, Members: []*control.Member{{Node: "n0", Procs: 1}}},
		Procs: 1, WorldSize: 1, Command: "echo up; read line <" + fifo(t, folder) + "; exit 7",
	}}})
	await(t, s, (*control.Report).GetStarted)

	first.Process.Kill() // the SSH connection breaks
	first.Wait()
	again, _, err := bridgeTo(t, nil, "connect", folder)
	if err != nil {
		t.Fatal(err)
	}
	s, hello2 := open(again)
	if hello2.Pid != hello.Pid || hello2.State != control.GenerationState_RUNNING {
		t.Fatalf("after the break: agent %d in state %v, want %d running", hello2.Pid, hello2.State, hello.Pid)
	}
	if err := os.WriteFile(filepath.Join(folder, "fifo"), []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	if got := await(t, s, (*control.Report).GetExited); got.Code != 7 {
		t.Errorf("rank exited with %d, want 7", got.Code)
	}

	// A second join of the node connects to the same agent; one of another node is refused.
	third, _, err := bridgeTo(t, j, "join")
	if err != nil {
		t.Fatal(err)
	}
	s, hello3 := open(third)
	if hello3.Pid != hello.Pid {
		t.Errorf("second join: agent %d, want %d", hello3.Pid, hello.Pid)
	}
	other := *j
	other.Node = "n1"
	if _, _, err := bridgeTo(t, &other, "join"); !errors.Is(err, control.ErrAgent) || !strings.Contains(err.Error(), "node n0") {
		t.Errorf("join of another node: %v, want an agent's error", err)
	}

	s.Send(&control.Order{Body: &control.Order_PowerOff{PowerOff: &control.PowerOff{Reason: "test"}}})
	for {
		if _, err := s.Recv(); err != nil {
			break // the daemon has ended
		}
	}
	if _, err := os.Stat(off); err != nil {
		t.Errorf("power off did not run: %v", err)
	}
}

func itoa(n uint32) string { b, _ := json.Marshal(n); return string(b) }

func fifo(t *testing.T, folder string) string {
	t.Helper()
	path := filepath.Join(folder, "fifo")
	if err := exec.Command("mkfifo", path).Run(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConnectWithoutAgent(t *testing.T) {
	if _, _, err := bridgeTo(t, nil, "connect", t.TempDir()); !errors.Is(err, control.ErrAgent) {
		t.Errorf("connect: %v, want an agent's error", err)
	}
	bad := &control.Join{Run: "r-1"}
	if _, _, err := bridgeTo(t, bad, "join"); !errors.Is(err, control.ErrAgent) {
		t.Errorf("join without a node: %v, want an agent's error", err)
	}
}
