// Package tcpstore is an in-process server of PyTorch's TCPStore protocol and a client of it.
//
// A Store is the keyed state of one training generation. A Server owns the connections that talk to its current Store and can be
// given a new one, which closes every connection of the old one. One port serves every client since PyTorch 1.9: the dialect
// is recognised per connection, from the first bytes.
//
// The flow of a connection: the goroutine of ServeConn reads a request, runs it under the Store's one lock, leaves the reply in the connection's
// outbox, and writes the outbox when it is about to read again. A reply caused by somebody else (a wait that ends, a watched key) is put in the
// outbox under the Store's lock, which fixes its order, and written by a goroutine that lives only as long as there is something to write.
//
// Wire format (torch/csrc/distributed/c10d/TCPStore*.cpp and TCPStoreBackend.hpp, PyTorch 1.9 to 2.14): integers are little-endian,
// a string or vector is a u64 length and the bytes, a list is a u64 count and the items, a request is an opcode byte and its fields, without
// framing. There is no authentication: whoever reaches the port reads and writes the store.
//
// Keys are stored as they arrive. PyTorch's client sends the user's key "k" as "/k"; only its worker counter "init/" arrives bare.
package tcpstore
