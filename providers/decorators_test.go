package providers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/providers"
)

// fakeProvider answers each call with the next of errs, then with success, and remembers what was asked and when.
type fakeProvider struct {
	mu    sync.Mutex // guards all
	errs  []error
	calls []string
	times []time.Time
}

func (p *fakeProvider) answer(call string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, call)
	p.times = append(p.times, time.Now())
	if len(p.errs) == 0 {
		return nil
	}
	err := p.errs[0]
	p.errs = p.errs[1:]
	return err
}

func (p *fakeProvider) Info(context.Context) (providers.Info, error) {
	return providers.Info{Name: "fake"}, p.answer("info")
}

func (p *fakeProvider) Offers(context.Context, providers.OffersRequest) ([]providers.Offer, error) {
	return make([]providers.Offer, 3), p.answer("offers")
}

func (p *fakeProvider) Create(_ context.Context, req providers.CreateRequest) (providers.CreateResult, error) {
	if err := p.answer("create " + req.Token); err != nil {
		return providers.CreateResult{}, err
	}
	return providers.CreateResult{Machines: make([]providers.Machine, req.Min)}, nil
}

func (p *fakeProvider) List(context.Context, providers.Filter) ([]providers.Resource, error) {
	return make([]providers.Resource, 5), p.answer("list")
}

func (p *fakeProvider) Delete(_ context.Context, req providers.DeleteRequest) ([]providers.Resource, error) {
	return req.Resources[:1], p.answer("delete")
}

func (p *fakeProvider) Update(context.Context, providers.UpdateRequest) error {
	return p.answer("update")
}

// fakeDriller has the optional services too.
type fakeDriller struct{ fakeProvider }

func (p *fakeDriller) Preempt(context.Context, providers.PreemptRequest) error {
	return p.answer("preempt")
}

func (p *fakeDriller) Check(context.Context, json.RawMessage) (providers.Identity, error) {
	return providers.Identity{Owner: "me"}, p.answer("check")
}

func code(c providers.Code) error { return providers.Errorf(c, "op", "no") }

// everyCall calls each method once.
func everyCall(ctx context.Context, p providers.Provider) map[string]func() error {
	config := json.RawMessage(`{"password":"canary-config"}`)
	tags := map[string]string{providers.TagRun: "r-1", "note": "canary-tag"}
	calls := map[string]func() error{
		"info":   func() error { _, err := p.Info(ctx); return err },
		"offers": func() error { _, err := p.Offers(ctx, providers.OffersRequest{Config: config}); return err },
		"create": func() error {
			_, err := p.Create(ctx, providers.CreateRequest{
				Config: config, Token: "t1", Run: "r-1", Count: 4, Min: 2, Tags: tags,
				AuthorizedKeys: []string{"canary-authorized"}, BirthHostKey: []byte("canary-key"), Identity: "canary-identity",
			})
			return err
		},
		"list": func() error { _, err := p.List(ctx, providers.Filter{Config: config, Run: "r-1"}); return err },
		"delete": func() error {
			_, err := p.Delete(ctx, providers.DeleteRequest{Config: config, Run: "r-1", Resources: []providers.Resource{{Tags: tags}, {}, {}}})
			return err
		},
		"update": func() error { return p.Update(ctx, providers.UpdateRequest{Config: config, Run: "r-1", Tags: tags}) },
	}
	if d, ok := providers.As[providers.Preempter](p); ok {
		calls["preempt"] = func() error { return d.Preempt(ctx, providers.PreemptRequest{Config: config, Run: "r-1"}) }
	}
	if c, ok := providers.As[providers.Checker](p); ok {
		calls["check"] = func() error { _, err := c.Check(ctx, config); return err }
	}
	return calls
}

func TestAsLooksThroughDecorators(t *testing.T) {
	decorated := func(p providers.Provider) providers.Provider {
		p = providers.Limit(p, providers.LimitOptions{PerSecond: 1e6})
		p = providers.Retry(p, providers.RetryOptions{})
		return providers.Log(p, slog.New(slog.DiscardHandler))
	}
	driller := &fakeDriller{}
	for name, tc := range map[string]struct {
		p    providers.Provider
		want bool
	}{
		"bare with":         {driller, true},
		"bare without":      {&fakeProvider{}, false},
		"decorated with":    {decorated(driller), true},
		"decorated without": {decorated(&fakeProvider{}), false},
	} {
		if _, ok := providers.As[providers.Preempter](tc.p); ok != tc.want {
			t.Errorf("%s: preempter %v, want %v", name, ok, tc.want)
		}
		if _, ok := providers.As[providers.Checker](tc.p); ok != tc.want {
			t.Errorf("%s: checker %v, want %v", name, ok, tc.want)
		}
	}
	outer := decorated(driller)
	if got, _ := providers.As[providers.Preempter](outer); got != outer.(providers.Preempter) {
		t.Errorf("got layer %T, want the outermost", got)
	}
	none, _ := decorated(&fakeProvider{}).(providers.Preempter)
	if err := none.Preempt(t.Context(), providers.PreemptRequest{}); providers.CodeOf(err) != providers.Invalid {
		t.Errorf("a drill that is not there: %v, want invalid", err)
	}
}

func TestRetryByCode(t *testing.T) {
	for _, tc := range []struct {
		code providers.Code
		want int // calls, where the second one would succeed
	}{
		{providers.Throttled, 2},
		{providers.Unavailable, 2},
		{providers.Gone, 2},
		{providers.NotFound, 1},
		{providers.Capacity, 1},
		{providers.Quota, 1},
		{providers.Auth, 1},
		{providers.Invalid, 1},
		{providers.Internal, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			for op := range everyCall(t.Context(), &fakeDriller{}) {
				fake := &fakeDriller{}
				fake.errs = []error{fmt.Errorf("wrapped: %w", code(tc.code))}
				err := everyCall(t.Context(), providers.Retry(fake, providers.RetryOptions{}))[op]()
				want := tc.want
				if op == "preempt" && tc.code != providers.Throttled {
					want = 1 // its effect may have happened, and it has no token
				}
				if len(fake.calls) != want {
					t.Errorf("%s, %s: %d calls, want %d", op, tc.code, len(fake.calls), want)
				}
				if got := providers.CodeOf(err); (want == 1) != (got == tc.code) {
					t.Errorf("%s, %s: got %v", op, tc.code, err)
				}
			}
		})
	}
}

func TestRetryCreateKeepsItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &fakeProvider{errs: []error{code(providers.Unavailable), code(providers.Gone), code(providers.Throttled)}}
		p := providers.Retry(fake, providers.RetryOptions{})
		if _, err := p.Create(t.Context(), providers.CreateRequest{Token: "t1"}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"create t1", "create t1", "create t1", "create t1"}, fake.calls); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		fake = &fakeProvider{errs: []error{code(providers.Unavailable)}}
		if _, err := providers.Retry(fake, providers.RetryOptions{}).Create(t.Context(), providers.CreateRequest{}); err == nil || len(fake.calls) != 1 {
			t.Errorf("without a token: %d calls, %v; want 1 and its error", len(fake.calls), err)
		}
	})
}

func TestRetryBackOff(t *testing.T) {
	always := make([]error, 100)
	for i := range always {
		always[i] = code(providers.Throttled)
	}
	for name, tc := range map[string]struct {
		opts providers.RetryOptions
		want []time.Duration // between calls
	}{
		"doubles up to the cap": {
			providers.RetryOptions{Attempts: 6, Base: time.Second, Cap: 5 * time.Second, Rand: func() float64 { return 1 }},
			[]time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second},
		},
		"full jitter": {
			providers.RetryOptions{Attempts: 3, Base: time.Second, Rand: func() float64 { return 0.25 }},
			[]time.Duration{250 * time.Millisecond, 500 * time.Millisecond},
		},
		"budget": {
			providers.RetryOptions{Attempts: 50, Budget: 8 * time.Second, Base: time.Second, Rand: func() float64 { return 1 }},
			[]time.Duration{time.Second, 2 * time.Second, 4 * time.Second}, // 8 more would exceed it
		},
		"one attempt": {providers.RetryOptions{Attempts: 1}, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			fake := &fakeProvider{errs: append([]error(nil), always...)}
			_, err := providers.Retry(fake, tc.opts).List(t.Context(), providers.Filter{})
			if providers.CodeOf(err) != providers.Throttled {
				t.Errorf("%s: got %v, want the last attempt's error", name, err)
			}
			if several := strings.Contains(err.Error(), "attempts in"); several != (len(tc.want) > 0) {
				t.Errorf("%s: %v", name, err)
			}
			var got []time.Duration
			for i := 1; i < len(fake.times); i++ {
				got = append(got, fake.times[i].Sub(fake.times[i-1]))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: waits (-want +got):\n%s", name, diff)
			}
		})
	}
}

func TestRetryEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &fakeProvider{errs: []error{code(providers.Unavailable), code(providers.Unavailable)}}
		p := providers.Retry(fake, providers.RetryOptions{Base: time.Minute, Rand: func() float64 { return 1 }})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := p.List(ctx, providers.Filter{})
		if providers.CodeOf(err) != providers.Unavailable || len(fake.calls) != 1 || time.Since(began) != time.Second {
			t.Errorf("%d calls, %v after %v; want 1, its error, 1s", len(fake.calls), err, time.Since(began))
		}
		for range 20 { // without a wait, too
			fake = &fakeProvider{errs: []error{code(providers.Unavailable)}}
			p = providers.Retry(fake, providers.RetryOptions{Rand: func() float64 { return 0 }})
			if _, err = p.List(ctx, providers.Filter{}); err == nil || len(fake.calls) != 1 {
				t.Errorf("%d calls with an ended context, %v; want 1 and its error", len(fake.calls), err)
			}
		}
	})
}

func TestLimitSpacesCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &fakeDriller{}
		p := providers.Limit(fake, providers.LimitOptions{PerSecond: 2, Burst: 3})
		_, _ = p.List(t.Context(), providers.Filter{})
		time.Sleep(time.Hour) // saves nothing beyond the burst
		fake.times = nil
		began := time.Now()
		for _, op := range []string{"create", "list", "delete", "update", "offers", "info", "check", "preempt"} {
			if err := everyCall(t.Context(), p)[op](); err != nil {
				t.Fatal(err)
			}
		}
		var got []time.Duration
		for _, at := range fake.times {
			got = append(got, at.Sub(began))
		}
		const ms = time.Millisecond
		if diff := cmp.Diff([]time.Duration{0, 0, 0, 500 * ms, 1000 * ms, 1000 * ms, 1500 * ms, 2000 * ms}, got); diff != "" {
			t.Errorf("times of the calls (-want +got):\n%s", diff)
		}
	})
}

func TestLimitSharedByCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &fakeProvider{}
		p := providers.Limit(fake, providers.LimitOptions{PerSecond: 10})
		began := time.Now()
		var wg sync.WaitGroup
		for range 21 {
			wg.Go(func() { _, _ = p.List(t.Context(), providers.Filter{}) })
		}
		wg.Wait()
		if got := time.Since(began); got != 2*time.Second {
			t.Errorf("21 calls at 10 a second took %v, want 2s", got)
		}
	})
}

func TestLimitGivingUpCostsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &fakeProvider{}
		p := providers.Limit(fake, providers.LimitOptions{PerSecond: 1})
		_, _ = p.List(t.Context(), providers.Filter{})
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				_, err := p.List(ctx, providers.Filter{})
				if !errors.Is(err, context.DeadlineExceeded) || providers.CodeOf(err) != providers.Unavailable {
					t.Errorf("given up: %v, want unavailable because of the deadline", err)
				}
			})
		}
		wg.Wait()
		if _, err := p.List(t.Context(), providers.Filter{}); err != nil {
			t.Fatal(err)
		}
		if got := fake.times[len(fake.times)-1].Sub(fake.times[0]); len(fake.calls) != 2 || got != time.Second {
			t.Errorf("%d calls, the last after %v; want 2, after 1s", len(fake.calls), got)
		}
		for range 20 {
			if _, err := providers.Limit(fake, providers.LimitOptions{PerSecond: 1}).List(ctx, providers.Filter{}); err == nil || len(fake.calls) != 2 {
				t.Fatalf("a call with an ended context was made: %v", err)
			}
		}
	})
}

func TestNoLimitNoLayer(t *testing.T) {
	fake := &fakeProvider{}
	if got := providers.Limit(fake, providers.LimitOptions{}); got != providers.Provider(fake) {
		t.Errorf("got %T, want the provider itself", got)
	}
}

func TestLogOneLinePerCallWithoutSecrets(t *testing.T) {
	want := map[string]string{
		"info":    "level=DEBUG op=info",
		"offers":  "level=DEBUG op=offers count=3",
		"create":  "level=INFO op=create run=r-1 want=4 count=2",
		"list":    "level=DEBUG op=list run=r-1 count=5",
		"delete":  "level=INFO op=delete run=r-1 want=3 count=2",
		"update":  "level=INFO op=update run=r-1",
		"preempt": "level=INFO op=preempt run=r-1",
		"check":   "level=DEBUG op=check",
	}
	failed := map[string]string{
		"info":    "level=WARN op=info code=auth",
		"offers":  "level=WARN op=offers count=3 code=auth",
		"create":  "level=WARN op=create run=r-1 want=4 count=0 code=auth",
		"list":    "level=WARN op=list run=r-1 count=5 code=auth",
		"delete":  "level=WARN op=delete run=r-1 want=3 count=0 code=auth",
		"update":  "level=WARN op=update run=r-1 code=auth",
		"preempt": "level=WARN op=preempt run=r-1 code=auth",
		"check":   "level=WARN op=check code=auth",
	}
	for name, lines := range map[string]map[string]string{"ok": want, "failed": failed} {
		for op, line := range lines {
			var out bytes.Buffer
			logger := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{
				Level: slog.LevelDebug,
				ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
					if a.Key == slog.TimeKey || a.Key == slog.MessageKey || a.Key == "duration" {
						return slog.Attr{}
					}
					return a
				},
			}))
			fake := &fakeDriller{}
			if name == "failed" {
				fake.errs = []error{providers.Errorf(providers.Auth, op, "canary-message")}
			}
			err := everyCall(t.Context(), providers.Log(fake, logger))[op]()
			if (err != nil) != (name == "failed") {
				t.Errorf("%s: %v", op, err)
			}
			if diff := cmp.Diff(line+"\n", out.String()); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", name, op, diff)
			}
			if strings.Contains(out.String(), "canary") {
				t.Errorf("%s logs a secret: %s", op, out.String())
			}
		}
	}
}
