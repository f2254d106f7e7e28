package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

// paper is a terminal that understands what screen writes: lines, and "go up n lines and erase from there".
type paper struct {
	mu     sync.Mutex
	lines  []string
	writes int
}

func (p *paper) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes++
	text := string(b)
	if m := regexp.MustCompile(`^\r\x1b\[(\d+)A\x1b\[J`).FindStringSubmatch(text); m != nil {
		n, _ := strconv.Atoi(m[1])
		p.lines = p.lines[:len(p.lines)-n]
		text = text[len(m[0]):]
	}
	for line := range strings.Lines(text) {
		p.lines = append(p.lines, strings.TrimSuffix(line, "\n"))
	}
	return len(b), nil
}

func (p *paper) written() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.writes
}

func (p *paper) shows() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.lines...)
}

func TestScreenKeepsLinesAboveTheBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &paper{}
		clock := 0
		s := newScreen(p, func() (int, int) { return 40, 24 }, func(int, int) []string {
			clock++
			return []string{"----", fmt.Sprintf("drawn %d", clock)}
		})
		s.print("one")
		time.Sleep(settle + time.Millisecond)
		synctest.Wait()
		if diff := cmp.Diff([]string{"one", "----", "drawn 1"}, p.shows()); diff != "" {
			t.Error(diff)
		}
		for range 100 {
			s.print("many")
		}
		if writes := p.written(); writes > 110 {
			t.Errorf("%d writes for 101 lines", writes)
		}
		time.Sleep(settle + time.Millisecond)
		synctest.Wait()
		if got := p.shows(); len(got) != 103 || got[102] != "drawn 2" {
			t.Errorf("after many lines: %d lines, the last %q; want 103 and a block drawn once", len(got), got[len(got)-1])
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := p.shows(); got[len(got)-1] != "drawn 3" {
			t.Errorf("a second later: %q, want the clock to go on", got[len(got)-1])
		}
		s.pause()
		s.print("question?")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := p.shows(); got[len(got)-1] != "question?" {
			t.Errorf("while a question stands: %q below it", got[len(got)-1])
		}
		s.resume()
		time.Sleep(settle + time.Millisecond)
		synctest.Wait()
		s.close()
		if got := p.shows(); got[len(got)-1] != "question?" || len(got) != 102 {
			t.Errorf("at the end: %d lines, the last %q; want the block erased", len(got), got[len(got)-1])
		}
	})
}

func TestScreenWithoutTerminalNeverRedraws(t *testing.T) {
	var out bytes.Buffer
	s := newScreen(&out, nil, nil)
	s.print("one")
	s.pause()
	s.resume()
	s.print("two", "three")
	s.touch()
	s.close()
	if got, want := out.String(), "one\ntwo\nthree\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// stateOf has a head and n workers, all joined.
func stateOf(t *testing.T, n int) *journal.State {
	t.Helper()
	usd := 0.03
	s := &journal.State{}
	apply := func(e journal.Event) {
		t.Helper()
		e.Run = "cifar-abcdef"
		if err := s.Apply(e); err != nil {
			t.Fatal(err)
		}
	}
	apply(journal.NewEvent(journal.RunCreated, "", 0, journal.Created{JobName: "cifar"}))
	node := func(name string, role providers.Role, slot int) {
		apply(journal.NewEvent(journal.NodeIntended, name, 0, journal.Intended{Role: role, Slot: slot, Attempt: 1, Token: name}))
		m := providers.Machine{ID: "m-" + name, Offer: providers.Offer{InstanceType: "t", Zone: "a", Market: providers.Spot, USDPerHour: &usd}}
		apply(journal.NewEvent(journal.NodeCreated, name, 0, journal.MachineCreated{Machine: m}))
		apply(journal.NewEvent(journal.NodeReachable, name, 0, journal.Reachable{}))
		apply(journal.NewEvent(journal.NodeJoined, name, 0, journal.Joined{Procs: 1}))
	}
	node(journal.HeadName, providers.Head, -1)
	var members []journal.Member
	for i := range n {
		node(journal.NodeName(i, 1), providers.Worker, i)
		members = append(members, journal.Member{Node: journal.NodeName(i, 1), Slot: i})
	}
	apply(journal.NewEvent(journal.GenerationForming, "", 1, journal.Forming{Cause: "start", Have: n, Want: n}))
	apply(journal.NewEvent(journal.GenerationFormed, "", 1, journal.Formed{Cause: "start", WorldSize: n, Members: members}))
	return s
}

func TestStatusBlock(t *testing.T) {
	s := stateOf(t, 3)
	at := journal.At(20 * time.Second)
	e := journal.NewEvent(journal.NodeNotice, "w1.1", 0, journal.Noticed{DeadlineAt: &at})
	e.Run = s.Run
	if err := s.Apply(e); err != nil {
		t.Fatal(err)
	}
	got := statusBlock(s, journal.At(8*time.Second), 64, 10)
	want := []string{
		strings.Repeat("─", 63),
		"cifar-abcdef · running · 8.0s · generation 1, world size 3 · $0…",
		"head joined  w0.1 joined  w1.1 notice 12.0s  w2.1 joined",
	}
	want[1] = string([]rune(want[1])[:62]) + "…"
	if diff := cmp.Diff(want[0], got[0]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want[2], got[2]); diff != "" {
		t.Error(diff)
	}
	if !strings.HasPrefix(got[1], "cifar-abcdef · running · 8.0s · generation 1, world size 3") {
		t.Errorf("got %q", got[1])
	}
}

// TestStatusBlockFits holds for any size of terminal and world: no line wraps, and the block stays small.
func TestStatusBlockFits(t *testing.T) {
	for _, workers := range []int{0, 1, 7, 64, 500} {
		s := stateOf(t, workers)
		for _, width := range []int{1, 2, 10, 20, 79, 200} {
			for _, height := range []int{1, 3, 8} {
				lines := statusBlock(s, 0, width, height)
				if len(lines) > max(3, height) {
					t.Errorf("%d workers, %d × %d: %d lines", workers, width, height, len(lines))
				}
				for _, l := range lines {
					if n := len([]rune(l)); n >= max(2, width) {
						t.Errorf("%d workers, %d × %d: a line of %d", workers, width, height, n)
					}
				}
			}
		}
	}
	lines := statusBlock(stateOf(t, 500), 0, 80, 8)
	if got := lines[len(lines)-1]; !strings.Contains(got, "more") {
		t.Errorf("the last line %q does not say how many are not shown", got)
	}
}
