package launcher

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"unicode/utf8"

	"github.com/ephemeral-launcher/launcher/bootstrap"
	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/local"
	"github.com/ephemeral-launcher/launcher/providers/ssh"
)

// builtIn tells whether every head has the provider.
func builtIn(name string) bool { return name == local.Name || name == ssh.Name }

// portable finds the programs of a provider that is a plugin; ok is false where it is none.
func (o Options) portable(name string) (p providers.Portable, ok bool) {
	if builtIn(name) {
		return nil, false
	}
	value, err := o.provider(name)
	if err != nil {
		return nil, false
	}
	return providers.As[providers.Portable](value)
}

// checkPortable refuses providers that a supervisor on the head could not use, because they are values of this program alone.
func checkPortable(job *Job, opts Options) error {
	if job.Head.Supervisor == jobspec.SupervisorClient || opts.Network.Start != nil { // such a test has heads of its own
		return nil
	}
	var names []string
	for _, block := range job.Providers {
		if _, err := opts.provider(block.Name); err != nil || builtIn(block.Name) {
			continue // the plan says that there is none
		}
		if _, ok := opts.portable(block.Name); !ok {
			names = append(names, block.Name)
		}
	}
	return diagnosed(job, jobspec.NeedClient(job, names))
}

// pins are the checksums of a plugin that a run is held to; nil: the provider is none.
func (o Options) pins(name string) (map[string]string, error) {
	p, ok := o.portable(name)
	if !ok {
		return nil, nil
	}
	programs, err := p.Programs()
	if err != nil {
		return nil, fmt.Errorf("pin plugin %s: %w", name, err)
	}
	pins := map[string]string{}
	for _, program := range programs {
		pins[program.Platform] = program.SHA256
	}
	return pins, nil
}

// checkPins holds the plugin that is here now to the one that the run began with.
func (o Options) checkPins(planned *journal.Planned) error {
	want := planned.Plugin[hostPlatform()]
	if want == "" { // it is built in, or the run was begun on a computer of another kind
		return nil
	}
	pins, err := o.pins(planned.Provider)
	if err != nil {
		return err
	}
	if got := pins[hostPlatform()]; got != want {
		return fmt.Errorf("plugin %s is not the one that the run began with: its checksum is sha256:%s, want sha256:%s", planned.Provider, got, want)
	}
	return nil
}

// errNoPlugin: the head's platform lacks the provider's plugin. No waiting cures that.
var errNoPlugin = errors.New("no plugin for the head's platform")

// maxPlugin bounds a plugin's executable.
const maxPlugin = 512 << 20

// uploadPlugin sends the provider's plugin to a head that is to supervise.
func (o *owner) uploadPlugin(ctx context.Context, c *connection) error {
	planned := o.journal.State().Planned
	p, ok := o.opts.portable(planned.Provider)
	if !ok || o.job.Head.Supervisor == jobspec.SupervisorClient {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	platform, err := bootstrap.Platform(asking, c.ssh)
	if err != nil {
		return err
	}
	programs, err := p.Programs()
	if err != nil {
		return fmt.Errorf("upload plugin %s: %w", planned.Provider, err)
	}
	i := slices.IndexFunc(programs, func(p providers.Program) bool { return p.Platform == platform })
	if i < 0 {
		return fmt.Errorf("%w: %s is not here for %s: put it into a folder %s beside %s, with its line in launcher.lock where it needs one",
			errNoPlugin, planned.Provider, platform, platform, programs[0].Path)
	}
	if want := planned.Plugin[platform]; programs[i].SHA256 != want {
		return fmt.Errorf("%w: %s has the checksum sha256:%s, the run began with sha256:%s", errNoPlugin, programs[i].Path, programs[i].SHA256, cmp.Or(want, "none"))
	}
	data, err := compressed(programs[i].Path)
	if err != nil {
		return fmt.Errorf("upload plugin %s: %w", planned.Provider, err)
	}
	first := &control.UploadChunk{Kind: control.UploadKind_PLUGIN_BINARY, Name: planned.Provider, Sha256: programs[i].SHA256, Gzip: true, Size: int64(len(data))}
	return upload(ctx, c.api, first, bytes.NewReader(data))
}

// compressed reads an executable for the way over the line.
func compressed(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var data bytes.Buffer
	w, err := gzip.NewWriterLevel(&data, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	n, err := io.Copy(w, io.LimitReader(f, maxPlugin+1))
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	if n > maxPlugin {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxPlugin)
	}
	return data.Bytes(), nil
}

// contents is a provider block as it goes to the head, where there are no files of the caller's: what is of type "file" is there by content. It is
// as secret as the files are, and only sent.
func contents(config json.RawMessage, schema []providers.Attribute) (json.RawMessage, error) {
	var block map[string]json.RawMessage
	for _, a := range schema {
		if a.Type != "file" {
			continue
		}
		if block == nil {
			if err := json.Unmarshal(config, &block); err != nil {
				return nil, fmt.Errorf("read the provider block: %w", err)
			}
		}
		var path string
		if raw, ok := block[a.Name]; !ok || string(raw) == "null" {
			continue
		} else if err := json.Unmarshal(raw, &path); err != nil {
			return nil, fmt.Errorf("read the provider block: %s: %w", a.Name, err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("send %s of the provider block: %w", a.Name, err)
		}
		if !utf8.Valid(data) {
			return nil, fmt.Errorf("send %s of the provider block: %s is not a text", a.Name, path)
		}
		if block[a.Name], err = json.Marshal(string(data)); err != nil {
			return nil, err
		}
	}
	if block == nil {
		return config, nil
	}
	return json.Marshal(block)
}
