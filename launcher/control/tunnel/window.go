package tunnel

// keepSize is how much memory an empty window keeps for its next bytes: requests to a store are small, and there are
// thousands of streams.
const keepSize = 32 << 10

// window is a run of bytes [start, end) of one direction of a stream. The zero value is an empty one at 0.
type window struct {
	start uint64
	fin   bool // the direction ends after the bytes; counts as one
	base  []byte
	head  int // base[head:] are the bytes
}

// len is how many bytes it holds, the fin not counted.
func (w *window) len() int { return len(w.base) - w.head }

// end is the offset after the last byte, the fin counted.
func (w *window) end() uint64 {
	end := w.start + uint64(w.len())
	if w.fin {
		end++
	}
	return end
}

// append adds a copy of p. Memory grows with use and is reused.
func (w *window) append(p []byte) {
	if w.head > 0 && len(w.base)+len(p) > cap(w.base) {
		n := copy(w.base, w.base[w.head:])
		w.base, w.head = w.base[:n], 0
	}
	w.base = append(w.base, p...)
}

// bytes are those from offset on.
func (w *window) bytes(offset uint64) []byte {
	return w.base[w.head+int(offset-w.start):]
}

// drop forgets the bytes below offset, which is at most end.
func (w *window) drop(offset uint64) {
	if offset <= w.start {
		return
	}
	n := int(offset - w.start)
	if n > w.len() { // past the fin
		n = w.len()
		w.fin = false
	}
	w.head += n
	w.start = offset
	if w.head == len(w.base) {
		w.base, w.head = w.base[:0], 0
		if cap(w.base) > keepSize {
			w.base = nil
		}
	}
}

// release gives the memory back.
func (w *window) release() { w.base, w.head = nil, 0 }
