package launcher

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
	"github.com/ephemeral-launcher/launcher/launcher/head"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/launcher/supervisor"
)

// folder is a run's folder: journal.jsonl, logs/output.jsonl, keys/, result.json, workdir.tar.zst and control, the owner's socket.
type folder struct {
	path string
	run  string
}

func (o Options) runs() (string, error) {
	home, err := o.HomeFolder()
	return filepath.Join(home, "runs"), err
}

// folder names a run's folder; it may not exist.
func (o Options) folder(run string) (folder, error) {
	if err := checkRunID(run); err != nil {
		return folder{}, err
	}
	runs, err := o.runs()
	return folder{path: filepath.Join(runs, run), run: run}, err
}

// ErrRunID: what was given for a run id cannot be one; nothing was started.
var ErrRunID = errors.New("run id")

func checkRunID(run string) error {
	if !regexp.MustCompile(`^[a-z][a-z0-9-]{0,40}$`).MatchString(run) {
		return fmt.Errorf("%w %q: want a lower-case letter, then up to 40 lower-case letters, digits and hyphens", ErrRunID, run)
	}
	return nil
}

// newRunID is the job's name and six random characters, 30 bits: two runs of one account that live at the same time do not meet.
func newRunID(job string) string {
	var b [4]byte
	rand.Read(b[:]) // never fails: see crypto/rand.Read
	return job + "-" + strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))[:6]
}

func (f folder) in(names ...string) string {
	return filepath.Join(append([]string{f.path}, names...)...)
}
func (f folder) journal() string { return f.in(journal.FileName) }
func (f folder) logs() string    { return f.in("logs", head.LogFileName) }
func (f folder) result() string  { return f.in("result.json") }
func (f folder) workdir() string { return f.in("workdir.tar.zst") }

// exists tells whether a run was begun here: keys alone, or a journal without its first event, are a start that died before it had an effect.
func (f folder) exists() bool {
	file, err := os.Open(f.journal())
	if err != nil {
		return false
	}
	defer file.Close()
	_, err = bufio.NewReader(file).ReadBytes('\n')
	return err == nil
}

// clear removes the journal of a start that died before its first event. journal.ErrLocked: it is only just being made.
func (f folder) clear() error {
	j, err := journal.Open(f.path, journal.Options{Clock: func() time.Duration { return 0 }})
	switch {
	case err == nil: // it is there now
		return j.Close()
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, journal.ErrLocked) || f.exists():
		return err
	}
	return os.Remove(f.journal())
}

// userKeys are the run's two user keys, made at the first asking.
type userKeys struct {
	client, worker             []byte // private halves, PEM
	clientPublic, workerPublic string
}

func (f folder) keys(door *journal.Door) (*userKeys, *supervisor.KeyFolder, error) {
	k := &userKeys{}
	for _, key := range []struct {
		name    string
		private *[]byte
		public  *string
	}{{"client", &k.client, &k.clientPublic}, {"worker", &k.worker, &k.workerPublic}} {
		path := f.in("keys", key.name)
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			pair, nerr := sshkey.New(key.name + " key of run " + f.run)
			if nerr != nil {
				return nil, nil, fmt.Errorf("make %s key: %w", key.name, nerr)
			}
			b = pair.Private
			err = door.Pass(context.Background(), journal.Effect{Name: "key.write", Operand: key.name}, func() error { return writeOnce(path, b) })
			if errors.Is(err, fs.ErrExist) { // another caller with the same id was faster
				b, err = os.ReadFile(path)
			}
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s key: %w", key.name, err)
		}
		if *key.public, err = sshkey.Public(b); err != nil {
			return nil, nil, fmt.Errorf("%s key %s: %w", key.name, path, err)
		}
		*key.private = b
	}
	return k, &supervisor.KeyFolder{Folder: f.in("keys"), Client: k.clientPublic, Worker: k.workerPublic, Door: door}, nil
}

// writeOnce writes a secret that nobody overwrites: fs.ErrExist.
func writeOnce(path string, secret []byte) error {
	mine := path + "." + newRunID("new")
	if err := supervisor.WriteSecret(mine, secret); err != nil {
		return err
	}
	defer os.Remove(mine)
	return os.Link(mine, path)
}

// jobOf reads the job back out of a journal.
func jobOf(s *journal.State) (*Job, error) {
	job := &Job{}
	if err := json.Unmarshal(s.Created.Job, job); err != nil {
		return nil, fmt.Errorf("read the job of run %s: %w", s.Run, err)
	}
	return job, nil
}

// open opens the run's journal, and with it owns the run. journal.ErrLocked: another process does.
func (f folder) open(door *journal.Door) (*journal.Journal, error) {
	events, err := journal.ReadFile(f.journal())
	if err != nil {
		return nil, err
	}
	state, err := journal.Fold(events)
	if err != nil {
		return nil, fmt.Errorf("read journal %s: %w", f.journal(), err)
	}
	return journal.Open(f.path, journal.Options{Clock: runClock(f, state), Door: door})
}

// FindRun resolves a unique prefix of a run's id; "" is the one run that lives. Errors: ErrUnknownRun, *AmbiguousRunError.
func FindRun(prefix string, opts Options) (string, error) {
	runs, err := List(context.Background(), opts)
	if err != nil {
		return "", err
	}
	var fit []string
	for _, r := range runs {
		if r.Run == prefix {
			return prefix, nil
		}
		if prefix == "" && r.Living() || prefix != "" && strings.HasPrefix(r.Run, prefix) {
			fit = append(fit, r.Run)
		}
	}
	switch len(fit) {
	case 0:
		if prefix == "" {
			return "", fmt.Errorf("%w: none lives", ErrUnknownRun)
		}
		return "", fmt.Errorf("%w: %q", ErrUnknownRun, prefix)
	case 1:
		return fit[0], nil
	}
	slices.Sort(fit)
	return "", &AmbiguousRunError{Prefix: prefix, Runs: fit}
}
