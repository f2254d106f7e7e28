package tcpstore

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// ClientOptions configures a Client. The zero value speaks DialectG.
type ClientOptions struct {
	Dialect Dialect // what to speak; default DialectG
	// CancelGrace bounds how long a cancelled wait may take to be confirmed before the connection is given up; default 5 s.
	CancelGrace time.Duration
}

// Client is one connection to a TCPStore server, this package's or PyTorch's. Methods may be called from any goroutine; requests take turns, so a wait keeps
// the others waiting too: use a Client per waiting goroutine.
//
// Keys go out as given. To meet PyTorch's own clients, put a "/" before their keys.
//
// Cancelling the context of a wait (Wait, Get, QueuePop, Barrier) sends CANCEL_WAIT and leaves the Client usable; in dialect A, which has no such
// request, and in the middle of any other exchange it closes the connection, because the reply to come would be taken for another's.
type Client struct {
	conn    net.Conn
	dialect Dialect
	grace   time.Duration

	turn   chan struct{} // holds one token; who has it owns the fields below
	in     *bufio.Reader
	buf    []byte
	nonce  uint32
	broken error // the connection cannot be used any more
}

// Dial connects to address over TCP and opens a Client.
func Dial(ctx context.Context, address string, opts ClientOptions) (*Client, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("tcpstore dial %s: %w", address, err)
	}
	return NewClient(ctx, conn, opts)
}

// NewClient opens a Client on conn: it sends the handshake of the dialect and, since dialect D, waits for the answer. It closes conn if that fails.
func NewClient(ctx context.Context, conn net.Conn, opts ClientOptions) (*Client, error) {
	if opts.Dialect == DialectAuto {
		opts.Dialect = DialectG
	}
	if opts.CancelGrace == 0 {
		opts.CancelGrace = 5 * time.Second
	}
	c := &Client{
		conn:    conn,
		dialect: opts.Dialect,
		grace:   opts.CancelGrace,
		turn:    make(chan struct{}, 1),
		in:      bufio.NewReaderSize(conn, readBuffer),
		nonce:   uint32(os.Getpid()),
	}
	c.turn <- struct{}{}
	if err := c.handshake(ctx); err != nil {
		conn.Close()
		return nil, fmt.Errorf("tcpstore handshake: %w", err)
	}
	return c, nil
}

// Close closes the connection; a request under way fails.
func (c *Client) Close() error { return c.conn.Close() }

func (c *Client) handshake(ctx context.Context) error {
	if c.dialect < DialectC {
		return nil
	}
	return c.exchange(ctx, opValidate, func() error {
		c.uint32(magic)
		if c.dialect >= DialectD {
			return c.ping()
		}
		return c.flush()
	})
}

// exchange runs talk with the opcode of o in the buffer, in turn. When ctx ends before talk does, the connection is closed.
func (c *Client) exchange(ctx context.Context, o op, talk func() error) error {
	if err := c.take(ctx, o); err != nil {
		return err
	}
	defer c.give()
	return c.guarded(ctx, talk)
}

// take waits for the turn and starts a request.
func (c *Client) take(ctx context.Context, o op) error {
	code, err := c.dialect.code(o)
	if err != nil {
		return err
	}
	select {
	case <-c.turn:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := c.usable(ctx); err != nil {
		c.give()
		return err
	}
	c.buf = append(c.buf[:0], code)
	return nil
}

func (c *Client) usable(ctx context.Context) error {
	if c.broken != nil {
		return c.broken
	}
	return context.Cause(ctx)
}

func (c *Client) give() {
	if cap(c.buf) > keepBuffer {
		c.buf = nil
	}
	c.turn <- struct{}{}
}

// guarded runs talk and closes the connection when ctx ends first.
func (c *Client) guarded(ctx context.Context, talk func() error) error {
	if ctx.Done() == nil {
		return c.settle(talk())
	}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		c.conn.Close()
	})
	err := talk()
	if !stop() {
		<-closed
		err = errors.Join(context.Cause(ctx), err)
	}
	return c.settle(err)
}

// settle marks the client broken after an error in the stream, which cannot be picked up again.
func (c *Client) settle(err error) error {
	if err != nil {
		c.conn.Close()
		c.broken = fmt.Errorf("tcpstore connection: %w", err)
		return c.broken
	}
	return nil
}

func (c *Client) uint32(v uint32) { c.buf = binary.LittleEndian.AppendUint32(c.buf, v) }
func (c *Client) int64(v int64)   { c.buf = binary.LittleEndian.AppendUint64(c.buf, uint64(v)) }

func (c *Client) text(s string) {
	c.int64(int64(len(s)))
	c.buf = append(c.buf, s...)
}

func (c *Client) vector(v []byte) {
	c.int64(int64(len(v)))
	c.buf = append(c.buf, v...)
}

func (c *Client) texts(list []string) {
	c.int64(int64(len(list)))
	for _, s := range list {
		c.text(s)
	}
}

// code appends an opcode behind what is in the buffer; the dialect has it.
func (c *Client) code(o op) error {
	code, err := c.dialect.code(o)
	c.buf = append(c.buf, code)
	return err
}

func (c *Client) flush() error {
	_, err := c.conn.Write(c.buf)
	c.buf = c.buf[:0]
	return err
}

func (c *Client) readByte() (byte, error) { return c.in.ReadByte() }

func (c *Client) readInt64() (int64, error) {
	p, err := c.in.Peek(8)
	if err != nil {
		return 0, err
	}
	v := int64(binary.LittleEndian.Uint64(p))
	c.in.Discard(8)
	return v, nil
}

// readVector reads a vector, making room as its bytes arrive.
func (c *Client) readVector() ([]byte, error) {
	n, err := c.readInt64()
	if err != nil {
		return nil, err
	}
	if n < 0 {
		return nil, fmt.Errorf("vector of %d bytes: %w", n, ErrProtocol)
	}
	var v []byte
	for left := n; left > 0; {
		step := int(min(left, int64(max(keepBuffer, len(v)))))
		from := len(v)
		v = append(v, make([]byte, step)...)
		if _, err := io.ReadFull(c.in, v[from:]); err != nil {
			return nil, err
		}
		left -= int64(step)
	}
	return v, nil
}

// wait sends the request in the buffer and reads its one-byte answer, however late. When ctx ends first it sends CANCEL_WAIT and reads on until that is
// confirmed; an answer that was under way is passed over, or rather taken: the wait did succeed.
func (c *Client) wait(ctx context.Context) error {
	cancel, err := c.dialect.code(opCancelWait)
	if err != nil {
		return c.guarded(ctx, func() error {
			if err := c.flush(); err != nil {
				return err
			}
			return c.answer(replyStopWaiting)
		})
	}
	if err := c.flush(); err != nil {
		return c.settle(err)
	}
	if ctx.Done() == nil {
		return c.settle(c.answer(replyStopWaiting))
	}
	sent := make(chan *time.Timer, 1)
	stop := context.AfterFunc(ctx, func() {
		// The grace bounds the write as well as the answer. The closed connection ends the read below.
		giveUp := time.AfterFunc(c.grace, func() { c.conn.Close() })
		c.conn.Write([]byte{cancel})
		sent <- giveUp
	})
	reply, err := c.readByte()
	if stop() {
		if err == nil && reply != replyStopWaiting {
			err = fmt.Errorf("answer %d to a wait: %w", reply, ErrProtocol)
		}
		return c.settle(err)
	}
	giveUp := <-sent
	defer giveUp.Stop()
	stopped := err == nil && reply == replyStopWaiting
	if stopped {
		reply, err = c.readByte()
	}
	if err == nil && reply != replyWaitCanceled {
		err = fmt.Errorf("answer %d to a cancelled wait: %w", reply, ErrProtocol)
	}
	if err != nil {
		return c.settle(errors.Join(context.Cause(ctx), err))
	}
	if stopped {
		return nil
	}
	return context.Cause(ctx)
}

// answer reads a byte that has to be want.
func (c *Client) answer(want byte) error {
	got, err := c.readByte()
	if err == nil && got != want {
		err = fmt.Errorf("answer %d, not %d: %w", got, want, ErrProtocol)
	}
	return err
}

// ping sends a PING behind what is in the buffer and compares the echo.
func (c *Client) ping() error {
	c.nonce++
	if err := c.code(opPing); err != nil {
		return err
	}
	c.uint32(c.nonce)
	if err := c.flush(); err != nil {
		return err
	}
	p, err := c.in.Peek(4)
	if err != nil {
		return err
	}
	if got := binary.LittleEndian.Uint32(p); got != c.nonce {
		return fmt.Errorf("ping %d answered %d: %w", c.nonce, got, ErrProtocol)
	}
	c.in.Discard(4)
	return nil
}
