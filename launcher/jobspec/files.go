package jobspec

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
)

// CheckFiles looks at the caller's disk: the folders and files that the job names must be there. It reads no file.
// Files taken in by file() were read, and complained about, by Parse.
func CheckFiles(job *Job) hcl.Diagnostics {
	var diags hcl.Diagnostics
	refuse := func(path, summary, detail string, args ...any) {
		diags = diags.Append(&hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: fmt.Sprintf(detail, args...), Subject: job.Range(path)})
	}
	if w := job.Workdir; w != nil && w.Source != "" {
		switch info, err := os.Stat(w.Source); {
		case errors.Is(err, fs.ErrNotExist):
			refuse("workdir.source", "The workdir does not exist", "There is no folder %s. Paths are relative to the job file.", w.Source)
		case err != nil:
			refuse("workdir.source", "The workdir cannot be read", "%s.", err)
		case !info.IsDir():
			refuse("workdir.source", "The workdir is not a folder", "%s is a file. Name the folder it lies in; exclude what should stay.", w.Source)
		default:
			if _, err := os.ReadDir(w.Source); err != nil {
				refuse("workdir.source", "The workdir cannot be read", "%s.", err)
			}
			if home, err := os.UserHomeDir(); w.Source == "/" || (err == nil && filepath.Clean(home) == w.Source) {
				refuse("workdir.source", "The workdir is too much", "%s would travel to every worker, with keys and all. Put the program into a folder of its own.", w.Source)
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(job.Files)) {
		file := job.Files[path]
		attribute := path[strings.LastIndex(path, ".")+1:]
		switch info, err := os.Stat(file); {
		case err != nil:
			refuse(path, fmt.Sprintf("The file of %q cannot be read", short(attribute)), "%s. Paths are relative to the job file.", err)
		case !info.Mode().IsRegular():
			refuse(path, fmt.Sprintf("%q is not a file", short(attribute)), "%s is a folder or a device.", file)
		}
	}
	if o := job.Outputs; o != nil && o.To != "" && !Bucket(o.To) {
		if place, info := existing(o.To); info != nil && !info.IsDir() {
			refuse("outputs.to", "outputs cannot be written there", "%s is a file, not a folder.", place)
		}
	}
	return sorted(diags)
}

// existing is the longest part of the path that is there, nil where even that cannot be told.
func existing(path string) (string, fs.FileInfo) {
	for {
		info, err := os.Stat(path)
		if err == nil {
			return path, info
		}
		parent := filepath.Dir(path)
		if parent == path {
			return path, nil
		}
		path = parent
	}
}

// CheckSecrets looks up the job's secrets by env (nil: the environment of this process). Values are not kept.
func CheckSecrets(job *Job, env func(name string) (value string, ok bool)) hcl.Diagnostics {
	if env == nil {
		env = os.LookupEnv
	}
	var diags hcl.Diagnostics
	for _, name := range job.Secrets {
		value, ok := env(name)
		text := utf8.ValidString(value) // it travels in a protobuf string, which must be: else no head could adopt the run
		if ok && value != "" && text {
			continue
		}
		what := "is not set"
		switch {
		case !text:
			what = "is not UTF-8 text"
		case ok:
			what = "is empty"
		}
		diags = diags.Append(&hcl.Diagnostic{
			Severity: hcl.DiagError,
			Summary:  fmt.Sprintf("Secret %q %s", short(name), what),
			Detail:   fmt.Sprintf("The job takes it from the environment of this command: export %s=….", name),
			Subject:  job.Range("secrets." + name),
		})
	}
	return sorted(diags)
}
