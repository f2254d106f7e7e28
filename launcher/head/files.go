package head

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/launcher/rendezvous"
)

const (
	// fetchTimeout bounds the copy of one checkpoint or of outputs off a node.
	fetchTimeout = 10 * time.Minute
	// distributeTimeout bounds how long a forming generation waits for a checkpoint under way.
	distributeTimeout = 5 * time.Minute
)

// files are the checkpoints and outputs that lie on the head. The world's loop owns it; copies run beside the loop.
type files struct {
	folder string
	job    *jobspec.Job

	checkpoints []savedCheckpoint // oldest first, at most job.Checkpoint.Keep
	onNode      map[string]string // hash of the newest checkpoint known to be on a node
	fetching    int               // checkpoints on their way to the head
	idle        chan struct{}     // closed when fetching is 0 again; nil while it is
	outputs     []savedOutputs    // oldest copy first, one per node
	saving      map[string]bool   // nodes whose outputs are being copied
}

type savedCheckpoint struct {
	Name string `json:"name"`
	Hash string `json:"hash"`
	Path string `json:"path"` // of the archive
	Step int64  `json:"step"`
	Size int64  `json:"size"`
}

type savedOutputs struct {
	Node string `json:"node"`
	Hash string `json:"hash"`
	Path string `json:"path"`
}

// index is what a new head process must know of the files an older one saved.
type index struct {
	Checkpoints []savedCheckpoint `json:"checkpoints"`
	Outputs     []savedOutputs    `json:"outputs"`
}

func newFiles(folder string, job *jobspec.Job) *files {
	f := &files{folder: folder, job: job, onNode: map[string]string{}, saving: map[string]bool{}}
	if b, err := os.ReadFile(f.indexPath()); err == nil {
		var i index
		if json.Unmarshal(b, &i) == nil {
			f.checkpoints, f.outputs = i.Checkpoints, i.Outputs
		}
	}
	return f
}

func (f *files) indexPath() string { return filepath.Join(f.folder, "files.json") }

func (f *files) writeIndex() error {
	b, err := json.Marshal(index{f.checkpoints, f.outputs})
	if err != nil {
		return err
	}
	tmp := f.indexPath() + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, f.indexPath())
}

// newest is the newest checkpoint on the head; ok is false where there is none.
func (f *files) newest() (savedCheckpoint, bool) {
	if len(f.checkpoints) == 0 {
		return savedCheckpoint{}, false
	}
	return f.checkpoints[len(f.checkpoints)-1], true
}

// keep adds a checkpoint and forgets those beyond job.Checkpoint.Keep.
func (f *files) keep(c savedCheckpoint) {
	f.checkpoints = slices.DeleteFunc(f.checkpoints, func(o savedCheckpoint) bool { return o.Hash == c.Hash })
	f.checkpoints = append(f.checkpoints, c)
	for len(f.checkpoints) > f.job.Checkpoint.Keep {
		os.Remove(f.checkpoints[0].Path)
		f.checkpoints = f.checkpoints[1:]
	}
}

// checkpointed copies a new checkpoint off its node.
func (l *worldLoop) checkpointed(k *link, c *control.Checkpoint) {
	node := k.name
	l.step(rendezvous.Checkpoint{Step: c.Step, Path: c.Name})
	if l.Job.Checkpoint == nil {
		return
	}
	l.files.onNode[node] = c.Hash
	if last, ok := l.files.newest(); ok && last.Hash == c.Hash {
		return
	}
	if l.files.fetching++; l.files.idle == nil {
		l.files.idle = make(chan struct{})
	}
	l.start(func() {
		saved, err := l.fetchCheckpoint(k, c)
		l.post(func(l *worldLoop) {
			if l.files.fetching--; l.files.fetching == 0 {
				close(l.files.idle)
				l.files.idle = nil
			}
			if err != nil {
				l.Log.Warn("save checkpoint", "node", node, "name", c.Name, "error", err)
				return
			}
			l.files.keep(saved)
			if err := l.files.writeIndex(); err != nil {
				l.Log.Warn("save checkpoint", "error", err)
			}
			l.record(nil, journal.NewEvent(journal.CheckpointSaved, node, int(c.Generation), journal.Checkpoint{Step: c.Step, Path: c.Name, Bytes: c.Size, Hash: c.Hash}))
		})
	})
}

func (l *worldLoop) fetchCheckpoint(k *link, c *control.Checkpoint) (savedCheckpoint, error) {
	ctx, cancel := context.WithTimeout(k.ctx, fetchTimeout)
	defer cancel()
	agent, err := k.agent()
	if err != nil {
		return savedCheckpoint{}, err
	}
	saved := savedCheckpoint{Name: c.Name, Hash: c.Hash, Step: c.Step, Size: c.Size, Path: filepath.Join(l.Folder, "checkpoints", fileName(c.Hash)+".tar.zst")}
	_, err = fetch(ctx, agent, &control.FetchRequest{Kind: control.FileKind_CHECKPOINT, Path: l.Job.Checkpoint.Path, Name: c.Name, IfHash: c.Hash}, saved.Path)
	return saved, err
}

// distribute brings the newest checkpoint to every member that lacks it, then starts the generation. One that is still on its way to the head
// is waited for: the processes would otherwise resume at an older one than was saved for them.
func (l *worldLoop) distribute(f rendezvous.Form) {
	idle := l.files.idle
	if idle == nil {
		l.sendCheckpoint(f)
		return
	}
	l.start(func() {
		select {
		case <-idle:
		case <-time.After(distributeTimeout):
		case <-l.ctx.Done():
			return
		}
		l.post(func(l *worldLoop) { l.sendCheckpoint(f) })
	})
}

func (l *worldLoop) sendCheckpoint(f rendezvous.Form) {
	c, ok := l.files.newest()
	var to []*link
	if ok {
		for _, m := range f.Members {
			if k := l.links[m.Node]; k != nil && l.files.onNode[m.Node] != c.Hash {
				to = append(to, k)
			}
		}
	}
	if len(to) == 0 {
		l.launchGeneration(f)
		return
	}
	l.start(func() {
		var sending sync.WaitGroup
		failed := make([]error, len(to))
		for i, k := range to {
			sending.Go(func() { failed[i] = l.putCheckpoint(k, c) })
		}
		sending.Wait()
		l.post(func(l *worldLoop) {
			for i, k := range to {
				if failed[i] != nil {
					// It starts all the same: its ranks resume at what they have, or get the state from a peer.
					l.Log.Warn("send checkpoint", "node", k.name, "name", c.Name, "error", failed[i])
					continue
				}
				l.files.onNode[k.name] = c.Hash
			}
			l.launchGeneration(f)
		})
	})
}

func (l *worldLoop) putCheckpoint(k *link, c savedCheckpoint) error {
	ctx, cancel := context.WithTimeout(k.ctx, distributeTimeout)
	defer cancel()
	agent, err := k.agent()
	if err != nil {
		return err
	}
	archive, err := os.Open(c.Path)
	if err != nil {
		return err
	}
	defer archive.Close()
	return put(ctx, agent, &control.FileHeader{Kind: control.FileKind_CHECKPOINT, Hash: c.Hash, Name: c.Name, Path: l.Job.Checkpoint.Path}, archive)
}

// saveOutputs copies outputs off their nodes: those of rank 0, or all. The last time it then reports the world drained.
func (l *worldLoop) saveOutputs(last bool) {
	var from []*link
	if o := l.Job.Outputs; o != nil {
		first := l.rankZero()
		for _, m := range l.generation.Members {
			if k := l.links[m.Node]; k != nil && (m.Node == first || o.Nodes == jobspec.OutputsAll) {
				from = append(from, k)
			}
		}
	}
	var copying sync.WaitGroup
	for _, k := range from {
		name := k.name
		if l.files.saving[name] && !last {
			continue
		}
		l.files.saving[name] = true
		before := ""
		if i := slices.IndexFunc(l.files.outputs, func(o savedOutputs) bool { return o.Node == name }); i >= 0 {
			before = l.files.outputs[i].Hash
		}
		copying.Add(1)
		l.start(func() {
			defer copying.Done()
			saved, size, err := l.fetchOutputs(k, name, before)
			l.post(func(l *worldLoop) { l.savedOutputs(name, saved, size, err) })
		})
	}
	if !last {
		return
	}
	l.start(func() {
		copying.Wait()
		l.post(func(l *worldLoop) {
			l.drained = true
			l.record(nil, journal.NewEvent(journal.RunDrained, "", 0, nil))
		})
	})
}

func (l *worldLoop) savedOutputs(node string, saved *savedOutputs, size int64, err error) {
	delete(l.files.saving, node)
	if err != nil {
		l.Log.Warn("save outputs", "node", node, "error", err)
	}
	if saved == nil {
		return
	}
	l.files.outputs = slices.DeleteFunc(l.files.outputs, func(o savedOutputs) bool { return o.Node == node })
	l.files.outputs = append(l.files.outputs, *saved)
	if err := l.files.writeIndex(); err != nil {
		l.Log.Warn("save outputs", "error", err)
	}
	l.record(nil, journal.NewEvent(journal.OutputsSaved, node, 0, journal.Outputs{Bytes: size}))
}

// fetchOutputs returns nil where nothing has changed or nothing is there.
func (l *worldLoop) fetchOutputs(k *link, node, before string) (*savedOutputs, int64, error) {
	ctx, cancel := context.WithTimeout(k.ctx, fetchTimeout)
	defer cancel()
	agent, err := k.agent()
	if err != nil {
		return nil, 0, err
	}
	path := filepath.Join(l.Folder, "outputs", fileName(node)+".tar.zst")
	header, err := fetch(ctx, agent, &control.FetchRequest{Kind: control.FileKind_OUTPUTS, Path: l.Job.Outputs.From, UnlessHash: before}, path)
	if err != nil || header.Unchanged || header.Missing {
		return nil, 0, err
	}
	return &savedOutputs{Node: node, Hash: header.Hash, Path: path}, header.Size, nil
}

// fetch copies an archive off a node to path, which is replaced when all of it is there.
func fetch(ctx context.Context, agent control.AgentClient, req *control.FetchRequest, path string) (*control.FileHeader, error) {
	call, err := agent.Fetch(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", req.Kind, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("fetch %s: %w", req.Kind, err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".fetch-*")
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", req.Kind, err)
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	var header *control.FileHeader
	for {
		c, err := call.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("fetch %s: %w", req.Kind, err)
		}
		if c.Header != nil {
			header = c.Header
		}
		if _, err := tmp.Write(c.Data); err != nil {
			return nil, fmt.Errorf("fetch %s: %w", req.Kind, err)
		}
	}
	if header == nil {
		return nil, fmt.Errorf("fetch %s: no header", req.Kind)
	}
	if header.Unchanged || header.Missing {
		return header, nil
	}
	if err := tmp.Close(); err != nil {
		return nil, fmt.Errorf("fetch %s: %w", req.Kind, err)
	}
	return header, os.Rename(tmp.Name(), path)
}

// fileName makes a name of ours safe as a file's.
func fileName(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

func contentHash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))
}
