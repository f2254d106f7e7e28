package head

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc"

	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// LogFileName is the merged output file's name in the folder logs of a run.
const LogFileName = "output.jsonl"

// maxLogLine splits longer lines.
const maxLogLine = 64 << 10

// streamKey names one stream of one node.
type streamKey struct {
	generation, rank uint32
	kind             control.LogKind
}

// LogFile is the merged output of all ranks: one file, appended to, followed by byte offset. Safe for concurrent use.
type LogFile struct {
	mu      sync.Mutex // guards all below
	file    *os.File
	size    int64
	changed chan struct{}
	had     map[string]map[streamKey]uint64 // what an older head process had written, by node
}

// OpenLogFile opens or makes logs/output.jsonl in folder. A torn last line is cut off.
func OpenLogFile(folder string) (*LogFile, error) {
	path := filepath.Join(folder, "logs", LogFileName)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	l := &LogFile{file: f, changed: make(chan struct{}), had: map[string]map[streamKey]uint64{}}
	r := bufio.NewReaderSize(f, maxLogLine)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			break
		}
		l.size += int64(len(line))
		var e LogLine
		if json.Unmarshal(line, &e) == nil {
			if l.had[e.Node] == nil {
				l.had[e.Node] = map[streamKey]uint64{}
			}
			l.had[e.Node][e.key()] = max(l.had[e.Node][e.key()], e.Offset)
		}
	}
	if err := f.Truncate(l.size); err != nil {
		f.Close()
		return nil, fmt.Errorf("open log: %w", err)
	}
	return l, nil
}

func (e LogLine) key() streamKey {
	kind := control.LogKind_STDOUT
	switch e.Stream {
	case "stderr":
		kind = control.LogKind_STDERR
	case "setup":
		kind = control.LogKind_SETUP
	}
	return streamKey{uint32(e.Generation), uint32(max(e.Rank, 0)), kind}
}

// positions returns how far each stream of a node was written by an older head process.
func (f *LogFile) positions(node string) map[streamKey]uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := map[streamKey]uint64{}
	for k, v := range f.had[node] {
		p[k] = v
	}
	return p
}

// write appends lines in one piece.
func (f *LogFile) write(lines []LogLine) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for _, l := range lines {
		if err := enc.Encode(l); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.file.Write(b.Bytes())
	f.size += int64(n)
	close(f.changed)
	f.changed = make(chan struct{})
	if err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	return nil
}

// Read reads from offset into p; at the end it returns 0 and a channel that is closed when there is more.
func (f *LogFile) Read(offset int64, p []byte) (int, <-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if offset >= f.size {
		return 0, f.changed, nil
	}
	n, err := f.file.ReadAt(p[:min(int64(len(p)), f.size-offset)], offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, f.changed, err
}

// Close closes the file.
func (f *LogFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file.Close()
}

// openLogs asks for what the node's processes write, from where the merged file ends.
func (k *link) openLogs(ctx context.Context, agent control.AgentClient) (grpc.ServerStreamingClient[control.LogChunk], error) {
	k.mu.Lock()
	req := &control.LogsRequest{Instance: k.instance}
	for s, offset := range k.logs {
		req.After = append(req.After, &control.LogPosition{Stream: &control.LogStream{Generation: uint64(s.generation), Rank: s.rank, Kind: s.kind}, Offset: offset})
	}
	k.mu.Unlock()
	return agent.Logs(ctx, req)
}

// followLogs copies it into the merged file, until the connection ends.
func (k *link) followLogs(call grpc.ServerStreamingClient[control.LogChunk]) {
	for {
		c, err := call.Recv()
		if err != nil {
			return
		}
		if err := k.takeLog(k.name, c); err != nil {
			k.world.Log.Warn("follow logs", "node", k.name, "error", err)
			return
		}
	}
}

// takeLog writes one chunk as lines.
func (k *link) takeLog(node string, c *control.LogChunk) error {
	key := streamKey{uint32(c.Stream.Generation), c.Stream.Rank, c.Stream.Kind}
	line := LogLine{At: journal.At(k.world.Clock()), Node: node, Generation: int(c.Stream.Generation), Rank: int(c.Stream.Rank), Stream: streamName(c.Stream.Kind)}
	if c.Stream.Kind == control.LogKind_SETUP {
		line.Rank = -1
	}
	var out []LogLine
	offset := c.Offset
	notice, data := c.Data[:c.NoticeLen], c.Data[c.NoticeLen:]
	if len(notice) > 0 {
		l := line
		l.Text, l.Offset = strings.ToValidUTF8(strings.TrimRight(string(notice), "\n"), "\uFFFD"), offset
		out = append(out, l)
		dropped := int64(c.Dropped)
		k.world.post(func(l *worldLoop) {
			l.record(nil, journal.NewEvent(journal.LogsDropped, node, line.Generation, journal.Dropped{Stream: fmt.Sprintf("rank %d %s", line.Rank, line.Stream), Bytes: dropped}))
		})
	}
	for len(data) > 0 {
		l := line
		text, _, whole := bytes.Cut(data[:min(len(data), maxLogLine)], []byte("\n"))
		used := len(text)
		if whole {
			used++
		}
		offset += uint64(used)
		data = data[used:]
		l.Text, l.Partial, l.Offset = strings.ToValidUTF8(string(bytes.TrimSuffix(text, []byte("\r"))), "\uFFFD"), !whole && !(c.End && len(data) == 0), offset
		out = append(out, l)
	}
	k.mu.Lock()
	k.logs[key] = offset
	k.mu.Unlock()
	if len(out) == 0 {
		return nil
	}
	return k.world.logs.write(out)
}

func streamName(k control.LogKind) string {
	switch k {
	case control.LogKind_STDERR:
		return "stderr"
	case control.LogKind_SETUP:
		return "setup"
	}
	return "stdout"
}

// lines splits text for an event.
func lines(text string) []string {
	text = strings.TrimRight(text, "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}
