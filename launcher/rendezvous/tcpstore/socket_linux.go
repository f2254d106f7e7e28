package tcpstore

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// setUserTimeout has the kernel close the connection once sent bytes stay unacknowledged for d: there are no keep-alive probes while
// such bytes exist (tcp(7)).
func setUserTimeout(conn *net.TCPConn, d time.Duration) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}
