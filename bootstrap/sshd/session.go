package sshd

import (
	"context"
	"io"
	"slices"
	"sync"

	"golang.org/x/crypto/ssh"
)

// The payloads of RFC 4254 §6.2 to §6.10.
type (
	ptyRequest struct {
		Term                         string
		Columns, Rows, Width, Height uint32
		Modes                        string
	}
	windowChange struct{ Columns, Rows, Width, Height uint32 }
	envRequest   struct{ Name, Value string }
	execRequest  struct{ Line string }
	signalName   struct{ Name string }
	exitStatus   struct{ Code uint32 }
	exitSignal   struct {
		Name       string
		CoreDumped bool
		Message    string
		Language   string
	}
)

// session is one session channel: requests set it up, exec or shell starts its
// one command, and its end closes the channel.
type session struct {
	server  *Server
	channel ssh.Channel
	user    string
	env     []string
	pty     *PTY

	process Process // nil until started, with the two ends of its stdin
	stdin   *io.PipeReader
	feed    *io.PipeWriter
}

func (s *Server) session(ctx context.Context, user string, n ssh.NewChannel) {
	ch, requests, err := n.Accept()
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	defer ch.Close()

	se := &session{server: s, channel: ch, user: user}
	// The loop ends when the client has closed the channel (also in answer to our
	// close) or the connection is gone.
	for r := range requests {
		// Reply sends nothing unless a reply is wanted; a lost connection ends the loop.
		if r.Type == "exec" || r.Type == "shell" {
			ok := se.start(ctx, r)
			// The answer goes out before the exit status can, else the client
			// sees its request die with the channel.
			_ = r.Reply(ok, nil)
			if ok {
				se.attend(&wg)
			}
			continue
		}
		_ = r.Reply(se.request(r), nil)
	}
	if se.process != nil {
		se.process.Hangup()
	}
}

// request serves what is neither exec nor shell.
func (se *session) request(r *ssh.Request) bool {
	switch r.Type {
	case "env":
		var e envRequest
		if ssh.Unmarshal(r.Payload, &e) != nil || se.process != nil || !slices.Contains(se.server.o.AcceptEnv, e.Name) {
			return false
		}
		se.env = append(se.env, e.Name+"="+e.Value)
		return true
	case "pty-req":
		var p ptyRequest
		if ssh.Unmarshal(r.Payload, &p) != nil || se.process != nil || !se.server.o.AllowPTY {
			return false
		}
		se.pty = &PTY{Term: p.Term, Size: WindowSize{Rows: p.Rows, Columns: p.Columns}}
		return true
	case "window-change":
		var w windowChange
		if ssh.Unmarshal(r.Payload, &w) != nil || se.process == nil || se.pty == nil {
			return false
		}
		return se.process.Resize(WindowSize{Rows: w.Rows, Columns: w.Columns}) == nil
	case "signal":
		var sig signalName
		if ssh.Unmarshal(r.Payload, &sig) != nil || se.process == nil {
			return false
		}
		return se.process.Signal(sig.Name) == nil
	}
	return false
}

// start serves exec and shell: one command per session (RFC 4254 §6.5).
func (se *session) start(ctx context.Context, r *ssh.Request) bool {
	var e execRequest
	if r.Type == "exec" && ssh.Unmarshal(r.Payload, &e) != nil {
		return false
	}
	if se.process != nil {
		return false
	}
	stdin, feed := io.Pipe()
	process, err := se.server.o.Runner.Start(ctx, Command{
		User: se.user, Line: e.Line, Env: se.env, PTY: se.pty,
		Stdin: stdin, Stdout: se.channel, Stderr: se.channel.Stderr(),
	})
	if err != nil {
		se.server.o.Log.Warn("start session command", "error", err)
		return false
	}
	se.process, se.stdin, se.feed = process, stdin, feed
	return true
}

// attend feeds the started command and reports its end.
func (se *session) attend(wg *sync.WaitGroup) {
	wg.Go(func() {
		_, err := io.Copy(se.feed, se.channel)
		_ = se.feed.CloseWithError(err) // never fails; nil reads as io.EOF
		// Nobody reads any more: keep the window open, the client may still send.
		_, _ = io.Copy(io.Discard, se.channel)
	})
	wg.Go(func() {
		exit := se.process.Wait()
		_ = se.stdin.Close()
		se.report(exit)
		_ = se.channel.Close() // the client's answer ends the request loop
	})
}

// report tells the client how the command ended; a lost connection has nobody to tell.
func (se *session) report(exit Exit) {
	_ = se.channel.CloseWrite()
	if exit.Signal != "" {
		_, _ = se.channel.SendRequest("exit-signal", false, ssh.Marshal(exitSignal{Name: exit.Signal}))
		return
	}
	_, _ = se.channel.SendRequest("exit-status", false, ssh.Marshal(exitStatus{Code: uint32(exit.Code)}))
}
