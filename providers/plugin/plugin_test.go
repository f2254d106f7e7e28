package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/local"
	"github.com/ephemeral-launcher/launcher/providers/sim"
)

// folderVariable is the one credential of the plugins here: a folder to meet their test in.
const folderVariable = "HOP_TEST_FOLDER"

// The test binary is also every plugin, told apart by the name it is called by, the machines of the local one, and a host to be killed.
func TestMain(m *testing.M) {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	switch name, ok := strings.CutPrefix(filepath.Base(os.Args[0]), Prefix); {
	case len(os.Args) > 2 && os.Args[1] == "machine":
		os.Exit(local.MachineMain(context.Background(), os.Args[2:]))
	case len(os.Args) == 3 && os.Args[1] == "host":
		os.Exit(hostMain(os.Args[2]))
	case ok && name == "local":
		Serve(&held{Provider: local.New(local.Options{Executable: []string{self, "machine"}})})
	case ok && name == "odd":
		Serve(&odd{Cloud: sim.New(sim.Options{Name: "odd"})})
	case ok && name == "plain": // without optional services and credentials
		Serve(plain{sim.New(sim.Options{Name: "plain"})})
	case ok && name == "liar":
		Serve(plain{sim.New(sim.Options{Name: "honest"})})
	case ok && name == "greedy": // wants what is not for plugins to want
		Serve(greedy{sim.New(sim.Options{Name: "greedy"})})
	case ok && name == "talker": // prints before it serves
		fmt.Println("hello")
		Serve(plain{sim.New(sim.Options{Name: "talker"})})
	case ok && name == "mute": // never greets
		<-time.After(time.Hour)
	case ok && name == "stillborn":
		panic("born dead")
	case ok && name == "elsewhere": // greets with an address that is not its own socket
		fmt.Println("1|1|unix|/run/someone-elses.sock|grpc|")
		<-time.After(time.Hour)
	default:
		goleak.VerifyTestMain(m)
	}
}

// executableOf makes the test binary a plugin of that name.
func executableOf(t testing.TB, name string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), Prefix+name)
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// meeting gives plugins the test's folder, and other variables as they are.
func meeting(folder string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		if name == folderVariable {
			return folder, true
		}
		return os.LookupEnv(name)
	}
}

// opened opens the plugin of that name and closes it with the test.
func opened(t testing.TB, name string, opts Options) *Host {
	t.Helper()
	opts.Path = executableOf(t, name)
	h, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// fifo makes a pipe in a folder. The channel is closed when somebody has opened it for writing, and everybody who had has ended.
func fifo(t testing.TB, folder, name string) <-chan struct{} {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		os.ReadFile(path)
	}()
	t.Cleanup(func() {
		if f, err := os.OpenFile(path, os.O_RDWR, 0); err == nil { // lets go of a reader that waits
			f.Close()
		}
		await(t, name, closed)
	})
	return closed
}

// await waits for a channel to be closed, within reason.
func await(t testing.TB, what string, done <-chan struct{}) {
	t.Helper()
	timer := time.NewTimer(20 * time.Second)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		t.Fatalf("%s: not within 20s", what)
	}
}

// touch opens a pipe of the test's for writing, if it is there, and never closes it.
func touch(folder, name string) *os.File {
	f, err := os.OpenFile(filepath.Join(folder, name), os.O_WRONLY, 0)
	if err != nil {
		return nil
	}
	return f
}

type plain struct{ *sim.Cloud }

func (p plain) Info(ctx context.Context) (providers.Info, error) {
	info, err := p.Cloud.Info(ctx)
	info.Capabilities, info.CredentialEnv = nil, nil
	return info, err
}

type greedy struct{ providers.Provider }

func (g greedy) Info(ctx context.Context) (providers.Info, error) {
	info, err := g.Provider.Info(ctx)
	info.CredentialEnv = []string{"A=B"}
	return info, err
}

// held is the local provider with a Create that can be held up before its reply, in a plugin that tells its environment.
type held struct{ *local.Provider }

func (h *held) Info(ctx context.Context) (providers.Info, error) {
	info, err := h.Provider.Info(ctx)
	info.CredentialEnv = []string{folderVariable}
	return info, err
}

func (h *held) Create(ctx context.Context, req providers.CreateRequest) (providers.CreateResult, error) {
	result, err := h.Provider.Create(ctx, req)
	folder := os.Getenv(folderVariable)
	if os.Remove(filepath.Join(folder, "hold")) != nil {
		return result, err
	}
	touch(folder, "entered").Close()
	<-ctx.Done()
	return result, ctx.Err()
}

func (h *held) List(ctx context.Context, filter providers.Filter) ([]providers.Resource, error) {
	all, err := json.Marshal(os.Environ())
	if err == nil {
		err = os.WriteFile(filepath.Join(os.Getenv(folderVariable), "environ"), all, 0o600)
	}
	if err != nil {
		return nil, err
	}
	return h.Provider.List(ctx, filter)
}

// odd does in Offers what its block says.
type odd struct{ *sim.Cloud }

func (o *odd) Info(ctx context.Context) (providers.Info, error) {
	info, err := o.Cloud.Info(ctx)
	info.CredentialEnv = []string{folderVariable}
	return info, err
}

func (o *odd) Offers(ctx context.Context, req providers.OffersRequest) ([]providers.Offer, error) {
	folder := os.Getenv(folderVariable)
	var do string
	if err := json.Unmarshal(req.Config, &do); err != nil {
		return nil, err
	}
	say := func(format string, args ...any) ([]providers.Offer, error) {
		return []providers.Offer{{Rejected: fmt.Sprintf(format, args...)}}, nil
	}
	switch do {
	case "pid":
		return say("%d", os.Getpid())
	case "panic":
		panic("odd")
	case "exit":
		os.Exit(3)
	case "crash":
		go func() { panic("oddest") }()
		<-ctx.Done()
	case "print":
		fmt.Println("on stdout")
		fmt.Fprintln(os.Stderr, "on stderr")
		slog.Info("by slog", "answer", 42)
		slog.Error("in trouble\x1b[31m")
		return say("")
	case "deadline":
		deadline, ok := ctx.Deadline()
		return say("%v %v", time.Until(deadline).Round(time.Minute), ok)
	case "until cancelled":
		touch(folder, "entered").Close()
		<-ctx.Done()
		touch(folder, "cancelled").Close()
		return nil, ctx.Err()
	case "stop": // itself, as a plugin that hangs
		syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		select {} // some threads stop later than others
	case "live and heed nothing":
		f := touch(folder, "alive")
		touch(folder, "entered").Close()
		<-time.After(time.Hour)
		f.Close()
	case "too large":
		return say("%s", strings.Repeat("x", 2<<20))
	case "stdin":
		_, err := os.Stdin.Read(make([]byte, 1))
		return say("%v", err)
	}
	return nil, fmt.Errorf("what is %.20q?", do)
}

// hostMain is a host that waits, amid a call, to be killed.
func hostMain(path string) int {
	h, err := Open(Options{Path: path, Folder: os.Getenv(folderVariable)})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_, err = h.Offers(context.Background(), asking("live and heed nothing"))
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// asking is a request that makes odd do something.
func asking(do string) providers.OffersRequest {
	config, err := json.Marshal(do)
	if err != nil {
		panic(err)
	}
	return providers.OffersRequest{Config: config}
}
