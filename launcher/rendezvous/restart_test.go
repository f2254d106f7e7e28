package rendezvous

import (
	"testing"
	"time"
)

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
		{
			name: "restarts and the first charge are kept", cfg: with(elastic(), func(c *Config) { c.MaxRestarts = 1 }),
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
		`,
		},
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
		{name: "what this head process started is not forgotten", cfg: elastic(), past: Past{Generation: 7, Members: members}, script: `
			100 tick
			101 join a:7 b:7 c:7
			149 slow a 9
			150 gone c
			150.2 rejoin a:0
		`, want: `
			101 end 7 head_restarted gracefully a
			101 end 7 head_restarted gracefully b
			101 end 7 head_restarted gracefully c
			103 closed 7 head_restarted
			103 form 8 head_restarted a,b,c
			150 lost c terminated member
			150 end 8 loss hard a,b
			150.2 end 8 loss hard a
			159 closed 8 loss
			159 form 9 loss a,b
		`},
		{name: "who did not come back is replaced and that is no growth", cfg: elastic(), past: Past{Generation: 7, Members: members}, script: `
			100 tick
			101 join a:7 b:7
			102 gone c
			150 join c2
		`, want: `
			101 end 7 head_restarted gracefully a
			101 end 7 head_restarted gracefully b
			102 lost c terminated member
			103 closed 7 head_restarted
			103 form 8 head_restarted a,b
			150 end 8 replacement gracefully a,b
			152 closed 8 replacement
			152 form 9 replacement a,b,c2
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
		{name: "a straggler that turns out to have nothing", cfg: elastic(), script: `
			0.5 wedge d
			1 join a b c d:3
			5 rejoin d:0
		`, want: `
			1 end 3 head_restarted gracefully d
			5 form 1 start a,b,c,d
		`},
		{name: "a straggler is no replacement before it has ended", cfg: elastic(), script: `
			1 join a b c d
			50 gone d
			60 join d2:3
		`, want: `
			1 form 1 start a,b,c,d
			50 lost d terminated member
			50 end 1 loss hard a,b,c
			50.5 closed 1 loss
			50.5 form 2 loss a,b,c
			60 end 3 head_restarted gracefully d2
			62 end 2 replacement gracefully a,b,c
			64 closed 2 replacement
			64 form 3 replacement a,b,c,d2
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
