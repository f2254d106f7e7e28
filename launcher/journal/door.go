package journal

import (
	"context"
	"sync"
)

// Effect is one act on the world outside the process.
type Effect struct {
	// Name says which: "provider.create", "journal.append", "send.adopt", "key.write" …
	Name string
	// Operand says on what, for people.
	Operand string
}

// Door is the one way to the outside: every provider call, journal append, send and key file passes through it and is
// numbered. The zero value lets everything pass. Safe for concurrent use.
type Door struct {
	// Guard, if set, decides over the effect with this number (from 1): it calls act, or does not, and returns what the caller sees.
	// A test crashes before the effect (return without act), after it (act, then return [ErrCrashed]) or loses the reply.
	Guard func(number int, e Effect, act func() error) error

	mu     sync.Mutex // guards number
	number int
}

// Pass carries out the effect.
func (d *Door) Pass(ctx context.Context, e Effect, act func() error) error {
	if d == nil {
		return act()
	}
	d.mu.Lock()
	d.number++
	number := d.number
	d.mu.Unlock()
	if d.Guard == nil {
		return act()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return d.Guard(number, e, act)
}

// Count returns how many effects have passed.
func (d *Door) Count() int {
	if d == nil {
		return 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.number
}
