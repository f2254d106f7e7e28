package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// halfCloser is a connection of which one direction can be ended: *net.TCPConn, *Conn.
type halfCloser interface {
	CloseWrite() error
}

// Forward makes every connection of lis a stream of m with the label of that moment, until ctx ends; then it closes
// lis, resets what still runs and returns nil once all of it has ended. Half-closes, ends and resets pass through in
// both directions.
func Forward(ctx context.Context, lis net.Listener, m *Mux, label func() uint64) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { lis.Close() })
	defer stop()
	for {
		local, err := lis.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return fmt.Errorf("accept on %s: %w", lis.Addr(), err)
		}
		stream, err := m.Open(label())
		if err != nil {
			sever(local)
			continue
		}
		wg.Go(func() { join(ctx, local, stream) })
	}
}

// join copies both ways until both directions have ended, either side breaks or ctx ends.
func join(ctx context.Context, local net.Conn, stream *Conn) {
	stop := context.AfterFunc(ctx, func() {
		sever(local)
		stream.Reset()
	})
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := io.Copy(onlyWriter{stream}, onlyReader{local}); err != nil {
			stream.Reset()
			sever(local)
			return
		}
		stream.CloseWrite()
	})
	if _, err := io.Copy(onlyWriter{local}, onlyReader{stream}); err != nil {
		stream.Reset()
		sever(local)
	} else if half, ok := local.(halfCloser); ok {
		half.CloseWrite()
	} else {
		local.Close()
	}
	wg.Wait()
	stream.Close()
	local.Close()
}

// sever closes a connection so that the other end sees a reset and not an end of file, which it might take for a
// complete answer.
func sever(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	conn.Close()
}

// onlyReader and onlyWriter hide ReadFrom and WriteTo, which for a TCP connection take detours meant for splicing.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)
