package launcher

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/providers"
)

// LoadOptions say what a job file is read with. The zero value works.
type LoadOptions struct {
	// Vars are the values of `--var name=value`.
	Vars map[string]string
	// Env looks up the environment for env() and secrets; nil: os.LookupEnv.
	Env func(name string) (string, bool)
	// Providers are the ones the file may name; nil: Builtin().
	Providers map[string]providers.Provider
	// OnWarnings is told of what is not wrong enough to refuse the file.
	OnWarnings func(*DiagnosticsError)
}

// DiagnosticsError is every problem of a job file at once.
type DiagnosticsError struct {
	// Err is the list, an hcl.Diagnostics: errors.As finds it, for printing with source lines.
	Err error
	// Files are the texts the ranges in it refer to, by name.
	Files map[string][]byte
}

// Error says the first problem and how many follow.
func (e *DiagnosticsError) Error() string { return e.Err.Error() }

func (e *DiagnosticsError) Unwrap() error { return e.Err }

// infoTimeout bounds how long a provider, perhaps a plugin that is started for it, may take to describe itself.
const infoTimeout = 10 * time.Second

// Load reads the job file at path, checks it, that the files and folders it names are there, and that this build serves what it asks for.
// What is wrong is one *DiagnosticsError; an unreadable file is another error.
func Load(path string, opts LoadOptions) (*Job, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read job file: %w", err)
	}
	known := opts.Providers
	if known == nil {
		known = Builtin()
	}
	schemas := map[string]jobspec.Schema{}
	for name, p := range known {
		schema, err := schemaOf(p)
		if err != nil {
			return nil, fmt.Errorf("describe provider %s: %w", name, err)
		}
		schemas[name] = schema
	}
	job, diags := jobspec.Parse(src, path, jobspec.Options{Vars: opts.Vars, Env: opts.Env, ProviderSchemas: schemas})
	if job != nil && !diags.HasErrors() {
		diags = append(diags, jobspec.CheckFiles(job)...)
		diags = append(diags, jobspec.CheckAvailable(job, Available())...)
	}
	files := map[string][]byte{path: src}
	if diags.HasErrors() {
		return nil, &DiagnosticsError{Err: diags, Files: files}
	}
	if len(diags) > 0 && opts.OnWarnings != nil {
		opts.OnWarnings(&DiagnosticsError{Err: diags, Files: files})
	}
	return job, nil
}

func schemaOf(p providers.Provider) (jobspec.Schema, error) {
	ctx, cancel := context.WithTimeout(context.Background(), infoTimeout)
	defer cancel()
	info, err := p.Info(ctx)
	if err != nil {
		return jobspec.Schema{}, err
	}
	var s jobspec.Schema
	for _, a := range info.Schema {
		s.Attributes = append(s.Attributes, jobspec.Attribute{Name: a.Name, Type: a.Type, Required: a.Required, Doc: a.Doc})
	}
	return s, nil
}

// Available is what this build serves of what a job file can ask for.
func Available() jobspec.Capabilities {
	serves := jobspec.AllCapabilities()
	for _, f := range []jobspec.Feature{
		jobspec.FeatureRelocateAfter, jobspec.FeatureFabricRequired, jobspec.FeatureSpares, jobspec.FeatureMount, jobspec.FeatureRunHorovod,
		jobspec.FeatureRunRay, jobspec.FeatureRunMPI, jobspec.FeatureElasticityTorchrun, jobspec.FeatureHangTimeout, jobspec.FeatureOnChangeNotify,
		jobspec.FeatureCheckpointBucket, jobspec.FeaturePreflight, jobspec.FeatureContainer, jobspec.FeatureOutputsBucket,
	} {
		serves[f] = false
	}
	return serves
}

// checkSecrets refuses a job whose named secrets are not set.
func checkSecrets(job *Job, env func(string) (string, bool)) error {
	return diagnosed(job, jobspec.CheckSecrets(job, env))
}

// diagnosed makes an error of diagnostics that have errors.
func diagnosed(job *Job, diags jobspec.Diagnostics) error {
	if !diags.HasErrors() {
		return nil
	}
	files := map[string][]byte{}
	if src, err := os.ReadFile(job.File); err == nil { // only for the source lines of the message
		files[job.File] = src
		for _, d := range diags {
			if d.Subject != nil {
				files[d.Subject.Filename] = src
			}
		}
	}
	return &DiagnosticsError{Err: diags, Files: files}
}
