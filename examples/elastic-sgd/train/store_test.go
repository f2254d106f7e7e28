package train

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeStore serves the five requests of the program as PyTorch's own server does.
type fakeStore struct {
	listener net.Listener
	serving  sync.WaitGroup

	mu      sync.Mutex // guards all below
	values  map[string]string
	changed chan struct{} // closed and replaced at each change
	conns   []net.Conn
}

// startStore returns the address of a store that ends with the test.
func startStore(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &fakeStore{listener: listener, values: map[string]string{}, changed: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	s.serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			s.mu.Unlock()
			s.serving.Go(func() {
				defer conn.Close()
				if err := s.serve(ctx, conn); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && ctx.Err() == nil && !strings.Contains(err.Error(), "reset") {
					t.Errorf("store: %v", err)
				}
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		listener.Close()
		s.mu.Lock()
		for _, conn := range s.conns {
			conn.Close()
		}
		s.mu.Unlock()
		s.serving.Wait()
	})
	return listener.Addr().String()
}

func (s *fakeStore) serve(ctx context.Context, conn net.Conn) error {
	in := bufio.NewReader(conn)
	var opening [5]byte
	if _, err := io.ReadFull(in, opening[:]); err != nil {
		return err
	}
	if opening != [5]byte{0, 0xce, 0xf7, 0x85, 0x3c} {
		return errors.New("not opened by a validate")
	}
	for {
		op, err := in.ReadByte()
		if err != nil {
			return err
		}
		var reply []byte
		switch op {
		case storeSet:
			key, value := readString(in), readString(in)
			s.change(func() { s.values[key] = value })
		case storeGet:
			key := readString(in)
			s.change(func() { reply = appendString(nil, s.values[key]) })
		case storeAdd:
			key, delta := readString(in), readUint64(in)
			s.change(func() {
				n, _ := strconv.ParseInt(s.values[key], 10, 64)
				n += int64(delta)
				s.values[key] = strconv.FormatInt(n, 10)
				reply = binary.LittleEndian.AppendUint64(nil, uint64(n))
			})
		case storeWait:
			if n := readUint64(in); n != 1 {
				return errors.New("waits for other than one key")
			}
			s.await(ctx, readString(in))
			reply = []byte{0}
		default:
			return errors.New("unknown request " + strconv.Itoa(int(op)))
		}
		if _, err := conn.Write(reply); err != nil {
			return err
		}
	}
}

func (s *fakeStore) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *fakeStore) await(ctx context.Context, key string) {
	for {
		s.mu.Lock()
		_, there := s.values[key]
		changed := s.changed
		s.mu.Unlock()
		if there {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func readUint64(in io.Reader) uint64 {
	var b [8]byte
	io.ReadFull(in, b[:]) // a torn request shows at the next one
	return binary.LittleEndian.Uint64(b[:])
}

func readString(in io.Reader) string {
	b := make([]byte, readUint64(in))
	io.ReadFull(in, b)
	return string(b)
}

func bounded(t *testing.T, limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func TestStoreRequestsOnTheWire(t *testing.T) {
	zeros := strings.Repeat("\x00", 7)
	for _, c := range []struct {
		name         string
		request      func(s *store) (any, error)
		sent, answer string
		want         any
	}{
		{
			name:    "set",
			request: func(s *store) (any, error) { return nil, s.set("/a", "v") },
			sent:    "\x01\x02" + zeros + "/a\x01" + zeros + "v",
		},
		{
			name:    "add",
			request: func(s *store) (any, error) { return s.add("init/", 1) },
			sent:    "\x04\x05" + zeros + "init/\x01" + zeros,
			answer:  "\x01" + zeros,
			want:    int64(1),
		},
		{
			name:    "wait",
			request: func(s *store) (any, error) { return nil, s.wait("/a") },
			sent:    "\x06\x01" + zeros + "\x02" + zeros + "/a",
			answer:  "\x00",
		},
		{
			name:    "get waits first",
			request: func(s *store) (any, error) { return s.get("/a") },
			sent:    "\x06\x01" + zeros + "\x02" + zeros + "/a" + "\x03\x02" + zeros + "/a",
			answer:  "\x00" + "\x01" + zeros + "v",
			want:    "v",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			const opening = "\x00\xce\xf7\x85\x3c"
			var received bytes.Buffer
			var serving sync.WaitGroup
			serving.Go(func() {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				io.WriteString(conn, c.answer) // early is as good: a stream
				io.CopyN(&received, conn, int64(len(opening+c.sent)))
			})
			s, err := dialStore(bounded(t, 10*time.Second), listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			got, err := c.request(s)
			if err != nil {
				t.Fatal(err)
			}
			serving.Wait()
			if diff := cmp.Diff(got, c.want); diff != "" {
				t.Errorf("answer -got +want:\n%s", diff)
			}
			if diff := cmp.Diff(received.String(), opening+c.sent); diff != "" {
				t.Errorf("request -got +want:\n%s", diff)
			}
		})
	}
}

func TestStoreWaitEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s, err := dialStore(ctx, startStore(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	var canceling sync.WaitGroup
	canceling.Go(cancel)
	if _, err := s.get("/never"); err == nil {
		t.Error("got a value, want an error")
	}
	canceling.Wait()
}

func TestStoreRefusesAHugeValue(t *testing.T) {
	s, err := dialStore(bounded(t, 10*time.Second), startStore(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := s.set("/a", strings.Repeat("x", storeMaxValue+1)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.get("/a"); err == nil || !strings.Contains(err.Error(), "4097 bytes") {
		t.Errorf("got error %v, want one about 4097 bytes", err)
	}
}

func TestStoreIsDialledUntilItListens(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	ctx := bounded(t, 200*time.Millisecond)
	if _, err := dialStore(ctx, address); err == nil {
		t.Error("dialled a store that is not there")
	}
	if ctx.Err() == nil {
		t.Error("gave up before its time was over")
	}
}
