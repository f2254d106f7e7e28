package tcpstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"
)

var (
	// ErrClosed is what ServeConn returns for a connection that the server closed: by CloseNode, SetStore, Reset or its context.
	ErrClosed = errors.New("tcpstore: connection closed by the server")
	// ErrProtocol reports bytes that no dialect sends.
	ErrProtocol = errors.New("tcpstore: protocol violation")
	// ErrBusy reports a connection beyond Options.Conns.
	ErrBusy = errors.New("tcpstore: too many connections")

	errSlowPeer = errors.New("tcpstore: peer does not read its replies")
)

// ConnInfo describes the connection that a hook is called for.
type ConnInfo struct {
	ID      uint64  // unique within the Server, counts up from 1
	Node    string  // as given to ServeConn; empty for connections of Serve
	Dialect Dialect // A or B, or DialectC for C and all later ones, or DialectAuto while A and B look the same
}

// Options configures a Server. The zero value serves every dialect with the defaults below.
type Options struct {
	Limits Limits       // of the first Store and of those that Reset makes
	Conns  int          // connections at a time; default 65536
	Queue  int          // bytes a connection may have queued for it by others before it is closed as too slow; default 8 MiB
	Log    *slog.Logger // gets why a connection was closed; default: nothing is logged

	// Legacy pins connections without a handshake to DialectA or DialectB, which differ in opcodes 7 and 8. By default the server tells
	// them apart as it goes, which costs LegacyWait at most once per connection.
	Legacy Dialect
	// LegacyWait is how long opcode 8 and a key wait for the value that makes them B's APPEND instead of A's DELETE_KEY; default 50 ms.
	LegacyWait time.Duration
	// WriteStall closes a connection that takes longer than this for one large write; default 1 min. Idle connections are never closed.
	WriteStall time.Duration
	// MaxHold bounds how long OnCompareSet may delay a reply; default 4 s, less than the 5 s keep-alive interval of TorchElastic.
	MaxHold time.Duration

	// KeepAlive applies to TCP connections; the zero value probes after 2 s idle, each 1 s, 3 times. PyTorch's clients set nothing.
	KeepAlive net.KeepAliveConfig
	// UserTimeout is TCP_USER_TIMEOUT, where the system has it: how long sent bytes may stay unacknowledged; default 5 s, negative: unset.
	UserTimeout time.Duration

	// OnCompareSet is called for each COMPARE_SET that is about to succeed, under the Store's lock. A non-nil reply is stored and
	// answered instead of new; the client takes an answer that is not what it sent for a lost race. With a non-nil hold the answer waits until hold is
	// closed, MaxHold has passed or the connection closes, and is then the value that key has at that time. A client that hangs up meanwhile is noticed only then.
	OnCompareSet func(conn ConnInfo, key string, old, new []byte) (reply []byte, hold <-chan struct{})
	// OnSet is called for each key of a SET or MULTI_SET, before the lock is taken, and returns what to store: value, or another slice
	// that nobody changes afterwards.
	OnSet func(conn ConnInfo, key string, value []byte) []byte
}

func (o Options) withDefaults() Options {
	if o.Conns == 0 {
		o.Conns = 65536
	}
	if o.Queue == 0 {
		o.Queue = 8 << 20
	}
	if o.LegacyWait == 0 {
		o.LegacyWait = 50 * time.Millisecond
	}
	if o.WriteStall == 0 {
		o.WriteStall = time.Minute
	}
	if o.MaxHold == 0 {
		o.MaxHold = 4 * time.Second
	}
	if o.KeepAlive == (net.KeepAliveConfig{}) {
		o.KeepAlive = net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3}
	}
	if o.UserTimeout == 0 {
		o.UserTimeout = 5 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Server is the connections of one current Store. Use New; all methods may be called at any time from any goroutine, except from the hooks.
type Server struct {
	opts    Options
	readers sync.Pool // of *bufio.Reader

	mu       sync.Mutex // guards everything below
	store    *Store
	lastID   uint64
	sessions map[*session]struct{}
	peers    map[string]*peer
}

// peer is what is known of all connections of one node.
type peer struct {
	conns  int
	modern int  // of conns, those that sent the handshake of dialect C
	isB    bool // one of them used an operation that only B has, so a node's other ones without a handshake are B too
}

// New returns a Server with an empty Store of opts.Limits.
func New(opts Options) *Server {
	s := &Server{
		opts:     opts.withDefaults(),
		store:    NewStore(opts.Limits),
		sessions: make(map[*session]struct{}),
		peers:    make(map[string]*peer),
	}
	s.readers.New = func() any { return bufio.NewReaderSize(nil, readBuffer) }
	return s
}

// Store returns the current Store.
func (s *Server) Store() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store
}

// SetStore makes st the Store of all further connections and closes those of any other. When it returns, no request on a closed one
// has an effect any more.
func (s *Server) SetStore(st *Store) {
	s.mu.Lock()
	s.store = st
	s.mu.Unlock()
	s.closeIf(func(c *session) bool { return c.store != st })
}

// Reset is SetStore with a new, empty Store, which it returns: a new generation in a fresh key space.
func (s *Server) Reset() *Store {
	st := NewStore(s.opts.Limits)
	s.SetStore(st)
	return st
}

// CloseNode closes all connections of node and returns their number. When it returns, no request on them has an effect any more.
// What they stored stays.
func (s *Server) CloseNode(node string) int {
	return s.closeIf(func(c *session) bool { return c.info.Node == node })
}

// Conns is the number of connections being served.
func (s *Server) Conns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions)
}

func (s *Server) closeIf(match func(*session) bool) int {
	s.mu.Lock()
	var doomed []*session
	for c := range s.sessions {
		if match(c) {
			doomed = append(doomed, c)
		}
	}
	s.mu.Unlock()
	for _, c := range doomed {
		c.abort(ErrClosed)
	}
	return len(doomed)
}

// Serve accepts connections, whose node is "", until ctx is done or the listener fails. It closes the listener and all it accepted
// and waits for them. The error is nil if ctx was the cause.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	closed := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(closed)
		listener.Close() // the accept below returns
	})
	var conns sync.WaitGroup
	defer func() {
		cancel()
		conns.Wait()
		<-closed
	}()
	for pause := time.Duration(0); ; {
		conn, err := listener.Accept()
		if err == nil {
			pause = 0
			conns.Go(func() { s.ServeConn(ctx, conn, "") })
			continue
		}
		if ctx.Err() != nil {
			return nil
		}
		if !passing(err) {
			return fmt.Errorf("tcpstore accept on %s: %w", listener.Addr(), err)
		}
		// Out of descriptors or aborted by the peer: the next one may work.
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		s.opts.Log.Warn("tcpstore accept", "error", err, "retry", pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// ServeConn serves one connection of node and closes it. It returns when the peer hangs up (nil), when ctx is done or the server closes the
// connection (ErrClosed), or when the peer breaks the protocol or a limit. No goroutine is left behind.
func (s *Server) ServeConn(ctx context.Context, conn net.Conn, node string) error {
	c, err := s.open(conn, node)
	if err != nil {
		conn.Close()
		s.opts.Log.Warn("tcpstore connection refused", "node", node, "error", err)
		return err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		tune(tcp, s.opts)
	}
	cancelled := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cancelled)
		c.abort(ErrClosed)
	})
	err = c.serve()
	c.lastWords(err)
	c.abort(err)
	if !stop() {
		<-cancelled
	}
	c.writers.Wait()
	s.remove(c)
	if cause := c.cause; cause != nil && cause != io.EOF {
		s.opts.Log.Debug("tcpstore connection closed", "node", node, "id", c.info.ID, "dialect", c.dialect, "error", cause)
		return cause
	}
	return nil
}

// tune sets the socket options; where one cannot be set the connection works without.
func tune(conn *net.TCPConn, opts Options) {
	conn.SetNoDelay(true)
	conn.SetKeepAliveConfig(opts.KeepAlive)
	if opts.UserTimeout > 0 {
		setUserTimeout(conn, opts.UserTimeout)
	}
}

func (s *Server) open(conn net.Conn, node string) (*session, error) {
	c := &session{server: s, conn: conn, peer: node, done: make(chan struct{})}
	c.out.init(s.opts.Queue)
	c.info.Node = node
	if addr := conn.RemoteAddr(); node == "" && addr != nil {
		// Without a node the peer's address groups the sockets of one process, for telling A from B only.
		if c.peer = addr.String(); addr.Network() == "tcp" {
			if host, _, err := net.SplitHostPort(c.peer); err == nil {
				c.peer = host
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sessions) >= s.opts.Conns {
		return nil, fmt.Errorf("connection of node %q beyond %d: %w", node, s.opts.Conns, ErrBusy)
	}
	s.lastID++
	c.info.ID = s.lastID
	c.store = s.store
	s.sessions[c] = struct{}{}
	p := s.peers[c.peer]
	if p == nil {
		p = new(peer)
		s.peers[c.peer] = p
	}
	p.conns++
	c.in = s.readers.Get().(*bufio.Reader)
	c.in.Reset(c)
	return c, nil
}

func (s *Server) remove(c *session) {
	s.mu.Lock()
	delete(s.sessions, c)
	p := s.peers[c.peer]
	if p.conns--; p.conns == 0 {
		delete(s.peers, c.peer)
	}
	if c.dialect == DialectC {
		p.modern--
	}
	s.mu.Unlock()
	c.in.Reset(nil)
	s.readers.Put(c.in)
}

// joined records that c sent the handshake.
func (s *Server) joined(c *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers[c.peer].modern++
}

// legacyPeer tells what other connections of the peer of c say about its dialect: that it is B for sure, or that there is another
// one without a handshake, as of a process of A, which has two.
func (s *Server) legacyPeer(c *session) (isB, another bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[c.peer]
	return p.isB, p.conns-p.modern > 1
}

// proveB records that the peer of c speaks B.
func (s *Server) proveB(c *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers[c.peer].isB = true
}
