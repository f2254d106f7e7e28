package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ephemeral-launcher/launcher/providers"
)

// lastCalls is how long calls in flight may take to notice that they are cancelled when the plugin ends.
const lastCalls = 1500 * time.Millisecond

// Serve is a plugin's main function. It returns when the host has no more use for the plugin, and ends the process when the
// host is gone. Started by a person it says so on stderr and exits with 1.
//
// Before it nothing may be printed on stdout. Stderr is the host's log: Serve sets the default logger of log/slog to one
// whose lines keep level and attributes there. Stdin is taken; the provider finds it empty.
func Serve(p providers.Provider) {
	if os.Getenv(cookieKey) == cookieValue {
		slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})))
	}
	s := newService(p)
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: handshake(),
		VersionedPlugins: map[int]goplugin.PluginSet{
			protocolVersion: {pluginName: seam{serve: func(server *grpc.Server) {
				s.register(server)
				// Here, because go-plugin has checked by now that it is a host that started us.
				go s.watch(lifeline())
			}}},
		},
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(opts, grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))...)
		},
		Logger: hclogger(slog.Default(), hclog.Warn, false),
	})
	s.stop()
}

// lifeline takes stdin away from the provider.
func lifeline() *os.File {
	line := os.Stdin
	if null, err := os.Open(os.DevNull); err == nil {
		os.Stdin = null
	}
	return line
}

// service answers for a provider.
type service struct {
	provider providers.Provider
	// ended is over when the plugin is about to end; calls in flight end with it.
	ended context.Context
	end   context.CancelFunc
	mu    sync.Mutex // guards stopped, and orders calls.Add before calls.Wait
	// stopped refuses new calls.
	stopped bool
	calls   sync.WaitGroup
}

func newService(p providers.Provider) *service {
	s := &service{provider: p}
	s.ended, s.end = context.WithCancel(context.Background())
	return s
}

// watch ends the process at the lifeline's end of file: the host is gone and nobody else would end it. Nothing may stop
// that, so it waits for calls in flight only so long and does not return.
func (s *service) watch(line io.Reader) {
	_, _ = io.Copy(io.Discard, line)
	s.stop()
	if dir := os.Getenv(goplugin.EnvUnixSocketDir); dir != "" {
		// Left by a host that was killed; go-plugin made it for this process alone, and named it and the socket.
		if sockets, err := filepath.Glob(filepath.Join(dir, "plugin*")); err == nil {
			for _, socket := range sockets {
				_ = os.Remove(socket)
			}
		}
		_ = os.Remove(dir)
	}
	os.Exit(0)
}

// stop cancels the calls in flight and gives them a moment to notice.
func (s *service) stop() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.end()
	done := make(chan struct{})
	go func() { // ends with the last call, or with the process
		s.calls.Wait()
		close(done)
	}()
	timer := time.NewTimer(lastCalls)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// enter counts a call in, unless the plugin is ending.
func (s *service) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.calls.Add(1)
	}
	return !s.stopped
}

func (s *service) register(server *grpc.Server) {
	desc := &grpc.ServiceDesc{ServiceName: serviceName, HandlerType: (*any)(nil), Metadata: "provider.proto"}
	for op, call := range s.methods() {
		desc.Methods = append(desc.Methods, grpc.MethodDesc{
			MethodName: methodName(op),
			Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				var request wrapperspb.BytesValue
				if err := decode(&request); err != nil {
					return nil, err
				}
				reply, err := s.answer(ctx, op, request.GetValue(), call)
				if err != nil {
					return nil, err
				}
				return wrapperspb.Bytes(reply), nil
			},
		})
	}
	server.RegisterService(desc, s)
}

// answer makes one call of the provider. A panic is that call's alone.
func (s *service) answer(ctx context.Context, op string, request []byte, call method) (reply []byte, err error) {
	if !s.enter() {
		return encodeReply(op, nil, providers.Errorf(providers.Unavailable, op, "the plugin is ending"))
	}
	defer s.calls.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ended, cancel)()
	defer func() {
		if r := recover(); r != nil {
			slog.Error("panic in the provider", "op", op, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			reply, err = encodeReply(op, nil, providers.Errorf(providers.Internal, op, "panic: %v", r))
		}
	}()
	result, err := call(ctx, request)
	return encodeReply(op, result, err)
}

// method is one of the provider's, on JSON.
type method func(ctx context.Context, request []byte) (result any, err error)

// unpacked makes a method of a function on values.
func unpacked[Request any](op string, do func(ctx context.Context, req Request) (any, error)) method {
	return func(ctx context.Context, request []byte) (any, error) {
		var req Request
		if err := json.Unmarshal(request, &req); err != nil {
			return nil, providers.Errorf(providers.Invalid, op, "decode the request: %w", err)
		}
		return do(ctx, req)
	}
}

func (s *service) methods() map[string]method {
	p := s.provider
	return map[string]method{
		opInfo: unpacked(opInfo, func(ctx context.Context, _ struct{}) (any, error) { return p.Info(ctx) }),
		opOffers: unpacked(opOffers, func(ctx context.Context, req providers.OffersRequest) (any, error) {
			return p.Offers(ctx, req)
		}),
		opCreate: unpacked(opCreate, func(ctx context.Context, req providers.CreateRequest) (any, error) {
			return p.Create(ctx, req)
		}),
		opList: unpacked(opList, func(ctx context.Context, filter providers.Filter) (any, error) {
			return p.List(ctx, filter)
		}),
		opDelete: unpacked(opDelete, func(ctx context.Context, req providers.DeleteRequest) (any, error) {
			return p.Delete(ctx, req)
		}),
		opUpdate: unpacked(opUpdate, func(ctx context.Context, req providers.UpdateRequest) (any, error) {
			return struct{}{}, p.Update(ctx, req)
		}),
		opPreempt: unpacked(opPreempt, func(ctx context.Context, req providers.PreemptRequest) (any, error) {
			drill, ok := providers.As[providers.Preempter](p)
			if !ok {
				return nil, lacks(opPreempt)
			}
			return struct{}{}, drill.Preempt(ctx, req)
		}),
		opCheck: unpacked(opCheck, func(ctx context.Context, config json.RawMessage) (any, error) {
			check, ok := providers.As[providers.Checker](p)
			if !ok {
				return nil, lacks(opCheck)
			}
			if string(config) == "null" { // no block
				config = nil
			}
			return check.Check(ctx, config)
		}),
	}
}

func lacks(op string) error {
	return providers.Errorf(providers.Invalid, op, "the provider has no %s", op)
}
