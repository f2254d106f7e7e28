package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/providers"
)

// echo keeps what arrived, and answers with what it is told to.
type echo struct {
	providers.Provider
	got  any
	list []providers.Resource
	made providers.CreateResult
	err  error
}

func (e *echo) Offers(_ context.Context, req providers.OffersRequest) ([]providers.Offer, error) {
	e.got = req
	return nil, e.err
}

func (e *echo) Create(_ context.Context, req providers.CreateRequest) (providers.CreateResult, error) {
	e.got = req
	return e.made, e.err
}

func (e *echo) List(_ context.Context, filter providers.Filter) ([]providers.Resource, error) {
	e.got = filter
	return e.list, e.err
}

func (e *echo) Delete(_ context.Context, req providers.DeleteRequest) ([]providers.Resource, error) {
	e.got = req
	return e.list, e.err
}

func (e *echo) Update(_ context.Context, req providers.UpdateRequest) error {
	e.got = req
	return e.err
}

func (e *echo) Preempt(_ context.Context, req providers.PreemptRequest) error {
	e.got = req
	return e.err
}

func (e *echo) Check(_ context.Context, config json.RawMessage) (providers.Identity, error) {
	e.got = config
	return providers.Identity{Owner: "o", Missing: []string{"m"}, Notes: []string{"n"}}, e.err
}

// across is the wire without a connection.
func across(p providers.Provider) remote {
	s := newService(p)
	methods := s.methods()
	return remote{invoke: func(ctx context.Context, op string, request []byte) ([]byte, error) {
		return s.answer(ctx, op, request, methods[op])
	}}
}

// TestCrossing: what is sent arrives, to the last field.
func TestCrossing(t *testing.T) {
	config := json.RawMessage(`{"a":[1,"<&>"]}`)
	when := time.Date(2026, 5, 4, 3, 2, 1, 123456789, time.UTC)
	offer := providers.Offer{
		Provider: "p", InstanceType: "i", Region: "r", Zone: "z", Market: providers.Spot, CPUs: 1, MemoryGiB: 1.5,
		GPU: providers.GPU{Model: "g", Count: 2}, USDPerHour: new(0.1), PriceDate: when, PriceSource: "s", Rejected: "why",
	}
	machine := providers.Machine{
		ID: "m", Token: "t", Offer: offer, Address: "a:1", ClusterAddress: "c:2", User: "u", Image: "im", CreatedAt: when,
	}
	resource := providers.Resource{
		ID: "m", Kind: providers.KindMachine, State: providers.Running, Tags: map[string]string{"k": "v\x00\u2028"},
		Region: "r", CreatedAt: when, Machine: &machine, Reason: "x",
	}
	refused := []providers.Refusal{{Offer: offer, Code: providers.Quota, Message: "no"}}
	e := &echo{list: []providers.Resource{resource}, made: providers.CreateResult{Machines: []providers.Machine{machine}, Refused: refused}}
	p := across(e)
	ctx := t.Context()
	for name, tc := range map[string]struct {
		call       func() (any, error)
		sent, want any
	}{
		"offers": {
			func() (any, error) { return p.Offers(ctx, e.got.(providers.OffersRequest)) },
			providers.OffersRequest{
				Config: config, Role: providers.Head, Regions: []string{"r"}, Markets: []providers.Market{providers.Spot},
				GPUs: []providers.GPU{{Model: "g", Count: 1}}, InstanceTypes: []string{"i"}, CPUs: 3, MemoryGiB: 2.25, DiskGiB: 4,
			},
			[]providers.Offer(nil),
		},
		"create": {
			func() (any, error) { return p.Create(ctx, e.got.(providers.CreateRequest)) },
			providers.CreateRequest{
				Config: config, Token: "t", Run: "r", Role: providers.Worker, Offers: []providers.Offer{offer}, Count: 3, Min: 2,
				Tags: map[string]string{"k": "v"}, TTL: time.Hour + 1, AuthorizedKeys: []string{"ssh"}, BirthHostKey: []byte{0, 255},
				Ingress: []string{"::/0"}, DiskGiB: 1, Image: "im", Identity: "id", Egress: "nat",
			},
			e.made,
		},
		"list": {
			func() (any, error) { return p.List(ctx, e.got.(providers.Filter)) },
			providers.Filter{Config: config, Run: "r", Owner: "o", Regions: []string{"r"}},
			e.list,
		},
		"delete": {
			func() (any, error) { return p.Delete(ctx, e.got.(providers.DeleteRequest)) },
			providers.DeleteRequest{Config: config, Run: "r", Resources: e.list},
			e.list,
		},
		"update": {
			func() (any, error) { return nil, p.Update(ctx, e.got.(providers.UpdateRequest)) },
			providers.UpdateRequest{Config: config, Run: "r", Machine: "m", Tags: map[string]string{"k": "v"}, Ingress: []string{"::/0"}},
			nil,
		},
		"update that leaves ingress": {
			func() (any, error) { return nil, p.Update(ctx, e.got.(providers.UpdateRequest)) },
			providers.UpdateRequest{Run: "r", Machine: "m"},
			nil,
		},
		"update that closes ingress": {
			func() (any, error) { return nil, p.Update(ctx, e.got.(providers.UpdateRequest)) },
			providers.UpdateRequest{Run: "r", Machine: "m", Ingress: []string{}},
			nil,
		},
		"preempt": {
			func() (any, error) { return nil, p.Preempt(ctx, e.got.(providers.PreemptRequest)) },
			providers.PreemptRequest{Config: config, Run: "r", Machine: "m", Notice: time.Second},
			nil,
		},
		"check": {
			func() (any, error) { return p.Check(ctx, e.got.(json.RawMessage)) },
			config,
			providers.Identity{Owner: "o", Missing: []string{"m"}, Notes: []string{"n"}},
		},
		"check without a block": {
			func() (any, error) { return p.Check(ctx, e.got.(json.RawMessage)) },
			json.RawMessage(nil),
			providers.Identity{Owner: "o", Missing: []string{"m"}, Notes: []string{"n"}},
		},
	} {
		e.got = tc.sent
		got, err := tc.call()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var plain []cmp.Option
		plain = append(plain, cmp.Transformer("raw", func(raw json.RawMessage) any { // its spelling is free
			var v any
			if json.Unmarshal(raw, &v) != nil {
				return string(raw)
			}
			return v
		}))
		if diff := cmp.Diff(tc.sent, e.got, plain...); diff != "" {
			t.Errorf("%s: request (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(tc.want, got, plain...); diff != "" {
			t.Errorf("%s: result (-want +got):\n%s", name, diff)
		}
	}
}

// TestErrorsCross: code, operation, message, attribute and offers arrive; causes as text.
func TestErrorsCross(t *testing.T) {
	offers := []providers.Refusal{
		{Offer: providers.Offer{Zone: "z"}, Code: providers.Capacity, Message: "dry"},
		{Offer: providers.Offer{Zone: "y"}, Code: "later", Message: "new"},
	}
	full := &providers.Error{Code: providers.Quota, Op: "create", Message: "m", Attribute: "regions[0]", Offers: offers[:1]}
	for name, tc := range map[string]struct {
		err  error
		want *providers.Error
	}{
		"full":            {full, full},
		"wrapped":         {fmt.Errorf("outer: %w", full), &providers.Error{Code: providers.Quota, Op: "create", Message: "outer: create: m (quota)", Attribute: "regions[0]", Offers: offers[:1]}},
		"cause alone":     {&providers.Error{Code: providers.Auth, Err: errors.New("cause")}, &providers.Error{Code: providers.Auth, Op: "create", Message: "cause"}},
		"other":           {errors.New("other"), &providers.Error{Code: providers.Internal, Op: "create", Message: "other"}},
		"other operation": {providers.Errorf(providers.Throttled, "list", "m"), &providers.Error{Code: providers.Throttled, Op: "create", Message: "m"}},
		"gone":            {providers.Errorf(providers.Gone, "create", "m"), &providers.Error{Code: providers.Unavailable, Op: "create", Message: "m"}},
		"unknown code":    {&providers.Error{Code: "later", Message: "m", Offers: offers[1:]}, &providers.Error{Code: providers.Internal, Op: "create", Message: `m (unknown code "later")`, Offers: []providers.Refusal{{Offer: offers[1].Offer, Code: providers.Internal, Message: `new (unknown code "later")`}}}},
		"for a terminal":  {providers.Errorf(providers.Auth, "create", "a\x1b[2J\nb\u202e"), &providers.Error{Code: providers.Auth, Op: "create", Message: "a[2J b"}},
		"long":            {providers.Errorf(providers.Auth, "create", "%s", strings.Repeat("é", maxText)), &providers.Error{Code: providers.Auth, Op: "create", Message: strings.Repeat("é", maxText/2) + "…"}},
	} {
		_, err := across(&echo{err: tc.err, made: providers.CreateResult{Machines: make([]providers.Machine, 1)}}).Create(t.Context(), providers.CreateRequest{})
		got, ok := errors.AsType[*providers.Error](err)
		if !ok {
			t.Errorf("%s: got %v", name, err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestUnencodable: what a provider returns and JSON cannot hold is a refusal, not a lost call.
func TestUnencodable(t *testing.T) {
	far := time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC)
	_, err := across(&echo{list: []providers.Resource{{CreatedAt: far}}}).List(t.Context(), providers.Filter{})
	wantError(t, err, providers.Internal, "list: encode the result")
}

// TestTooMany: what a small message makes large is refused unread.
func TestTooMany(t *testing.T) {
	reply := append(bytes.Repeat([]byte("0,"), maxValues), '0')
	reply = slices.Concat([]byte(`{"result":[`), reply, []byte(`]}`))
	p := remote{invoke: func(context.Context, string, []byte) ([]byte, error) { return reply, nil }}
	_, err := p.List(t.Context(), providers.Filter{})
	wantError(t, err, providers.Internal, "values")
}

// TestEnding: a plugin that is about to end takes no call, and cancels those it has.
func TestEnding(t *testing.T) {
	entered := make(chan struct{})
	s := newService(waiting{entered: entered})
	methods := s.methods()
	p := remote{invoke: func(ctx context.Context, op string, request []byte) ([]byte, error) {
		return s.answer(ctx, op, request, methods[op])
	}}
	ended := make(chan error, 1)
	go func() {
		_, err := p.List(context.Background(), providers.Filter{})
		ended <- err
	}()
	<-entered
	s.stop()
	wantError(t, <-ended, providers.Unavailable, "context canceled")
	_, err := p.List(t.Context(), providers.Filter{})
	wantError(t, err, providers.Unavailable, "the plugin is ending")
}

type waiting struct {
	providers.Provider
	entered chan struct{}
}

func (w waiting) List(ctx context.Context, _ providers.Filter) ([]providers.Resource, error) {
	close(w.entered)
	<-ctx.Done()
	return nil, providers.Errorf(providers.Unavailable, "list", "%w", ctx.Err())
}

// TestProto holds the description for other languages to what is served.
func TestProto(t *testing.T) {
	text, err := os.ReadFile("provider.proto")
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, m := range regexp.MustCompile(`rpc (\w+)\(`).FindAllStringSubmatch(string(text), -1) {
		got = append(got, m[1])
	}
	for op := range newService(nil).methods() {
		want = append(want, methodName(op))
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("methods (-served +described):\n%s", diff)
	}
	for _, has := range []string{cookieKey + "=" + cookieValue, "package " + strings.TrimSuffix(serviceName, ".Provider") + ";", "64 MiB"} {
		if !strings.Contains(string(text), has) {
			t.Errorf("no %q in provider.proto", has)
		}
	}
}

// FuzzReply: whatever a plugin answers is a result or one error with a code we know, fit to be printed.
func FuzzReply(f *testing.F) {
	for _, seed := range []string{
		`{"result":[]}`, `{"result":null}`, `{}`, `[]`, ``, `{"error":{}}`, `{"error":{"code":"quota","op":"x","message":"\u001b[2J","offers":[{"code":"z"}]}}`,
		`{"result":[{"id":"a","created_at":"2026-01-02T03:04:05Z","machine":{"offer":{"usd_per_hour":1e999}}}]}`, `{"result":{"machines":{}}}`,
		`{"error":null,"result":7}`, `{"result":[{"tags":{"a":1}}]}`, `{"result":` + strings.Repeat("[", 20000), strings.Repeat("0,", 100),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, reply []byte) {
		p := remote{invoke: func(context.Context, string, []byte) ([]byte, error) { return reply, nil }}
		_, infoErr := p.Info(t.Context())
		_, offersErr := p.Offers(t.Context(), providers.OffersRequest{})
		made, createErr := p.Create(t.Context(), providers.CreateRequest{})
		all, listErr := p.List(t.Context(), providers.Filter{})
		_, checkErr := p.Check(t.Context(), nil)
		if listErr != nil && all != nil || createErr != nil && (made.Machines != nil || made.Refused != nil) {
			t.Error("a result beside an error")
		}
		for op, err := range map[string]error{opInfo: infoErr, opOffers: offersErr, opCreate: createErr, opList: listErr, opCheck: checkErr} {
			if err == nil {
				continue
			}
			e, ok := errors.AsType[*providers.Error](err)
			if !ok || e.Op != op || len(e.Message) > 2*maxText+100 {
				t.Fatalf("%s: %v", op, err)
			}
			if known, _ := knownCode(e.Code, ""); known != e.Code {
				t.Errorf("%s: code %q", op, e.Code)
			}
			if i := strings.IndexFunc(err.Error(), func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
				t.Errorf("%s: %q is not fit to be printed", op, err)
			}
		}
	})
}
