// Package tunnel carries connections over a transport that may break and be replaced without either end noticing.
//
// A stream is an id plus byte offsets. Each side of a tunnel is a Mux, which outlives transports: Attach runs it over
// one until that breaks, and over the next after it.
//
//	opener (agent)                               acceptor (head)
//	local TCP ── Forward ── Conn ─ Mux ═transport═ Mux ─ Conn ── store server
//
// What was written and not yet acknowledged stays in a replay buffer (256 KiB a direction; a full one blocks Write).
// An acknowledgement says that the bytes were consumed, so it is the flow control too. It rides on data that goes the
// other way, and goes alone only after 64 KiB or at the end of a direction. No timer is on the path of data.
//
// On a new transport each side first says which Mux it is, which streams it knows and up to where it has received
// each. A stream goes on from there. One that the peer no longer knows was finished or reset by it. If the peer is
// another Mux than before (its process died), all streams are reset, as a rebooted host resets TCP connections.
//
// Each direction of a stream ends by fin (no more data), which counts as one byte and is acknowledged like one, or by
// stop (the reader reads no more). A stream whose two directions have ended is forgotten. A reset ends both at once.
package tunnel
