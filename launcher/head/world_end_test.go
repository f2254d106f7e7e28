package head

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/launcher/supervisor"
	"github.com/ephemeral-launcher/launcher/providers"
)

// TestWorldEndsWithLinksThatPost: more links have something to tell the loop than its queue takes, when it ends.
func TestWorldEndsWithLinksThatPost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers = 200
		job, diags := jobspec.Parse(fmt.Appendf(nil, `job "t" {
  provider "local" {}
  workers { count = %d }
  run "ranks" { command = "train" }
}`, workers), "job.hcl", jobspec.Options{})
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		busy, free := make(chan struct{}), make(chan struct{})
		var beat sync.Once
		world, err := NewWorld(WorldConfig{
			RunID: "run-1", Epoch: 1, Job: job, Folder: t.TempDir(), Clock: journal.StartClock(0, journal.BootTime),
			Record: func(context.Context, ...journal.Event) error { return nil },
			Lease: func() time.Duration {
				beat.Do(func() { close(busy) }) // the loop is at a beat, and stays there
				<-free
				return job.Limits.NodeLease
			},
			Network: Network{
				Dial: func(context.Context, sshexec.Target) (*sshexec.Conn, error) {
					<-busy
					return nil, &sshexec.Error{Class: sshexec.HostKeyMismatch, Err: errors.New("another key")}
				},
				Start: func(context.Context, *sshexec.Conn, bootstrap.Program) (net.Conn, error) {
					return nil, errors.New("unreachable")
				},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- world.Run(ctx) }()
		var nodes []supervisor.RosterNode
		for slot := range workers {
			nodes = append(nodes, supervisor.RosterNode{Name: journal.NodeName(slot, 1), Role: providers.Worker, Slot: slot, Attempt: 1, Address: "a", ClusterAddress: "a"})
		}
		world.SetRoster(supervisor.Roster{Want: workers, Nodes: nodes})
		<-busy
		synctest.Wait()
		cancel()
		close(free)
		select {
		case <-ended:
		case <-time.After(time.Minute):
			panic("the world does not end")
		}
	})
}

// TestWorldDialsAgain: what fails beside the session ends the connection with all its calls, and there is another.
func TestWorldDialsAgain(t *testing.T) {
	f := newFixture(t, twoRanks)
	f.world.Workdir, f.world.WorkdirHash = filepath.Join(t.TempDir(), "none"), "hash"
	f.rent(0, 1)
	f.roster(1)
	f.await("second connection", func(*journal.State) bool {
		events, _ := f.journal.Since(0)
		reached := 0
		for _, e := range events {
			if e.Kind == journal.NodeReachable {
				reached++
			}
		}
		return reached > 1
	})
}
