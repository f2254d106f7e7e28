package local

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
	"github.com/ephemeral-launcher/launcher/providers"
)

// launchTimeout bounds the start of the new machines' hypervisors.
const launchTimeout = 60 * time.Second

// Create rents machines; see [providers.Provider]. A cancelled call has either not begun or ends as if it were not.
func (p *Provider) Create(ctx context.Context, req providers.CreateRequest) (providers.CreateResult, error) {
	cfg, err := p.parse("create", req.Config)
	if err != nil {
		return providers.CreateResult{}, err
	}
	if err := check(cfg, req); err != nil {
		return providers.CreateResult{}, err
	}
	if err := ctx.Err(); err != nil {
		return providers.CreateResult{}, ledgerError("create", err)
	}
	command, err := p.command()
	if err != nil {
		return providers.CreateResult{}, providers.Errorf(providers.Internal, "create", "find the executable: %w", err)
	}
	l := ledger{cfg.root}
	if err := l.create(); err != nil {
		return providers.CreateResult{}, ledgerError("create", err)
	}
	// What died on its own is cleared away before the lock is taken, because it takes the lock itself.
	if _, err := l.all(ctx); err != nil {
		return providers.CreateResult{}, ledgerError("create", err)
	}
	b := &batch{ledger: l, cfg: cfg, req: req, command: command, sandbox: p.sandbox}
	defer b.release()
	known, err := b.intend(ctx)
	if err != nil {
		return providers.CreateResult{}, err
	}
	if known {
		return providers.CreateResult{Machines: machinesOf(b.records)}, nil
	}
	return b.start(context.WithoutCancel(ctx))
}

func (p *Provider) command() ([]string, error) {
	if len(p.opts.Executable) > 0 {
		return p.opts.Executable, nil
	}
	path, err := os.Executable()
	return []string{path, "machine"}, err
}

// check refuses what can never succeed.
func check(cfg settings, req providers.CreateRequest) error {
	invalid := func(format string, args ...any) error {
		return providers.Errorf(providers.Invalid, "create", format, args...)
	}
	token := regexp.MustCompile(`^[a-z0-9-]{1,64}$`)
	switch {
	case !token.MatchString(req.Token):
		return invalid("token %q is not 1 to 64 bytes of [a-z0-9-]", req.Token)
	case req.Run == "" || req.Tags[providers.TagRun] != req.Run:
		return invalid("tag %s is %q, the run is %q", providers.TagRun, req.Tags[providers.TagRun], req.Run)
	case req.Tags[providers.TagOwner] == "" || req.Tags[providers.TagRole] == "":
		return invalid("tags %s and %s are required", providers.TagOwner, providers.TagRole)
	case req.Count < 1 || req.Min < 0 || req.Min > req.Count:
		return invalid("count %d, min %d", req.Count, req.Min)
	case req.TTL <= 0:
		return invalid("a boot lease is required")
	case len(req.Offers) == 0:
		return invalid("no offers")
	}
	for _, o := range req.Offers {
		switch {
		case o.Region != Region:
			return invalid("unknown region %q", o.Region)
		case !slices.Contains(cfg.zones, o.Zone):
			return invalid("unknown zone %q", o.Zone)
		case o.Market != providers.Spot && o.Market != providers.OnDemand:
			return invalid("unknown market %q", o.Market)
		}
	}
	if _, err := sshkey.Public(req.BirthHostKey); err != nil {
		return invalid("birth host key: %w", err)
	}
	for i, line := range req.AuthorizedKeys {
		if _, err := sshkey.ParsePublic(line); err != nil {
			return invalid("authorized key %d: %w", i, err)
		}
	}
	return nil
}

// batch is one Create.
type batch struct {
	ledger  ledger
	cfg     settings
	req     providers.CreateRequest
	command []string
	sandbox string

	records []record
	refused []providers.Refusal
	// files are what each machine inherits: its lock and its control socket.
	files []*os.File
}

// release lets go of the machines: those that were started hold their locks themselves, the others are dead.
func (b *batch) release() {
	closeFiles(b.files)
	b.files = nil
}

// intend puts the machines into the ledger, or finds those that the token named before.
func (b *batch) intend(ctx context.Context) (known bool, err error) {
	unlock, err := b.ledger.lock(ctx)
	if err != nil {
		return false, ledgerError("create", err)
	}
	defer unlock()
	if err := b.ledger.prune(time.Now()); err != nil {
		return false, ledgerError("create", err)
	}
	living, _, err := b.ledger.living()
	if err != nil {
		return false, ledgerError("create", err)
	}
	ended, err := b.ledger.tombstones()
	if err != nil {
		return false, ledgerError("create", err)
	}
	used := map[string]int{}
	for _, r := range living {
		used[r.Offer.Zone]++
		if r.Token == b.req.Token {
			known = true
			b.records = append(b.records, r)
		}
	}
	for _, r := range ended {
		known = known || r.Token == b.req.Token
	}
	if known {
		slices.SortFunc(b.records, func(x, y record) int { return cmp.Compare(x.Index, y.Index) })
		return true, nil
	}
	if err := ctx.Err(); err != nil {
		return false, providers.Errorf(providers.Unavailable, "create", "not begun: %w", err)
	}
	if err := b.allot(used); err != nil {
		return false, err
	}
	for i := range b.records {
		if err := b.prepare(&b.records[i]); err != nil {
			return false, ledgerError("create", fmt.Errorf("prepare machine %s: %w", b.records[i].ID, err))
		}
	}
	for _, r := range b.records {
		if err := os.Rename(b.ledger.newDir(r.ID), b.ledger.dir(r.ID)); err != nil {
			for _, done := range b.records {
				err = errors.Join(err, removeAll(b.ledger.dir(done.ID)))
			}
			return false, ledgerError("create", err)
		}
	}
	return false, nil
}

// allot gives the machines to the offers in their order, as far as the zones' capacity goes.
func (b *batch) allot(used map[string]int) error {
	now := time.Now().UTC()
	for _, offer := range b.req.Offers {
		for len(b.records) < b.req.Count && (b.cfg.capacity < 0 || used[offer.Zone] < b.cfg.capacity) {
			used[offer.Zone]++
			b.records = append(b.records, record{
				ID: newID(), Token: b.req.Token, Index: len(b.records), Offer: offer, Tags: b.req.Tags, User: guestUser(),
				State: providers.Pending, TTL: b.req.TTL, Boot: b.cfg.boot, Notice: b.cfg.notice, Silent: b.cfg.silent,
				Command: b.command, Sandbox: b.sandbox, CreatedAt: now,
			})
		}
		if len(b.records) == b.req.Count {
			return nil
		}
		b.refused = append(b.refused, providers.Refusal{
			Offer: offer, Code: providers.Capacity,
			Message: fmt.Sprintf("zone %s is full: capacity is %d", offer.Zone, b.cfg.capacity),
		})
	}
	if len(b.records) < max(b.req.Min, 1) {
		refusal := providers.Errorf(providers.Capacity, "create", "%d of %d machines to be had, %d wanted", len(b.records), b.req.Count, b.req.Min)
		refusal.Offers = b.refused
		return refusal
	}
	return nil
}

func newID() string {
	var random [6]byte
	rand.Read(random[:]) // never fails (crypto/rand)
	return "m-" + hex.EncodeToString(random[:])
}

// prepare fills the folder of one machine and takes its lock.
func (b *batch) prepare(rec *record) error {
	dir := b.ledger.newDir(rec.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := furnish(dir, b.ledger.dir(rec.ID), *rec, b.req.BirthHostKey, b.req.AuthorizedKeys); err != nil {
		return err
	}
	alive, err := os.OpenFile(filepath.Join(dir, "alive"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	b.files = append(b.files, alive)
	if err := syscall.Flock(int(alive.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("lock %s: %w", alive.Name(), err)
	}
	listener, err := listenControl(dir)
	if err != nil {
		return err
	}
	defer listener.Close()
	control, err := listener.File()
	if err != nil {
		return err
	}
	b.files = append(b.files, control)
	return nil
}

// start starts what was intended. It no longer ends with the caller's context: the machines are in the ledger.
func (b *batch) start(ctx context.Context) (providers.CreateResult, error) {
	ctx, cancel := context.WithTimeout(ctx, launchTimeout)
	defer cancel()
	failed := map[string]string{}
	for from := 0; from < len(b.records); from += maxFiles / 2 {
		to := min(from+maxFiles/2, len(b.records))
		ids := idsOf(b.records[from:to])
		sorry, err := spawn(ctx, b.command, b.ledger, ids, b.files[2*from:2*to])
		if err != nil {
			for _, id := range ids {
				failed[id] = err.Error()
			}
		}
		for id, text := range sorry {
			failed[id] = text
		}
	}
	b.release()
	started := b.records[:0:0]
	for _, r := range b.records {
		text, sorry := failed[r.ID]
		if !sorry {
			started = append(started, r)
			continue
		}
		b.refused = append(b.refused, providers.Refusal{Offer: r.Offer, Code: providers.Unavailable, Message: "start machine: " + text})
	}
	if len(started) == len(b.records) {
		return providers.CreateResult{Machines: machinesOf(started), Refused: b.refused}, nil
	}
	short := len(started) < max(b.req.Min, 1)
	for _, r := range b.records {
		if _, sorry := failed[r.ID]; !sorry && !short {
			continue
		}
		// The machines are in the ledger, with their tags: what cannot be ended now is found there.
		if err := end(ctx, b.ledger, r, deletePatience); err != nil {
			return providers.CreateResult{}, ledgerError("create", err)
		}
	}
	if short {
		refusal := providers.Errorf(providers.Unavailable, "create", "%d of %d machines started", len(started), b.req.Count)
		refusal.Offers = b.refused
		return providers.CreateResult{}, refusal
	}
	return providers.CreateResult{Machines: machinesOf(started), Refused: b.refused}, nil
}

// spawn starts hypervisors: by the machine around us, so that they live outside its namespace and outlive it, else by ourselves.
func spawn(ctx context.Context, command []string, l ledger, ids []string, files []*os.File) (map[string]string, error) {
	if around := surrounding(); around != "" {
		r, err := call(ctx, around, request{Op: opSpawn, Root: l.root, IDs: ids, Command: command}, files)
		if err == nil {
			return r.Failed, r.err()
		}
		if !errors.Is(err, errDead) {
			return nil, err
		}
		// The variables are a leftover: a guest does not outlive its hypervisor.
	}
	return launch(ctx, command, l, ids, files)
}

func idsOf(records []record) []string {
	ids := make([]string, len(records))
	for i, r := range records {
		ids[i] = r.ID
	}
	return ids
}

func machinesOf(records []record) []providers.Machine {
	machines := make([]providers.Machine, len(records))
	for i, r := range records {
		machines[i] = *r.resource().Machine
	}
	return machines
}

// ledgerError classifies what went wrong with the root folder.
func ledgerError(op string, err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return providers.Errorf(providers.Unavailable, op, "%w", err)
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS):
		return providers.Errorf(providers.Auth, op, "%w", err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return providers.Errorf(providers.Quota, op, "%w", err)
	}
	return providers.Errorf(providers.Internal, op, "%w", err)
}
