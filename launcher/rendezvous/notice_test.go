package rendezvous

import (
	"testing"
	"time"
)

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
			54 notice b 190
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
		{name: "a notice without deadline outlived", cfg: fixed(3), script: `
			1 join a b c
			150 notice b 0
		`, until: 280 * time.Second, want: `
			1 form 1 start a,b,c
			150 end 1 notice gracefully a,b,c
			152 closed 1 notice
			152 hold 2 of 3 since 152 until 1952
			270 form 2 notice a,b,c
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
