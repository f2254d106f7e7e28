package tcpstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// call is one request of the linearizability test, on one key.
type call struct {
	kind              op
	key               string
	expected, desired string
	n                 int64
}

// keyModel is what a single key does: the state is its value, absent if nil.
func keyModel() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byKey := make(map[string][]porcupine.Operation)
			for _, o := range history {
				byKey[o.Input.(call).key] = append(byKey[o.Input.(call).key], o)
			}
			var parts [][]porcupine.Operation
			for _, part := range byKey {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() any { return state{} },
		Step: func(before, input, output any) (bool, any) {
			after, reply := before.(state).step(input.(call))
			return reply == output, after
		},
	}
}

type state struct {
	present bool
	value   string
}

func (s state) step(c call) (state, string) {
	switch c.kind {
	case opSet:
		return state{true, c.desired}, ""
	case opGet:
		return s, s.value
	case opAdd:
		n, _ := strconv.ParseInt("0"+s.value, 10, 64)
		sum := strconv.FormatInt(n+c.n, 10)
		return state{true, sum}, sum
	case opAppend:
		return state{true, s.value + c.desired}, ""
	case opDelete:
		return state{}, strconv.FormatBool(s.present)
	case opCheck:
		return s, strconv.FormatBool(s.present)
	case opCompareSet:
		switch {
		case !s.present && c.expected != "":
			return s, c.expected
		case s.value == c.expected:
			return state{true, c.desired}, c.desired
		}
		return s, s.value
	}
	panic("unknown call")
}

// TestLinearizable has clients race on a few keys and looks for an order of their requests that explains all replies.
func TestLinearizable(t *testing.T) {
	s := New(Options{})
	address := serveTCP(t, s)
	var mu sync.Mutex
	var history []porcupine.Operation
	start := time.Now()
	seed := uint64(start.UnixNano())
	t.Logf("seed %d", seed)
	var work sync.WaitGroup
	for id, client := range dialAll(t, address, 6) {
		random := rand.New(rand.NewPCG(seed, uint64(id)))
		work.Go(func() {
			for range 150 {
				c := randomCall(random)
				began := time.Since(start)
				reply, err := perform(client, c)
				if err != nil {
					t.Errorf("%+v: %v", c, err)
					return
				}
				o := porcupine.Operation{ClientId: id, Input: c, Call: int64(began), Output: reply, Return: int64(time.Since(start))}
				mu.Lock()
				history = append(history, o)
				mu.Unlock()
			}
		})
	}
	work.Wait()
	// A model that accepts anything would prove nothing.
	if result := porcupine.CheckOperationsTimeout(keyModel(), spoiled(history), 20*time.Second); result != porcupine.Illegal {
		t.Errorf("a spoiled history is %v", result)
	}
	if result := porcupine.CheckOperationsTimeout(keyModel(), history, 20*time.Second); result != porcupine.Ok {
		t.Errorf("history of %d requests: %v", len(history), result)
	}
}

func spoiled(history []porcupine.Operation) []porcupine.Operation {
	bad := append([]porcupine.Operation(nil), history...)
	for i := range bad {
		if bad[i].Input.(call).kind == opAdd {
			bad[i].Output = "-1"
			break
		}
	}
	return bad
}

func randomCall(random *rand.Rand) call {
	kinds := []op{opSet, opGet, opGet, opAdd, opAdd, opAppend, opDelete, opCheck, opCompareSet, opCompareSet}
	digit := func() string { return strconv.Itoa(random.IntN(3)) }
	c := call{kind: kinds[random.IntN(len(kinds))], key: "/" + digit(), expected: digit(), desired: digit(), n: int64(random.IntN(3))}
	if random.IntN(2) == 0 {
		c.expected = ""
	}
	return c
}

// perform runs c. GET goes out alone, without the WAIT that Client.Get sends first; requests without a reply are followed by a ping, so that they have an end.
func perform(client *Client, c call) (string, error) {
	ctx := context.Background()
	switch c.kind {
	case opSet:
		if err := client.Set(ctx, c.key, []byte(c.desired)); err != nil {
			return "", err
		}
		return "", client.Ping(ctx)
	case opGet:
		var value []byte
		err := client.exchange(ctx, opGet, func() (err error) {
			client.text(c.key)
			if err = client.flush(); err == nil {
				value, err = client.readVector()
			}
			return err
		})
		return string(value), err
	case opAdd:
		// Appended digits could leave the range of an int64.
		if n, err := client.Add(ctx, c.key, c.n); err == nil && n < 1e17 {
			return strconv.FormatInt(n, 10), nil
		} else if err != nil {
			return "", err
		}
		return "", fmt.Errorf("counter %s too long for this test", c.key)
	case opAppend:
		if err := client.Append(ctx, c.key, []byte(c.desired)); err != nil {
			return "", err
		}
		return "", client.Ping(ctx)
	case opDelete:
		ok, err := client.Delete(ctx, c.key)
		return strconv.FormatBool(ok), err
	case opCheck:
		ok, err := client.Check(ctx, c.key)
		return strconv.FormatBool(ok), err
	}
	value, err := client.CompareSet(ctx, c.key, []byte(c.expected), []byte(c.desired))
	return string(value), err
}
