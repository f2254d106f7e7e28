package tcpstore

import (
	"bytes"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

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
