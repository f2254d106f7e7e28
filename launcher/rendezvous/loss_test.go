package rendezvous

import (
	"testing"
	"time"
)

func TestLoss(t *testing.T) {
	tell(t, []story{
		{name: "silent death without evidence", cfg: elastic(), script: `
			1 join a b c d
			50.5 mute c
		`, want: `
			1 form 1 start a,b,c,d
			62 lost c silent member
			62 end 1 loss hard a,b,d
			62.5 closed 1 loss
			62.5 form 2 loss a,b,d
		`},
		{name: "silent death with evidence", cfg: elastic(), script: `
			1 join a b c d
			50.5 mute c
			51 gone c
		`, want: `
			1 form 1 start a,b,c,d
			51 lost c terminated member
			51 end 1 loss hard a,b,d
			51.5 closed 1 loss
			51.5 form 2 loss a,b,d
		`},
		{name: "one slow beat kills nobody", cfg: elastic(), script: `
			1 join a b c d
			50.5 mute c
			60.5 unmute c
		`, want: `
			1 form 1 start a,b,c,d
		`},
		{name: "survivors fail first and nobody is charged", cfg: with(elastic(), func(c *Config) { c.MaxRestarts = 0 }), script: `
			1 join a b c d
			50.5 mute c
			50.6 exit a:0 1
			50.7 exit b:0 1
		`, want: `
			1 form 1 start a,b,c,d
			50.6 end 1 failure hard a,b,c,d
			62 lost c silent member
			62 closed 1 failure
			62 form 2 failure a,b,d
		`},
		{name: "half of the workers gone at once with evidence", cfg: elastic(), script: `
			1 join a b c d
			50 gone b
			50.1 gone d
		`, want: `
			1 form 1 start a,b,c,d
			50 lost b terminated member
			50 end 1 loss hard a,c,d
			50.1 lost d terminated member
			50.5 closed 1 loss
			50.5 form 2 loss a,c
		`},
		{name: "half of the workers silent at once", cfg: elastic(), script: `
			1 join a b
			1.7 join c d
			50.9 mute b d
		`, want: `
			1.7 form 1 start a,b,c,d
			62 lost b silent member
			62 end 1 loss hard a,c,d
			62.7 lost d silent member
			62.7 closed 1 loss
			62.7 form 2 loss a,c
		`},
		{name: "losses within the coalescing window though no process is left", cfg: with(elastic(), func(c *Config) { c.Min = 1 }), script: `
			1 join a b c d
			49 slow a 0.01
			49 slow d 0.01
			50 gone b
			50.1 gone c
		`, want: `
			1 form 1 start a,b,c,d
			50 lost b terminated member
			50 end 1 loss hard a,c,d
			50.1 lost c terminated member
			50.1 closed 1 loss
			50.2 form 2 loss a,d
		`},
		{name: "all gone", cfg: elastic(), script: `
			1 join a b c d
			50 gone a b c d
			90 join a2 b2
		`, want: `
			1 form 1 start a,b,c,d
			50 lost a terminated member
			50 end 1 loss hard b,c,d
			50 lost b terminated member
			50 lost c terminated member
			50 lost d terminated member
			50 closed 1 loss
			50 hold 0 of 2 since 50 until 1850
			90 hold 1 of 2 since 50 until 1850
			90.2 form 2 loss a2,b2
		`},
		{name: "replacement is no growth", cfg: elastic(), script: `
			1 join a b c d
			50 gone b
			90 join b2
		`, want: `
			1 form 1 start a,b,c,d
			50 lost b terminated member
			50 end 1 loss hard a,c,d
			50.5 closed 1 loss
			50.5 form 2 loss a,d,c
			90 end 2 replacement gracefully a,d,c
			92 closed 2 replacement
			92 form 3 replacement a,d,c,b2
		`},
		{name: "replacement of a slot never in the world is growth", cfg: elastic(), script: `
			0 roster a+ b+ c+
			1 join a b c
			50 join d
			60 gone d
			90 join d2
		`, until: 700 * time.Second, want: `
			2 form 1 start a,b,c
			602 end 1 growth gracefully a,b,c
			604 closed 1 growth
			604 form 2 growth a,b,c,d2
		`},
		{name: "replacement lost while booting again and again", cfg: elastic(), script: `
			1 join a b c d
			50 gone b
			50 roster a c d b2+
			70 gone b2
			70 roster a c d b3+
			80 gone b3
			80 roster a c d b4+
			99 join b4
		`, want: `
			1 form 1 start a,b,c,d
			50 lost b terminated member
			50 end 1 loss hard a,c,d
			50.5 closed 1 loss
			50.5 form 2 loss a,d,c
			99 end 2 replacement gracefully a,d,c
			101 closed 2 replacement
			101 form 3 replacement a,d,c,b4
		`},
		{name: "replacement lost after it joined and before it is in", cfg: elastic(), script: `
			1 join a b c d
			50 gone b
			90 join b2
			91 gone b2
		`, want: `
			1 form 1 start a,b,c,d
			50 lost b terminated member
			50 end 1 loss hard a,c,d
			50.5 closed 1 loss
			50.5 form 2 loss a,d,c
			90 end 2 replacement gracefully a,d,c
			92 closed 2 replacement
			92 form 3 replacement a,d,c
		`},
		{name: "two replacements within the window", cfg: with(elastic(), func(c *Config) { c.Min = 3 }), script: `
			1 join a b c d
			50 gone b c
			90 join b2
			90.1 join c2
		`, want: `
			1 form 1 start a,b,c,d
			50 lost b terminated member
			50 end 1 loss hard a,c,d
			50 lost c terminated member
			50.5 closed 1 loss
			50.5 hold 2 of 3 since 50.5 until 1850.5
			90.1 form 2 loss a,b2,c2,d
		`},
		{name: "min is enough when the other replacement is late", cfg: with(elastic(), func(c *Config) { c.Min = 3 }), script: `
			1 join a b c d
			50 gone b c
			90 join b2
			95 join c2
		`, want: `
			1 form 1 start a,b,c,d
			50 lost b terminated member
			50 end 1 loss hard a,c,d
			50 lost c terminated member
			50.5 closed 1 loss
			50.5 hold 2 of 3 since 50.5 until 1850.5
			90.2 form 2 loss a,b2,d
			95 end 2 replacement gracefully a,b2,d
			97 closed 2 replacement
			97 form 3 replacement a,b2,d,c2
		`},
		{name: "a spare fills in and the replacement becomes the spare", cfg: elastic(), script: `
			1 join a b c d
			2 join e
			50 gone b
			90 join b2
			150 gone c
		`, want: `
			1 form 1 start a,b,c,d
			50 lost b terminated member
			50 end 1 loss hard a,c,d
			50.5 closed 1 loss
			50.5 form 2 loss a,e,c,d
			150 lost c terminated member
			150 end 2 loss hard a,e,d
			150.5 closed 2 loss
			150.5 form 3 loss a,e,b2,d
		`},
		{name: "who must think its lease is over is not taken in until it is heard", cfg: with(elastic(), func(c *Config) { c.GrowEvery = 0 }), script: `
			1 join a b c d e
			50.5 mute e
			60.2 gone d
			60.5 unmute e
		`, want: `
			1 form 1 start a,b,c,d
			60.2 lost d terminated member
			60.2 end 1 loss hard a,b,c
			60.7 closed 1 loss
			60.7 form 2 loss a,b,c
			61 end 2 growth gracefully a,b,c
			63 closed 2 growth
			63 form 3 growth a,b,c,e
		`},
		{name: "fixed world held", cfg: fixed(3), script: `
			1 join a b c
			50 gone b
			90 join b2
		`, want: `
			1 form 1 start a,b,c
			50 lost b terminated member
			50 end 1 loss hard a,c
			50.5 closed 1 loss
			50.5 hold 2 of 3 since 50.5 until 1850.5
			90 form 2 loss a,b2,c
		`},
		{name: "below_min", cfg: elastic(), script: `
			1 join a b c
			70 gone b c
			900 join d
			950 gone d
		`, until: 3000 * time.Second, want: `
			61 form 1 start a,b,c
			70 lost b terminated member
			70 end 1 loss hard a,c
			70 lost c terminated member
			70.5 closed 1 loss
			70.5 hold 1 of 2 since 70.5 until 1870.5
			900.2 form 2 loss a,d
			950 lost d terminated member
			950 end 2 loss hard a
			950.5 closed 2 loss
			950.5 hold 1 of 2 since 950.5 until 2750.5
			2750.5 finish too_few
		`},
		{name: "below_min starts again", cfg: fixed(2), script: `
			1 join a b
			70 gone b
			1800 join b2
			1900 gone b2
		`, until: 4000 * time.Second, want: `
			1 form 1 start a,b
			70 lost b terminated member
			70 end 1 loss hard a
			70.5 closed 1 loss
			70.5 hold 1 of 2 since 70.5 until 1870.5
			1800 form 2 loss a,b2
			1900 lost b2 terminated member
			1900 end 2 loss hard a
			1900.5 closed 2 loss
			1900.5 hold 1 of 2 since 1900.5 until 3700.5
			3700.5 finish too_few
		`},
		{name: "below_min 0 never gives up", cfg: with(fixed(2), func(c *Config) { c.BelowMin = 0 }), script: `
			1 join a b
			70 gone b
		`, until: 9000 * time.Second, want: `
			1 form 1 start a,b
			70 lost b terminated member
			70 end 1 loss hard a
			70.5 closed 1 loss
			70.5 hold 1 of 2 since 70.5 until 0
		`},
		{name: "lost while ending", cfg: elastic(), script: `
			1 join a b c d
			49 wedge d
			50 gone b
			52 gone d
		`, want: `
			1 form 1 start a,b,c,d
			50 lost b terminated member
			50 end 1 loss hard a,c,d
			52 lost d terminated member
			52 closed 1 loss
			52 form 2 loss a,c
		`},
		{name: "silent while ending", cfg: elastic(), script: `
			1 join a b c d
			49.5 mute d
			50 gone b
		`, want: `
			1 form 1 start a,b,c,d
			50 lost b terminated member
			50 end 1 loss hard a,c,d
			61 lost d silent member
			61 closed 1 loss
			61 form 2 loss a,c
		`},
		{name: "stuck while ending", cfg: elastic(), script: `
			1 join a b c d
			49 wedge d
			50 gone b
		`, want: `
			1 form 1 start a,b,c,d
			50 lost b terminated member
			50 end 1 loss hard a,c,d
			111 lost d stuck member
			122 closed 1 loss
			122 form 2 loss a,c
		`},
		{name: "stuck and then ended after all", cfg: elastic(), script: `
			1 join a b c d
			49 slow d 63
			50 gone b
		`, want: `
			1 form 1 start a,b,c,d
			50 lost b terminated member
			50 end 1 loss hard a,c,d
			111 lost d stuck member
			113 closed 1 loss
			113 form 2 loss a,c
		`},
		{name: "slow but not stuck", cfg: elastic(), script: `
			1 join a b c d
			49 slow d 59
			50 gone b
		`, want: `
			1 form 1 start a,b,c,d
			50 lost b terminated member
			50 end 1 loss hard a,c,d
			109 closed 1 loss
			109 form 2 loss a,d,c
		`},
		{name: "lost ones stay lost", cfg: elastic(), script: `
			1 join a b c d
			50.5 mute c
			70 rejoin c:1
			71 notice c 72
			72 gone c
		`, want: `
			1 form 1 start a,b,c,d
			62 lost c silent member
			62 end 1 loss hard a,b,d
			62.5 closed 1 loss
			62.5 form 2 loss a,b,d
		`},
		{name: "agent killed the ranks for its lease", cfg: with(elastic(), func(c *Config) { c.MaxRestarts = 0 }), script: `
			1 join a b c d
			50 leased c:0
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 loss hard a,b,c,d
			50.5 closed 1 loss
			50.5 form 2 loss a,b,c,d
		`},
		{name: "all processes of a node vanish", cfg: with(elastic(), func(c *Config) { c.MaxRestarts = 0 }), script: `
			1 join a b c d
			50 ended c
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 loss hard a,b,d
			50.5 closed 1 loss
			50.5 form 2 loss a,b,c,d
		`},
		{name: "processes of a node vanish again and again", cfg: elastic(), script: `
			1 join a b c d
			2 ended c
			4 ended c
			6 ended c
		`, want: `
			1 form 1 start a,b,c,d
			2 end 1 loss hard a,b,d
			2.5 closed 1 loss
			2.5 form 2 loss a,b,c,d
			4 end 2 loss hard a,b,d
			4.5 closed 2 loss
			4.5 form 3 loss a,b,c,d
			6 lost c unfit member
			6 end 3 loss hard a,b,d
			6.5 closed 3 loss
			6.5 form 4 loss a,b,d
		`},
		{name: "processes of a node vanish now and then", cfg: elastic(), script: `
			1 join a b c d
			2 ended c
			4 ended c
			70 ended c
			72 ended c
		`, want: `
			1 form 1 start a,b,c,d
			2 end 1 loss hard a,b,d
			2.5 closed 1 loss
			2.5 form 2 loss a,b,c,d
			4 end 2 loss hard a,b,d
			4.5 closed 2 loss
			4.5 form 3 loss a,b,c,d
			70 end 3 loss hard a,b,d
			70.5 closed 3 loss
			70.5 form 4 loss a,b,c,d
			72 end 4 loss hard a,b,d
			72.5 closed 4 loss
			72.5 form 5 loss a,b,c,d
		`},
		{name: "no two generations within a second", cfg: with(elastic(), func(c *Config) { c.Min, c.Max = 1, 1 }), script: `
			1 join a
			1 ended a
			2 ended a
		`, want: `
			1 form 1 start a
			1 closed 1 loss
			2 form 2 loss a
		`},
		{name: "gone before it was ever heard of", cfg: elastic(), script: `
			1 gone d
			2 join a b c d
		`, want: `
			62 form 1 start a,b,c
		`},
	})
}
