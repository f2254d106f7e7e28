package supervisor

import (
	"testing"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// thousand is a run of 1,000 workers, all members of a generation, listed once.
func thousand(b *testing.B) *model {
	job := testJob()
	job.Workers.Min, job.Workers.Max = 1000, 1000
	m := newModel(b, job, ModeHead)
	m.start()
	return m
}

func BenchmarkDecide1000(b *testing.B) {
	m := thousand(b)
	b.Run("steady", func(b *testing.B) {
		in := m.input()
		for b.Loop() {
			Decide(in)
		}
	})
	b.Run("half lost", func(b *testing.B) {
		for i := range 500 {
			m.say(journal.NodeLost, journal.NodeName(2*i, 1), 0, journal.Lost{Cause: "silent"})
		}
		in := m.input()
		for b.Loop() {
			Decide(in)
		}
	})
}

func BenchmarkObserve1000(b *testing.B) {
	m := thousand(b)
	listing := m.listing()
	for b.Loop() {
		m.seen.Observe(m.state, m.now, listing, func(string) bool { return false })
	}
}

func BenchmarkRoster1000(b *testing.B) {
	m := thousand(b)
	for b.Loop() {
		RosterOf(m.job, m.state)
	}
}

// BenchmarkJoin1000 is what the supervisor decides while 1,000 workers come up one after another.
func BenchmarkJoin1000(b *testing.B) {
	job := testJob()
	job.Workers.Min, job.Workers.Max = 1000, 1000
	for b.Loop() {
		m := newModel(b, job, ModeHead)
		m.answer()
		for _, n := range m.state.List("") {
			m.now += time.Millisecond
			m.join(n.Name)
			Decide(m.input())
		}
	}
}
