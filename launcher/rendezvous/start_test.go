package rendezvous

import "testing"

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
		{name: "given up, ordered again, given up again", cfg: elastic(), script: `
			0 roster a+ b+ c+ d+
			1 join a b c
			2 gone d
			5 roster a b c
			5.5 roster a b c d2+
			20 gone d2
			21 roster a b c
		`, want: `
			22 form 1 start a,b,c
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
		{name: "a lost one is not waited for when its notice comes", cfg: elastic(), script: `
			0 roster a+ b+ c+ d+
			1 join a b c
			2 gone c
			3 roster a b
			3.5 notice c 9
		`, want: `
			4 form 1 start a,b
		`},
		{name: "noticed before anybody spoke of it", cfg: elastic(), script: `
			1 notice c 121
			2 join a b c
		`, want: `
			62 form 1 start a,b
		`},
		{name: "noticed before anybody spoke of it and cancelled", cfg: elastic(), script: `
			1 notice c 121
			2 join a b c d
			3 cancel c
		`, want: `
			3 form 1 start a,b,c,d
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
