package jobspec

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// maxJobFile bounds the text of a job file, far above what anybody writes; see also tooDeep.
const maxJobFile = 256 << 10

// Options are what a job file is read with. The zero value reads the disk and the environment of this process.
type Options struct {
	// Vars are the values of --var, by name.
	Vars map[string]string
	// Env looks up a variable of the caller's environment, for env() and ~/. Nil: os.LookupEnv.
	Env func(name string) (value string, ok bool)
	// ReadFile reads a file for file(), which calls it with an absolute path. Nil: the disk, regular files only.
	ReadFile func(path string) ([]byte, error)
	// Dir is what relative paths are relative to. Empty: the folder of the job file.
	Dir string
	// ProviderSchemas are the known providers by name. Nil: every name is taken, and every attribute as it is.
	// ProviderNames says which ones a file will need.
	ProviderSchemas map[string]Schema
}

// Schema is what a provider's block may say beyond the attributes that every provider block has.
type Schema struct {
	Attributes []Attribute
	// Open: attributes that the schema does not name are taken as they are. For a provider that cannot be asked.
	Open bool
}

// Attribute is one attribute of a provider's block.
type Attribute struct {
	Name string
	// Type is a type constraint of HCL: string, number, bool, list(string), map(number), any …; also path, a
	// string that is made absolute as a path relative to the job file, and file, a path that CheckFiles wants to be there.
	Type     string
	Required bool
	Doc      string
}

// Load reads the file at path and parses it. The diagnostics name the file as path does.
func Load(path string, opts Options) (*Job, hcl.Diagnostics) {
	reader := opts
	reader.ReadFile = nil
	src, err := reader.read(path)
	if err != nil {
		return nil, hcl.Diagnostics{{
			Severity: hcl.DiagError,
			Summary:  "Cannot read the job file",
			Detail:   fmt.Sprintf("%s. \"launcher init\" writes a job file to start from.", err),
		}}
	}
	return Parse(src, path, opts)
}

// Parse reads a job file. filename is for messages, and for Options.Dir where that is empty.
//
// The Job is nil where the text has syntax errors or no job block. With other errors it is there, so that CheckFiles
// and the like can add theirs to the list, but it is not fit to run.
func Parse(src []byte, filename string, opts Options) (*Job, hcl.Diagnostics) {
	full, err := filepath.Abs(filename)
	if err != nil {
		full = filename
	}
	if opts.Dir == "" {
		opts.Dir = filepath.Dir(full)
	} else {
		full = filepath.Join(opts.Dir, filepath.Base(filename))
	}
	start := hcl.Range{Filename: filename, Start: hcl.InitialPos, End: hcl.InitialPos}
	if len(src) > maxJobFile {
		return nil, hcl.Diagnostics{complaint(hcl.DiagError, start, "The job file is too large",
			fmt.Sprintf("It has %d bytes, at most %d are read. Put long scripts into files: setup = file(\"setup.sh\").", len(src), maxJobFile))}
	}
	if deep := tooDeep(src, filename); deep != nil {
		return nil, inside(hcl.Diagnostics{deep}, len(src), start)
	}
	file, diags := hclsyntax.ParseConfig(src, filename, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, inside(sorted(diags), len(src), start)
	}
	d := &decoder{file: fileSpec(), scope: &scope{functions: functions(opts)}, ranges: Ranges{}, files: map[string]string{}, diags: diags, anchor: start}
	job := d.fileBody(file.Body.(*hclsyntax.Body), opts)
	if job != nil {
		job.File = full
	}
	return job, inside(sorted(d.diags), len(src), start)
}

// ProviderNames lists the providers that a job file names, in its order, so that a caller can ask just these for
// their schema before it parses. A text with errors gives what can be read of it.
func ProviderNames(src []byte, filename string) []string {
	if len(src) > maxJobFile || tooDeep(src, filename) != nil {
		return nil
	}
	file, _ := hclsyntax.ParseConfig(src, filename, hcl.InitialPos)
	if file == nil {
		return nil
	}
	var names []string
	for _, outer := range file.Body.(*hclsyntax.Body).Blocks {
		for _, inner := range outer.Body.Blocks {
			if outer.Type == "job" && inner.Type == "provider" && len(inner.Labels) > 0 && !slices.Contains(names, inner.Labels[0]) {
				names = append(names, inner.Labels[0])
			}
		}
	}
	return names
}

func (d *decoder) fileBody(body *hclsyntax.Body, opts Options) *Job {
	var variables, rest []*hclsyntax.Block
	for _, b := range body.Blocks {
		switch b.Type {
		case "variable":
			variables = append(variables, b)
		case "job":
			if len(rest) == 0 {
				d.anchor = b.DefRange()
			}
			rest = append(rest, b)
		default:
			rest = append(rest, b)
		}
	}
	d.variables(variables, opts.Vars)
	top := d.body(&d.file, &hclsyntax.Body{Attributes: body.Attributes, Blocks: rest}, "")
	if len(top.blocks["job"]) == 0 {
		if !slices.ContainsFunc(rest, func(b *hclsyntax.Block) bool { return b.Type == "job" }) {
			d.errorf(d.anchor, `Missing block "job"`, "A job file has one job \"NAME\" { … } with provider, workers and run blocks in it. \"launcher init\" writes one.")
		}
		return nil
	}
	return d.job(top.blocks["job"][0], opts)
}

// sorted puts diagnostics into the order of the file, those without a place first.
func sorted(diags hcl.Diagnostics) hcl.Diagnostics {
	slices.SortStableFunc(diags, func(a, b *hcl.Diagnostic) int { return cmp.Compare(position(a), position(b)) })
	return diags
}

func position(d *hcl.Diagnostic) int {
	if d.Subject == nil {
		return -1
	}
	return d.Subject.Start.Byte
}

// inside makes sure that every diagnostic points into the file, so that a renderer can cut the text there.
func inside(diags hcl.Diagnostics, size int, start hcl.Range) hcl.Diagnostics {
	for _, d := range diags {
		if d.Subject == nil {
			d.Subject = start.Ptr()
		}
		for _, r := range []*hcl.Range{d.Subject, d.Context} {
			if r == nil {
				continue
			}
			r.Start.Byte = min(max(r.Start.Byte, 0), size)
			r.End.Byte = min(max(r.End.Byte, r.Start.Byte), size)
		}
	}
	return diags
}
