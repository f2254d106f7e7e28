package ssh

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/providers"
)

func TestParse(t *testing.T) {
	user, one := pair(t), pair(t)
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, user.Private, 0o600); err != nil {
		t.Fatal(err)
	}
	line := "a,[b]:2022,[::1]:22,::1 " + one.Public
	good := func() map[string]any {
		return map[string]any{"hosts": []string{"a"}, "key": file, "host_key": line}
	}
	for name, tc := range map[string]struct {
		change func(b map[string]any)
		blame  string
		want   []string
	}{
		"one":             {func(map[string]any) {}, "", []string{"root@a:22"}},
		"user and port":   {func(b map[string]any) { b["hosts"], b["user"] = []string{"x@A:22", "b:2022", "[::1]"}, "y" }, "", []string{"x@a:22", "y@b:2022", "y@[::1]:22"}},
		"lines as a list": {func(b map[string]any) { b["host_key"] = []string{"# comment", line} }, "", []string{"root@a:22"}},
		"other key types": {func(b map[string]any) { b["host_key"] = "a ssh-rsa AAAA\n" + line }, "", []string{"root@a:22"}},
		"hashed": {func(b map[string]any) {
			b["host_key"] = "|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg= " + one.Public
			b["hosts"] = []string{"192.168.1.61"}
		}, "", []string{"root@192.168.1.61:22"}},
		"no hosts":           {func(b map[string]any) { delete(b, "hosts") }, "hosts", nil},
		"twice":              {func(b map[string]any) { b["hosts"] = []string{"a", "a:22"} }, "hosts[1]", nil},
		"bad port":           {func(b map[string]any) { b["hosts"] = []string{"a:x"} }, "hosts[0]", nil},
		"bad host":           {func(b map[string]any) { b["hosts"] = []string{"@a"} }, "hosts[0]", nil},
		"no host key":        {func(b map[string]any) { delete(b, "host_key") }, "host_key", nil},
		"another's host key": {func(b map[string]any) { b["hosts"] = []string{"c"} }, "host_key", nil},
		"other port's key":   {func(b map[string]any) { b["hosts"] = []string{"a:23"} }, "host_key", nil},
		"no key":             {func(b map[string]any) { delete(b, "key") }, "key", nil},
		"no such key":        {func(b map[string]any) { b["key"] = file + "x" }, "key", nil},
		"negative price":     {func(b map[string]any) { b["usd_per_hour"] = -1 }, "usd_per_hour", nil},
		"price as text":      {func(b map[string]any) { b["usd_per_hour"] = "x" }, "usd_per_hour", nil},
	} {
		b := good()
		tc.change(b)
		raw, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		s, err := parse("list", raw)
		var got []string
		for _, h := range s.hosts {
			got = append(got, h.user+"@"+h.address)
		}
		e, failed := errors.AsType[*providers.Error](err)
		if failed && (e.Code != providers.Invalid || e.Attribute != tc.blame || strings.Contains(e.Message, "BEGIN")) || failed != (tc.blame != "") {
			t.Errorf("%s: got %+v, want the blame on %q", name, err, tc.blame)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: hosts (-want +got):\n%s", name, diff)
		}
	}
}

func TestSchema(t *testing.T) {
	info, err := New().Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, a := range info.Schema {
		got = append(got, a.Name)
	}
	for f := range reflect.TypeFor[block]().Fields() {
		want = append(want, f.Tag.Get("json"))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("schema (-want +got):\n%s", diff)
	}
}

func TestReject(t *testing.T) {
	has := facts{cpus: 8, memory: 64, gpu: providers.GPU{Model: "NVIDIA A100-SXM4-80GB", Count: 4}}
	for name, tc := range map[string]struct {
		req providers.OffersRequest
		ok  bool
	}{
		"nothing":        {providers.OffersRequest{}, true},
		"enough":         {providers.OffersRequest{CPUs: 8, MemoryGiB: 64}, true},
		"CPUs":           {providers.OffersRequest{CPUs: 9}, false},
		"memory":         {providers.OffersRequest{MemoryGiB: 65}, false},
		"its type":       {providers.OffersRequest{InstanceTypes: []string{InstanceType}}, true},
		"another type":   {providers.OffersRequest{InstanceTypes: []string{"p5"}}, false},
		"its GPU":        {providers.OffersRequest{GPUs: []providers.GPU{{Model: "h100", Count: 1}, {Model: "a100-80gb", Count: 4}}}, true},
		"more GPUs":      {providers.OffersRequest{GPUs: []providers.GPU{{Model: "a100", Count: 8}}}, false},
		"another GPU":    {providers.OffersRequest{GPUs: []providers.GPU{{Model: "a100-40gb", Count: 1}}}, false},
		"a GPU or types": {providers.OffersRequest{GPUs: []providers.GPU{{Model: "a100", Count: 1}}, InstanceTypes: []string{"p5"}}, true},
	} {
		if got := has.reject(tc.req); (got == "") != tc.ok {
			t.Errorf("%s: rejected %q", name, got)
		}
	}
}
