package tunnel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ephemeral-launcher/launcher/launcher/control"
)

var errCut = errors.New("cut")

// end is one end of a transport in memory.
type end struct {
	out, in chan *control.Frame
	cut     <-chan struct{}
	limit   int // frames that arrive here; the rest is lost with the cut
	twice   func() bool
	again   *control.Frame
}

func (e *end) Send(f *control.Frame) error {
	select {
	case <-e.cut:
		return errCut
	case e.out <- f:
		return nil
	}
}

func (e *end) Recv() (*control.Frame, error) {
	if f := e.again; f != nil {
		e.again = nil
		return f, nil
	}
	if e.limit == 0 {
		<-e.cut
		return nil, errCut
	}
	select {
	case <-e.cut:
		return nil, errCut
	case f := <-e.in:
		e.limit--
		f = proto.Clone(f).(*control.Frame)
		if e.twice != nil && e.twice() {
			e.again = proto.Clone(f).(*control.Frame)
		}
		return f, nil
	}
}

// newLink returns a transport that cut ends. Of what is sent, the first limits frames arrive in each direction.
func newLink(limits [2]int, twice func() bool) (a, b *end, cut func()) {
	ab, ba, done := make(chan *control.Frame, 64), make(chan *control.Frame, 64), make(chan struct{})
	var once sync.Once
	return &end{ab, ba, done, limits[0], twice, nil}, &end{ba, ab, done, limits[1], twice, nil},
		func() { once.Do(func() { close(done) }) }
}

const forever = 1 << 30

// attachBoth runs one link until it is cut, and gives the first error that is not the cut.
func attachBoth(ctx context.Context, opener, acceptor *Mux, a, b *end) error {
	var wg sync.WaitGroup
	errs := make(chan error, 2)
	wg.Go(func() { errs <- opener.Attach(ctx, a) })
	wg.Go(func() { errs <- acceptor.Attach(ctx, b) })
	err := <-errs
	wg.Wait()
	if errors.Is(err, errCut) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// pair returns two sides over one link that holds until the test ends.
func pair(t testing.TB) (opener, acceptor *Mux) {
	opener, acceptor = NewOpener(), NewAcceptor()
	a, b, cut := newLink([2]int{forever, forever}, nil)
	var wg sync.WaitGroup
	wg.Go(func() { attachBoth(context.Background(), opener, acceptor, a, b) })
	t.Cleanup(func() {
		cut()
		wg.Wait()
		opener.Close()
		acceptor.Close()
	})
	return opener, acceptor
}

func pattern(seed uint64, size int) []byte {
	b := make([]byte, size)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// sendAll writes data in pieces and half-closes.
func sendAll(c *Conn, data []byte, r *rand.Rand) error {
	for len(data) > 0 {
		n := min(len(data), 1+r.IntN(80_000))
		if r.IntN(3) == 0 {
			n = min(len(data), 1+r.IntN(20))
		}
		if _, err := c.Write(data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return c.CloseWrite()
}

// recvAll reads to the end in pieces.
func recvAll(c *Conn, r *rand.Rand) ([]byte, error) {
	var got []byte
	for {
		p := make([]byte, 1+r.IntN(50_000))
		n, err := c.Read(p)
		got = append(got, p[:n]...)
		if errors.Is(err, io.EOF) {
			return got, nil
		} else if err != nil {
			return got, err
		}
	}
}

// TestCuts is the promise of the package: whatever frames a cut loses and however often it is cut, each byte arrives
// once and in order, in both directions of every stream, and nothing of a finished stream is kept.
func TestCuts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		streams := rapid.IntRange(1, 4).Draw(rt, "streams")
		size := rapid.OneOf(rapid.IntRange(0, 200), rapid.IntRange(0, 400_000))
		sizes := rapid.SliceOfN(size, 2*streams, 2*streams).Draw(rt, "sizes")
		limits := rapid.SliceOfN(rapid.IntRange(0, 12), 0, 40).Draw(rt, "limits")
		seed := rapid.Uint64().Draw(rt, "seed")
		var err error
		synctest.Test(t, func(*testing.T) { err = checkCuts(sizes, limits, seed) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}

// FuzzCuts is TestCuts for the fuzzer: each byte of limits is how many frames arrive before the next cut.
func FuzzCuts(f *testing.F) {
	f.Add(uint16(100), uint32(300_000), []byte{0, 1, 2, 3, 0, 5, 1}, uint64(1))
	f.Add(uint16(0), uint32(0), []byte{1, 1, 1, 1}, uint64(2))
	f.Fuzz(func(t *testing.T, small uint16, large uint32, cuts []byte, seed uint64) {
		limits := make([]int, min(len(cuts), 60))
		for i := range limits {
			limits[i] = int(cuts[i] % 16)
		}
		synctest.Test(t, func(t *testing.T) {
			if err := checkCuts([]int{int(small), int(large % 1_000_000), int(small), 0}, limits, seed); err != nil {
				t.Fatal(err)
			}
		})
	})
}

func checkCuts(sizes, limits []int, seed uint64) error {
	opener, acceptor := NewOpener(), NewAcceptor()
	defer opener.Close()
	defer acceptor.Close()
	problems := make(chan error, 1000)
	var links sync.WaitGroup
	defer links.Wait()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	links.Go(func() {
		r := rand.New(rand.NewPCG(seed, 2))
		twice := func() bool { return false }
		for i := 0; ctx.Err() == nil; i++ {
			both := [2]int{forever, forever}
			if i+1 < len(limits) {
				both = [2]int{limits[i], limits[i+1]}
			}
			if seed%2 == 0 {
				again := rand.New(rand.NewPCG(seed, uint64(i)))
				var mu sync.Mutex
				twice = func() bool { mu.Lock(); defer mu.Unlock(); return again.IntN(4) == 0 }
			}
			a, b, cut := newLink(both, twice)
			stop := context.AfterFunc(ctx, cut)
			timer := time.AfterFunc(time.Second, func() {
				if both[0] != forever {
					cut()
				}
			})
			var one sync.WaitGroup
			one.Go(func() {
				if err := opener.Attach(ctx, a); !errors.Is(err, errCut) && ctx.Err() == nil {
					problems <- err
				}
				cut()
			})
			if err := acceptor.Attach(ctx, b); !errors.Is(err, errCut) && ctx.Err() == nil {
				problems <- err
			}
			cut()
			one.Wait()
			timer.Stop()
			stop()
			time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
		}
	})
	var wg sync.WaitGroup
	check := func(c *Conn, out, in []byte, salt uint64) {
		wg.Go(func() {
			if err := sendAll(c, out, rand.New(rand.NewPCG(seed, salt))); err != nil {
				problems <- fmt.Errorf("%v: send: %w", c.LocalAddr(), err)
			}
		})
		wg.Go(func() {
			got, err := recvAll(c, rand.New(rand.NewPCG(seed, salt+1)))
			if err != nil || !bytes.Equal(got, in) {
				problems <- fmt.Errorf("%v: received %d of %d bytes, equal %v: %w", c.LocalAddr(), len(got), len(in), bytes.Equal(got, in), err)
			}
		})
	}
	n := len(sizes) / 2
	for i := range n {
		c, err := opener.Open(uint64(i))
		if err != nil {
			return err
		}
		check(c, pattern(uint64(i), sizes[2*i]), pattern(uint64(i)+100, sizes[2*i+1]), uint64(10*i))
	}
	for range n {
		c, err := acceptor.Accept()
		if err != nil {
			return err
		}
		i := c.Label()
		check(c, pattern(i+100, sizes[2*i+1]), pattern(i, sizes[2*i]), 1000+10*i)
	}
	wg.Wait()
	select {
	case err := <-problems:
		return err
	default:
	}
	time.Sleep(time.Minute) // the last acknowledgements
	for _, m := range []*Mux{opener, acceptor} {
		m.mu.Lock()
		kept := len(m.conns)
		m.mu.Unlock()
		if kept != 0 {
			return fmt.Errorf("%d finished streams are still known, opener %v", kept, m.opener)
		}
	}
	return nil
}

// TestNewPeer: another process on the other side resets what the former one had, and takes new streams.
func TestNewPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opener, first, second := NewOpener(), NewAcceptor(), NewAcceptor()
		ctx, cancel := context.WithCancel(t.Context())
		a, b, cut := newLink([2]int{forever, forever}, nil)
		var wg sync.WaitGroup
		wg.Go(func() { attachBoth(ctx, opener, first, a, b) })
		old, _ := opener.Open(1)
		if _, err := first.Accept(); err != nil {
			t.Fatal(err)
		}
		old.Write([]byte("x"))
		synctest.Wait()
		cut()
		wg.Wait()
		if _, err := old.Write([]byte("y")); err != nil {
			t.Errorf("write while nothing is attached: %v", err)
		}
		early, _ := opener.Open(2) // before the new peer: its from the start
		early.Write([]byte("early"))
		a, b, cut = newLink([2]int{forever, forever}, nil)
		wg.Go(func() { attachBoth(ctx, opener, second, a, b) })
		if _, err := old.Read(make([]byte, 1)); !errors.Is(err, ErrReset) {
			t.Errorf("read of a stream of the former peer: %v, want %v", err, ErrReset)
		}
		c, err := second.Accept()
		if err != nil || c.Label() != 2 {
			t.Fatalf("accept: label %d, %v; want 2", c.Label(), err)
		}
		p := make([]byte, 10)
		if n, err := c.Read(p); string(p[:n]) != "early" {
			t.Errorf("read %q, %v, want early", p[:n], err)
		}
		cancel()
		cut()
		wg.Wait()
		for _, m := range []*Mux{opener, first, second} {
			m.Close()
		}
	})
}

// TestEnds has what each way of ending one side does to the other.
func TestEnds(t *testing.T) {
	for name, test := range map[string]struct {
		end         func(*Conn)
		read, write error
	}{
		"close write": {func(c *Conn) { c.CloseWrite() }, io.EOF, nil},
		"close":       {func(c *Conn) { c.Close() }, io.EOF, syscall.EPIPE},
		"reset":       {func(c *Conn) { c.Reset() }, ErrReset, ErrReset},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opener, acceptor := pair(t)
				near, _ := opener.Open(0)
				near.Write([]byte("last words"))
				far, err := acceptor.Accept()
				if err != nil {
					t.Fatal(err)
				}
				if test.read == io.EOF {
					defer func() {
						p := make([]byte, 20)
						if n, _ := far.Read(p); string(p[:n]) != "" {
							t.Errorf("read %q after the end", p[:n])
						}
					}()
				}
				synctest.Wait()
				test.end(near)
				synctest.Wait()
				if test.read == io.EOF {
					p := make([]byte, 20)
					if n, err := far.Read(p); string(p[:n]) != "last words" {
						t.Errorf("read %q, %v, want the last words", p[:n], err)
					}
				}
				if _, err := far.Read(make([]byte, 1)); !errors.Is(err, test.read) {
					t.Errorf("read: %v, want %v", err, test.read)
				}
				if _, err := far.Write([]byte("x")); !errors.Is(err, test.write) {
					t.Errorf("write: %v, want %v", err, test.write)
				}
			})
		})
	}
}

// TestResetIsNotLost: a reset that a cut has swallowed is known after the next attach.
func TestResetIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opener, acceptor := NewOpener(), NewAcceptor()
		a, b, cut := newLink([2]int{forever, forever}, nil)
		var wg sync.WaitGroup
		wg.Go(func() { attachBoth(t.Context(), opener, acceptor, a, b) })
		near, _ := opener.Open(0)
		far, _ := acceptor.Accept()
		cut()
		wg.Wait()
		near.Reset()
		a, b, cut = newLink([2]int{forever, forever}, nil)
		wg.Go(func() { attachBoth(t.Context(), opener, acceptor, a, b) })
		if _, err := far.Read(make([]byte, 1)); !errors.Is(err, ErrReset) {
			t.Errorf("read: %v, want %v", err, ErrReset)
		}
		cut()
		wg.Wait()
		opener.Close()
		acceptor.Close()
	})
}

// TestLostEnds has what the last words of a stream, swallowed by a cut, leave behind: nothing, once there is a
// transport again.
func TestLostEnds(t *testing.T) {
	for name, test := range map[string]struct {
		arrive [2]int // frames at the opener and at the acceptor before the cut
		before func(near *Conn, acceptor *Mux)
		after  func(near *Conn) // the cut
		write  error            // what the acceptor's side then meets, where it has the stream
	}{
		"close":               {[2]int{forever, 2}, func(near *Conn, _ *Mux) { near.Close() }, nil, syscall.EPIPE},
		"opening and reset":   {[2]int{forever, 1}, func(near *Conn, _ *Mux) { near.Reset() }, nil, nil},
		"opening, then reset": {[2]int{forever, 1}, func(*Conn, *Mux) {}, func(near *Conn) { near.Reset() }, nil},
		"acknowledgement of the end": {[2]int{1, forever}, func(near *Conn, acceptor *Mux) {
			near.Close()
			far, _ := acceptor.Accept()
			io.ReadAll(far)
			far.CloseWrite()
		}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opener, acceptor := NewOpener(), NewAcceptor()
				var wg sync.WaitGroup
				a, b, cut := newLink(test.arrive, nil)
				wg.Go(func() { attachBoth(t.Context(), opener, acceptor, a, b) })
				synctest.Wait()
				near, _ := opener.Open(0)
				synctest.Wait()
				test.before(near, acceptor)
				synctest.Wait()
				cut()
				wg.Wait()
				if test.after != nil {
					test.after(near)
				}
				a, b, cut = newLink([2]int{forever, forever}, nil)
				wg.Go(func() { attachBoth(t.Context(), opener, acceptor, a, b) })
				synctest.Wait()
				if test.write != nil {
					far, err := acceptor.Accept()
					if err != nil {
						t.Fatal(err)
					}
					if _, err := far.Write([]byte("x")); !errors.Is(err, test.write) {
						t.Errorf("write: %v, want %v", err, test.write)
					}
					io.ReadAll(far)
					far.Close()
					synctest.Wait()
				}
				if len(opener.conns) != 0 || len(acceptor.conns) != 0 {
					t.Errorf("still known: %d at the opener, %d at the acceptor", len(opener.conns), len(acceptor.conns))
				}
				cut()
				wg.Wait()
				opener.Close()
				acceptor.Close()
			})
		})
	}
}

// TestBackPressure: a writer waits when 256 KiB are not consumed, with and without a transport, and goes on when they
// are; a deadline ends the wait.
func TestBackPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opener, acceptor := pair(t)
		near, _ := opener.Open(0)
		near.SetWriteDeadline(time.Now().Add(time.Second))
		n, err := near.Write(make([]byte, 2*bufferSize))
		if n != bufferSize || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write: %d, %v; want %d and a deadline", n, err, bufferSize)
		}
		near.SetWriteDeadline(time.Time{})
		far, _ := acceptor.Accept()
		done := make(chan error, 1)
		go func() {
			_, err := near.Write(make([]byte, bufferSize))
			near.CloseWrite()
			done <- err
		}()
		got, err := io.Copy(io.Discard, far)
		if got != 2*bufferSize || err != nil {
			t.Errorf("read %d, %v; want %d", got, err, 2*bufferSize)
		}
		if err := <-done; err != nil {
			t.Errorf("write: %v", err)
		}
		far.SetReadDeadline(time.Now().Add(-time.Second))
		if _, err := far.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("read at the end: %v, want EOF", err)
		}
	})
}

// TestNewestAttachWins: an old connection that is stalled does not hold up a new one.
func TestNewestAttachWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opener, acceptor := NewOpener(), NewAcceptor()
		a, b, cutOld := newLink([2]int{0, 0}, nil)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := opener.Attach(t.Context(), a); !errors.Is(err, ErrReplaced) {
				t.Errorf("old attach: %v, want %v", err, ErrReplaced)
			}
		})
		wg.Go(func() { acceptor.Attach(t.Context(), b) })
		synctest.Wait()
		a2, b2, cut := newLink([2]int{forever, forever}, nil)
		wg.Go(func() { attachBoth(t.Context(), opener, acceptor, a2, b2) })
		c, _ := opener.Open(7)
		c.Write([]byte("x"))
		far, err := acceptor.Accept()
		if err != nil || far.Label() != 7 {
			t.Errorf("accept: %v", err)
		}
		// What still comes on the old one does not count: the peer was told where to go on.
		old, fresh, cutThird := newLink([2]int{forever, forever}, nil)
		late := NewAcceptor()
		wg.Go(func() { late.Attach(t.Context(), fresh) })
		old.Send(&control.Frame{Attach: &control.Attach{Instance: 5}})
		synctest.Wait()
		_, again, cutFourth := newLink([2]int{forever, forever}, nil)
		wg.Go(func() { late.Attach(t.Context(), again) })
		synctest.Wait()
		old.Send(&control.Frame{Segments: []*control.Segment{{Stream: 99, Flags: flagOpen}}})
		synctest.Wait()
		if len(late.conns) != 0 {
			t.Error("a frame of a replaced transport counted")
		}
		cutThird()
		cutFourth()
		late.Close()
		cutOld()
		cut()
		wg.Wait()
		opener.Close()
		acceptor.Close()
	})
}

func TestForward(t *testing.T) {
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait) // after pair has closed its ends
	opener, acceptor := pair(t)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wg.Go(func() {
		if err := Forward(ctx, lis, opener, func() uint64 { return 3 }); err != nil {
			t.Errorf("forward: %v", err)
		}
	})
	wg.Go(func() { // an echo, whole at the end
		for {
			c, err := acceptor.Accept()
			if err != nil {
				return
			}
			if c.Label() != 3 {
				t.Errorf("label %d, want 3", c.Label())
			}
			wg.Go(func() {
				defer c.Close()
				io.Copy(c, c)
			})
		}
	})
	dial := func() *net.TCPConn {
		conn, err := net.Dial("tcp", lis.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return conn.(*net.TCPConn)
	}
	conn := dial()
	want := pattern(1, 500_000)
	go func() {
		conn.Write(want)
		conn.CloseWrite()
	}()
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, want) {
		t.Errorf("echo of %d bytes: %d, %v", len(want), len(got), err)
	}
	conn.Close()

	// The lease is over: a reset, not an end that looks like a complete answer.
	conn = dial()
	conn.Write([]byte("x"))
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	opener.Reset()
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read after reset: %v, want ECONNRESET", err)
	}
	conn.Close()
}

func TestMalformed(t *testing.T) {
	for name, frames := range map[string][]*control.Frame{
		"no attach":  {{Segments: []*control.Segment{{Stream: 1, Flags: flagOpen}}}},
		"gap":        {{Attach: &control.Attach{Instance: 1}}, {Segments: []*control.Segment{{Stream: 1, Flags: flagOpen, Offset: 5}}}},
		"ack beyond": {{Attach: &control.Attach{Instance: 1}}, {Segments: []*control.Segment{{Stream: 1, Flags: flagOpen, Ack: 5}}}},
		"flood": {{Attach: &control.Attach{Instance: 1}}, {Segments: []*control.Segment{
			{Stream: 1, Flags: flagOpen, Data: make([]byte, bufferSize+1)},
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := NewAcceptor()
				a, b, cut := newLink([2]int{forever, forever}, nil)
				for _, f := range frames {
					b.Send(f)
				}
				if err := m.Attach(t.Context(), a); err == nil || errors.Is(err, errCut) {
					t.Errorf("attach: %v, want a complaint", err)
				}
				cut()
				m.Close()
			})
		})
	}
}

func BenchmarkRequests(b *testing.B) {
	for _, clients := range []int{1, 32} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			opener, acceptor := pair(b)
			benchmarkRequests(b, opener, acceptor, clients)
		})
	}
}

func benchmarkRequests(b *testing.B, opener, acceptor *Mux, clients int) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for range clients {
			c, err := acceptor.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				p := make([]byte, 32)
				for {
					if _, err := io.ReadFull(c, p); err != nil {
						return
					}
					c.Write(p[:16])
				}
			})
		}
	})
	b.ResetTimer()
	for i := range clients {
		c, _ := opener.Open(0)
		wg.Go(func() {
			defer c.Close()
			p := make([]byte, 32)
			for range b.N/clients + i/clients {
				c.Write(p)
				if _, err := io.ReadFull(c, p[:16]); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
}

// TestOldStream: what the reader of a stream of the former opener does says nothing about the new one's stream of the
// same id.
func TestOldStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, acceptor := NewOpener(), NewOpener(), NewAcceptor()
		var wg sync.WaitGroup
		a, b, cut := newLink([2]int{forever, forever}, nil)
		wg.Go(func() { attachBoth(t.Context(), first, acceptor, a, b) })
		old, _ := first.Open(1)
		old.Write([]byte("whole"))
		old.CloseWrite()
		read, err := acceptor.Accept()
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cut()
		wg.Wait()
		a, b, cut = newLink([2]int{forever, forever}, nil)
		wg.Go(func() {
			if err := attachBoth(t.Context(), second, acceptor, a, b); err != nil {
				t.Errorf("attach: %v", err)
			}
		})
		fresh, _ := second.Open(2)
		far, err := acceptor.Accept()
		if err != nil || far.Label() != 2 {
			t.Fatalf("accept: %v", err)
		}
		if got, err := io.ReadAll(read); string(got) != "whole" || err != nil {
			t.Errorf("the old stream: %q, %v, want all of it", got, err)
		}
		read.Close()
		synctest.Wait()
		fresh.Write([]byte("x"))
		if n, err := far.Read(make([]byte, 1)); n != 1 {
			t.Errorf("the new stream: %v", err)
		}
		cut()
		wg.Wait()
		for _, m := range []*Mux{first, second, acceptor} {
			m.Close()
		}
	})
}

// TestAcceptorFunc: streams come by calls, and an idle tunnel holds no goroutine but the one that receives.
func TestAcceptorFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := runtime.NumGoroutine()
		accepted := make(chan *Conn, 2)
		opener, acceptor := NewOpener(), NewAcceptorFunc(func(c *Conn) { accepted <- c })
		a, b, cut := newLink([2]int{forever, forever}, nil)
		ended := make(chan error, 2)
		opener.Start(t.Context(), a, func(err error) { ended <- err })
		acceptor.Start(t.Context(), b, func(err error) { ended <- err })
		for label := range uint64(2) {
			near, err := opener.Open(label)
			if err != nil {
				t.Fatal(err)
			}
			near.Write([]byte("x"))
			far := <-accepted
			if got := far.Label(); got != label {
				t.Errorf("accepted label %d, want %d", got, label)
			}
			if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
				t.Errorf("read: %v", err)
			}
		}
		synctest.Wait()
		if got, want := runtime.NumGoroutine()-before, 2; got != want {
			t.Errorf("%d goroutines for an idle tunnel, want %d", got, want)
		}
		cut()
		for range 2 {
			if err := <-ended; !errors.Is(err, errCut) {
				t.Errorf("ended by %v, want %v", err, errCut)
			}
		}
		opener.Close()
		acceptor.Close()
		acceptor.Start(t.Context(), b, func(err error) { ended <- err })
		if err := <-ended; !errors.Is(err, errClosed) {
			t.Errorf("start after close: %v, want %v", err, errClosed)
		}
	})
}

// TestTooMany: a process that opens connections without end does not take the other side's memory.
func TestTooMany(t *testing.T) {
	m := NewOpener()
	defer m.Close()
	for range maxStreams {
		if _, err := m.Open(0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Open(0); !errors.Is(err, ErrTooMany) {
		t.Errorf("open: %v, want %v", err, ErrTooMany)
	}
	m.Reset()
	if _, err := m.Open(0); err != nil {
		t.Errorf("open after reset: %v", err)
	}
	acceptor := NewAcceptor()
	defer acceptor.Close()
	acceptor.mu.Lock()
	defer acceptor.mu.Unlock()
	for id := range uint64(maxStreams + 1) {
		acceptor.admit(&control.Segment{Stream: id + 1, Flags: flagOpen})
	}
	if len(acceptor.backlog) != maxStreams {
		t.Errorf("%d streams accepted, want %d", len(acceptor.backlog), maxStreams)
	}
}
