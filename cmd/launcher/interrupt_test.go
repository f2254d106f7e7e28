package main

import (
	"syscall"
	"testing"
)

func TestRespond(t *testing.T) {
	const (
		keyboard  = syscall.SIGINT
		terminate = syscall.SIGTERM
		hangup    = syscall.SIGHUP
	)
	for _, tt := range []struct {
		name string
		in   interruption
		want response
	}{
		{"first Ctrl-C asks", interruption{signal: keyboard, terminal: true}, ask},
		{"first Ctrl-C asks where the run is supervised here too", interruption{signal: keyboard, terminal: true, needed: true}, ask},
		{"second Ctrl-C stops", interruption{signal: keyboard, terminal: true, asked: true}, stop},
		{"third Ctrl-C leaves", interruption{signal: keyboard, terminal: true, asked: true, stopping: true}, leave},
		{"Ctrl-C after the answer `stop` leaves", interruption{signal: keyboard, terminal: true, needed: true, stopping: true}, leave},
		{"SIGTERM does not ask", interruption{signal: terminate, terminal: true}, stop},
		{"SIGTERM on a terminal, supervised here", interruption{signal: terminate, terminal: true, needed: true}, stop},
		{"SIGTERM answers the question", interruption{signal: terminate, terminal: true, asked: true}, stop},
		{"second SIGTERM leaves", interruption{signal: terminate, terminal: true, stopping: true}, leave},
		{"SIGINT without a terminal hands the teardown over", interruption{signal: keyboard}, stopBriefly},
		{"SIGTERM without a terminal hands the teardown over", interruption{signal: terminate}, stopBriefly},
		{"SIGINT without a terminal tears down here", interruption{signal: keyboard, needed: true}, stopBriefly},
		{"SIGTERM without a terminal tears down here", interruption{signal: terminate, needed: true}, stopBriefly},
		{"a second signal without a terminal leaves", interruption{signal: terminate, stopping: true}, leave},
		{"SIGHUP detaches", interruption{signal: hangup, terminal: true}, detach},
		{"SIGHUP detaches without a terminal", interruption{signal: hangup}, detach},
		{"SIGHUP detaches a run that stops elsewhere", interruption{signal: hangup, stopping: true}, detach},
		{"SIGHUP tears down what is supervised here", interruption{signal: hangup, terminal: true, needed: true}, stop},
		{"SIGHUP does not cut a teardown short", interruption{signal: hangup, terminal: true, needed: true, stopping: true}, 0},
		{"SIGHUP without a terminal tears down here, briefly", interruption{signal: hangup, needed: true}, stopBriefly},
		{"attach: Ctrl-C detaches", interruption{signal: keyboard, terminal: true, follower: true}, detach},
		{"wait: SIGTERM detaches", interruption{signal: terminate, follower: true}, detach},
		{"attach that supervises: Ctrl-C asks", interruption{signal: keyboard, terminal: true, follower: true, needed: true}, ask},
		{"wait that supervises: SIGTERM tears down", interruption{signal: terminate, follower: true, needed: true}, stopBriefly},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := respond(tt.in); got != tt.want {
				t.Errorf("respond(%+v) = %d, want %d", tt.in, got, tt.want)
			}
		})
	}
}
