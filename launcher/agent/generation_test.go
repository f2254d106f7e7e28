package agent

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/ephemeral-launcher/launcher/launcher/agent/process"
	"github.com/ephemeral-launcher/launcher/launcher/control"
)

func exited(code int) process.Exit { return process.Exit{Code: code} }

func tellLease(to chan time.Duration) func(context.Context, time.Duration) error {
	return func(_ context.Context, left time.Duration) error {
		to <- left
		return nil
	}
}

// TestEnding has the sequences of signals that end a generation, with their times.
func TestEnding(t *testing.T) {
	type exit struct {
		signal string
		code   int32
		phase  control.Phase
	}
	for name, test := range map[string]struct {
		obeys  func(bool, syscall.Signal) (process.Exit, bool)
		orders []*control.Order // one each second
		want   []string
		exit   exit
	}{
		"on purpose, no signal": {
			orders: []*control.Order{endOrder(1, control.EndMode_ON_PURPOSE, "", 20*time.Second)},
			want:   []string{"1s signal 1000 SIGTERM", "1s sweep 1"},
			exit:   exit{"SIGTERM", -1, control.Phase_TERMINATED},
		},
		"on purpose, deaf": {
			obeys:  diesOf(),
			orders: []*control.Order{endOrder(1, control.EndMode_ON_PURPOSE, "", 20*time.Second)},
			want:   []string{"1s signal 1000 SIGTERM", "11s signal 1000 SIGKILL", "11s sweep 1"},
			exit:   exit{"SIGKILL", -1, control.Phase_KILLED},
		},
		"on purpose, signal, deaf": {
			obeys:  diesOf(),
			orders: []*control.Order{endOrder(1, control.EndMode_ON_PURPOSE, "SIGUSR1", 20*time.Second)},
			want:   []string{"1s tell 1000 SIGUSR1", "21s signal 1000 SIGTERM", "31s signal 1000 SIGKILL", "31s sweep 1"},
			exit:   exit{"SIGKILL", -1, control.Phase_KILLED},
		},
		"on purpose, done at the signal": {
			obeys: func(told bool, _ syscall.Signal) (process.Exit, bool) { return exited(0), told },
			orders: []*control.Order{
				endOrder(1, control.EndMode_ON_PURPOSE, "USR1", 20*time.Second),
			},
			want: []string{"1s tell 1000 SIGUSR1", "1s sweep 1"},
			exit: exit{"", 0, control.Phase_SIGNALLED},
		},
		"repeated": {
			obeys: diesOf(),
			orders: []*control.Order{
				endOrder(1, control.EndMode_ON_PURPOSE, "SIGUSR1", 5*time.Second),
				endOrder(1, control.EndMode_ON_PURPOSE, "SIGUSR1", 5*time.Second),
			},
			want: []string{"1s tell 1000 SIGUSR1", "6s signal 1000 SIGTERM", "16s signal 1000 SIGKILL", "16s sweep 1"},
			exit: exit{"SIGKILL", -1, control.Phase_KILLED},
		},
		"a loss meanwhile": {
			obeys: diesOf(),
			orders: []*control.Order{
				endOrder(1, control.EndMode_ON_PURPOSE, "SIGUSR1", 20*time.Second),
				endOrder(1, control.EndMode_AFTER_LOSS, "", 0),
			},
			want: []string{"1s tell 1000 SIGUSR1", "2s signal 1000 SIGTERM", "3s signal 1000 SIGKILL", "3s sweep 1"},
			exit: exit{"SIGKILL", -1, control.Phase_KILLED},
		},
		"after a loss": {
			obeys:  diesOf(),
			orders: []*control.Order{endOrder(1, control.EndMode_AFTER_LOSS, "SIGUSR1", 20*time.Second)},
			want:   []string{"1s signal 1000 SIGTERM", "2s signal 1000 SIGKILL", "2s sweep 1"},
			exit:   exit{"SIGKILL", -1, control.Phase_KILLED},
		},
		"kill": {
			orders: []*control.Order{endOrder(1, control.EndMode_KILL, "SIGUSR1", 20*time.Second)},
			want:   []string{"1s signal 1000 SIGKILL", "1s sweep 1"},
			exit:   exit{"SIGKILL", -1, control.Phase_KILLED},
		},
		"by the end of a newer one": {
			orders: []*control.Order{endOrder(2, control.EndMode_AFTER_LOSS, "", 0)},
			want:   []string{"1s signal 1000 SIGTERM", "1s sweep 1"},
			exit:   exit{"SIGTERM", -1, control.Phase_TERMINATED},
		},
		"by the start of a newer one": {
			orders: []*control.Order{startOrder(2, 1, "train")},
			want:   []string{"1s signal 1000 SIGKILL", "1s sweep 1"},
			exit:   exit{"SIGKILL", -1, control.Phase_KILLED},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil)
				if test.obeys != nil {
					r.runner.obeys = test.obeys
				}
				h := r.join()
				h.send(startOrder(1, 1, "train"))
				await(h, (*control.Report).GetStarted)
				for _, o := range test.orders {
					time.Sleep(time.Second)
					h.send(o)
				}
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				defer wg.Wait()
				defer cancel()
				wg.Go(func() { // the head is there all the time
					for ctx.Err() == nil {
						r.leases.renew(&control.Renew{HeardStampNs: int64(r.o.Uptime()), MemberLeaseMs: 10_000})
						time.Sleep(time.Second)
					}
				})
				got := await(h, (*control.Report).GetExited)
				if diff := cmp.Diff(exit{got.Signal, got.Code, got.Phase}, test.exit, cmp.AllowUnexported(exit{})); diff != "" {
					t.Errorf("exit (-got +want):\n%s", diff)
				}
				await(h, (*control.Report).GetEnded)
				if diff := cmp.Diff(r.runner.log(), test.want); diff != "" {
					t.Errorf("signals (-got +want):\n%s", diff)
				}
			})
		})
	}
}

// TestEndWithoutStart: a generation that was ended before its start came never starts.
func TestEndWithoutStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		h := r.join()
		h.send(endOrder(4, control.EndMode_AFTER_LOSS, "", 0))
		if got := await(h, (*control.Report).GetEnded); got.Generation != 4 {
			t.Errorf("ended %d, want 4", got.Generation)
		}
		h.send(startOrder(4, 1, "train"))
		h.send(startOrder(3, 1, "train"))
		h.send(startOrder(5, 1, "train"))
		if got := await(h, (*control.Report).GetStarted); got.Generation != 5 {
			t.Errorf("started %d, want 5", got.Generation)
		}
		h.send(startOrder(5, 1, "train")) // said twice
		synctest.Wait()
		if n := len(r.runner.started); n != 1 {
			t.Errorf("%d processes, want 1", n)
		}
	})
}

// TestNaturalEnd: ranks that end by themselves are reported one by one, then the end; the last lines come with them.
func TestNaturalEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		h := r.join()
		h.send(startOrder(1, 2, "train"))
		await(h, (*control.Report).GetStarted)
		a, b := <-r.runner.started, <-r.runner.started
		b.write(strings.Repeat("line\n", 30) + "boom\n")
		b.exit(exited(3))
		got := await(h, (*control.Report).GetExited)
		if got.Rank != 3 || got.LocalRank != 1 || got.Code != 3 || got.Phase != control.Phase_WORKING {
			t.Errorf("exit of rank %d (local %d) with %d in %v", got.Rank, got.LocalRank, got.Code, got.Phase)
		}
		if n := strings.Count(got.LastLines, "\n"); n != tailLines || !strings.HasSuffix(got.LastLines, "boom\n") {
			t.Errorf("last lines: %d, %q", n, got.LastLines)
		}
		h.send(endOrder(1, control.EndMode_ON_PURPOSE, "SIGUSR1", time.Second))
		synctest.Wait()
		if diff := cmp.Diff(r.runner.log(), []string{"0s tell 1000 SIGUSR1"}); diff != "" {
			t.Errorf("signals with one rank gone (-got +want):\n%s", diff)
		}
		a.exit(exited(0))
		if got := await(h, (*control.Report).GetExited); got.Rank != 2 || got.Code != 0 {
			t.Errorf("exit of rank %d with %d", got.Rank, got.Code)
		}
		await(h, (*control.Report).GetEnded)
	})
}

// TestStartFails: all ranks or none.
func TestStartFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		h := r.join()
		h.send(startOrder(1, 1, "train"))
		await(h, (*control.Report).GetStarted)
		r.runner.mu.Lock()
		r.runner.fail = errors.New("no such thing")
		r.runner.mu.Unlock()
		h.send(startOrder(2, 2, "train"))
		got := await(h, (*control.Report).GetStartFailed)
		if got.Generation != 2 || !strings.Contains(got.Error, "no such thing") {
			t.Errorf("start failed: %v", got)
		}
	})
}

// TestEndOfAFailedStart: whoever waits for the end of a generation that could not start gets it.
func TestEndOfAFailedStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.runner.obeys = diesOf()
		h := r.join()
		h.send(startOrder(1, 1, "train"))
		await(h, (*control.Report).GetStarted)
		r.runner.mu.Lock()
		r.runner.fail = errors.New("no such thing")
		r.runner.obeys = func(bool, syscall.Signal) (process.Exit, bool) { return process.Exit{}, false }
		r.runner.mu.Unlock()
		h.send(startOrder(2, 1, "train")) // waits for 1, which takes its time to die
		h.send(endOrder(2, control.EndMode_KILL, "", 0))
		synctest.Wait()
		r.runner.mu.Lock()
		if r.runner.fail == nil {
			t.Error("a generation began while the one before was there")
		}
		r.runner.mu.Unlock()
		(<-r.runner.started).exit(process.Exit{Code: -1, Signal: "SIGKILL"})
		await(h, (*control.Report).GetStartFailed)
		if got := await(h, (*control.Report).GetEnded); got.Generation != 2 {
			t.Errorf("ended %d, want 2", got.Generation)
		}
	})
}

func TestRankEnvironment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(o *Options) { o.Environ = []string{"PATH=/bin", "KEEP=1", "RANK=77"} })
		spec := startOrder(4, 2, "train").GetStart()
		spec.Env, spec.Secrets = map[string]string{"EPOCHS": "3", "WORLD_SIZE": "9"}, map[string]string{"KEY": "s3cret"}
		spec.Restarts, spec.MaxRestarts, spec.Checkpoint = 1, 3, "ckpt"
		got := variables(r.rankEnvironment(spec, 1))
		folder := r.o.Join.Folder
		want := map[string]string{
			"PATH": "/bin", "KEEP": "1", "EPOCHS": "3", "KEY": "s3cret", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
			"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
			"GROUP_WORLD_SIZE": "2", "ROLE_NAME": "default", "ROLE_RANK": "3", "ROLE_WORLD_SIZE": "4", "NODE_RANK": "1",
			"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "", "TORCHELASTIC_USE_AGENT_STORE": "True",
			"TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RUN_ID": "r-1",
			"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
			"LAUNCHER_RUN": "r-1", "LAUNCHER_NODE": "n0", "LAUNCHER_SLOT": "3", "LAUNCHER_GENERATION": "4",
			"LAUNCHER_NODE_ADDR": "10.0.0.1", "LAUNCHER_HOSTFILE": folder + "/run/hostfile",
			"LAUNCHER_NOTICE_FILE": folder + "/run/notice.json", "LAUNCHER_SCRATCH": folder + "/scratch",
			"LAUNCHER_CHECKPOINT": folder + "/workdir/ckpt",
		}
		if diff := cmp.Diff(got, want); diff != "" {
			t.Errorf("ranks (-got +want):\n%s", diff)
		}
		spec.Kind = control.RunKind_TORCHRUN
		spec.Env["PET_STANDALONE"] = "1"
		got = variables(r.rankEnvironment(spec, 0))
		for name, want := range map[string]string{
			"PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "127.0.0.1:",
			"PET_RDZV_ID": "r-1-4", "PET_MAX_RESTARTS": "0", "PET_LOCAL_ADDR": "000001.10.0.0.1", "PET_RDZV_CONF": rdzvConf,
		} {
			if got[name] != want {
				t.Errorf("torchrun: %s=%q, want %q", name, got[name], want)
			}
		}
		for _, name := range []string{"LOCAL_RANK", "PET_STANDALONE", "TORCHELASTIC_USE_AGENT_STORE"} {
			if _, ok := got[name]; ok {
				t.Errorf("torchrun: %s is set", name)
			}
		}
	})
}

// TestSocketInterface: gloo and NCCL are told the interface of the cluster's address, unless the job says another.
func TestSocketInterface(t *testing.T) {
	loopback := interfaceOf("127.0.0.1")
	if i, err := net.InterfaceByName(loopback); err != nil || i.Flags&net.FlagLoopback == 0 {
		t.Fatalf("interface of 127.0.0.1: %q, %v; want a loopback interface", loopback, err)
	}
	for _, address := range []string{"", "node-7", "192.0.2.1"} {
		if got := interfaceOf(address); got != "" {
			t.Errorf("interface of %q: %q, want none", address, got)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		spec := startOrder(4, 2, "train").GetStart()
		spec.World.Members[1].Address = "127.0.0.1"
		spec.Env = map[string]string{"NCCL_SOCKET_IFNAME": "eth7"}
		got := variables(r.rankEnvironment(spec, 0))
		if got["GLOO_SOCKET_IFNAME"] != loopback || got["NCCL_SOCKET_IFNAME"] != "eth7" {
			t.Errorf("gloo %q, NCCL %q; want %q, eth7", got["GLOO_SOCKET_IFNAME"], got["NCCL_SOCKET_IFNAME"], loopback)
		}
		spec.Env = nil
		if got := variables(r.rankEnvironment(spec, 0))["NCCL_SOCKET_IFNAME"]; got != "="+loopback {
			t.Errorf("NCCL %q, want =%s", got, loopback)
		}
	})
}

// TestTorchrunIsOneProcess: the user's line runs once, whatever the number of ranks.
func TestTorchrunIsOneProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		h := r.join()
		o := startOrder(1, 4, "torchrun train.py")
		o.GetStart().Kind = control.RunKind_TORCHRUN
		h.send(o)
		if got := await(h, (*control.Report).GetStarted); len(got.Pids) != 1 {
			t.Errorf("%d processes, want 1", len(got.Pids))
		}
	})
}

func TestSignalNames(t *testing.T) {
	for name, want := range map[string]syscall.Signal{"SIGUSR1": unix.SIGUSR1, "TERM": unix.SIGTERM} {
		if got, err := process.ParseSignal(name); got != want || err != nil {
			t.Errorf("%s: %v, %v, want %v", name, got, err, want)
		}
	}
	if _, err := process.ParseSignal("SIGNIFICANT"); err == nil {
		t.Error("no error for a signal that is none")
	}
}
