package train

import (
	"math"
	"math/rand/v2"
)

// The network: 64 pixels, 32 rectified units, 10 digits. Its parameters lie in
// one slice, so that all-reduce and checkpoints need not know its shape.
const (
	hidden = 32

	atHidden     = 0
	atHiddenBias = atHidden + hidden*pixels
	atOut        = atHiddenBias + hidden
	atOutBias    = atOut + classes*hidden
	parameters   = atOutBias + classes
)

func newParameters(seed uint64) []float64 {
	random := rand.New(rand.NewPCG(seed, 0))
	p := make([]float64, parameters)
	for i := atHidden; i < atHiddenBias; i++ {
		p[i] = random.NormFloat64() * math.Sqrt(2.0/pixels)
	}
	for i := atOut; i < atOutBias; i++ {
		p[i] = random.NormFloat64() * math.Sqrt(2.0/hidden)
	}
	return p
}

// forward computes the activations of the hidden units and the probability of
// each digit.
func forward(p []float64, e *example) (unit [hidden]float64, chance [classes]float64) {
	for h := range unit {
		sum := p[atHiddenBias+h]
		for i, w := range p[atHidden+h*pixels : atHidden+(h+1)*pixels] {
			sum += w * e.pixel[i]
		}
		unit[h] = max(sum, 0)
	}
	largest := math.Inf(-1)
	for c := range chance {
		sum := p[atOutBias+c]
		for h, w := range p[atOut+c*hidden : atOut+(c+1)*hidden] {
			sum += w * unit[h]
		}
		chance[c] = sum
		largest = max(largest, sum)
	}
	total := 0.0
	for c := range chance {
		chance[c] = math.Exp(chance[c] - largest) // shifted: no overflow
		total += chance[c]
	}
	for c := range chance {
		chance[c] /= total
	}
	return unit, chance
}

func loss(chance [classes]float64, digit int) float64 {
	return -math.Log(max(chance[digit], 1e-300))
}

// addGradient adds the gradient of one example's loss to grad and returns the
// loss.
func addGradient(grad, p []float64, e *example) float64 {
	unit, chance := forward(p, e)
	var back [hidden]float64
	for c := range chance {
		delta := chance[c]
		if c == e.digit {
			delta--
		}
		row := atOut + c*hidden
		for h := range unit {
			grad[row+h] += delta * unit[h]
			back[h] += delta * p[row+h]
		}
		grad[atOutBias+c] += delta
	}
	for h, delta := range back {
		if unit[h] == 0 {
			continue // the rectifier lets nothing through
		}
		row := grad[atHidden+h*pixels : atHidden+(h+1)*pixels]
		for i := range row {
			row[i] += delta * e.pixel[i]
		}
		grad[atHiddenBias+h] += delta
	}
	return loss(chance, e.digit)
}

// evaluate returns the share of examples recognised and their mean loss.
func evaluate(p []float64, examples []example) (accuracy, meanLoss float64) {
	right := 0
	for i := range examples {
		_, chance := forward(p, &examples[i])
		meanLoss += loss(chance, examples[i].digit)
		best := 0
		for c := range chance {
			if chance[c] > chance[best] {
				best = c
			}
		}
		if best == examples[i].digit {
			right++
		}
	}
	n := float64(len(examples))
	return float64(right) / n, meanLoss / n
}
