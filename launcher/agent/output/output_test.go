package output

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

var errEnough = errors.New("enough")

// follow collects until the stream of key ends.
func follow(l *Log, key Key, after uint64) (data []byte, chunks []Chunk, err error) {
	err = l.Follow(context.Background(), map[Key]uint64{key: after}, func(c Chunk) error {
		if c.Key != key {
			return nil
		}
		chunks = append(chunks, c)
		data = append(data, c.Data[c.Notice:]...)
		if c.End {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return data, chunks, err
}

// TestRing: whatever is written in whatever pieces, a reader gets an unbroken end of it, is told how much is missing
// before, and the offsets fit.
func TestRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 300).Draw(t, "limit")
		l := NewLog(limit)
		w := l.Open(Key{Rank: 1})
		var all []byte
		for i, n := range rapid.SliceOf(rapid.IntRange(0, 400)).Draw(t, "pieces") {
			p := bytes.Repeat([]byte{byte('a' + i%26)}, n)
			if n > 3 {
				p[n/2] = '\n'
			}
			w.Write(p)
			all = append(all, p...)
		}
		w.Close()
		after := rapid.Uint64Range(0, uint64(len(all))).Draw(t, "after")
		got, chunks, err := follow(l, Key{Rank: 1}, after)
		if err != nil {
			t.Fatal(err)
		}
		start := max(int(after), len(all)-limit)
		if !bytes.Equal(got, all[start:]) {
			t.Fatalf("got %q, want %q", got, all[start:])
		}
		if chunks[0].Dropped != uint64(start)-after || chunks[0].Offset != uint64(start) {
			t.Fatalf("dropped %d at %d, want %d at %d", chunks[0].Dropped, chunks[0].Offset, uint64(start)-after, start)
		}
		if want := int64(max(0, len(all)-limit)); l.Dropped() != want {
			t.Fatalf("dropped %d in all, want %d", l.Dropped(), want)
		}
		if tail := l.Tail(Key{Rank: 1}, 1000, 50); tail != text(all[max(start, len(all)-50, len(all)-limit):]) && after == 0 {
			t.Fatalf("tail %q", tail)
		}
	})
}

// TestDropsAreShown: a reader that lags sees how much it has missed, as a line.
func TestDropsAreShown(t *testing.T) {
	l := NewLog(10)
	w := l.Open(Key{})
	w.Write([]byte("0123456789abcde\n"))
	w.Close()
	_, chunks, err := follow(l, Key{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(chunks[0].Data), "[launcher: 6 bytes of output dropped]\n6789abcde\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestLines: a line is held until it is whole, but not for ever.
func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLog(0)
		w := l.Open(Key{})
		began := time.Now()
		got := make(chan string, 10)
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go l.Follow(ctx, nil, func(c Chunk) error {
			got <- fmt.Sprintf("%v %q", time.Since(began), c.Data)
			return nil
		})
		w.Write([]byte("one\ntw"))
		time.Sleep(50 * time.Millisecond)
		w.Write([]byte("o\nthree"))
		time.Sleep(time.Second)
		w.Write([]byte("!\n"))
		synctest.Wait()
		close(got)
		var all []string
		for s := range got {
			all = append(all, s)
		}
		want := `0s "one\n" 50ms "two\n" 150ms "three" 1.05s "!\n"`
		if strings.Join(all, " ") != want {
			t.Errorf("got  %s\nwant %s", strings.Join(all, " "), want)
		}
	})
}

// TestPositionBeyond: a position that cannot be does not silence the stream.
func TestPositionBeyond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLog(0)
		w := l.Open(Key{})
		w.Write([]byte("one\n"))
		ctx, cancel := context.WithCancel(t.Context())
		var got []byte
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.Follow(ctx, map[Key]uint64{{}: 100}, func(c Chunk) error {
				got = append(got, c.Data...)
				return nil
			})
		}()
		synctest.Wait()
		w.Write([]byte("two\n"))
		synctest.Wait()
		cancel()
		<-done
		if string(got) != "two\n" {
			t.Errorf("got %q, want two", got)
		}
	})
}

func TestForget(t *testing.T) {
	l := NewLog(0)
	for g := range uint64(3) {
		l.Open(Key{Generation: g}).Write([]byte("x"))
	}
	l.Open(Key{Kind: Setup}).Write([]byte("setup"))
	l.Forget(2)
	if got := len(l.streams); got != 2 {
		t.Errorf("%d streams left, want 2", got)
	}
	if l.Tail(Key{Kind: Setup}, 10, 10) != "setup" {
		t.Error("the output of setup is gone")
	}
}

// TestTailIsText: a rank's last lines go into a protobuf string; one byte that is no UTF-8 would break the report of its
// exit, and with it the node's connection.
func TestTailIsText(t *testing.T) {
	for _, test := range []struct {
		name, written string
		lines, size   int
		want          string
	}{
		{"bytes that are no text", "a\xff\xfeb\nc\x80", 5, 100, "a\uFFFDb\nc\uFFFD"},
		{"a cut inside a character", "█████", 5, 8, "██"},
		{"a cut between characters", "█████", 5, 9, "███"},
		{"by lines", "é\n\xe2\x96\n\xc3", 1, 100, "\uFFFD"},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := NewLog(0)
			l.Open(Key{Rank: 1}).Write([]byte(test.written))
			if got := l.Tail(Key{Rank: 1}, test.lines, test.size); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
