package launcher

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// This file makes an owner the body of a Handle.

func (o *owner) state() *State                          { return o.journal.State() }
func (o *owner) since(n int) ([]Event, <-chan struct{}) { return o.journal.Since(n) }
func (o *owner) free() <-chan struct{}                  { return o.handedOver }

// live drives the run to its end and keeps callbacks and guests informed.
func (o *owner) live(ctx context.Context, h *Handle) (*Result, error) {
	os.Remove(o.folder.result()) // it is not over
	over := make(chan struct{})
	var beside sync.WaitGroup
	beside.Go(func() { h.deliver(o.journal.Since, over) })
	if h.opts.OnLog != nil {
		beside.Go(func() {
			if err := o.logs.deliver(h.logOffset, over, h.opts.OnLog); err != nil {
				o.log.Warn("read log", "error", err)
			}
		})
	}
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	beside.Go(func() { o.serveGuests(serving) })
	err := o.drive(ctx)
	if c := o.takeConnection(); c != nil {
		c.Close()
	}
	result, err := o.ended(err, h.leaving())
	close(over)
	stopServing()
	beside.Wait()
	o.logs.Close()
	o.journal.Close()
	return result, err
}

// ended computes and stores the result.
func (o *owner) ended(err error, left bool) (*Result, error) {
	o.mu.Lock()
	if o.failure != nil {
		err = o.failure
	}
	givenUp, told := o.givenUp, o.told
	o.mu.Unlock()
	s := o.journal.State()
	end := endingOver
	if left && s.Clean == nil {
		end, err = endingAbandoned, nil
		if closed(o.handedOver) && !o.lost() {
			end = endingDetached
			if told || s.Stopping != nil {
				end = endingHandedOver
			}
		}
	} else if err != nil {
		end = endingAbandoned
	}
	if s.Clean != nil {
		err = nil
		os.Remove(o.folder.workdir())
	}
	r := resultOf(s, end, givenUp)
	if err != nil && r.Text == "" {
		r.Text = err.Error()
	}
	if end == endingOver {
		if serr := o.folder.storeResult(o.job, r); serr != nil && err == nil {
			err = serr
		}
	}
	r.Folder = o.folder.path
	return r, err
}

// stop orders the end of the run and waits until a head that supervises has the order.
func (o *owner) stop(ctx context.Context, why journal.Stopping) error {
	o.orderStop(why)
	o.mu.Lock()
	toldNow := o.toldNow
	o.mu.Unlock()
	for {
		_, changed := o.journal.Since(1 << 30)
		if s := o.journal.State(); !offered(s) || s.Stopping != nil {
			return nil
		}
		select {
		case <-toldNow:
			return nil
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (o *owner) scaleTo(ctx context.Context, workers int) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if !offered(o.journal.State()) {
		return o.scale(workers, "client")
	}
	// The head supervises: it has the order when this returns, for the process may end right after.
	c, err := o.await(ctx)
	if err != nil {
		return err
	}
	_, err = c.api.Order(ctx, &control.OrderRequest{Body: &control.OrderRequest_Scale{Scale: uint32(workers)}, By: "client"})
	return err
}

// reach lends the living connection.
func (o *owner) reach(ctx context.Context) (*connection, func(), error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := o.await(ctx)
	return c, func() {}, err
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
