package supervisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

// Every provider call has a time-out of its own; what it left behind is found by repeating or listing.
const (
	createTimeout = 5 * time.Minute
	listTimeout   = time.Minute
	deleteTimeout = 2 * time.Minute
	updateTimeout = 30 * time.Second
)

// act carries out one action. What only writes the journal is done before it returns, and then it returns true; the rest runs in a
// goroutine that answers with a result.
func (l *loop) act(ctx context.Context, a Action) (wrote bool, err error) {
	switch a := a.(type) {
	case Record:
		return l.write(ctx, a, a.Events...)
	case Stop:
		return l.write(ctx, a, journal.NewEvent(journal.RunStopping, a.Why.Node, 0, a.Why))
	case Finish:
		return l.write(ctx, a, journal.NewEvent(journal.RunFinished, "", 0, a.Result))
	case TellGone:
		l.World.Gone(a.Node, a.Evidence)
		l.backOff(a.Key())
	case Drain:
		l.World.Drain(l.Journal.State().Stopping.Cause)
		l.backOff(a.Key())
	case Create:
		return l.create(ctx, a)
	case Delete:
		return l.delete(ctx, a)
	case Sweep:
		l.start(ctx, []string{a.Key()}, func(ctx context.Context) result { return l.sweep(ctx, a.Resources) })
	case List:
		l.start(ctx, []string{a.Key()}, l.list)
	case Renew:
		l.start(ctx, []string{a.Key()}, l.renew)
	default:
		return false, fmt.Errorf("act: unknown action %T", a)
	}
	return false, nil
}

// write journals events; where none could follow, the action is not repeated at once.
func (l *loop) write(ctx context.Context, a Action, events ...journal.Event) (wrote bool, err error) {
	wrote, err = l.record(ctx, events)
	if err == nil && !wrote {
		l.backOff(a.Key())
	}
	return wrote, err
}

// errAway is why an effect was not carried out: the process was stopped between the decision and the deed, and what it knew may be stale.
var errAway = errors.New("this process was away for more than half a node lease")

// pass carries out an effect on the provider, unless the decision behind it is too old.
func (l *loop) pass(ctx context.Context, e journal.Effect, act func() error) error {
	if l.Journal.Now()-time.Duration(l.ticked.Load()) > l.Job.Limits.NodeLease/2 {
		return errAway
	}
	return l.Door.Pass(ctx, e, act)
}

func (l *loop) start(ctx context.Context, keys []string, f func(context.Context) result) {
	for _, k := range keys {
		l.busy[k] = true
	}
	l.running.Go(func() {
		r := f(ctx)
		r.keys = keys
		l.results <- r
	})
}

// create journals the intents, if they are new, and makes the call.
func (l *loop) create(ctx context.Context, a Create) (wrote bool, err error) {
	private, public, err := l.Keys.Birth(a.Token)
	if err != nil {
		return false, fmt.Errorf("make birth key: %w", err)
	}
	if a.New {
		intents, err := intents(l.Journal.State(), a, public)
		if err != nil {
			return false, err
		}
		if err := l.Journal.Append(ctx, intents...); errors.Is(err, journal.ErrCannotFollow) {
			return false, nil // the run was stopped this moment
		} else if err != nil {
			return false, err
		}
	} else if l.Journal.State().Stopping != nil {
		return false, nil
	}
	tags := maps.Clone(l.Tags)
	if tags == nil {
		tags = map[string]string{}
	}
	state := l.Journal.State()
	tags[providers.TagRun], tags[providers.TagOwner], tags[providers.TagRole] = state.Run, l.Owner, string(a.Want.Role)
	req := providers.CreateRequest{
		Config: l.Config, Token: a.Token, Run: state.Run, Role: a.Want.Role, Offers: a.Want.Offers, Count: a.Want.Count, Min: a.Want.Min,
		Tags: tags, TTL: l.Job.Limits.StartTimeout, AuthorizedKeys: l.Keys.Authorized(a.Want.Role), BirthHostKey: private, Egress: l.Job.Network.Egress,
	}
	switch a.Want.Role {
	case providers.Head:
		req.Ingress, req.DiskGiB, req.Identity = l.Ingress, l.Job.Head.DiskGiB, l.Job.HeadFor(state.Planned.Provider).Identity
		tags[providers.TagExpires] = time.Now().UTC().Add(l.Job.Limits.StartTimeout).Format(time.RFC3339)
	case providers.Worker:
		w := l.Job.WorkersFor(state.Planned.Provider)
		req.DiskGiB, req.Image, req.Identity = w.DiskGiB, w.VMImage, w.Identity
	}
	l.start(ctx, []string{a.Key()}, func(ctx context.Context) result { return l.callCreate(ctx, a, req) })
	return a.New, nil
}

// intents are the events that say what is about to be rented. The first one has the offers, for all.
func intents(s *journal.State, a Create, public string) ([]journal.Event, error) {
	var events []journal.Event
	for i, name := range a.Nodes {
		in := a.Want
		in.BirthKey, in.Slot, in.Attempt = public, -1, 1
		if in.Role == providers.Worker {
			var err error
			if in.Slot, in.Attempt, err = journal.ParseNodeName(name); err != nil {
				return nil, err
			}
		} else if head := s.Head(); head != nil {
			in.Attempt = head.Attempt + 1
		}
		if i > 0 {
			in.Offers, in.With = nil, a.Nodes[0]
		}
		events = append(events, journal.NewEvent(journal.NodeIntended, name, 0, in))
	}
	return events, nil
}

func (l *loop) callCreate(ctx context.Context, a Create, req providers.CreateRequest) result {
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	var res providers.CreateResult
	err := l.pass(ctx, journal.Effect{Name: "provider.create", Operand: a.Token}, func() (err error) {
		res, err = l.Provider.Create(ctx, req)
		return err
	})
	at := l.Journal.Now()
	r := result{gather: func(l *loop) { l.called[a.Token] = at }}
	var refused journal.Refused
	if err != nil {
		code := providers.CodeOf(err)
		if errors.Is(err, journal.ErrCrashed) || errors.Is(err, errAway) || ctx.Err() != nil || code.Retryable() {
			r.err = err // the effect may have happened: the same token again
			return r
		}
		refused.Code, refused.Message = code, err.Error()
		if perr, ok := errors.AsType[*providers.Error](err); ok {
			refused.Message, refused.Offers = perr.Message, perr.Offers
		}
	} else {
		refused = journal.Refused{Code: providers.Capacity, Message: "fewer machines than asked", Offers: res.Refused}
		if len(res.Refused) > 0 {
			refused.Code, refused.Message = res.Refused[0].Code, res.Refused[0].Message
		}
	}
	r.events = brought(l.Journal.State(), a, res.Machines, refused)
	return r
}

// brought says what a create call brought: a machine a node, as far as there are any, and for the others why not. A repeated call
// returns all machines of the token, and some may have their nodes already.
func brought(s *journal.State, a Create, machines []providers.Machine, refused journal.Refused) []journal.Event {
	owned := map[string]bool{}
	for _, n := range s.Nodes {
		if n.Machine != nil && n.Intent.Token == a.Token {
			owned[n.Machine.ID] = true
		}
	}
	machines = slices.DeleteFunc(slices.Clone(machines), func(m providers.Machine) bool { return owned[m.ID] })
	var events []journal.Event
	for i, name := range a.Nodes {
		if i < len(machines) {
			events = append(events, journal.NewEvent(journal.NodeCreated, name, 0, journal.MachineCreated{Machine: machines[i]}))
			continue
		}
		events = append(events, journal.NewEvent(journal.NodeRefused, name, 0, refused))
		refused.Offers = nil // said once
	}
	return events
}

// delete journals that the nodes are leaving and orders their machines' deletion.
func (l *loop) delete(ctx context.Context, a Delete) (wrote bool, err error) {
	state := l.Journal.State()
	var resources []providers.Resource
	var keys []string
	var leaving []journal.Event
	for _, name := range a.Nodes {
		n := state.Nodes[name]
		if n == nil || n.Machine == nil || n.Phase.Ended() {
			continue
		}
		keys = append(keys, Delete{Nodes: []string{name}}.Key())
		resources = append(resources, providers.Resource{
			ID: n.Machine.ID, Kind: providers.KindMachine, Region: n.Machine.Offer.Region, Machine: n.Machine,
			Tags: map[string]string{providers.TagRun: state.Run},
		})
		if n.Phase != journal.PhaseDeleting {
			leaving = append(leaving, journal.NewEvent(journal.NodeDeleting, name, 0, journal.DeletingNode{Reason: a.Reason}))
		}
	}
	if len(resources) == 0 {
		return false, nil
	}
	if wrote, err = l.record(ctx, leaving); err != nil {
		return wrote, err
	}
	resources = append(resources, a.With...)
	l.start(ctx, keys, func(ctx context.Context) result {
		r := l.sweep(ctx, resources)
		if r.err == nil {
			r.gather = func(l *loop) {
				for _, k := range keys {
					l.accepted[k] = true
				}
			}
		}
		return r
	})
	return wrote, nil
}

// sweep orders a deletion. That the order was accepted proves nothing, so it is repeated at a growing pace until listings show the resources gone.
func (l *loop) sweep(ctx context.Context, resources []providers.Resource) result {
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	run := l.Journal.State().Run
	err := l.pass(ctx, journal.Effect{Name: "provider.delete", Operand: resources[0].ID}, func() error {
		_, err := l.Provider.Delete(ctx, providers.DeleteRequest{Config: l.Config, Run: run, Resources: resources})
		return err
	})
	r := result{pace: true, err: err}
	if err != nil && !errors.Is(err, journal.ErrCrashed) && !errors.Is(err, errAway) && ctx.Err() == nil {
		r.events = []journal.Event{journal.NewEvent(journal.ProviderRefused, "", 0,
			journal.ProviderError{Op: "delete", Code: providers.CodeOf(err), Message: err.Error()})}
	}
	return r
}

func (l *loop) list(ctx context.Context) result {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	state := l.Journal.State()
	at := l.Journal.Now()
	var resources []providers.Resource
	err := l.Door.Pass(ctx, journal.Effect{Name: "provider.list", Operand: state.Run}, func() (err error) {
		resources, err = l.Provider.List(ctx, providers.Filter{Config: l.Config, Run: state.Run, Regions: regions(state)})
		return err
	})
	if err != nil {
		return result{err: err}
	}
	return result{gather: func(l *loop) {
		// Creates that began after the listing was asked for are not in the state it is judged by. Those under way then, or by a
		// process before this one, may not have had their effect yet.
		l.seen = l.seen.Observe(state, at, resources, unsure(l.busy, l.called, at))
	}}
}

// unsure tells whether a listing asked for at the given time may have come before the effect of a create call: it is under way, or ended later. The calls of a
// process before this one ended before this one's first listing.
func unsure(busy map[string]bool, called map[string]time.Duration, asked time.Duration) func(token string) bool {
	return func(token string) bool { return busy[Create{Token: token}.Key()] || asked < called[token] }
}

func (l *loop) renew(ctx context.Context) result {
	ctx, cancel := context.WithTimeout(ctx, updateTimeout)
	defer cancel()
	state := l.Journal.State()
	head := state.Head()
	if head == nil || head.Machine == nil {
		return result{} // it went meanwhile
	}
	tags := map[string]string{providers.TagExpires: time.Now().UTC().Add(l.Job.Limits.NodeLease).Format(time.RFC3339)}
	if head.Machine.Address != "" {
		tags[providers.TagAddress] = head.Machine.Address
	}
	if head.HostKey != "" {
		digest, err := sshkey.Fingerprint(head.HostKey)
		if err != nil {
			return result{err: err}
		}
		tags[providers.TagHostKey] = digest
	}
	renewed := renewal{at: l.Journal.Now(), as: Described(head)}
	err := l.pass(ctx, journal.Effect{Name: "provider.update", Operand: head.Machine.ID}, func() error {
		return l.Provider.Update(ctx, providers.UpdateRequest{Config: l.Config, Run: state.Run, Machine: head.Machine.ID, Tags: tags})
	})
	return result{err: err, gather: func(l *loop) {
		if err == nil {
			l.renewed = renewed
		}
	}}
}

func regions(s *journal.State) []string {
	if s.Planned == nil || s.Planned.Region == "" {
		return nil
	}
	return []string{s.Planned.Region}
}
