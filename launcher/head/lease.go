package head

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// machineLease is the head's node lease: unless it is renewed, the machine is powered off. A suspended machine's lease runs on.
type machineLease struct {
	mu    sync.Mutex // guards all below
	until time.Duration
	timer *time.Timer
	tail  sync.WaitGroup
}

func newMachineLease(lease time.Duration) *machineLease {
	m := &machineLease{}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.until = journal.BootTime() + lease
	m.timer = time.AfterFunc(lease, m.check)
	tellMachine(lease)
	return m
}

// follow takes renewals, lines of milliseconds, until r ends.
func (m *machineLease) follow(r io.Reader) {
	m.tail.Go(func() {
		for s := bufio.NewScanner(r); s.Scan(); {
			ms, err := strconv.ParseInt(strings.TrimSpace(s.Text()), 10, 64)
			if err == nil {
				m.renew(time.Duration(ms) * time.Millisecond)
			}
		}
	})
}

func (m *machineLease) renew(lease time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if until := journal.BootTime() + lease; until > m.until+lease/20 { // beats come every few seconds
		m.until = until
		m.timer.Reset(lease)
		tellMachine(lease)
	}
}

// check powers the machine off if the lease is over; time.Timer does not count suspended time, so it may find that there is some left or long none.
func (m *machineLease) check() {
	m.mu.Lock()
	left := m.until - journal.BootTime()
	if left > 0 {
		m.timer.Reset(left)
	}
	m.mu.Unlock()
	if left <= 0 {
		powerOff()
	}
}

func (m *machineLease) stop() {
	m.mu.Lock()
	m.timer.Stop()
	m.mu.Unlock()
	m.tail.Wait()
}

// tellMachine renews the machine's own timer where it has one (local machines): it outlives this process.
func tellMachine(lease time.Duration) {
	path := os.Getenv("LAUNCHER_MACHINE_LEASE")
	if path == "" {
		return
	}
	// Never wait: a reader is always there, or the machine is going away.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|nonblock, 0) // where it is a regular file (ssh), its last line counts
	if err != nil {
		return
	}
	defer f.Close()
	f.WriteString(strconv.Itoa(int(lease.Seconds()+0.5)) + "\n")
}

// powerOff ends the machine. On every provider that deletes it, or a watchdog of the provider's does.
func powerOff() {
	for _, argv := range [][]string{{"poweroff"}, {"sudo", "-n", "poweroff"}} {
		if exec.Command(argv[0], argv[1:]...).Run() == nil {
			return
		}
	}
}
