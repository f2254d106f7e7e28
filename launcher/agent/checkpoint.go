package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/control/archive"
)

// knownCheckpoints is how many checkpoints a node remembers to have.
const knownCheckpoints = 16

// watchCheckpoints begins to report what is renamed into the folder. Called for each generation; a folder that is
// watched stays watched, so nothing is missed between two.
func (a *Agent) watchCheckpoints(path string) error {
	if path == "" {
		return nil
	}
	dir := a.inWorkdir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make checkpoint folder: %w", err)
	}
	a.mu.Lock()
	watched := a.watched == dir
	a.watched = dir
	a.mu.Unlock()
	if watched {
		return nil
	}
	ready := make(chan struct{})
	var once sync.Once
	began := func() { once.Do(func() { close(ready) }) }
	a.spawn(func(ctx context.Context) {
		defer func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.watched == dir {
				a.watched = "" // the folder went away: the next generation makes and watches it again
			}
		}()
		defer began()
		err := a.o.WatchFolder(ctx, dir, began, func(name string) {
			a.spawn(func(ctx context.Context) { a.arrived(ctx, dir, name, 0) })
		})
		if err != nil {
			a.log.Error("watch checkpoints", "error", err)
		}
	})
	select {
	case <-ready:
	case <-a.over:
	}
	return nil
}

// arrived reports a checkpoint, unless we put it there ourselves.
func (a *Agent) arrived(ctx context.Context, dir, name string, step int64) {
	if strings.HasPrefix(name, ".") {
		return // ours or somebody's half-written one
	}
	if !utf8.ValidString(name) {
		a.log.Warn("look at checkpoint: its name is no UTF-8, and cannot be reported", "name", name)
		return
	}
	hash, size, err := archive.Hash(ctx, archive.Source{Root: dir, Name: name})
	if err != nil {
		a.log.Warn("look at checkpoint", "error", err) // rotated away by the job meanwhile
		return
	}
	a.mu.Lock()
	generation := a.newest
	if slices.ContainsFunc(a.checkpoints, func(c *control.Checkpoint) bool {
		return c.Name == name && c.Hash == hash
	}) {
		a.mu.Unlock()
		return
	}
	c := &control.Checkpoint{Name: name, Size: size, Hash: hash, Generation: generation, Step: step}
	a.remember(c)
	a.mu.Unlock()
	a.log.Info("checkpoint", "name", name, "size", size)
	a.reports.add(&control.Report{Body: &control.Report_Checkpoint{Checkpoint: c}})
}

// remember counts a checkpoint among those this node has. Callers hold mu.
func (a *Agent) remember(c *control.Checkpoint) {
	a.checkpoints = slices.DeleteFunc(a.checkpoints, func(old *control.Checkpoint) bool { return old.Name == c.Name })
	a.checkpoints = append(a.checkpoints, c)
	if n := len(a.checkpoints); n > knownCheckpoints {
		a.checkpoints = slices.Clone(a.checkpoints[n-knownCheckpoints:])
	}
}

// announced is a path that the job has said is a checkpoint, wherever it lies.
func (a *Agent) announced(ctx context.Context, path string, step int64) {
	path = a.inWorkdir(path)
	a.arrived(ctx, filepath.Dir(path), filepath.Base(path), step)
}
