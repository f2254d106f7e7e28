package launcher

import (
	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
)

// Command is what Handle.Exec runs on a node.
type Command struct {
	// Argv is the command: one element is a line for the node's shell, several are run as they are, none is a login shell.
	Argv []string
	// Terminal, if set, is what it runs on; both outputs then come on Stdout.
	Terminal *sshexec.Terminal
	sshexec.Streams
}
