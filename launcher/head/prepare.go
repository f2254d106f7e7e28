package head

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// chunk is how much of a file travels in one message.
const chunk = 64 << 10

// preparation is what lies between an agent's first answer and its node being a member: its own host key, the workdir, setup.
type preparation struct {
	link   *link
	agent  control.AgentClient
	hello  *control.HelloReport
	pinned string
}

type setupState struct {
	rekeyed chan *control.Rekeyed
	done    chan *control.SetupDone
}

func (p *preparation) run(ctx context.Context) error {
	if err := p.rekey(ctx); err != nil {
		return err
	}
	if err := p.sendWorkdir(ctx); err != nil {
		return err
	}
	ok, err := p.setup(ctx)
	if err != nil || !ok {
		return err
	}
	procs := p.link.world.Job.Run.ProcsPerNode
	if procs == 0 {
		procs = max(len(p.hello.Gpus), 1)
	}
	p.link.world.post(func(l *worldLoop) { l.joined(p.link, procs, p.hello) })
	return nil
}

// rekey gives the machine a host key of its own. The birth key came in user data, which others may read, so no process of the job
// starts before. The new key's public half is on disk before its private half is sent, else a crash here would lock us out.
func (p *preparation) rekey(ctx context.Context) error {
	k := p.link
	k.mu.Lock()
	rekeyed, keys, name := k.node.Rekeyed, k.node.HostKeys, k.name
	k.mu.Unlock()
	if !k.world.Info.RotatesHostKeys || rekeyed {
		return nil
	}
	if len(keys) > 1 && p.pinned == keys[len(keys)-1] {
		return p.confirm(ctx, keys[len(keys)-1]) // the answer was lost, the key is in place
	}
	pair, err := sshkey.New("")
	if err != nil {
		return err
	}
	if err := k.await(ctx, journal.NewEvent(journal.NodeRekeying, name, 0, journal.Rekeyed{HostKey: pair.Public})); err != nil {
		return err
	}
	answer := make(chan *control.Rekeyed, 1)
	k.mu.Lock()
	k.setup.rekeyed = answer
	k.node.HostKeys = append(slices.Clone(keys[:1]), pair.Public)
	k.mu.Unlock()
	k.order(&control.Order{Body: &control.Order_Rekey{Rekey: &control.Rekey{Id: pair.Fingerprint, PrivateKeyPem: string(pair.Private), PublicKey: pair.Public}}})
	select {
	case a := <-answer:
		if a.Error != "" {
			return fmt.Errorf("rekey %s: %s", name, a.Error)
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	return p.confirm(ctx, pair.Public)
}

func (p *preparation) confirm(ctx context.Context, public string) error {
	k := p.link
	if err := k.await(ctx, journal.NewEvent(journal.NodeRekeyed, k.name, 0, journal.Rekeyed{HostKey: public})); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.node.Rekeyed, k.node.HostKeys = true, []string{public}
	return nil
}

// await records an event and waits until it is on disk.
func (k *link) await(ctx context.Context, e journal.Event) error {
	done := make(chan error, 1)
	k.world.post(func(l *worldLoop) { l.record(func(_ *worldLoop, err error) { done <- err }, e) })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *link) settleRekey(r *control.Rekeyed) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.setup.rekeyed != nil {
		k.setup.rekeyed <- r
		k.setup.rekeyed = nil
	}
}

func (k *link) settleSetup(s *control.SetupDone) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.setup.done != nil {
		k.setup.done <- s
		k.setup.done = nil
	}
}

// startedBefore tells whether the link has ordered this generation to start.
func (k *link) startedBefore(generation int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.start != nil && k.start.GetStart().World.Generation == uint64(generation)
}

func (p *preparation) sendWorkdir(ctx context.Context) error {
	w := p.link.world
	if w.WorkdirHash == "" || p.hello.WorkdirHash == w.WorkdirHash {
		return nil
	}
	f, err := os.Open(w.Workdir)
	if err != nil {
		return fmt.Errorf("send workdir: %w", err)
	}
	defer f.Close()
	return put(ctx, p.agent, &control.FileHeader{Kind: control.FileKind_WORKDIR, Hash: w.WorkdirHash}, f)
}

// put sends a compressed archive to an agent.
func put(ctx context.Context, agent control.AgentClient, header *control.FileHeader, r io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	call, err := agent.Put(ctx)
	if err != nil {
		return fmt.Errorf("put %s: %w", header.Kind, err)
	}
	buf := make([]byte, chunk)
	for first := true; ; first = false {
		n, rerr := io.ReadFull(r, buf)
		c := &control.FileChunk{Data: buf[:n]}
		if first {
			c.Header = header
		}
		if n > 0 || first {
			if err := call.Send(c); err != nil {
				break // the reply says why, or that it was there already
			}
		}
		if errors.Is(rerr, io.EOF) || errors.Is(rerr, io.ErrUnexpectedEOF) {
			break
		}
		if rerr != nil {
			return fmt.Errorf("put %s: %w", header.Kind, rerr)
		}
	}
	if _, err := call.CloseAndRecv(); err != nil {
		return fmt.Errorf("put %s: %w", header.Kind, err)
	}
	return nil
}

// setup runs the job's setup script. A failure gives the node up; the supervisor tries one other.
func (p *preparation) setup(ctx context.Context) (ok bool, err error) {
	k := p.link
	w := k.world
	if w.Job.Setup == "" {
		return true, nil
	}
	hash := contentHash(w.Job.Setup, w.WorkdirHash)
	if slices.Contains(p.hello.SetupDone, hash) {
		return true, nil
	}
	answer := make(chan *control.SetupDone, 1)
	k.mu.Lock()
	k.setup.done = answer
	k.mu.Unlock()
	began := time.Now()
	k.order(&control.Order{Body: &control.Order_Setup{Setup: &control.Setup{Hash: hash, Script: w.Job.Setup, Env: w.Job.Env, Secrets: w.Secrets}}})
	for {
		select {
		case a := <-answer:
			if a.Hash != hash {
				continue
			}
			name, failed := k.name, a.Error != ""
			event := journal.Setup{OK: !failed, Seconds: time.Since(began).Seconds(), Exit: int(a.Code)}
			if failed {
				event.LastLines = lines(a.LastLines)
			}
			w.post(func(l *worldLoop) {
				l.record(nil, journal.NewEvent(journal.SetupFinished, name, 0, event))
				if failed {
					l.lose(name, fmt.Sprintf("setup failed with exit code %d", a.Code), true)
				}
			})
			return !failed, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}
