package head

import (
	"testing"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/sim"
)

// What ends the machines where nobody deletes them, and where money runs out.

func TestSimNobodyFetches(t *testing.T) {
	simulate(t, simOptions{hcl: simJob("count = 3", "limits { hold_results = \"1h\" }")}, func(s *simulation) {
		s.up()
		s.client.close()
		s.finish()
		ended := time.Now()
		for len(s.living(providers.Worker)) > 0 && time.Since(ended) < time.Hour {
			time.Sleep(pollEvery)
		}
		if got := time.Since(ended); got > 40*time.Second {
			t.Errorf("workers are deleted %v after the end", got)
		}
		s.gone(2 * time.Hour)
		if got := time.Since(ended); got < time.Hour || got > time.Hour+time.Minute {
			t.Errorf("the head has stayed for %v, want hold_results of 1 h", got)
		}
	})
}

func TestSimEveryControllerDies(t *testing.T) {
	const lease = "limits { node_lease = \"90s\" }"
	for name, kill := range map[string]func(s *simulation){
		"the head's machine": func(s *simulation) { s.cloud.KillSilently(s.headGuest().machine.ID) },
		"the head's process": func(s *simulation) { s.headGuest().hangDaemon() },
		"the cloud's API too": func(s *simulation) {
			s.cloud.FailFor("*", providers.Unavailable, 24*time.Hour)
			s.headGuest().hangDaemon()
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, simOptions{hcl: simJob("count = 3", lease)}, func(s *simulation) {
				s.up()
				s.client.close()
				died := time.Now()
				kill(s)
				for len(s.living("")) > 0 && time.Since(died) < time.Hour {
					time.Sleep(pollEvery)
				}
				t.Logf("all gone after %v", time.Since(died))
				if got := time.Since(died); got > 95*time.Second {
					t.Errorf("gone after %v, want a node lease of 90 s", got)
				}
				time.Sleep(time.Second)
				s.check()
			})
		})
	}
}

// A provider that lets nothing be deleted any more does not keep the machines for good either.
func TestSimProviderRefusesForGood(t *testing.T) {
	simulate(t, simOptions{hcl: simJob("count = 3", "limits { node_lease = \"90s\" }")}, func(s *simulation) {
		s.up()
		s.cloud.FailFor("*", providers.Auth, 1000*time.Hour)
		s.finish()
		<-s.client.fetched
		ended := time.Now()
		for len(s.living(providers.Worker)) > 0 && time.Since(ended) < time.Hour {
			time.Sleep(pollEvery)
		}
		if got := time.Since(ended); got > 95*time.Second {
			t.Errorf("workers gone after %v, want a node lease of 90 s", got)
		}
		s.gone(longStay + 2*time.Minute)
		t.Logf("the head has gone after %v", time.Since(ended))
	})
}

func TestSimClientStaysAway(t *testing.T) {
	simulate(t, simOptions{hcl: simJob("count = 3", "head { supervisor = \"client\" }\n limits { node_lease = \"90s\" }")}, func(s *simulation) {
		s.up()
		s.client.close()
		left := time.Now()
		for len(s.living("")) > 0 && time.Since(left) < time.Hour {
			time.Sleep(pollEvery)
		}
		t.Logf("all gone after %v", time.Since(left))
		if got := time.Since(left); got > 2*95*time.Second {
			t.Errorf("gone after %v", got)
		}
		time.Sleep(time.Second)
		s.check()
	})
}

func TestSimBudget(t *testing.T) {
	simulate(t, simOptions{hcl: simJob("count = 3", "limits {\n budget_usd = 0.05\n node_lease = \"60s\"\n }"), cloud: func(o *sim.Options) { o.Sides = []sim.Side{} }}, func(s *simulation) {
		s.up()
		s.gone(6 * time.Hour)
		state := s.state()
		if got, want := state.Stopping.Cause, journal.CauseLimit; got != want {
			t.Errorf("cause %q, want %q", got, want)
		}
		spent := s.audit().SpendUSD
		t.Logf("spent %.6f of 0.05 USD", spent)
		if spent > 0.05 {
			t.Errorf("spent %.6f of 0.05 USD", spent)
		}
		if spent < 0.035 {
			t.Errorf("spent only %.6f of 0.05 USD", spent)
		}
	})
}
