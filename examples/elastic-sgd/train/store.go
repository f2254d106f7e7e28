package train

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// The store: a client of PyTorch's TCPStore, with the five requests that this
// program needs. A real job would call torch.distributed; this shows that any
// language can take part. Opcodes and framing as in pytorch/pytorch,
// torch/csrc/distributed/c10d/TCPStoreBackend.hpp, since 2.2: one byte, then
// fields; a string is its length (8 bytes, little-endian) and its bytes.
const (
	storeValidate = 0 // magic, no reply: opens every connection
	storeSet      = 1 // key, value; no reply
	storeGet      = 3 // key → value
	storeAdd      = 4 // key, delta → sum
	storeWait     = 6 // count, keys → one byte, when all are there

	storeMagic    = 0x3C85F7CE
	storeMaxValue = 4 << 10 // of the values this program writes
	storeRedial   = 50 * time.Millisecond
)

// store is one connection to the store, for one goroutine. All requests are
// bounded by the context it was dialled with.
type store struct {
	conn net.Conn
	in   *bufio.Reader
	stop func() bool
}

// dialStore connects to the store, trying again while nothing listens there.
// The connection is closed when ctx ends, or by close.
func dialStore(ctx context.Context, address string) (*store, error) {
	conn, err := dialPatiently(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("store dial %s: %w", address, err)
	}
	s := &store{conn: conn, in: bufio.NewReader(conn)}
	s.stop = context.AfterFunc(ctx, func() { conn.Close() })
	if err := s.ask(binary.LittleEndian.AppendUint32([]byte{storeValidate}, storeMagic), nil); err != nil {
		s.close()
		return nil, fmt.Errorf("store open %s: %w", address, err)
	}
	return s, nil
}

func dialPatiently(ctx context.Context, address string) (net.Conn, error) {
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err == nil || !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, err
		}
		// Not there yet is no event one could wait for.
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(storeRedial):
		}
	}
}

func (s *store) close() {
	s.stop()
	s.conn.Close() // nothing is buffered: no error to lose
}

// ask sends a request and fills reply.
func (s *store) ask(request, reply []byte) error {
	if _, err := s.conn.Write(request); err != nil {
		return err
	}
	_, err := io.ReadFull(s.in, reply)
	return err
}

func (s *store) set(key, value string) error {
	if err := s.ask(appendString(appendString([]byte{storeSet}, key), value), nil); err != nil {
		return fmt.Errorf("store set %s: %w", key, err)
	}
	return nil
}

// add adds delta to the number at key and returns the sum; no number counts as 0.
func (s *store) add(key string, delta int64) (int64, error) {
	var sum [8]byte
	request := binary.LittleEndian.AppendUint64(appendString([]byte{storeAdd}, key), uint64(delta))
	if err := s.ask(request, sum[:]); err != nil {
		return 0, fmt.Errorf("store add %s: %w", key, err)
	}
	return int64(binary.LittleEndian.Uint64(sum[:])), nil
}

// wait returns when key is there.
func (s *store) wait(key string) error {
	var done [1]byte
	request := appendString(binary.LittleEndian.AppendUint64([]byte{storeWait}, 1), key)
	if err := s.ask(request, done[:]); err != nil {
		return fmt.Errorf("store wait %s: %w", key, err)
	}
	if done[0] != 0 {
		return fmt.Errorf("store wait %s: answer %d", key, done[0])
	}
	return nil
}

// get waits for key and returns its value. (The store itself never blocks a get.)
func (s *store) get(key string) (string, error) {
	if err := s.wait(key); err != nil {
		return "", err
	}
	var length [8]byte
	if err := s.ask(appendString([]byte{storeGet}, key), length[:]); err != nil {
		return "", fmt.Errorf("store get %s: %w", key, err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > storeMaxValue {
		return "", fmt.Errorf("store get %s: %d bytes", key, n)
	}
	value := make([]byte, n)
	if _, err := io.ReadFull(s.in, value); err != nil {
		return "", fmt.Errorf("store get %s: %w", key, err)
	}
	return string(value), nil
}

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}
