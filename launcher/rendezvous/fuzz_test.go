package rendezvous

import (
	"fmt"
	"reflect"
	"testing"
	"time"
)

// decode makes inputs of any bytes: three bytes for each, the verb with its time, the node and an argument. What
// agents would never send is as welcome as what they would.
func decode(data []byte) (cfg Config, past Past, steps []timed) {
	cfg = elastic()
	if len(data) < 2 {
		return cfg, past, nil
	}
	flags := data[0]
	cfg.Min = 1 + int(flags&1)
	cfg.Max = cfg.Min + int(flags>>1&3)
	if flags&8 != 0 {
		cfg.Fixed, cfg.Min = true, cfg.Max
	}
	cfg.OneExit = flags&16 != 0
	cfg.MaxRestarts = int(flags >> 5 & 3)
	if data[1]&1 != 0 {
		past = Past{Generation: 5, Closed: data[1]&8 != 0, Restarts: int(data[1] >> 7)}
		for i := range int(data[1] >> 1 & 3) {
			past.Members = append(past.Members, Member{Node: string(rune('a' + i)), Slot: i, GroupRank: i, Procs: 1})
		}
		if past.Restarts > 0 {
			past.FirstCharge = &Charged{Code: 3}
		}
	}
	now := time.Duration(0)
	for data = data[2:]; len(data) >= 3; data = data[3:] {
		verb, who, arg := data[0], data[1], int(data[2])
		now += []time.Duration{0, 100 * time.Millisecond, time.Second, 5 * time.Second, 11 * time.Second, time.Minute, 3 * time.Minute, 20 * time.Minute}[verb>>5]
		node := fmt.Sprintf("%c%d", 'a'+who&7, who>>3&3)
		if who>>3&3 == 0 {
			node = node[:1]
		}
		slot, attempt := place(node)
		generation := 1 + arg&7
		var in Input
		switch verb & 15 {
		case 0, 1:
			in = Joined{Node: node, Slot: slot, Attempt: attempt, Procs: arg & 3, Running: arg >> 6 * 3}
		case 2:
			in = Heard{Node: node}
		case 3:
			in = Gone{Node: node, Evidence: "terminated"}
		case 4:
			in = Notice{Node: node, Deadline: time.Duration(arg) * 20 * time.Second, Cancelled: who>>7 != 0}
		case 5, 6:
			in = Exited{Node: node, Generation: generation, LocalRank: arg >> 6, Code: arg >> 3 & 1 * 7, Phase: ExitPhase(who >> 6 & 3 % 3)}
		case 7, 8:
			in = Ended{Node: node, Generation: generation}
		case 9:
			in = Checkpoint{Step: int64(arg)}
		case 10:
			in = Scale{Workers: arg & 7}
		case 11:
			if arg < 8 {
				in = Stop{Reason: "down"}
			} else {
				in = Tick{}
			}
		case 12:
			in = Roster{Nodes: []Expected{{Node: node, Slot: slot, Attempt: attempt, Coming: arg&1 != 0, Leaving: arg&2 != 0}}}
		default:
			in = Tick{}
		}
		steps = append(steps, timed{now, in, who>>7 != 0})
	}
	return cfg, past, steps
}

type timed struct {
	at   time.Duration
	in   Input
	late bool // the shell missed the ticks before
}

// drive feeds the steps to a new Core with the ticks it asks for between them, and checks the promises.
func drive(t *testing.T, cfg Config, past Past, steps []timed) (outs []Output) {
	c := New(cfg, past)
	k := newChecker(cfg, c, past)
	feed := func(now time.Duration, in Input) {
		o := c.Step(now, in)
		outs = append(outs, o...)
		if err := k.see(now, in, o); err != nil {
			t.Fatalf("%v %#v: %v", now, in, err)
		}
	}
	for i, st := range steps {
		for ticks := 0; i > 0 && !st.late; ticks++ {
			next, ok := c.Next()
			if !ok || next >= st.at {
				break
			}
			if ticks > 1000 {
				t.Fatalf("%v: still ticking", next)
			}
			feed(next, Tick{})
		}
		feed(st.at, st.in)
	}
	return outs
}

func FuzzCore(f *testing.F) {
	f.Add([]byte{0x42, 0, 0, 0, 1, 0, 1, 1, 0, 2, 1, 0x43, 1, 0, 0x28, 0, 0, 0x28, 2, 0})
	f.Add([]byte{0x02, 0, 0, 0, 1, 0, 1, 1, 0, 2, 1, 0x45, 1, 8, 0xa0, 9, 1})
	f.Add([]byte{0x0a, 7, 0, 0, 0xc0, 0, 1, 0xc0, 0xad, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, past, steps := decode(data)
		first := drive(t, cfg, past, steps)
		if again := drive(t, cfg, past, steps); !reflect.DeepEqual(again, first) {
			t.Fatalf("not the same twice:\n%v\n%v", first, again)
		}
	})
}
