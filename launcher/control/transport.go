package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// ErrConnUsed is what a gRPC client of DialConn gets when its connection broke: there is no second one.
var ErrConnUsed = errors.New("the connection is used up")

const (
	// A head holds one connection for each of up to a thousand workers, so buffers are small. Setting the windows
	// also turns off gRPC's bandwidth estimation and its pings. The connection's window is larger than a stream's,
	// so that a stalled reader of logs does not hold up orders or the store.
	streamWindow     = 256 << 10
	connectionWindow = 1 << 20
	ioBuffer         = 16 << 10
	clientBuffer     = 4 << 10
	// MaxMessage bounds one message in bytes: a generation of a thousand members with their environment fits.
	MaxMessage = 8 << 20

	// A connection that is dead without an end of file (a laptop that went to sleep, a cut cable) is closed by the
	// server after serverPing+serverPingTimeout, else the bridges of lost connections pile up. The client does not
	// ping: it renews leases on Session and knows from the acknowledgements.
	serverPing        = 30 * time.Second
	serverPingTimeout = 30 * time.Second
)

// DialConn makes a gRPC client that uses conn and nothing else: when conn breaks, every call fails with
// codes.Unavailable and the client is to be closed. It owns conn from here on, also when it returns an error.
//
// Neither side authenticates the other here: conn is a channel inside SSH, a socket in a folder of mode 0700, or
// memory.
func DialConn(conn net.Conn) (*grpc.ClientConn, error) {
	var once sync.Once
	dial := func(context.Context, string) (net.Conn, error) {
		err := ErrConnUsed
		once.Do(func() { err = nil })
		if err != nil {
			return nil, err
		}
		return conn, nil
	}
	client, err := grpc.NewClient("passthrough:///launcher",
		grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(connectionWindow),
		grpc.WithReadBufferSize(0), // a Channel of sshexec buffers what it receives
		grpc.WithWriteBufferSize(clientBuffer),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage), grpc.ForceCodecV2(newCodec())),
		grpc.WithIdleTimeout(0), // an idle client would give its only connection away
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableHealthCheck(),
	)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("grpc client: %w", err)
	}
	// Taken now, so that conn has one owner however early the caller closes the client.
	client.Connect()
	return client, nil
}

// codec is gRPC's own, but for messages of more than 32 KiB, for which that one takes 1 MiB from its pool (mem/buffer_pool.go, in
// grpc-go v1.85): a generation of a thousand members is 60 KiB for each of them, all at once.
type codec struct {
	encoding.CodecV2
}

func newCodec() codec { return codec{encoding.GetCodecV2(grpcproto.Name)} }

// exactAbove is in bytes: the largest size of the pool below the one of 1 MiB.
const exactAbove = 32 << 10

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	size := proto.Size(m)
	if size <= exactAbove {
		return c.CodecV2.Marshal(v)
	}
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(make([]byte, 0, size), m)
	if err != nil {
		return nil, fmt.Errorf("marshal %T: %w", v, err)
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

// Serve answers calls on the connections of lis until ctx ends, then closes lis and all of them and returns nil.
// Calls in progress are cancelled.
func Serve(ctx context.Context, lis net.Listener, register func(*grpc.Server)) error {
	server := grpc.NewServer(
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connectionWindow),
		grpc.ReadBufferSize(ioBuffer),
		grpc.WriteBufferSize(ioBuffer),
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.MaxSendMsgSize(MaxMessage),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: serverPing, Timeout: serverPingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	)
	register(server)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		server.Stop()
	})
	err := server.Serve(lis)
	if !stop() {
		<-stopped
		return nil
	}
	server.Stop()
	return fmt.Errorf("grpc serve %s: %w", lis.Addr(), err)
}

// ConnListener is a net.Listener of connections that were made elsewhere. Use NewConnListener.
type ConnListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// NewConnListener returns a listener that accepts conns first, then what Deliver is given.
func NewConnListener(conns ...net.Conn) *ConnListener {
	l := &ConnListener{conns: make(chan net.Conn, max(len(conns), 16)), closed: make(chan struct{})}
	for _, c := range conns {
		l.conns <- c
	}
	return l
}

// Deliver hands conn to Accept. It fails with net.ErrClosed once the listener is closed, and then closes conn.
func (l *ConnListener) Deliver(conn net.Conn) error {
	select {
	case <-l.closed:
	default:
		select {
		case l.conns <- conn:
			return nil
		case <-l.closed:
		}
	}
	conn.Close()
	return net.ErrClosed
}

// Accept waits for the next connection or Close.
func (l *ConnListener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept and closes the connections nobody accepted.
func (l *ConnListener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		for {
			select {
			case c := <-l.conns:
				c.Close()
			default:
				return
			}
		}
	})
	return nil
}

// Addr is a fixed name.
func (l *ConnListener) Addr() net.Addr { return connAddr{} }

type connAddr struct{}

func (connAddr) Network() string { return "memory" }
func (connAddr) String() string  { return "memory" }
