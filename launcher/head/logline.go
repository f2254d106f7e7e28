package head

import "github.com/ephemeral-launcher/launcher/launcher/journal"

// LogLine is one line of the merged output file, logs/output.jsonl: on the head, and in a client's run folder as far as it was copied.
type LogLine struct {
	// At is the run clock when the head received it.
	At   journal.At `json:"at"`
	Node string     `json:"node"`
	// Generation and Rank are 0 and -1 for setup.
	Generation int `json:"generation"`
	Rank       int `json:"rank"`
	// Stream is stdout, stderr or setup.
	Stream string `json:"stream"`
	// Text is the line without its newline; bytes that are not UTF-8 are replaced.
	Text string `json:"text"`
	// Partial: the line goes on in the next one of the same stream (a progress bar, or more than 64 KiB).
	Partial bool `json:"partial,omitempty"`
	// Offset is where the line ends in its own stream, in bytes: a new head process goes on from there.
	Offset uint64 `json:"offset"`
}
