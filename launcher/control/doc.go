// Package control is the wire between client, head and agents: the protobuf contracts, and gRPC over connections
// that somebody else made (an SSH channel, a unix socket, memory).
//
// Nothing here dials: whoever has the connection hands it in, so that the same code runs over SSH on machines and
// in a bubble of virtual time in tests. Connections are expected to break; each contract says how it is taken up
// again on the next one.
package control
