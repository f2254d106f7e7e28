package tcpstore

import (
	"io"
	"net"
	"time"
)

// scriptedConn is a peer that sends a script a number of times and hangs up; what it is answered is dropped.
type scriptedConn struct {
	net.Conn
	script []byte
	repeat int
	at     int
}

func (c *scriptedConn) Read(p []byte) (n int, err error) {
	for n < len(p) && c.repeat > 0 {
		m := copy(p[n:], c.script[c.at:])
		n += m
		if c.at += m; c.at == len(c.script) {
			c.at = 0
			c.repeat--
		}
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (c *scriptedConn) Write(p []byte) (int, error) { return len(p), nil }
func (c *scriptedConn) Close() error                { return nil }
func (c *scriptedConn) RemoteAddr() net.Addr        { return nil }

func (c *scriptedConn) SetDeadline(time.Time) error { return nil }

// handshaken sends the handshake before what its Conn sends.
type handshaken struct {
	net.Conn
	sent bool
}

func (c *handshaken) Read(p []byte) (int, error) {
	if !c.sent {
		c.sent = true
		return copy(p, "\x00\xce\xf7\x85\x3c"), nil
	}
	return c.Conn.Read(p)
}
