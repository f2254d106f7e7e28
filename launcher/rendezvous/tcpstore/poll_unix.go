//go:build unix

package tcpstore

import (
	"io"
	"iter"
	"net"
	"syscall"
)

// pollReader reads a TCP connection with half the system calls of net.Conn.Read, which tries to read before it waits: a request-reply protocol pays
// for that with one failing read per request. After a short read this one waits first.
//
// Waiting first is only sound as long as nobody resets the runtime's readiness flag, which RawConn.Read does when it is called, but not while it runs. So one call of it
// runs as long as the connection is read, as a coroutine that comes back whenever there may be something to read. It holds
// the descriptor, which therefore cannot be reused meanwhile.
type pollReader struct {
	readable func() (fd uintptr, ok bool)
	stop     func()
	fd       uintptr
	drained  bool // nothing was left at the last read; what came since sets the readiness flag
	err      error
}

func newPollReader(conn *net.TCPConn) (*pollReader, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	r := &pollReader{drained: true}
	r.readable, r.stop = iter.Pull(func(yield func(uintptr) bool) {
		r.err = raw.Read(func(fd uintptr) (done bool) { return !yield(fd) })
	})
	return r, nil
}

// Read is not for two goroutines at a time.
func (r *pollReader) Read(p []byte) (int, error) {
	for {
		if r.drained {
			fd, ok := r.readable()
			if !ok {
				if r.err != nil {
					return 0, r.err
				}
				return 0, net.ErrClosed
			}
			r.fd = fd
		}
		n, err := syscall.Read(int(r.fd), p)
		switch {
		case err == syscall.EINTR:
		case err == syscall.EAGAIN:
			r.drained = true
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			r.drained = n < len(p)
			return n, nil
		}
	}
}
