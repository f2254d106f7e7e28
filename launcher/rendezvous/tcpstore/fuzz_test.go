package tcpstore

import (
	"bytes"
	"context"
	"testing"
	"time"
)

func seed(f *testing.F, add func(request []byte)) {
	for _, v := range vectors {
		add(v.request)
	}
	for _, first := range []string{"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02\x00\x01", "SSH-2.0-x\r\n", "\xce\xf7\x85\x3c", "\x00", ""} {
		add([]byte(first))
	}
	add(bytesOf(byte(8), "/k", byte(8), "/k", "v"))
	add(bytesOf(handshake, opWait, 2, "/a", "/b", opCancelWait, opBarrier, "/b", 2, opQueuePush, "/a", "", opQueuePop, "/a"))
}

// FuzzRequests serves any bytes: no panic, no memory beyond the limit, nothing left of the connection.
func FuzzRequests(f *testing.F) {
	seed(f, func(request []byte) { f.Add(request) })
	f.Fuzz(func(t *testing.T, request []byte) {
		limits := Limits{Memory: 64 << 10, Value: 32 << 10, Key: 1 << 10, Keys: 64}
		s := New(Options{Limits: limits, LegacyWait: time.Microsecond})
		s.ServeConn(context.Background(), &chunkedConn{rest: request}, "n")
		st := s.Store()
		if len(st.waiters)+len(st.barriers)+len(st.watchers) != 0 || s.Conns() != 0 || len(s.peers) != 0 {
			t.Errorf("left: %d waiters, %d barriers, %d watchers, %d connections, %d peers",
				len(st.waiters), len(st.barriers), len(st.watchers), s.Conns(), len(s.peers))
		}
		var want int64
		for key, e := range st.entries {
			want += int64(len(key) + e.size() + entryOverhead)
		}
		for key, q := range st.queues {
			want += int64(len(key) + entryOverhead)
			for _, item := range q.items[q.head:] {
				want += int64(len(item) + itemOverhead)
			}
		}
		if got := st.Memory(); got != want || got > limits.Memory {
			t.Errorf("charged %d bytes, holds %d, limit %d", got, want, limits.Memory)
		}
	})
}

// FuzzSplits serves the same bytes whole and in pieces: the replies are the same wherever the stream is cut. Requests of dialects A and B that
// are told apart by time are left out.
func FuzzSplits(f *testing.F) {
	seed(f, func(request []byte) { f.Add(request, uint16(3), uint16(11)) })
	f.Fuzz(func(t *testing.T, request []byte, first, second uint16) {
		request = append(bytesOf(handshake), request...)
		whole := replies(t, request)
		if split := replies(t, request, int(first), int(second)); !bytes.Equal(whole, split) {
			t.Errorf("cut at %d and %d: got % x, want % x", first, second, split, whole)
		}
	})
}
