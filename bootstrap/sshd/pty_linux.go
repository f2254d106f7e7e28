package sshd

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// ShellPTY says whether Shell can give a command a terminal on this system.
const ShellPTY = true

// openPTY opens a pair by pts(4): unlock the new slave, then open it by number.
func openPTY(size WindowSize) (control, terminal *os.File, err error) {
	control, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = control.Close()
		}
	}()
	var number uint32
	// Through SyscallConn, because Fd would turn the file back to blocking, and
	// then a read in progress could not be ended.
	if err := withFd(control, func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		var err error
		number, err = unix.IoctlGetUint32(fd, unix.TIOCGPTN)
		return err
	}); err != nil {
		return nil, nil, err
	}
	if err := resizePTY(control, size); err != nil {
		return nil, nil, err
	}
	terminal, err = os.OpenFile("/dev/pts/"+strconv.FormatUint(uint64(number), 10), os.O_RDWR|unix.O_NOCTTY, 0)
	return control, terminal, err
}

func withFd(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = do(int(fd)) }); err != nil {
		return err
	}
	return inner
}

func resizePTY(control *os.File, size WindowSize) error {
	return withFd(control, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(size.Rows), Col: uint16(size.Columns)})
	})
}

func (p *shellProcess) startPTY(s Shell, c Command) error {
	control, terminal, err := openPTY(c.PTY.Size)
	if err != nil {
		return fmt.Errorf("open terminal: %w", err)
	}
	defer terminal.Close()
	cmd := p.cmd
	cmd.Env = append(cmd.Env, "TERM="+c.PTY.Term)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if s.Prepare != nil {
		s.Prepare(cmd)
	}
	// A session makes the process group, too.
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty, cmd.SysProcAttr.Ctty = true, true, 0
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	if err := cmd.Start(); err != nil {
		_ = control.Close()
		return fmt.Errorf("start shell on a terminal: %w", err)
	}
	p.pty = control
	p.input.Go(func() { _, _ = io.Copy(control, c.Stdin) })   // EIO once the terminal is closed
	p.output.Go(func() { _, _ = io.Copy(c.Stdout, control) }) // EIO once nobody holds the terminal
	return nil
}
