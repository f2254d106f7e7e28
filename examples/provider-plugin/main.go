// Command launcher-provider-static is a whole provider plugin: it hands out the hosts of a lab, which are always on, as
// machines. What a cloud's API would keep, a file keeps: one JSON object per machine that was ever handed out.
//
// The pool is a folder with a file "hosts" (host:port of an SSH server, one per line); "state.json" and "lock" are made in it.
// Putting keys on the hosts is left out, so these machines can be rented and listed but not logged in to: see README.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/plugin"
)

func main() { plugin.Serve(static{}) }

const region = "lab"

// static keeps nothing: each call reads what it needs, so that any number of processes may call.
type static struct{}

func (static) Info(context.Context) (providers.Info, error) {
	return providers.Info{
		Name: "static", Version: "1.0.0", NoticeSource: "none", DefaultUser: "lab", BillingInterval: time.Second,
		Schema:    []providers.Attribute{{Name: "pool", Type: "string", Required: true, Doc: "absolute path of the folder with the file hosts"}},
		LeakBound: -1, LeakBoundDoc: "nobody: a host is always on, and free again once it is deleted", SeparateHosts: true, FixedHosts: true,
	}, nil
}

func (static) Offers(ctx context.Context, req providers.OffersRequest) (offers []providers.Offer, err error) {
	err = locked(ctx, "offers", req.Config, func(*state) error {
		for _, market := range req.Markets {
			o := providers.Offer{Provider: "static", InstanceType: "host", Region: region, Zone: region, Market: market, CPUs: 8, MemoryGiB: 32}
			if req.CPUs > o.CPUs || req.MemoryGiB > o.MemoryGiB || len(req.GPUs) > 0 {
				o.Rejected = "the hosts have 8 CPUs, 32 GiB and no GPU"
			}
			offers = append(offers, o)
		}
		return nil
	})
	return offers, err
}

func (static) Create(ctx context.Context, req providers.CreateRequest) (result providers.CreateResult, err error) {
	sane := regexp.MustCompile(`^[a-z0-9-]{1,64}$`).MatchString(req.Token) && req.Count > 0 && req.Min <= req.Count && req.TTL > 0 &&
		len(req.Offers) > 0 && req.Tags[providers.TagRun] == req.Run && req.Run != "" && req.Tags[providers.TagOwner] != "" &&
		!slices.ContainsFunc(req.Offers, func(o providers.Offer) bool { return o.Region != region })
	if !sane {
		return result, providers.Errorf(providers.Invalid, "create", "token, count, ttl, offers or tags are wrong")
	}
	err = locked(ctx, "create", req.Config, func(s *state) error {
		known, free := false, slices.Clone(s.hosts)
		for _, r := range s.machines() {
			if r.Machine.Token == req.Token { // the promise that matters most: a repeated call makes nothing
				if known = true; r.Alive() {
					result.Machines = append(result.Machines, *r.Machine)
				}
			}
			if r.Alive() {
				free = slices.DeleteFunc(free, func(host string) bool { return host == r.Machine.Address })
			}
		}
		if known {
			return nil
		}
		if n := min(len(free), req.Count); n < req.Count {
			result.Refused = []providers.Refusal{{Offer: req.Offers[0], Code: providers.Capacity, Message: "all other hosts are taken"}}
			if n < req.Min {
				return &providers.Error{Code: providers.Capacity, Op: "create", Message: "too few hosts are free", Offers: result.Refused}
			}
		}
		for i, host := range free[:min(len(free), req.Count)] {
			m := providers.Machine{ID: fmt.Sprintf("%s-%04d", req.Token, i), Token: req.Token, Offer: req.Offers[0], Address: host, ClusterAddress: host, User: "lab", CreatedAt: time.Now()}
			s.Machines[m.ID] = &providers.Resource{ID: m.ID, Kind: providers.KindMachine, State: providers.Running, Tags: req.Tags, Region: region, CreatedAt: m.CreatedAt, Machine: &m}
			result.Machines = append(result.Machines, m)
		}
		return nil
	})
	return result, err
}

func (static) List(ctx context.Context, f providers.Filter) (all []providers.Resource, err error) {
	err = locked(ctx, "list", f.Config, func(s *state) error {
		for _, r := range s.machines() {
			if (f.Run == "" || r.Tags[providers.TagRun] == f.Run) && (f.Owner == "" || r.Tags[providers.TagOwner] == f.Owner) &&
				(len(f.Regions) == 0 || slices.Contains(f.Regions, r.Region)) {
				all = append(all, *r)
			}
		}
		return nil
	})
	return all, err
}

func (static) Delete(ctx context.Context, req providers.DeleteRequest) ([]providers.Resource, error) {
	return nil, locked(ctx, "delete", req.Config, func(s *state) error {
		// Our own tags count, not those in the request, which may lie. A failure keeps nothing, so one foreign machine spares all.
		for _, r := range req.Resources {
			if have := s.Machines[r.ID]; req.Run == "" || have != nil && have.Tags[providers.TagRun] != req.Run {
				return providers.Errorf(providers.Invalid, "delete", "%s is not of run %q", r.ID, req.Run)
			} else if have != nil { // what is not there is gone already
				have.State, have.Reason = providers.Terminated, "deleted"
			}
		}
		return nil
	})
}

func (static) Update(ctx context.Context, req providers.UpdateRequest) error {
	return locked(ctx, "update", req.Config, func(s *state) error {
		have := s.Machines[req.Machine]
		if have == nil || !have.Alive() || have.Tags[providers.TagRun] != req.Run {
			return providers.Errorf(providers.NotFound, "update", "no machine %s in run %s", req.Machine, req.Run)
		}
		maps.Copy(have.Tags, req.Tags)
		return nil
	})
}

// state is the pool as it is now: who may be handed out, and all that ever were, by id.
type state struct {
	hosts    []string
	Machines map[string]*providers.Resource `json:"machines"`
}

// machines are in the order of their ids, which is that in which one Create made them.
func (s *state) machines() []*providers.Resource {
	return slices.SortedFunc(maps.Values(s.Machines), func(a, b *providers.Resource) int { return strings.Compare(a.ID, b.ID) })
}

// locked runs do on the pool that the provider block names, alone among all processes, and keeps what it changes unless it fails.
func locked(ctx context.Context, op string, config json.RawMessage, do func(*state) error) error {
	var block struct{ Pool string }
	if err := json.Unmarshal(config, &block); err != nil || !filepath.IsAbs(block.Pool) {
		return &providers.Error{Code: providers.Invalid, Op: op, Message: "pool is not an absolute path", Attribute: "pool"}
	}
	file := func(name string) string { return filepath.Join(block.Pool, name) }
	lock, err := os.OpenFile(file("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		defer lock.Close()
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX) // nobody holds it for long
	}
	hosts, hostsErr := os.ReadFile(file("hosts"))
	data, stateErr := os.ReadFile(file("state.json"))
	if errors.Is(stateErr, os.ErrNotExist) {
		data, stateErr = []byte(`{"machines":{}}`), nil
	}
	s := &state{hosts: strings.Fields(string(hosts))}
	if err := errors.Join(ctx.Err(), err, hostsErr, stateErr, json.Unmarshal(data, s)); err != nil {
		return providers.Errorf(providers.Unavailable, op, "read the pool: %w", err)
	}
	if err := do(s); err != nil {
		return err
	}
	if data, err = json.Marshal(s); err != nil {
		return err
	}
	if err := os.WriteFile(file("new"), data, 0o600); err != nil { // aside, so that the file is whole at any time
		return err
	}
	return os.Rename(file("new"), file("state.json"))
}
