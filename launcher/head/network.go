package head

import (
	"context"
	"net"

	"github.com/ephemeral-launcher/launcher/bootstrap"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
)

// Network is how nodes are reached. The zero value dials real connections and bootstraps by bootstrap.Start; a test hands in memory.
type Network struct {
	// Dial connects to a machine's SSH server, waiting until it is up.
	Dial func(ctx context.Context, t sshexec.Target) (*sshexec.Conn, error)
	// Start starts a program on a machine and returns its byte stream.
	Start func(ctx context.Context, conn *sshexec.Conn, p bootstrap.Program) (net.Conn, error)
}

func (n Network) dial(ctx context.Context, t sshexec.Target) (*sshexec.Conn, error) {
	if n.Dial != nil {
		return n.Dial(ctx, t)
	}
	return sshexec.DialWhenUp(ctx, t, sshexec.Pacing{})
}

func (n Network) start(ctx context.Context, conn *sshexec.Conn, p bootstrap.Program) (net.Conn, error) {
	if n.Start != nil {
		return n.Start(ctx, conn, p)
	}
	return bootstrap.Start(ctx, conn, p)
}
