package launcher

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"

	"github.com/ephemeral-launcher/launcher/bootstrap"
	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/local"
	"github.com/ephemeral-launcher/launcher/providers/ssh"
)

const (
	envHome     = "LAUNCHER_HOME"
	envState    = "XDG_STATE_HOME"
	envBinaries = "LAUNCHER_BINARIES"
	// program is the binary of the head, and of whoever starts machines of the local provider.
	program = "launcher"
	// agentProgram is the workers' binary.
	agentProgram = "launcher-agent"
)

func (o Options) env(name string) string {
	lookup := o.Env
	if lookup == nil {
		lookup = os.LookupEnv
	}
	value, _ := lookup(name)
	return value
}

func (o Options) log() *slog.Logger {
	if o.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return o.Log
}

// HomeFolder is the state folder, absolute. It need not exist.
func (o Options) HomeFolder() (string, error) {
	home := o.Home
	if home == "" {
		home = o.env(envHome)
	}
	if state := o.env(envState); home == "" && filepath.IsAbs(state) { // a relative one is to be ignored: XDG Base Directory Specification
		home = filepath.Join(state, "launcher")
	}
	if home == "" {
		user, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("find the state folder: %w", err)
		}
		home = filepath.Join(user, ".local", "state", "launcher")
	}
	return filepath.Abs(home)
}

// Builtin returns the providers that need no plugin. `local` runs its machines by the launcher executable: this one, if that is its name, else the one
// in $LAUNCHER_BINARIES or beside this executable.
func Builtin() map[string]providers.Provider {
	return Options{}.builtin("")
}

func (o Options) builtin(launcher string) map[string]providers.Provider {
	opts := local.Options{}
	// The state folder of the environment is the local provider's own default: only another one must be said.
	if home, err := o.HomeFolder(); err == nil && o.Home != "" && o.env(local.EnvRoot) == "" {
		opts.Root = filepath.Join(home, "local")
	}
	if launcher == "" {
		launcher = o.findLauncher()
	}
	all := map[string]providers.Provider{ssh.Name: ssh.New()}
	if launcher != "" {
		opts.Executable = []string{launcher, "machine"}
		all[local.Name] = local.New(opts)
	} else {
		all[local.Name] = &machineless{local.New(opts)}
	}
	return all
}

// machineless is the local provider where no launcher executable was found: it lists and deletes, and says what is missing when asked to create.
type machineless struct{ *local.Provider }

// Create implements providers.Provider.
func (*machineless) Create(context.Context, providers.CreateRequest) (providers.CreateResult, error) {
	return providers.CreateResult{}, providers.Errorf(providers.Invalid, "create",
		"no launcher executable in $%s or beside this program: `make build` makes one", envBinaries)
}

func hostPlatform() string { return runtime.GOOS + "-" + runtime.GOARCH }

// findLauncher looks for the launcher executable of this platform; "" where there is none.
func (o Options) findLauncher() string {
	self, err := os.Executable()
	if err == nil && filepath.Base(self) == program {
		return self
	}
	var places []string
	if dir := o.env(envBinaries); dir != "" {
		places = append(places, filepath.Join(dir, hostPlatform(), program))
	}
	if err == nil {
		dir := filepath.Dir(self)
		places = append(places, filepath.Join(dir, program), filepath.Join(dir, hostPlatform(), program))
	}
	for _, p := range places {
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return p
		}
	}
	return ""
}

// providers is Options.Providers with its default.
func (o Options) providers() (map[string]providers.Provider, error) {
	if o.Providers != nil {
		return o.Providers, nil
	}
	found := o.findLauncher()
	if found == "" && o.Binaries != nil {
		home, err := o.HomeFolder()
		if err != nil {
			return nil, err
		}
		if found, err = extractLauncher(o.Binaries, filepath.Join(home, "cache")); err != nil {
			return nil, err
		}
	}
	return o.builtin(found), nil
}

// provider finds one provider, with logging where it is wanted.
func (o Options) provider(name string) (providers.Provider, error) {
	all, err := o.providers()
	if err != nil {
		return nil, err
	}
	p, ok := all[name]
	if !ok {
		return nil, fmt.Errorf("find provider %s: not among the providers of this program", name)
	}
	if o.Log != nil {
		p = providers.Log(p, o.Log)
	}
	return p, nil
}

// binaries finds the programs for the machines.
func (o Options) binaries() (*bootstrap.Binaries, error) {
	b, err := o.findBinaries()
	if err != nil {
		return nil, err
	}
	if home, err := o.HomeFolder(); err == nil {
		b.CacheIn(filepath.Join(home, "cache"))
	}
	return b, nil
}

func (o Options) findBinaries() (*bootstrap.Binaries, error) {
	if o.Binaries != nil {
		return bootstrap.NewBinaries(o.Binaries)
	}
	var places []string
	if dir := o.env(envBinaries); dir != "" {
		places = []string{dir}
	} else if self, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		dir := filepath.Dir(self)
		places = []string{dir, filepath.Dir(dir)} // bin/launcher, or bin/OS-ARCH/launcher
	}
	for _, dir := range places {
		b, err := bootstrap.NewBinaries(os.DirFS(dir))
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return b, err
		}
	}
	return nil, fmt.Errorf("find the machines' binaries: no %s in %q; `make build` makes it, $%s names its folder", bootstrap.SumsFile, places, envBinaries)
}

// extractLauncher writes this platform's launcher out of a file system into folder, once per content.
func extractLauncher(files fs.FS, folder string) (string, error) {
	b, err := bootstrap.NewBinaries(files)
	if err != nil {
		return "", err
	}
	hashes, err := b.Hashes(program)
	if err != nil {
		return "", err
	}
	for _, h := range hashes {
		if h.Platform != hostPlatform() {
			continue
		}
		path := filepath.Join(folder, program+"-"+h.SHA256[:16])
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		data, err := b.Gzip(h.Platform, program)
		if err != nil {
			return "", err
		}
		r, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			return "", fmt.Errorf("extract launcher: %w", err)
		}
		return path, writeFile(path, r, 0o700)
	}
	return "", nil
}

// writeFile writes a file so that it is there whole or not at all. Its folder is made, 0700.
func writeFile(path string, r io.Reader, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = io.Copy(tmp, r)
	if err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(path, bytes.NewReader(append(b, '\n')), 0o600)
}
