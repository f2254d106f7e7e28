package bootstrap

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshd"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
)

// program is what the tests send: a shell script in place of a binary. It reads join, answers, and echoes.
const program = `#!/bin/sh
read -r join
case "$join" in
*refuse*) echo "PROG 1 error not today" ;;
*) echo "PROG 1 ready"; exec cat ;;
esac
`

// host is a machine with a real shell behind an SSH server in memory.
type host struct {
	home string
	conn *sshexec.Conn
}

func newHost(t *testing.T, runner sshd.Runner) host {
	t.Helper()
	h := host{home: t.TempDir()}
	if runner == nil {
		runner = sshd.Shell{Dir: h.home, Env: []string{"HOME=" + h.home, "PATH=" + os.Getenv("PATH")}}
	}
	hostKey, err := sshkey.New("")
	if err != nil {
		t.Fatal(err)
	}
	user, err := sshkey.New("")
	if err != nil {
		t.Fatal(err)
	}
	server, err := sshd.New(sshd.Options{HostKey: hostKey.Private, AuthorizedKeys: []string{user.Public}, Runner: runner})
	if err != nil {
		t.Fatal(err)
	}
	network := sshd.NewNet(1, 0, time.Microsecond)
	l, err := network.Host("node").Listen(":22")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, l) }()
	h.conn, err = sshexec.Dial(t.Context(), sshexec.Target{
		Addr: "node:22", User: "me", Keys: [][]byte{user.Private}, HostKeys: []string{hostKey.Public}, Dialer: network.Host("laptop").Dial,
	})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.conn.Close()
		cancel()
		<-served
	})
	return h
}

func testProgram(t *testing.T, join string) Program {
	t.Helper()
	platform := runtime.GOOS + "-" + runtime.GOARCH
	b, err := NewBinaries(fstest.MapFS{
		platform + "/prog": {Data: []byte(program)},
		SumsFile:           {Data: []byte(sum([]byte(program)) + "  " + platform + "/prog\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return Program{Name: "prog", Args: "join", Greeting: "PROG 1", Join: []byte(join), Binaries: b}
}

func TestStartSendsTheProgramOnceAndBecomesIt(t *testing.T) {
	h := newHost(t, nil)
	for try := range 2 {
		stream, err := Start(t.Context(), h.conn, testProgram(t, `{"x":1}`))
		if err != nil {
			t.Fatalf("try %d: %v", try, err)
		}
		if _, err := io.WriteString(stream, "hello\n"); err != nil {
			t.Fatal(err)
		}
		got, err := bufio.NewReader(stream).ReadString('\n')
		if err != nil || got != "hello\n" {
			t.Errorf("try %d: the program answers %q, %v", try, got, err)
		}
		stream.Close()
		installed, err := filepath.Glob(filepath.Join(h.home, ".launcher", "bin", "*"))
		if err != nil || len(installed) != 1 {
			t.Fatalf("installed: %v, %v", installed, err)
		}
		if info, err := os.Stat(installed[0]); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the program's mode is %v, %v", info.Mode(), err)
		}
		if try == 0 {
			// What is there is not sent again: a second transfer would replace this file by another.
			if err := os.Chtimes(installed[0], time.Unix(1, 0), time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
		} else if info, _ := os.Stat(installed[0]); !info.ModTime().Equal(time.Unix(1, 0)) {
			t.Error("the program was sent twice")
		}
	}
}

func TestStartReportsTheProgramsRefusal(t *testing.T) {
	_, err := Start(t.Context(), newHost(t, nil).conn, testProgram(t, `"refuse"`))
	if err == nil || !strings.Contains(err.Error(), "prog does not start: not today") {
		t.Errorf("got %v", err)
	}
}

func TestStartRefusesADamagedTransfer(t *testing.T) {
	p := testProgram(t, "{}")
	platform := runtime.GOOS + "-" + runtime.GOARCH
	damaged, err := compress([]byte("#!/bin/sh\necho evil\n"))
	if err != nil {
		t.Fatal(err)
	}
	p.Binaries.compressed[platform+"/prog"] = damaged
	h := newHost(t, nil)
	if _, err := Start(t.Context(), h.conn, p); err == nil || !strings.Contains(err.Error(), "corrupt") {
		t.Errorf("got %v, want a refusal", err)
	}
	if left, _ := filepath.Glob(filepath.Join(h.home, ".launcher", "bin", "*")); len(left) > 0 {
		t.Errorf("a damaged program was left: %v", left)
	}
}

// says is a machine that answers every command with a text, and keeps the line open.
func says(text string) sshd.Runner {
	return sshd.RunnerFunc(func(ctx context.Context, c sshd.Command) sshd.Exit {
		io.WriteString(c.Stdout, text)
		io.Copy(io.Discard, c.Stdin)
		return sshd.Exit{}
	})
}

func TestStartMisled(t *testing.T) {
	for _, c := range []struct{ name, says, want string }{
		{"no line of ours", "Welcome to Ubuntu\n", "the machine answers"},
		{"a platform without a binary", magic + " unsupported SunOS/sun4u\n", "SunOS/sun4u"},
		{"a platform it invents", magic + " need plan9-mips\n", "plan9-mips"},
		{"another verb", magic + " dance\n", "dance"},
		{"a line without end", strings.Repeat("x", 10_000), "a line of more than"},
		{"another program behind it", magic + " have linux-amd64\nHTTP/1.1 400\n", "does not start"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Start(t.Context(), newHost(t, says(c.says)).conn, testProgram(t, "{}"))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestStartIsBounded(t *testing.T) {
	h := newHost(t, says("")) // and never a word
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Start(ctx, h.conn, testProgram(t, "{}")); err == nil || ctx.Err() == nil {
		t.Errorf("got %v, want the context's end", err)
	}
}

func TestScriptHoldsNoSecretAndAllPlatforms(t *testing.T) {
	b, err := NewBinaries(files())
	if err != nil {
		t.Fatal(err)
	}
	script, err := Program{Name: "launcher-agent", Args: "join", Join: []byte("SECRET"), Binaries: b}.script()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(script, "SECRET") {
		t.Error("join is in the command line")
	}
	for _, want := range []string{"Linux/x86_64) p=linux-amd64", "Linux/aarch64|Linux/arm64) p=linux-arm64", "exec \"$f\" join"} {
		if !strings.Contains(script, want) {
			t.Errorf("the script lacks %q:\n%s", want, script)
		}
	}
	if _, err := (Program{Name: "nobody", Binaries: b}).script(); err == nil || errors.Is(err, ErrPlatform) {
		t.Errorf("got %v, want an error that says no such program was built", err)
	}
}

func TestQuote(t *testing.T) {
	if got, want := quote("it's $x"), `'it'\''s $x'`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
