package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/ephemeral-launcher/launcher/launcher/control"
)

// bridge passes bytes between the standard streams, which are an SSH channel, and the agent's socket.
type bridge struct {
	in   io.Reader // what is left of standard input
	conn *net.UnixConn
}

// run announces the bridge and lasts until either side ends. Its end is the end of the process: a read from standard
// input cannot be called off.
func (b *bridge) run() error {
	if _, err := io.WriteString(os.Stdout, control.ReadyLine); err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	ended := make(chan error, 2)
	go func() {
		_, err := io.Copy(b.conn, b.in)
		if err == nil {
			// The head has gone. There is nothing to wait for: nobody reads our output.
			err = b.conn.Close()
		}
		ended <- err
	}()
	go func() {
		_, err := io.Copy(os.Stdout, b.conn)
		ended <- err
	}()
	if err := <-ended; err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("bridge: %w", err)
	}
	return nil
}
