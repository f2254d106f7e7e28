package rendezvous

import (
	"testing"
	"time"
)

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
