package head

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

// run is the run this head supervises.
func (d *Daemon) run() (*adopted, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.adopted == nil {
		return nil, status.Error(codes.FailedPrecondition, "this head does not supervise a run")
	}
	return d.adopted, nil
}

func (d *Daemon) theWorld() (*World, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.world == nil {
		return nil, status.Error(codes.FailedPrecondition, "this head has no run yet")
	}
	return d.world, nil
}

// Follow implements control.HeadServer.
func (d *Daemon) Follow(req *control.FollowRequest, call grpc.ServerStreamingServer[control.Events]) error {
	a, err := d.run()
	if err != nil {
		return err
	}
	for n := int(req.After); ; {
		events, changed := a.journal.Since(n)
		if len(events) > 0 {
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
			continue
		}
		select {
		case <-changed:
		case <-call.Context().Done():
			return nil
		}
	}
}

// Logs implements control.HeadServer.
func (d *Daemon) Logs(req *control.HeadLogsRequest, call grpc.ServerStreamingServer[control.HeadLogs]) error {
	w, err := d.theWorld()
	if err != nil {
		return err
	}
	buf := make([]byte, chunk)
	for offset := int64(req.After); ; {
		n, changed, err := w.logs.Read(offset, buf)
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
func (d *Daemon) Order(ctx context.Context, req *control.OrderRequest) (*control.OrderReply, error) {
	a, err := d.run()
	if err != nil {
		return nil, err
	}
	switch b := req.Body.(type) {
	case *control.OrderRequest_StopJson:
		var why journal.Stopping
		if err := json.Unmarshal(b.StopJson, &why); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "decode stop: %v", err)
		}
		a.supervisor.Stop(why)
	case *control.OrderRequest_Scale:
		if err := a.supervisor.Scale(int(b.Scale), req.By); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "%v", err)
		}
	case *control.OrderRequest_Preempt:
		if err := a.preempt(ctx, b.Preempt); err != nil {
			return nil, err
		}
	case *control.OrderRequest_Fetched:
		if err := a.journal.Append(ctx, journal.NewEvent(journal.RunFetched, "", 0, nil)); err != nil {
			return nil, status.Errorf(codes.Internal, "%v", err)
		}
	default:
		return nil, status.Errorf(codes.InvalidArgument, "unknown order %T", req.Body)
	}
	return &control.OrderReply{}, nil
}

func (a *adopted) preempt(ctx context.Context, p *control.Preempt) error {
	state := a.journal.State()
	n := state.Nodes[p.Node]
	if n == nil || n.Machine == nil || n.Phase.Ended() {
		return status.Errorf(codes.NotFound, "no living node %q", p.Node)
	}
	drill, ok := providers.As[providers.Preempter](a.provider)
	if !ok {
		return status.Errorf(codes.Unimplemented, "provider %s has no preemption drill", state.Planned.Provider)
	}
	err := drill.Preempt(ctx, providers.PreemptRequest{Config: a.config, Run: state.Run, Machine: n.Machine.ID, Notice: time.Duration(p.NoticeMs) * time.Millisecond})
	if err != nil {
		return status.Errorf(codes.Unknown, "%v", err)
	}
	return nil
}

// Outputs implements control.HeadServer.
func (d *Daemon) Outputs(req *control.OutputsRequest, call grpc.ServerStreamingServer[control.OutputsChunk]) error {
	w, err := d.theWorld()
	if err != nil {
		return err
	}
	saved := make(chan []savedOutputs, 1)
	w.post(func(l *worldLoop) { saved <- append([]savedOutputs(nil), l.files.outputs...) })
	var list []savedOutputs
	select {
	case list = <-saved:
	case <-call.Context().Done():
		return nil
	case <-w.done:
		return status.Error(codes.Unavailable, "the world has ended")
	}
	for _, o := range list {
		if req.Have[o.Node] == o.Hash {
			continue
		}
		if err := sendOutputs(call, o); err != nil {
			return err
		}
	}
	return nil
}

func sendOutputs(call grpc.ServerStreamingServer[control.OutputsChunk], o savedOutputs) error {
	f, err := os.Open(o.Path)
	if err != nil {
		return status.Errorf(codes.Internal, "read outputs: %v", err)
	}
	defer f.Close()
	buf := make([]byte, chunk)
	c := &control.OutputsChunk{Node: o.Node, Hash: o.Hash}
	for {
		n, err := io.ReadFull(f, buf)
		c.Data, c.Last = buf[:n], errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !c.Last {
			return status.Errorf(codes.Internal, "read outputs: %v", err)
		}
		if err := call.Send(c); err != nil {
			return err
		}
		if c.Last {
			return nil
		}
		c = &control.OutputsChunk{}
	}
}

// NodeExec implements control.HeadServer.
func (d *Daemon) NodeExec(call grpc.BidiStreamingServer[control.NodeExecInput, control.ExecOutput]) error {
	w, err := d.theWorld()
	if err != nil {
		return err
	}
	first, err := call.Recv()
	if err != nil {
		return err
	}
	found := make(chan *link, 1)
	w.post(func(l *worldLoop) { found <- l.links[first.Node] })
	var k *link
	select {
	case k = <-found:
	case <-call.Context().Done():
		return nil
	}
	if k == nil {
		return status.Errorf(codes.NotFound, "no living worker %q", first.Node)
	}
	agent, err := k.agent()
	if err != nil {
		return status.Errorf(codes.Unavailable, "%v", err)
	}
	ctx, cancel := context.WithCancel(call.Context())
	defer cancel()
	remote, err := agent.Exec(ctx)
	if err != nil {
		return err
	}
	if err := remote.Send(first.Input); err != nil {
		return err
	}
	var sending sync.WaitGroup
	defer sending.Wait()
	sending.Go(func() {
		defer remote.CloseSend()
		for {
			in, err := call.Recv()
			if err != nil || remote.Send(in.Input) != nil {
				return
			}
		}
	})
	for {
		out, err := remote.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := call.Send(out); err != nil {
			return err
		}
		if out.GetExit() != nil {
			break
		}
	}
	return nil
}
