package train

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"path/filepath"
	"time"
)

const (
	batchSize = 128
	perShard  = batchSize / shards
	rate      = 0.05
	momentum  = 0.9
)

// training is one rank's way from the newest checkpoint to the last step.
type training struct {
	options
	place
	leave  <-chan struct{} // closed: finish the step, checkpoint, go
	env    func(string) string
	stdout io.Writer

	world    *world
	reporter *reporter
	training []example
	test     []example
	batches  *batches
	state    *state
	saved    int // step of the newest checkpoint on disk; 0 needs none
}

// recipe is a fingerprint of all that the weights after a number of steps
// depend on; a checkpoint of another recipe is no start for this training.
func recipe(seed uint64) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, seed, batchSize, shards, rate, momentum, pixels, hidden, classes, testEvery)
	return h.Sum64()
}

func (t *training) run(ctx context.Context) error {
	var err error
	if t.training, t.test, err = loadDigits(); err != nil {
		return err
	}
	t.batches = &batches{seed: t.seed, count: len(t.training), size: batchSize}
	if t.world, err = t.form(ctx); err != nil {
		return blame(ctx, err)
	}
	defer t.world.close()
	// Closing, not a deadline, ends what waits on a connection: the next
	// operation would set a deadline of its own.
	defer context.AfterFunc(ctx, t.world.close)()
	if t.rank == 0 {
		t.reporter = startReporter(ctx, t.env("LAUNCHER_API"), t.env("LAUNCHER_API_TOKEN"))
		defer t.reporter.stop()
	}
	if err := t.start(); err != nil {
		return blame(ctx, err)
	}
	left, err := t.loop(ctx)
	if err != nil {
		// The peers are lost or we must go; the steps done are not.
		return errors.Join(blame(ctx, err), t.save())
	}
	if err := t.save(); err != nil {
		return err
	}
	if !left {
		if err := t.finish(); err != nil {
			return err
		}
	}
	if err := t.world.settle(); err != nil {
		return blame(ctx, err)
	}
	if left {
		return fmt.Errorf("%w at step %d of %d, as told", errLeft, t.state.step, t.steps)
	}
	return nil
}

// blame names the order to stop as the cause of what it broke.
func blame(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", errLeft, context.Cause(ctx))
	}
	return err
}

// form waits for all ranks of the generation. There is nothing to save yet, so
// any signal ends it.
func (t *training) form(ctx context.Context) (*world, error) {
	forming, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	told := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-t.leave:
			cancel()
		case <-told:
		}
	}()
	w, err := form(forming, t.place, t.timeout)
	close(told)
	<-watched
	select {
	case <-t.leave:
		if err != nil {
			return nil, fmt.Errorf("%w before the first step, as told", errLeft)
		}
	default:
	}
	if err != nil {
		return nil, fmt.Errorf("form generation %s: %w", t.generation, err)
	}
	return w, nil
}

// start agrees on a state: rank 0's newest checkpoint, else first weights.
func (t *training) start() error {
	fingerprint := recipe(t.seed)
	var encoded []byte
	if t.rank == 0 {
		skip := func(path string, why error) { t.print("skipped checkpoint %s: %v", path, why) }
		// The launcher's folder holds the newest checkpoint of the run, whichever
		// node wrote it; our own may hold one it had no time to fetch.
		newest, path := newestCheckpoint([]string{t.env("LAUNCHER_CHECKPOINT"), t.checkpoints}, fingerprint, skip)
		if newest == nil {
			newest = newState(t.seed)
			t.print("started at step 0")
		} else {
			t.print("resumed from step %d (%s)", newest.step, path)
			t.saved = newest.step
		}
		t.state = newest
		encoded = newest.encode(fingerprint)
	}
	encoded, err := t.world.share(encoded)
	if err != nil {
		return fmt.Errorf("share the start: %w", err)
	}
	if t.rank != 0 {
		if t.state, err = decode(encoded, fingerprint); err != nil {
			return fmt.Errorf("rank 0's start: %w", err)
		}
	}
	return nil
}

// loop trains up to the last step, or until the ranks agree to leave.
func (t *training) loop(ctx context.Context) (left bool, err error) {
	for t.state.step < t.steps && !left {
		begun := time.Now()
		t.compute()
		t.pace(ctx, begun)
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		var sum []float64
		sum, left, err = t.world.reduce(t.state.step, t.told())
		if err != nil {
			return false, fmt.Errorf("step %d: %w", t.state.step, err)
		}
		t.apply(sum)
		if t.rank != 0 {
			continue
		}
		if t.state.step%t.logEvery == 0 {
			meanLoss := sum[parameters] / batchSize
			accuracy, _ := evaluate(t.state.weights, t.test)
			t.print("step %d/%d loss %.4f acc %.3f world %d", t.state.step, t.steps, meanLoss, accuracy, t.size)
			t.reporter.report(report{Step: t.state.step, Numbers: map[string]float64{"loss": meanLoss, "accuracy": accuracy}})
		}
		if t.state.step%t.checkpointEvery == 0 {
			if err := t.save(); err != nil {
				return false, err
			}
		}
	}
	return left && t.state.step < t.steps, nil
}

// compute fills this rank's shards of the step's batch.
func (t *training) compute() {
	batch := t.batches.at(t.state.step)
	first, own := t.world.mine()
	for i, shard := range own {
		clear(shard)
		from := (first + i) * perShard
		for _, index := range batch[from : from+perShard] {
			shard[parameters] += addGradient(shard[:parameters], t.state.weights, &t.training[index])
		}
	}
}

// apply makes the step: the same on every rank, so the weights stay the same.
func (t *training) apply(sum []float64) {
	for i := range t.state.weights {
		t.state.velocity[i] = momentum*t.state.velocity[i] + sum[i]/batchSize
		t.state.weights[i] -= rate * t.state.velocity[i]
	}
	t.state.step++
}

// pace lets a step last its time, unless told to stop.
func (t *training) pace(ctx context.Context, begun time.Time) {
	rest := t.stepTime - time.Since(begun)
	if rest <= 0 {
		return
	}
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.leave:
	case <-ctx.Done():
	}
}

func (t *training) told() bool {
	select {
	case <-t.leave:
		return true
	default:
		return false
	}
}

// save puts the state on disk, if this is rank 0 and it is not there already.
func (t *training) save() error {
	if t.rank != 0 || t.saved == t.state.step {
		return nil
	}
	path, err := saveCheckpoint(t.checkpoints, t.state, recipe(t.seed))
	if err != nil {
		return err
	}
	t.saved = t.state.step
	t.print("checkpoint step %d", t.state.step)
	t.reporter.report(report{Step: t.state.step, Checkpoint: path})
	return nil
}

// Result is out/result.json.
type Result struct {
	Accuracy float64 `json:"accuracy"` // share of the test images recognised
	Loss     float64 `json:"loss"`     // mean over the test images
	Steps    int     `json:"steps"`
	Weights  string  `json:"weights"` // SHA-256: equal for any history of preemptions
}

func (t *training) finish() error {
	if t.rank != 0 {
		return nil
	}
	r := Result{Steps: t.state.step}
	r.Accuracy, r.Loss = evaluate(t.state.weights, t.test)
	if math.IsNaN(r.Loss) {
		return errors.New("training diverged")
	}
	r.Weights = fmt.Sprintf("%x", sha256.Sum256(appendFloats(nil, t.state.weights)))
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	if err := writeFile(filepath.Join(t.out, "result.json"), append(content, '\n')); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	t.print("accuracy %.4f loss %.4f after %d steps", r.Accuracy, r.Loss, r.Steps)
	return nil
}

func (t *training) print(format string, args ...any) {
	fmt.Fprintf(t.stdout, format+"\n", args...)
}
