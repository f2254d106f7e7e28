package jobspec

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/hcl/v2"
)

const base = `job "demo" {
  provider "local" {}
  workers { count = 2 }
  run "ranks" { command = "true" }
  %s
}
`

// parsed is a job of the base text with some more in it, and no complaint.
func parsed(t *testing.T, more string, opts Options) *Job {
	t.Helper()
	job, diags := Parse(fmt.Appendf(nil, base, more), "job.hcl", opts)
	if len(diags) > 0 {
		t.Fatal(diags)
	}
	return job
}

// lines are the diagnostics as "LINE SUMMARY".
func lines(diags hcl.Diagnostics) []string {
	var got []string
	for _, d := range diags {
		line := 0
		if d.Subject != nil {
			line = d.Subject.Start.Line
		}
		got = append(got, fmt.Sprintf("%d %s", line, d.Summary))
	}
	return got
}

func TestCheckFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "src"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", filepath.Join(dir, "src"))
	tests := []struct {
		name, more string
		want       []string
	}{
		{"nothing named", "", nil},
		{"the job's own folder", "workdir {}", nil},
		{"missing", "\nworkdir {\nsource = \"nope\"\n}", []string{"7 The workdir does not exist"}},
		{"below a file", "\nworkdir {\nsource = \"file/x\"\n}", []string{"7 The workdir cannot be read"}},
		{"a file", "\nworkdir {\nsource = \"file\"\n}", []string{"7 The workdir is not a folder"}},
		{"the root", "\nworkdir {\nsource = \"/\"\n}", []string{"7 The workdir is too much"}},
		{"home", "\nworkdir {\nsource = \"src\"\n}", []string{"7 The workdir is too much"}},
		{"outputs to come", "\noutputs {\nfrom = \"o\"\nto = \"new/results\"\n}", nil},
		{"outputs into a file", "\noutputs {\nfrom = \"o\"\nto = \"file\"\n}", []string{"8 outputs cannot be written there"}},
		{"outputs into a bucket", "\noutputs {\nfrom = \"o\"\nto = \"s3://file\"\n}", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			job := parsed(t, tt.more, Options{Dir: dir})
			if diff := cmp.Diff(tt.want, lines(CheckFiles(job))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckFilesOfProvider(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "id"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string][]string{"id": nil, "nope": {`5 The file of "key" cannot be read`}, ".": {`5 "key" is not a file`}} {
		text := fmt.Sprintf("job \"demo\" {\nprovider \"ssh\" {\nhosts = [\"h\"]\nhost_key = [\"h k\"]\nkey = %q\n}\nworkers { count = 1 }\nrun \"ranks\" { command = \"a\" }\n}\n", key)
		job, diags := Parse([]byte(text), "job.hcl", Options{Dir: dir, ProviderSchemas: schemas()})
		if len(diags) > 0 {
			t.Fatal(diags)
		}
		if diff := cmp.Diff(want, lines(CheckFiles(job))); diff != "" {
			t.Errorf("key %q (-want +got):\n%s", key, diff)
		}
	}
}

func TestCheckSecrets(t *testing.T) {
	job := parsed(t, "secrets = [\n\"SET\",\n\"UNSET\",\n\"EMPTY\",\n\"BINARY\",\n]", Options{})
	env := map[string]string{"SET": "hunter2", "EMPTY": "", "BINARY": "a\xff"}
	diags := CheckSecrets(job, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if diff := cmp.Diff([]string{`7 Secret "UNSET" is not set`, `8 Secret "EMPTY" is empty`, `9 Secret "BINARY" is not UTF-8 text`}, lines(diags)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	data, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "hunter2") || strings.Contains(diags.Error(), "hunter2") {
		t.Error("a secret's value is in the job or in a diagnostic")
	}
	t.Setenv("SET", "x")
	if diags := CheckSecrets(parsed(t, `secrets = ["SET"]`, Options{}), nil); len(diags) > 0 {
		t.Errorf("nil env does not look at the process: %s", diags)
	}
}

// TestCheckAvailable takes each feature out alone, and wants exactly one complaint, on the line that asks for it.
func TestCheckAvailable(t *testing.T) {
	asks := map[Feature]string{
		FeatureSupervisorClient:   "head {\nsupervisor = \"client\"\n}",
		FeatureRelocateAfter:      "placement {\nrelocate_after = \"5m\"\n}",
		FeatureSameZoneRequire:    "placement {\nsame_zone = \"require\"\n}",
		FeatureFabricRequired:     "network {\nfabric = \"required\"\n}",
		FeatureSpares:             "workers {\nspares = 2\ncount = 1\n}",
		FeatureSpotOrOnDemand:     "workers {\nmarket = \"spot_or_on_demand\"\ncount = 1\n}",
		FeatureMount:              "\nmount \"/data\" {\ntype = \"s3\"\nsource = \"s3://bucket\"\n}",
		FeatureRunTorchrun:        "\nrun \"torchrun\" {\ncommand = \"torchrun a.py\"\n}",
		FeatureRunHorovod:         "\nrun \"horovod\" {\ncommand = \"a\"\n}",
		FeatureRunRay:             "\nrun \"ray\" {\ncommand = \"a\"\n}",
		FeatureRunMPI:             "\nrun \"mpi\" {\ncommand = \"a\"\n}",
		FeatureElasticityTorchrun: "run \"torchrun\" {\nelasticity = \"torchrun\"\ncommand = \"torchrun a.py\"\n}\nworkers {\nmin = 1\nmax = 2\n}",
		FeatureHangTimeout:        "run \"ranks\" {\nhang_timeout = \"5m\"\ncommand = \"a\"\n}",
		FeatureOnChangeNotify:     "elastic {\non_change = \"notify\"\n}",
		FeatureCheckpoint:         "\ncheckpoint {\npath = \"c\"\n}",
		FeatureCheckpointBucket:   "checkpoint {\nto = \"s3://bucket\"\npath = \"c\"\n}",
		FeaturePreflight:          "\npreflight {\ngpu = true\n}",
		FeatureContainer:          "\ncontainer {\nimage = \"a\"\n}",
		FeatureOutputs:            "\noutputs {\nfrom = \"a\"\nto = \"b\"\n}",
		FeatureOutputsAllNodes:    "outputs {\nnodes = \"all\"\nfrom = \"a\"\nto = \"b\"\n}",
		FeatureOutputsBucket:      "outputs {\nto = \"s3://bucket\"\nfrom = \"a\"\n}",
	}
	plain := parsed(t, "", Options{})
	if diags := CheckAvailable(plain, nil); len(diags) > 0 {
		t.Errorf("a plain job asks for a feature: %s", diags)
	}
	for _, feature := range Features() {
		t.Run(string(feature), func(t *testing.T) {
			more, ok := asks[feature]
			if !ok {
				t.Fatal("no case")
			}
			text := "job \"demo\" {\n" + more + "\nprovider \"local\" {}\n"
			if !strings.Contains(more, "workers {") {
				text += "workers { count = 2 }\n"
			}
			if !strings.Contains(more, "run \"") {
				text += "run \"ranks\" { command = \"true\" }\n"
			}
			job, diags := Parse([]byte(text+"}\n"), "job.hcl", Options{})
			if len(diags) > 0 {
				t.Fatal(diags)
			}
			serves := AllCapabilities()
			delete(serves, feature)
			want := []string{fmt.Sprintf("3 %s is not available in this build", feature)}
			got := CheckAvailable(job, serves)
			if diff := cmp.Diff(want, lines(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for _, d := range got {
				checkGrammar(t, d)
			}
			job.Ranges = nil // as it comes by wire
			want[0] = "0" + want[0][1:]
			if diff := cmp.Diff(want, lines(CheckAvailable(job, serves))); diff != "" {
				t.Errorf("without ranges (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckAvailableProviderMount(t *testing.T) {
	job, diags := Parse([]byte("job \"demo\" {\nprovider \"local\" {\nmount \"/d\" {\ntype = \"nfs\"\nsource = \"h:/d\"\n}\n}\nworkers { count = 1 }\nrun \"ranks\" { command = \"a\" }\n}\n"), "job.hcl", Options{})
	if len(diags) > 0 {
		t.Fatal(diags)
	}
	if diff := cmp.Diff([]string{"3 mount is not available in this build"}, lines(CheckAvailable(job, nil))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRange(t *testing.T) {
	job := parsed(t, "env = {\n A = 1\n}\nelastic {\nlost_after = \"5s\"\n}", Options{})
	for path, want := range map[string]int{
		"elastic.lost_after":      9,
		"elastic.grow_every":      8,
		"env.A":                   6,
		"provider.local.zones.0":  2,
		"nothing.of.this":         1,
		"":                        1,
		"run.command":             4,
		"provider.elsewhere.zone": 1,
	} {
		if got := job.Range(path); got == nil || got.Start.Line != want {
			t.Errorf("%q: got %v, want line %d", path, got, want)
		}
	}
}

func TestOverrides(t *testing.T) {
	file := "testdata/good/providers.hcl"
	src := read(t, file)
	job, diags := Parse(src, file, directives(src, filepath.Dir(file)))
	if len(diags) > 0 {
		t.Fatal(diags)
	}
	workers := job.Workers
	workers.InstanceTypes, workers.CPUs, workers.MemoryGiB = []string{"p3.8xlarge"}, 0, 0
	workers.VMImage, workers.Identity = "ami-1", "aws-data"
	if diff := cmp.Diff(workers, job.WorkersFor("aws")); diff != "" {
		t.Errorf("workers for aws (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(job.Workers, job.WorkersFor("local")); diff != "" {
		t.Errorf("workers for local (-want +got):\n%s", diff)
	}
	head := Head{InstanceType: "t3.small", DiskGiB: 30, Supervisor: SupervisorClient, Identity: "aws-head"}
	if diff := cmp.Diff(head, job.HeadFor("aws")); diff != "" {
		t.Errorf("head for aws (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(job.Head, job.HeadFor("ssh")); diff != "" {
		t.Errorf("head for ssh (-want +got):\n%s", diff)
	}
	mounts := []Mount{{Path: "/data", Type: "efs", Source: "fs-0123abcd"}, {Path: "/models", Type: "s3", Source: "s3://models/v1"}}
	if diff := cmp.Diff(mounts, job.MountsFor("aws")); diff != "" {
		t.Errorf("mounts for aws (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(job.Mounts, job.MountsFor("local")); diff != "" {
		t.Errorf("mounts for local (-want +got):\n%s", diff)
	}
}

// TestAttributes holds the table to the design: the good file design.hcl is its example block, word for word, with
// the default of each attribute in brackets.
func TestAttributes(t *testing.T) {
	docs := map[string]AttributeDoc{}
	for _, d := range Attributes() {
		if _, twice := docs[d.Path]; twice {
			t.Errorf("%s is listed twice", d.Path)
		}
		given := 0
		for _, is := range []bool{d.Default != "", d.Unset != "", d.Required, strings.HasPrefix(d.Type, "block")} {
			if is {
				given++
			}
		}
		if d.Doc == "" || d.Type == "" || (given != 1 && !strings.HasPrefix(d.Type, "block")) {
			t.Errorf("%s is not documented: %+v", d.Path, d)
		}
		docs[d.Path] = d
	}
	var shown []string
	var in []string
	opens := regexp.MustCompile(`^\s*(\w+)( "[^"]*")? *\{`)
	assigns := regexp.MustCompile(`^\s*(\w+)\s*= `)
	brackets := regexp.MustCompile(`\s{2,}\[(.*)\]$`)
	for i, line := range strings.Split(string(read(t, "testdata/good/design.hcl")), "\n") {
		code, _, _ := strings.Cut(line, "  #")
		switch m := opens.FindStringSubmatch(code); {
		case m != nil:
			in = append(in, m[1])
		case strings.TrimSpace(code) == "}":
			in = in[:len(in)-1]
		case assigns.MatchString(code):
			path := strings.TrimPrefix(strings.Join(append(slices.Clone(in), assigns.FindStringSubmatch(code)[1]), "."), "job.")
			shown = append(shown, path)
			doc, ok := docs[path]
			if !ok {
				t.Errorf("line %d: %s is not in the table", i+1, path)
			}
			m := brackets.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			// In brackets stands the default, its first words, or what leaving the whole block out means.
			first, _, _ := strings.Cut(m[1], ":")
			same := doc.Default == m[1] || doc.Default == "["+m[1]+"]" || doc.Unset == m[1] || (doc.Unset != "" && strings.HasPrefix(doc.Unset, first))
			block, _, _ := strings.Cut(path, ".")
			if !same && !strings.HasSuffix(docs[block].Doc, "left out: "+m[1]) {
				t.Errorf("%s: got default %s, want %s", path, doc.Default, m[1])
			}
		}
	}
	if len(shown) < 50 {
		t.Errorf("read only %d attributes from the example", len(shown))
	}
}

// TestEveryAttributeIsRead wants each row of the table written in some good file, and each written attribute to
// change the job: a row that nothing reads would be accepted and forgotten.
func TestEveryAttributeIsRead(t *testing.T) {
	label := regexp.MustCompile(`(^|\.)(provider|mount|variable)\.[^.]+`)
	written := map[string]bool{}
	for _, file := range jobFiles(t, "testdata/good/*.hcl") {
		src := read(t, file)
		job, diags := Parse(src, file, directives(src, filepath.Dir(file)))
		if len(diags) > 0 {
			t.Fatal(diags)
		}
		for path := range job.Ranges {
			written[label.ReplaceAllString(path, "$1$2")] = true
		}
	}
	for _, d := range Attributes() {
		if !written[d.Path] {
			t.Errorf("no good file says %s", d.Path)
		}
	}
	for _, d := range Attributes() {
		if strings.HasPrefix(d.Type, "block") || strings.HasPrefix(d.Path, "variable") {
			continue
		}
		// Every attribute has a place where a list does not fit, or an object, or both.
		block, name, nested := strings.Cut(d.Path, ".")
		text := fmt.Sprintf("%s = [{ a = {} }]", block)
		if nested {
			header := map[string]string{"provider": `provider "aws"`, "mount": `mount "/d"`, "run": `run "ranks"`}[block]
			if header == "" {
				header = block
			}
			inner, last, deep := strings.Cut(name, ".")
			text = fmt.Sprintf("%s {\n%s = [{ a = {} }]\n}", header, name)
			if deep {
				if inner == "mount" {
					inner = `mount "/d"`
				}
				text = fmt.Sprintf("%s {\n%s {\n%s = [{ a = {} }]\n}\n}", header, inner, last)
			}
		}
		_, diags := Parse([]byte("job \"x\" {\n"+text+"\n}"), "job.hcl", Options{})
		if !strings.Contains(fmt.Sprint(lines(diags)), "Wrong type for") {
			t.Errorf("%s takes a list of objects: %v", d.Path, lines(diags))
		}
	}
}

func TestProviderNames(t *testing.T) {
	got := ProviderNames([]byte("job \"a\" {\nprovider \"ssh\" {}\nprovider \"aws\" {}\nprovider \"ssh\" {}\nprovider {}\n}\nprovider \"no\" {}\n"), "job.hcl")
	if diff := cmp.Diff([]string{"ssh", "aws"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := ProviderNames([]byte("job {{{"), "job.hcl"); len(got) > 0 {
		t.Errorf("got %v of nonsense", got)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "job.hcl")
	if _, diags := Load(path, Options{}); !diags.HasErrors() {
		t.Error("a missing file is no error")
	}
	if _, diags := Load(dir, Options{}); !diags.HasErrors() {
		t.Error("a folder is no error")
	}
	if err := os.WriteFile(path, fmt.Appendf(nil, base, "setup = file(\"s.sh\")\nworkdir {\nsource = \"src\"\n}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "s.sh"), []byte("echo hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	job, diags := Load(path, Options{})
	if len(diags) > 0 {
		t.Fatal(diags)
	}
	if job.Setup != "echo hello\n" || job.File != path || job.Workdir.Source != filepath.Join(dir, "src") {
		t.Errorf("got setup %q, file %q, source %q", job.Setup, job.File, job.Workdir.Source)
	}
}

func TestFileFunction(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "big"), make([]byte, maxFile+1), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "binary"), []byte{0xff, 0xfe}, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"big":       "larger than 1 MiB",
		"binary":    "not UTF-8",
		".":         "not a regular file",
		"/dev/null": "not a regular file",
		"nope":      "no such file",
	} {
		_, diags := Parse(fmt.Appendf(nil, base, fmt.Sprintf("setup = file(%q)", name)), "job.hcl", Options{Dir: dir})
		if len(diags) != 1 || !strings.Contains(diags[0].Detail, want) {
			t.Errorf("%s: got %v, want %q", name, diags, want)
		}
	}
}

// TestHostileText feeds the parser what would take stack without a bound.
func TestHostileText(t *testing.T) {
	const nested = "The job file is nested too deeply"
	for _, tt := range []struct{ unit, want string }{
		{"(", nested},
		{"[", nested},
		{"{", nested},
		{"-", nested},
		{"!", nested},
		{"\"${", nested},
		{"a{", nested},
		{"1?", nested},
		{"1+", nested},
		{"1 == ", nested},
		{"[0]", nested},
		{"upper(", nested},
		{"<<A\n${", nested},
		{"[*]", nested},
		{".*", nested},
		{"\"%{if true}", nested},
		{"a.", nested},
		{"a\n", ""},
		{"a=1\n", ""},
		{"for ", ""},
	} {
		text := "job \"x\" {\n env = 1" + strings.Repeat(tt.unit, 30_000/len(tt.unit))
		if strings.HasSuffix(tt.unit, "\n") {
			text = "job \"x\" {\n" + strings.Repeat(tt.unit, 500) + "\n}"
		}
		_, diags := Parse([]byte(text), "job.hcl", Options{})
		if !diags.HasErrors() || (tt.want == nested) != (diags[0].Summary == nested) {
			t.Errorf("%q many times: got %v, want %q", tt.unit, lines(diags[:min(len(diags), 3)]), tt.want)
		}
	}
	items := strings.Repeat("\"a\", ", 20_000)
	if _, diags := Parse(fmt.Appendf(nil, base, "workdir {\nexclude = ["+items+"]\n}"), "job.hcl", Options{}); len(diags) > 0 {
		t.Errorf("a long list: %s", diags)
	}
	if names := ProviderNames([]byte(strings.Repeat("(", 1<<18)), "job.hcl"); len(names) > 0 {
		t.Errorf("got %v of nonsense", names)
	}
	_, diags := Parse(make([]byte, maxJobFile+1), "job.hcl", Options{})
	if diff := cmp.Diff([]string{"1 The job file is too large"}, lines(diags)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
