package journal

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// ErrLocked is returned by Open where another process holds the journal.
var ErrLocked = errors.New("the journal is held by another process")

// ErrCrashed is what a door's guard returns for a process that is to be taken for dead.
var ErrCrashed = errors.New("crashed by a test")

// FileName is the journal's name in a run's folder.
const FileName = "journal.jsonl"

// Journal is an open journal: its file, its state, and those who follow it. Safe for concurrent use.
type Journal struct {
	run      string
	clock    Clock
	door     *Door
	volatile bool

	mu      sync.Mutex // guards all below
	file    *os.File
	events  []Event
	state   *State
	changed chan struct{} // closed and replaced at each append
	failed  error         // a failed write ends the journal: what is on disk is not known
}

// Options say how a journal stamps and writes.
type Options struct {
	// Clock is the run clock. It must not run behind the newest event; Open sets it on where it does.
	Clock Clock
	// Door numbers the appends; nil: none does.
	Door *Door
	// Volatile leaves out the waits for the disk: for tests by the thousand, whose machine does not lose its power.
	Volatile bool
}

// Create starts a journal in folder (made 0700) with its first event, which is on disk when Create returns.
// It is an error, fs.ErrExist, if one exists; one whose creator died before that event was written does not count.
func Create(ctx context.Context, folder, run string, created Created, opts Options) (*Journal, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("create journal: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(folder, FileName), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create journal: %w", err)
	}
	if err = claim(f); err == nil {
		err = opts.syncFolder(folder)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("create journal: %w", err)
	}
	j := &Journal{run: run, clock: opts.Clock, door: opts.Door, volatile: opts.Volatile, file: f, state: &State{}, changed: make(chan struct{})}
	if err := j.Append(ctx, NewEvent(RunCreated, "", 0, created)); err != nil {
		j.Close()
		return nil, err
	}
	return j, nil
}

// Open opens the journal in folder for appending. A torn last line, left by a crash in mid-write, is cut off. Codes: ErrLocked, fs.ErrNotExist.
func Open(folder string, opts Options) (*Journal, error) {
	path := filepath.Join(folder, FileName)
	f, err := hold(path)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	events, size, err := read(f)
	if err == nil && len(events) == 0 {
		err = errors.New("it holds no event")
	}
	if err == nil {
		err = f.Truncate(size)
	}
	var state *State
	if err == nil {
		state, err = Fold(events)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open journal %s: %w", path, err)
	}
	j := &Journal{run: state.Run, clock: opts.Clock, door: opts.Door, volatile: opts.Volatile, file: f, events: events, state: state, changed: make(chan struct{})}
	if late := state.At.Duration() - j.clock(); late > 0 {
		clock := opts.Clock
		j.clock = func() time.Duration { return clock() + late }
	}
	return j, nil
}

// Adopt writes a journal received from another holder into folder and opens it. An older copy there is replaced, unless
// another process holds it: ErrLocked.
func Adopt(folder string, events []Event, opts Options) (*Journal, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("adopt journal: %w", err)
	}
	path := filepath.Join(folder, FileName)
	older, err := hold(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("adopt journal: %w", err)
	}
	if older != nil {
		defer older.Close()
	}
	if _, err := Fold(events); err != nil {
		return nil, fmt.Errorf("adopt journal: %w", err)
	}
	if err := WriteFile(path, events); err != nil {
		return nil, fmt.Errorf("adopt journal: %w", err)
	}
	return Open(folder, opts)
}

// claim locks a file that holds no event, and empties it.
func claim(f *os.File) error {
	if err := lock(f); err != nil {
		return err
	}
	events, _, err := read(f)
	if err != nil || len(events) > 0 {
		return fs.ErrExist
	}
	return f.Truncate(0)
}

// hold opens the journal at path and locks it. Whoever adopts puts a new file in its place: a lock on the old one says nothing.
func hold(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
		if err != nil {
			return nil, err
		}
		if err := lock(f); err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		held, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, err
		}
		if there, err := os.Stat(path); err == nil && os.SameFile(held, there) {
			return f, nil
		}
		f.Close()
	}
}

// syncFolder makes sure that a new name in the folder outlives a loss of power.
func (o Options) syncFolder(folder string) error {
	if o.Volatile {
		return nil
	}
	d, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// WriteFile writes events as a whole journal file, atomically.
func WriteFile(path string, events []Event) error {
	lines, err := encode(events)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".journal-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(lines)
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	return Options{}.syncFolder(filepath.Dir(path))
}

// ReadFile reads the events of the journal at path without locking it; a torn last line is passed over.
func ReadFile(path string) ([]Event, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	defer f.Close()
	events, _, err := read(f)
	if err != nil {
		return nil, fmt.Errorf("read journal %s: %w", path, err)
	}
	return events, nil
}

// read returns the whole events of r and how many bytes they take. A last line without its newline is torn and left out; a bad line anywhere else is an error.
func read(r io.Reader) ([]Event, int64, error) {
	br := bufio.NewReader(r)
	var events []Event
	var size int64
	for {
		line, err := br.ReadBytes('\n')
		if err == io.EOF {
			return events, size, nil
		}
		if err != nil {
			return nil, 0, err
		}
		var e Event
		if jerr := json.Unmarshal(line, &e); jerr != nil {
			if _, err := br.Peek(1); err == io.EOF {
				return events, size, nil // a torn write that happened to end in a newline
			}
			return nil, 0, fmt.Errorf("line %d: %w", len(events)+1, jerr)
		}
		events = append(events, e)
		size += int64(len(line))
	}
}

func encode(events []Event) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for _, e := range events {
		if err := enc.Encode(e); err != nil {
			return nil, fmt.Errorf("encode %s: %w", e.Kind, err)
		}
	}
	return b.Bytes(), nil
}

// Append stamps the events, writes them in one piece, and returns when they are on disk and folded in. After an error of
// the disk the journal takes no more: what the file holds is not known until it is opened again.
func (j *Journal) Append(ctx context.Context, events ...Event) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.append(ctx, true, events)
}

// AppendStamped appends events that another holder stamped (a client copying its head's journal).
func (j *Journal) AppendStamped(ctx context.Context, events ...Event) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.append(ctx, false, events)
}

func (j *Journal) append(ctx context.Context, stamp bool, events []Event) error {
	if j.failed != nil {
		return j.failed
	}
	if len(events) == 0 {
		return nil
	}
	if stamp {
		now, at := time.Now().UTC().Truncate(time.Microsecond), At(j.clock().Truncate(time.Microsecond))
		at = max(at, j.state.At)
		for i := range events {
			events[i].Time, events[i].At, events[i].Run = now, at, j.run
		}
	}
	// An event that cannot follow must not reach the disk, or the file could not be folded again.
	next := j.state.Clone()
	for _, e := range events {
		if err := next.Apply(e); err != nil {
			return err
		}
	}
	lines, err := encode(events)
	if err != nil {
		return err
	}
	err = j.door.Pass(ctx, Effect{Name: "journal.append", Operand: string(events[0].Kind)}, func() error {
		if _, err := j.file.Write(lines); err != nil {
			return fmt.Errorf("append to journal: %w", err)
		}
		if j.volatile {
			return nil
		}
		if err := j.file.Sync(); err != nil {
			return fmt.Errorf("sync journal: %w", err)
		}
		return nil
	})
	if err != nil {
		j.failed = err
		j.tell()
		return err
	}
	j.state = next
	j.events = append(j.events, events...)
	j.tell()
	return nil
}

// tell wakes those who follow. The caller holds mu.
func (j *Journal) tell() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// Err is why the journal takes no more: a failed write, or Close; nil: it does. Followers are told of the first.
func (j *Journal) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failed
}

// State returns the newest state, a snapshot that nothing changes any more.
func (j *Journal) State() *State {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.state
}

// Since returns the events after the first n, and a channel that is closed when there are more.
func (j *Journal) Since(n int) ([]Event, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if n > len(j.events) {
		n = len(j.events)
	}
	return j.events[n:len(j.events):len(j.events)], j.changed
}

// Now is the run clock. It never lies before the newest event.
func (j *Journal) Now() time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	return max(j.clock(), j.state.At.Duration())
}

// Close closes the file and gives up the lock. Followers are not told.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed == nil {
		j.failed = errors.New("append to journal: it is closed")
	}
	return j.file.Close()
}
