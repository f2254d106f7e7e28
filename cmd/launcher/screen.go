package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// screen prints scrolling lines and, on a terminal, keeps a block below them that shows the present. Off a terminal it only prints.
//
// Lines go out as they come. The block is erased before them and comes back a moment later, so that a job that prints a lot costs one redraw
// for many lines. All writes are made under mu, each in one piece.
type screen struct {
	out io.Writer
	// block draws the present in so many columns and lines at most; nil: there is no block.
	block func(width, height int) []string
	size  func() (width, height int)
	dirty chan struct{} // capacity 1
	quit  chan struct{}
	done  sync.WaitGroup

	mu     sync.Mutex
	drawn  int // lines of the block that stand below the last line
	paused bool
}

// settle is how long a redraw waits for more lines.
const settle = 40 * time.Millisecond

// newScreen starts a screen; close ends it. Without a block there is nothing to start.
func newScreen(out io.Writer, size func() (int, int), block func(width, height int) []string) *screen {
	s := &screen{out: out, block: block, size: size, dirty: make(chan struct{}, 1), quit: make(chan struct{})}
	if block != nil {
		s.done.Go(s.redraw)
	}
	return s
}

// print writes lines, each without its newline.
func (s *screen) print(lines ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.erased() + strings.Join(lines, "\n") + "\n"
	io.WriteString(s.out, text) // a reader that left is no reason to leave the run
	s.touch()
}

// touch asks for a redraw.
func (s *screen) touch() {
	select {
	case s.dirty <- struct{}{}:
	default:
	}
}

// pause erases the block, for a question; resume brings it back.
func (s *screen) pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	io.WriteString(s.out, s.erased())
	s.paused = true
}

func (s *screen) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = false
	s.touch()
}

// close erases the block for good.
func (s *screen) close() {
	close(s.quit)
	s.done.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	io.WriteString(s.out, s.erased())
	s.paused = true
}

// erased is what removes the block. The caller holds mu.
func (s *screen) erased() string {
	if s.drawn == 0 {
		return ""
	}
	up := fmt.Sprintf("\r\x1b[%dA\x1b[J", s.drawn)
	s.drawn = 0
	return up
}

// redraw owns the clock of the block.
func (s *screen) redraw() {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for {
		select {
		case <-s.quit:
			return
		case <-second.C:
		case <-s.dirty:
			select {
			case <-time.After(settle):
			case <-s.quit:
				return
			}
			select {
			case <-s.dirty: // what came meanwhile is drawn too
			default:
			}
		}
		s.draw()
	}
}

func (s *screen) draw() {
	width, height := s.size()
	lines := s.block(width, max(1, height/3))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused {
		return
	}
	text := s.erased()
	for _, l := range lines {
		text += l + "\n"
	}
	s.drawn = len(lines)
	io.WriteString(s.out, text)
}

// statusBlock draws the present of a run: one line about the run, then its living nodes, in at most height lines, but never fewer than three.
// No line is as wide as the terminal, so that each takes one row.
func statusBlock(s *journal.State, now journal.At, width, height int) []string {
	if s == nil || s.Run == "" {
		return nil
	}
	width = max(1, width-1)
	lines := []string{strings.Repeat("─", width), cut(strings.Join(runFacts(s, now), " · "), width)}
	var cells []string
	for _, n := range s.List("") {
		if !n.Phase.Ended() {
			cells = append(cells, cut(nodeCell(n, now), width))
		}
	}
	rows, shown := fill(cells, width, max(1, height-len(lines)))
	if rest := len(cells) - shown; rest > 0 {
		more := fmt.Sprintf(" and %d more", rest)
		last := &rows[len(rows)-1]
		*last = cut(cut(*last, max(1, width-len(more)))+more, width)
	}
	return append(lines, rows...)
}

// fill sets cells into rows; shown is how many of them found a place.
func fill(cells []string, width, height int) (rows []string, shown int) {
	for _, c := range cells {
		last := len(rows) - 1
		switch {
		case last >= 0 && len([]rune(rows[last]))+2+len([]rune(c)) <= width:
			rows[last] += "  " + c
		case len(rows) == height:
			return rows, shown
		default:
			rows = append(rows, c)
		}
		shown++
	}
	return rows, shown
}

func runFacts(s *journal.State, now journal.At) []string {
	facts := []string{s.Run, runState(s), span(now.Duration())}
	if g := s.Generation; g.Number > 0 {
		text := fmt.Sprintf("generation %d %s", g.Number, g.Phase)
		if g.Phase == journal.GenFormed {
			text = fmt.Sprintf("generation %d, world size %d", g.Number, g.WorldSize)
		}
		facts = append(facts, text)
	}
	if s.Progress != nil {
		facts = append(facts, fmt.Sprintf("step %d", s.Progress.Step))
	}
	if rate := s.USDPerHour(); rate > 0 || s.SpendUSD(now) > 0 {
		facts = append(facts, fmt.Sprintf("%s, %s/h", dollars(s.SpendUSD(now)), dollars(rate)))
	}
	return facts
}

func nodeCell(n *journal.Node, now journal.At) string {
	phase := string(n.Phase)
	switch {
	case n.Notice != nil && n.Phase == journal.PhaseJoined:
		phase = "notice"
		if d := n.Notice.DeadlineAt; d != nil {
			phase += " " + span(max(0, (*d-now).Duration()).Truncate(time.Second))
		}
	case n.Suspect != "" && n.Phase == journal.PhaseJoined:
		phase = "suspect"
	}
	return n.Name + " " + phase
}

// runState is the word for where a run is, as `ls` and `status` use it.
func runState(s *journal.State) string {
	switch {
	case s.Clean != nil:
		return "clean"
	case s.Finished != nil:
		return "finished"
	case s.Stopping != nil:
		return "stopping"
	case s.Generation.Number == 0 || s.Generation.Phase == journal.GenForming && s.Generation.Number == 1:
		return "starting"
	}
	return "running"
}

// cut shortens a line to width columns.
func cut(s string, width int) string {
	r := []rune(s)
	if len(r) <= width {
		return s
	}
	return string(r[:max(0, width-1)]) + "…"
}
