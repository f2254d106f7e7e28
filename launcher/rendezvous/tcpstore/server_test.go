package tcpstore

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestCloseNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		a1, a2, b := connectNode(t, s, "a"), connectNode(t, s, "a"), connectNode(t, s, "b")
		a1.send(handshake, opSet, "/k", "v", opWait, 1, "/never")
		a2.send(handshake, opAdd, "/n", 1)
		a2.expect(1)
		b.send(handshake, opWait, 1, "/never")
		synctest.Wait()
		if got := s.CloseNode("a"); got != 2 {
			t.Errorf("closed %d, want 2", got)
		}
		for _, p := range []*peerConn{a1, a2} {
			if err := p.expectClosed(); !errors.Is(err, ErrClosed) {
				t.Errorf("ServeConn: %v, want ErrClosed", err)
			}
		}
		if got := s.Conns(); got != 1 {
			t.Errorf("%d connections left, want 1", got)
		}
		if s.Store().Len() != 2 {
			t.Error("keys of a closed node are gone")
		}
		if err := s.Store().Set("/never", nil); err != nil {
			t.Fatal(err)
		}
		b.expect(replyStopWaiting)
	})
}

// TestResetStartsAFreshKeySpace: the old generation's connections end, and nothing they still had to say reaches the new one.
func TestResetStartsAFreshKeySpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		old := connect(t, s)
		old.send(handshake, opSet, "/k", "old", opNumKeys)
		old.expect(1)
		before := s.Store()
		after := s.Reset()
		if after != s.Store() || after == before {
			t.Error("Reset did not change the store")
		}
		if err := old.expectClosed(); !errors.Is(err, ErrClosed) {
			t.Errorf("ServeConn: %v, want ErrClosed", err)
		}
		fresh := connect(t, s)
		fresh.send(handshake, opNumKeys)
		fresh.expect(0)
		s.SetStore(after) // the same one: nobody is closed
		fresh.send(opNumKeys)
		fresh.expect(0)
		if _, ok := before.Get("/k"); !ok {
			t.Error("the old store lost its keys")
		}
	})
}

// TestClosedConnectionHasNoEffect: a request that is being run when its connection is closed does not reach the store afterwards.
func TestClosedConnectionHasNoEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		entered, leave := make(chan struct{}), make(chan struct{})
		s := New(Options{OnSet: func(_ ConnInfo, _ string, value []byte) []byte {
			close(entered)
			<-leave
			return value
		}})
		p := connect(t, s)
		p.send(handshake, opSet, "/k", "v")
		<-entered
		s.CloseNode("n")
		close(leave)
		if err := <-p.done; !errors.Is(err, ErrClosed) {
			t.Errorf("ServeConn: %v, want ErrClosed", err)
		}
		if s.Store().Len() != 0 {
			t.Error("a closed connection stored a key")
		}
	})
}

// stuckConn takes its time to close, as the stream of a dead tunnel may.
type stuckConn struct {
	net.Conn
	release chan struct{}
}

func (c *stuckConn) Close() error {
	<-c.release
	return c.Conn.Close()
}

func TestStuckCloseHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		near, far := net.Pipe()
		stuck := &stuckConn{Conn: far, release: make(chan struct{})}
		done := make(chan error)
		go func() { done <- s.ServeConn(t.Context(), stuck, "n") }()
		(&peerConn{t: t, conn: near}).send(handshake)
		healthy := connect(t, s)
		healthy.send(handshake)
		synctest.Wait()
		s.Reset()
		if err := healthy.expectClosed(); !errors.Is(err, ErrClosed) {
			t.Errorf("healthy: %v, want ErrClosed", err)
		}
		close(stuck.release)
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Errorf("stuck: %v, want ErrClosed", err)
		}
	})
}

func TestServeConnEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		near, far := net.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.ServeConn(ctx, far, "n") }()
		p := &peerConn{t: t, conn: near}
		p.send(handshake, opWait, 1, "/k")
		cancel()
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Errorf("ServeConn: %v, want ErrClosed", err)
		}
	})
}

func TestServe(t *testing.T) {
	s := New(Options{})
	address := serveTCP(t, s)
	for _, c := range dialAll(t, address, 20) {
		if _, err := c.Add(t.Context(), "/n", 1); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := s.Store().Get("/n"); string(got) != "20" {
		t.Errorf("/n is %q, want 20", got)
	}
	// The connections are still open: the end of the test shows that Serve closes them and returns.
}

func TestServeReportsAFailedListener(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	if err := New(Options{}).Serve(t.Context(), listener); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve: %v, want net.ErrClosed", err)
	}
}

// crampedListener fails as one does that is out of descriptors, then hands out its connections.
type crampedListener struct {
	failures int
	conns    chan net.Conn
	closed   chan struct{}
}

func (l *crampedListener) Accept() (net.Conn, error) {
	if l.failures > 0 {
		l.failures--
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *crampedListener) Close() error   { close(l.closed); return nil }
func (l *crampedListener) Addr() net.Addr { return nil }

func TestServeOutlivesALackOfDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &crampedListener{failures: 3, conns: make(chan net.Conn), closed: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- New(Options{}).Serve(ctx, l) }()
		near, far := net.Pipe()
		start := time.Now()
		l.conns <- far
		if waited := time.Since(start); waited != 35*time.Millisecond {
			t.Errorf("accepted after %v, want 5 + 10 + 20 ms", waited)
		}
		p := &peerConn{t: t, conn: near}
		p.send(handshake, opNumKeys)
		p.expect(0)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

func TestOnSetRewrites(t *testing.T) {
	var seen []ConnInfo
	s := New(Options{OnSet: func(conn ConnInfo, key string, value []byte) []byte {
		seen = append(seen, conn)
		if strings.HasSuffix(key, "/MASTER_ADDR") {
			return []byte("10.0.0.7 of " + conn.Node)
		}
		return value
	}})
	p := connectNode(t, s, "w3-1")
	p.send(handshake, opSet, "/r.1/MASTER_ADDR", "host", opSet, "/r.1/MASTER_PORT", "1",
		opMultiSet, 1, "/r.2/MASTER_ADDR", "host", opMultiGet, 3, "/r.1/MASTER_ADDR", "/r.1/MASTER_PORT", "/r.2/MASTER_ADDR")
	p.expect("10.0.0.7 of w3-1", "1", "10.0.0.7 of w3-1")
	if len(seen) != 3 || seen[0] != (ConnInfo{ID: 1, Node: "w3-1", Dialect: DialectC}) {
		t.Errorf("hook saw %+v", seen)
	}
}

func TestOnCompareSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []string
		hold := make(chan struct{})
		s := New(Options{OnCompareSet: func(conn ConnInfo, key string, old, new []byte) ([]byte, <-chan struct{}) {
			calls = append(calls, key+":"+string(old)+">"+string(new))
			switch string(new) {
			case "edit":
				return []byte("edited"), nil
			case "hold":
				return nil, hold
			}
			return nil, nil
		}})
		p := connect(t, s)
		p.send(handshake, opCompareSet, "/k", "", "plain")
		p.expect("plain")
		p.send(opCompareSet, "/k", "plain", "edit")
		p.expect("edited")
		p.send(opCompareSet, "/k", "plain", "lost") // not about to succeed: not called
		p.expect("edited")
		start := time.Now()
		p.send(opCompareSet, "/k", "edited", "hold")
		synctest.Wait()
		time.Sleep(time.Second)
		if err := s.Store().Set("/k", []byte("completed")); err != nil {
			t.Fatal(err)
		}
		close(hold)
		p.expect("completed")
		if waited := time.Since(start); waited != time.Second {
			t.Errorf("held for %v, want 1 s", waited)
		}
		hold = make(chan struct{}) // never closed
		start = time.Now()
		p.send(opCompareSet, "/k", "completed", "hold")
		p.expect("hold")
		if waited := time.Since(start); waited != 4*time.Second {
			t.Errorf("held for %v, want 4 s", waited)
		}
		p.send(opCompareSet, "/k", "hold", "hold")
		synctest.Wait()
		s.CloseNode("n") // ends a hold
		if err := <-p.done; !errors.Is(err, ErrClosed) {
			t.Errorf("ServeConn: %v", err)
		}
		want := "/k:>plain /k:plain>edit /k:edited>hold /k:completed>hold /k:hold>hold"
		if got := strings.Join(calls, " "); got != want {
			t.Errorf("calls %s, want %s", got, want)
		}
	})
}

func TestStoreInProcess(t *testing.T) {
	st := NewStore(Limits{Memory: 10 << 10})
	if _, ok := st.Get("/k"); ok {
		t.Error("an empty store has a key")
	}
	value := []byte("value")
	if err := st.Set("/k", value); err != nil {
		t.Fatal(err)
	}
	value[0] = 'X'
	if got, ok := st.Get("/k"); !ok || string(got) != "value" {
		t.Errorf("got %q", got)
	}
	if _, err := st.Add("/k", 1); !errors.Is(err, ErrNotNumber) {
		t.Errorf("Add to text: %v", err)
	}
	if sum, err := st.Add("/n", 41); sum != 41 || err != nil {
		t.Errorf("Add: %d, %v", sum, err)
	}
	err := st.Update("/n", func(old []byte, ok bool) ([]byte, bool) { return append([]byte("1"), old...), ok })
	if got, _ := st.Get("/n"); err != nil || string(got) != "141" {
		t.Errorf("Update: %q, %v", got, err)
	}
	if err := st.Update("/none", func(_ []byte, ok bool) ([]byte, bool) { return nil, ok }); err != nil || st.Len() != 2 || len(st.Keys()) != 2 {
		t.Errorf("an Update that declined: %v, %v", err, st.Keys())
	}
	if err := st.Set("/big", bytes.Repeat([]byte("x"), 11<<10)); !errors.Is(err, ErrLimit) {
		t.Errorf("Set beyond the limit: %v", err)
	}
	if !st.Delete("/k") || st.Delete("/k") {
		t.Error("Delete")
	}
}

func TestLeadingInt(t *testing.T) {
	for text, want := range map[string]any{
		"5": int64(5), "-5": int64(-5), "+5": int64(5), " \n5": int64(5), "5\n": int64(5), "12ab": int64(12),
		"9223372036854775807": int64(9223372036854775807), "-9223372036854775808": int64(-9223372036854775808),
		"9223372036854775808": nil, "": nil, "-": nil, "ab": nil, "000000000000000000000000000001": nil,
	} {
		got, ok := leadingInt([]byte(text))
		if want == nil && ok || want != nil && (!ok || got != want) {
			t.Errorf("leadingInt(%q) = %d, %v, want %v", text, got, ok, want)
		}
	}
}
