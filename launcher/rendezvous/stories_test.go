package rendezvous

import (
	"testing"
	"time"
)

func TestStart(t *testing.T) {
	tell(t, []story{
		{name: "all of max at once", cfg: elastic(), script: `
			1 join a b c
			3 join d
		`, want: `
			3 form 1 start a,b,c,d
		`},
		{name: "min after start_wait", cfg: elastic(), script: `
			0 roster a+ b+ c+ d+
			1 join a
			5 join c
			9 roster a b+ c d+
		`, want: `
			65 form 1 start a,c
		`},
		{name: "start_wait counts from when min was last reached", cfg: elastic(), script: `
			0 roster a+ b+ c+ d+
			1 join a b
			31 gone b
			41 join c
		`, want: `
			101 form 1 start a,c
		`},
		{name: "start_wait without any roster", cfg: elastic(), script: `
			1 join a b
		`, want: `
			61 form 1 start a,b
		`},
		{name: "capacity partly there and nobody else coming", cfg: elastic(), script: `
			0 roster a+ b+ c+
			1 join a
			5 join c
			9 join b
		`, want: `
			10 form 1 start a,b,c
		`},
		{name: "nobody else coming but below min", cfg: elastic(), script: `
			0 roster a+
			1 join a
		`, want: ``},
		{name: "fixed world waits for all", cfg: fixed(3), script: `
			0 roster a+ b+
			1 join a b
			400 join c
		`, want: `
			400 form 1 start a,b,c
		`},
		{name: "one boot fails and is ordered again", cfg: elastic(), script: `
			0 roster a+ b+ c+ d+
			1 join a b c
			2 gone d
			5 roster a b c
			5.5 roster a b c d2+
			20 join d2
		`, want: `
			20 form 1 start a,b,c,d2
		`},
		{name: "one boot fails and is given up", cfg: elastic(), script: `
			0 roster a+ b+ c+ d+
			1 join a b c
			2 gone d
			9 roster a b c
		`, want: `
			10 form 1 start a,b,c
		`},
		{name: "noticed before it joined", cfg: elastic(), script: `
			0 roster a+ b+ c+
			1 notice c 121
			2 join a b
			3 join c
			4 roster a b c d+
			9 join d
			9 roster a b c d c2+
			20 join c2
		`, want: `
			20 form 1 start a,b,c2,d
		`},
		{name: "noticed before anybody spoke of it", cfg: elastic(), script: `
			1 notice c 121
			2 join a b c
		`, want: `
			62 form 1 start a,b
		`},
		{name: "processes differ by node", cfg: elastic(), script: `
			1 join a*4 b*8 c d*4
		`, want: `
			1 form 1 start a[0-3],b[4-11],c,d[13-16]
		`},
		{name: "a member joins twice", cfg: elastic(), script: `
			1 join a b c d
			5 rejoin b:1
		`, want: `
			1 form 1 start a,b,c,d
		`},
	})
}

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
		`},
		{name: "processes of a node vanish now and then", cfg: elastic(), script: `
			1 join a b c d
			2 ended c
			4 ended c
			70 ended c
			72 ended c
		`, want: `
		`},
		{name: "no two generations within a second", cfg: with(elastic(), func(c *Config) { c.Min, c.Max = 1, 1 }), script: `
			1 join a
			1 ended a
			2 ended a
		`, want: `
		`},
		{name: "gone before it was ever heard of", cfg: elastic(), script: `
			1 gone d
			2 join a b c d
		`, want: `
			62 form 1 start a,b,c
		`},
	})
}

func TestNotice(t *testing.T) {
	tell(t, []story{
		{name: "replacement ordered at once and one re-forming", cfg: elastic(), script: `
			1 join a b c d
			50 notice b 170
			50 roster a b c d b2+
			110 join b2
			170 gone b
		`, want: `
			1 form 1 start a,b,c,d
			110 end 1 swap gracefully a,b,c,d
			112 closed 1 swap
			112 form 2 swap a,b2,c,d
		`},
		{name: "deadline comes first then shrink and replacement", cfg: elastic(), script: `
			1 join a b c d
			50 notice b 170
			170 gone b
			190 join b2
		`, want: `
			1 form 1 start a,b,c,d
			148 end 1 notice gracefully a,b,c,d
			150 closed 1 notice
			150 form 2 notice a,d,c
			190 end 2 replacement gracefully a,d,c
			192 closed 2 replacement
			192 form 3 replacement a,d,c,b2
		`},
		{name: "deadline comes first then hold", cfg: fixed(3), script: `
			1 join a b c
			50 notice b 170
			170 gone b
			190 join b2
		`, want: `
			1 form 1 start a,b,c
			148 end 1 notice gracefully a,b,c
			150 closed 1 notice
			150 hold 2 of 3 since 150 until 1950
			190 form 2 notice a,b2,c
		`},
		{name: "no lead time", cfg: elastic(), script: `
			1 join a b c d
			50 notice b 60
			60 gone b
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 notice gracefully a,b,c,d
			52 closed 1 notice
			52 form 2 notice a,d,c
		`},
		{name: "no deadline", cfg: elastic(), script: `
			1 join a b c d
			50 notice b 0
		`, until: 60 * time.Second, want: `
			1 form 1 start a,b,c,d
			50 end 1 notice gracefully a,b,c,d
			52 closed 1 notice
			52 form 2 notice a,d,c
		`},
		{name: "two without lead time in one re-forming", cfg: elastic(), script: `
			1 join a b c d
			50 notice b 0
			50.1 notice c 0
		`, until: 60 * time.Second, want: `
			1 form 1 start a,b,c,d
			50 end 1 notice gracefully a,b,c,d
			52 closed 1 notice
			52 form 2 notice a,d
		`},
		{name: "two with time and both replaced in one re-forming", cfg: elastic(), script: `
			1 join a b c d
			50 notice b 170
			51 notice c 171
			110 join b2
			120 join c2
		`, until: 130 * time.Second, want: `
			1 form 1 start a,b,c,d
			120 end 1 swap gracefully a,b,c,d
			122 closed 1 swap
			122 form 2 swap a,b2,c2,d
		`},
		{name: "two with time and one replaced", cfg: elastic(), script: `
			1 join a b c d
			50 notice b 170
			51 notice c 171
			110 join b2
			170 gone b c
			190 join c2
		`, want: `
			1 form 1 start a,b,c,d
			148 end 1 notice gracefully a,b,c,d
			150 closed 1 notice
			150 form 2 notice a,b2,d
			190 end 2 replacement gracefully a,b2,d
			192 closed 2 replacement
			192 form 3 replacement a,b2,d,c2
		`},
		{name: "a spare swaps in at once", cfg: elastic(), script: `
			1 join a b c d
			2 join e
			50 notice b 170
		`, until: 100 * time.Second, want: `
			1 form 1 start a,b,c,d
			50 end 1 swap gracefully a,b,c,d
			52 closed 1 swap
			52 form 2 swap a,e,c,d
		`},
		{name: "cancelled", cfg: elastic(), script: `
			1 join a b c d
			50 notice b 170
			60 cancel b
			110 join b2
		`, until: 300 * time.Second, want: `
			1 form 1 start a,b,c,d
		`},
		{name: "duplicate", cfg: elastic(), script: `
			1 join a b c d
			50 notice b 170
			51 notice b 170
			52 notice b 190
			53 notice b 160
		`, until: 145 * time.Second, want: `
			1 form 1 start a,b,c,d
			138 end 1 notice gracefully a,b,c,d
			140 closed 1 notice
			140 form 2 notice a,d,c
		`},
		{name: "replacement dies while booting", cfg: elastic(), script: `
			1 join a b c d
			50 notice b 170
			50 roster a b c d b2+
			80 gone b2
			81 roster a b c d b3+
			120 join b3
		`, want: `
			1 form 1 start a,b,c,d
			120 end 1 swap gracefully a,b,c,d
			122 closed 1 swap
			122 form 2 swap a,b3,c,d
		`},
		{name: "victim dies before its deadline", cfg: elastic(), script: `
			1 join a b c d
			50 notice b 170
			60 gone b
			110 join b2
		`, want: `
			1 form 1 start a,b,c,d
			60 lost b terminated member
			60 end 1 loss hard a,c,d
			60.5 closed 1 loss
			60.5 form 2 loss a,d,c
			110 end 2 replacement gracefully a,d,c
			112 closed 2 replacement
			112 form 3 replacement a,d,c,b2
		`},
		{name: "victim dies while ending", cfg: elastic(), script: `
			1 join a b c d
			50 notice b 170
			110 join b2
			111 gone b
		`, want: `
			1 form 1 start a,b,c,d
			110 end 1 swap gracefully a,b,c,d
			111 lost b terminated member
			112 closed 1 swap
			112 form 2 swap a,b2,c,d
		`},
		{name: "noticed node outlives its deadline", cfg: fixed(3), script: `
			1 join a b c
			50 notice b 80
			195 notice b 80
			205 notice b 80
		`, until: 320 * time.Second, want: `
			1 form 1 start a,b,c
			58 end 1 notice gracefully a,b,c
			60 closed 1 notice
			60 hold 2 of 3 since 60 until 1860
			200 form 2 notice a,b,c
		`},
		{name: "noticed again after it outlived a deadline", cfg: fixed(3), script: `
			1 join a b c
			50 notice b 80
			300 notice b 400
		`, until: 390 * time.Second, want: `
			1 form 1 start a,b,c
			58 end 1 notice gracefully a,b,c
			60 closed 1 notice
			60 hold 2 of 3 since 60 until 1860
			200 form 2 notice a,b,c
			378 end 2 notice gracefully a,b,c
			380 closed 2 notice
			380 hold 2 of 3 since 380 until 2180
		`},
		{name: "outlived though its replacement has its slot", cfg: elastic(), script: `
			1 join a b c d
			50 notice b 80
			100 join b2
		`, until: 320 * time.Second, want: `
			1 form 1 start a,b,c,d
			58 end 1 notice gracefully a,b,c,d
			60 closed 1 notice
			60 form 2 notice a,d,c
			100 end 2 replacement gracefully a,d,c
			102 closed 2 replacement
			102 form 3 replacement a,d,c,b2
		`},
		{name: "notice for a member while ending", cfg: elastic(), script: `
			1 join a b c d
			50 gone b
			50.3 notice c 170
		`, until: 150 * time.Second, want: `
			1 form 1 start a,b,c,d
			50 lost b terminated member
			50 end 1 loss hard a,c,d
			50.5 closed 1 loss
			50.5 form 2 loss a,d
		`},
		{name: "notice for who is not in", cfg: elastic(), script: `
			1 join a b c d e
			50 notice e 60
		`, want: `
			1 form 1 start a,b,c,d
		`},
		{name: "no growth by who is noticed", cfg: with(elastic(), func(c *Config) { c.GrowEvery = 0 }), script: `
			1 roster a+ b+ c+
			1 join a b
			10 notice c 500
			11 join c
		`, until: 200 * time.Second, want: `
			61 form 1 start a,b
		`},
		{name: "earlier of two deadlines when the first is later", cfg: elastic(), script: `
			1 join a b c d
			50 notice b 170
			51 notice b 80
		`, until: 70 * time.Second, want: `
			1 form 1 start a,b,c,d
			58 end 1 notice gracefully a,b,c,d
			60 closed 1 notice
			60 form 2 notice a,d,c
		`},
		{name: "a lost one needs no signal", cfg: elastic(), script: `
			1 join a b c d
			40 exit a:0 0
			41 gone a
			42 notice a 45
		`, want: `
			1 form 1 start a,b,c,d
			41 lost a terminated member
		`},
		{name: "no signal skips grace in the sequence", cfg: with(elastic(), func(c *Config) { c.Signal = "" }), script: `
			1 join a b c d
			2 wedge c
			50 notice b 60
		`, until: 140 * time.Second, want: `
			1 form 1 start a,b,c,d
			50 end 1 notice gracefully a,b,c,d
			120 lost c stuck member
			131 closed 1 notice
			131 form 2 notice a,d
		`},
	})
}

func TestGrowthAndScale(t *testing.T) {
	quick := with(elastic(), func(c *Config) { c.StartWait = 0 })
	tell(t, []story{
		{name: "growth without checkpoints", cfg: quick, script: `
			1 join a b
			50 join c
		`, until: 900 * time.Second, want: `
			1 form 1 start a,b
			601 end 1 growth gracefully a,b
			603 closed 1 growth
			603 form 2 growth a,b,c
		`},
		{name: "growth waits for the next checkpoint", cfg: quick, script: `
			1 join a b
			50 join c
			599 checkpoint
			700 checkpoint
		`, until: 900 * time.Second, want: `
			1 form 1 start a,b
			700 end 1 growth gracefully a,b
			702 closed 1 growth
			702 form 2 growth a,b,c
		`},
		{name: "growth with a checkpoint block and no checkpoint", cfg: with(quick, func(c *Config) { c.Checkpoints = true }), script: `
			1 join a b
			50 join c
		`, until: 2000 * time.Second, want: `
			1 form 1 start a,b
		`},
		{name: "growth at most every grow_every", cfg: quick, script: `
			1 join a b
			50 join c
			700 join d
		`, until: 1500 * time.Second, want: `
			1 form 1 start a,b
			601 end 1 growth gracefully a,b
			603 closed 1 growth
			603 form 2 growth a,b,c
			1203 end 2 growth gracefully a,b,c
			1205 closed 2 growth
			1205 form 3 growth a,b,c,d
		`},
		{name: "who waits for growth fills in at a loss", cfg: quick, script: `
			1 join a b
			50 join c
			60 gone b
		`, want: `
			1 form 1 start a,b
			60 lost b terminated member
			60 end 1 loss hard a
			60.5 closed 1 loss
			60.5 form 2 loss a,c
		`},
		{name: "scale down", cfg: elastic(), script: `
			1 join a b c d
			50 scale 2
			51 roster a b c! d!
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 scale gracefully a,b,c,d
			52 closed 1 scale
			52 form 2 scale a,b
		`},
		{name: "scale down without those that leave", cfg: elastic(), script: `
			1 join a b c d
			50 roster a! b c! d
			51 scale 2
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 leaving gracefully a,b,c,d
			52 closed 1 leaving
			52 form 2 leaving d,b
		`},
		{name: "scale below min", cfg: elastic(), script: `
			1 join a b c d
			50 scale 1
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 scale gracefully a,b,c,d
			52 closed 1 scale
			52 form 2 scale a,b
		`},
		{name: "scale up is growth", cfg: elastic(), script: `
			0 scale 2
			1 join a b
			50 scale 9
			60 join c d e
		`, until: 900 * time.Second, want: `
			1 form 1 start a,b
			601 end 1 growth gracefully a,b
			603 closed 1 growth
			603 form 2 growth a,b,c,d
		`},
		{name: "an empty slot is given up by scaling", cfg: elastic(), script: `
			1 join a b c d
			50 gone b
			60 scale 3
			70 join b2
			80 scale 4
		`, until: 800 * time.Second, want: `
			1 form 1 start a,b,c,d
			50 lost b terminated member
			50 end 1 loss hard a,c,d
			50.5 closed 1 loss
			50.5 form 2 loss a,d,c
			650.5 end 2 growth gracefully a,d,c
			652.5 closed 2 growth
			652.5 form 3 growth a,d,c,b2
		`},
		{name: "fixed world grows only to the full count", cfg: fixed(2), script: `
			1 join a b
			50 scale 4
			60 join c
			700 join d
		`, until: 900 * time.Second, want: `
			1 form 1 start a,b
			700 end 1 growth gracefully a,b
			702 closed 1 growth
			702 form 2 growth a,b,c,d
		`},
		{name: "fixed world shrinks by order", cfg: fixed(4), script: `
			1 join a b c d
			50 scale 3
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 scale gracefully a,b,c,d
			52 closed 1 scale
			52 form 2 scale a,b,c
		`},
		{name: "leaving and replaced", cfg: elastic(), script: `
			1 join a b c d
			50 roster a b! c d b2+
			90 join b2
		`, want: `
			1 form 1 start a,b,c,d
			90 end 1 swap gracefully a,b,c,d
			92 closed 1 swap
			92 form 2 swap a,b2,c,d
		`},
		{name: "leaving below min waits", cfg: fixed(2), script: `
			1 join a b
			50 roster a b!
			70 roster a b! b2+
			90 join b2
		`, want: `
			1 form 1 start a,b
			90 end 1 swap gracefully a,b
			92 closed 1 swap
			92 form 2 swap a,b2
		`},
		{name: "leaving and then noticed keeps training", cfg: elastic(), script: `
			1 join a b c d
			50 notice b 170
			50 roster a b! c d b2+
			90 join b2
		`, want: `
			1 form 1 start a,b,c,d
			90 end 1 swap gracefully a,b,c,d
			92 closed 1 swap
			92 form 2 swap a,b2,c,d
		`},
	})
}

func TestFinishAndBlame(t *testing.T) {
	strict := with(elastic(), func(c *Config) { c.MaxRestarts = 0 })
	one := with(elastic(), func(c *Config) { c.MaxRestarts = 1 })
	tell(t, []story{
		{name: "success", cfg: elastic(), script: `
			1 join a b*2 c d
			50 exit a:0 0
			50 exit b:0 0
			51 exit c:0 0
			51 exit d:0 0
			52 exit b:1 0
			53 tick
		`, want: `
			1 form 1 start a,b[1-2],c,d
			52 closed 1 success
			52 finish success
		`},
		{name: "one exit stands for all ranks", cfg: with(elastic(), func(c *Config) { c.OneExit = true }), script: `
			1 join a*4 b*2 c d
			50 exit a:0 0
			50 exit b:0 0
			51 exit c:0 0
			51 exit d:0 0
		`, want: `
			1 form 1 start a[0-3],b[4-5],c,d
			51 closed 1 success
			51 finish success
		`},
		{name: "losing who is done changes nothing", cfg: elastic(), script: `
			1 join a b c d
			50 exit a:0 0
			50 ended a
			51 gone a
			60 join a2
			61 notice b 200
			62 join b2
			63 scale 2
			90 exit b:0 0
			90 exit c:0 0
			90 exit d:0 0
		`, want: `
			1 form 1 start a,b,c,d
			51 lost a terminated member
			90 closed 1 success
			90 finish success
		`},
		{name: "losing who is not done with others done", cfg: elastic(), script: `
			1 join a b c d
			50 exit a:0 0
			51 gone b
		`, want: `
			1 form 1 start a,b,c,d
			51 lost b terminated member
			51 end 1 loss hard a,c,d
			51.5 closed 1 loss
			51.5 form 2 loss a,d,c
		`},
		{name: "a deadline counts though others are done", cfg: elastic(), script: `
			1 join a b c d
			50 exit a:0 0
			51 notice b 100
			52 notice a 60
		`, until: 90 * time.Second, want: `
			1 form 1 start a,b,c,d
			78 end 1 notice gracefully a,b,c,d
			80 closed 1 notice
			80 form 2 notice c,d
		`},
		{name: "max_restarts 0 waits for the verdict", cfg: strict, script: `
			1 join a b c d
			50 exit c:0 7
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 failure hard a,b,c,d
			50.5 closed 1 failure
			62 charged 1 c rank 2 code 7, 1 of 0
			62 finish job_failed c rank 2 code 7
		`},
		{name: "max_restarts 0 and a loss excuses", cfg: strict, script: `
			1 join a b c d
			50 exit c:0 7
			55 gone b
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 failure hard a,b,c,d
			50.5 closed 1 failure
			55 form 2 failure a,d,c
		`},
		{name: "max_restarts 0 and a notice excuses", cfg: strict, script: `
			1 join a b c d
			50 exit c:0 7
			55 notice b 170
		`, until: 160 * time.Second, want: `
			1 form 1 start a,b,c,d
			50 end 1 failure hard a,b,c,d
			50.5 closed 1 failure
			55 form 2 failure a,d,c
		`},
		{name: "a notice seen before excuses", cfg: strict, script: `
			1 join a b c d
			40 notice b 170
			50 exit c:0 7
		`, until: 160 * time.Second, want: `
			1 form 1 start a,b,c,d
			50 end 1 failure hard a,b,c,d
			50.5 closed 1 failure
			50.5 form 2 failure a,d,c
		`},
		{name: "a loss of somebody else excuses nothing", cfg: strict, script: `
			1 join a b c d e
			50 exit c:0 7
			55 gone e
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 failure hard a,b,c,d
			50.5 closed 1 failure
			62 charged 1 c rank 2 code 7, 1 of 0
			62 finish job_failed c rank 2 code 7
		`},
		{name: "a loss of the generation before excuses nothing", cfg: strict, script: `
			1 join a b c d
			50 gone b
			60 exit c:0 7
		`, want: `
			1 form 1 start a,b,c,d
			50 lost b terminated member
			50 end 1 loss hard a,c,d
			50.5 closed 1 loss
			50.5 form 2 loss a,d,c
			60 end 2 failure hard a,d,c
			60.5 closed 2 failure
			72 charged 2 c rank 2 code 7, 1 of 0
			72 finish job_failed c rank 2 code 7
		`},
		{name: "survivors restart while the verdict is open", cfg: one, script: `
			1 join a b c d
			50 exit c:0 7
			52 exit b:0 9
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 failure hard a,b,c,d
			50.5 closed 1 failure
			50.5 form 2 failure a,b,c,d
			52 end 2 failure hard a,b,c,d
			52.5 closed 2 failure
			62 charged 1 c rank 2 code 7, 1 of 1
			64 charged 2 b rank 1 code 9, 2 of 1
			64 finish job_failed c rank 2 code 7
		`},
		{name: "first charged rank gives the code", cfg: one, script: `
			1 join a b c d
			50 exit c:0 7
			50.1 exit b:0 8
			100 exit b:0 9
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 failure hard a,b,c,d
			50.5 closed 1 failure
			50.5 form 2 failure a,b,c,d
			62 charged 1 c rank 2 code 7, 1 of 1
			100 end 2 failure hard a,b,c,d
			100.5 closed 2 failure
			112 charged 2 b rank 1 code 9, 2 of 1
			112 finish job_failed c rank 2 code 7
		`},
		{name: "died by a signal", cfg: strict, script: `
			1 join a b c d*2
			50 exit d:1 SEGV
		`, want: `
			1 form 1 start a,b,c,d[3-4]
			50 end 1 failure hard a,b,c,d
			50.5 closed 1 failure
			62 charged 1 d rank 4 code 0SIGSEGV, 1 of 0
			62 finish job_failed d rank 4 code 0SIGSEGV
		`},
		{name: "success before the verdict", cfg: one, script: `
			1 join a b c d
			50 exit c:0 7
			52 exit a:0 0
			52 exit b:0 0
			52 exit c:0 0
			52 exit d:0 0
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 failure hard a,b,c,d
			50.5 closed 1 failure
			50.5 form 2 failure a,b,c,d
			52 closed 2 success
			52 finish success
		`},
		{name: "failing while ending is left", cfg: strict, script: `
			1 join a b c d
			50 scale 3
			51 exit c:0 7
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 scale gracefully a,b,c,d
			52 closed 1 scale
			52 form 2 scale a,b,c
		`},
		{name: "all done while ending on purpose", cfg: elastic(), script: `
			1 join a b c d
			50 scale 3
			51 exit a:0 0
			51 exit b:0 0
			51 exit c:0 0
			51 exit d:0 0
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 scale gracefully a,b,c,d
			51 closed 1 success
			51 finish success
		`},
		{name: "some done while ending on purpose", cfg: elastic(), script: `
			1 join a b c d
			50 scale 3
			51 exit a:0 0
			51 exit b:0 0
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 scale gracefully a,b,c,d
			52 closed 1 scale
			52 form 2 scale a,b,c
		`},
		{name: "stop", cfg: elastic(), script: `
			1 join a b c d
			50 stop budget
			51 stop again
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 stop gracefully a,b,c,d
			52 closed 1 stop
			52 finish stopped budget
		`},
		{name: "stop before any generation", cfg: elastic(), script: `
			1 join a
			50 stop down
		`, want: `
			50 finish stopped down
		`},
		{name: "stop while ending", cfg: elastic(), script: `
			1 join a b c d
			50 gone b
			50.1 stop down
		`, want: `
			1 form 1 start a,b,c,d
			50 lost b terminated member
			50 end 1 loss hard a,c,d
			50.5 closed 1 loss
			50.5 finish stopped down
		`},
		{name: "stop while held", cfg: fixed(2), script: `
			1 join a b
			50 gone b
			60 stop down
		`, want: `
			1 form 1 start a,b
			50 lost b terminated member
			50 end 1 loss hard a
			50.5 closed 1 loss
			50.5 hold 1 of 2 since 50.5 until 1850.5
			60 finish stopped down
		`},
		{name: "stop while the verdict is open", cfg: strict, script: `
			1 join a b c d
			50 exit b:0 7
			55 stop down
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 failure hard a,b,c,d
			50.5 closed 1 failure
			55 finish stopped down
		`},
		{name: "stop and all done before SIGTERM", cfg: elastic(), script: `
			1 join a b
			61 tick
			70 stop max_duration
			71 exit a:0 0
			71 exit b:0 0
		`, want: `
			61 form 1 start a,b
			70 end 1 stop gracefully a,b
			71 closed 1 success
			71 finish success
		`},
		{name: "exits count once", cfg: one, script: `
			1 join a b c d
			40 exit a:0 0
			41 exit a:0 0
			42 exit a:0 5
			43 exit b:0 0
			44 exit c:0 0
			50 exit d:0 7
			50 exit d:0 7
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 failure hard a,b,c,d
			50.5 closed 1 failure
			50.5 form 2 failure a,b,c,d
			62 charged 1 d rank 3 code 7, 1 of 1
		`},
		{name: "exits of a rank that is not there", cfg: strict, script: `
			1 join a b c d
			40 exit a:1 7
			41 exit a:-1 7
			42 exit z:0 7
		`, want: `
			1 form 1 start a,b,c,d
		`},
		{name: "exits of who is not in", cfg: strict, script: `
			1 join a b c d e
			40 exit e:0 7
		`, want: `
			1 form 1 start a,b,c,d
		`},
		{name: "exits of a lost one", cfg: elastic(), script: `
			1 join a b c d
			49 slow d 9
			50 exit a:0 0
			50 exit b:0 0
			50 exit d:0 0
			51 gone c
			51.1 exit c:0 0
		`, want: `
			1 form 1 start a,b,c,d
			51 lost c terminated member
			51 end 1 loss hard a,b,d
			60 closed 1 loss
			60 form 2 loss a,b,d
		`},
		{name: "one failure is one charge", cfg: one, script: `
			1 join a b c d
			50 exit c:0 7
			50.1 exit b:0 7
			50.2 exit a:0 7
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 failure hard a,b,c,d
			50.5 closed 1 failure
			50.5 form 2 failure a,b,c,d
			62 charged 1 c rank 2 code 7, 1 of 1
		`},
		{name: "an open verdict does not outlast max_restarts", cfg: with(elastic(), func(c *Config) { c.MaxRestarts = 2 }), script: `
			1 join a b c d
			50 exit c:0 7
			51 exit c:0 8
			52 exit c:0 9
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 failure hard a,b,c,d
			50.5 closed 1 failure
			50.5 form 2 failure a,b,c,d
			51 end 2 failure hard a,b,c,d
			51.5 closed 2 failure
			51.5 form 3 failure a,b,c,d
			52 end 3 failure hard a,b,c,d
			52.5 closed 3 failure
			62 charged 1 c rank 2 code 7, 1 of 2
			63 charged 2 c rank 2 code 8, 2 of 2
			64 charged 3 c rank 2 code 9, 3 of 2
			64 finish job_failed c rank 2 code 7
		`},
		{name: "a loss excuses two generations", cfg: one, script: `
			1 join a b c d
			50 exit c:0 7
			52 exit b:0 9
			54 gone d
		`, want: `
			1 form 1 start a,b,c,d
			50 end 1 failure hard a,b,c,d
			50.5 closed 1 failure
			50.5 form 2 failure a,b,c,d
			52 end 2 failure hard a,b,c,d
			52.5 closed 2 failure
			54 form 3 failure a,b,c
		`},
		{name: "an exit of another generation", cfg: strict, script: `
			1 join a b c d
			50 rejoin a:9
			51 exit a:0 7
		`, want: `
			1 form 1 start a,b,c,d
		`},
	})
}

func TestHeadRestart(t *testing.T) {
	members := []Member{{Node: "a", Slot: 0, GroupRank: 0, Procs: 1}, {Node: "b", Slot: 1, GroupRank: 1, Procs: 1}, {Node: "c", Slot: 2, GroupRank: 2, Procs: 1}}
	tell(t, []story{
		{name: "members re-join with their generation", cfg: elastic(), past: Past{Generation: 7, Members: members}, script: `
			100 tick
			101 rejoin a:7 b:7
			102 rejoin c:7
		`, until: 108 * time.Second, want: `
			101 end 7 head_restarted gracefully a
			101 end 7 head_restarted gracefully b
			102 end 7 head_restarted gracefully c
			104 closed 7 head_restarted
			104 form 8 head_restarted a,b,c
		`},
		{name: "one does not come back", cfg: elastic(), past: Past{Generation: 7, Members: members}, script: `
			100 tick
			101 join a:7 b:7
		`, want: `
			101 end 7 head_restarted gracefully a
			101 end 7 head_restarted gracefully b
			112 lost c silent member
			112 closed 7 head_restarted
			112 form 8 head_restarted a,b
		`},
		{name: "one has killed its ranks", cfg: elastic(), past: Past{Generation: 7, Members: members}, script: `
			100 tick
			101 join a:7 b:7 c:0
		`, want: `
			101 end 7 head_restarted gracefully a
			101 end 7 head_restarted gracefully b
			103 closed 7 head_restarted
			103 form 8 head_restarted a,b,c
		`},
		{name: "one is gone", cfg: elastic(), past: Past{Generation: 7, Members: members}, script: `
			100 tick
			101 join a:7 b:7
			102 gone c
		`, want: `
			101 end 7 head_restarted gracefully a
			101 end 7 head_restarted gracefully b
			102 lost c terminated member
			103 closed 7 head_restarted
			103 form 8 head_restarted a,b
		`},
		{name: "unknown members are waited out", cfg: elastic(), past: Past{Generation: 7}, script: `
			100 tick
			101 join a:7 b:7
			102 join c:0
		`, want: `
			101 end 7 head_restarted gracefully a
			101 end 7 head_restarted gracefully b
			112 form 8 head_restarted a,b,c
		`},
		{name: "all had exited 0", cfg: elastic(), past: Past{Generation: 7, Members: members}, script: `
			100 tick
			101 join a:7 b:7 c:7
			101 exit a:0 0
			101 exit b:0 0
			101 exit c:0 0
		`, want: `
			101 end 7 head_restarted gracefully a
			101 end 7 head_restarted gracefully b
			101 end 7 head_restarted gracefully c
			101 closed 7 success
			101 finish success
		`},
		{name: "restarts and the first charge are kept", cfg: with(elastic(), func(c *Config) { c.MaxRestarts = 1 }),
			past: Past{Generation: 7, Members: members, Restarts: 1, FirstCharge: &Charged{Node: "c", Rank: 2, Code: 7}}, script: `
			100 tick
			101 join a:7 b:7 c:7
			150 exit b:0 9
		`, want: `
			101 end 7 head_restarted gracefully a
			101 end 7 head_restarted gracefully b
			101 end 7 head_restarted gracefully c
			103 closed 7 head_restarted
			103 form 8 head_restarted a,b,c restarts 1
			150 end 8 failure hard a,b,c
			150.5 closed 8 failure
			162 charged 8 b rank 1 code 9, 2 of 1
			162 finish job_failed c rank 2 code 7
		`},
		{name: "an empty slot is still no growth", cfg: elastic(), past: Past{Generation: 7, Members: members, Slots: []int{3}}, script: `
			100 tick
			101 join a:7 b:7 c:7
			150 join d2
		`, want: `
			101 end 7 head_restarted gracefully a
			101 end 7 head_restarted gracefully b
			101 end 7 head_restarted gracefully c
			103 closed 7 head_restarted
			103 form 8 head_restarted a,b,c
			150 end 8 replacement gracefully a,b,c
			152 closed 8 replacement
			152 form 9 replacement a,b,c,d2
		`},
		{name: "the last generation was closed", cfg: elastic(), past: Past{Generation: 7, Members: members, Closed: true}, script: `
			100 tick
			101 join c d
			102 join b
		`, want: `
			112 lost a silent
			112 form 8 head_restarted d,b,c
		`},
		{name: "scaled before", cfg: elastic(), past: Past{Generation: 7, Members: members, Workers: 2}, script: `
			100 tick
			101 join a:7 b:7 c:7
		`, want: `
			101 end 7 head_restarted gracefully a
			101 end 7 head_restarted gracefully b
			101 end 7 head_restarted gracefully c
			103 closed 7 head_restarted
			103 form 8 head_restarted a,b
		`},
		{name: "below_min counts from the restart", cfg: elastic(), past: Past{Generation: 7}, script: `
			100 tick
		`, until: 3000 * time.Second, want: `
			112 hold 0 of 2 since 112 until 1912
			1912 finish too_few
		`},
		{name: "a straggler with an old generation", cfg: elastic(), script: `
			1 join a b c d:3
			2 wedge d
		`, want: `
			1 end 3 head_restarted gracefully d
			91 lost d stuck
			102 form 1 start a,b,c
		`},
		{name: "a straggler that ends", cfg: elastic(), script: `
			1 join a b c d:3
		`, want: `
			1 end 3 head_restarted gracefully d
			3 form 1 start a,b,c,d
		`},
		{name: "re-joined while ending", cfg: elastic(), script: `
			1 join a b c d
			49 slow c 9
			50 gone b
			51 rejoin c:1
		`, want: `
			1 form 1 start a,b,c,d
			50 lost b terminated member
			50 end 1 loss hard a,c,d
			51 end 1 loss hard c
			59 closed 1 loss
			59 form 2 loss a,d,c
		`},
	})
}
