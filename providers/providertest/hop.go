package providertest

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// HopHarness is what [RunHop] asks of the plugin host under test. The cloud behind the plugin must outlive the plugin
// process, or the promises about repeated calls cannot be looked at.
type HopHarness struct {
	// Open starts a provider across the hop over an empty cloud and ends it with t.Cleanup. Its plugin must hold each
	// Create long enough for Entered to say so before the reply.
	Open func(t *testing.T) HopSubject
	// HostKilled starts a process of its own that opens the plugin, makes a call, and is then killed with SIGKILL. The
	// channel is closed when the plugin process is no more.
	HostKilled func(t *testing.T) (gone <-chan struct{})
	// Settle bounds each wait [30s].
	Settle time.Duration
}

// HopSubject is one provider across the hop.
type HopSubject struct {
	Provider providers.Provider
	Config   json.RawMessage
	// Entered returns a channel that is closed when the plugin is inside its next Create.
	Entered func() <-chan struct{}
	// Kill kills the plugin process with SIGKILL.
	Kill func()
	// Environ returns the environment that the plugin process has, as NAME=value.
	Environ func() []string
	// Allowed are the variables it may have: those of Info.CredentialEnv and the host's own.
	Allowed []string
}

// RunHop runs the cases that make sense only where the provider is another process.
func RunHop(t *testing.T, h HopHarness) {
	if h.Settle == 0 {
		h.Settle = 30 * time.Second
	}
	t.Run("plugin_killed_in_mid_call", func(t *testing.T) { testPluginKilled(t, h) })
	t.Run("host_killed", func(t *testing.T) { testHostKilled(t, h) })
	t.Run("environment", func(t *testing.T) { testEnvironment(t, h) })
}

// hopFixture is a fixture without hooks.
func (h HopHarness) open(t *testing.T) (*fixture, HopSubject) {
	t.Helper()
	s := h.Open(t)
	f := &fixture{provider: s.Provider, config: s.Config, settle: h.Settle}
	f.withDefaults(t)
	return f, s
}

// testPluginKilled: the call in flight says that the plugin is gone, or is answered by the next one; its repetition
// makes nothing twice.
func testPluginKilled(t *testing.T, h HopHarness) {
	f, s := h.open(t)
	run := name("run")
	req := f.request(t, run, 2)
	entered := s.Entered()
	ended := make(chan error, 1)
	go func() {
		_, err := f.provider.Create(t.Context(), req)
		ended <- err
	}()
	if !h.within(entered) {
		t.Error("the plugin never got the call")
	}
	s.Kill()
	timer := time.NewTimer(f.settle)
	defer timer.Stop()
	select {
	case err := <-ended:
		if err != nil {
			wantCode(t, "create while the plugin was killed", err, providers.Gone)
		}
	case <-timer.C:
		t.Fatalf("create still hangs %v after its plugin was killed", f.settle) // t.Context ends it
	}
	made := f.create(t, req)
	f.pass(t, f.info.ConsistencyWindow)
	f.showing(t, run, made)
	f.same(t, "repeated", made, f.create(t, req))
	f.nothingLeft(t)
}

// testHostKilled: no plugin outlives its host.
func testHostKilled(t *testing.T, h HopHarness) {
	if !h.within(h.HostKilled(t)) {
		t.Errorf("the plugin still lives %v after its host was killed", h.Settle)
	}
}

// testEnvironment: the plugin sees its credential variables and nothing else of the caller's environment.
func testEnvironment(t *testing.T, h HopHarness) {
	t.Setenv("PROVIDERTEST_CANARY", "must-not-arrive")
	f, s := h.open(t)
	if len(f.list(t, "")) != 0 { // the plugin has been started
		t.Error("the cloud is not empty")
	}
	for _, variable := range s.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		if !slices.Contains(s.Allowed, name) || strings.Contains(value, "must-not-arrive") {
			t.Errorf("the plugin sees %s", name)
		}
	}
}

// within tells whether the channel is closed in time.
func (h HopHarness) within(done <-chan struct{}) bool {
	timer := time.NewTimer(h.Settle)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
