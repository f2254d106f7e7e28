package tcpstore

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peerConn is a raw client connection to a Server over a pipe: it sends bytes and expects bytes.
type peerConn struct {
	t    testing.TB
	conn net.Conn
	done chan error // what ServeConn returned
}

// connect opens a raw connection of node "n" that ends with the test.
func connect(t testing.TB, s *Server) *peerConn { return connectNode(t, s, "n") }

func connectNode(t testing.TB, s *Server, node string) *peerConn {
	t.Helper()
	near, far := net.Pipe()
	p := &peerConn{t: t, conn: near, done: make(chan error, 1)}
	go func() { p.done <- s.ServeConn(context.Background(), far, node) }()
	t.Cleanup(func() { near.Close() })
	return p
}

// bytesOf joins hex strings ("0d 92"), and Go values as the wire has them: int64, uint32, string (with length), byte.
func bytesOf(parts ...any) []byte {
	c := &Client{}
	for _, part := range parts {
		switch v := part.(type) {
		case byte:
			c.buf = append(c.buf, v)
		case op:
			c.buf = append(c.buf, byte(v))
		case int:
			c.int64(int64(v))
		case uint32:
			c.uint32(v)
		case string:
			c.text(v)
		case hexBytes:
			b, err := hex.DecodeString(strings.ReplaceAll(string(v), " ", ""))
			if err != nil {
				panic(err)
			}
			c.buf = append(c.buf, b...)
		default:
			panic(fmt.Sprintf("bytesOf(%T)", part))
		}
	}
	return c.buf
}

type hexBytes string

const handshake = hexBytes("00 ce f7 85 3c")

func (p *peerConn) send(parts ...any) {
	p.t.Helper()
	p.sendBytes(bytesOf(parts...))
}

func (p *peerConn) sendBytes(b []byte) {
	p.t.Helper()
	if _, err := p.conn.Write(b); err != nil {
		p.t.Fatalf("send % x: %v", b, err)
	}
}

func (p *peerConn) expect(parts ...any) {
	p.t.Helper()
	want := bytesOf(parts...)
	got := make([]byte, len(want))
	p.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	n, err := io.ReadFull(p.conn, got)
	if err != nil {
		p.t.Fatalf("expect % x: got % x, %v", want, got[:n], err)
	}
	if !bytes.Equal(got, want) {
		p.t.Fatalf("expect: got % x, want % x", got, want)
	}
}

// expectSilence checks, inside a bubble, that nothing comes within a second.
func (p *peerConn) expectSilence() {
	p.t.Helper()
	p.conn.SetReadDeadline(time.Now().Add(time.Second))
	got := make([]byte, 1)
	if n, err := p.conn.Read(got); err == nil || !os.IsTimeout(err) {
		p.t.Fatalf("expect silence: got % x, %v", got[:n], err)
	}
}

// expectClosed waits for the server to close the connection and returns what ServeConn returned.
func (p *peerConn) expectClosed() error {
	p.t.Helper()
	p.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := io.Copy(io.Discard, p.conn); err != nil || n > 0 {
		p.t.Fatalf("expect end: %d bytes, %v", n, err)
	}
	return <-p.done
}

// vectors are the requests of the protocol note and their replies, on one connection each.
var vectors = []struct {
	name    string
	request []byte
	reply   []byte
}{
	{"validate", bytesOf(handshake), nil},
	{"ping", bytesOf(handshake, hexBytes("0d 92 10 00 00")), bytesOf(hexBytes("92 10 00 00"))},
	{"add", bytesOf(handshake, hexBytes("04 05 00000000000000 69 6e 69 74 2f 01 00000000000000")), bytesOf(hexBytes("01 00000000000000"))},
	{"add AB", bytesOf(hexBytes("03 05 00000000000000 69 6e 69 74 2f 01 00000000000000")), bytesOf(hexBytes("01 00000000000000"))},
	{
		"set wait get", bytesOf(handshake,
			hexBytes("01 02 00000000000000 2f 61 01 00000000000000 76"),
			hexBytes("06 01 00000000000000 02 00000000000000 2f 61"),
			hexBytes("03 02 00000000000000 2f 61")),
		bytesOf(hexBytes("00 01 00000000000000 76")),
	},
	{
		"set wait get AB", bytesOf(
			hexBytes("00 02 00000000000000 2f 61 01 00000000000000 76"),
			hexBytes("05 01 00000000000000 02 00000000000000 2f 61"),
			hexBytes("02 02 00000000000000 2f 61")),
		bytesOf(hexBytes("00 01 00000000000000 76")),
	},
	{
		"compare_set", bytesOf(handshake, hexBytes("02 02 00000000000000 2f 61 0000000000000000 01 00000000000000 76")),
		bytesOf(hexBytes("01 00000000000000 76")),
	},
	{
		"everything", bytesOf(handshake,
			opMultiSet, 2, "/a", "1", "/b", "2", opAppend, "/a", "3", opMultiGet, 2, "/a", "/b", opCheck, 2, "/a", "/x",
			opQueuePush, "/q", "first", opQueuePush, "/q", "second", opQueueLen, "/q", opQueuePop, "/q", opWait, 1, "/q", opCheck, 1, "/q",
			opNumKeys, opDelete, "/b", opDelete, "/b", opListKeys, opBarrier, "/bar", 1, opCancelWait, opGet, "/none", opQueuePop, "/none"),
		bytesOf("13", "2", replyNotReady, 2, 2, "first", replyStopWaiting, replyReady,
			2, 1, 0, 1, "/a", replyStopWaiting, replyWaitCanceled, "", 0),
	},
	{
		"everything B", bytesOf(
			byte(10), 2, "/a", "1", "/b", "2", byte(8), "/a", "3", byte(9), 2, "/a", "/b", byte(7), "/b", byte(6), byte(11)),
		bytesOf("13", "2", 1, 1, replyWaitCanceled),
	},
}

func TestVectors(t *testing.T) {
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			p := connect(t, New(Options{}))
			go p.conn.Write(v.request)
			p.expect(hexBytes(hex.EncodeToString(v.reply)))
			p.conn.Close()
			if err := <-p.done; err != nil {
				t.Errorf("ServeConn: %v", err)
			}
		})
	}
}

// TestVectorsSplit sends each vector in two parts, cut at each byte, and byte by byte. The parts arrive in separate reads, as a pipe has no buffer.
func TestVectorsSplit(t *testing.T) {
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			for cut := range len(v.request) {
				if got := replies(t, v.request, cut); !bytes.Equal(got, v.reply) {
					t.Fatalf("cut at %d: got % x, want % x", cut, got, v.reply)
				}
			}
		})
	}
}

// replies is what a fresh server answers to request in reads that end at each of cuts; a cut of 0 means single bytes.
func replies(t testing.TB, request []byte, cuts ...int) []byte {
	t.Helper()
	conn := &chunkedConn{rest: request, cuts: cuts}
	New(Options{LegacyWait: time.Microsecond}).ServeConn(context.Background(), conn, "n")
	return conn.got.Bytes()
}

// chunkedConn is a peer that sends chunks and collects the answers.
type chunkedConn struct {
	scriptedConn
	rest []byte
	sent int
	cuts []int
	got  bytes.Buffer
}

func (c *chunkedConn) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	n := min(len(p), len(c.rest))
	for _, cut := range c.cuts {
		if cut == 0 {
			n = 1
		} else if cut > c.sent {
			n = min(n, cut-c.sent)
		}
	}
	copy(p, c.rest[:n])
	c.rest, c.sent = c.rest[n:], c.sent+n
	return n, nil
}

func (c *chunkedConn) Write(p []byte) (int, error) { return c.got.Write(p) }

// TestTranscript replays what real clients of PyTorch sent, and expects what the real server answered.
func TestTranscript(t *testing.T) {
	for name, replies := range map[string]int{"torch-1.13": 8, "torch-2.6": 21} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile("testdata/" + name + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				if got := replay(t, New(Options{}), string(text)); got != replies {
					t.Errorf("compared %d replies, want %d", got, replies)
				}
			})
		})
	}
}

// replay plays a transcript against s and returns how many replies it compared.
func replay(t *testing.T, s *Server, text string) (compared int) {
	conns := make(map[string]*peerConn)
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "conn "); ok {
			conns[name] = connect(t, s)
			continue
		}
		direction := strings.IndexAny(line, "<>")
		if direction < 1 || conns[line[:direction]] == nil {
			continue // comments, calls and their results
		}
		p, data := conns[line[:direction]], hexBytes(line[direction+1:])
		if line[direction] == '>' {
			p.send(data)
			synctest.Wait() // the server has dealt with it before another connection says something
		} else {
			p.expect(data)
			compared++
		}
	}
	for name, p := range conns {
		p.conn.Close()
		if err := <-p.done; err != nil {
			t.Errorf("connection %s: %v", name, err)
		}
	}
	return compared
}
