package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// maxSocketPath is what fits sockaddr_un.sun_path everywhere: 104 bytes on darwin, 108 on Linux, with the final zero.
const maxSocketPath = 103

// socketFile holds the path of the owner's socket: in the run's folder where that is short enough.
func (f folder) socketFile() string { return f.in("control") }

// listenGuests makes the owner's socket and writes down where it is. Whoever can read the folder can use it.
func (f folder) listenGuests() (net.Listener, func(), error) {
	place := f.in("socket")
	remove := func() { os.Remove(f.socketFile()) }
	if len(place) > maxSocketPath {
		dir, err := os.MkdirTemp("", "launcher-") // 0700 by contract
		if err != nil {
			return nil, nil, err
		}
		place = filepath.Join(dir, "s")
		remove = func() { os.Remove(f.socketFile()); os.RemoveAll(dir) }
	}
	os.Remove(place) // of an owner that died; the lock on the journal is ours
	lis, err := net.Listen("unix", place)
	if err != nil {
		remove()
		return nil, nil, err
	}
	if err := errors.Join(os.Chmod(place, 0o600), writeFile(f.socketFile(), strings.NewReader(place), 0o600)); err != nil {
		lis.Close()
		remove()
		return nil, nil, err
	}
	return lis, remove, nil
}

// serveGuests lets other processes of this user follow and order, until ctx ends. A run without it is a run all the same.
func (o *owner) serveGuests(ctx context.Context) {
	lis, remove, err := o.folder.listenGuests()
	if err != nil {
		o.log.Warn("serve guests", "error", err)
		return
	}
	defer remove()
	if err := control.Serve(ctx, lis, func(s *grpc.Server) { control.RegisterHeadServer(s, &guestServer{owner: o}) }); err != nil {
		o.log.Warn("serve guests", "error", err)
	}
}

// guestServer answers for the owner with the head's own API, as far as a guest needs it.
type guestServer struct {
	control.UnimplementedHeadServer
	owner *owner
}

// Status implements control.HeadServer.
func (g *guestServer) Status(context.Context, *control.StatusRequest) (*control.StatusReply, error) {
	s := g.owner.journal.State()
	return &control.StatusReply{Run: s.Run, Epoch: uint64(s.Epoch), Adopted: adopted(s), Version: g.owner.opts.Version}, nil
}

// Follow implements control.HeadServer.
func (g *guestServer) Follow(req *control.FollowRequest, call grpc.ServerStreamingServer[control.Events]) error {
	for n := int(req.After); ; {
		events, changed := g.owner.journal.Since(n)
		if len(events) == 0 {
			select {
			case <-changed:
				continue
			case <-call.Context().Done():
				return nil
			}
		}
		batch := &control.Events{}
		for _, e := range events[:min(len(events), 256)] {
			b, err := json.Marshal(e)
			if err != nil {
				return status.Errorf(codes.Internal, "%v", err)
			}
			batch.EventsJson = append(batch.EventsJson, b)
		}
		if err := call.Send(batch); err != nil {
			return err
		}
		n += len(batch.EventsJson)
	}
}

// Logs implements control.HeadServer.
func (g *guestServer) Logs(req *control.HeadLogsRequest, call grpc.ServerStreamingServer[control.HeadLogs]) error {
	buf := make([]byte, chunk)
	for offset := int64(req.After); ; {
		n, changed, err := g.owner.logs.read(offset, buf)
		if err != nil {
			return status.Errorf(codes.Internal, "read log: %v", err)
		}
		if n > 0 {
			if err := call.Send(&control.HeadLogs{Offset: uint64(offset), Data: buf[:n]}); err != nil {
				return err
			}
			offset += int64(n)
			continue
		}
		if !req.Follow {
			return nil
		}
		select {
		case <-changed:
		case <-call.Context().Done():
			return nil
		}
	}
}

// Order implements control.HeadServer.
func (g *guestServer) Order(ctx context.Context, req *control.OrderRequest) (*control.OrderReply, error) {
	var err error
	switch b := req.Body.(type) {
	case *control.OrderRequest_StopJson:
		var why journal.Stopping
		if err := json.Unmarshal(b.StopJson, &why); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "decode stop: %v", err)
		}
		err = g.owner.stop(ctx, why)
	case *control.OrderRequest_Scale:
		err = g.owner.scale(int(b.Scale), req.By)
	case *control.OrderRequest_Preempt:
		err = g.owner.preempt(ctx, b.Preempt.Node, time.Duration(b.Preempt.NoticeMs)*time.Millisecond)
	default:
		return nil, status.Errorf(codes.InvalidArgument, "unknown order %T", req.Body)
	}
	if err != nil {
		return nil, status.Errorf(codes.Unknown, "%v", err)
	}
	return &control.OrderReply{}, nil
}

// guest follows a run that another process owns, through its socket.
type guest struct {
	dialer
	opts   Options
	folder folder
	conn   *grpc.ClientConn
	api    control.HeadClient
	freed  chan struct{}

	mu      sync.Mutex // guards all below
	events  []Event
	folded  *State
	changed chan struct{} // closed and replaced at each event
}

// newGuest connects to the owner and takes in what there is so far.
func newGuest(ctx context.Context, opts Options, f folder) (*guest, error) {
	place, err := os.ReadFile(f.socketFile())
	if err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", string(place))
	if err != nil {
		return nil, err
	}
	client, err := control.DialConn(conn)
	if err != nil {
		return nil, err
	}
	g := &guest{opts: opts, folder: f, conn: client, api: control.NewHeadClient(client), freed: make(chan struct{}), folded: &State{}, changed: make(chan struct{})}
	close(g.freed)
	events, err := journal.ReadFile(f.journal())
	if err == nil {
		err = g.take(events)
	}
	if err == nil {
		g.job, err = jobOf(g.folded)
	}
	if err != nil {
		client.Close()
		return nil, err
	}
	g.run, g.network = f.run, opts.Network
	return g, nil
}

func (g *guest) take(events []Event) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := g.folded.Clone()
	for _, e := range events {
		if err := next.Apply(e); err != nil {
			return err
		}
	}
	g.folded, g.events = next, append(g.events, events...)
	close(g.changed)
	g.changed = make(chan struct{})
	return nil
}

func (g *guest) state() *State {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.folded
}

func (g *guest) since(n int) ([]Event, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n = min(n, len(g.events))
	return g.events[n:len(g.events):len(g.events)], g.changed
}

func (g *guest) free() <-chan struct{} { return g.freed }

// live takes in what the owner has until the run is clean, the owner has gone, or ctx ends.
func (g *guest) live(ctx context.Context, h *Handle) (*Result, error) {
	defer g.conn.Close()
	following, stop := context.WithCancel(ctx)
	closed := make(chan struct{})
	var beside sync.WaitGroup
	beside.Go(func() { h.deliver(g.since, closed) })
	if h.opts.OnLog != nil {
		beside.Go(func() { g.followLogs(following, h) })
	}
	err := g.copy(following)
	s := g.state()
	if s.Clean == nil {
		stop() // else the output's end comes with the owner's
	}
	close(closed)
	beside.Wait()
	stop()
	switch stored, rerr := ReadResult(g.run, g.opts); {
	case s.Clean != nil && rerr == nil:
		return stored, nil
	case s.Clean != nil:
		return g.resultOf(endingOver), nil
	case ctx.Err() != nil:
		if s.Stopping != nil {
			return g.resultOf(endingHandedOver), nil
		}
		return g.resultOf(endingDetached), nil
	case rerr == nil:
		return stored, nil // the owner has given up
	}
	return nil, fmt.Errorf("%w: %v", errOwnerGone, err)
}

func (g *guest) resultOf(end ending) *Result {
	r := resultOf(g.state(), end, nil)
	r.Folder = g.folder.path
	return r
}

func (g *guest) copy(ctx context.Context) error {
	call, err := g.api.Follow(ctx, &control.FollowRequest{After: uint64(g.state().Events)})
	if err != nil {
		return err
	}
	for g.state().Clean == nil {
		batch, err := call.Recv()
		if err != nil {
			return err
		}
		var events []Event
		for _, b := range batch.EventsJson {
			var e Event
			if err := json.Unmarshal(b, &e); err != nil {
				return err
			}
			events = append(events, e)
		}
		if err := g.take(events); err != nil {
			return err
		}
	}
	return nil
}

// followLogs tells OnLog of the owner's output until it ends or ctx does.
func (g *guest) followLogs(ctx context.Context, h *Handle) {
	call, err := g.api.Logs(ctx, &control.HeadLogsRequest{After: uint64(h.logOffset), Follow: true})
	if err != nil {
		return
	}
	var cutter lineCutter
	for {
		c, err := call.Recv()
		if err != nil {
			h.logOffset -= int64(len(cutter.rest))
			return
		}
		cutter.cut(c.Data, h.opts.OnLog)
		h.logOffset = int64(c.Offset) + int64(len(c.Data))
	}
}

func (g *guest) order(ctx context.Context, req *control.OrderRequest) error {
	_, err := g.api.Order(ctx, req)
	if s, ok := status.FromError(err); err != nil && ok {
		return errors.New(s.Message())
	}
	return err
}

func (g *guest) stop(ctx context.Context, why journal.Stopping) error {
	b, err := json.Marshal(why)
	if err != nil {
		return err
	}
	return g.order(ctx, &control.OrderRequest{Body: &control.OrderRequest_StopJson{StopJson: b}})
}

func (g *guest) scaleTo(ctx context.Context, workers int) error {
	if workers < 1 {
		return fmt.Errorf("scale to %d: want at least 1", workers)
	}
	return g.order(ctx, &control.OrderRequest{Body: &control.OrderRequest_Scale{Scale: uint32(workers)}, By: "client"})
}

// reach dials the head for this process: the owner's connection cannot be lent.
func (g *guest) reach(ctx context.Context) (*connection, func(), error) {
	n := g.state().Head()
	if n == nil || n.Machine == nil || n.Machine.Address == "" || n.Phase.Ended() {
		return nil, nil, errors.New("reach the head: there is none")
	}
	keys, _, err := g.folder.keys(nil)
	if err != nil {
		return nil, nil, err
	}
	d := g.dialer
	d.clientKey = keys.client
	if d.binaries, err = g.opts.binaries(); err != nil {
		return nil, nil, err
	}
	c, err := d.dial(ctx, n)
	if err != nil {
		return nil, nil, err
	}
	return c, c.Close, nil
}

func (g *guest) preempt(ctx context.Context, node string, notice time.Duration) error {
	return g.order(ctx, &control.OrderRequest{Body: &control.OrderRequest_Preempt{Preempt: &control.Preempt{Node: node, NoticeMs: notice.Milliseconds()}}})
}
