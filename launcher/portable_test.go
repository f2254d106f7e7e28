package launcher

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/local"
	"github.com/ephemeral-launcher/launcher/providers/sim"
)

// TestContents: what the provider block has by path goes to the head by content, and the block itself stays as it is.
func TestContents(t *testing.T) {
	dir := t.TempDir()
	key, binary := filepath.Join(dir, "key"), filepath.Join(dir, "binary")
	for path, text := range map[string]string{key: "-----BEGIN \"KEY\"\n", binary: "\xff\x00"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	schema := []providers.Attribute{{Name: "key", Type: "file"}, {Name: "root", Type: "path"}, {Name: "other", Type: "file"}}
	for name, tc := range map[string]struct {
		config string
		schema []providers.Attribute
		want   string
		err    string
	}{
		"no files":    {`{"key":"/nowhere"}`, schema[1:2], `{"key":"/nowhere"}`, ""},
		"no block":    {``, nil, ``, ""},
		"a file":      {fmt.Sprintf(`{"hosts":["a"],"key":%q,"root":"/srv"}`, key), schema, `{"hosts":["a"],"key":"-----BEGIN \"KEY\"\n","root":"/srv"}`, ""},
		"null":        {`{"key":null}`, schema, `{"key":null}`, ""},
		"missing":     {fmt.Sprintf(`{"key":%q}`, filepath.Join(dir, "none")), schema, "", "send key of the provider block"},
		"not a text":  {fmt.Sprintf(`{"key":%q}`, binary), schema, "", "is not a text"},
		"not a block": {`[]`, schema, "", "read the provider block"},
	} {
		t.Run(name, func(t *testing.T) {
			before := tc.config
			got, err := contents(json.RawMessage(tc.config), tc.schema)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %v, want an error with %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if tc.config != before {
				t.Errorf("the block itself is %s now", tc.config)
			}
		})
	}
}

// plugin is a provider with programs of its own.
type plugin struct {
	providers.Provider
	programs []providers.Program
}

func (p plugin) Programs() ([]providers.Program, error) { return p.programs, nil }

// TestOnlyHere: a provider that only the calling program has needs the supervisor there; built-in ones and plugins do not.
func TestOnlyHere(t *testing.T) {
	cloud := sim.New(sim.Options{})
	all := Builtin()
	all["mine"] = cloud
	all["lab"] = plugin{Provider: cloud}
	for name, tc := range map[string]struct {
		provider, head string
		refused        bool
	}{
		"a value":                 {"mine", `head {}`, true},
		"a value, supervised":     {"mine", `head { supervisor = "client" }`, false},
		"a plugin":                {"lab", `head {}`, false},
		"built in":                {"local", `head {}`, false},
		"a value under its log":   {"logged", `head {}`, true},
		"a plugin under its log":  {"loglab", `head {}`, false},
		"built in, by the client": {"local", `head { supervisor = "client" }`, false},
	} {
		t.Run(name, func(t *testing.T) {
			all["logged"] = providers.Retry(cloud, providers.RetryOptions{})
			all["loglab"] = providers.Retry(plugin{Provider: cloud}, providers.RetryOptions{})
			path := filepath.Join(t.TempDir(), "job.hcl")
			text := fmt.Sprintf("job \"j\" {\n  provider %q {}\n  %s\n  workers { count = 1 }\n  run \"ranks\" { command = \"true\" }\n}\n", tc.provider, tc.head)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			job, err := Load(path, LoadOptions{Providers: all})
			if err != nil {
				t.Fatal(err)
			}
			_, err = Plan(t.Context(), job, Options{Home: t.TempDir(), Providers: all})
			wrong := new(DiagnosticsError)
			if got := errors.As(err, &wrong); got != tc.refused {
				t.Fatalf("got %v, want refused: %v", err, tc.refused)
			}
			if tc.refused && (!strings.Contains(wrong.Error(), "job.hcl:2") || !strings.Contains(wrong.Error(), `head { supervisor = "client" }`)) {
				t.Errorf("got %v, want the block's line and what to do", wrong)
			}
		})
	}
}

// TestPins: a run is held to the plugin that it began with, on each kind of computer.
func TestPins(t *testing.T) {
	lab := plugin{sim.New(sim.Options{}), []providers.Program{{Platform: hostPlatform(), SHA256: "aa"}, {Platform: "linux-riscv64", SHA256: "bb"}}}
	opts := Options{Providers: map[string]providers.Provider{"lab": lab, "local": lab}}
	pins, err := opts.pins("lab")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{hostPlatform(): "aa", "linux-riscv64": "bb"}, pins); diff != "" {
		t.Errorf("pins (-want +got):\n%s", diff)
	}
	if pins, err := opts.pins("local"); err != nil || pins != nil {
		t.Errorf("pins of a built-in provider: %v, %v", pins, err)
	}
	for name, tc := range map[string]struct {
		pins map[string]string
		ok   bool
	}{
		"the same":               {pins, true},
		"another":                {map[string]string{hostPlatform(): "cc"}, false},
		"begun on another kind":  {map[string]string{"plan9-mips": "cc"}, true},
		"begun with a built-in":  {nil, true},
		"another platform's too": {map[string]string{hostPlatform(): "aa", "linux-riscv64": "cc"}, true},
	} {
		if err := opts.checkPins(&journal.Planned{Provider: "lab", Plugin: tc.pins}); (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNeedsBlock: a provider whose hosts only a job file names is said to be not looked at, and is no failure.
func TestNeedsBlock(t *testing.T) {
	root := t.TempDir()
	opts := Options{Home: root, Providers: Builtin(), Env: func(string) (string, bool) { return "", false }}
	opts.Providers["local"] = local.New(local.Options{Root: filepath.Join(root, "local")})
	r, err := Down(t.Context(), "nobody", DownOptions{Options: opts})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]NotLookedAt{{Provider: "ssh", Why: "it needs its block of the job file"}}, r.NotLookedAt); diff != "" {
		t.Errorf("not looked at (-want +got):\n%s", diff)
	}
}
