package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"github.com/ephemeral-launcher/launcher/launcher"
	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
)

func TestNarrate(t *testing.T) {
	usd, deadline, seven := 0.03, journal.At(40*time.Second), 7
	offer := providers.Offer{InstanceType: "g5.xlarge", Zone: "us-east-1a", Market: providers.OnDemand, USDPerHour: &usd}
	event := func(kind journal.Kind, node string, generation int, data any) launcher.Event {
		e := journal.NewEvent(kind, node, generation, data)
		e.Run, e.At = "cifar-abcdef", journal.At(12300*time.Millisecond)
		return e
	}
	for _, tt := range []struct {
		in   launcher.Event
		want string // empty: not worth telling
	}{
		{event(journal.RunCreated, "", 0, journal.Created{JobName: "cifar"}), "   12.3s  run    created     cifar-abcdef, for job cifar"},
		{event(journal.NodeIntended, "w1.1", 0, journal.Intended{Attempt: 1}), ""},
		{event(journal.NodeIntended, "w1.2", 0, journal.Intended{Attempt: 2}), "   12.3s  w1.2   ordered     a replacement"},
		{event(journal.NodeCreated, "w1.2", 0, journal.MachineCreated{Machine: providers.Machine{Offer: offer}}), "   12.3s  w1.2   created     g5.xlarge on-demand at $0.0300/h in us-east-1a"},
		{event(journal.NodeRefused, "w1.2", 0, journal.Refused{Code: providers.Capacity, Message: "no g5 left"}), "   12.3s  w1.2   refused     capacity: no g5 left"},
		{event(journal.NodeJoined, "w1.2", 0, journal.Joined{Procs: 4}), "   12.3s  w1.2   joined      4 rank processes"},
		{event(journal.NodeNotice, "w1.2", 0, journal.Noticed{DeadlineAt: &deadline}), "   12.3s  w1.2   notice      it will be preempted in 27.7s"},
		{event(journal.NodeNotice, "w1.2", 0, journal.Noticed{}), "   12.3s  w1.2   notice      it will be preempted at any moment"},
		{event(journal.NodeLost, "w1.2", 0, journal.Lost{Cause: "silent for 10s"}), "   12.3s  w1.2   lost        silent for 10s"},
		{event(journal.NodeDeleted, "w1.2", 0, nil), "   12.3s  w1.2   deleted     seen gone"},
		{event(journal.NodeRekeyed, "w1.2", 0, journal.Rekeyed{HostKey: "ssh-ed25519 A"}), ""},
		{event(journal.GenerationForming, "", 3, journal.Forming{Cause: "loss", Have: 2, Want: 4}), "   12.3s  gen 3  forming     loss; 2 of 4 are here"},
		{event(journal.GenerationFormed, "", 3, journal.Formed{WorldSize: 8, Members: []journal.Member{{Node: "w0.1"}, {Node: "w2.3"}}}), "   12.3s  gen 3  formed      world size 8: w0.1 w2.3"},
		{event(journal.GenerationEnded, "", 3, journal.Ended{Cause: "swap"}), "   12.3s  gen 3  ended       swap"},
		{event(journal.ProcessExited, "w0.1", 3, journal.Exited{Rank: 2, Code: 1}), "   12.3s  w0.1   exited      rank 2 exited with 1"},
		{event(journal.ProcessExited, "w0.1", 3, journal.Exited{Rank: 2, Signal: "SIGSEGV"}), "   12.3s  w0.1   exited      rank 2 was ended by SIGSEGV"},
		{event(journal.ProcessExited, "w0.1", 3, journal.Exited{Rank: 2, Code: 75, Asked: true}), ""},
		{event(journal.ProcessExited, "w0.1", 3, journal.Exited{Rank: 2}), ""},
		{event(journal.JobCharged, "w0.1", 3, journal.Charged{Rank: 2, Restarts: 1, Max: 3}), "   12.3s  gen 3  charged     rank 2 failed: restart 1 of 3"},
		{event(journal.JobCharged, "w0.1", 3, journal.Charged{Rank: 2, Restarts: 4, Max: 3}), "   12.3s  gen 3  charged     rank 2 failed, after all 3 restarts"},
		{event(journal.JobCharged, "w0.1", 3, journal.Charged{Rank: 2, Restarts: 1}), "   12.3s  gen 3  charged     rank 2 failed, and max_restarts is 0"},
		{event(journal.HandoverAccepted, "", 0, journal.Handover{Epoch: 2}), "   12.3s  run    handed over the head supervises: this process may leave"},
		{event(journal.HandoverAccepted, "", 0, journal.Handover{Epoch: 3}), "   12.3s  run    taken over  the head is gone: this process deletes what is left"},
		{event(journal.RunStopping, "w0.1", 0, journal.Stopping{Cause: journal.CauseFailed, Exit: &seven}), "   12.3s  run    stopping    failed with exit code 7"},
		{event(journal.RunStopping, "", 0, journal.Stopping{Cause: journal.CauseTooFew, Text: "1 of 2"}), "   12.3s  run    stopping    too few workers: 1 of 2"},
		{event(journal.RunClean, "", 0, journal.Clean{Listings: 2, SpendUSD: 1.234}), "   12.3s  run    clean       2 listings showed nothing left; $1.23 in all"},
		{event(journal.ProgressReported, "", 3, journal.Progress{Step: 3}), ""},
		{event("run.invented", "", 0, nil), ""},
	} {
		t.Run(string(tt.in.Kind), func(t *testing.T) {
			got := ""
			if told, ok := narrate(tt.in); ok {
				got = told.line(tt.in.At, false)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if text := eventText(tt.in); strings.Contains(text, "\n") || !strings.Contains(text, string(tt.in.Kind)) {
				t.Errorf("events: %q", text)
			}
		})
	}
}

func TestToneIsColourOnly(t *testing.T) {
	lost := told{who: "w0.1", what: "lost", rest: "silent", tone: bad}
	plainText, coloured := lost.line(0, false), lost.line(0, true)
	if got := strings.NewReplacer("\x1b[31m", "", "\x1b[0m", "").Replace(coloured); got != plainText || got == coloured {
		t.Errorf("got %q and %q, want the same words with and without colour", plainText, coloured)
	}
}

func TestMoneyAndTime(t *testing.T) {
	for usd, want := range map[float64]string{0: "$0", 0.00001: "<$0.0001", 0.0042: "$0.0042", 0.53: "$0.530", 12.345: "$12.35", 1234: "$1234.00"} {
		if got := dollars(usd); got != want {
			t.Errorf("dollars(%g) = %q, want %q", usd, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0.0s", 1250 * time.Millisecond: "1.2s", 99 * time.Second: "1m39s", 59 * time.Second: "59.0s", 185 * time.Second: "3m05s", time.Hour: "1h00m", 127 * time.Minute: "2h07m",
		49 * time.Hour: "2d01h", -time.Second: "-1.0s",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%s) = %q, want %q", d, got, want)
		}
	}
}

func TestReorder(t *testing.T) {
	c := &cli.Command{Name: "up", Flags: []cli.Flag{varFlag(), outputFlag(), followFlag()}}
	for _, tt := range []struct {
		in   string
		want string
	}{
		{"FILE -f", "-f -- FILE"},
		{"FILE --var a=1 OTHER -o json", "--var a=1 -o json -- FILE OTHER"},
		{"FILE --var=a=1 --var b=-2", "--var=a=1 --var b=-2 -- FILE"},
		{"--var -x FILE", "--var -x -- FILE"},
		{"FILE -- -f --var", "-- FILE -- -f --var"},
		{"- -f", "-f -- -"},
		{"FILE --help", "--help -- FILE"},
	} {
		got, err := reorder(c, strings.Fields(tt.in))
		if err != nil {
			t.Errorf("%s: %v", tt.in, err)
		}
		if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s: %s", tt.in, diff)
		}
	}
	for in, want := range map[string]string{"FILE --folow": "--follow", "FILE --nope": "no flag --nope", "FILE -o": "needs a value", "-x": "no flag -x"} {
		_, err := reorder(c, strings.Fields(in))
		var usage *usageError
		if !errors.As(err, &usage) || !strings.Contains(usage.text, want) {
			t.Errorf("%s: got %v, want a usage error with %q", in, err, want)
		}
	}
}

// TestTemplatesShowOnlyRealAttributes reads what is commented out too: it is pasted as it stands.
func TestTemplatesShowOnlyRealAttributes(t *testing.T) {
	known := map[string]bool{"provider.regions": true, "provider.notice": true}
	for _, a := range jobspec.Attributes() {
		known[a.Path] = true
	}
	for _, name := range templateNames() {
		b, err := templates.ReadFile("templates/" + name + ".hcl")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range templatePaths(string(b)) {
			if !known[path] {
				t.Errorf("%s shows %s, which no job file has", name, path)
			}
		}
	}
}
