package head

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/launcher/rendezvous"
	"github.com/ephemeral-launcher/launcher/launcher/supervisor"
)

// service is the line to a client's supervisor: its orders come in, the world's reports go out and are awaited.
type service struct {
	clock journal.Clock

	mu      sync.Mutex // guards all below
	number  uint64
	pending *pendingReport
	changed chan struct{} // closed and replaced when pending changes
	line    context.CancelFunc
	// until is when the client's authority ends, on the run clock.
	until time.Duration
	acked map[uint64]time.Duration // when each lease acknowledgement was sent
}

type pendingReport struct {
	number uint64
	events [][]byte
	done   chan error
}

// Serve implements control.HeadServer.
func (d *Daemon) Serve(_ context.Context, req *control.ServeRequest) (*control.ServeReply, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.check(req.Setup); err != nil {
		return nil, err
	}
	if d.adopted != nil {
		return nil, status.Error(codes.FailedPrecondition, "this head supervises its run itself")
	}
	if d.served != nil {
		return &control.ServeReply{Instance: d.instance}, nil
	}
	clock := journal.StartClock(time.Duration(req.AtNs), d.Elapsed)
	s := &service{clock: clock, changed: make(chan struct{}), acked: map[uint64]time.Duration{}}
	world, err := d.newWorld(req.Setup, clock, WorldConfig{
		Record: s.record, Past: rendezvous.Past{Generation: int(req.LastGeneration), Restarts: int(req.Restarts)},
		Lease: s.lease,
	})
	if err != nil {
		return nil, err
	}
	s.until = clock() + world.Job.Limits.NodeLease
	d.setup, d.epoch, d.served, d.world = req.Setup, req.Setup.Epoch, s, world
	d.Extend(world.Job.Limits.NodeLease)
	d.runWorld(world)
	return &control.ServeReply{Instance: d.instance}, nil
}

// lease is how long the client's authority still holds: what the nodes may be granted.
func (s *service) lease() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.until-s.clock(), 0)
}

// record hands events to the client and waits until they are on its disk, over as many connections as it takes.
func (s *service) record(ctx context.Context, events ...journal.Event) error {
	p := &pendingReport{done: make(chan error, 1)}
	for _, e := range events {
		b, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("encode %s: %w", e.Kind, err)
		}
		p.events = append(p.events, b)
	}
	s.mu.Lock()
	s.number++
	p.number = s.number
	s.pending = p
	s.change()
	s.mu.Unlock()
	select {
	case err := <-p.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// change tells the line that there is something to send. The caller holds mu.
func (s *service) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// World implements control.HeadServer.
func (d *Daemon) World(line grpc.BidiStreamingServer[control.WorldOrder, control.WorldReport]) error {
	d.mu.Lock()
	s, world := d.served, d.world
	d.mu.Unlock()
	if s == nil {
		return status.Error(codes.FailedPrecondition, "this head serves no client")
	}
	ctx, cancel := context.WithCancel(line.Context())
	defer cancel()
	s.mu.Lock()
	if s.line != nil {
		s.line() // the newest wins
	}
	s.line = cancel
	s.mu.Unlock()
	acks := make(chan uint64, 16)
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	sending.Go(func() {
		defer cancel()
		s.send(ctx, line, acks)
	})
	received := make(chan error, 1)
	// Recv ends with the call, so this goroutine outlives the function by no more than that.
	go func() { received <- d.takeOrders(ctx, line, world, acks) }()
	select {
	case err := <-received:
		return err
	case <-ctx.Done():
		return status.Error(codes.Aborted, "another connection took over")
	}
}

func (d *Daemon) takeOrders(ctx context.Context, line grpc.BidiStreamingServer[control.WorldOrder, control.WorldReport], world *World, acks chan<- uint64) error {
	s := d.served
	for {
		o, err := line.Recv()
		if err != nil {
			return err
		}
		switch b := o.Body.(type) {
		case *control.WorldOrder_RosterJson:
			var r supervisor.Roster
			if err := json.Unmarshal(b.RosterJson, &r); err != nil {
				return status.Errorf(codes.InvalidArgument, "decode roster: %v", err)
			}
			world.SetRoster(r)
		case *control.WorldOrder_Gone:
			world.Gone(b.Gone.Node, b.Gone.Evidence)
		case *control.WorldOrder_Drain:
			world.Drain(journal.Cause(b.Drain))
		case *control.WorldOrder_Lease:
			d.Extend(s.renew(b.Lease))
			world.Renew()
			select {
			case acks <- b.Lease.Seq:
			case <-ctx.Done():
				return ctx.Err()
			}
		case *control.WorldOrder_Recorded:
			s.recorded(b.Recorded)
		}
	}
}

// renew extends the client's authority. It counts from the sending of the renewal, which lies after the acknowledgement that
// the client had heard then was sent: see control.Renew for the same rule.
func (s *service) renew(l *control.Lease) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	from, ok := s.acked[uint64(l.HeardSeq)]
	if !ok {
		if s.clock() < s.until {
			return s.until - s.clock()
		}
		from = s.clock()
	}
	for seq := range s.acked {
		if seq < uint64(l.HeardSeq) {
			delete(s.acked, seq)
		}
	}
	s.until = max(s.until, from+time.Duration(l.NodeLeaseMs)*time.Millisecond)
	return s.until - s.clock()
}

func (s *service) recorded(r *control.Recorded) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pending
	if p == nil || p.number != r.Number {
		return // an answer that came twice
	}
	s.pending = nil
	switch {
	case r.TooLate:
		p.done <- fmt.Errorf("%s: %w", r.Error, journal.ErrCannotFollow)
	case r.Error != "":
		p.done <- errors.New(r.Error)
	default:
		p.done <- nil
	}
}

// send sends the report that waits for its answer, once per line, and acknowledges leases.
func (s *service) send(ctx context.Context, line grpc.BidiStreamingServer[control.WorldOrder, control.WorldReport], acks <-chan uint64) {
	sent := uint64(0)
	for {
		s.mu.Lock()
		p, changed := s.pending, s.changed
		s.mu.Unlock()
		if p != nil && p.number > sent {
			sent = p.number
			if line.Send(&control.WorldReport{Number: p.number, EventsJson: p.events}) != nil {
				return
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case seq := <-acks:
			s.mu.Lock()
			s.acked[seq] = s.clock()
			s.mu.Unlock()
			if line.Send(&control.WorldReport{LeaseSeq: seq}) != nil {
				return
			}
		}
	}
}
