package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/ephemeral-launcher/launcher/launcher"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/plugin"
)

// providerSet is the providers of one command: the built-in ones, and those plugins that it needs. A plugin is looked for when its name comes up and
// started when it is asked something, so that no command pays for one that it does not use. Close ends them.
type providerSet struct {
	all   map[string]providers.Provider
	hosts []*plugin.Host
	// refused says why a plugin is not among them.
	refused map[string]error
}

func newProviderSet() *providerSet {
	return &providerSet{all: launcher.Builtin(), refused: map[string]error{}}
}

// close ends the plugins and waits for them.
func (s *providerSet) close() {
	for _, h := range s.hosts {
		_ = h.Close() // it is gone then, or ends with its lifeline
	}
}

// add finds the plugin of a provider, and holds it to launcher.lock beside the job file, if there is one. A plugin that is nowhere is no error here:
// whoever names it says that there is none.
func (s *providerSet) add(name, jobFile string) error {
	if s.all[name] != nil {
		return nil
	}
	lock := ""
	if jobFile != "" {
		lock = filepath.Join(filepath.Dir(jobFile), plugin.LockName)
	}
	h, err := plugin.Resolve(name, plugin.DefaultSearch(), lock, plugin.Options{Name: name})
	if errors.Is(err, plugin.ErrNotFound) || providers.CodeOf(err) == providers.NotFound {
		s.refused[name] = err
		return nil
	}
	if err != nil {
		s.refused[name] = err
		var locked *plugin.LockError
		if errors.As(err, &locked) && locked.Command() != "" {
			return &usageError{text: err.Error(), hints: []string{locked.Command()}}
		}
		return &usageError{text: err.Error(), hints: []string{"launcher providers"}}
	}
	s.hosts, s.all[name] = append(s.hosts, h), h
	return nil
}

// addAll finds every plugin; those that may not be run are in refused.
func (s *providerSet) addAll(jobFile string) {
	for _, found := range plugin.DefaultSearch().Discover() {
		_ = s.add(found.Name, jobFile) // it is in refused
	}
}

// addBlocks finds the plugins that a job file names. What it takes for a block too many costs a look-up; what it overlooks is an unknown provider.
func (s *providerSet) addBlocks(jobFile string) error {
	src, err := os.ReadFile(jobFile)
	if err != nil {
		return nil // whoever reads the job file says so
	}
	block := regexp.MustCompile(`(?m)^\s*provider\s+"?([a-z][a-z0-9-]*)"?\s*\{`)
	for _, m := range block.FindAllSubmatch(src, -1) {
		if err := s.add(string(m[1]), jobFile); err != nil {
			return err
		}
	}
	return nil
}

// addOf finds the plugin of the provider that a run of the state folder is on.
func (s *providerSet) addOf(run string, opts launcher.Options) error {
	events, err := launcher.ReadEvents(run, opts)
	if err != nil {
		return nil // whoever needs the run says so
	}
	state, err := journal.Fold(events)
	if err != nil || state.Planned == nil {
		return nil
	}
	return s.add(state.Planned.Provider, state.Created.JobFile)
}

// notAsked are the plugins that were found and may not be run.
func (s *providerSet) notAsked() []launcher.NotLookedAt {
	var names []launcher.NotLookedAt
	for _, name := range slices.Sorted(maps.Keys(s.refused)) {
		names = append(names, launcher.NotLookedAt{Provider: name, Why: s.refused[name].Error()})
	}
	return names
}

// withoutBlocks takes out the providers that cannot be asked without their block of a job file; a list of hosts, say, is nowhere else.
func withoutBlocks(ctx context.Context, all map[string]providers.Provider) (map[string]providers.Provider, []launcher.NotLookedAt) {
	some, skipped := map[string]providers.Provider{}, []launcher.NotLookedAt(nil)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if info, err := all[name].Info(ctx); err == nil && needsBlock(info) {
			skipped = append(skipped, launcher.NotLookedAt{Provider: name, Why: "it needs its block: launcher down --job FILE"})
			continue
		}
		some[name] = all[name]
	}
	return some, skipped
}

// needsBlock tells whether a provider cannot be asked without its block.
func needsBlock(info providers.Info) bool {
	return slices.ContainsFunc(info.Schema, func(a providers.Attribute) bool { return a.Required })
}
