package tcpstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestStrangersAreClosed(t *testing.T) {
	for name, test := range map[string]struct {
		first []byte
		want  error
	}{
		"http":             {[]byte("GET / HTTP/1.1\r\n\r\n"), ErrProtocol},
		"tls":              {[]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), ErrProtocol},
		"ssh":              {[]byte("SSH-2.0-x\r\n"), ErrProtocol},
		"nightly":          {bytesOf(magic), ErrProtocol},
		"unknown op":       {bytesOf(handshake, byte(19)), ErrProtocol},
		"wrong magic":      {bytesOf(handshake, opValidate, uint32(1)), ErrProtocol},
		"huge key":         {bytesOf(handshake, opGet, 1<<40), ErrLimit},
		"negative length":  {bytesOf(handshake, opGet, -1), ErrLimit},
		"huge value":       {bytesOf(handshake, opSet, "/k", 64<<20+1), ErrLimit},
		"huge list":        {bytesOf(handshake, opWait, 131073), ErrLimit},
		"huge SET of AB":   {bytesOf(byte(0), 1<<40), ErrLimit},
		"B's opcode in A":  {bytesOf(byte(12)), ErrProtocol},
		"cut short":        {bytesOf(handshake, opSet, "/k", 10)[:20], io.ErrUnexpectedEOF},
		"cut in handshake": {bytesOf(hexBytes("00 ce f7")), io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			err := New(Options{}).ServeConn(context.Background(), &chunkedConn{rest: test.first}, "n")
			if !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

// TestRepliesBeforeAMistake: what was right before it is answered, but a peer that does not take the answer is not waited for long.
func TestRepliesBeforeAMistake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		reading, deaf := connect(t, s), connect(t, s)
		reading.send(handshake, opAdd, "/n", 1, byte(99))
		reading.expect(1)
		if err := reading.expectClosed(); !errors.Is(err, ErrProtocol) {
			t.Errorf("reading: %v, want ErrProtocol", err)
		}
		deaf.send(handshake, opAdd, "/n", 1, byte(99))
		start := time.Now()
		if err := <-deaf.done; !errors.Is(err, ErrProtocol) {
			t.Errorf("deaf: %v, want ErrProtocol", err)
		}
		if waited := time.Since(start); waited != time.Second {
			t.Errorf("waited %v, want 1 s", waited)
		}
	})
}

// TestAnnouncedLengthIsNotAllocated: sixty-four announced megabytes that do not come cost next to nothing.
func TestAnnouncedLengthIsNotAllocated(t *testing.T) {
	request := bytesOf(handshake, opSet, "/k", 64<<20)
	conn := &chunkedConn{rest: request}
	server := New(Options{})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	server.ServeConn(context.Background(), conn, "n")
	runtime.ReadMemStats(&after)
	got := after.TotalAlloc - before.TotalAlloc
	if got > 32<<10 {
		t.Errorf("allocated %d bytes", got)
	}
}

func TestMemoryLimit(t *testing.T) {
	limits := Limits{Memory: 100 << 10, Value: 80 << 10, Keys: 2000}
	big := strings.Repeat("x", 60<<10)
	for name, test := range map[string]struct {
		request []byte
		fits    bool
	}{
		"one value":           {bytesOf(opSet, "/a", big), true},
		"replaced value":      {bytesOf(opSet, "/a", "", opSet, "/a", big), true},
		"deleted value":       {bytesOf(opSet, "/a", big, opDelete, "/a", opSet, "/b", big), true},
		"popped value":        {bytesOf(opQueuePush, "/a", big, opQueuePop, "/a", opQueuePush, "/b", big), true},
		"two values":          {bytesOf(opSet, "/a", big, opSet, "/b", big), false},
		"two queued":          {bytesOf(opQueuePush, "/a", big, opQueuePush, "/a", big), false},
		"appended":            {bytesOf(opSet, "/a", big, opSet, "/b", big[:30<<10], opAppend, "/a", big[:20<<10]), false},
		"appended past value": {bytesOf(opSet, "/a", big, opAppend, "/a", big[:21<<10]), false},
		"multi_set in flight": {bytesOf(opMultiSet, 2, "/a", big, "/b", big), false},
		"list in flight":      {bytesOf(opCheck, 2, big, big), false},
		"parked wait":         {bytesOf(opSet, "/a", big, opWait, 500, bytesOfKeys(500)), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(Options{Limits: limits})
			request := append(bytesOf(handshake), test.request...)
			err := s.ServeConn(context.Background(), &chunkedConn{rest: request}, "n")
			if test.fits != (err == nil) || err != nil && !errors.Is(err, ErrLimit) {
				t.Errorf("fits %v, got %v", test.fits, err)
			}
			if got := s.Store().Memory(); got < 0 || got > limits.Memory {
				t.Errorf("%d bytes used", got)
			}
			for _, key := range s.Store().Keys() {
				s.Store().Delete(key)
			}
			for range len(s.Store().queues) {
				s.ServeConn(context.Background(), &chunkedConn{rest: bytesOf(handshake, opQueuePop, "/a", opQueuePop, "/b")}, "n")
			}
			if got := s.Store().Memory(); got != 0 {
				t.Errorf("%d bytes used by an empty store", got)
			}
		})
	}
}

func bytesOfKeys(n int) hexBytes {
	var b []byte
	for i := range n {
		b = append(b, bytesOf(fmt.Sprintf("/missing%d", i))...)
	}
	return hexBytes(fmt.Sprintf("%x", b))
}

func TestConnLimit(t *testing.T) {
	s := New(Options{Conns: 1})
	p := connect(t, s)
	p.send(handshake, opNumKeys)
	p.expect(0)
	if err := connect(t, s).expectClosed(); !errors.Is(err, ErrBusy) {
		t.Errorf("second connection: %v, want ErrBusy", err)
	}
	if diff := cmp.Diff(1, s.Conns()); diff != "" {
		t.Error(diff)
	}
}

// TestSlowWatcherIsClosed: pushes never block the writer; a watcher that does not read them is closed.
func TestSlowWatcherIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{Legacy: DialectA, Queue: 100 << 10})
		watcher, writer := connect(t, s), connect(t, s)
		watcher.send(byte(7), "/k")
		watcher.expect(watchRegistered)
		start := time.Now()
		for range 10 {
			writer.send(byte(0), "/k", strings.Repeat("v", 50<<10))
		}
		writer.send(byte(6))
		writer.expect(1)
		if waited := time.Since(start); waited > 0 {
			t.Errorf("the writer was held up for %v", waited)
		}
		if err := <-watcher.done; !errors.Is(err, errSlowPeer) {
			t.Errorf("watcher: %v, want errSlowPeer", err)
		}
	})
}

// TestStalledReaderIsClosed: a peer that asks for much and reads nothing is dropped after WriteStall, one that is merely idle never.
func TestStalledReaderIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		idle, stalled := connect(t, s), connect(t, s)
		s.Store().Set("/k", make([]byte, shareFrom))
		stalled.send(handshake, opGet, "/k")
		start := time.Now()
		if err := <-stalled.done; !errors.Is(err, errSlowPeer) {
			t.Errorf("stalled: %v, want errSlowPeer", err)
		}
		if waited := time.Since(start); waited != time.Minute {
			t.Errorf("closed after %v, want a minute", waited)
		}
		time.Sleep(1000 * time.Hour)
		idle.send(byte(6))
		idle.expect(1)
	})
}
