package local

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ephemeral-launcher/launcher/providers"
)

// hypervisor is the outer process of a machine. The goroutine of run owns all fields but the channels; others talk to it by these.
//
//	booting ──boot over──▶ running ──lease over, notice over, poweroff, delete, guest gone, SIGTERM──▶ ended
type hypervisor struct {
	ledger ledger
	rec    record
	dir    string
	alive  *os.File
	guest  *guest // nil while booting

	// Moments of bootTime; 0: none.
	bootAt, leaseEnd, preemptAt time.Duration

	requests chan asked
	lines    chan string   // from the lease FIFO
	ended    chan struct{} // closed when all but this process is gone
	failure  error         // why not all is; before ended is closed
}

// asked is a request for run, which answers once.
type asked struct {
	request
	answer chan reply
}

// runOuter is the outer role.
func runOuter(ctx context.Context, dir string) error {
	// The guest dies with this thread (see startGuest), so run keeps it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	heedNot(unix.SIGHUP, unix.SIGPIPE)
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()

	alive, err := inherited(fdAlive, "alive")
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(alive)
	file, err := inherited(fdControl, "control")
	if err != nil {
		return err
	}
	listener, err := net.FileListener(file)
	file.Close()
	if err != nil {
		return fmt.Errorf("listen for control: %w", err)
	}
	h := &hypervisor{
		ledger: ledger{filepath.Dir(filepath.Dir(dir))}, dir: dir, alive: alive,
		requests: make(chan asked), lines: make(chan string), ended: make(chan struct{}),
	}
	var ok bool
	if h.rec, ok, err = h.ledger.read(filepath.Base(dir)); err != nil || !ok {
		return errors.Join(fmt.Errorf("no record in %s", dir), err)
	}
	if h.rec.Outer, err = self(); err != nil {
		return err
	}
	if err := h.save(); err != nil {
		return err
	}
	// Opened for writing too, it never reads as ended when a writer leaves.
	lease, err := os.OpenFile(filepath.Join(dir, "lease"), os.O_RDWR, 0)
	if err != nil {
		return err
	}

	var wg sync.WaitGroup
	defer wg.Wait()
	defer lease.Close()
	defer listener.Close()
	wg.Go(func() { h.accept(ctx, listener.(*net.UnixListener)) })
	wg.Go(func() {
		scanner := bufio.NewScanner(lease)
		for scanner.Scan() {
			select {
			case h.lines <- strings.TrimSpace(scanner.Text()):
			case <-h.ended:
				return
			}
		}
	})
	return h.run(ctx)
}

// run is the machine's life.
func (h *hypervisor) run(ctx context.Context) error {
	alarm, err := newAlarm()
	if err != nil {
		return err
	}
	defer alarm.close()
	h.bootAt = bootTime() + h.rec.Boot
	h.leaseEnd = bootTime() + h.rec.TTL

	reason := ""
	for reason == "" {
		if reason = h.due(bootTime()); reason != "" {
			break
		}
		if err := alarm.set(h.next()); err != nil {
			reason = "crashed: " + err.Error()
			break
		}
		reason = h.event(ctx, alarm.C)
	}
	h.finish(reason)
	return h.failure
}

// due does what the time has come for, and returns why the machine ends now, if it does.
func (h *hypervisor) due(now time.Duration) (reason string) {
	switch {
	case h.preemptAt > 0 && now >= h.preemptAt:
		return "preempted"
	case now >= h.leaseEnd:
		return "lease over"
	case h.guest == nil && now >= h.bootAt:
		guest, err := startGuest(h.ledger, h.rec, h.alive)
		if err != nil {
			fmt.Fprintln(os.Stderr, "machine:", err)
			return "crashed"
		}
		h.guest = guest
		h.rec.Init = describe(guest.cmd.Process.Pid)
		h.rec.Sandbox = guest.sandbox
		if err := h.save(); err != nil {
			fmt.Fprintln(os.Stderr, "machine:", err)
			return "crashed"
		}
	}
	return ""
}

// next is the moment of the next thing due.
func (h *hypervisor) next() time.Duration {
	at := h.leaseEnd
	if h.preemptAt > 0 {
		at = min(at, h.preemptAt)
	}
	if h.guest == nil {
		at = min(at, h.bootAt)
	}
	return at
}

// event waits for one event and deals with it. It returns why the machine ends, if it does.
func (h *hypervisor) event(ctx context.Context, ring <-chan struct{}) (reason string) {
	var address <-chan string
	var exited <-chan struct{}
	if h.guest != nil {
		address, exited = h.guest.address, h.guest.exited
	}
	select {
	case <-ring:
	case <-ctx.Done():
		return "terminated by a signal"
	case <-exited:
		return "crashed"
	case h.rec.Address = <-address:
		h.rec.State = providers.Running
		if err := h.save(); err != nil {
			fmt.Fprintln(os.Stderr, "machine:", err)
			return "crashed"
		}
	case line := <-h.lines:
		if line == "poweroff" {
			return "powered off"
		}
		if s, ok := seconds(line); ok {
			h.leaseEnd = bootTime() + time.Duration(s*float64(time.Second))
		}
	case a := <-h.requests:
		if a.Op == opDelete {
			return "deleted"
		}
		a.answer <- h.serve(a.request)
	}
	return ""
}

// serve does what a request asks of a living machine.
func (h *hypervisor) serve(req request) reply {
	switch req.Op {
	case opPreempt:
		if err := h.preempt(req.Notice); err != nil {
			return refuse(providers.Internal, "announce preemption: %v", err)
		}
	case opTag:
		tags := maps.Clone(h.rec.Tags)
		maps.Copy(tags, req.Tags)
		h.rec.Tags = tags
		if err := h.save(); err != nil {
			return refuse(providers.Internal, "save tags: %v", err)
		}
	default:
		return refuse(providers.Invalid, "unknown operation %q", req.Op)
	}
	return reply{}
}

// notice is the file a guest finds at a preemption notice.
type notice struct {
	Action   string    `json:"action"`
	At       time.Time `json:"at"`
	Deadline time.Time `json:"deadline"`
}

// preempt announces the end; a second preemption can only hasten it. Which machines are not told is a matter of their ids.
func (h *hypervisor) preempt(lead time.Duration) error {
	if lead < 0 {
		lead = h.rec.Notice
	}
	at := bootTime() + lead
	if h.preemptAt > 0 && h.preemptAt <= at {
		return nil
	}
	h.preemptAt = at
	if lead == 0 || luck(h.rec.ID, "silent") < h.rec.Silent {
		return nil
	}
	now := time.Now().UTC()
	data, err := json.Marshal(notice{Action: "terminate", At: now, Deadline: now.Add(lead)})
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(h.dir, "notice.json"), data, 0o600)
}

// luck is a number in [0, 1) that depends on the machine and the question alone.
func luck(id, question string) float64 {
	sum := fnv.New64a()
	sum.Write([]byte(id + "/" + question))
	return rand.New(rand.NewPCG(sum.Sum64(), 0)).Float64()
}

func (h *hypervisor) save() error {
	return writeRecord(filepath.Join(h.dir, "machine.json"), h.rec)
}

// finish ends the guest, sweeps, moves the record to the ended and removes the folder.
func (h *hypervisor) finish(reason string) {
	defer close(h.ended)
	h.rec.State, h.rec.Reason = providers.Deleting, reason
	saved := h.save()
	if errors.Is(saved, fs.ErrNotExist) {
		saved = nil // somebody removed the folder under us
	}
	if h.guest != nil {
		h.guest.end()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*sweepTimeout)
	defer cancel()
	swept := sweep(ctx, h.rec.ID)
	if swept == nil {
		if strings.HasPrefix(reason, "crashed") {
			h.rec.Log = logTail(h.dir)
		}
		swept = h.ledger.entomb(h.rec)
	}
	if swept == nil {
		// Out of the way first: a folder half removed would look like a dead machine's.
		gone := h.ledger.newDir(h.rec.ID + ".gone")
		if swept = os.Rename(h.dir, gone); swept == nil {
			swept = removeAll(gone)
		}
	}
	h.failure = errors.Join(saved, swept)
}

// accept serves the control socket until it is closed.
func (h *hypervisor) accept(ctx context.Context, listener *net.UnixListener) {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			fmt.Fprintln(os.Stderr, "machine: accept:", err) // out of files, for one
			select {
			case <-h.ended:
				return
			case <-time.After(100 * time.Millisecond):
				continue
			}
		}
		conns.Go(func() {
			if h.converse(ctx, conn) != opDelete {
				conn.Close()
			}
			// Else the exit closes it: who ordered the deletion is waiting for that.
		})
	}
}

// controlTimeout bounds one conversation, deletions and spawns included.
const controlTimeout = 60 * time.Second

// converse serves one connection and returns what was asked.
func (h *hypervisor) converse(ctx context.Context, conn *net.UnixConn) operation {
	conn.SetDeadline(time.Now().Add(controlTimeout))
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	// A silent client must not keep us from ending.
	hurry := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-h.ended:
			conn.SetReadDeadline(time.Now())
		case <-hurry:
		}
	})
	line, files, err := readLine(conn)
	close(hurry)
	watch.Wait()
	defer closeFiles(files)
	if err != nil {
		return "" // the client left
	}
	var req request
	if err := json.Unmarshal(line, &req); err != nil {
		h.reply(conn, refuse(providers.Invalid, "read request: %v", err))
		return ""
	}
	h.reply(conn, h.dispatch(ctx, req, files))
	return req.Op
}

func (h *hypervisor) dispatch(ctx context.Context, req request, files []*os.File) reply {
	switch req.Op {
	case opSpawn:
		// Beside the machine's own life: it takes a while, and touches nothing of it.
		if len(req.Command) == 0 || len(files) != 2*len(req.IDs) {
			return refuse(providers.Invalid, "spawn %d machines with %d files", len(req.IDs), len(files))
		}
		failed, err := launch(ctx, req.Command, ledger{req.Root}, req.IDs, files)
		if err != nil {
			return refuse(providers.Unavailable, "%v", err)
		}
		return reply{Failed: failed}
	case opBury:
		if err := (ledger{req.Root}).buryHere(ctx, req.IDs); err != nil {
			return refuse(providers.Unavailable, "%v", err)
		}
		return reply{}
	}
	a := asked{request: req, answer: make(chan reply, 1)}
	select {
	case h.requests <- a:
	case <-h.ended:
	}
	if req.Op == opDelete {
		<-h.ended
		if h.failure != nil {
			return refuse(providers.Unavailable, "%v", h.failure)
		}
		return reply{}
	}
	select {
	case r := <-a.answer:
		return r
	case <-h.ended:
		return refuse(providers.NotFound, "the machine has ended")
	}
}

// reply answers; a client that left does not mind.
func (h *hypervisor) reply(conn *net.UnixConn, r reply) {
	data, err := json.Marshal(r)
	if err != nil {
		return
	}
	_, _ = conn.Write(append(data, '\n'))
}
