package tcpstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestWaitParksUntilAllKeysHaveBeenSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		waiter, setter := connect(t, s), connect(t, s)
		waiter.send(handshake, opWait, 3, "/a", "/b", "/a")
		waiter.expectSilence()
		setter.send(handshake, opSet, "/a", "1", opDelete, "/a")
		setter.expect(1)
		waiter.expectSilence()
		setter.send(opAdd, "/b", 7)
		waiter.expect(replyStopWaiting)
		setter.expect(7)
		if got := s.Store().Memory(); got != int64(len("/b"))+counterSize+entryOverhead {
			t.Errorf("memory after the wait: %d", got)
		}
	})
}

func TestEveryWriteWakes(t *testing.T) {
	for name, write := range map[string][]byte{
		"set":         bytesOf(opSet, "/k", "v"),
		"add":         bytesOf(opAdd, "/k", 1),
		"compare_set": bytesOf(opCompareSet, "/k", "", "v"),
		"append":      bytesOf(opAppend, "/k", "v"),
		"multi_set":   bytesOf(opMultiSet, 2, "/j", "", "/k", "v"),
		"queue_push":  bytesOf(opQueuePush, "/k", "v"),
		"barrier":     bytesOf(opBarrier, "/k", 2),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(Options{})
				waiter, writer := connect(t, s), connect(t, s)
				waiter.send(handshake, opWait, 1, "/k")
				waiter.expectSilence()
				writer.send(handshake)
				writer.sendBytes(write)
				waiter.expect(replyStopWaiting)
				waiter.expectSilence()
			})
		})
	}
}

func TestCancelWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		p := connect(t, s)
		p.send(handshake, opWait, 1, "/k")
		p.expectSilence()
		p.send(opCancelWait)
		p.expect(replyWaitCanceled)
		if err := s.Store().Set("/k", nil); err != nil {
			t.Fatal(err)
		}
		p.expectSilence() // the wait is gone
		p.send(opCancelWait)
		p.expect(replyWaitCanceled) // it always answers
		p.expectSilence()
	})
}

// TestCancelAfterWake: a wake-up that overtakes the cancel is answered first, then the cancel, once each.
func TestCancelAfterWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		p := connect(t, s)
		p.send(handshake, opWait, 1, "/k")
		synctest.Wait()
		if err := s.Store().Set("/k", nil); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the answer is being written; nobody has read it
		p.send(opCancelWait)
		p.expect(replyStopWaiting, replyWaitCanceled)
		p.expectSilence()
	})
}

// TestNewRequestDropsWait: a client of dialect A whose wait timed out says nothing, and must not get a late answer.
func TestNewRequestDropsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		p := connect(t, s)
		p.send(byte(5), 1, "/k") // WAIT
		p.expectSilence()
		p.send(byte(6)) // GETNUMKEYS
		p.expect(0)
		if err := s.Store().Set("/k", nil); err != nil {
			t.Fatal(err)
		}
		p.expectSilence()
		if got := len(s.Store().waiters); got != 0 {
			t.Errorf("%d keys still waited for", got)
		}
	})
}

// TestOpcodeDropsWait: the wait goes with the first byte of the next request, not with its last.
func TestOpcodeDropsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		p := connect(t, s)
		p.send(byte(5), 1, "/k")
		synctest.Wait()
		p.send(byte(3)) // ADD, the rest is late
		synctest.Wait()
		if err := s.Store().Set("/k", nil); err != nil {
			t.Fatal(err)
		}
		p.expectSilence()
		p.send("/n", 5)
		p.expect(5)
	})
}

func TestHangUpDropsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		p, q := connect(t, s), connect(t, s)
		p.send(handshake, opWait, 2, "/k", "/l")
		q.send(handshake, opBarrier, "/b", 2)
		synctest.Wait()
		p.conn.Close()
		q.conn.Close()
		for _, c := range []*peerConn{p, q} {
			if err := <-c.done; err != nil {
				t.Errorf("ServeConn: %v", err)
			}
		}
		st := s.Store()
		if len(st.waiters)+len(st.barriers) != 0 || st.Memory() != int64(len("/b"))+counterSize+entryOverhead {
			t.Errorf("left: %d waiters, %d barriers, %d bytes", len(st.waiters), len(st.barriers), st.Memory())
		}
	})
}

func TestCompareSet(t *testing.T) {
	for _, test := range []struct{ name, stored, expected, desired, reply, after string }{
		{"absent, empty expected", "", "", "new", "new", "new"},
		{"absent, other expected", "", "exp", "new", "exp", ""},
		{"equal", "old", "old", "new", "new", "new"},
		{"different", "old", "exp", "new", "old", "old"},
		{"present, empty expected", "old", "", "new", "old", "old"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := New(Options{})
			if test.stored != "" {
				s.Store().Set("/k", []byte(test.stored))
			}
			p := connect(t, s)
			p.send(handshake, opCompareSet, "/k", test.expected, test.desired)
			p.expect(test.reply)
			if got, _ := s.Store().Get("/k"); string(got) != test.after {
				t.Errorf("stored %q, want %q", got, test.after)
			}
		})
	}
}

// TestCompareSetCounter: a counter is its decimal digits to everybody else.
func TestCompareSetCounter(t *testing.T) {
	p := connect(t, New(Options{}))
	p.send(handshake, opAdd, "/n", 12, opGet, "/n", opCompareSet, "/n", "11", "x", opCompareSet, "/n", "12", " -40z", opAdd, "/n", -2, opAppend, "/n", "7", opAdd, "/n", 0, opMultiGet, 1, "/n")
	p.expect(12, "12", "12", " -40z", -42, -427, "-427")
}

func TestAddToNonNumberCloses(t *testing.T) {
	for _, o := range []op{opAdd, opBarrier} {
		p := connect(t, New(Options{}))
		p.send(handshake, opSet, "/k", "text", o, "/k", 1)
		if err := p.expectClosed(); !errors.Is(err, ErrNotNumber) {
			t.Errorf("%d: %v, want ErrNotNumber", o, err)
		}
	}
}

// TestLargeExpectedIsNotOverwritten: the reply of a COMPARE_SET on an absent key is the request's own bytes, which the next request must not change.
func TestLargeExpectedIsNotOverwritten(t *testing.T) {
	expected := strings.Repeat("e", shareFrom+1)
	request := bytesOf(handshake, opCompareSet, "/k", expected, "", opCompareSet, "/k", "ffff", "")
	if got, want := replies(t, request), bytesOf(expected, "ffff"); !bytes.Equal(got, want) {
		t.Errorf("got %d bytes starting %q", len(got), got[:20])
	}
}

// TestLargeValues crosses every size that is treated differently.
func TestLargeValues(t *testing.T) {
	for _, size := range []int{0, 1, readBuffer, freeBytes, freeBytes + 1, shareFrom - 1, shareFrom, highWater, 3 << 20} {
		value := strings.Repeat("0123456789abcdef", size/16+1)[:size]
		request := bytesOf(handshake, opSet, "/k", value, opGet, "/k", opMultiGet, 2, "/k", "/k", opAppend, "/k", "+", opGet, "/k")
		if got, want := replies(t, request), bytesOf(value, value, value, value+"+"); !bytes.Equal(got, want) {
			t.Errorf("size %d: replies differ", size)
		}
	}
}

// TestAppendDoesNotChangeWhatWasRead: a value handed to a slow reader stays what it was.
func TestAppendDoesNotChangeWhatWasRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		old := strings.Repeat("a", shareFrom)
		s.Store().Set("/k", []byte(old))
		reader, writer := connect(t, s), connect(t, s)
		reader.send(handshake, opGet, "/k")
		synctest.Wait() // the reply is stuck in the pipe
		writer.send(handshake, opAppend, "/k", "b", opSet, "/k", "c", opDelete, "/k")
		writer.expect(1)
		reader.expect(old)
	})
}

func TestQueueWakesOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		both, second, third, pusher := connect(t, s), connect(t, s), connect(t, s), connect(t, s)
		both.send(handshake, opWait, 2, "/q", "/other")
		synctest.Wait()
		second.send(handshake, opWait, 1, "/q")
		synctest.Wait()
		third.send(handshake, opWait, 1, "/q")
		synctest.Wait()
		pusher.send(handshake, opQueuePush, "/q", "v")
		second.expect(replyStopWaiting)
		third.expectSilence()
		both.expectSilence()
		pusher.send(opQueuePush, "/q", "w")
		third.expect(replyStopWaiting)
		pusher.send(opGet, "/q", opNumKeys) // separate name spaces
		pusher.expect("", 0)
		pusher.send(opSet, "/other", "")
		both.expect(replyStopWaiting)
	})
}

func TestQueueIsFIFOAndFreesItsMemory(t *testing.T) {
	p := connect(t, New(Options{}))
	p.send(handshake)
	for i := range 500 {
		p.send(opQueuePush, "/q", fmt.Sprint(i))
	}
	for i := range 400 {
		p.send(opQueuePop, "/q")
		p.expect(500-i, fmt.Sprint(i))
	}
	for i := range 100 {
		p.send(opQueuePop, "/q")
		p.expect(100-i, fmt.Sprint(400+i))
	}
	p.send(opQueuePop, "/q", opCheck, 1, "/q")
	p.expect(0, replyNotReady)
}

func TestBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		a, b, c := connect(t, s), connect(t, s), connect(t, s)
		for _, p := range []*peerConn{a, b} {
			p.send(handshake, opBarrier, "/bar", 4)
			p.expectSilence()
		}
		b.send(opCancelWait, opBarrier, "/bar", 4)
		b.expect(replyWaitCanceled)
		b.expectSilence()
		c.send(handshake, opAdd, "/bar", 0) // a counter like any other; reading it releases nobody
		c.expect(3)
		a.expectSilence()
		c.send(opBarrier, "/bar", 4)
		for _, p := range []*peerConn{a, b, c} {
			p.expect(replyStopWaiting)
			p.expectSilence()
		}
		c.send(opBarrier, "/bar", 4)
		c.expect(replyStopWaiting)
	})
}

func TestWatchKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		data := connect(t, s) // dialect A: the data socket, then one for watches
		callback := connect(t, s)
		data.send(byte(3), "init/", 1)
		data.expect(1)
		callback.send(byte(7), "/k")
		callback.expect(watchRegistered)
		callback.send(byte(7), "/l")
		callback.expect(watchRegistered)
		data.send(byte(0), "/k", "v")
		callback.expect(watchCreated, "/k", "", "v")
		data.send(byte(0), "/k", "w", byte(0), "/unwatched", "")
		callback.expect(watchUpdated, "/k", "v", "w")
		data.send(byte(1), "/k", "w", "5")
		data.expect("5")
		callback.expect(watchUpdated, "/k", "w", "5")
		data.send(byte(3), "/k", 1)
		callback.expect(watchUpdated, "/k", "5", "6")
		data.expect(6)
		data.send(byte(3), "/l", 1)
		data.expect(1)
		callback.expect(watchCreated, "/l", "", "1")
		data.send(byte(8), "/k") // A's DELETE_KEY, after LegacyWait
		data.expect(1)
		callback.expect(watchDeleted, "/k", "6", "")
		callback.expectSilence()
		callback.conn.Close()
		<-callback.done
		if got := len(s.Store().watchers); got != 0 {
			t.Errorf("%d watched keys left", got)
		}
	})
}

func TestLegacyDialects(t *testing.T) {
	set := bytesOf(byte(0), "/k", "v")
	for _, test := range []struct {
		name    string
		pin     Dialect
		request []byte
		pause   bool // before the value
		value   []byte
		reply   []byte
		want    string // value of /k
	}{
		{name: "A deletes", request: bytesOf(byte(8), "/k"), reply: bytesOf(1)},
		{name: "B appends", request: bytesOf(byte(8), "/k"), value: bytesOf("w"), want: "vw"},
		{name: "B appends, value late", request: bytesOf(byte(8), "/k"), pause: true, value: bytesOf("w"), want: "vw"},
		{name: "B deletes", request: bytesOf(byte(7), "/k"), reply: bytesOf(1)},
		{name: "B proven by CANCEL_WAIT", request: bytesOf(byte(11), byte(7), "/k"), reply: bytesOf(replyWaitCanceled, 1)},
		{name: "A pinned", pin: DialectA, request: bytesOf(byte(7), "/k"), reply: bytesOf(watchRegistered), want: "v"},
		{name: "B pinned", pin: DialectB, request: bytesOf(byte(8), "/k"), value: bytesOf("w"), want: "vw"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(Options{Legacy: test.pin})
				p := connect(t, s)
				p.sendBytes(set)
				p.sendBytes(test.request)
				if test.pause {
					time.Sleep(49 * time.Millisecond)
				}
				if test.value != nil {
					p.sendBytes(test.value)
				}
				start := time.Now()
				got := make([]byte, len(test.reply))
				if _, err := io.ReadFull(p.conn, got); err != nil || !bytes.Equal(got, test.reply) {
					t.Errorf("reply % x, %v, want % x", got, err, test.reply)
				}
				if waited := time.Since(start); waited > 50*time.Millisecond {
					t.Errorf("answered after %v", waited)
				}
				p.send(byte(6)) // the stream is in step
				if test.want == "" {
					p.expect(0)
				} else {
					p.expect(1)
				}
				if value, _ := s.Store().Get("/k"); string(value) != test.want {
					t.Errorf("value %q, want %q", value, test.want)
				}
			})
		})
	}
}

// TestProvenBIsRememberedForTheNode: a second connection of a node whose dialect is known does not guess.
func TestProvenBIsRememberedForTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		first, second, stranger := connect(t, s), connect(t, s), connectNode(t, s, "other")
		first.send(byte(9), 0)
		first.send(byte(6))
		first.expect(0)
		second.send(byte(7), "/k") // would be A's WATCH_KEY
		second.expect(0)
		synctest.Wait()
		connectNode(t, s, "other")
		synctest.Wait()
		stranger.send(byte(7), "/k")
		stranger.expect(watchRegistered)
	})
}

// TestDeleteThenHangUp: an 8 that ends with the stream is a DELETE_KEY.
func TestDeleteThenHangUp(t *testing.T) {
	if got, want := replies(t, bytesOf(byte(0), "/k", "v", byte(8), "/k")), bytesOf(1); !bytes.Equal(got, want) {
		t.Errorf("got % x, want % x", got, want)
	}
}

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

var _ net.Conn = (*chunkedConn)(nil)
