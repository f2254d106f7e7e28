package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ephemeral-launcher/launcher/launcher/agent/machine"
	"github.com/ephemeral-launcher/launcher/launcher/agent/process"
	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/control/archive"
	"github.com/ephemeral-launcher/launcher/launcher/control/tunnel"
)

// real makes an agent use processes, folders and sockets of this machine.
func real(t *testing.T) func(*Options) {
	return func(o *Options) {
		o.Runner, o.WatchFolder = process.OS{}, nil
		o.Store, o.API = listen(t), listen(t)
		o.Uptime = machine.Uptime
		// Unique on this machine: the agent sweeps by it.
		o.Join.Run = fmt.Sprintf("r-%d-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-"))
	}
}

func (r *rig) joinReal() *head {
	h := r.dial()
	h.begin(&control.HelloOrder{Run: r.o.Join.Run, Node: "n0", Epoch: 1, Renew: &control.Renew{
		NodeLeaseMs: 60_000, MemberLeaseMs: 60_000,
	}})
	return h
}

// logsUntil reads logs until the output of a rank contains text, and returns that output.
func logsUntil(t *testing.T, h *head, rank uint32, text string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := h.Logs(ctx, &control.LogsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for {
		chunk, err := stream.Recv()
		if err != nil {
			t.Fatalf("logs: %v, so far %q", err, got.String())
		}
		if chunk.Stream.Rank == rank {
			got.Write(chunk.Data)
		}
		if strings.Contains(got.String(), text) {
			return got.String()
		}
	}
}

// TestRealRanks has real processes: their world, their output, what they leave behind.
func TestRealRanks(t *testing.T) {
	r := newRig(t, real(t))
	h := r.joinReal()
	h.send(startOrder(1, 2, `
		echo "rank $RANK of $WORLD_SIZE"; cat $LAUNCHER_HOSTFILE; pwd
		echo oops >&2
		if [ $RANK = 3 ]; then setsid sleep 1000 & exit 5; fi
		trap 'echo saved; exit 0' USR1
		echo waiting; while :; do sleep 0.05; done`))
	await(h, (*control.Report).GetStarted)
	got := logsUntil(t, h, 2, "waiting\n")
	want := "rank 2 of 4\n10.0.0.9 slots=2\n10.0.0.1 slots=2\n" + r.o.Join.Workdir + "\n"
	if !strings.HasPrefix(strings.ReplaceAll(got, "oops\n", ""), want) {
		t.Errorf("output %q, want %q", got, want)
	}
	if e := await(h, (*control.Report).GetExited); e.Rank != 3 || e.Code != 5 || e.LastLines != "oops\n" {
		t.Errorf("exit %v", e)
	}
	h.send(endOrder(1, control.EndMode_ON_PURPOSE, "SIGUSR1", 10*time.Second))
	if e := await(h, (*control.Report).GetExited); e.Rank != 2 || e.Code != 0 || e.Phase != control.Phase_SIGNALLED {
		t.Errorf("exit %v", e)
	}
	await(h, (*control.Report).GetEnded)
	left, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		b, _ := os.ReadFile(f)
		if bytes.Contains(b, []byte("LAUNCHER_RUN="+r.o.Join.Run+"\x00")) {
			t.Errorf("%s was left behind", f)
		}
	}
}

// TestStoreThroughCuts: a process's connection to the store survives the loss of the connection below.
func TestStoreThroughCuts(t *testing.T) {
	r := newRig(t, real(t))
	h := r.joinReal()
	store := tunnel.NewAcceptor()
	var wg sync.WaitGroup
	attach := func(h *head) (cut func()) {
		ctx, cancel := context.WithCancel(t.Context())
		frames, err := h.Tunnel(ctx)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { store.Attach(ctx, frames) })
		return func() {
			cancel()
			h.conn.Close()
		}
	}
	cut := attach(h)
	wg.Go(func() {
		for {
			c, err := store.Accept()
			if err != nil {
				return
			}
			if c.Label() != 1 {
				t.Errorf("stream of generation %d, want 1", c.Label())
			}
			wg.Go(func() {
				defer c.Close()
				io.Copy(c, c)
			})
		}
	})
	if _, err := os.Stat("/bin/bash"); err != nil {
		t.Skip("bash is absent")
	}
	h.send(startOrder(1, 1, `
		exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT
		for i in 1 2 3; do echo ping $i >&3; read -u 3 line; echo "answer $line"; [ $i = 3 ] || read go <go$i; done`))
	for _, name := range []string{"go1", "go2"} {
		if err := fifoAt(filepath.Join(r.o.Join.Workdir, name)); err != nil {
			t.Fatal(err)
		}
	}
	await(h, (*control.Report).GetStarted)
	logsUntil(t, h, 2, "answer ping 1\n")
	cut()
	// The process speaks while there is no connection at all.
	for i, name := range []string{"go1", "go2"} {
		if err := os.WriteFile(filepath.Join(r.o.Join.Workdir, name), []byte("\n"), 0); err != nil {
			t.Fatal(err)
		}
		h = r.dial()
		h.begin(&control.HelloOrder{Run: r.o.Join.Run, Node: "n0", Epoch: 1})
		cut = attach(h)
		logsUntil(t, h, 2, fmt.Sprintf("answer ping %d\n", i+2))
		if i == 0 {
			cut()
		}
	}
	if e := await(h, (*control.Report).GetExited); e.Code != 0 {
		t.Errorf("exit %v", e)
	}
	cut()
	store.Close()
	wg.Wait()
}

// TestLogsGoOn: a reader that comes back with its positions gets what follows, each byte once.
func TestLogsGoOn(t *testing.T) {
	r := newRig(t, real(t))
	h := r.joinReal()
	h.send(startOrder(1, 1, `i=0; while [ $i -lt 2000 ]; do echo "line $i"; i=$((i+1)); done`))
	var got strings.Builder
	after := uint64(0)
	ended := false
	for calls := 0; !ended; calls++ {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		stream, err := h.Logs(ctx, &control.LogsRequest{Instance: h.hello.Instance, After: []*control.LogPosition{
			{Stream: &control.LogStream{Generation: 1, Rank: 2}, Offset: after},
		}})
		if err != nil {
			t.Fatal(err)
		}
		for n := 0; !ended && n < 1+calls; {
			chunk, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if chunk.Stream.Kind != control.LogKind_STDOUT {
				continue
			}
			n++
			got.Write(chunk.Data)
			after = chunk.Offset + uint64(len(chunk.Data))
			ended = chunk.End
		}
		cancel()
	}
	var want strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	if got.String() != want.String() {
		t.Errorf("got %d bytes, want %d", got.Len(), want.Len())
	}
}

func TestSetup(t *testing.T) {
	r := newRig(t, real(t))
	h := r.joinReal()
	setup := func(hash, script string) *control.SetupDone {
		h.send(&control.Order{Body: &control.Order_Setup{Setup: &control.Setup{
			Hash: hash, Script: script, Env: map[string]string{"A": "b"}, Secrets: map[string]string{"KEY": "s3cret"},
			TimeoutMs: 500,
		}}})
		return await(h, (*control.Report).GetSetupDone)
	}
	if got := setup("h1", `echo $A $KEY >>made; pwd`); got.Error != "" || got.LastLines != r.o.Join.Workdir+"\n" {
		t.Errorf("setup: %v", got)
	}
	setup("h1", "") // said twice: the same result, nothing runs
	b, _ := os.ReadFile(filepath.Join(r.o.Join.Workdir, "made"))
	if string(b) != "b s3cret\n" {
		t.Errorf("setup made %q", b)
	}
	if got := setup("h2", "false | true; echo not here"); got.Code != 1 || got.Error == "" {
		t.Errorf("a failing pipeline: %v", got)
	}
	if got := setup("h3", "sleep 100"); got.Code != -1 || !strings.Contains(got.Error, "longer than allowed") {
		t.Errorf("beyond the time limit: %v", got)
	}
	if files, _ := filepath.Glob(r.path("tmp/*")); len(files) != 0 {
		t.Errorf("left behind: %v", files)
	}
}

func TestExec(t *testing.T) {
	r := newRig(t, real(t))
	h := r.joinReal()
	run := func(start *control.ExecStart, inputs ...*control.ExecInput) (out, errs string, exit *control.ExecExit) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		stream, err := h.Exec(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, in := range append([]*control.ExecInput{{Body: &control.ExecInput_Start{Start: start}}}, inputs...) {
			if err := stream.Send(in); err != nil {
				t.Fatal(err)
			}
		}
		for {
			o, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return out, errs, exit
			} else if err != nil {
				t.Fatal(err)
			}
			out += string(o.GetStdout())
			errs += string(o.GetStderr())
			if e := o.GetExit(); e != nil {
				exit = e
			}
		}
	}
	stdin := func(s string) *control.ExecInput {
		return &control.ExecInput{Body: &control.ExecInput_Stdin{Stdin: []byte(s)}}
	}
	eof := &control.ExecInput{Body: &control.ExecInput_StdinEof{StdinEof: true}}

	out, errs, exit := run(&control.ExecStart{Argv: []string{"cat; echo err >&2; exit 4"}}, stdin("in "), stdin("put"), eof)
	if out != "in put" || errs != "err\n" || exit.GetCode() != 4 {
		t.Errorf("line: %q, %q, %v", out, errs, exit)
	}
	out, _, exit = run(&control.ExecStart{Argv: []string{"printf", "%s|", "a b", "$HOME"}}, eof)
	if out != "a b|$HOME|" || exit.GetCode() != 0 {
		t.Errorf("arguments: %q, %v", out, exit)
	}
	_, _, exit = run(&control.ExecStart{Argv: []string{"sleep 100"}},
		&control.ExecInput{Body: &control.ExecInput_Signal{Signal: "SIGTERM"}})
	if exit.GetSignal() != "SIGTERM" {
		t.Errorf("signal: %v", exit)
	}
	out, _, exit = run(&control.ExecStart{
		Argv: []string{"test -t 0 && stty size; read x; echo $TERM $x"}, Tty: true, Term: "vt100",
		Size: &control.WindowSize{Rows: 24, Columns: 80},
	}, stdin("word\n"))
	if !strings.Contains(out, "24 80") || !strings.Contains(out, "vt100 word") || exit.GetCode() != 0 {
		t.Errorf("terminal: %q, %v", out, exit)
	}
	if _, _, exit = run(&control.ExecStart{Argv: []string{"/nonexistent", "x"}}); exit.GetCode() != 127 || exit.GetError() == "" {
		t.Errorf("nothing to run: %v", exit)
	}
}

// put sends a folder or one checkpoint.
func put(t *testing.T, h *head, header *control.FileHeader, source archive.Source) (*control.PutReply, error) {
	t.Helper()
	stream, err := h.Put(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := &chunkWriter{send: stream.Send, header: header}
	if err := archive.Pack(t.Context(), w, source); err == nil {
		w.flush()
	} else if !errors.Is(err, io.EOF) { // the reply is there already
		t.Fatal(err)
	}
	return stream.CloseAndRecv()
}

func fetch(t *testing.T, h *head, request *control.FetchRequest) (*control.FileHeader, []byte, error) {
	t.Helper()
	stream, err := h.Fetch(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	var header *control.FileHeader
	var data []byte
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return header, data, nil
		} else if err != nil {
			return nil, nil, err
		}
		if chunk.Header != nil {
			header = chunk.Header
		}
		data = append(data, chunk.Data...)
	}
}

func TestFiles(t *testing.T) {
	r := newRig(t, real(t))
	h := r.joinReal()
	from := t.TempDir()
	for name, data := range map[string]string{"train.py": "print()", "sub/data": strings.Repeat("0123456789", 50_000)} {
		os.MkdirAll(filepath.Dir(filepath.Join(from, name)), 0o755)
		if err := os.WriteFile(filepath.Join(from, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	workdir := r.o.Join.Workdir
	os.WriteFile(filepath.Join(workdir, "old"), nil, 0o644)
	header := &control.FileHeader{Kind: control.FileKind_WORKDIR, Hash: "w1"}
	if reply, err := put(t, h, header, archive.Source{Root: from}); err != nil || reply.Present {
		t.Fatalf("put: %v, %v", reply, err)
	}
	if b, _ := os.ReadFile(filepath.Join(workdir, "sub/data")); len(b) != 500_000 {
		t.Errorf("sub/data has %d bytes", len(b))
	}
	if _, err := os.Stat(filepath.Join(workdir, "old")); err == nil {
		t.Error("the former workdir is still there")
	}
	if reply, err := put(t, h, header, archive.Source{Root: from}); err != nil || !reply.Present {
		t.Errorf("put again: %v, %v, want it present", reply, err)
	}

	// Checkpoints: one that the job makes is reported, can be fetched in two parts, and put on another node, where
	// it is not news.
	h.send(&control.Order{Body: &control.Order_Start{Start: &control.Start{
		World: world(1), Procs: 1, WorldSize: 1, Checkpoint: "ckpt",
		Command: `cd $LAUNCHER_CHECKPOINT && echo x >x && mv x .hidden && head -c 300000 /dev/urandom >.part && mv .part step-1; sleep 1000`,
	}}})
	c := await(h, (*control.Report).GetCheckpoint)
	if c.Name != "step-1" || c.Size != 300_000 || c.Generation != 1 {
		t.Errorf("checkpoint %v", c)
	}
	want := &control.FetchRequest{Kind: control.FileKind_CHECKPOINT, Path: "ckpt", Name: "step-1"}
	_, whole, err := fetch(t, h, want)
	if err != nil {
		t.Fatal(err)
	}
	want.Offset, want.IfHash = uint64(len(whole)/3), c.Hash
	got, rest, err := fetch(t, h, want)
	if err != nil || !bytes.Equal(rest, whole[len(whole)/3:]) || got.Offset != want.Offset {
		t.Errorf("the rest from %d: %d bytes, %v", want.Offset, len(rest), err)
	}
	want.IfHash = "other"
	if _, _, err := fetch(t, h, want); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("fetch of another hash: %v", err)
	}
	there := t.TempDir()
	if _, err := archive.Unpack(t.Context(), bytes.NewReader(whole), there); err != nil {
		t.Fatal(err)
	}
	header = &control.FileHeader{Kind: control.FileKind_CHECKPOINT, Hash: c.Hash, Name: "step-1", Path: "other"}
	if reply, err := put(t, h, header, archive.Source{Root: there, Name: "step-1"}); err != nil || reply.Present {
		t.Errorf("put checkpoint: %v, %v", reply, err)
	}
	header.Path = "ckpt"
	if reply, err := put(t, h, header, archive.Source{Root: there, Name: "step-1"}); err != nil || !reply.Present {
		t.Errorf("put checkpoint where it is: %v, %v, want it present", reply, err)
	}
	// What the head brings is not news, what comes after it is.
	os.WriteFile(filepath.Join(there, "step-2"), []byte("2"), 0o644)
	hash, _, err := archive.Hash(t.Context(), archive.Source{Root: there, Name: "step-2"})
	if err != nil {
		t.Fatal(err)
	}
	second := &control.FileHeader{Kind: control.FileKind_CHECKPOINT, Hash: hash, Name: "step-2", Path: "ckpt"}
	if _, err := put(t, h, second, archive.Source{Root: there, Name: "step-2"}); err != nil {
		t.Fatal(err)
	}
	os.WriteFile(filepath.Join(workdir, "step-3"), bytes.Repeat([]byte("3"), 1<<20), 0o644)
	if err := os.Rename(filepath.Join(workdir, "step-3"), filepath.Join(workdir, "ckpt", "step-3")); err != nil {
		t.Fatal(err)
	}
	if c := await(h, (*control.Report).GetCheckpoint); c.Name != "step-3" {
		t.Errorf("checkpoint %s was reported, want step-3 next", c.Name)
	}
	header.Hash = "wrong"
	if _, err := put(t, h, header, archive.Source{Root: there, Name: "step-1"}); err == nil {
		t.Error("put of other content than announced: no error")
	}
	header.Name = "../x"
	if _, err := put(t, h, header, archive.Source{Root: there, Name: "step-1"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("put outside: %v", err)
	}
	if files, _ := filepath.Glob(filepath.Join(workdir, "*", ".launcher-put-*")); len(files) != 0 {
		t.Errorf("left behind: %v", files)
	}

	// Outputs: whole, unchanged, missing.
	outputs := &control.FetchRequest{Kind: control.FileKind_OUTPUTS, Path: "sub"}
	first, data, err := fetch(t, h, outputs)
	if err != nil || len(data) == 0 || first.Size != 500_000 {
		t.Errorf("outputs: %v, %d bytes, %v", first, len(data), err)
	}
	outputs.UnlessHash = first.Hash
	if got, data, err := fetch(t, h, outputs); err != nil || !got.Unchanged || len(data) != 0 {
		t.Errorf("unchanged outputs: %v, %d bytes, %v", got, len(data), err)
	}
	outputs.Path = "nowhere"
	if got, _, err := fetch(t, h, outputs); err != nil || !got.Missing {
		t.Errorf("missing outputs: %v, %v", got, err)
	}
}

func TestAPI(t *testing.T) {
	r := newRig(t, real(t))
	h := r.joinReal()
	url := "http://" + r.o.API.Addr().String() + "/v1/"
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	call := func(method, path, body, token string) (int, map[string]any) {
		request, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		var v map[string]any
		json.NewDecoder(response.Body).Decode(&v)
		return response.StatusCode, v
	}
	for _, token := range []string{"", "x", r.token + "x"} {
		if code, _ := call("GET", "world", "", token); code != http.StatusUnauthorized {
			t.Errorf("token %q: %d, want 401", token, code)
		}
	}
	if code, v := call("GET", "world", "", r.token); code != 200 || v["generation"] != 0.0 || v["slot"] != 3.0 {
		t.Errorf("world: %d, %v", code, v)
	}

	// It hangs until the generation changes, and until a notice comes.
	next := make(chan map[string]any)
	wait := func(after string) {
		go func() {
			_, v := call("GET", "world?after="+after, "", r.token)
			next <- v
		}()
	}
	wait("0")
	h.send(startOrder(1, 1, "sleep 1000"))
	if v := <-next; v["generation"] != 1.0 || len(v["members"].([]any)) != 2 {
		t.Errorf("world after 0: %v", v)
	}
	await(h, (*control.Report).GetStarted)
	_, v := call("GET", "world", "", r.token)
	wait(fmt.Sprintf("1&version=%v", v["version"]))
	r.notice(machine.Notice{ID: "a", Source: "file", Deadline: time.Now().Add(30 * time.Second)})
	v = <-next
	if n := v["notices"].([]any); len(n) != 1 || n[0].(map[string]any)["own"] != true {
		t.Errorf("notices: %v", v)
	}
	got := await(h, (*control.Report).GetNotice)
	if left := time.Duration(got.DeadlineStampNs - h.stamp); left < 25*time.Second || left > 30*time.Second {
		t.Errorf("notice leaves %v, want 30s", left)
	}
	var file struct{ Own bool }
	b, err := os.ReadFile(r.path("run/notice.json"))
	if err := errors.Join(err, json.Unmarshal(b, &file)); err != nil || !file.Own {
		t.Errorf("notice file %s: %v", b, err)
	}
	r.notice(machine.Notice{ID: "a", Source: "file", Withdrawn: true})
	if got := await(h, (*control.Report).GetNotice); !got.Withdrawn {
		t.Errorf("notice %v, want it withdrawn", got)
	}

	// A changed world without a new start, as with on_change = "notify".
	wait("1")
	h.send(&control.Order{Body: &control.Order_Notify{Notify: &control.Notify{World: world(2)}}})
	for {
		if v := <-next; v["generation"] == 2.0 {
			break
		}
		wait("1") // the withdrawal of the notice may have come first
	}

	for _, test := range []struct {
		path, body string
		want       int
	}{
		{"scale", `{"workers": 5}`, 202},
		{"scale", `{"workers": 0}`, 400},
		{"scale", `{"worker": 5}`, 400},
		{"scale", `junk`, 400},
		{"scale", `{"workers": "` + strings.Repeat("x", maxBody) + `"}`, 413},
		{"progress", `{"step": 7, "numbers": {"loss": 0.5}}`, 202},
		{"nothing", `{}`, 404},
	} {
		if code, v := call("POST", test.path, test.body, r.token); code != test.want {
			t.Errorf("POST %s %.30s: %d %v, want %d", test.path, test.body, code, v, test.want)
		}
	}
	if got := await(h, (*control.Report).GetScale); got.Workers != 5 {
		t.Errorf("scale %v", got)
	}
	if got := await(h, (*control.Report).GetProgress); got.Step != 7 || got.Numbers["loss"] != 0.5 || got.Generation != 1 {
		t.Errorf("progress %v", got)
	}
}

func TestRekey(t *testing.T) {
	keys := make(chan string, 1)
	r := newRig(t, func(o *Options) {
		o.Rekey = func(_ context.Context, key string) error {
			keys <- key
			return errors.New("no")
		}
	})
	h := r.join()
	h.send(&control.Order{Body: &control.Order_Rekey{Rekey: &control.Rekey{Id: "k1", PrivateKeyPem: "PEM"}}})
	if got := await(h, (*control.Report).GetRekeyed); got.Id != "k1" || got.Error != "no" || <-keys != "PEM" {
		t.Errorf("rekeyed %v", got)
	}
}

// TestFormerAgent: what an agent that was killed has left running ends before the next one serves.
func TestFormerAgent(t *testing.T) {
	var left process.Process
	r := newRig(t, func(o *Options) {
		real(t)(o)
		var err error
		left, err = process.OS{}.Start(process.Spec{Argv: []string{"/bin/sh", "-c", "sleep 1000; true"}, Env: []string{
			"LAUNCHER_RUN=" + o.Join.Run, "LAUNCHER_NODE=n0", "LAUNCHER_GENERATION=7", "PATH=" + os.Getenv("PATH"),
		}})
		if err != nil {
			t.Fatal(err)
		}
	})
	r.joinReal()
	if got := left.Wait(); got.Signal != "SIGKILL" {
		t.Errorf("it ended by %+v, want SIGKILL", got)
	}
	left.Close()
}

// TestWorldShowsOnce: a notice that the machine and the head both tell of is one, and an older world is none.
func TestWorldShowsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.notice(machine.Notice{ID: "a", Source: "file", Deadline: time.Now().Add(time.Minute)})
		w := world(5)
		w.Notices = []*control.NodeNotice{{Node: "n0", Slot: 3}, {Node: "n9"}}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.setWorld(w)
		r.setWorld(world(4))
		got := r.viewWorld()
		if got.Generation != 5 || len(got.Notices) != 2 || !got.Notices[0].Own || got.Notices[1].Own {
			t.Errorf("world %+v, want generation 5 with an own notice and another's", got)
		}
	})
}

// TestExecEndsWithTheCall: a command whose caller has gone does not stay.
func TestExecEndsWithTheCall(t *testing.T) {
	r := newRig(t, real(t))
	h := r.joinReal()
	alive := filepath.Join(r.o.Join.Workdir, "alive")
	if err := fifoAt(alive); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := h.Exec(ctx)
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&control.ExecInput{Body: &control.ExecInput_Start{Start: &control.ExecStart{
		Argv: []string{"exec 3>alive; echo up >&3; sleep 1000; true"},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(alive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.ReadFull(f, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := f.Read(make([]byte, 1)); err != io.EOF { // once nobody holds the other end
		t.Errorf("read: %v", err)
	}
}

// TestOrdersOfAFormerSession: what was on its way from a head that was replaced does not count.
func TestOrdersOfAFormerSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.join().renew()
		r.obey(&session{r: r.reports}, startOrder(1, 1, "train"))
		synctest.Wait()
		if len(r.runner.started) != 0 {
			t.Error("it was obeyed")
		}
	})
}
