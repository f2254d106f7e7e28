package tcpstore

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
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
