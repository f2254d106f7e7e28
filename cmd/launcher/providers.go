package main

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ephemeral-launcher/launcher/launcher"
	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/local"
	"github.com/ephemeral-launcher/launcher/providers/ssh"
)

func (a *app) providersCommand() *cli.Command {
	return &cli.Command{
		Name: "providers", Usage: "list the providers: versions, capabilities, leak bounds, whether credentials work", ArgsUsage: "[policy NAME]",
		Description: "`launcher providers policy NAME` prints the least a caller must be allowed to do there.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "job", Usage: "check with the provider blocks of this job `FILE`"},
			varFlag(), outputFlag(),
		},
		Action: a.listProviders,
	}
}

// providerStatus is one of `providers -o json`.
type providerStatus struct {
	Name         string                 `json:"name"`
	Version      string                 `json:"version"`
	Capabilities []providers.Capability `json:"capabilities"`
	LeakBound    time.Duration          `json:"leak_bound"`
	LeakBoundDoc string                 `json:"leak_bound_doc"`
	// Identity is who the caller is there; Error why that cannot be told.
	Identity *providers.Identity `json:"identity,omitempty"`
	Error    string              `json:"error,omitempty"`
}

// checkTimeout bounds what one provider may take to say who the caller is.
const checkTimeout = 20 * time.Second

func (a *app) listProviders(c *cli.Context) error {
	args, _, err := operands(c, 0, 2)
	if err != nil {
		return err
	}
	asJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	var job *launcher.Job
	if file := c.String("job"); file != "" {
		if job, err = a.load(file, c.StringSlice("var")); err != nil {
			return err
		}
	}
	a.providers().addAll(c.String("job"))
	all := a.providers().all
	if len(args) > 0 {
		if args[0] != "policy" || len(args) != 2 {
			return usagef("want `launcher providers policy NAME`, or nothing").hint("launcher providers")
		}
		if _, err := chosen(all, args[1:]); err != nil {
			return err
		}
		return a.policy(args[1])
	}
	ctx, cancel := interruptible(c.Context)
	defer cancel()
	names := slices.Sorted(maps.Keys(all))
	found := make([]providerStatus, len(names))
	var asking sync.WaitGroup
	for i, name := range names {
		asking.Go(func() { found[i] = describe(ctx, name, all[name], blockOf(job, name)) })
	}
	asking.Wait()
	for _, refused := range a.providers().notAsked() {
		found = append(found, providerStatus{Name: refused.Provider, Error: refused.Why, Capabilities: []providers.Capability{}})
	}
	if asJSON {
		return a.ui.printJSON(found)
	}
	for _, p := range found {
		if p.Version == "" && p.Error != "" {
			a.ui.printf("%s: %s\n", p.Name, p.Error)
			continue
		}
		a.ui.printf("%s %s: %s; leak bound %s\n", p.Name, orNone(p.Version), capabilities(p.Capabilities), beyondLease(p.LeakBound, p.LeakBoundDoc))
		if p.Error != "" {
			a.ui.printf("   credentials: %s\n", p.Error)
		} else if p.Identity != nil {
			a.ui.printf("   you are %s\n", orNone(p.Identity.Owner))
		}
		for _, line := range identityNotes(p.Identity) {
			a.ui.printf("   %s\n", line)
		}
	}
	return nil
}

// beyondLease says what bounds a leak, before a job says how long its node lease is.
func beyondLease(bound time.Duration, doc string) string {
	if bound == 0 {
		return "the node lease (" + doc + ")"
	} else if bound > 0 {
		return "the node lease and " + leakText(bound, doc)
	}
	return leakText(bound, doc)
}

// policy prints the least-privilege policy of a provider. The built-in ones rent nothing from an account.
func (a *app) policy(name string) error {
	switch name {
	case local.Name:
		return usagef("provider %s needs no policy: its machines are processes of this computer, and whoever may write to its folder may rent them", name)
	case ssh.Name:
		return usagef("provider %s needs no policy: it rents nothing from an account; a key that may log in to the hosts is all", name)
	}
	return usagef("provider %s has no policy in this build", name)
}

func describe(ctx context.Context, name string, p providers.Provider, config json.RawMessage) providerStatus {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	s := providerStatus{Name: name}
	info, err := p.Info(ctx)
	if err != nil {
		s.Error = err.Error()
		return s
	}
	s.Version, s.Capabilities, s.LeakBound, s.LeakBoundDoc = info.Version, info.Capabilities, info.LeakBound, info.LeakBoundDoc
	if s.Capabilities == nil {
		s.Capabilities = []providers.Capability{}
	}
	check, ok := providers.As[providers.Checker](p)
	switch {
	case !ok || !info.Has(providers.CanCheck):
	case needsBlock(info) && config == nil:
		s.Error = "not checked: they are in the job file: launcher providers --job FILE"
	default:
		id, err := check.Check(ctx, config)
		if err != nil {
			s.Error = err.Error()
			return s
		}
		s.Identity = &id
	}
	return s
}

// blockOf is a provider's block in a job, nil where there is none.
func blockOf(job *launcher.Job, name string) json.RawMessage {
	if job == nil {
		return nil
	}
	for _, p := range job.Providers {
		if p.Name == name {
			b, err := p.Config.MarshalJSON()
			if err != nil {
				return nil
			}
			return b
		}
	}
	return nil
}

func capabilities(all []providers.Capability) string {
	if len(all) == 0 {
		return "rents machines"
	}
	words := []string{"rents machines"}
	for _, c := range all {
		words = append(words, string(c))
	}
	return strings.Join(words, ", ")
}
