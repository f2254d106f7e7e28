package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/providers"
)

// ask makes odd do something and returns what it says.
func ask(t testing.TB, h *Host, do string) string {
	t.Helper()
	offers, err := h.Offers(t.Context(), asking(do))
	if err != nil {
		t.Fatalf("%s: %v", do, err)
	}
	return offers[0].Rejected
}

func wantError(t *testing.T, err error, code providers.Code, texts ...string) {
	t.Helper()
	if got := providers.CodeOf(err); got != code {
		t.Fatalf("got code %q (%v), want %q", got, err, code)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("got error %q, want one with %q", err, text)
		}
	}
}

// record is a log to look at.
type record struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

func (r *record) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(r, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func TestStart(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		opts  Options
		code  providers.Code
		texts []string
	}{
		"liar":      {Options{Name: "liar"}, providers.Internal, []string{`calls itself "honest", want "liar"`}},
		"talker":    {Options{}, providers.Internal, []string{"hello"}},
		"greedy":    {Options{}, providers.Internal, []string{`wants the variable "A=B"`}},
		"stillborn": {Options{}, providers.Internal, []string{"exit status 2", "panic: born dead"}},
		"mute":      {Options{startTimeout: 200 * time.Millisecond}, providers.Internal, []string{"timeout"}},
		"elsewhere": {Options{}, providers.Internal, []string{"/run/someone-elses.sock"}},
		"plain":     {Options{Checksum: strings.Repeat("0", 64)}, providers.Invalid, []string{"has changed"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := opened(t, name, tc.opts)
			_, err := h.Info(t.Context())
			wantError(t, err, tc.code, tc.texts...)
			_, err = h.List(t.Context(), providers.Filter{})
			wantError(t, err, tc.code, tc.texts...)
			if !strings.HasPrefix(err.Error(), "list: ") && name != "liar" && name != "greedy" {
				t.Errorf("error %q does not begin with the operation", err)
			}
		})
	}
}

// TestStartGivenUp: a caller who gives up does not wait for a plugin that does not come up.
func TestStartGivenUp(t *testing.T) {
	t.Parallel()
	h := opened(t, "mute", Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := h.List(ctx, providers.Filter{})
	wantError(t, err, providers.Unavailable)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v is not the context's", err)
	}
}

// TestCloseWhileStarting: Close does not wait for it either.
func TestCloseWhileStarting(t *testing.T) {
	t.Parallel()
	h := opened(t, "mute", Options{})
	ended := make(chan error, 1)
	go func() {
		_, err := h.Info(context.Background())
		ended <- err
	}()
	for len(h.turn) == 0 { // until the call has the turn
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(time.Millisecond):
		}
	}
	h.Close()
	wantError(t, <-ended, providers.Internal, "closed")
	_, err := h.List(t.Context(), providers.Filter{})
	wantError(t, err, providers.Internal, "closed")
}

func TestOpen(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", folder, file, filepath.Join(folder, "none")} {
		_, err := Open(Options{Path: path})
		wantError(t, err, providers.Invalid)
	}
}

// TestLazy: the plugin is started by the first call, once for Info, once more with credentials where any is set.
func TestLazy(t *testing.T) {
	t.Parallel()
	var log record
	h := opened(t, "odd", Options{Log: log.logger(), Env: meeting(t.TempDir())})
	starts := func() int { return strings.Count(log.String(), "plugin started") }
	if got := starts(); got != 0 {
		t.Errorf("%d starts before the first call", got)
	}
	info, err := h.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := starts(); got != 1 {
		t.Errorf("%d starts for Info, want 1", got)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := h.List(t.Context(), providers.Filter{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := starts(); got != 2 {
		t.Errorf("%d starts for Info and 8 calls at once, want 2", got)
	}
	info.Capabilities[0] = "spoilt"
	if again, err := h.Info(t.Context()); err != nil || again.Capabilities[0] == "spoilt" {
		t.Errorf("a caller changed Info for others: %v, %v", again.Capabilities, err)
	}

	var without record
	h = opened(t, "odd", Options{Log: without.logger(), Env: func(name string) (string, bool) { return os.LookupEnv(name) }})
	if _, err := h.List(t.Context(), providers.Filter{}); err != nil {
		t.Error(err)
	}
	if got := strings.Count(without.String(), "plugin started"); got != 1 {
		t.Errorf("%d starts where no credential is set, want 1", got)
	}
}

// TestCapabilities: what Info does not name is refused here.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	h := opened(t, "plain", Options{Name: "plain"})
	_, err := h.Check(t.Context(), nil)
	wantError(t, err, providers.Invalid, "check: the provider has no check")
	err = h.Preempt(t.Context(), providers.PreemptRequest{})
	wantError(t, err, providers.Invalid, "preempt: the provider has no preempt")
	able := opened(t, "odd", Options{Name: "odd"})
	if id, err := able.Check(t.Context(), nil); err != nil || id.Owner == "" {
		t.Errorf("check: %v, %v", id, err)
	}
}

// TestDeath: whatever kills the plugin, the call says so with its last words, and the next call has another.
func TestDeath(t *testing.T) {
	t.Parallel()
	h := opened(t, "odd", Options{})
	for do, texts := range map[string][]string{
		"exit":  {"offers: the plugin is gone", "exit status 3"},
		"crash": {"offers: the plugin is gone", "exit status 2", "panic: oddest"},
	} {
		before := ask(t, h, "pid")
		_, err := h.Offers(t.Context(), asking(do))
		wantError(t, err, providers.Gone, texts...)
		if after := ask(t, h, "pid"); after == before {
			t.Errorf("%s: still the same process", do)
		}
	}
	before := ask(t, h, "pid")
	_, err := h.Offers(t.Context(), asking("panic"))
	wantError(t, err, providers.Internal, "panic: odd")
	if after := ask(t, h, "pid"); after != before {
		t.Error("a panic in one call ended the process")
	}
	h.live.process.Kill(t.Context())
	<-h.live.process.done
	if after := ask(t, h, "pid"); after == before { // killed between calls, nobody notices
		t.Error("the dead answer")
	}
}

// TestHang: a plugin that hangs costs one call its time, and is replaced.
func TestHang(t *testing.T) {
	t.Parallel()
	var log record
	h := opened(t, "odd", Options{Log: log.logger(), CallTimeout: time.Second, patience: 300 * time.Millisecond})
	before := ask(t, h, "pid")
	_, err := h.Offers(t.Context(), asking("stop"))
	wantError(t, err, providers.Unavailable, "no answer")
	if after := ask(t, h, "pid"); after == before {
		t.Error("still the same process")
	}
}

// TestSlow: a call that ran out of time says nothing against the plugin.
func TestSlow(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	h := opened(t, "odd", Options{Env: meeting(folder)})
	entered, cancelled := fifo(t, folder, "entered"), fifo(t, folder, "cancelled")
	before := ask(t, h, "pid")
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := h.Offers(ctx, asking("until cancelled"))
	wantError(t, err, providers.Unavailable)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v is not the context's", err)
	}
	await(t, "entered", entered)
	await(t, "cancelled", cancelled)
	if after := ask(t, h, "pid"); after != before {
		t.Error("it was replaced")
	}
}

// TestCancel: giving up here is heard there, and the deadline is known there.
func TestCancel(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	h := opened(t, "odd", Options{Env: meeting(folder), CallTimeout: 7 * time.Minute})
	entered, cancelled := fifo(t, folder, "entered"), fifo(t, folder, "cancelled")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-entered
		cancel()
	}()
	_, err := h.Offers(ctx, asking("until cancelled"))
	wantError(t, err, providers.Unavailable)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v is not the context's", err)
	}
	await(t, "cancelled", cancelled)
	if got, want := ask(t, h, "deadline"), "7m0s true"; got != want {
		t.Errorf("deadline of a call without one: got %s, want %s", got, want)
	}
}

// TestClose: calls in flight are cancelled there before the process goes.
func TestClose(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	h := opened(t, "odd", Options{Env: meeting(folder)})
	entered, cancelled := fifo(t, folder, "entered"), fifo(t, folder, "cancelled")
	ended := make(chan error, 1)
	go func() {
		_, err := h.Offers(t.Context(), asking("until cancelled"))
		ended <- err
	}()
	await(t, "entered", entered)
	h.Close()
	await(t, "cancelled", cancelled)
	wantError(t, <-ended, providers.Internal, "closed")
	h.Close()
}

// TestCloseStubborn: a plugin that hangs is closed all the same.
func TestCloseStubborn(t *testing.T) {
	t.Parallel()
	h := opened(t, "odd", Options{CallTimeout: time.Second})
	_, err := h.Offers(t.Context(), asking("stop"))
	wantError(t, err, providers.Unavailable)
	p := h.live.process
	began := time.Now()
	h.Close()
	if took := time.Since(began); took > 10*time.Second || !p.dead() {
		t.Errorf("closed after %v, dead: %v", took, p.dead())
	}
}

// TestReplies: what is too much to read is refused, and so is what is too much to send.
func TestReplies(t *testing.T) {
	t.Parallel()
	small := opened(t, "odd", Options{maxReply: 1 << 20})
	_, err := small.Offers(t.Context(), asking("too large"))
	wantError(t, err, providers.Internal, "larger than max")
	h := opened(t, "odd", Options{})
	_, err = h.call(t.Context(), opOffers, make([]byte, maxMessage))
	wantError(t, err, providers.Invalid, "offers: the request has")
	_, err = h.Offers(t.Context(), providers.OffersRequest{Config: []byte("{")})
	wantError(t, err, providers.Invalid)
	// gRPC's own limit is 4 MiB; go-plugin's, on this side, 2 GiB.
	_, err = h.Offers(t.Context(), asking(strings.Repeat("x", 6<<20)))
	wantError(t, err, providers.Internal, "what is")
	if got := h.opts.maxReply; got != maxMessage {
		t.Errorf("replies of up to %d bytes, want %d", got, maxMessage)
	}
}

// TestOutput: stdout and stderr are the host's log, whatever is said there.
func TestOutput(t *testing.T) {
	t.Parallel()
	var log record
	h := opened(t, "odd", Options{Log: log.logger()})
	ask(t, h, "print")
	if got, want := ask(t, h, "stdin"), "EOF"; got != want {
		t.Errorf("stdin: got %s, want %s", got, want)
	}
	h.Close()
	for _, want := range []string{`msg="by slog" plugin=odd answer=42`, `level=ERROR msg="in trouble[31m"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %q in the log:\n%s", want, log.String())
		}
	}
}

// TestJournalist holds how lines are read. Two of them end a host that leaves them to go-plugin's own parser.
func TestJournalist(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		`plain`:                                `level=DEBUG msg=plain`,
		`{"level":"WARN","msg":"m","b":1}`:     `level=WARN msg=m b=1`,
		`{"@message":5}`:                       `level=DEBUG msg="{\"@message\":5}"`,
		`{"@level":[],"@timestamp":{}}`:        `level=DEBUG msg="{\"@level\":[],\"@timestamp\":{}}"`,
		`{"msg":"x","level":7}`:                `level=DEBUG msg=x`,
		"\x1b]0;title\x07text":                 `level=DEBUG msg=]0;titletext`,
		"a\u202eb":                             `level=DEBUG msg=ab`,
		`{"msg":"m","a":{"b":[1]},"time":"t"}`: `level=DEBUG msg=m a=map[b:[1]]`,
		"   ":                                  ``,
	} {
		var log record
		j := &journalist{log: log.logger()}
		out := &lines{emit: j.line}
		for _, b := range []byte(line + "\n") { // as it may arrive
			out.Write([]byte{b})
		}
		_, got, _ := strings.Cut(strings.TrimSpace(log.String()), " ")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", line, diff)
		}
	}
	var got []int
	out := &lines{emit: func(line []byte) { got = append(got, len(line)) }}
	fmt.Fprintf(out, "%s\nshort\n", strings.Repeat("x", 3*maxLine))
	if diff := cmp.Diff([]int{maxLine, 5}, got); diff != "" {
		t.Errorf("lengths of lines (-want +got):\n%s", diff)
	}
}

// TestSocketFolder: sockets are where they are wanted, or where they can be.
func TestSocketFolder(t *testing.T) {
	t.Parallel()
	short := shortFolder(t)
	long := filepath.Join(short, strings.Repeat("x", 80))
	for asked, want := range map[string]bool{short: true, long: false, filepath.Join(short, "new"): true, "": false} {
		got, err := socketFolder(asked)
		if err != nil {
			t.Fatal(err)
		}
		if (got == asked) != want || len(got)+socketSuffix > maxSocketPath {
			t.Errorf("asked for %s, got %s", asked, got)
		}
	}
	h := opened(t, "plain", Options{Folder: long})
	if _, err := h.Info(t.Context()); err != nil {
		t.Error(err)
	}
}
