package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/agent/process"
	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/control/tunnel"
)

// BenchmarkStore is requests of 32 bytes answered by 16, from TCP clients on loopback: to a server beside them, and
// through agent, gRPC over a unix socket, and tunnel.
func BenchmarkStore(b *testing.B) {
	answer := func(c net.Conn) {
		defer c.Close()
		p := make([]byte, 32)
		for {
			if _, err := io.ReadFull(c, p); err != nil {
				return
			}
			if _, err := c.Write(p[:16]); err != nil {
				return
			}
		}
	}
	loopback := func(b *testing.B) net.Listener {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { lis.Close() })
		return lis
	}
	for _, clients := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("direct/clients=%d", clients), func(b *testing.B) {
			lis := loopback(b)
			go func() {
				for {
					c, err := lis.Accept()
					if err != nil {
						return
					}
					go answer(c)
				}
			}()
			request(b, lis.Addr().String(), clients)
		})
		b.Run(fmt.Sprintf("tunnel/clients=%d", clients), func(b *testing.B) {
			socket, err := net.Listen("unix", b.TempDir()+"/s")
			if err != nil {
				b.Fatal(err)
			}
			store := loopback(b)
			a, err := New(Options{
				Join:    control.Join{Run: "r-bench", Node: b.Name(), Folder: b.TempDir()},
				Control: socket, Store: store, Runner: process.OS{},
			})
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			wg.Go(func() { a.Run(ctx) })
			conn, err := net.Dial("unix", socket.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			client, err := control.DialConn(conn)
			if err != nil {
				b.Fatal(err)
			}
			frames, err := control.NewAgentClient(client).Tunnel(ctx)
			if err != nil {
				b.Fatal(err)
			}
			server := tunnel.NewAcceptor()
			wg.Go(func() { server.Attach(ctx, frames) })
			wg.Go(func() {
				for {
					c, err := server.Accept()
					if err != nil {
						return
					}
					wg.Go(func() { answer(c) })
				}
			})
			request(b, store.Addr().String(), clients)
			cancel()
			server.Close()
			client.Close()
			wg.Wait()
		})
	}
}

func request(b *testing.B, addr string, clients int) {
	conns := make([]net.Conn, clients)
	for i := range conns {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		conns[i] = c
	}
	b.ResetTimer()
	began := time.Now()
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() {
			p := make([]byte, 32)
			for range b.N/clients + 1 {
				c.Write(p)
				if _, err := io.ReadFull(c, p[:16]); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "req/s")
}
