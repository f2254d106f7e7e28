package train

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// How the ranks of a world talk. Rank 0 listens at its node's address and puts
// "host:port token" into the store; every other rank connects to it:
//
//	rank r → 0   hello: magic, token, rank
//	rank 0 → r   the state to start from, encoded as a checkpoint
//	then, each step:
//	rank r → 0   step, flags, its shards' sums of gradients
//	rank 0 → r   step, flags, the sum over all shards, added up in shard order
//	at the end:
//	rank 0 → r   one byte: checkpoint and result are on disk
//
// A batch is cut into the same shards whatever the world size, and the sum is
// always formed in the same order, so floating point gives the same bits in a
// world of one, two or four. A rank that hears nothing for a time-out, or whose
// connection breaks, gives up: the launcher then starts the next generation.
const (
	shards = 32
	vector = parameters + 1 // of a shard: gradient and loss, summed

	helloMagic = "ESGDHI01"
	tokenSize  = 26 // of rand.Text
	helloSize  = len(helloMagic) + tokenSize + 4
	headSize   = 16

	flagLeave = 1 // a rank was told to leave: all checkpoint and go

	settled = 1

	// A stranger who connects and says nothing holds up the others for so long.
	helloWait = 2 * time.Second
)

// place is where the environment puts this process.
type place struct {
	rank, size int
	generation string
	store      string // host:port; unused in a world of one
	node       string // the address that other nodes reach this one by
}

// world is the connections of one rank. One goroutine uses it; close may be
// called from any.
type world struct {
	place
	timeout time.Duration
	hello   time.Duration // see helloWait
	peers   []*link       // of rank 0, by rank − 1
	root    *link         // of all others
	shard   [][]float64
	sum     []float64
}

type link struct {
	net.Conn
	in   *bufio.Reader
	rank int
	room []byte
}

func newLink(conn net.Conn, rank int) *link {
	return &link{Conn: conn, in: bufio.NewReaderSize(conn, 64<<10), rank: rank}
}

func (l *link) close() {
	if l != nil {
		l.Conn.Close() // nothing is buffered: no error to lose
	}
}

func newWorld(p place, timeout time.Duration) *world {
	w := &world{place: p, timeout: timeout, hello: helloWait}
	w.sum = make([]float64, vector)
	w.shard = make([][]float64, shards)
	for i := range w.shard {
		w.shard[i] = make([]float64, vector)
	}
	return w
}

// form connects this rank with the others. It fails when they do not all come
// before ctx ends. timeout bounds each later wait
// for one of them.
func form(ctx context.Context, p place, timeout time.Duration) (*world, error) {
	w := newWorld(p, timeout)
	if p.size == 1 {
		return w, nil
	}
	s, err := dialStore(ctx, p.store)
	if err != nil {
		return nil, err
	}
	defer s.close() // needed to find each other only
	prefix := "/elastic-sgd/" + p.generation + "/"
	// Two processes with one rank would train on each other's leavings.
	n, err := s.add(fmt.Sprintf("%srank/%d", prefix, p.rank), 1)
	if err != nil {
		return nil, err
	}
	if n != 1 {
		return nil, fmt.Errorf("rank %d of generation %s is taken", p.rank, p.generation)
	}
	if p.rank == 0 {
		err = w.gather(ctx, s, prefix+"root")
	} else {
		err = w.join(ctx, s, prefix+"root")
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// gather is rank 0's part of forming.
func (w *world) gather(ctx context.Context, s *store, key string) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(w.node, "0"))
	if err != nil {
		return fmt.Errorf("listen for ranks: %w", err)
	}
	defer listener.Close()
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	token := rand.Text()
	if err := s.set(key, listener.Addr().String()+" "+token); err != nil {
		return err
	}
	w.peers = make([]*link, w.size-1)
	for missing := w.size - 1; missing > 0; {
		conn, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("wait for %d more of %d ranks: %w", missing, w.size, cmp.Or(context.Cause(ctx), err))
		}
		rank, err := w.readHello(conn, token)
		if err != nil || rank < 1 || rank >= w.size || w.peers[rank-1] != nil {
			conn.Close() // a port scan, or a rank of another world
			continue
		}
		w.peers[rank-1] = newLink(conn, rank)
		missing--
	}
	return nil
}

func (w *world) readHello(conn net.Conn, token string) (rank int, err error) {
	var hello [helloSize]byte
	if err := conn.SetDeadline(time.Now().Add(w.hello)); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(conn, hello[:]); err != nil {
		return 0, err
	}
	if string(hello[:helloSize-4]) != helloMagic+token {
		return 0, errors.New("not a rank of this world")
	}
	return int(binary.LittleEndian.Uint32(hello[helloSize-4:])), nil
}

// join is every other rank's part of forming.
func (w *world) join(ctx context.Context, s *store, key string) error {
	value, err := s.get(key)
	if err != nil {
		return err
	}
	address, token, _ := strings.Cut(value, " ")
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("rank 0: %w", err)
	}
	w.root = newLink(conn, 0)
	hello := binary.LittleEndian.AppendUint32([]byte(helloMagic+token), uint32(w.rank))
	return w.root.write(hello, w.timeout)
}

// close ends all connections; whatever waits on them fails at once.
func (w *world) close() {
	w.root.close()
	for _, l := range w.peers {
		l.close()
	}
}

// share gives rank 0's state, encoded, to all.
func (w *world) share(encoded []byte) ([]byte, error) {
	if w.rank == 0 {
		return encoded, w.tell(encoded)
	}
	received := make([]byte, checkpointSize)
	// Rank 0 may still be waiting for the last rank to come.
	return received, w.root.read(received, w.timeout)
}

// span is the shards that a rank computes. Where there are more ranks than
// shards some have none, and only keep in step.
func (w *world) span(rank int) (from, to int) {
	return rank * shards / w.size, (rank + 1) * shards / w.size
}

// mine returns this rank's shards, to be filled before reduce.
func (w *world) mine() (first int, own [][]float64) {
	from, to := w.span(w.rank)
	return from, w.shard[from:to]
}

// reduce adds up the shards of all ranks and returns the sum, which is valid
// until the next call. left tells whether any rank asked to leave.
func (w *world) reduce(step int, leave bool) (sum []float64, left bool, err error) {
	if w.rank != 0 {
		return w.reduceAtRoot(step, leave)
	}
	for _, l := range w.peers {
		from, to := w.span(l.rank)
		asked, err := l.receive(step, w.shard[from:to], w.timeout)
		if err != nil {
			return nil, false, err
		}
		leave = leave || asked
	}
	clear(w.sum)
	for _, shard := range w.shard {
		for i, v := range shard {
			w.sum[i] += v
		}
	}
	for _, l := range w.peers {
		if err := l.send(step, leave, [][]float64{w.sum}, w.timeout); err != nil {
			return nil, false, err
		}
	}
	return w.sum, leave, nil
}

func (w *world) reduceAtRoot(step int, leave bool) (sum []float64, left bool, err error) {
	_, own := w.mine()
	if err := w.root.send(step, leave, own, w.timeout); err != nil {
		return nil, false, err
	}
	left, err = w.root.receive(step, [][]float64{w.sum}, w.timeout)
	return w.sum, left, err
}

// settle ends the world in good order: no rank reports success before rank 0
// has put everything on disk.
func (w *world) settle() error {
	if w.rank == 0 {
		return w.tell([]byte{settled})
	}
	var word [1]byte
	return w.root.read(word[:], w.timeout)
}

// tell sends the same bytes to all other ranks.
func (w *world) tell(b []byte) error {
	var errs []error
	for _, l := range w.peers {
		errs = append(errs, l.write(b, w.timeout))
	}
	return errors.Join(errs...)
}

func (l *link) send(step int, leave bool, vectors [][]float64, timeout time.Duration) error {
	b := binary.LittleEndian.AppendUint64(l.room[:0], uint64(step))
	flags := uint64(0)
	if leave {
		flags = flagLeave
	}
	b = binary.LittleEndian.AppendUint64(b, flags)
	for _, v := range vectors {
		b = appendFloats(b, v)
	}
	l.room = b
	return l.write(b, timeout)
}

func (l *link) receive(step int, vectors [][]float64, timeout time.Duration) (leave bool, err error) {
	need := headSize + len(vectors)*vector*8
	if cap(l.room) < need {
		l.room = make([]byte, need)
	}
	b := l.room[:need]
	if err := l.read(b, timeout); err != nil {
		return false, err
	}
	if got := binary.LittleEndian.Uint64(b); got != uint64(step) {
		return false, fmt.Errorf("rank %d: is at step %d, not %d", l.rank, got, step)
	}
	for i, v := range vectors {
		setFloats(v, b[headSize+i*vector*8:])
	}
	return binary.LittleEndian.Uint64(b[8:])&flagLeave != 0, nil
}

func (l *link) read(b []byte, timeout time.Duration) error {
	err := l.SetReadDeadline(time.Now().Add(timeout))
	if err == nil {
		_, err = io.ReadFull(l.in, b)
	}
	if err != nil {
		return fmt.Errorf("rank %d: %w", l.rank, err)
	}
	return nil
}

func (l *link) write(b []byte, timeout time.Duration) error {
	err := l.SetWriteDeadline(time.Now().Add(timeout))
	if err == nil {
		_, err = l.Write(b)
	}
	if err != nil {
		return fmt.Errorf("rank %d: %w", l.rank, err)
	}
	return nil
}
