package tcpstore

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSocketOptions: PyTorch's clients set no keep-alive, so the server has to notice a machine that vanished.
func TestSocketOptions(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	tune(conn.(*net.TCPConn), Options{}.withDefaults())
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for name, option := range map[string]struct{ level, option, want int }{
		"SO_KEEPALIVE":     {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		"TCP_NODELAY":      {unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		"TCP_KEEPIDLE":     {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 2},
		"TCP_KEEPINTVL":    {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 1},
		"TCP_KEEPCNT":      {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
		"TCP_USER_TIMEOUT": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 5000},
	} {
		var got int
		if err := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), option.level, option.option) }); err != nil {
			t.Fatal(err)
		}
		if got != option.want {
			t.Errorf("%s is %d, want %d", name, got, option.want)
		}
	}
}
