package ssh

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
	"github.com/ephemeral-launcher/launcher/providers"
)

// Create leases hosts; see [providers.Provider]. All hosts must answer, because a lease of the same token may lie on any of
// them. A call that has begun to take leases goes on to its end when its context is cancelled, and at most a minute.
func (p *Provider) Create(ctx context.Context, req providers.CreateRequest) (providers.CreateResult, error) {
	s, err := parse("create", req.Config)
	if err != nil {
		return providers.CreateResult{}, err
	}
	b := &batch{settings: s, req: req}
	if err := b.check(); err != nil {
		return providers.CreateResult{}, err
	}
	if err := ctx.Err(); err != nil {
		return providers.CreateResult{}, failed("create", err)
	}
	select {
	case p.creating <- struct{}{}:
		defer func() { <-p.creating }()
	case <-ctx.Done():
		return providers.CreateResult{}, failed("create", ctx.Err())
	}
	listed, err := s.listAll(ctx)
	if err != nil {
		return providers.CreateResult{}, failed("create", err)
	}
	known := false
	for _, f := range listed {
		if f.Token == req.Token {
			known = true
			if f.state != providers.Terminated {
				b.taken = append(b.taken, f)
			}
		}
	}
	if known {
		return providers.CreateResult{Machines: b.machines()}, nil
	}
	if err := ctx.Err(); err != nil {
		return providers.CreateResult{}, failed("create", err)
	}
	return b.take(context.WithoutCancel(ctx))
}

// batch is one Create.
type batch struct {
	settings
	req        providers.CreateRequest
	candidates []candidate
	keys       []string

	taken   []found
	refused []providers.Refusal
}

// candidate is a host that an offer names; of several offers of a host the first counts.
type candidate struct {
	host  host
	offer providers.Offer
}

// check refuses what can never succeed, and finds the candidates.
func (b *batch) check() error {
	req := b.req
	invalid := func(format string, args ...any) error {
		return providers.Errorf(providers.Invalid, "create", format, args...)
	}
	switch {
	case !regexp.MustCompile(`^[a-z0-9-]{1,64}$`).MatchString(req.Token):
		return invalid("token %q is not 1 to 64 bytes of [a-z0-9-]", req.Token)
	case req.Run == "" || req.Tags[providers.TagRun] != req.Run:
		return invalid("tag %s is %q, the run is %q", providers.TagRun, req.Tags[providers.TagRun], req.Run)
	case !regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`).MatchString(req.Run): // it goes into authorized_keys
		return invalid("run %q is not 1 to 128 of letters, digits, dots and hyphens", req.Run)
	case req.Tags[providers.TagOwner] == "" || req.Tags[providers.TagRole] == "":
		return invalid("tags %s and %s are required", providers.TagOwner, providers.TagRole)
	case req.Count < 1 || req.Min < 0 || req.Min > req.Count:
		return invalid("count %d, min %d", req.Count, req.Min)
	case req.TTL <= 0:
		return invalid("a boot lease is required")
	case len(req.Offers) == 0:
		return invalid("no offers")
	}
	seen := map[string]bool{}
	for _, o := range req.Offers {
		if o.Region != Region {
			return invalid("unknown region %q", o.Region)
		}
		i := slices.IndexFunc(b.hosts, func(h host) bool { return h.address == o.Zone })
		if i < 0 {
			return invalid("%q is not one of the hosts", o.Zone)
		}
		if !seen[o.Zone] {
			seen[o.Zone] = true
			b.candidates = append(b.candidates, candidate{b.hosts[i], o})
		}
	}
	for i, line := range req.AuthorizedKeys {
		if _, err := sshkey.ParsePublic(line); err != nil {
			return invalid("authorized key %d: %w", i, err)
		}
		// Without the comment: its place is the machine's id, by which the line is found again.
		b.keys = append(b.keys, strings.Join(strings.Fields(line)[:2], " "))
	}
	return nil
}

// take leases candidates in their order, as many at a time as are still wanted.
func (b *batch) take(ctx context.Context) (providers.CreateResult, error) {
	ctx, cancel := context.WithTimeout(ctx, visitTimeout)
	defer cancel()
	left := b.candidates
	for len(left) > 0 && len(b.taken) < b.req.Count {
		round := left[:min(b.req.Count-len(b.taken), len(left))]
		index := len(b.candidates) - len(left)
		left = left[len(round):]
		b.round(ctx, round, index)
	}
	if len(b.taken) == b.req.Count {
		return providers.CreateResult{Machines: b.machines(), Refused: b.refused}, nil
	}
	if len(b.refused) == 0 {
		last := b.candidates[len(b.candidates)-1]
		b.refused = append(b.refused, providers.Refusal{
			Offer: last.offer, Code: providers.Capacity, Message: fmt.Sprintf("%d hosts are all there are", len(b.candidates)),
		})
	}
	if len(b.taken) >= max(b.req.Min, 1) {
		return providers.CreateResult{Machines: b.machines(), Refused: b.refused}, nil
	}
	var errs []error
	for _, f := range b.taken {
		_, err := f.host.visit(ctx, b.key, order{op: opDrop, id: f.ID, run: b.req.Run})
		errs = append(errs, err)
	}
	refusal := providers.Errorf(b.code(), "create", "%d of %d hosts to be had, %d wanted: %s", len(b.taken), b.req.Count, b.req.Min, b.refused[0].Message)
	if err := errors.Join(errs...); err != nil {
		refusal = providers.Errorf(providers.Unavailable, "create", "give back what was taken: %w", err) // List shows it
	}
	refusal.Offers = b.refused
	return providers.CreateResult{}, refusal
}

// code is capacity if that is all that stood in the way.
func (b *batch) code() providers.Code {
	for _, r := range b.refused {
		if r.Code != providers.Capacity {
			return r.Code
		}
	}
	return providers.Capacity
}

// round tries some candidates at once.
func (b *batch) round(ctx context.Context, round []candidate, index int) {
	hosts := make([]host, len(round))
	for i, c := range round {
		hosts[i] = c.host
	}
	got := make([]*found, len(round))
	errs := everywhere(ctx, hosts, func(ctx context.Context, i int, h host) (err error) {
		got[i], err = b.lease(ctx, round[i], index+i)
		return err
	})
	for i, c := range round {
		if got[i] != nil {
			b.taken = append(b.taken, *got[i])
			continue
		}
		b.refused = append(b.refused, providers.Refusal{Offer: c.offer, Code: providers.CodeOf(errs[i]), Message: errs[i].Error()})
	}
}

// lease takes one host.
func (b *batch) lease(ctx context.Context, c candidate, index int) (*found, error) {
	var nonce [6]byte
	rand.Read(nonce[:]) // never fails (crypto/rand)
	f := found{host: c.host, state: providers.Running, record: record{
		ID: "h-" + c.host.mark() + "-" + hex.EncodeToString(nonce[:]), Token: b.req.Token, Index: index,
		Offer: c.offer, Tags: b.req.Tags, User: c.host.user, CreatedAt: time.Now().UTC(),
	}}
	var err error
	if f.text, err = f.line(); err != nil {
		return nil, err
	}
	lines, err := c.host.visit(ctx, b.key, order{
		op: opTake, id: f.ID, run: b.req.Run, token: b.req.Token, record: f.text, keys: b.keys,
		seconds: int(math.Ceil(b.req.TTL.Seconds())),
	})
	if err != nil {
		return nil, err
	}
	lines = append(lines, "")
	switch lines[0] {
	case "took":
		return &f, nil
	case "have":
		f.text = lines[1]
		return &f, json.Unmarshal([]byte(f.text), &f.record)
	case "busy":
		end, err := strconv.ParseInt(lines[1], 10, 64)
		if err != nil {
			return nil, providers.Errorf(providers.Internal, "", "take %s: unknown time %q", c.host.address, lines[1])
		}
		return nil, providers.Errorf(providers.Capacity, "", "host %s is leased until %s", c.host.address, time.Unix(end, 0).UTC().Format(time.RFC3339))
	}
	return nil, providers.Errorf(providers.Internal, "", "take %s: unknown answer %q", c.host.address, lines[0])
}

func (b *batch) machines() []providers.Machine {
	slices.SortFunc(b.taken, func(x, y found) int { return cmp.Compare(x.Index, y.Index) })
	machines := make([]providers.Machine, len(b.taken))
	for i, f := range b.taken {
		machines[i] = *f.resource(f.host, f.state, "").Machine
	}
	return machines
}
