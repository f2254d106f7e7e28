package tcpstore

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// serveTCP serves s on a loopback port until the test ends.
func serveTCP(t testing.TB, s *Server) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return listener.Addr().String()
}

func dialAll(t testing.TB, address string, n int) []*Client {
	t.Helper()
	clients := make([]*Client, n)
	for i := range clients {
		c, err := Dial(context.Background(), address, ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		clients[i] = c
	}
	return clients
}

// benchmarkClients shares b.N operations among n clients.
func benchmarkClients(b *testing.B, operate func(c *Client, i int64) error) {
	for _, n := range []int{1, 8, 32, 128} {
		b.Run(fmt.Sprintf("clients=%d", n), func(b *testing.B) {
			s := New(Options{})
			clients := dialAll(b, serveTCP(b, s), n)
			if err := clients[0].Set(context.Background(), "/value", []byte("0123456789abcdef")); err != nil {
				b.Fatal(err)
			}
			var next atomic.Int64
			var work sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for _, c := range clients {
				work.Go(func() {
					for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
						if err := operate(c, i); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			work.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
		})
	}
}

func BenchmarkAdd(b *testing.B) {
	benchmarkClients(b, func(c *Client, _ int64) error {
		_, err := c.Add(context.Background(), "/counter", 1)
		return err
	})
}

// BenchmarkGet counts one operation for the two requests of a blocking get, as PyTorch's users see it.
func BenchmarkGet(b *testing.B) {
	benchmarkClients(b, func(c *Client, _ int64) error {
		_, err := c.Get(context.Background(), "/value")
		return err
	})
}

func BenchmarkCompareSet(b *testing.B) {
	benchmarkClients(b, func(c *Client, i int64) error {
		_, err := c.CompareSet(context.Background(), "/value", []byte("0123456789abcdef"), []byte("0123456789abcdef"))
		return err
	})
}

// BenchmarkAddInMemory is the server without sockets: requests from memory, replies to nowhere.
func BenchmarkAddInMemory(b *testing.B) {
	request := append([]byte{byte(opAdd)}, "\x05\x00\x00\x00\x00\x00\x00\x00init/\x01\x00\x00\x00\x00\x00\x00\x00"...)
	conn := &scriptedConn{script: request, repeat: b.N}
	b.ReportAllocs()
	if err := New(Options{}).ServeConn(context.Background(), &handshaken{Conn: conn}, "n"); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkBarrier has a thousand clients meet at one barrier per operation.
func BenchmarkBarrier(b *testing.B) {
	const n = 1000
	clients := dialAll(b, serveTCP(b, New(Options{})), n)
	b.ResetTimer()
	for i := range b.N {
		key := fmt.Sprintf("/barrier%d", i)
		var work sync.WaitGroup
		for _, c := range clients {
			work.Go(func() {
				if err := c.Barrier(context.Background(), key, n); err != nil {
					b.Error(err)
				}
			})
		}
		work.Wait()
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/barrier")
}

// BenchmarkConnections opens as many connections as descriptors allow, up to ten thousand (handshake, ping, ADD), parks all on one key and sets it.
func BenchmarkConnections(b *testing.B) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		b.Fatal(err)
	}
	n := min(10000, int(limit.Cur-500)/2)
	s := New(Options{})
	address := serveTCP(b, s)
	ctx := context.Background()
	for range b.N {
		var work sync.WaitGroup
		clients := make([]*Client, n)
		start := b.Elapsed()
		const dialers = 64
		for d := range dialers {
			work.Go(func() {
				for i := d; i < n; i += dialers {
					c, err := Dial(ctx, address, ClientOptions{})
					if err != nil {
						b.Error(err)
						return
					}
					if _, err := c.Add(ctx, "init/", 1); err != nil {
						b.Error(err)
					}
					clients[i] = c
				}
			})
		}
		work.Wait()
		if b.Failed() {
			return
		}
		b.ReportMetric(float64((b.Elapsed() - start).Milliseconds()), "ms-connect")
		for _, c := range clients {
			work.Go(func() {
				if err := c.Wait(ctx, "/go"); err != nil {
					b.Error(err)
				}
			})
		}
		for s.parkedOn("/go") < n {
			runtime.Gosched()
		}
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		b.ReportMetric(float64(memory.HeapInuse+memory.StackInuse)/float64(n)/1024, "KiB/client+conn")
		start = b.Elapsed()
		if err := s.Store().Set("/go", nil); err != nil {
			b.Fatal(err)
		}
		work.Wait()
		b.ReportMetric(float64((b.Elapsed() - start).Milliseconds()), "ms-fan-out")
		for _, c := range clients {
			c.Close()
		}
		s.Store().Delete("/go")
		b.ReportMetric(float64(n), "conns")
	}
}

// parkedOn is the number of connections parked on key.
func (s *Server) parkedOn(key string) (n int) {
	st := s.Store()
	st.mu.Lock()
	defer st.mu.Unlock()
	if list := st.waiters[key]; list != nil {
		for node := list.head; node != nil; node = node.next {
			n++
		}
	}
	return n
}
