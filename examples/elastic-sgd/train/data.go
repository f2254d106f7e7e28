package train

import (
	"bytes"
	"compress/gzip"
	_ "embed" // for the data set
	"encoding/csv"
	"fmt"
	"math/rand/v2"
	"strconv"
)

const (
	pixels  = 64 // an 8×8 image
	classes = 10
	depth   = 16 // the largest pixel value

	// testEvery: each fifth image is kept for testing, so both halves hold
	// all writers alike. The file is in the order of its writers.
	testEvery = 5
)

//go:embed data/digits.csv.gz
var digits []byte

type example struct {
	pixel [pixels]float64 // 0..1
	digit int
}

// loadDigits reads the embedded data set and splits it, always in the same way.
func loadDigits() (training, test []example, err error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(digits))
	if err != nil {
		return nil, nil, fmt.Errorf("unzip digits: %w", err)
	}
	lines := csv.NewReader(unzipped)
	lines.FieldsPerRecord = pixels + 1
	lines.ReuseRecord = true
	records, err := lines.ReadAll()
	if err != nil {
		return nil, nil, fmt.Errorf("read digits: %w", err)
	}
	for i, record := range records {
		var e example
		for j, field := range record[:pixels] {
			v, err := strconv.ParseFloat(field, 64)
			if err != nil {
				return nil, nil, fmt.Errorf("read digits: image %d: %w", i, err)
			}
			e.pixel[j] = v / depth
		}
		if e.digit, err = strconv.Atoi(record[pixels]); err != nil || e.digit < 0 || e.digit >= classes {
			return nil, nil, fmt.Errorf("read digits: image %d: label %q", i, record[pixels])
		}
		if i%testEvery == testEvery-1 {
			test = append(test, e)
		} else {
			training = append(training, e)
		}
	}
	return training, test, nil
}

// batches says which examples make up the global batch of each step. It depends
// on the seed and the step alone: a world of any size, resumed at any step, sees
// the same sequence.
type batches struct {
	seed  uint64
	count int // examples
	size  int // of one batch

	epoch int // that order is of
	order []int
}

func (b *batches) at(step int) []int {
	perEpoch := b.count / b.size // the rest of an epoch is left out, another one each time
	if epoch := step / perEpoch; b.order == nil || epoch != b.epoch {
		b.epoch = epoch
		b.order = rand.New(rand.NewPCG(b.seed, uint64(epoch)+1)).Perm(b.count)
	}
	from := step % perEpoch * b.size
	return b.order[from : from+b.size]
}
