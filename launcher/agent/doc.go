// Package agent is the worker's side of a run: it keeps the rank processes of one generation, ends them and the
// machine when their leases are over, reads the machine's preemption notices, and tells the head, which decides.
//
//	head ══ Session: orders ▶ reports ◀ ══ Agent ── rank processes (package process)
//	     ══ Tunnel                     ══   ├──── store listener on loopback: tunnel.Forward
//	     ══ Logs, Exec, Put, Fetch     ══   ├──── node-local HTTP API on loopback
//	                                        └──── notice watchers, checkpoint folder, leases
//
// Connections come and go. A report is kept until the head says that it has it. Of orders each may come twice. What
// a process has written is kept within bounds (package output). Only silence longer than a lease ends anything.
package agent
