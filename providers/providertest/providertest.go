// Package providertest is the conformance suite of [providers.Provider]: what the interface's comments promise, as tests.
//
// A provider's own test is a [Harness] and a call of [Run]. The same suite runs against a provider called directly,
// under decorators, and across the plugin hop; [RunHop] has the cases that exist only there. It works in real time and,
// with Harness.Around = synctest.Test, in virtual time. Every case ends by deleting what it made and looking that
// nothing is left.
package providertest

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// Harness is what the suite asks of a provider under test. C is what Open makes beside the provider, handed to the
// hooks: the cloud, or whatever reaches it. A case whose hook or value is not given is not run, and named in the log.
type Harness[C any] struct {
	// Open makes a provider over an empty cloud and its provider block. It is called once per case, inside Around, and
	// ends what it started with t.Cleanup.
	Open func(t *testing.T) (cloud C, p providers.Provider, config json.RawMessage)
	// Around runs the body of one case [as it is]: synctest.Test for virtual time.
	Around func(t *testing.T, body func(t *testing.T))
	// Serial tells that cases must not run in parallel.
	Serial bool

	// Want is what is asked of Offers [a worker with one CPU, either market].
	Want providers.OffersRequest
	// AuthorizedKeys and BirthHostKey go into Create [an ed25519 pair made for the case].
	AuthorizedKeys []string
	BirthHostKey   []byte
	// Settle bounds each wait for something to show, in excess of the consistency window [30s]; Poll is the time between two looks [20ms];
	// Prompt is within what a call must return when its context ends [10s].
	Settle, Poll, Prompt time.Duration
	// CancelAfter are the moments at which a Create is given up [0, 1ms, 30ms].
	CancelAfter []time.Duration

	// PageSize is how many resources the cloud lists at a time.
	PageSize int
	// ShortTTL is a boot lease long enough for the machine to be listed once and short enough to wait for.
	ShortTTL time.Duration
	// BadConfigs are provider blocks that must be refused.
	BadConfigs []BadConfig

	// Limit makes at most n machines alive at a time possible, over all pools.
	Limit func(cloud C, n int)
	// DropReply makes the next call of op ("create", "delete", "update") take effect and the provider not hear of it.
	DropReply func(cloud C, op string)
	// Fail makes the next call of op ("offers", "create", "list", "delete", "update") fail with the code, without effect.
	Fail func(cloud C, op string, code providers.Code)
	// FailPage makes the next listing fail after its first page.
	FailPage func(cloud C)
	// Reopen makes a second provider over the same cloud, as another process of the same caller would.
	Reopen func(t *testing.T, cloud C) providers.Provider
	// Noticed waits for the machine's guest to be told of a preemption and returns the deadline.
	Noticed func(ctx context.Context, cloud C, machine string) (time.Time, error)
	// Leftover names what exists or bills in the cloud, as seen by something other than the provider: whatever is not
	// Terminated, tagged or not.
	Leftover func(cloud C) []string
}

// BadConfig is a provider block that must be refused with Invalid, and the path of the attribute to blame.
type BadConfig struct {
	Config    string
	Attribute string
}

// testCase is one promise.
type testCase struct {
	name string
	// without says what the harness lacks for it; "" if nothing.
	without string
	body    func(t *testing.T, f *fixture)
}

// Run runs the suite.
func Run[C any](t *testing.T, h Harness[C]) {
	if h.Around == nil {
		h.Around = func(t *testing.T, body func(*testing.T)) { body(t) }
	}
	need := func(what string, given bool) string {
		if given {
			return ""
		}
		return what
	}
	cases := []testCase{
		{"info", "", testInfo},
		{"offers", "", testOffers},
		{"offers have no effect", "", testOffersNoEffect},
		{"create", "", testCreate},
		{"create invalid", "", testCreateInvalid},
		{"create again", "", testCreateAgain},
		{"create again by another process", need("Reopen", h.Reopen != nil), testCreateReopened},
		{"create concurrently", "", testCreateConcurrently},
		{"create again after lost reply", need("DropReply", h.DropReply != nil), testCreateLostReply},
		{"create again after end", "", testCreateAfterEnd},
		{"create cancelled", "", testCreateCancelled},
		{"partial capacity", need("Limit", h.Limit != nil), testPartialCapacity},
		{"below min", need("Limit", h.Limit != nil), testBelowMin},
		{"address appears", "", testAddress},
		{"boot lease", need("ShortTTL", h.ShortTTL > 0), testBootLease},
		{"list filters", "", testListFilters},
		{"list pages", need("PageSize", h.PageSize > 0), testListPages},
		{"list is whole or an error", need("FailPage and PageSize", h.FailPage != nil && h.PageSize > 0), testListBrokenPage},
		{"delete twice", "", testDeleteTwice},
		{"delete unknown", "", testDeleteUnknown},
		{"delete foreign", "", testDeleteForeign},
		{"delete after lost reply", need("DropReply", h.DropReply != nil), testDeleteLostReply},
		{"update", "", testUpdate},
		{"update foreign", "", testUpdateForeign},
		{"preempt", "", testPreempt},
		{"notice", need("Noticed", h.Noticed != nil), testNotice},
		{"check", "", testCheck},
		{"codes", need("Fail", h.Fail != nil), testCodes},
		{"bad config", need("BadConfigs", len(h.BadConfigs) > 0), testBadConfig},
		{"ended context", "", testEndedContext},
	}
	var left []string
	for _, c := range cases {
		if c.without != "" {
			left = append(left, c.name+" ("+c.without+")")
			continue
		}
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			if !h.Serial {
				t.Parallel()
			}
			h.Around(t, func(t *testing.T) {
				f := open(t, h)
				c.body(t, f)
				f.nothingLeft(t)
			})
		})
	}
	if len(left) > 0 {
		t.Logf("cases not run, and what the harness lacks for them: %s", strings.Join(left, ", "))
	}
}

// open binds the harness to a fresh cloud.
func open[C any](t *testing.T, h Harness[C]) *fixture {
	cloud, p, config := h.Open(t)
	f := &fixture{
		provider: p, config: config, want: h.Want, keys: h.AuthorizedKeys, birth: h.BirthHostKey,
		settle: h.Settle, poll: h.Poll, prompt: h.Prompt, cancelAfter: h.CancelAfter,
		pageSize: h.PageSize, shortTTL: h.ShortTTL, badConfigs: h.BadConfigs,
		limit:     func(n int) { h.Limit(cloud, n) },
		dropReply: func(op string) { h.DropReply(cloud, op) },
		fail:      func(op string, code providers.Code) { h.Fail(cloud, op, code) },
		failPage:  func() { h.FailPage(cloud) },
		reopen:    func(t *testing.T) providers.Provider { return h.Reopen(t, cloud) },
		noticed: func(ctx context.Context, machine string) (time.Time, error) {
			return h.Noticed(ctx, cloud, machine)
		},
	}
	if h.Leftover != nil {
		f.leftover = func() []string { return h.Leftover(cloud) }
	}
	f.withDefaults(t)
	return f
}

func (f *fixture) withDefaults(t *testing.T) {
	t.Helper()
	if f.want.Role == "" {
		f.want.Role = providers.Worker
	}
	if f.want.Markets == nil {
		f.want.Markets = []providers.Market{providers.Spot, providers.OnDemand}
	}
	if f.want.CPUs == 0 && f.want.GPUs == nil && f.want.InstanceTypes == nil {
		f.want.CPUs = 1
	}
	f.want.Config = f.config
	if f.settle == 0 {
		f.settle = 30 * time.Second
	}
	if f.poll == 0 {
		f.poll = 20 * time.Millisecond
	}
	if f.prompt == 0 {
		f.prompt = 10 * time.Second
	}
	if f.cancelAfter == nil {
		f.cancelAfter = []time.Duration{0, time.Millisecond, 30 * time.Millisecond}
	}
	if f.keys == nil {
		f.keys = []string{newKey().authorized()}
	}
	if f.birth == nil {
		f.birth = newKey().private()
	}
	info, err := f.provider.Info(t.Context())
	if err != nil {
		t.Fatalf("info: %v", err)
	}
	f.info = info
	f.settle += info.ConsistencyWindow
	f.owner = "providertest"
}

// machines returns the machines among resources that still bill.
func machines(resources []providers.Resource) []providers.Resource {
	return slices.DeleteFunc(slices.Clone(resources), func(r providers.Resource) bool {
		return r.Kind != providers.KindMachine || !r.Alive()
	})
}
