package jobspec

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hashicorp/hcl/v2"
)

var update = flag.Bool("update", false, "rewrite golden files")

// schemas are providers as the launcher would describe them.
func schemas() map[string]Schema {
	return map[string]Schema{
		"aws": {Attributes: []Attribute{
			{Name: "subnet", Type: "string", Doc: "subnet id"},
			{Name: "profile", Type: "string", Doc: "profile of the shared config"},
		}},
		"local": {Attributes: []Attribute{
			{Name: "root", Type: "path", Doc: "where machines live"},
			{Name: "zones", Type: "list(string)", Doc: "names of zones"},
			{Name: "capacity", Type: "number", Doc: "machines per zone"},
			{Name: "boot", Type: "string", Doc: "time from create to boot"},
			{Name: "usd_per_hour", Type: "map(number)", Doc: "by market"},
		}},
		"ssh": {Attributes: []Attribute{
			{Name: "hosts", Type: "list(string)", Required: true, Doc: "host or host:port of each machine"},
			{Name: "user", Type: "string", Doc: "who to log in as"},
			{Name: "key", Type: "file", Doc: "private key file"},
			{Name: "host_key", Type: "list(string)", Required: true, Doc: "known_hosts lines"},
		}},
		"broken": {Attributes: []Attribute{{Name: "thing", Type: "lst(", Doc: "nothing"}}},
		"open":   {Open: true},
	}
}

// directives reads "# var: NAME=VALUE", "# env: NAME=VALUE" lines of a test file into options that see no disk but
// the files beside the test file.
func directives(src []byte, dir string) Options {
	opts := Options{
		Dir:             "/home/ada/cifar",
		Vars:            map[string]string{},
		ProviderSchemas: schemas(),
		ReadFile: func(path string) ([]byte, error) {
			rel, err := filepath.Rel("/home/ada/cifar", path)
			if err != nil {
				return nil, err
			}
			return os.ReadFile(filepath.Join(dir, rel))
		},
	}
	env := map[string]string{"HOME": "/home/ada"}
	for _, m := range regexp.MustCompile(`(?m)^# (var|env): ([^=\n]+)=(.*)$`).FindAllStringSubmatch(string(src), -1) {
		if m[1] == "var" {
			opts.Vars[m[2]] = m[3]
		} else {
			env[m[2]] = m[3]
		}
	}
	opts.Env = func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	return opts
}

func jobFiles(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no files %s: %v", pattern, err)
	}
	return files
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestErrors compares each file's "# error: SUMMARY" and "# warning: SUMMARY" marks, several in a line parted by
// " | ", with the diagnostics of that line. Adding a case is adding a file.
func TestErrors(t *testing.T) {
	mark := regexp.MustCompile(`# ((?:error|warning): .*)$`)
	cases := 0
	for _, file := range jobFiles(t, "testdata/errors/*.hcl") {
		cases++
		t.Run(strings.TrimSuffix(filepath.Base(file), ".hcl"), func(t *testing.T) {
			src := read(t, file)
			var want []string
			for i, line := range strings.Split(string(src), "\n") {
				if m := mark.FindStringSubmatch(line); m != nil {
					for _, text := range strings.Split(m[1], " | ") {
						want = append(want, fmt.Sprintf("%d %s", i+1, text))
					}
				}
			}
			job, diags := Parse(src, file, directives(src, filepath.Dir(file)))
			if job != nil && !diags.HasErrors() {
				diags = append(diags, CheckAvailable(job, AllCapabilities())...)
			}
			var got []string
			for _, d := range diags {
				got = append(got, fmt.Sprintf("%d %s: %s", d.Subject.Start.Line, severity(d), d.Summary))
				checkGrammar(t, d)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("diagnostics (-want +got):\n%s%s", diff, printed(file, src, diags))
			}
		})
	}
	if cases < 80 {
		t.Errorf("got %d files, want at least 80", cases)
	}
}

func severity(d *hcl.Diagnostic) string {
	if d.Severity == hcl.DiagWarning {
		return "warning"
	}
	return "error"
}

// checkGrammar holds what doc.go promises of every diagnostic that is ours.
func checkGrammar(t *testing.T, d *hcl.Diagnostic) {
	t.Helper()
	if n := len([]rune(d.Summary)); n == 0 || n > 60 || strings.HasSuffix(d.Summary, ".") {
		t.Errorf("summary %q: got %d characters, want 1 to 60 and no period", d.Summary, n)
	}
	if d.Detail == "" || !strings.ContainsAny(d.Detail[len(d.Detail)-1:], ".?!…") {
		t.Errorf("detail of %q is no sentence: %q", d.Summary, d.Detail)
	}
	if strings.Contains(d.Detail, "%!") || strings.Contains(d.Summary, "%!") {
		t.Errorf("%q %q is formatted wrongly", d.Summary, d.Detail)
	}
}

func printed(file string, src []byte, diags hcl.Diagnostics) string {
	var b bytes.Buffer
	w := hcl.NewDiagnosticTextWriter(&b, map[string]*hcl.File{file: {Bytes: src}}, 120, false)
	if err := w.WriteDiagnostics(diags); err != nil {
		return err.Error()
	}
	return b.String()
}

// TestDetails keeps the whole text that a user reads, did-you-mean included.
func TestDetails(t *testing.T) {
	var b bytes.Buffer
	for _, file := range jobFiles(t, "testdata/errors/*.hcl") {
		src := read(t, file)
		_, diags := Parse(src, filepath.Base(file), directives(src, filepath.Dir(file)))
		for _, d := range diags {
			fmt.Fprintf(&b, "%s:%d %s: %s\n    %s\n", filepath.Base(file), d.Subject.Start.Line, severity(d), d.Summary, strings.ReplaceAll(d.Detail, "\n", "\n    "))
		}
	}
	golden(t, "testdata/errors/details.txt", b.Bytes())
}

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(string(read(t, path)), string(got)); diff != "" {
		t.Errorf("%s (-want +got; go test -update rewrites it):\n%s", path, diff)
	}
}

func TestGood(t *testing.T) {
	for _, file := range jobFiles(t, "testdata/good/*.hcl") {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".hcl"), func(t *testing.T) {
			src := read(t, file)
			job, diags := Parse(src, filepath.Base(file), directives(src, filepath.Dir(file)))
			if len(diags) > 0 {
				t.Fatalf("diagnostics:\n%s", printed(filepath.Base(file), src, diags))
			}
			indented, err := json.MarshalIndent(job, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden(t, strings.TrimSuffix(file, ".hcl")+".json", append(indented, '\n'))
			roundTrip(t, job)
			if diags := CheckAvailable(job, AllCapabilities()); len(diags) > 0 {
				t.Errorf("a build that serves everything refuses: %s", diags)
			}
		})
	}
}

// roundTrip sends a job through JSON, tight and indented, and wants it unchanged.
func roundTrip(t *testing.T, job *Job) {
	t.Helper()
	indented, err := json.MarshalIndent(job, " ", "\t")
	if err != nil {
		t.Fatal(err)
	}
	tight, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range [][]byte{tight, indented} {
		var back Job
		if err := json.Unmarshal(data, &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(job, &back, cmpopts.IgnoreFields(Job{}, "Ranges", "Files")); diff != "" {
			t.Errorf("after JSON (-before +after):\n%s", diff)
		}
		again, err := json.Marshal(&back)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(tight, again) {
			t.Errorf("second JSON: got %s, want %s", again, tight)
		}
	}
}
