package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

// tone is what a line is about; on a terminal it has a colour.
type tone int

const (
	plain tone = iota
	good
	warning
	bad
)

// told is one event as `up` shows it: who, a word for what happened, and the rest.
type told struct {
	who, what, rest string
	tone            tone
}

// narrate says an event worth telling in one line. ok is false for the others: what a person who watches a run can do nothing with.
func narrate(e launcher.Event) (t told, ok bool) {
	t.who = e.Node
	if t.who == "" {
		t.who = "run"
	}
	if strings.HasPrefix(string(e.Kind), "run.") {
		t.who = "run" // also where a node's process decided it
	}
	t.what = string(e.Kind[strings.LastIndexByte(string(e.Kind), '.')+1:])
	switch e.Kind {
	case journal.NodeIntended, journal.NodeCreated, journal.NodeRefused, journal.NodeReachable, journal.NodeJoined, journal.NodeNotice,
		journal.NodeSuspect, journal.NodeLost, journal.NodeDeleting, journal.NodeDeleted, journal.SetupFinished:
		return t, narrateNode(e, &t)
	case journal.GenerationForming, journal.GenerationFormed, journal.GenerationEnded, journal.ProcessExited, journal.JobCharged,
		journal.CheckpointSaved, journal.LogsDropped:
		return t, narrateWorld(e, &t)
	}
	return t, narrateRun(e, &t)
}

func narrateRun(e launcher.Event, t *told) bool {
	switch e.Kind {
	case journal.RunCreated:
		d := decode[journal.Created](e)
		t.rest = fmt.Sprintf("%s, for job %s", e.Run, d.JobName)
	case journal.RunPlanned:
		d := decode[journal.Planned](e)
		t.rest = fmt.Sprintf("%s %s", d.Provider, d.Region)
		if len(d.Head) > 0 && len(d.Workers) > 0 {
			t.rest += fmt.Sprintf(": head %s, workers %s", offerText(d.Head[0]), offerText(d.Workers[0]))
		}
	case journal.RunScaled:
		d := decode[journal.Scaled](e)
		t.rest = fmt.Sprintf("to %s, by %s", count(d.Workers, "worker"), d.By)
	case journal.HandoverAccepted:
		t.what, t.rest = "handed over", "the head supervises: this process may leave"
		if d := decode[journal.Handover](e); d.Epoch%2 == 1 { // heads have even epochs
			t.what, t.rest = "taken over", "the head is gone: this process deletes what is left"
		}
	case journal.RunStopping:
		d := decode[journal.Stopping](e)
		t.rest, t.tone = endText(d), bad
		if d.Cause == journal.CauseSucceeded {
			t.tone = good
		}
	case journal.RunFinished:
		d := decode[journal.Finished](e)
		t.rest = fmt.Sprintf("%s; %s, goodput %.0f %%", endText(d.Stopping), dollars(d.SpendUSD), 100*d.Goodput)
	case journal.RunClean:
		d := decode[journal.Clean](e)
		t.rest, t.tone = fmt.Sprintf("%s showed nothing left; %s in all", count(d.Listings, "listing"), dollars(d.SpendUSD)), good
	case journal.ProviderRefused:
		d := decode[journal.ProviderError](e)
		t.what, t.rest, t.tone = "refused", fmt.Sprintf("%s: %s: %s", d.Op, d.Code, d.Message), warning
	default: // run.drained, run.fetched, handover.offered, outputs.saved, progress.reported, node.rekeyed …: steps on the way
		return false
	}
	return true
}

func narrateNode(e launcher.Event, t *told) bool {
	switch e.Kind {
	case journal.NodeIntended:
		d := decode[journal.Intended](e)
		if d.Attempt < 2 {
			return false // the first machines: their creation follows at once, and says more
		}
		t.what, t.rest = "ordered", "a replacement"
	case journal.NodeCreated:
		o := decode[journal.MachineCreated](e).Machine.Offer
		t.rest = offerText(o) + " in " + o.Zone
	case journal.NodeRefused:
		d := decode[journal.Refused](e)
		t.rest, t.tone = fmt.Sprintf("%s: %s", d.Code, d.Message), warning
	case journal.NodeReachable:
		t.rest = decode[journal.Reachable](e).Address
	case journal.NodeJoined:
		d := decode[journal.Joined](e)
		if d.Procs == 1 {
			t.rest = "1 rank process"
		} else if d.Procs > 1 {
			t.rest = fmt.Sprintf("%d rank processes", d.Procs)
		}
	case journal.NodeNotice:
		d := decode[journal.Noticed](e)
		t.rest, t.tone = "it will be preempted at any moment", warning
		if d.DeadlineAt != nil {
			t.rest = "it will be preempted in " + span(max(0, (*d.DeadlineAt-e.At).Duration()))
		}
	case journal.NodeSuspect:
		t.rest, t.tone = decode[journal.Suspected](e).Reason, warning
	case journal.NodeLost:
		d := decode[journal.Lost](e)
		t.rest, t.tone = d.Cause, bad
	case journal.NodeDeleting:
		t.rest = decode[journal.DeletingNode](e).Reason
	case journal.NodeDeleted:
		t.rest = "seen gone"
	case journal.SetupFinished:
		d := decode[journal.Setup](e)
		t.what, t.rest = "set up", "in "+span(time.Duration(d.Seconds*float64(time.Second)))
		if !d.OK {
			t.what, t.rest, t.tone = "setup failed", fmt.Sprintf("with exit code %d", d.Exit), bad
		}
	}
	return true
}

func narrateWorld(e launcher.Event, t *told) bool {
	t.who = fmt.Sprintf("gen %d", e.Generation)
	switch e.Kind {
	case journal.GenerationForming:
		d := decode[journal.Forming](e)
		t.rest = fmt.Sprintf("%s; %d of %d are here", d.Cause, d.Have, d.Want)
	case journal.GenerationFormed:
		d := decode[journal.Formed](e)
		names := make([]string, len(d.Members))
		for i, m := range d.Members {
			names[i] = m.Node
		}
		t.rest, t.tone = fmt.Sprintf("world size %d: %s", d.WorldSize, shorten(names, 16)), good
	case journal.GenerationEnded:
		t.rest = decode[journal.Ended](e).Cause
	case journal.ProcessExited:
		d := decode[journal.Exited](e)
		t.who, t.rest, t.tone = e.Node, fmt.Sprintf("rank %d %s", d.Rank, exitText(d.Code, d.Signal)), bad
		if d.Asked {
			t.rest += ", as asked"
		}
		return !d.Asked && (d.Code != 0 || d.Signal != "") // the others are no news, but `events` shows them
	case journal.JobCharged:
		d := decode[journal.Charged](e)
		t.rest, t.tone = fmt.Sprintf("rank %d failed: restart %d of %d", d.Rank, d.Restarts, d.Max), warning
		if d.Restarts > d.Max {
			t.rest = fmt.Sprintf("rank %d failed, after all %s", d.Rank, count(d.Max, "restart"))
			if d.Max == 0 {
				t.rest = fmt.Sprintf("rank %d failed, and max_restarts is 0", d.Rank)
			}
		}
	case journal.CheckpointSaved:
		d := decode[journal.Checkpoint](e)
		t.who, t.what = e.Node, "checkpoint"
		if t.who == "" {
			t.who = "run"
		}
		t.rest = fmt.Sprintf("%s, %s, is off its node", d.Path, bytesText(d.Bytes))
	case journal.LogsDropped:
		d := decode[journal.Dropped](e)
		t.who, t.what, t.tone = e.Node, "dropped", warning
		t.rest = fmt.Sprintf("%s of %s did not fit the buffers", bytesText(d.Bytes), d.Stream)
	}
	return true
}

// decode reads an event's data; of a kind that a newer version wrote, the fields that are known.
func decode[T any](e launcher.Event) T {
	var v T
	_ = e.Decode(&v) // a line with less in it is better than none
	return v
}

func offerText(o providers.Offer) string {
	return fmt.Sprintf("%s %s at %s", o.InstanceType, strings.ReplaceAll(string(o.Market), "_", "-"), price(o.USDPerHour))
}

// endText says why a run ended.
func endText(s journal.Stopping) string {
	text := strings.ReplaceAll(string(s.Cause), "_", " ")
	if s.Exit != nil && (*s.Exit != 0 || s.Cause != journal.CauseSucceeded) {
		text += fmt.Sprintf(" with exit code %d", *s.Exit)
	}
	if s.Text != "" {
		text += ": " + s.Text
	}
	return text
}

func exitText(code int, signal string) string {
	if signal != "" {
		return "was ended by " + signal
	}
	return fmt.Sprintf("exited with %d", code)
}

// shorten lists names, at most n of them.
func shorten(names []string, n int) string {
	if len(names) > n {
		return strings.Join(names[:n-1], " ") + fmt.Sprintf(" and %d more", len(names)-n+1)
	}
	return strings.Join(names, " ")
}

// line is the event as a line of text, with colours or without.
func (t told) line(at journal.At, colour bool) string {
	text := fmt.Sprintf("%8s  %-6s %-11s %s", span(at.Duration()), t.who, t.what, t.rest)
	text = strings.TrimRight(text, " ")
	if code := map[tone]string{good: "32", warning: "33", bad: "31"}[t.tone]; colour && code != "" {
		return "\x1b[" + code + "m" + text + "\x1b[0m"
	}
	return text
}

// rankLine is a line of the job's output, unchanged after its prefix.
func rankLine(l launcher.LogLine) string {
	if l.Rank < 0 {
		return l.Node + " " + l.Stream + " | " + l.Text
	}
	return fmt.Sprintf("%s r%d | %s", l.Node, l.Rank, l.Text)
}
