package main

import (
	"os"
	"syscall"
	"time"
)

// interruption is a signal that came while a run was followed, with what decides about it.
type interruption struct {
	signal syscall.Signal
	// terminal: a person is there and can be asked.
	terminal bool
	// needed: the run needs this process, because it is supervised here. What is not torn down here then has only its leases.
	needed bool
	// follower: the command only follows (attach, wait): leaving is what its Ctrl-C means.
	follower bool
	// asked: the question stands, unanswered. stopping: the teardown was ordered here.
	asked, stopping bool
}

// response is what an interruption does.
type response int

const (
	// ask what is meant: detach, stop and delete, or go on.
	ask response = iota + 1
	// detach leaves the run to its supervisor.
	detach
	// stop orders the teardown and waits for its end.
	stop
	// stopBriefly orders the teardown and leaves within briefly.
	stopBriefly
	// leave at once, with the command that finishes the teardown.
	leave
)

// briefly bounds how long a process without a terminal goes on after a signal: it promises to be gone within 5 s.
const briefly = 4500 * time.Millisecond

// sameSignal is how close two equal signals are one: timeout(1) and many a CI runner signal the process and then its group.
const sameSignal = 250 * time.Millisecond

// respond decides. On a terminal the first Ctrl-C asks, the second stops, the third leaves; SIGTERM is somebody who does not answer questions.
func respond(i interruption) response {
	switch {
	case i.signal == syscall.SIGHUP && !i.needed:
		return detach
	case i.signal == syscall.SIGHUP && i.terminal && !i.stopping:
		return stop // the terminal is gone, and nobody waits for this process: it may take its time
	case i.signal == syscall.SIGHUP && i.terminal:
		return 0 // it is being torn down
	case i.stopping:
		return leave
	case i.follower && !i.needed:
		return detach
	case !i.terminal:
		return stopBriefly
	case i.signal == syscall.SIGTERM || i.asked:
		return stop
	}
	return ask
}

// signals are those a run listens to. SIGPIPE is not among them but must not end it either: see follow.
func interrupting() []os.Signal {
	return []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
}
