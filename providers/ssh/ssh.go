// Package ssh rents hosts of a fixed list that the user already has: one machine is one host, as long as it is leased.
//
// A lease file on each host, changed under the host's lock, keeps two runs apart, whichever computers they are controlled
// from; it holds the machine's id, run, token, tags and expiry. A lease that has expired may be taken over, and is cleared
// away by whoever looks next. The hosts are reached with the user's key and their own host keys, which are pinned
// and never rotated. Nothing is needed on a host but a POSIX shell, and nothing is installed outside the account's home.
//
// # What a machine is
//
// The run's keys are authorised on the host for as long as the lease lasts, each with a forced command (sshd(8), "command=") that
// puts whatever they run into the machine:
//
//	LAUNCHER_MACHINE        the machine's id; Delete ends all processes that carry it
//	LAUNCHER_MACHINE_LEASE  a file: appending the line "SECONDS" makes the lease end so much later unless renewed, "poweroff" ends it now
//	LAUNCHER_HOST_HOME      the account's own home
//	HOME, TMPDIR, XDG_RUNTIME_DIR  folders of the machine, removed with it
//
// First on PATH are poweroff, shutdown and halt, which end the machine and leave the host running. The environment is
// otherwise what the host's sshd gives.
package ssh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
	"github.com/ephemeral-launcher/launcher/providers"
)

// The provider's name in job files, its only region, and the type of all its machines.
const (
	Name         = "ssh"
	Region       = "ssh"
	InstanceType = "host"
)

// Provider implements [providers.Provider] and [providers.Checker]. Use New. Safe for concurrent use; all state is on the hosts.
type Provider struct {
	// creating has one element while a Create runs: of two calls with one token the second must see all the first made.
	creating chan struct{}
}

var (
	_ providers.Provider = (*Provider)(nil)
	_ providers.Checker  = (*Provider)(nil)
)

// New returns the provider.
func New() *Provider { return &Provider{creating: make(chan struct{}, 1)} }

// Info describes the provider.
func (p *Provider) Info(context.Context) (providers.Info, error) {
	return providers.Info{
		Name:         Name,
		Version:      "1",
		Capabilities: []providers.Capability{providers.CanCheck},
		Schema: []providers.Attribute{
			{Name: "hosts", Type: "list(string)", Required: true, Doc: "[user@]host[:port] of each host"},
			{Name: "user", Type: "string", Default: `"root"`, Doc: "account on the hosts"},
			{Name: "key", Type: "file", Required: true, Doc: "path of the private ed25519 key that may log in there, or the key itself"},
			{Name: "host_key", Type: "string", Required: true, Doc: `known_hosts lines of all hosts, as ssh-keyscan prints them: file("known_hosts")`},
			{Name: "usd_per_hour", Type: "number", Default: "0", Doc: "what one host costs"},
		},
		NoticeSource:    "none",
		DefaultUser:     "root",
		BillingInterval: time.Second,
		LeakBoundDoc:    "the agent ends all it started when the node lease is over; the host itself stays",
		SeparateHosts:   true,
		FixedHosts:      true,
	}, nil
}

// settings is the provider block, read and checked.
type settings struct {
	hosts []host
	key   []byte
	price float64
}

// host is one of the list.
type host struct {
	address string // host:port, its identity
	user    string
	keys    []string // public lines
}

type block struct {
	Hosts      []string        `json:"hosts"`
	User       string          `json:"user"`
	Key        string          `json:"key"`
	HostKey    json.RawMessage `json:"host_key"` // a string, or a list of them
	USDPerHour float64         `json:"usd_per_hour"`
}

func parse(op string, raw json.RawMessage) (settings, error) {
	invalid := func(attribute, format string, args ...any) (settings, error) {
		refusal := providers.Errorf(providers.Invalid, op, format, args...)
		refusal.Attribute = attribute
		return settings{}, refusal
	}
	b := block{User: "root"}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &b); err != nil {
			attribute := ""
			if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
				attribute = wrong.Field
			}
			return invalid(attribute, "read the provider block: %w", err)
		}
	}
	s := settings{price: b.USDPerHour}
	if !(s.price >= 0) {
		return invalid("usd_per_hour", "a price cannot be negative")
	}
	if len(b.Hosts) == 0 {
		return invalid("hosts", "no hosts")
	}
	known, err := knownHosts(b.HostKey)
	if err != nil {
		return invalid("host_key", "%w", err)
	}
	if s.key, err = readKey(b.Key); err != nil {
		return invalid("key", "%w", err)
	}
	seen := map[string]bool{}
	for i, text := range b.Hosts {
		attribute := fmt.Sprintf("hosts[%d]", i)
		h, err := parseHost(text, b.User)
		if err != nil {
			return invalid(attribute, "%w", err)
		}
		if seen[h.address] {
			return invalid(attribute, "host %s is listed twice", h.address)
		}
		seen[h.address] = true
		if h.keys = known.of(h.address); len(h.keys) == 0 {
			return invalid("host_key", "no ed25519 host key of %s", h.address)
		}
		s.hosts = append(s.hosts, h)
	}
	return s, nil
}

func parseHost(text, user string) (host, error) {
	h := host{user: user}
	rest := text
	if before, after, ok := strings.Cut(text, "@"); ok {
		h.user, rest = before, after
	}
	name, port, err := net.SplitHostPort(rest)
	if err != nil {
		name, port = strings.Trim(rest, "[]"), "22"
		if strings.Contains(name, ":") && net.ParseIP(name) == nil {
			return host{}, fmt.Errorf("%q is not [user@]host[:port]", text)
		}
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if name == "" || h.user == "" || err != nil || n == 0 || strings.ContainsAny(rest, " \t\n/@") {
		return host{}, fmt.Errorf("%q is not [user@]host[:port]", text)
	}
	h.address = net.JoinHostPort(strings.ToLower(name), port)
	return h, nil
}

// readKey takes the key itself, because on the head there is no file of the caller's.
func readKey(key string) ([]byte, error) {
	if key == "" {
		return nil, errors.New("no key")
	}
	data := []byte(key)
	if !strings.Contains(key, "-----BEGIN ") {
		path := key
		if rest, ok := strings.CutPrefix(key, "~/"); ok {
			home, err := os.UserHomeDir()
			if err != nil {
				return nil, err
			}
			path = filepath.Join(home, rest)
		}
		var err error
		if data, err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("read key: %w", err)
		}
	}
	if _, err := sshkey.ParsePrivate(data); err != nil {
		return nil, err
	}
	return data, nil
}

// HostKeys returns the pinned host keys (public lines) of the machine at the address, as the block has them. The machine
// serves SSH with these and never with CreateRequest.BirthHostKey.
func (p *Provider) HostKeys(config json.RawMessage, address string) ([]string, error) {
	s, err := parse("host keys", config)
	if err != nil {
		return nil, err
	}
	for _, h := range s.hosts {
		if h.address == address {
			return h.keys, nil
		}
	}
	return nil, providers.Errorf(providers.NotFound, "host keys", "%s is not one of the hosts", address)
}
