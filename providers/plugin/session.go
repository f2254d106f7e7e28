package plugin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ephemeral-launcher/launcher/providers"
)

const (
	// startTimeout is within what a plugin must have greeted.
	startTimeout = 30 * time.Second
	// closeGrace is how long a plugin may take to end when asked, more than it gives its own calls.
	closeGrace = lastCalls + 500*time.Millisecond
	// patience is within what a plugin that let a call's time run out must say that it lives.
	patience = 5 * time.Second
	// callTimeout bounds a call whose caller does not: Create of many machines is the longest there is.
	callTimeout = 10 * time.Minute

	// maxSocketPath is the length of a Unix socket's path that all systems take: sun_path has 104 bytes on darwin and
	// 108 on Linux, with the final zero. socketSuffix is what is added to the folder: "/plugin-dirNNNNNNNNNN/pluginNNNNNNNNNN".
	maxSocketPath = 103
	socketSuffix  = 2 + len("plugin-dir") + len("plugin") + 2*10
)

// session is one plugin process and the connection to it.
type session struct {
	client  *goplugin.Client
	process *process
	conn    *grpc.ClientConn
	// suspect: a call's time ran out, which may be the cloud's fault, or the plugin hangs.
	suspect atomic.Bool
}

// start starts the plugin with the given variables and connects. It gives up when ctx ends.
func start(ctx context.Context, opts Options, env []string) (*session, error) {
	if opts.Checksum != "" {
		sum, err := Checksum(opts.Path)
		if err != nil {
			return nil, providers.Errorf(providers.Invalid, "", "checksum of the plugin: %w", err)
		}
		if sum != opts.Checksum {
			return nil, providers.Errorf(providers.Invalid, "", "plugin %s has changed: its checksum is sha256:%s, want sha256:%s", opts.Path, sum, opts.Checksum)
		}
	}
	folder, err := socketFolder(opts.Folder)
	if err != nil {
		return nil, providers.Errorf(providers.Invalid, "", "%w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, providers.Errorf(providers.Unavailable, "", "start the plugin: %w", err)
	}
	says := &journalist{log: opts.Log}
	s := &session{process: newProcess(opts.Path, env, says)}
	s.client = goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig:  handshake(),
		VersionedPlugins: map[int]goplugin.PluginSet{protocolVersion: {pluginName: seam{}}},
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		StartTimeout:     opts.startTimeout,
		Logger:           hclogger(opts.Log, hclog.Debug, true),
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: folder},
		SyncStdout:       &lines{emit: says.line},
		SyncStderr:       &lines{emit: says.line},
		GRPCDialOptions: []grpc.DialOption{grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(opts.maxReply), grpc.MaxCallSendMsgSize(maxMessage))},
		RunnerFunc: func(_ hclog.Logger, spec *exec.Cmd, sockets string) (runner.Runner, error) {
			s.process.equip(spec.Env, sockets)
			return s.process, nil
		},
	})
	if err := s.connect(ctx); err != nil {
		s.kill()
		return nil, s.stillborn(ctx, err)
	}
	return s, nil
}

// connect starts the process and makes the connection. go-plugin's start takes no context: what ends it is the end of the process.
func (s *session) connect(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = s.process.Kill(ctx) })()
	protocol, err := s.client.Client()
	if err != nil {
		return err
	}
	service, err := protocol.Dispense(pluginName)
	if err != nil {
		return err
	}
	s.conn = service.(*grpc.ClientConn)
	return nil
}

// stillborn is the error of a plugin that did not come up.
func (s *session) stillborn(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return providers.Errorf(providers.Unavailable, "", "start the plugin: %w", ctx.Err())
	}
	code := providers.Internal
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ETXTBSY) {
		code = providers.Unavailable // the computer is short of something, or the file is being replaced
	}
	return providers.Errorf(code, "", "start the plugin: %s (%s)", clean(err.Error()), s.process.obituary())
}

// invoke makes one call. Its errors are gRPC's.
func (s *session) invoke(ctx context.Context, op string, request []byte) ([]byte, error) {
	var reply wrapperspb.BytesValue
	err := s.conn.Invoke(ctx, "/"+serviceName+"/"+methodName(op), wrapperspb.Bytes(request), &reply)
	if err != nil {
		return nil, err
	}
	return reply.GetValue(), nil
}

// lives tells whether the plugin answers at all.
func (s *session) lives(ctx context.Context, patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := grpc_health_v1.NewHealthClient(s.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: goplugin.GRPCServiceName})
	return err == nil
}

// close asks the plugin to end, makes it, and waits.
func (s *session) close() {
	timer := time.AfterFunc(closeGrace, func() { _ = s.process.Kill(context.Background()) })
	defer timer.Stop()
	s.client.Kill()
	s.kill()
}

// kill ends the plugin at once and waits until nothing of it is left.
func (s *session) kill() {
	_ = s.process.Kill(context.Background())
	<-s.process.done
	s.client.Kill() // ends its goroutines, removes the socket
}

// socketFolder is a folder for the folder of a socket: the one asked for or, where its name is too long for sockets, that
// of temporary files.
func socketFolder(asked string) (string, error) {
	choices := []string{os.TempDir(), "/tmp"}
	if asked != "" {
		if err := os.MkdirAll(asked, 0o700); err != nil {
			return "", fmt.Errorf("folder for sockets: %w", err)
		}
		choices = slices.Insert(choices, 0, asked)
	}
	for _, folder := range choices {
		folder, err := filepath.Abs(folder)
		if err == nil && len(folder)+socketSuffix <= maxSocketPath {
			return folder, nil
		}
	}
	return "", fmt.Errorf("no folder has a name short enough for a socket (%d bytes): tried %q", maxSocketPath-socketSuffix, choices)
}

// Checksum returns the SHA-256 of a file, in lower-case hexadecimal.
func Checksum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
