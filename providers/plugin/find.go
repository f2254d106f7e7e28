package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ephemeral-launcher/launcher/providers"
)

// Prefix is how the names of plugins' executables begin; the provider's name follows.
const Prefix = "launcher-provider-"

// EnvFolders names a variable: a list of folders with plugins, as PATH is one.
const EnvFolders = "LAUNCHER_PLUGINS"

// ErrNotFound is wrapped by errors about plugins that are nowhere.
var ErrNotFound = errors.New("plugin not found")

// Search says where plugins are looked for. The zero value finds none; see [DefaultSearch].
type Search struct {
	// Own are the folders of launcher's own files: what is there is trusted like launcher. They come first.
	Own []string
	// Others are further folders, first to last.
	Others []string
}

// DefaultSearch looks beside this executable, also where a link to it lies, then in $LAUNCHER_PLUGINS, then on PATH.
// Relative folders of either list are left out: what they mean depends on where one stands.
func DefaultSearch() Search {
	var s Search
	if exe, err := os.Executable(); err == nil {
		s.Own = append(s.Own, filepath.Dir(exe))
		if real, err := filepath.EvalSymlinks(exe); err == nil && filepath.Dir(real) != s.Own[0] {
			s.Own = append(s.Own, filepath.Dir(real))
		}
	}
	for _, list := range []string{os.Getenv(EnvFolders), os.Getenv("PATH")} {
		for _, folder := range filepath.SplitList(list) {
			if filepath.IsAbs(folder) && !slices.Contains(s.Others, folder) {
				s.Others = append(s.Others, folder)
			}
		}
	}
	return s
}

// Found is a plugin's executable.
type Found struct {
	Name string
	Path string
	// Own: it lies beside launcher and is trusted like it. Any other needs a line in launcher.lock.
	Own bool
}

// Find returns the first executable of a plugin. The error wraps [ErrNotFound] and says where it looked.
func (s Search) Find(name string) (Found, error) {
	if !validName(name) {
		return Found{}, fmt.Errorf("%w: %q is no name of a provider", ErrNotFound, name)
	}
	var spoilt error // there is one, and it cannot be run
	for _, place := range s.places() {
		path := filepath.Join(place.folder, Prefix+name)
		err := executable(path)
		if err == nil {
			return Found{Name: name, Path: path, Own: place.own}, nil
		}
		if spoilt == nil && !errors.Is(err, fs.ErrNotExist) {
			spoilt = err
		}
	}
	if spoilt != nil {
		return Found{}, fmt.Errorf("%w: %s%s: %w", ErrNotFound, Prefix, name, spoilt)
	}
	return Found{}, fmt.Errorf("%w: no %s%s beside launcher, in $%s, or on PATH", ErrNotFound, Prefix, name, EnvFolders)
}

// Discover lists the plugins that [Search.Find] would find, by name.
func (s Search) Discover() []Found {
	var all []Found
	for _, place := range s.places() {
		entries, err := os.ReadDir(place.folder)
		if err != nil {
			continue // PATH names folders that are not there
		}
		for _, e := range entries {
			name, ok := strings.CutPrefix(e.Name(), Prefix)
			known := slices.ContainsFunc(all, func(f Found) bool { return f.Name == name })
			path := filepath.Join(place.folder, e.Name())
			if ok && !known && validName(name) && executable(path) == nil {
				all = append(all, Found{Name: name, Path: path, Own: place.own})
			}
		}
	}
	slices.SortFunc(all, func(a, b Found) int { return strings.Compare(a.Name, b.Name) })
	return all
}

type place struct {
	folder string
	own    bool
}

func (s Search) places() []place {
	var all []place
	for _, folder := range s.Own {
		all = append(all, place{folder, true})
	}
	for _, folder := range s.Others {
		all = append(all, place{folder, false})
	}
	return all
}

// executable tells why a file cannot be run; nil if it can.
func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s is not an executable file", path)
	}
	return nil
}

// validName tells whether a provider may be called so: it is a label in job files and part of a file's name.
func validName(name string) bool {
	return regexp.MustCompile(`^[a-z][a-z0-9-]{0,29}$`).MatchString(name)
}

// Resolve finds the plugin of a provider, holds it to its checksum, and opens it:
//
//   - opts.Path, if set, else what search finds;
//   - opts.Checksum, if set (a run's journal has it), is what it must have; an executable of launcher's own needs none;
//     any other needs a line in the file lock, launcher.lock beside the job file ("": there is none).
//
// The host's Checksum is then what every start is held to. Nothing is started. Errors are [*providers.Error] with code
// [providers.NotFound] where there is no such plugin, else [providers.Invalid]; a refusal by the lock wraps [*LockError].
func Resolve(name string, search Search, lock string, opts Options) (*Host, error) {
	found := Found{Name: name, Path: opts.Path}
	if opts.Path == "" {
		var err error
		if found, err = search.Find(name); err != nil {
			return nil, providers.Errorf(providers.NotFound, "open", "%w", err)
		}
	}
	sum, err := Checksum(found.Path)
	if err != nil {
		return nil, providers.Errorf(providers.Invalid, "open", "checksum of plugin %s: %w", name, err)
	}
	switch {
	case opts.Checksum != "" && opts.Checksum != sum:
		return nil, providers.Errorf(providers.Invalid, "open", "plugin %s is not the one that the run began with: its checksum is sha256:%s, want sha256:%s", found.Path, sum, opts.Checksum)
	case opts.Checksum == "" && !found.Own:
		if err := verify(lock, found, sum); err != nil {
			return nil, providers.Errorf(providers.Invalid, "open", "%w", err)
		}
	}
	opts.Name, opts.Path, opts.Checksum = name, found.Path, sum
	h, err := Open(opts)
	if err != nil {
		return nil, err
	}
	h.trust = trust{found: found, lock: lock}
	return h, nil
}
