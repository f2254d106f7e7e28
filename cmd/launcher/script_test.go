package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/local"
)

// scriptTime bounds one script and each program it waits for.
const scriptTime = 90 * time.Second

// TestScripts runs the program as its users do, with machines that are real processes. After each script nothing may be left of them.
func TestScripts(t *testing.T) {
	binaries, plugins := buildBinaries(t), t.TempDir()
	goBuild(t, filepath.Join(plugins, "launcher-provider-static"), "examples/provider-plugin")
	goBuild(t, filepath.Join(plugins, "launcher-provider-lab"), "cmd/launcher/testdata/provider-lab")
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			home := filepath.Join(env.WorkDir, "home")
			env.Setenv("LAUNCHER_HOME", home)
			env.Setenv("LAUNCHER_BINARIES", binaries)
			env.Setenv("PLUGINS", plugins)
			env.Setenv("PATH", filepath.Join(binaries, runtime.GOOS+"-"+runtime.GOARCH)+string(os.PathListSeparator)+os.Getenv("PATH"))
			root := filepath.Join(home, "local")
			env.Values[programsKey{}] = map[string]*program{}
			env.Defer(func() { nothingLeft(t, env.WorkDir, root) })
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code": code, "begin": begin, "signal": signalProgram, "ended": ended, "await": await, "plugins": pluginsRunning,
		},
	})
}

// buildBinaries builds what the machines of the scripts run, with its list of hashes.
func buildBinaries(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	platform := runtime.GOOS + "-" + runtime.GOARCH
	var sums strings.Builder
	for _, name := range []string{"launcher", "launcher-agent"} {
		file := filepath.Join(dir, platform, name)
		goBuild(t, file, "cmd/"+name)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&sums, "%x  %s/%s\n", sha256.Sum256(b), platform, name)
	}
	if err := os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func goBuild(t *testing.T, file, folder string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", file, module+"/"+folder)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", folder, err, out)
	}
}

// nothingLeft fails the test where a script left a machine, and ends it: no test may leave processes behind.
func nothingLeft(t *testing.T, work, root string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	p := local.New(local.Options{Root: root})
	all, err := p.List(ctx, providers.Filter{})
	if err != nil {
		t.Errorf("%s: list: %v", work, err)
	}
	for _, r := range all {
		if r.Alive() {
			t.Errorf("%s: left behind: %s of run %s, %s", work, r.ID, r.Tags[providers.TagRun], r.State)
			if _, err := p.Delete(ctx, providers.DeleteRequest{Run: r.Tags[providers.TagRun], Resources: []providers.Resource{r}}); err != nil {
				t.Error(err)
			}
		}
	}
	for _, process := range carriers(local.EnvRoot + "=" + root) {
		t.Errorf("%s: left behind: %s", work, process)
	}
}

// code CODE PROGRAM ARG...: the program's exit code is CODE.
func code(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code CODE PROGRAM ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	if got := exitCodeOf(err); got != want {
		ts.Fatalf("exit code %d, want %d (%v)", got, want, err)
	}
}

func exitCodeOf(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}

// program is one that a script began.
type program struct {
	cmd  *exec.Cmd
	over chan struct{}
	err  error
	out  *os.File
}

// begin NAME PROGRAM ARG...: runs on beside the script, in a session of its own, with its output in the file NAME.out.
func begin(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: begin NAME PROGRAM ARG...")
	}
	out, err := os.Create(ts.MkAbs(args[0] + ".out"))
	ts.Check(err)
	path, err := exec.LookPath(args[1])
	if dir := filepath.SplitList(ts.Getenv("PATH"))[0]; err != nil || args[1] == "launcher" {
		path = filepath.Join(dir, args[1])
	}
	p := &program{cmd: exec.Command(path, args[2:]...), over: make(chan struct{}), out: out}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = ts.MkAbs("."), out, out
	for _, name := range []string{"LAUNCHER_HOME", "LAUNCHER_BINARIES", "PATH", "HOME", "TMPDIR", "WORK"} {
		p.cmd.Env = append(p.cmd.Env, name+"="+ts.Getenv(name))
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	ts.Check(p.cmd.Start())
	go func() { // ends with the program, which the script's end kills
		p.err = p.cmd.Wait()
		close(p.over)
	}()
	programs(ts)[args[0]] = p
	ts.Defer(func() {
		_ = p.cmd.Process.Kill() // it may be over
		<-p.over
		out.Close()
	})
}

// programsKey is where a script keeps what it began.
type programsKey struct{}

func programs(ts *testscript.TestScript) map[string]*program {
	all, ok := ts.Value(programsKey{}).(map[string]*program)
	if !ok {
		ts.Fatalf("the script has no place for programs")
	}
	return all
}

// signal NAME SIGNAL: sends INT, TERM, HUP or KILL to a program that was begun.
func signalProgram(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 || programs(ts)[args[0]] == nil {
		ts.Fatalf("usage: signal NAME SIGNAL")
	}
	number, ok := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "KILL": syscall.SIGKILL}[args[1]]
	if !ok {
		ts.Fatalf("no signal %s", args[1])
	}
	ts.Check(programs(ts)[args[0]].cmd.Process.Signal(number))
}

// ended NAME CODE [WITHIN]: waits for a program that was begun; its exit code is one of CODE,CODE, and it ends within so long.
func ended(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || programs(ts)[args[0]] == nil {
		ts.Fatalf("usage: ended NAME CODE [WITHIN]")
	}
	p, within := programs(ts)[args[0]], scriptTime
	if len(args) > 2 {
		d, err := time.ParseDuration(args[2])
		ts.Check(err)
		within = d
	}
	select {
	case <-p.over:
	case <-time.After(within):
		ts.Fatalf("%s did not end within %s:\n%s", args[0], within, ts.ReadFile(args[0]+".out"))
	}
	got := strconv.Itoa(p.cmd.ProcessState.ExitCode())
	for want := range strings.SplitSeq(args[1], ",") {
		if got == want {
			return
		}
	}
	ts.Fatalf("%s: exit code %s, want %s:\n%s", args[0], got, args[1], ts.ReadFile(args[0]+".out"))
}

// await NAME PATTERN: waits until a program that was begun has written a line that matches.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 || programs(ts)[args[0]] == nil {
		ts.Fatalf("usage: await NAME PATTERN")
	}
	p, pattern := programs(ts)[args[0]], regexp.MustCompile(args[1])
	tail := exec.Command("tail", "-n", "+1", "-F", p.out.Name()) // the file is written by another process: there is no event but this
	out, err := tail.StdoutPipe()
	ts.Check(err)
	ts.Check(tail.Start())
	found := make(chan bool, 1)
	go func() { // ends with tail
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if pattern.MatchString(lines.Text()) {
				found <- true
				return
			}
		}
		found <- false
	}()
	ok := false
	select {
	case ok = <-found:
	case <-p.over:
		b, err := os.ReadFile(p.out.Name())
		ok = err == nil && pattern.Match(bytes.TrimSpace(b))
	case <-time.After(scriptTime):
	}
	_ = tail.Process.Kill() // it may be over
	_ = tail.Wait()         // killed
	if !ok {
		ts.Fatalf("%s never wrote %q:\n%s", args[0], args[1], ts.ReadFile(args[0]+".out"))
	}
}
