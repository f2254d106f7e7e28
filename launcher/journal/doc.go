// Package journal holds what a run knows of itself: an append-only file of events, and the state that folding them gives.
//
// The journal is both the state store and the event stream: `launcher events -o json`, the library's callback and the file
// journal.jsonl carry the same values. Nothing is kept beside it, so a process that dies folds the file and goes on.
//
// An effect on the world outside the process is journaled before it is tried (the intent) and after (the outcome). Every
// effect goes through one [Door], which numbers it, so that a test can crash the process before it, after it, or lose its reply.
package journal
