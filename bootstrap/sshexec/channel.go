package sshexec

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// Channel is a net.Conn whose other end is a remote command: writes are its
// stdin, reads its stdout. It is meant to carry gRPC. Deadlines and Close act at
// once also when the peer is stalled, which x/crypto's channels cannot; for that
// it has a send and a receive buffer of 64 KiB each, as a socket has.
type Channel struct {
	remote *remote
	addr   string
	rx, tx *buffer
	stderr tail
	// collected is closed when stderr is complete, over when everything is.
	collected, over chan struct{}

	mu   sync.Mutex
	late *time.Timer // set by Close: ends the lingering
}

var _ net.Conn = (*Channel)(nil)

const (
	channelBuffer = 64 << 10
	// sendSize bounds what is sent at once: x/crypto's channel and its cipher each
	// keep memory for the largest packet there was (ssh/channel.go, packetPool;
	// ssh/cipher.go, gcmCipher.buf), which for 32 KiB is 64 KiB a connection. Only
	// of a file, more than bulkAfter without a pause, larger pieces are worth it.
	sendSize  = 2 << 10
	bulkAfter = 1 << 20
	bulkSize  = 16 << 10
	// lingerAfterEOF is how long Read waits behind the end of stdout for the reason
	// of it, which a healthy server sends right away.
	lingerAfterEOF = time.Second
	// lingerOnClose is how long Close leaves the server to take what is written.
	lingerOnClose = 5 * time.Second
)

// ExitError is what Read returns at the end of stdout of a command that failed.
type ExitError struct {
	Exit   Exit
	Stderr []byte // the last MaxStderrTail bytes
}

func (e *ExitError) Error() string {
	if len(e.Stderr) == 0 {
		return "remote command: " + e.Exit.String()
	}
	lines := strings.Split(strings.TrimSpace(string(e.Stderr)), "\n")
	return fmt.Sprintf("remote command: %s: %s", e.Exit, lines[len(lines)-1])
}

// Channel starts a command and returns the connection to it. ctx bounds the start
// only.
func (c *Conn) Channel(ctx context.Context, cmd string) (*Channel, error) {
	p, err := c.open(ctx, cmd, nil)
	if err != nil {
		return nil, err
	}
	ch := &Channel{remote: p, addr: c.addr, rx: &buffer{}, tx: &buffer{}, collected: make(chan struct{}), over: make(chan struct{})}
	ch.tx.carry = func() bool { return c.start(ch.send) }
	if !c.start(func() {
		var pumps sync.WaitGroup
		pumps.Go(ch.collect)
		ch.receive()
		pumps.Wait()
	}) {
		_ = p.channel.Close()
		return nil, c.closedError()
	}
	return ch, nil
}

// receive moves stdout to rx to its end, also after Close, so that the window
// stays open and the server's answer to our close is seen.
func (ch *Channel) receive() {
	small := make([]byte, 512)
	buf := small
	for {
		n, err := ch.remote.channel.Read(buf)
		_, _ = ch.rx.put(buf[:n], false) // after Close it is thrown away
		// Most messages are small, and most channels idle.
		if n < len(small) {
			buf = small
		} else if len(buf) == len(small) {
			buf = make([]byte, 32<<10)
		}
		if err != nil {
			break
		}
	}
	linger := time.NewTimer(lingerAfterEOF)
	defer linger.Stop()
	end := io.EOF
	select {
	case <-ch.remote.over:
		<-ch.collected // stderr has ended with the channel
		if ch.remote.err != nil {
			end = ch.remote.err
		} else if !ch.remote.exit.OK() {
			end = &ExitError{Exit: ch.remote.exit, Stderr: ch.stderr.bytes()}
		}
	case <-linger.C:
	}
	ch.rx.finish(end)
	<-ch.remote.over
	<-ch.collected
	close(ch.over)
	ch.tx.abandon(io.ErrClosedPipe) // nobody is left to write to
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.late != nil {
		ch.late.Stop()
	}
}

// send moves tx to stdin, as long as there is something. A half-close closes
// stdin, a close the channel.
func (ch *Channel) send() {
	for sent := 0; ; {
		data, err := ch.tx.next()
		switch {
		case err == errIdle:
			return
		case err == io.EOF:
			_ = ch.remote.channel.CloseWrite() // the command may have ended
		case err != nil:
			_ = ch.remote.channel.CloseWrite()
			_ = ch.remote.channel.Close()
			return
		}
		for len(data) > 0 {
			n := min(len(data), sendSize)
			if sent > bulkAfter {
				n = min(len(data), bulkSize)
			}
			if _, err := ch.remote.channel.Write(data[:n]); err != nil {
				ch.tx.abandon(io.ErrClosedPipe)
				break
			}
			data = data[n:]
			sent += n
		}
	}
}

func (ch *Channel) collect() {
	defer close(ch.collected)
	buf := make([]byte, 256) // io.Copy's 32 KiB would sit idle in every channel
	for {
		n, err := ch.remote.channel.Stderr().Read(buf)
		_, _ = ch.stderr.Write(buf[:n]) // a tail never fails
		if err != nil {
			return
		}
	}
}

// Read reads stdout. At its end it returns io.EOF if the command succeeded or
// still runs, an ExitError if it failed, or the connection's *Error.
func (ch *Channel) Read(p []byte) (int, error) {
	n, err := ch.rx.take(p)
	return n, ch.opError("read", err)
}

// Write puts p in the send buffer, waiting for room.
func (ch *Channel) Write(p []byte) (int, error) {
	n, err := ch.tx.put(p, true)
	return n, ch.opError("write", err)
}

// CloseWrite closes the command's stdin after what is buffered.
func (ch *Channel) CloseWrite() error {
	ch.tx.finish(io.EOF)
	return nil
}

// Close ends the channel and with it the command's streams; what is buffered is
// still sent, for 5 s at most. It does not wait.
func (ch *Channel) Close() error {
	if !ch.rx.abandon(net.ErrClosed) {
		return nil // closed before
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	select {
	case <-ch.over:
	default:
		// x/crypto drops the second of two closes.
		ch.late = time.AfterFunc(lingerOnClose, func() { _ = ch.remote.channel.Close() })
	}
	ch.tx.finish(net.ErrClosed)
	return nil
}

// Wait waits for the command's end, with which Stderr is complete.
func (ch *Channel) Wait(ctx context.Context) (Exit, error) {
	select {
	case <-ch.over:
		return ch.remote.exit, ch.remote.err
	case <-ctx.Done():
		return Exit{}, context.Cause(ctx)
	}
}

// Stderr is the last 16 KiB the command wrote there so far.
func (ch *Channel) Stderr() []byte { return ch.stderr.bytes() }

type channelAddr string

func (channelAddr) Network() string  { return "ssh" }
func (a channelAddr) String() string { return string(a) }

func (ch *Channel) LocalAddr() net.Addr  { return channelAddr("local") }
func (ch *Channel) RemoteAddr() net.Addr { return channelAddr(ch.addr) }

func (ch *Channel) SetDeadline(t time.Time) error {
	_ = ch.SetReadDeadline(t) // neither can fail
	return ch.SetWriteDeadline(t)
}

func (ch *Channel) SetReadDeadline(t time.Time) error {
	ch.rx.setDeadline(t)
	return nil
}

func (ch *Channel) SetWriteDeadline(t time.Time) error {
	ch.tx.setDeadline(t)
	return nil
}

func (ch *Channel) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "ssh", Addr: ch.RemoteAddr(), Err: err}
}
