package train

import (
	"math"
	"slices"
	"testing"
)

func TestDigits(t *testing.T) {
	training, test, err := loadDigits()
	if err != nil {
		t.Fatal(err)
	}
	if len(training) != 1438 || len(test) != 359 {
		t.Errorf("got %d and %d images, want 1438 and 359", len(training), len(test))
	}
	if first := training[0]; first.digit != 0 || first.pixel[2] != 5.0/16 {
		t.Errorf("got a first image %v of digit %d", first.pixel, first.digit)
	}
}

func TestGradientIsTheSlopeOfTheLoss(t *testing.T) {
	training, _, err := loadDigits()
	if err != nil {
		t.Fatal(err)
	}
	p := newParameters(5)
	e := &training[17]
	grad := make([]float64, parameters)
	addGradient(grad, p, e)
	for i := 0; i < parameters; i += 7 {
		const h = 1e-6
		at := func(shift float64) float64 {
			moved := slices.Clone(p)
			moved[i] += shift
			_, chance := forward(moved, e)
			return loss(chance, e.digit)
		}
		if slope := (at(h) - at(-h)) / (2 * h); math.Abs(slope-grad[i]) > 1e-6*(1+math.Abs(slope)) {
			t.Errorf("parameter %d: got %g, want %g", i, grad[i], slope)
		}
	}
}

func TestBatches(t *testing.T) {
	straight := &batches{seed: 3, count: 1438, size: batchSize}
	const steps, perEpoch = 40, 11
	var all [][]int
	for step := range steps {
		all = append(all, slices.Clone(straight.at(step)))
	}
	resumed := &batches{seed: 3, count: 1438, size: batchSize}
	for _, step := range []int{39, 11, 0, 25} {
		if !slices.Equal(resumed.at(step), all[step]) {
			t.Errorf("step %d: another batch after a resume", step)
		}
	}
	seen := map[int]bool{}
	for _, batch := range all[:perEpoch] {
		for _, i := range batch {
			if seen[i] {
				t.Errorf("example %d twice in an epoch", i)
			}
			seen[i] = true
		}
	}
	if slices.Equal(all[0], all[perEpoch]) {
		t.Error("the second epoch is in the order of the first")
	}
}
