package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"google.golang.org/grpc"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/providers"
)

// Command is what Handle.Exec runs on a node.
type Command struct {
	// Argv is the command: one element is a line for the node's shell, several are run as they are, none is a login shell.
	Argv []string
	// Terminal, if set, is what it runs on; both outputs then come on Stdout.
	Terminal *sshexec.Terminal
	sshexec.Streams
}

// Exec runs a command on a node, w2 or w2.1, or on the head for "". With no Argv and a Terminal it is a shell. On a worker it runs in the
// workdir. It does not wait for a Read of Stdin in progress.
func (h *Handle) Exec(ctx context.Context, node string, c Command) (sshexec.Exit, error) {
	ctx, cancel := h.alive(ctx)
	defer cancel()
	b := h.current()
	n, err := findNode(b.state(), node)
	if err != nil {
		return sshexec.Exit{}, err
	}
	conn, done, err := b.reach(ctx)
	if err != nil {
		return sshexec.Exit{}, err
	}
	defer done()
	if n.Role == providers.Head {
		return conn.exec(ctx, c)
	}
	return conn.nodeExec(ctx, n.Name, c)
}

// exec runs on the head itself.
func (c *connection) exec(ctx context.Context, cmd Command) (sshexec.Exit, error) {
	line := ""
	switch len(cmd.Argv) {
	case 0:
		if cmd.Terminal == nil {
			return sshexec.Exit{}, errors.New("exec: no command, and no terminal for a shell")
		}
	case 1:
		line = cmd.Argv[0]
	default:
		var words []string
		for _, w := range cmd.Argv {
			words = append(words, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
		}
		line = strings.Join(words, " ")
	}
	if cmd.Terminal != nil {
		return c.ssh.Terminal(ctx, line, *cmd.Terminal, cmd.Streams)
	}
	return c.ssh.Stream(ctx, line, cmd.Streams)
}

// nodeExec runs on a worker, through the head.
func (c *connection) nodeExec(ctx context.Context, node string, cmd Command) (sshexec.Exit, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	call, err := c.api.NodeExec(ctx)
	if err != nil {
		return sshexec.Exit{}, fmt.Errorf("exec on %s: %w", node, err)
	}
	start := &control.ExecStart{Argv: cmd.Argv}
	if t := cmd.Terminal; t != nil {
		start.Tty, start.Term, start.Size = true, t.Term, &control.WindowSize{Rows: uint32(t.Size.Rows), Columns: uint32(t.Size.Columns)}
	}
	s := &execSender{call: call}
	if err := s.send(&control.NodeExecInput{Node: node, Input: &control.ExecInput{Body: &control.ExecInput_Start{Start: start}}}); err != nil {
		return sshexec.Exit{}, fmt.Errorf("exec on %s: %w", node, err)
	}
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	if cmd.Terminal != nil {
		beside.Go(func() { s.terminal(ctx, *cmd.Terminal) })
	}
	go s.stdin(ctx, cmd.Stdin) // ends with its Read: see Exec
	for {
		out, err := call.Recv()
		if err != nil {
			return sshexec.Exit{}, fmt.Errorf("exec on %s: %w", node, err)
		}
		switch b := out.Body.(type) {
		case *control.ExecOutput_Stdout:
			err = write(cmd.Stdout, b.Stdout)
		case *control.ExecOutput_Stderr:
			err = write(cmd.Stderr, b.Stderr)
		case *control.ExecOutput_Exit:
			if b.Exit.Error != "" {
				return sshexec.Exit{}, fmt.Errorf("exec on %s: %s", node, b.Exit.Error)
			}
			return sshexec.Exit{Code: int(b.Exit.Code), Signal: b.Exit.Signal}, nil
		}
		if err != nil {
			return sshexec.Exit{}, fmt.Errorf("exec on %s: %w", node, err)
		}
	}
}

func write(w io.Writer, p []byte) error {
	if w == nil {
		return nil
	}
	_, err := w.Write(p)
	return err
}

// execSender is the input side of a NodeExec call.
type execSender struct {
	mu   sync.Mutex // a stream takes one Send at a time
	call grpc.BidiStreamingClient[control.NodeExecInput, control.ExecOutput]
}

func (s *execSender) send(in *control.NodeExecInput) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.call.Send(in)
}

func (s *execSender) stdin(ctx context.Context, r io.Reader) {
	buf := make([]byte, 32<<10)
	for r != nil && ctx.Err() == nil {
		n, err := r.Read(buf)
		if n > 0 && s.send(&control.NodeExecInput{Input: &control.ExecInput{Body: &control.ExecInput_Stdin{Stdin: buf[:n]}}}) != nil {
			return
		}
		if err != nil {
			break
		}
	}
	_ = s.send(&control.NodeExecInput{Input: &control.ExecInput{Body: &control.ExecInput_StdinEof{StdinEof: true}}})
}

// terminal passes on changes of size and signals until ctx ends.
func (s *execSender) terminal(ctx context.Context, t sshexec.Terminal) {
	for {
		in := &control.ExecInput{}
		select {
		case size := <-t.Resize:
			in.Body = &control.ExecInput_Resize{Resize: &control.WindowSize{Rows: uint32(size.Rows), Columns: uint32(size.Columns)}}
		case name := <-t.Signals:
			in.Body = &control.ExecInput_Signal{Signal: "SIG" + strings.TrimPrefix(name, "SIG")}
		case <-ctx.Done():
			return
		}
		if s.send(&control.NodeExecInput{Input: in}) != nil {
			return
		}
	}
}
