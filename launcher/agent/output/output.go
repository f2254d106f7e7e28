// Package output keeps what the processes of a node have written until somebody has fetched it, within bounds: a
// writer never waits for a reader, the oldest bytes are dropped instead, and the reader is told how many.
package output

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	// DefaultLimit is how many bytes of one stream are kept.
	DefaultLimit = 1 << 20
	// chunkSize bounds one chunk; a line longer than that is cut.
	chunkSize = 32 << 10
	// lineWait is how long the start of a line waits for its end.
	lineWait = 100 * time.Millisecond
)

// Kind is which of a process's outputs a stream is.
type Kind int

// The kinds have the numbers of control.LogKind.
const (
	Stdout Kind = iota
	Stderr
	Setup
)

// Key names a stream.
type Key struct {
	Generation uint64
	Rank       uint32
	Kind       Kind
}

// Chunk is a piece of a stream, whole lines where possible.
type Chunk struct {
	Key     Key
	Offset  uint64
	Data    []byte
	Dropped uint64 // bytes before Offset that this reader will not get; Data begins with a line that says so
	Notice  int    // length of that line
	End     bool   // nothing more will come in this stream
}

// Log holds the streams of a node. Use NewLog. Its methods may be called concurrently.
type Log struct {
	limit int

	mu      sync.Mutex
	changed *sync.Cond // on mu
	streams map[Key]*stream
	order   []Key // as they were opened
	dropped int64
	written time.Time // of the newest byte
}

// stream is a run of bytes [start, start+len) in a ring that grows up to the limit.
type stream struct {
	start uint64
	buf   []byte // the ring; as long as it is not full it begins at 0
	head  int    // where the oldest byte is, once it is full
	ended bool
}

// NewLog returns an empty log that keeps limit bytes of each stream; 0 means DefaultLimit.
func NewLog(limit int) *Log {
	if limit <= 0 {
		limit = DefaultLimit
	}
	l := &Log{limit: limit, streams: map[Key]*stream{}}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// Open makes a stream and returns what writes to it. Closing that ends the stream. A stream that is there goes on.
func (l *Log) Open(key Key) *Writer {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.streams[key]
	if s == nil {
		s = &stream{}
		l.streams[key] = s
		l.order = append(l.order, key)
	}
	s.ended = false
	l.changed.Broadcast()
	return &Writer{l: l, s: s}
}

// Writer writes to one stream. It never waits and never fails.
type Writer struct {
	l *Log
	s *stream
}

// Write keeps p, dropping the oldest bytes of the stream where there is no room.
func (w *Writer) Write(p []byte) (int, error) {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	w.l.dropped += int64(w.s.add(p, w.l.limit))
	w.l.written = time.Now()
	w.l.changed.Broadcast()
	return len(p), nil
}

// Close ends the stream.
func (w *Writer) Close() error {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	w.s.ended = true
	w.l.changed.Broadcast()
	return nil
}

// Forget drops the streams of all generations below generation, which setup is not.
func (l *Log) Forget(generation uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.order[:0]
	for _, k := range l.order {
		if k.Kind != Setup && k.Generation < generation {
			delete(l.streams, k)
			continue
		}
		kept = append(kept, k)
	}
	l.order = kept
}

// Dropped is how many bytes were dropped so far, whether or not somebody had fetched them.
func (l *Log) Dropped() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// Written is when the newest byte came; the zero time if none did.
func (l *Log) Written() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.written
}

// Tail is the end of a stream: at most so many lines and bytes, as text: it travels in protobuf strings, which must be
// UTF-8, and neither what a job prints nor a cut between two bytes of one character keeps to that.
func (l *Log) Tail(key Key, lines, size int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.streams[key]
	if s == nil {
		return ""
	}
	end := s.end()
	b := s.read(end-min(uint64(s.len()), uint64(size)), size)
	i := len(b)
	if i > 0 && b[i-1] == '\n' {
		i--
	}
	for ; lines > 0; lines-- {
		if i = bytes.LastIndexByte(b[:i], '\n'); i < 0 {
			return text(b)
		}
	}
	return text(b[i+1:])
}

// text is b as UTF-8, without the rest of a character that b begins in the middle of.
func text(b []byte) string {
	for n := 0; n < utf8.UTFMax-1 && len(b) > 0 && !utf8.RuneStart(b[0]); n++ {
		b = b[1:]
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

// Follow gives send all streams from the given offsets on, then what comes, until ctx ends or send fails; it gives
// that error, never nil. Streams not named begin at 0. send is not called concurrently.
func (l *Log) Follow(ctx context.Context, after map[Key]uint64, send func(Chunk) error) error {
	stop := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changed.Broadcast()
	})
	defer stop()
	f := &follower{l: l, at: map[Key]*cursor{}, after: after}
	for {
		chunks, err := f.wait(ctx)
		if err != nil {
			return err
		}
		for _, c := range chunks {
			if err := send(c); err != nil {
				return err
			}
		}
	}
}

type follower struct {
	l     *Log
	at    map[Key]*cursor
	after map[Key]uint64
}

type cursor struct {
	offset uint64
	held   time.Time // since when the start of a line waits; zero: none does
	ended  bool      // the end was sent
}

// wait gives at least one chunk.
func (f *follower) wait(ctx context.Context) ([]Chunk, error) {
	l := f.l
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("follow output: %w", context.Cause(ctx))
		}
		var chunks []Chunk
		var due time.Time // of the first held line
		now := time.Now()
		for key := range f.at {
			if l.streams[key] == nil {
				delete(f.at, key)
			}
		}
		for _, key := range l.order {
			c := f.at[key]
			if c == nil {
				c = &cursor{offset: f.after[key]}
				f.at[key] = c
			}
			if chunk, ok := c.next(key, l.streams[key], now); ok {
				chunks = append(chunks, chunk)
			} else if !c.held.IsZero() && (due.IsZero() || c.held.Before(due)) {
				due = c.held
			}
		}
		if len(chunks) > 0 {
			return chunks, nil
		}
		var timer *time.Timer
		if !due.IsZero() {
			timer = time.AfterFunc(due.Add(lineWait).Sub(now), func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.changed.Broadcast()
			})
		}
		l.changed.Wait()
		if timer != nil {
			timer.Stop()
		}
	}
}

// next is the next chunk of s, if one is to be sent now.
func (c *cursor) next(key Key, s *stream, now time.Time) (Chunk, bool) {
	chunk := Chunk{Key: key}
	if c.offset > s.end() {
		c.offset = s.end() // positions of another agent
	}
	if c.offset < s.start {
		chunk.Dropped = s.start - c.offset
		chunk.Data = fmt.Appendf(nil, "[launcher: %d bytes of output dropped]\n", chunk.Dropped)
		chunk.Notice = len(chunk.Data)
		c.offset = s.start
	}
	data := s.read(c.offset, chunkSize)
	if cut := bytes.LastIndexByte(data, '\n') + 1; cut > 0 {
		data = data[:cut]
	} else if len(data) > 0 && len(data) < chunkSize && !s.ended {
		if c.held.IsZero() {
			c.held = now
		}
		if now.Sub(c.held) < lineWait {
			data = nil
		}
	}
	if len(data) > 0 {
		c.held = time.Time{}
	}
	chunk.Offset = c.offset
	chunk.Data = append(chunk.Data, data...)
	c.offset += uint64(len(data))
	chunk.End = s.ended && c.offset == s.end()
	if chunk.End == c.ended && len(chunk.Data) == 0 {
		return Chunk{}, false
	}
	c.ended = chunk.End
	return chunk, true
}

func (s *stream) len() int { return len(s.buf) }

func (s *stream) end() uint64 { return s.start + uint64(len(s.buf)) }

// add keeps p and returns how many bytes it dropped.
func (s *stream) add(p []byte, limit int) int {
	dropped := 0
	if over := len(p) - limit; over > 0 { // the front of p itself does not fit
		dropped = len(s.buf) + over
		s.start += uint64(dropped)
		s.buf, s.head = append(s.buf[:0], p[over:]...), 0
		return dropped
	}
	n := min(limit-len(s.buf), len(p))
	if n > 0 {
		s.buf = append(s.buf, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := copy(s.buf[s.head:], p)
		s.head = (s.head + n) % len(s.buf)
		s.start += uint64(n)
		dropped += n
		p = p[n:]
	}
	return dropped
}

// read copies at most size bytes from offset on.
func (s *stream) read(offset uint64, size int) []byte {
	n := min(int(s.end()-offset), size)
	if n <= 0 {
		return nil
	}
	at := (s.head + int(offset-s.start)) % len(s.buf)
	out := append(make([]byte, 0, n), s.buf[at:min(at+n, len(s.buf))]...)
	return append(out, s.buf[:n-len(out)]...)
}
