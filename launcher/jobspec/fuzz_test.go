package jobspec

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
)

// FuzzParse holds, for any text: no panic, every diagnostic with a place inside the file, in order and printable; and a
// job without errors goes through JSON unchanged and has an answer from every check.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/good/*.hcl", "testdata/errors/*.hcl"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			f.Add(read(f, file))
		}
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		if len(src) > 16<<10 {
			return // length alone is TestHostileText's
		}
		if bytes.Contains(src, []byte("format")) || bytes.Contains(src, []byte("range")) || bytes.Contains(src, []byte("setproduct")) || bytes.Contains(src, []byte("pow")) ||
			bytes.Contains(src, []byte("indent")) {
			return // a short call can ask these for a large result
		}
		opts := Options{
			Dir:             "/job",
			Env:             func(name string) (string, bool) { return name, name != "UNSET" },
			ReadFile:        func(string) ([]byte, error) { return nil, errors.New("no such file") },
			ProviderSchemas: schemas(),
		}
		ProviderNames(src, "job.hcl")
		job, diags := Parse(src, "job.hcl", opts)
		last := 0
		for _, d := range diags {
			if d.Subject == nil {
				t.Fatalf("%s has no place", d.Summary)
			}
			for _, r := range []*hcl.Range{d.Subject, d.Context} {
				if r != nil && (r.Start.Byte < 0 || r.Start.Byte > r.End.Byte || r.End.Byte > len(src) || r.Filename != "job.hcl" || r.Start.Line < 1) {
					t.Fatalf("%s is at %+v of a file of %d bytes", d.Summary, *r, len(src))
				}
			}
			if d.Subject.Start.Byte < last {
				t.Fatalf("%s at byte %d comes after byte %d", d.Summary, d.Subject.Start.Byte, last)
			}
			last = d.Subject.Start.Byte
			if d.Summary == "" || (utf8.Valid(src) && !utf8.ValidString(d.Detail)) {
				t.Fatalf("%q is no message: %q", d.Summary, d.Detail)
			}
		}
		printed("job.hcl", src, diags)
		if job == nil && !diags.HasErrors() {
			t.Fatal("no job and no error")
		}
		if job == nil {
			return
		}
		for path, r := range job.Ranges {
			if r.End.Byte > len(src) || r.Start.Byte > r.End.Byte {
				t.Fatalf("range of %s is %+v of a file of %d bytes", path, r, len(src))
			}
		}
		CheckAvailable(job, nil)
		CheckSecrets(job, opts.Env)
		if diags.HasErrors() {
			return
		}
		if job.Workers.Min < 1 || job.Workers.Max < job.Workers.Min || len(job.Providers) == 0 || job.Run.Command == "" || !slices.Contains([]string{RunRanks, RunTorchrun, RunHorovod, RunRay, RunMPI}, job.Run.Type) {
			t.Fatalf("a job without errors is not complete: %+v", job)
		}
		roundTrip(t, job)
	})
}
