package control

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// echo answers Put with the bytes it got, and Logs never.
type echo struct {
	UnimplementedAgentServer
	cancelled chan struct{}
}

func (echo) Put(s grpc.ClientStreamingServer[FileChunk, PutReply]) error {
	size := int64(0)
	for {
		chunk, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return s.SendAndClose(&PutReply{Size: size})
		} else if err != nil {
			return err
		}
		size += int64(len(chunk.Data))
	}
}

func (e echo) Logs(_ *LogsRequest, s grpc.ServerStreamingServer[LogChunk]) error {
	<-s.Context().Done()
	close(e.cancelled)
	return s.Context().Err()
}

// TestOneConnection: calls go over the connection handed in; when it is gone they fail at once, and nothing dials.
func TestOneConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipe := bufconn.Listen(1 << 10)
		near, far := make(chan net.Conn, 1), make(chan net.Conn, 1)
		go func() {
			c, _ := pipe.Dial()
			near <- c
		}()
		c, err := pipe.Accept()
		if err != nil {
			t.Fatal(err)
		}
		far <- c
		lis := NewConnListener(<-far)
		service := echo{cancelled: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		served := make(chan error, 1)
		go func() {
			served <- Serve(ctx, lis, func(s *grpc.Server) { RegisterAgentServer(s, service) })
		}()
		conn := <-near
		client, err := DialConn(conn)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		agent := NewAgentClient(client)
		put, err := agent.Put(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for range 40 { // far beyond the windows
			if err := put.Send(&FileChunk{Data: make([]byte, 64<<10)}); err != nil {
				t.Fatal(err)
			}
		}
		if reply, err := put.CloseAndRecv(); err != nil || reply.Size != 40*64<<10 {
			t.Errorf("put: %v, %v", reply, err)
		}
		time.Sleep(2 * time.Hour) // idle, and the connection is still there
		logs, err := agent.Logs(ctx, &LogsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the call has arrived
		conn.Close()
		if _, err := logs.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("recv on a broken connection: %v, want Unavailable", err)
		}
		<-service.cancelled
		if _, err := agent.Fetch(ctx, &FetchRequest{}); status.Code(err) != codes.Unavailable {
			t.Errorf("call after the connection broke: %v, want Unavailable", err)
		}
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
}

// TestServeEnds: the end of ctx ends the calls in progress and the listener.
func TestServeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lis := bufconn.Listen(64 << 10)
		service := echo{cancelled: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := Serve(ctx, lis, func(s *grpc.Server) { RegisterAgentServer(s, service) }); err != nil {
				t.Errorf("serve: %v", err)
			}
		})
		conn, err := lis.Dial()
		if err != nil {
			t.Fatal(err)
		}
		client, err := DialConn(conn)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if _, err := NewAgentClient(client).Logs(t.Context(), &LogsRequest{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cancel()
		<-service.cancelled
		wg.Wait()
		if err := Serve(t.Context(), lis, func(*grpc.Server) {}); err == nil {
			t.Error("serve on a closed listener: no error")
		}
	})
}

func TestConnListener(t *testing.T) {
	lis := NewConnListener()
	a, b := net.Pipe()
	defer b.Close()
	if err := lis.Deliver(a); err != nil {
		t.Fatal(err)
	}
	if got, err := lis.Accept(); got != a || err != nil {
		t.Errorf("accept: %v, %v", got, err)
	}
	if err := lis.Deliver(a); err != nil {
		t.Fatal(err)
	}
	lis.Close()
	lis.Close()
	if _, err := lis.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
	if _, err := b.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a connection nobody accepted is open: %v", err)
	}
	c, d := net.Pipe()
	defer d.Close()
	if err := lis.Deliver(c); !errors.Is(err, net.ErrClosed) {
		t.Errorf("deliver after close: %v", err)
	}
	if _, err := d.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a connection delivered too late is open: %v", err)
	}
}

func TestAwaitReady(t *testing.T) {
	for name, test := range map[string]struct {
		input, want, rest string
		agent             bool
	}{
		"at once":        {ReadyLine + "PRI", "", "PRI", false},
		"after a banner": {"Welcome\nlast login\n" + ReadyLine + "x", "", "x", false},
		"an error":       {ErrorPrefix + "no disk\n", "await agent: agent: no disk", "", true},
		"nothing":        {"", "await agent: EOF", "", false},
		"broken off":     {"LAUNCHER-AGENT 1 rea", "await agent: EOF", "", false},
		"endless line":   {strings.Repeat("x", 10_000), "await agent: no ready line in 4097 bytes", "", false},
		"endless":        {strings.Repeat("x\n", 100_000), "await agent: no ready line in 65536 bytes", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := bytes.NewReader([]byte(test.input))
			err := AwaitReady(r)
			got := ""
			if err != nil {
				got = err.Error()
			}
			if got != test.want || errors.Is(err, ErrAgent) != test.agent {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if err == nil {
				if rest, _ := io.ReadAll(r); string(rest) != test.rest {
					t.Errorf("left %q, want %q", rest, test.rest)
				}
			}
		})
	}
}
