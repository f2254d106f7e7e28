package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ephemeral-launcher/launcher/launcher/control"
)

// TestMemberLease: silence for the length of the lease kills the ranks and nothing else; the agent waits to be heard
// again and takes the next generation.
func TestMemberLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		h := r.join()
		h.renew()
		h.send(startOrder(1, 1, "train"))
		await(h, (*control.Report).GetStarted)
		conn, err := r.store.Dial()
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			time.Sleep(3 * time.Second)
			h.renew()
		}
		begin := time.Now()
		if got := await(h, (*control.Report).GetExited); got.Signal != "SIGKILL" || got.Phase != control.Phase_KILLED {
			t.Errorf("rank ended by %s in phase %v, want SIGKILL", got.Signal, got.Phase)
		}
		if got := time.Since(begin); got < 7*time.Second || got > 10*time.Second {
			t.Errorf("killed after %v of silence, want within the lease of 10s", got)
		}
		await(h, (*control.Report).GetEnded)
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("a stream to the store outlived the lease")
		}
		h.send(startOrder(2, 1, "train"))
		if got := await(h, (*control.Report).GetStartFailed); got.Generation != 2 {
			t.Errorf("start without a lease: %v", got)
		}
		h.renew()
		h.send(startOrder(3, 1, "train"))
		await(h, (*control.Report).GetStarted)
		if len(r.offs) != 0 {
			t.Error("powered off")
		}
	})
}

// TestNodeLease: the machine is powered off when its lease is over, and again until it is off.
func TestNodeLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		r := newRig(t, func(o *Options) { o.Join.NodeLease = 5 * time.Minute })
		h := r.join() // a minute, which does not shorten the five
		h.renew()
		h.send(startOrder(1, 1, "train"))
		await(h, (*control.Report).GetStarted)
		if got := (<-r.offs).Sub(began); got != 5*time.Minute {
			t.Errorf("powered off after %v, want 5m", got)
		}
		if got := (<-r.offs).Sub(began); got <= 5*time.Minute {
			t.Errorf("tried again after %v", got)
		}
	})
}

// TestNoNodeLease: an agent that was never given a lease does not end its machine.
func TestNoNodeLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		time.Sleep(24 * time.Hour)
		if len(r.offs) != 0 {
			t.Error("powered off")
		}
	})
}

// TestLeasesCountFromSending: what a renewal grants counts from the newest report its sender had, however long the
// renewal was on its way.
func TestLeasesCountFromSending(t *testing.T) {
	now := 100 * time.Second
	type want struct{ node, member time.Duration }
	s := func(n int64) int64 { return n * int64(time.Second) }
	for name, test := range map[string]struct {
		renewals []*control.Renew
		want     want
	}{
		"first, nothing heard":    {[]*control.Renew{{MemberLeaseMs: 10_000, NodeLeaseMs: 60_000}}, want{60 * time.Second, 10 * time.Second}},
		"heard just now":          {[]*control.Renew{{HeardStampNs: s(100), MemberLeaseMs: 10_000}}, want{0, 10 * time.Second}},
		"heard 4 s ago":           {[]*control.Renew{{HeardStampNs: s(96), MemberLeaseMs: 10_000}}, want{0, 6 * time.Second}},
		"stalled beyond":          {[]*control.Renew{{HeardStampNs: s(80), MemberLeaseMs: 10_000}}, want{0, 0}},
		"runs, nothing heard":     {[]*control.Renew{{HeardStampNs: s(95), MemberLeaseMs: 10_000}, {MemberLeaseMs: 10_000}}, want{0, 5 * time.Second}},
		"older after newer":       {[]*control.Renew{{HeardStampNs: s(99), MemberLeaseMs: 10_000}, {HeardStampNs: s(92), MemberLeaseMs: 10_000}}, want{0, 9 * time.Second}},
		"stamp of another boot":   {[]*control.Renew{{HeardStampNs: s(5000), MemberLeaseMs: 10_000}}, want{0, 10 * time.Second}},
		"zero leaves as it is":    {[]*control.Renew{{HeardStampNs: s(100), MemberLeaseMs: 10_000}, {HeardStampNs: s(100)}}, want{0, 10 * time.Second}},
		"node with a long length": {[]*control.Renew{{HeardStampNs: s(100), NodeLeaseMs: 300_000}}, want{300 * time.Second, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeases(func() time.Duration { return now })
			for _, r := range test.renewals {
				l.renew(r)
			}
			node, member := l.left()
			if got := (want{max(node, 0), max(member, 0)}); got != test.want {
				t.Errorf("left %v, want %v", got, test.want)
			}
		})
	}
}

// TestLateRenewal: a lease that was over for a moment was over, also where nobody had looked yet.
func TestLateRenewal(t *testing.T) {
	now := time.Second
	l := newLeases(func() time.Duration { return now })
	l.renew(&control.Renew{MemberLeaseMs: 10_000})
	now += 11 * time.Second
	l.renew(&control.Renew{HeardStampNs: int64(now), MemberLeaseMs: 10_000})
	if got := []bool{l.lapsed(), l.lapsed()}; !cmp.Equal(got, []bool{true, false}) {
		t.Errorf("lapsed %v, want once", got)
	}
}

// TestSuspend: uptime that jumps while timers stand still ends the leases soon after.
func TestSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		asleep := make(chan time.Duration, 1)
		slept := time.Duration(0)
		r := newRig(t, func(o *Options) {
			o.Uptime = func() time.Duration {
				select {
				case d := <-asleep:
					slept += d
				default:
				}
				return time.Second + time.Since(began) + slept
			}
			o.Join.NodeLease = time.Hour
		})
		time.Sleep(time.Minute)
		asleep <- 2 * time.Hour
		woke := time.Now()
		if got := (<-r.offs).Sub(woke); got > leaseTick {
			t.Errorf("powered off %v after the wake-up, want within %v", got, leaseTick)
		}
	})
}

func TestMachineLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(chan time.Duration, 10)
		r := newRig(t, func(o *Options) {
			o.Join.NodeLease = 5 * time.Minute
			o.MachineLease = tellLease(told)
		})
		if got := <-told; got != 5*time.Minute {
			t.Errorf("told %v at the start, want 5m", got)
		}
		time.Sleep(4 * time.Minute)
		r.join().renew()
		synctest.Wait()
		last := time.Duration(0)
		for len(told) > 0 {
			last = <-told
		}
		if last != time.Minute {
			t.Errorf("told %v after a renewal, want 1m", last)
		}
	})
}

// TestSessions: the newest session wins; an older epoch, another node and a call without hello are refused.
func TestSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		first := r.join()
		second := r.dial()
		second.begin(&control.HelloOrder{Run: "r-1", Node: "n0", Epoch: 2})
		if _, err := first.session.Recv(); status.Code(err) != codes.Aborted {
			for err == nil { // reports that were on their way
				_, err = first.session.Recv()
			}
			if status.Code(err) != codes.Aborted {
				t.Errorf("first session: %v, want Aborted", err)
			}
		}
		for name, test := range map[string]struct {
			order *control.Order
			want  codes.Code
		}{
			"older epoch":  {&control.Order{Body: &control.Order_Hello{Hello: &control.HelloOrder{Run: "r-1", Node: "n0", Epoch: 1}}}, codes.FailedPrecondition},
			"another run":  {&control.Order{Body: &control.Order_Hello{Hello: &control.HelloOrder{Run: "r-2", Node: "n0", Epoch: 3}}}, codes.PermissionDenied},
			"another node": {&control.Order{Body: &control.Order_Hello{Hello: &control.HelloOrder{Run: "r-1", Node: "n1", Epoch: 3}}}, codes.PermissionDenied},
			"no hello":     {startOrder(1, 1, "x"), codes.InvalidArgument},
		} {
			h := r.dial()
			var err error
			if h.session, err = h.Session(t.Context()); err != nil {
				t.Fatal(err)
			}
			h.send(test.order)
			if _, err := h.session.Recv(); status.Code(err) != test.want {
				t.Errorf("%s: %v, want %v", name, err, test.want)
			}
		}
		second.renew() // still the one
	})
}

// TestReports: what a head has not confirmed comes again on the next session, in order, and what it has does not.
func TestReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		h := r.join()
		h.send(startOrder(1, 2, "train"))
		await(h, (*control.Report).GetStarted)
		h.send(&control.Order{Received: h.seen})
		synctest.Wait()
		a, b := <-r.runner.started, <-r.runner.started
		a.exit(exited(0))
		b.exit(exited(3))
		await(h, (*control.Report).GetEnded)
		h.conn.Close() // nothing of it was confirmed

		again := r.dial()
		again.begin(&control.HelloOrder{Run: "r-1", Node: "n0", Epoch: 1, Instance: h.hello.Instance})
		if again.hello.OldestNumber != 2 {
			t.Errorf("oldest report %d, want 2", again.hello.OldestNumber)
		}
		var got []uint64
		for len(got) < 3 {
			report, err := again.session.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if report.Number > 0 {
				got = append(got, report.Number)
			}
		}
		if want := []uint64{2, 3, 4}; !cmp.Equal(got, want) {
			t.Errorf("reports %v came again, want %v", got, want)
		}
		// A head that confirms what another instance said confirms nothing.
		other := r.dial()
		var err error
		if other.session, err = other.Session(t.Context()); err != nil {
			t.Fatal(err)
		}
		other.send(&control.Order{Received: 100, Body: &control.Order_Hello{Hello: &control.HelloOrder{
			Run: "r-1", Node: "n0", Epoch: 1, Instance: 12345,
		}}})
		if got := await(other, (*control.Report).GetHello); got.OldestNumber != 2 {
			t.Errorf("oldest report %d, want 2", got.OldestNumber)
		}
	})
}

// TestProgressIsBounded: thousands of progress reports that nobody takes do not fill the memory, and push out nothing
// else.
func TestProgressIsBounded(t *testing.T) {
	r := newReports()
	r.add(&control.Report{Body: &control.Report_Started{Started: &control.Started{}}})
	for i := range 5000 {
		r.add(&control.Report{Body: &control.Report_Progress{Progress: &control.Progress{Step: int64(i)}}})
	}
	if n := len(r.kept); n > crowded+2 {
		t.Errorf("%d reports kept, want at most %d", n, crowded+2)
	}
	if r.kept[0].GetStarted() == nil || r.kept[len(r.kept)-1].GetProgress().Step != 4999 {
		t.Error("the first or the newest report is not kept")
	}
}
