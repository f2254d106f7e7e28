// Package head is what runs on the head's machine: the daemon with the control API, and the World: links to the
// workers, generations, the store, merged logs, checkpoints and outputs. With head { supervisor = "head" } the supervisor runs here too.
//
// One goroutine owns the World's state and is the only one that talks to the generation core; links (one per worker) and
// whatever takes time run beside it and post to it. What happened is recorded in the journal, in order, by one more goroutine: an
// effect that needs an event first is started when that event is on disk.
package head
