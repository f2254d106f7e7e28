package launcher

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/ephemeral-launcher/launcher/launcher/control"
)

// logCopy is the run's merged output as far as it was copied here: the same bytes at the same offsets as on the head. Safe for concurrent use.
type logCopy struct {
	mu      sync.Mutex // guards all below
	file    *os.File
	size    int64
	changed chan struct{} // closed and replaced at each append
}

// openLogCopy opens or makes the copy. What a crash tore off is copied again, because the copy goes on at its size.
func openLogCopy(path string) (*logCopy, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open log: %w", err)
	}
	return &logCopy{file: f, size: info.Size(), changed: make(chan struct{})}, nil
}

// Size is how far the copy goes, in bytes.
func (l *logCopy) Size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.size
}

// append adds what lies at offset; what is here already is passed over.
func (l *logCopy) append(offset int64, data []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset > l.size {
		return fmt.Errorf("copy log: a gap from %d to %d", l.size, offset)
	}
	if have := l.size - offset; have >= int64(len(data)) {
		return nil
	} else {
		data = data[have:]
	}
	n, err := l.file.WriteAt(data, l.size)
	l.size += int64(n)
	close(l.changed)
	l.changed = make(chan struct{})
	if err != nil {
		return fmt.Errorf("copy log: %w", err)
	}
	return nil
}

// read reads from offset into p; at the end it returns 0 and a channel that is closed when there is more.
func (l *logCopy) read(offset int64, p []byte) (int, <-chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset >= l.size {
		return 0, l.changed, nil
	}
	n, err := l.file.ReadAt(p[:min(int64(len(p)), l.size-offset)], offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, l.changed, err
}

func (l *logCopy) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}

// follow copies the head's output from where the copy ends: with more set as it comes until ctx ends, else what is there now.
func (l *logCopy) follow(ctx context.Context, api control.HeadClient, more bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	call, err := api.Logs(ctx, &control.HeadLogsRequest{After: uint64(l.Size()), Follow: more})
	if err != nil {
		return fmt.Errorf("copy log: %w", err)
	}
	for {
		c, err := call.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("copy log: %w", err)
		}
		if err := l.append(int64(c.Offset), c.Data); err != nil {
			return err
		}
	}
}

// lineCutter cuts a stream of output.jsonl into lines.
type lineCutter struct{ rest []byte }

// cut calls f for each whole line of data and keeps the rest for the next call.
func (c *lineCutter) cut(data []byte, f func(LogLine)) {
	c.rest = append(c.rest, data...)
	for {
		line, rest, ok := bytes.Cut(c.rest, []byte("\n"))
		if !ok {
			c.rest = bytes.Clone(c.rest)
			return
		}
		c.rest = rest
		var l LogLine
		if json.Unmarshal(line, &l) == nil {
			f(l)
		}
	}
}

// deliver calls f for every line from offset on until closed is closed and all was delivered.
func (l *logCopy) deliver(offset int64, closed <-chan struct{}, f func(LogLine)) error {
	var cutter lineCutter
	buf := make([]byte, chunk)
	for last := false; ; {
		n, changed, err := l.read(offset, buf)
		if err != nil {
			return err
		}
		if n > 0 {
			cutter.cut(buf[:n], f)
			offset += int64(n)
			continue
		}
		if last {
			return nil
		}
		select {
		case <-changed:
		case <-closed:
			last = true
		}
	}
}

// ReadLogs calls f for every line of output copied so far.
func ReadLogs(run string, opts Options, f func(LogLine)) error {
	dir, err := opts.folder(run)
	if err != nil {
		return err
	}
	file, err := os.Open(dir.logs())
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	defer file.Close()
	var cutter lineCutter
	buf := make([]byte, chunk)
	for {
		n, err := file.Read(buf)
		cutter.cut(buf[:n], f)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read log: %w", err)
		}
	}
}
