package ssh

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed" // host.sh
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/providers"
)

//go:embed host.sh
var hostScript string

// The operations of host.sh.
const (
	opTake   = "take"   // took | have RECORD | busy UNTIL
	opList   = "list"   // lines of machines, then done
	opEnd    = "end"    // ended | absent | foreign
	opDrop   = "drop"   // the same, as if it had never been
	opUpdate = "update" // updated | absent | changed
	opProbe  = "probe"  // lines of facts, then done
)

// Bounds of one visit to a host. What an ended caller's context leaves of it, the host finishes by itself.
const (
	connectTimeout = 10 * time.Second
	visitTimeout   = 60 * time.Second
	// atOnce is how many hosts are visited at the same time.
	atOnce = 32
)

// order is what host.sh is told.
type order struct {
	op, id, run, token, record, previous string
	seconds                              int
	keys                                 []string
}

func (o order) script() string {
	var b strings.Builder
	for _, v := range []struct{ name, value string }{
		{"op", o.op},
		{"id", o.id},
		{"run", o.run},
		{"token", o.token},
		{"record", o.record},
		{"previous", o.previous},
		{"seconds", strconv.Itoa(o.seconds)},
		{"keys", strings.Join(o.keys, "\n")},
	} {
		fmt.Fprintf(&b, "%s=%s\n", v.name, quote(v.value))
	}
	return b.String() + hostScript
}

// quote makes one word of text for a POSIX shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// visit carries out one order on one host and returns the lines it prints.
func (h host) visit(ctx context.Context, key []byte, o order) ([]string, error) {
	return h.run(ctx, key, o.script())
}

// run has the host's shell read a script.
func (h host) run(ctx context.Context, key []byte, script string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, visitTimeout)
	defer cancel()
	dialCtx, cancelDial := context.WithTimeout(ctx, connectTimeout)
	defer cancelDial()
	conn, err := sshexec.Dial(dialCtx, sshexec.Target{Addr: h.address, User: h.user, Keys: [][]byte{key}, HostKeys: h.keys})
	if err != nil {
		return nil, classify(err)
	}
	defer conn.Close()
	var out, errs bytes.Buffer
	exit, err := conn.Stream(ctx, "exec /bin/sh -s", sshexec.Streams{
		Stdin: strings.NewReader(script), Stdout: &out, Stderr: &errs,
	})
	if err != nil {
		return nil, classify(err)
	}
	if !exit.OK() {
		return nil, providers.Errorf(providers.Internal, "", "visit %s: %s: %s", h.address, exit, strings.TrimSpace(errs.String()))
	}
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n"), nil
}

// classify makes a provider's error of sshexec's.
func classify(err error) error {
	code := providers.Unavailable
	switch sshexec.Classify(err) {
	case sshexec.AuthRefused, sshexec.HostKeyMismatch:
		code = providers.Auth
	case sshexec.BadTarget:
		code = providers.Invalid
	case sshexec.NotUp, sshexec.Dropped, sshexec.TimedOut, sshexec.Other:
	}
	return &providers.Error{Code: code, Message: err.Error(), Err: err}
}

// failed names the operation of an error on its way out.
func failed(op string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*providers.Error](err); ok {
		named := *e
		named.Op = op
		return &named
	}
	return providers.Errorf(providers.Unavailable, op, "%w", err)
}

// everywhere visits hosts at the same time. The results are in their order.
func everywhere(ctx context.Context, hosts []host, visit func(ctx context.Context, i int, h host) error) []error {
	errs := make([]error, len(hosts))
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, h := range hosts {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = visit(ctx, i, h)
		})
	}
	wg.Wait()
	return errs
}

// record is what a lease says of its machine, beyond what the host must understand.
type record struct {
	ID        string            `json:"id"`
	Token     string            `json:"token"`
	Index     int               `json:"index"` // the place among the machines of the token
	Offer     providers.Offer   `json:"offer"`
	Tags      map[string]string `json:"tags"`
	User      string            `json:"user"`
	CreatedAt time.Time         `json:"created_at"`
}

func (r record) line() (string, error) {
	data, err := json.Marshal(r) // escapes line breaks and tabs
	return string(data), err
}

func (r record) resource(h host, state providers.ResourceState, reason string) providers.Resource {
	return providers.Resource{
		ID: r.ID, Kind: providers.KindMachine, State: state, Tags: r.Tags, Region: Region, CreatedAt: r.CreatedAt, Reason: reason,
		Machine: &providers.Machine{
			ID: r.ID, Token: r.Token, Offer: r.Offer, User: r.User, CreatedAt: r.CreatedAt,
			Address: h.address, ClusterAddress: h.address, HostKeys: h.keys,
		},
	}
}

// found is one machine in a host's listing.
type found struct {
	record
	text   string // the record as it lies there
	host   host
	state  providers.ResourceState
	reason string
}

// list asks one host for its machines: the one that has the lease, and those that ended within the day.
func (h host) list(ctx context.Context, key []byte) ([]found, error) {
	lines, err := h.visit(ctx, key, order{op: opList})
	if err != nil {
		return nil, err
	}
	var all []found
	for i, line := range lines {
		if line == "done" && i == len(lines)-1 {
			return all, nil
		}
		fields := strings.SplitN(line, "\t", 4)
		if len(fields) != 4 {
			return nil, providers.Errorf(providers.Internal, "", "list on %s: unknown line %q", h.address, line)
		}
		f := found{text: fields[3], host: h, state: providers.ResourceState(fields[0]), reason: fields[1]}
		if err := json.Unmarshal([]byte(f.text), &f.record); err != nil {
			return nil, providers.Errorf(providers.Internal, "", "list on %s: %w", h.address, err)
		}
		all = append(all, f)
	}
	return nil, providers.Errorf(providers.Unavailable, "", "list on %s: cut short", h.address)
}

// listAll lists all hosts; one that cannot be listed makes it an error.
func (s settings) listAll(ctx context.Context) ([]found, error) {
	lists := make([][]found, len(s.hosts))
	errs := everywhere(ctx, s.hosts, func(ctx context.Context, i int, h host) (err error) {
		lists[i], err = h.list(ctx, s.key)
		return err
	})
	if err := first(errs); err != nil {
		return nil, err
	}
	var all []found
	for _, l := range lists {
		all = append(all, l...)
	}
	return all, nil
}

// first returns the first error, with a word on how many more there are.
func first(errs []error) error {
	var one error
	n := 0
	for _, err := range errs {
		if err != nil {
			if n++; one == nil {
				one = err
			}
		}
	}
	if n > 1 {
		e, ok := errors.AsType[*providers.Error](one)
		if ok {
			more := *e
			more.Message = fmt.Sprintf("%s (and %d more hosts)", e.Error(), n-1)
			return &more
		}
	}
	return one
}

// mark is the part of a machine's id that names its host.
func (h host) mark() string {
	sum := sha256.Sum256([]byte(h.address))
	return hex.EncodeToString(sum[:5])
}
