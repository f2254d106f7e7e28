// Package supervisor is the code that decides and acts for a run. It runs in one of two places, on the head or in the
// client, and is the same in both:
//
//	loop:  observe: provider.List by tag, and the journal, which holds what the world reported     I/O, no decisions
//	       Decide(Input) → Decision                                                                no I/O, no clock, no randomness
//	       act: journal the intent → do it → journal the outcome
//
// The world (agents, generations, the store) is not decided here: package rendezvous does, inside the head process. The
// supervisor tells the world by its roster which nodes come and go; the world reports through the journal.
package supervisor
