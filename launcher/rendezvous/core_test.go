package rendezvous

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// elastic is the usual world of the stories: 2 to 4 workers, growth every 600 s, notices end 22 s before the deadline.
func elastic() Config {
	return Config{
		Min: 2, Max: 4, StartWait: 60 * time.Second, LostAfter: 10 * time.Second, GrowEvery: 600 * time.Second,
		BelowMin: 1800 * time.Second, Grace: 20 * time.Second, Signal: "SIGUSR1", MaxRestarts: 3, Coalesce: DefaultCoalesce,
	}
}

func fixed(count int) Config {
	cfg := elastic()
	cfg.Min, cfg.Max, cfg.Fixed = count, count, true
	return cfg
}

func with(cfg Config, change func(*Config)) Config {
	change(&cfg)
	return cfg
}

type story struct {
	name   string
	cfg    Config
	past   Past
	script string
	until  time.Duration // 0: 100 s after the script
	want   string
}

func tell(t *testing.T, stories []story) {
	t.Helper()
	for _, st := range stories {
		t.Run(strings.ReplaceAll(st.name, " ", "_"), func(t *testing.T) {
			s := newStage(t, st.cfg, st.past)
			end := s.play(st.script)
			if st.until == 0 {
				st.until = end + 100*time.Second
			}
			s.run(st.until)
			var want []string
			for line := range strings.Lines(st.want) {
				if line = strings.TrimSpace(line); line != "" {
					want = append(want, line)
				}
			}
			if d := cmp.Diff(s.trace, want); d != "" {
				t.Errorf("trace (-got +want):\n%s", d)
			}
		})
	}
}
