package plugin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/ephemeral-launcher/launcher/providers"
)

// trust is what an executable was trusted by.
type trust struct {
	found Found
	lock  string
}

// Programs implements [providers.Portable]: this computer's executable, and those for other platforms, which lie beside it as
// OS-ARCH/launcher-provider-NAME, or in a folder OS-ARCH beside its own, and are trusted as it is: launcher's own, or by a line for their platform in
// launcher.lock. Others are left out, but not one that launcher.lock has another checksum for: the error wraps [*LockError].
func (h *Host) Programs() ([]providers.Program, error) {
	sum, err := Checksum(h.opts.Path)
	if err != nil {
		return nil, fmt.Errorf("checksum of plugin %s: %w", h.opts.Path, err)
	}
	if h.opts.Checksum != "" && sum != h.opts.Checksum {
		return nil, providers.Errorf(providers.Invalid, "programs", "plugin %s has changed: its checksum is sha256:%s, want sha256:%s", h.opts.Path, sum, h.opts.Checksum)
	}
	self := runtime.GOOS + "-" + runtime.GOARCH
	programs := []providers.Program{{Platform: self, Path: h.opts.Path, SHA256: sum}}
	for _, path := range h.siblings() {
		platform := filepath.Base(filepath.Dir(path))
		if slices.ContainsFunc(programs, func(p providers.Program) bool { return p.Platform == platform }) || executable(path) != nil {
			continue
		}
		sum, err := Checksum(path)
		if err != nil {
			return nil, fmt.Errorf("checksum of plugin %s: %w", path, err)
		}
		if !h.trust.found.Own {
			found := Found{Name: h.trust.found.Name, Path: path}
			err := verifyFor(strings.Replace(platform, "-", "/", 1), h.trust.lock, found, sum)
			if refused, ok := errors.AsType[*LockError](err); ok && refused.Want == "" {
				continue
			}
			if err != nil {
				return nil, providers.Errorf(providers.Invalid, "programs", "%w", err)
			}
		}
		programs = append(programs, providers.Program{Platform: platform, Path: path, SHA256: sum})
	}
	return programs, nil
}

// siblings are the executables of the same name in folders of platforms.
func (h *Host) siblings() []string {
	if h.trust.found.Name == "" {
		return nil
	}
	var folders []string
	for _, path := range []string{h.opts.Path, resolved(h.opts.Path)} {
		dir := filepath.Dir(path)
		folders = append(folders, dir)
		if platformName(filepath.Base(dir)) {
			folders = append(folders, filepath.Dir(dir))
		}
	}
	var paths []string
	for _, folder := range slices.Compact(folders) {
		entries, err := os.ReadDir(folder)
		if err != nil {
			continue // it was there when the executable was found; what cannot be read has none
		}
		for _, e := range entries {
			if path := filepath.Join(folder, e.Name(), filepath.Base(h.opts.Path)); platformName(e.Name()) && !slices.Contains(paths, path) {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// resolved is where a link leads.
func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// platformName tells whether a folder is called like a platform that machines may have.
func platformName(name string) bool {
	return regexp.MustCompile(`^(linux|darwin)-[a-z0-9]+$`).MatchString(name)
}
