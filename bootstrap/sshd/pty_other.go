//go:build !linux

package sshd

import (
	"errors"
	"os"
)

// ShellPTY says whether Shell can give a command a terminal on this system.
const ShellPTY = false

func resizePTY(*os.File, WindowSize) error { return errors.ErrUnsupported }

func (p *shellProcess) startPTY(Shell, Command) error { return errors.ErrUnsupported }
