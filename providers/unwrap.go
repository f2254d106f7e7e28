package providers

import (
	"context"
	"encoding/json"
)

// As finds an optional service of a provider under its decorators: the outermost layer that has it, so that a drill is
// logged and a check limited like any other call. It is false where the undecorated provider lacks it, because
// decorators have them all. A provider across a plugin hop also has them all: there Info.Capabilities decides.
func As[T any](p Provider) (T, bool) {
	var outermost T
	found := false
	for {
		service, ok := p.(T)
		if ok && !found {
			outermost, found = service, true
		}
		layer, decorated := p.(interface{ Unwrap() Provider })
		if !decorated {
			if !ok {
				var none T
				return none, false
			}
			return outermost, true
		}
		p = layer.Unwrap()
	}
}

// around decorates a provider: every method goes through call, which runs do any number of times and returns its error.
type around struct {
	next Provider
	call func(ctx context.Context, c *call, do func(context.Context) error) error
}

// call is what decorators may know of a call. It has no part of the request that could be secret.
type call struct {
	op  string
	run string
	// want and got count what the call is about: machines, resources or offers; -1: nothing to count.
	want, got int
	// safe tells that a repetition has no further effect.
	safe bool
}

// Unwrap returns the decorated provider.
func (a *around) Unwrap() Provider { return a.next }

func (a *around) Info(ctx context.Context) (info Info, err error) {
	err = a.call(ctx, &call{op: "info", want: -1, got: -1, safe: true}, func(ctx context.Context) (err error) {
		info, err = a.next.Info(ctx)
		return err
	})
	return info, err
}

func (a *around) Offers(ctx context.Context, req OffersRequest) (offers []Offer, err error) {
	c := &call{op: "offers", want: -1, safe: true}
	err = a.call(ctx, c, func(ctx context.Context) (err error) {
		offers, err = a.next.Offers(ctx, req)
		c.got = len(offers)
		return err
	})
	return offers, err
}

func (a *around) Create(ctx context.Context, req CreateRequest) (result CreateResult, err error) {
	c := &call{op: "create", run: req.Run, want: req.Count, safe: req.Token != ""}
	err = a.call(ctx, c, func(ctx context.Context) (err error) {
		result, err = a.next.Create(ctx, req)
		c.got = len(result.Machines)
		return err
	})
	return result, err
}

func (a *around) List(ctx context.Context, filter Filter) (resources []Resource, err error) {
	c := &call{op: "list", run: filter.Run, want: -1, safe: true}
	err = a.call(ctx, c, func(ctx context.Context) (err error) {
		resources, err = a.next.List(ctx, filter)
		c.got = len(resources)
		return err
	})
	return resources, err
}

func (a *around) Delete(ctx context.Context, req DeleteRequest) (left []Resource, err error) {
	c := &call{op: "delete", run: req.Run, want: len(req.Resources), safe: true}
	err = a.call(ctx, c, func(ctx context.Context) (err error) {
		left, err = a.next.Delete(ctx, req)
		c.got = len(req.Resources) - len(left)
		if err != nil {
			c.got = 0
		}
		return err
	})
	return left, err
}

func (a *around) Update(ctx context.Context, req UpdateRequest) error {
	return a.call(ctx, &call{op: "update", run: req.Run, want: -1, got: -1, safe: true}, func(ctx context.Context) error {
		return a.next.Update(ctx, req)
	})
}

// Preempt implements [Preempter] where the provider does. A repetition is not safe: it could preempt for longer notice, or twice.
func (a *around) Preempt(ctx context.Context, req PreemptRequest) error {
	p, ok := As[Preempter](a.next)
	if !ok {
		return Errorf(Invalid, "preempt", "the provider has no drill")
	}
	return a.call(ctx, &call{op: "preempt", run: req.Run, want: -1, got: -1}, func(ctx context.Context) error {
		return p.Preempt(ctx, req)
	})
}

// Check implements [Checker] where the provider does.
func (a *around) Check(ctx context.Context, config json.RawMessage) (id Identity, err error) {
	p, ok := As[Checker](a.next)
	if !ok {
		return Identity{}, Errorf(Invalid, "check", "the provider has no check")
	}
	err = a.call(ctx, &call{op: "check", want: -1, got: -1, safe: true}, func(ctx context.Context) (err error) {
		id, err = p.Check(ctx, config)
		return err
	})
	return id, err
}
