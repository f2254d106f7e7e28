package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/plugin"
	"github.com/ephemeral-launcher/launcher/providers/providertest"
)

// The test binary is also the plugin, so that the suite talks to it across the hop, as launcher does.
func TestMain(m *testing.M) {
	if strings.HasPrefix(filepath.Base(os.Args[0]), plugin.Prefix) {
		main()
		return
	}
	os.Exit(m.Run())
}

// host opens the plugin; ours is not installed, so the test says where it is.
func host(t *testing.T, executable string) providers.Provider {
	h, err := plugin.Open(plugin.Options{Name: "static", Path: executable})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

func TestConformance(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	executable := filepath.Join(t.TempDir(), plugin.Prefix+"static")
	if err := os.Symlink(self, executable); err != nil {
		t.Fatal(err)
	}
	hosts := func(t *testing.T, pool string, n int) {
		var list strings.Builder
		for i := range n {
			fmt.Fprintf(&list, "192.0.2.%d:22\n", i+1)
		}
		if err := os.WriteFile(filepath.Join(pool, "hosts"), []byte(list.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shared := host(t, executable)
	limit := func(pool string, n int) { hosts(t, pool, n) }
	providertest.Run(t, providertest.Harness[string]{
		Open: func(t *testing.T) (string, providers.Provider, json.RawMessage) {
			pool := t.TempDir()
			hosts(t, pool, 20)
			config, err := json.Marshal(map[string]string{"pool": pool})
			if err != nil {
				t.Fatal(err)
			}
			return pool, shared, config
		},
		Limit:      limit,
		Reopen:     func(t *testing.T, _ string) providers.Provider { return host(t, executable) },
		BadConfigs: []providertest.BadConfig{{Config: `{"pool":7}`, Attribute: "pool"}, {Config: `{"pool":"here"}`, Attribute: "pool"}},
	})
}
