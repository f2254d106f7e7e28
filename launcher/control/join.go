package control

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Join is the one line of JSON that `launcher-agent join` reads before the byte stream becomes gRPC. It says what an
// agent must know before anybody calls it; everything else comes in orders.
type Join struct {
	Run     string `json:"run"`
	Node    string `json:"node"` // unique in its run
	Slot    uint32 `json:"slot"`
	Attempt uint32 `json:"attempt"`
	// Folder is the agent's own: socket, log, state. Empty: $HOME/.launcher. Made with mode 0700.
	Folder string `json:"folder,omitempty"`
	// Workdir is where commands run. Empty: "workdir" in Folder.
	Workdir string `json:"workdir,omitempty"`
	// NodeLease starts when the agent does; after it the machine powers itself off unless it was renewed. 0: none
	// until the first renewal.
	NodeLease   time.Duration `json:"node_lease"`
	MemberLease time.Duration `json:"member_lease"`
	// NoticeSource is where preemption notices of this machine are read: "aws", "gcp" or "azure" (its metadata
	// service), "file" (at $LAUNCHER_MACHINE_NOTICE), "none". Empty: the file where that variable is set.
	NoticeSource string `json:"notice_source,omitempty"`
	// PowerOff is the command that ends the machine. Empty: ["poweroff"].
	PowerOff []string `json:"power_off,omitempty"`
}

// What `launcher-agent join` and `connect` print before they become the bridge: one line, ReadyLine, or ErrorPrefix
// and a text.
const (
	ReadyLine   = "LAUNCHER-AGENT 1 ready\n"
	ErrorPrefix = "LAUNCHER-AGENT 1 error "
)

// maxReadyLine bounds what AwaitReady reads: whatever a login script prints before it is not ours.
const maxReadyLine = 4096

// ErrAgent is in the error chain of AwaitReady when the agent itself said why it cannot serve.
var ErrAgent = errors.New("agent")

// AwaitReady reads up to the line by which a bridge says that gRPC follows, skipping lines that something else has
// printed before it. It reads byte by byte: what follows belongs to the caller.
func AwaitReady(r io.ByteReader) error {
	var line strings.Builder
	for total := 0; ; total++ {
		if total >= 16*maxReadyLine || line.Len() > maxReadyLine {
			return fmt.Errorf("await agent: no ready line in %d bytes", total)
		}
		c, err := r.ReadByte()
		if err != nil {
			return fmt.Errorf("await agent: %w", err)
		}
		line.WriteByte(c)
		if c != '\n' {
			continue
		}
		if line.String() == ReadyLine {
			return nil
		}
		if text, ok := strings.CutPrefix(line.String(), ErrorPrefix); ok {
			return fmt.Errorf("await agent: %w: %s", ErrAgent, strings.TrimSpace(text))
		}
		line.Reset()
	}
}
