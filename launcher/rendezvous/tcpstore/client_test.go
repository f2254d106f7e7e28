package tcpstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// pipeClient is a Client of s, in dialect d, over a pipe.
func pipeClient(t testing.TB, s *Server, d Dialect) *Client {
	t.Helper()
	p := connect(t, s)
	c, err := NewClient(context.Background(), p.conn, ClientOptions{Dialect: d})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestClientDialects runs every operation in every dialect; those that a dialect lacks say so and cost nothing.
func TestClientDialects(t *testing.T) {
	ctx := context.Background()
	for d := DialectA; d <= DialectG; d++ {
		t.Run(d.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(Options{})
				c := pipeClient(t, s, d)
				check := func(what string, got, want any, err error) {
					t.Helper()
					if err != nil {
						t.Errorf("%s: %v", what, err)
					} else if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("%s: (-want +got)\n%s", what, diff)
					}
				}
				// since checks an operation that came with a later dialect.
				since := func(first Dialect, what string, got, want any, err error) {
					t.Helper()
					if d >= first {
						check(what, got, want, err)
					} else if !errors.Is(err, ErrUnsupported) {
						t.Errorf("%s: %v, want ErrUnsupported", what, err)
					}
				}
				check("Set", nil, nil, c.Set(ctx, "/k", []byte("v")))
				got, err := c.Get(ctx, "/k")
				check("Get", string(got), "v", err)
				sum, err := c.Add(ctx, "/n", 5)
				check("Add", sum, int64(5), err)
				got, err = c.CompareSet(ctx, "/x", []byte("exp"), []byte("new"))
				check("CompareSet", string(got), "exp", err)
				got, err = c.CompareSet(ctx, "/x", nil, []byte("new"))
				check("CompareSet", string(got), "new", err)
				check("Wait", nil, nil, c.Wait(ctx, "/k", "/n"))
				ok, err := c.Check(ctx, "/k", "/n")
				check("Check", ok, true, err)
				ok, err = c.Check(ctx, "/k", "/none")
				check("Check", ok, false, err)
				num, err := c.NumKeys(ctx)
				check("NumKeys", num, int64(3), err)
				ok, err = c.Delete(ctx, "/x")
				check("Delete", ok, true, err)
				ok, err = c.Delete(ctx, "/x")
				check("Delete", ok, false, err)
				since(DialectB, "Append", nil, nil, c.Append(ctx, "/k", []byte("w")))
				values, err := c.MultiGet(ctx, "/k", "/n")
				since(DialectB, "MultiGet", fmt.Sprintf("%s", values), "[vw 5]", err)
				since(DialectB, "MultiSet", nil, nil, c.MultiSet(ctx, Pair{"/l", []byte("1")}, Pair{"/m", nil}))
				since(DialectD, "Ping", nil, nil, c.Ping(ctx))
				since(DialectE, "QueuePush", nil, nil, c.QueuePush(ctx, "/q", []byte("item")))
				length, err := c.QueueLen(ctx, "/q")
				since(DialectE, "QueueLen", length, int64(1), err)
				got, err = c.QueuePop(ctx, "/q")
				since(DialectE, "QueuePop", string(got), "item", err)
				_, ok, err = c.TryQueuePop(ctx, "/q")
				since(DialectE, "TryQueuePop", ok, false, err)
				keys, err := c.ListKeys(ctx)
				slices.Sort(keys)
				since(DialectF, "ListKeys", keys, []string{"/k", "/l", "/m", "/n"}, err)
				since(DialectG, "Barrier", nil, nil, c.Barrier(ctx, "/b", 1))
				got, err = c.Get(ctx, "/n")
				check("Get after all", string(got), "5", err)
			})
		})
	}
}

// TestClientCancelledWait: the Client stays usable, and no late answer gets in the way.
func TestClientCancelledWait(t *testing.T) {
	for name, wait := range map[string]func(context.Context, *Client) error{
		"Wait":     func(ctx context.Context, c *Client) error { return c.Wait(ctx, "/k", "/l") },
		"Get":      func(ctx context.Context, c *Client) error { _, err := c.Get(ctx, "/k"); return err },
		"MultiGet": func(ctx context.Context, c *Client) error { _, err := c.MultiGet(ctx, "/k", "/l"); return err },
		"QueuePop": func(ctx context.Context, c *Client) error { _, err := c.QueuePop(ctx, "/k"); return err },
		"Barrier":  func(ctx context.Context, c *Client) error { return c.Barrier(ctx, "/b", 2) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(Options{})
				c := pipeClient(t, s, DialectG)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := wait(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v, want DeadlineExceeded", err)
				}
				if got := len(s.Store().waiters) + len(s.Store().barriers); got != 0 {
					t.Errorf("%d keys still waited for", got)
				}
				s.Store().Set("/k", nil)
				s.Store().Set("/l", nil)
				if err := c.Ping(t.Context()); err != nil {
					t.Error(err)
				}
				if err := wait(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("with a dead context: %v", err)
				}
				if err := c.Ping(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestClientWakeRacesCancel: the answer and the cancel cross; the wait has succeeded and the stream is in step. The server's side is scripted.
func TestClientWakeRacesCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		server := &peerConn{t: t, conn: far}
		defer far.Close()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			c, err := NewClient(context.Background(), near, ClientOptions{Dialect: DialectC})
			if err == nil {
				err = c.Wait(ctx, "/k")
			}
			done <- err
			n, err := c.NumKeys(t.Context())
			done <- errors.Join(err, map[bool]error{false: fmt.Errorf("%d keys", n)}[n == 3])
		}()
		server.expect(handshake, opWait, 1, "/k")
		cancel()
		server.expect(opCancelWait)
		server.send(replyStopWaiting, replyWaitCanceled)
		if err := <-done; err != nil {
			t.Errorf("Wait: %v", err)
		}
		server.expect(opNumKeys)
		server.send(3)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestClientGivesUpOnADeadServer: a cancel that nobody confirms ends the wait after the grace.
func TestClientGivesUpOnADeadServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		go (&peerConn{t: t, conn: far}).expect(handshake, opWait, 1, "/k")
		c, err := NewClient(t.Context(), near, ClientOptions{Dialect: DialectC})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := c.Wait(ctx, "/k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait: %v", err)
		}
		if waited := time.Since(start); waited != 6*time.Second {
			t.Errorf("waited %v, want 1 s + 5 s", waited)
		}
		if err := c.Set(t.Context(), "/k", nil); err == nil {
			t.Error("a broken client still works")
		}
	})
}

// TestClientDialectACannotCancel: the connection is closed instead, so that a late answer is not taken for another's.
func TestClientDialectACannotCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pipeClient(t, New(Options{}), DialectA)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Wait(ctx, "/k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait: %v", err)
		}
		if err := c.Set(t.Context(), "/k", nil); err == nil {
			t.Error("a broken client still works")
		}
	})
}

// TestClientTakesTurns: a request waits for the one before it, and its context ends that.
func TestClientTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		c := pipeClient(t, s, DialectG)
		done := make(chan error)
		go func() { done <- c.Wait(t.Context(), "/k") }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Add(ctx, "/n", 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Add: %v", err)
		}
		s.Store().Set("/k", nil)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n, err := c.Add(t.Context(), "/n", 1); n != 1 || err != nil {
			t.Errorf("Add: %d, %v", n, err)
		}
	})
}

func TestClientRejectsForeignAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		answer []byte
		ask    func(context.Context, *Client) error
	}{
		"ping":   {bytesOf(uint32(1)), func(ctx context.Context, c *Client) error { return c.Ping(ctx) }},
		"wait":   {bytesOf(byte(7)), func(ctx context.Context, c *Client) error { return c.Wait(ctx, "/k") }},
		"check":  {bytesOf(byte(7)), func(ctx context.Context, c *Client) error { _, err := c.Check(ctx, "/k"); return err }},
		"vector": {bytesOf(-1), func(ctx context.Context, c *Client) error { _, err := c.CompareSet(ctx, "/k", nil, nil); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := net.Pipe()
			defer far.Close()
			c, err := NewClient(t.Context(), near, ClientOptions{Dialect: DialectB})
			if err != nil {
				t.Fatal(err)
			}
			c.dialect = DialectG // without the handshake, which the answer below knows nothing of
			go func() {
				far.Read(make([]byte, 100))
				far.Write(test.answer)
			}()
			if err := test.ask(t.Context(), c); !errors.Is(err, ErrProtocol) {
				t.Errorf("%v, want ErrProtocol", err)
			}
		})
	}
}

// TestInterleavedCancelAndWake has waits cancelled and answered at the same moments, for many offsets; each client must stay in step.
func TestInterleavedCancelAndWake(t *testing.T) {
	s := New(Options{})
	address := serveTCP(t, s)
	setter := dialAll(t, address, 1)[0]
	var work sync.WaitGroup
	for i, c := range dialAll(t, address, 8) {
		work.Go(func() {
			for round := range 100 {
				key := fmt.Sprintf("/%d/%d", i, round)
				ctx, cancel := context.WithCancel(context.Background())
				var race sync.WaitGroup
				race.Go(cancel)
				race.Go(func() {
					if err := setter.Set(context.Background(), key, nil); err != nil {
						t.Error(err)
					}
				})
				if err := c.Wait(ctx, key); err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				race.Wait()
				got, err := c.CompareSet(context.Background(), key+"x", nil, []byte(key))
				if err != nil || !bytes.Equal(got, []byte(key)) {
					t.Errorf("out of step: %q, %v", got, err)
					return
				}
			}
		})
	}
	work.Wait()
	if got := len(s.Store().waiters); got != 0 {
		t.Errorf("%d keys still waited for", got)
	}
}
