package local

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// tombstoneAge is how long an ended machine stays listed.
const tombstoneAge = 24 * time.Hour

// record is what the ledger knows of one machine: machine.json. Until the machine's first process runs its creator
// writes it, then that process alone.
type record struct {
	ID      string                  `json:"id"`
	Token   string                  `json:"token"`
	Index   int                     `json:"index"` // the place among the machines of the token
	Offer   providers.Offer         `json:"offer"`
	Tags    map[string]string       `json:"tags"`
	User    string                  `json:"user"`
	State   providers.ResourceState `json:"state"`
	Address string                  `json:"address,omitempty"`
	Reason  string                  `json:"reason,omitempty"`
	// Log is the end of the machine's log, kept where it ended without anybody asking for it.
	Log string `json:"log,omitempty"`

	TTL     time.Duration `json:"ttl"`
	Boot    time.Duration `json:"boot"`
	Notice  time.Duration `json:"notice"`
	Silent  float64       `json:"silent"`
	Command []string      `json:"command"`
	Sandbox string        `json:"sandbox,omitempty"`

	// The machine bills from CreatedAt to EndedAt. Wall clock: it is read by people and other programs.
	CreatedAt time.Time `json:"created_at"`
	EndedAt   time.Time `json:"ended_at,omitzero"`

	Outer process `json:"outer,omitzero"`
	Init  process `json:"init,omitzero"`
}

func (r record) resource() providers.Resource {
	return providers.Resource{
		ID: r.ID, Kind: providers.KindMachine, State: r.State, Tags: r.Tags, Region: Region,
		CreatedAt: r.CreatedAt, Reason: r.Reason,
		Machine: &providers.Machine{
			ID: r.ID, Token: r.Token, Offer: r.Offer, User: r.User, CreatedAt: r.CreatedAt,
			Address: r.Address, ClusterAddress: r.Address,
		},
	}
}

// ledger is the root folder.
type ledger struct{ root string }

func (l ledger) machines() string           { return filepath.Join(l.root, "machines") }
func (l ledger) dir(id string) string       { return filepath.Join(l.root, "machines", id) }
func (l ledger) newDir(id string) string    { return filepath.Join(l.root, "new", id) }
func (l ledger) ended() string              { return filepath.Join(l.root, "ended") }
func (l ledger) tombstone(id string) string { return filepath.Join(l.root, "ended", id+".json") }

// create makes the folders of the cloud.
func (l ledger) create() error {
	for _, dir := range []string{l.root, l.machines(), l.newDir(""), l.ended()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// lock takes the root's lock; the returned function gives it back.
func (l ledger) lock(ctx context.Context) (func(), error) {
	f, err := os.OpenFile(filepath.Join(l.root, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	// flock(2) has no timed wait, and a blocked one cannot be cancelled: so we try, at growing intervals.
	wait := time.Millisecond
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), ctx.Err())
		case <-time.After(wait):
		}
		wait = min(2*wait, 20*time.Millisecond)
	}
}

// alive tells whether anybody, in whatever namespace, still holds the machine's lock. Nobody takes it again once it was free.
func (l ledger) alive(id string) (bool, error) {
	f, err := os.Open(filepath.Join(l.dir(id), "alive"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// read returns the record of the machine in its folder; ok is false where there is none.
func (l ledger) read(id string) (rec record, ok bool, err error) {
	return readRecord(filepath.Join(l.dir(id), "machine.json"))
}

func readRecord(path string) (rec record, ok bool, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &rec)
	}
	if err != nil {
		return record{}, false, fmt.Errorf("read %s: %w", path, err)
	}
	return rec, true, nil
}

func writeRecord(path string, rec record) error {
	data, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(path, data, 0o600)
}

// writeFile replaces path by rename: readers see the old or the new, never a part.
func writeFile(path string, data []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// ids lists the machines that have a folder.
func (l ledger) ids() ([]string, error) {
	entries, err := os.ReadDir(l.machines())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() {
			ids = append(ids, e.Name())
		}
	}
	return ids, err
}

// living returns the records of the machines that live, and the ids of those that died and still have a folder.
func (l ledger) living() (records []record, dead []string, err error) {
	ids, err := l.ids()
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		alive, err := l.alive(id)
		if err != nil {
			return nil, nil, err
		}
		if !alive {
			dead = append(dead, id)
			continue
		}
		rec, ok, err := l.read(id)
		if err != nil {
			return nil, nil, err
		}
		if ok {
			records = append(records, rec)
		}
	}
	return records, dead, nil
}

// tombstones returns the records of the ended.
func (l ledger) tombstones() ([]record, error) {
	entries, err := os.ReadDir(l.ended())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var records []record
	for _, e := range entries {
		id, isRecord := strings.CutSuffix(e.Name(), ".json")
		if !isRecord || strings.HasPrefix(id, ".") {
			continue
		}
		rec, ok, err := readRecord(l.tombstone(id))
		if err != nil {
			return nil, err
		}
		if ok {
			records = append(records, rec)
		}
	}
	return records, nil
}

// all returns every machine, living and ended, in the order of creation. It clears away what died without doing so itself.
func (l ledger) all(ctx context.Context) ([]record, error) {
	records, dead, err := l.living()
	if err != nil {
		return nil, err
	}
	if len(dead) > 0 {
		if err := l.buryAll(ctx, dead); err != nil {
			return nil, err
		}
	}
	// The ended come second: a machine moves from the living to the ended, so this order cannot miss one.
	ended, err := l.tombstones()
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, r := range records {
		seen[r.ID] = true
	}
	for _, r := range ended {
		if !seen[r.ID] {
			records = append(records, r)
		}
	}
	slices.SortFunc(records, func(a, b record) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Token, b.Token), cmp.Compare(a.Index, b.Index))
	})
	return records, nil
}

// buryAll clears away machines that are dead. Inside a machine the hypervisor around us does it: it sees all processes.
func (l ledger) buryAll(ctx context.Context, ids []string) error {
	if around := surrounding(); around != "" {
		reply, err := call(ctx, around, request{Op: opBury, Root: l.root, IDs: ids}, nil)
		if err == nil {
			return reply.err()
		}
		// Ours died under us, or is not ours: then we do what we can.
	}
	return l.buryHere(ctx, ids)
}

func (l ledger) buryHere(ctx context.Context, ids []string) error {
	unlock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for _, id := range ids {
		if err := l.bury(ctx, id); err != nil {
			return fmt.Errorf("clear away machine %s: %w", id, err)
		}
	}
	return nil
}

// bury sweeps a dead machine's processes, writes its tombstone and removes its folder; the root is locked. A machine that lives is left alone.
func (l ledger) bury(ctx context.Context, id string) error {
	alive, err := l.alive(id)
	if err != nil || alive {
		return err
	}
	if _, err := os.Stat(l.dir(id)); errors.Is(err, fs.ErrNotExist) {
		return nil // it cleared away itself
	}
	rec, ok, err := l.read(id)
	if err != nil {
		// A record that cannot be read says nothing of tags or tokens, but the id in its path still names the processes.
		rec, ok = record{ID: id, Reason: "crashed"}, false
	}
	if err := sweep(ctx, id); err != nil {
		return err
	}
	if ok {
		if _, ended, _ := readRecord(l.tombstone(id)); !ended {
			if rec.Reason == "" {
				rec.Reason = "crashed"
				if rec.Outer.PID == 0 {
					rec.Reason = "creation was interrupted"
				}
			}
			rec.Log = logTail(l.dir(id))
			if err := l.entomb(rec); err != nil {
				return err
			}
		}
	}
	return removeAll(l.dir(id))
}

// entomb writes what stays of a machine.
func (l ledger) entomb(rec record) error {
	rec.State = providers.Terminated
	if rec.EndedAt.IsZero() {
		rec.EndedAt = time.Now().UTC()
	}
	return writeRecord(l.tombstone(rec.ID), rec)
}

// prune forgets what ended long ago, and what a creator left half prepared; the root is locked.
func (l ledger) prune(now time.Time) error {
	entries, err := os.ReadDir(l.newDir(""))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := removeAll(l.newDir(e.Name())); err != nil {
			return err
		}
	}
	ended, err := l.tombstones()
	if err != nil {
		return err
	}
	for _, r := range ended {
		if now.Sub(r.EndedAt) > tombstoneAge {
			if err := os.Remove(l.tombstone(r.ID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// removeAll removes a machine's folder, read-only folders in it included: package managers leave such.
func removeAll(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	walk := func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // RemoveAll will say it
		}
		return os.Chmod(path, 0o700)
	}
	_ = filepath.WalkDir(dir, walk) // likewise
	return os.RemoveAll(dir)
}

// logTail returns the last lines of the machine's log.
func logTail(dir string) string {
	const limit = 2 << 10
	f, err := os.Open(filepath.Join(dir, "log"))
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	buf := make([]byte, limit)
	n, _ := f.ReadAt(buf, max(0, info.Size()-limit))
	return strings.TrimSpace(strings.ToValidUTF8(string(buf[:n]), "?"))
}
