package agent

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ephemeral-launcher/launcher/launcher/agent/machine"
	"github.com/ephemeral-launcher/launcher/launcher/control"
)

// errShutdown ends sessions when the agent ends.
var errShutdown = status.Error(codes.Unavailable, "the agent ends")

// healthEvery is how often Health is sent.
const healthEvery = 10 * time.Second

// Session takes orders and sends reports.
func (a *Agent) Session(stream grpc.BidiStreamingServer[control.Order, control.Report]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	s, err := a.begin(first)
	if err != nil {
		return err
	}
	defer a.leave(s)
	// Recv ends when this handler has returned, not before: Run awaits it.
	a.spawn(func(context.Context) {
		for {
			order, err := stream.Recv()
			if err != nil {
				s.end(err)
				return
			}
			a.obey(s, order)
		}
	})
	stop := context.AfterFunc(stream.Context(), func() { s.end(status.FromContextError(stream.Context().Err()).Err()) })
	defer stop()
	a.spawn(func(ctx context.Context) { a.sendHealth(ctx, stream.Context(), s) })
	for {
		report, err := s.next()
		if errors.Is(err, io.EOF) {
			return nil // the head has said its last
		} else if err != nil {
			return err
		}
		report.StampNs = int64(a.o.Uptime())
		if err := stream.Send(report); err != nil {
			return err
		}
	}
}

// begin checks who calls and makes that the session.
func (a *Agent) begin(order *control.Order) (*session, error) {
	hello := order.GetHello()
	join := a.o.Join
	switch {
	case hello == nil:
		return nil, status.Error(codes.InvalidArgument, "the first order is not a hello")
	case hello.Run != join.Run || hello.Node != join.Node:
		return nil, status.Errorf(codes.PermissionDenied, "this is node %s of run %s", join.Node, join.Run)
	}
	s := &session{r: a.reports}
	a.mu.Lock()
	if hello.Epoch < a.epoch {
		a.mu.Unlock()
		return nil, status.Errorf(codes.FailedPrecondition, "epoch %d is over, epoch %d was here", hello.Epoch, a.epoch)
	}
	a.epoch = hello.Epoch
	if a.session != nil {
		a.session.end(status.Error(codes.Aborted, "a newer session took over"))
	}
	a.session = s
	a.mu.Unlock()
	if hello.Instance == a.instance {
		a.reports.received(order.Received)
	}
	if hello.Renew != nil {
		a.leases.renew(hello.Renew)
	}
	s.push(&control.Report{Body: &control.Report_Hello{Hello: a.hello()}})
	if hello.Renew != nil {
		a.acknowledge(s, hello.Renew)
	}
	return s, nil
}

func (a *Agent) leave(s *session) {
	s.end(errors.New("session over"))
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.session == s {
		a.session = nil
	}
}

// isCurrent tells whether orders of s still count.
func (a *Agent) isCurrent(s *session) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.session == s
}

// obey carries out one order. It does not wait: what takes time is spawned.
func (a *Agent) obey(s *session, order *control.Order) {
	if !a.isCurrent(s) {
		return // it was on its way when a newer head took over
	}
	a.reports.received(order.Received)
	switch body := order.Body.(type) {
	case *control.Order_Renew:
		a.leases.renew(body.Renew)
		a.acknowledge(s, body.Renew)
	case *control.Order_Start:
		a.start(body.Start)
	case *control.Order_End:
		a.end(body.End)
	case *control.Order_Setup:
		a.setup(body.Setup)
	case *control.Order_PowerOff:
		a.log.Info("ordered to power off", "reason", body.PowerOff.GetReason())
		a.spawn(a.powerOff)
	case *control.Order_Rekey:
		a.spawn(func(ctx context.Context) { a.rekey(ctx, body.Rekey) })
	case *control.Order_Notify:
		a.mu.Lock()
		a.setWorld(body.Notify.GetWorld())
		a.mu.Unlock()
		a.spawn(func(context.Context) { a.show() })
	}
}

func (a *Agent) acknowledge(s *session, r *control.Renew) {
	node, member := a.leases.left()
	s.push(&control.Report{Body: &control.Report_Ack{Ack: &control.Ack{
		Seq: r.Seq, NodeLeaseLeftMs: node.Milliseconds(), MemberLeaseLeftMs: member.Milliseconds(),
	}}})
}

// sendHealth reports how the machine is while a session lasts.
func (a *Agent) sendHealth(ctx, call context.Context, s *session) {
	ticker := time.NewTicker(healthEvery)
	defer ticker.Stop()
	var ticks uint64
	var computed time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-call.Done():
			return
		case <-ticker.C:
		}
		h := &control.Health{
			DiskFreeBytes: machine.DiskFree(a.o.Join.Workdir), LogBytesDropped: a.logs.Dropped(),
			Load1: machine.Load1(), MemoryFreeBytes: machine.MemoryFree(),
		}
		a.mu.Lock()
		g, progressed := a.current, a.progressed
		var sessions []int
		if g != nil && g.state == control.GenerationState_RUNNING {
			sessions = g.sessions
		}
		a.mu.Unlock()
		if len(sessions) > 0 {
			if meter, ok := a.o.Runner.(interface{ CPUTicks([]int) uint64 }); ok {
				if now := meter.CPUTicks(sessions); now != ticks {
					ticks, computed = now, time.Now()
				}
			}
			last := g.began
			for _, t := range []time.Time{progressed, computed, a.logs.Written()} {
				if t.After(last) {
					last = t
				}
			}
			h.IdleMs = time.Since(last).Milliseconds()
		}
		s.push(&control.Report{Body: &control.Report_Health{Health: h}})
	}
}
