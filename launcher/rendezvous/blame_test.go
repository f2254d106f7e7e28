package rendezvous

import (
	"testing"
	"time"
)

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
		{name: "a loss of somebody else before excuses nothing", cfg: strict, script: `
			1 join a b c d e
			40 gone e
			50 exit c:0 7
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
