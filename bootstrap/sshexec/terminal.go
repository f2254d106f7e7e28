package sshexec

import (
	"context"
	"sync"

	"golang.org/x/crypto/ssh"
)

// Terminal asks for a command on a terminal. Putting the local one into raw mode
// and back, and noticing its changes of size, is the caller's.
type Terminal struct {
	Term    string            // TERM on the machine ["xterm"]
	Size    WindowSize        // [24 × 80]
	Resize  <-chan WindowSize // changes of size, may be nil
	Signals <-chan string     // signals to pass on by RFC 4254 §6.10 name ("INT"), may be nil
}

// WindowSize is in characters.
type WindowSize struct{ Rows, Columns int }

// Terminal runs a command, or a login shell for an empty cmd, on a terminal,
// otherwise as Stream does. Both output streams come on Stdout.
func (c *Conn) Terminal(ctx context.Context, cmd string, t Terminal, s Streams) (Exit, error) {
	return c.run(ctx, cmd, s, &t)
}

func (t *Terminal) ptyRequest() []byte {
	term, size := t.Term, t.Size
	if term == "" {
		term = "xterm"
	}
	if size == (WindowSize{}) {
		size = WindowSize{Rows: 24, Columns: 80}
	}
	return ssh.Marshal(struct {
		Term                         string
		Columns, Rows, Width, Height uint32
		Modes                        string
	}{term, uint32(size.Columns), uint32(size.Rows), 0, 0, "\x00"}) // TTY_OP_END: the machine's own modes
}

// follow passes changes of size and signals on until the returned stop is called.
func (t *Terminal) follow(p *remote) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		resize, signals := t.Resize, t.Signals
		for {
			select {
			case <-done:
				return
			case size, ok := <-resize:
				if !ok {
					resize = nil
					continue
				}
				// Neither wants a reply (RFC 4254 §6.7, §6.9); a lost channel shows elsewhere.
				_, _ = p.channel.SendRequest("window-change", false, ssh.Marshal(struct {
					Columns, Rows, Width, Height uint32
				}{uint32(size.Columns), uint32(size.Rows), 0, 0}))
			case name, ok := <-signals:
				if !ok {
					signals = nil
					continue
				}
				_ = p.signal(name)
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}
