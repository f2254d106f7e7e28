package tcpstore

import (
	"errors"
	"fmt"
)

// Dialect is a version of the protocol. PyTorch renumbered its opcodes twice and then only appended.
type Dialect uint8

// The dialects, by the PyTorch releases that speak them.
const (
	DialectAuto Dialect = iota // not known (yet)
	DialectA                   // 1.9 to 2.0: WATCH_KEY, no handshake, two sockets per process
	DialectB                   // 2.1: APPEND, MULTI_*, CANCEL_WAIT
	DialectC                   // 2.2 to 2.4: VALIDATE opens a connection, opcodes shift by one
	DialectD                   // 2.5 to 2.7: PING
	DialectE                   // 2.8 and 2.9: queues
	DialectF                   // 2.10 and 2.11: LIST_KEYS
	DialectG                   // since 2.12: BARRIER
)

// String is the letter of the dialect, "auto" for DialectAuto.
func (d Dialect) String() string {
	if d == DialectAuto {
		return "auto"
	}
	if d > DialectG {
		return fmt.Sprintf("dialect(%d)", uint8(d))
	}
	return string(rune('A' + d - DialectA))
}

// op is a request. The numbers are the opcodes of dialects C to G (QueryType in TCPStoreBackend.hpp).
type op uint8

const (
	opValidate op = iota
	opSet
	opCompareSet
	opGet
	opAdd
	opCheck
	opWait
	opNumKeys
	opDelete
	opAppend
	opMultiGet
	opMultiSet
	opCancelWait
	opPing
	opQueuePush
	opQueuePop
	opQueueLen
	opListKeys
	opBarrier
	opWatch          // dialect A only: never on the wire under this number
	opDeleteOrAppend // opcode 8 of a connection that may be A or B
)

// magic follows the VALIDATE opcode (validationMagicNumber in TCPStoreBackend.hpp).
const magic uint32 = 0x3C85F7CE

// Replies of one byte: CheckResponseType, WaitResponseType and WatchResponseType.
const (
	replyReady    byte = 0
	replyNotReady byte = 1

	replyStopWaiting  byte = 0
	replyWaitCanceled byte = 1

	watchUpdated    byte = 0
	watchCreated    byte = 1
	watchDeleted    byte = 2
	watchRegistered byte = 3
)

// ErrUnsupported is returned by the client for an operation that the pinned dialect does not have.
var ErrUnsupported = errors.New("tcpstore: operation not in this dialect")

// code is the opcode of o in dialect d.
func (d Dialect) code(o op) (byte, error) {
	last := opBarrier
	switch d {
	case DialectA:
		switch {
		case o >= opSet && o <= opNumKeys:
			return byte(o) - 1, nil
		case o == opWatch:
			return 7, nil
		case o == opDelete:
			return 8, nil
		}
		return 0, fmt.Errorf("opcode %d of dialect A: %w", o, ErrUnsupported)
	case DialectB:
		if o >= opSet && o <= opCancelWait {
			return byte(o) - 1, nil
		}
		return 0, fmt.Errorf("opcode %d of dialect B: %w", o, ErrUnsupported)
	case DialectC:
		last = opCancelWait
	case DialectD:
		last = opPing
	case DialectE:
		last = opQueueLen
	case DialectF:
		last = opListKeys
	}
	if o > last {
		return 0, fmt.Errorf("opcode %d of dialect %v: %w", o, d, ErrUnsupported)
	}
	return byte(o), nil
}
