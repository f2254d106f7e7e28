package sim

import (
	"encoding/binary"
	"encoding/hex"
	"hash/fnv"
	"math"
	"time"
)

// draw returns 64 bits that depend on nothing but the seed and the names.
func (c *Cloud) draw(names ...string) uint64 {
	h := fnv.New64a()
	var seed [8]byte
	binary.LittleEndian.PutUint64(seed[:], c.opts.Seed)
	h.Write(seed[:]) // a hash.Hash never returns an error
	for _, n := range names {
		h.Write([]byte(n))
		h.Write([]byte{0})
	}
	// FNV's high bits are weak for short names: finish as SplitMix64 does (Steele, Lea, Flood: Fast Splittable
	// Pseudorandom Number Generators, OOPSLA 2014).
	x := h.Sum64()
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	x ^= x >> 31
	return x
}

// uniform draws from [0, 1).
func (c *Cloud) uniform(names ...string) float64 {
	return float64(c.draw(names...)>>11) / (1 << 53)
}

func (c *Cloud) chance(share float64, names ...string) bool {
	return share > 0 && c.uniform(names...) < share
}

func (c *Cloud) normal(names ...string) float64 {
	u := 1 - c.uniform(append(names, "radius")...) // (0, 1]: its logarithm is finite
	v := c.uniform(append(names, "angle")...)
	return math.Sqrt(-2*math.Log(u)) * math.Cos(2*math.Pi*v)
}

// exponential draws a time with the given mean.
func (c *Cloud) exponential(mean time.Duration, names ...string) time.Duration {
	return c.jitter(time.Duration(-math.Log(1-c.uniform(names...))*float64(mean)), names...)
}

// sample draws from a distribution.
func (c *Cloud) sample(d Dist, names ...string) time.Duration {
	t := time.Duration(float64(d.Median) * math.Exp(d.Sigma*c.normal(names...)))
	if d.Max > 0 {
		t = min(t, d.Max)
	}
	return c.jitter(t, names...)
}

// jitter rounds to microseconds, because floating point may differ in the last bit between architectures, and adds up
// to a millisecond in steps of a nanosecond, to keep events apart.
func (c *Cloud) jitter(t time.Duration, names ...string) time.Duration {
	return t.Round(time.Microsecond) + time.Duration(c.draw(append(names, "jitter")...)%uint64(time.Millisecond)) + 1
}

// name makes an identifier, "m-1f0c2a9b77d3".
func (c *Cloud) name(prefix string, names ...string) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], c.draw(append(names, prefix)...))
	return prefix + "-" + hex.EncodeToString(b[:6])
}
