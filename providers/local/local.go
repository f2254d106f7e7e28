// Package local rents machines that are processes of this computer: no account, no root, no network.
//
// # The cloud
//
// Everything this cloud knows lies in one folder, the root; whoever can write there is a customer, so two launchers with
// the same root see the same machines:
//
//	lock              flock: held to create, and to clear away the dead
//	new/ID/           a machine being prepared; worthless once nobody holds lock
//	machines/ID/      a machine: machine.json (the ledger's record), alive, control, lease, etc/ssh, bin, home, run, tmp, log
//	ended/ID.json     the record of a machine that ended, kept for a day
//
// A machine is intended, with its token and tags, when its folder is renamed into machines/. From before that moment
// until its last process is gone somebody holds an flock on its file alive: first the creator, then the machine itself,
// which inherits the lock and the listening control socket. A lock that is free is proof of death, in whatever PID namespace one looks from.
//
// # A machine
//
//	launcher machine outer DIR   the hypervisor: own session, in no namespace; lease, notice, deletion, ledger
//	└ launcher machine init DIR  PID 1 of a PID namespace where the kernel grants one; reaps; dies with the hypervisor
//	  └ launcher machine serve DIR   the SSH server on 127.0.0.1, and below it whatever is run over SSH
//
// The hypervisor of a machine also starts (and clears away) siblings on behalf of a provider that runs inside it, so
// that a head, itself a machine, can rent workers that outlive it.
//
// # What a guest finds
//
// Each process in a machine has a clean environment with
//
//	LAUNCHER_MACHINE         the machine's id; Delete ends all processes that carry it
//	LAUNCHER_MACHINE_NOTICE  where a JSON file {"action":"terminate","at":…,"deadline":…} (RFC 3339) appears, by rename, at a preemption notice
//	LAUNCHER_MACHINE_LEASE   a FIFO: a line "SECONDS" makes the machine end so much later unless renewed; a line "poweroff" ends it now
//	LAUNCHER_LOCAL_ROOT      the root
//
// besides HOME, PATH, TMPDIR, XDG_RUNTIME_DIR (0700, a tmpfs of the machine's own where the kernel allows), USER,
// LOGNAME, SHELL and LANG. First on PATH are the commands
//
//	poweroff, shutdown, halt         end the machine
//	launcher-machine-lease SECONDS   renew the lease; the TTL given to Create is its first value
//	launcher-machine-rekey           read a private host key (OpenSSH PEM) from stdin; connections made after it returned get this key and no other
//
// Below a user namespace (where the caller is not root) everybody is the caller, and setuid programs have no effect.
// Writing the FIFO instead of running the command costs no process: open it once O_WRONLY|O_NONBLOCK and write one line per renewal.
// The lease counts in boot time, suspended time included.
package local

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// Name is the provider's name in job files, and Region the name of its only region.
const (
	Name   = "local"
	Region = "local"
	// InstanceType is the one type on offer: a share of this computer.
	InstanceType = "local"
)

// The environment of a guest; see the package comment.
const (
	EnvMachine = "LAUNCHER_MACHINE"
	EnvNotice  = "LAUNCHER_MACHINE_NOTICE"
	EnvLease   = "LAUNCHER_MACHINE_LEASE"
	EnvRoot    = "LAUNCHER_LOCAL_ROOT"
)

// Options says where the cloud is and how a machine is started. The zero value is usable where the program's own
// command "machine" calls [MachineMain].
type Options struct {
	// Root is the folder of the cloud where the provider block names none. Default: $LAUNCHER_LOCAL_ROOT, else
	// "local" in $LAUNCHER_HOME, else in $XDG_STATE_HOME/launcher, else in ~/.local/state/launcher.
	Root string
	// Executable is the command line that, followed by MachineMain's arguments, calls [MachineMain]. Default: this executable and "machine".
	Executable []string
}

// Provider implements [providers.Provider], [providers.Preempter] and [providers.Checker]. Use New. It holds no state:
// everything is in the root folder. Safe for concurrent use, also by several processes.
type Provider struct {
	opts Options
	// sandbox restricts how a guest is confined; tests set it to have the ways of lesser kernels.
	sandbox string
	// patience is how long a hypervisor may take to end its machine before Delete uses signals.
	patience time.Duration
}

var (
	_ providers.Provider  = (*Provider)(nil)
	_ providers.Preempter = (*Provider)(nil)
	_ providers.Checker   = (*Provider)(nil)
)

// New returns the provider.
func New(opts Options) *Provider { return &Provider{opts: opts, patience: deletePatience} }

// Info describes the provider.
func (p *Provider) Info(context.Context) (providers.Info, error) {
	return providers.Info{
		Name:         Name,
		Version:      "1",
		Capabilities: []providers.Capability{providers.CanCheck, providers.CanPreempt},
		Schema: []providers.Attribute{
			{Name: "root", Type: "path", Doc: "folder of the machines and their ledger, absolute; default: local in $LAUNCHER_HOME"},
			{Name: "zones", Type: "list(string)", Default: `["a","b","c"]`, Doc: "names of the zones"},
			{Name: "capacity", Type: "number", Doc: "machines per zone; default: unlimited"},
			{Name: "boot", Type: "string", Default: `"0s"`, Doc: "how long a machine boots before its SSH port opens"},
			{Name: "notice", Type: "string", Default: `"30s"`, Doc: "how long before its end a preempted machine is told, where the drill does not say"},
			{Name: "silent", Type: "number", Default: "0", Doc: "share of preemptions that come without notice, 0 to 1"},
			{Name: "usd_per_hour", Type: "map(number)", Default: "{ spot = 0.03, on_demand = 0.10 }", Doc: "price by market"},
			{Name: "isolation", Type: "string", Default: `"none"`, Doc: `how machines are kept apart: "none" (they share the loopback interface)`},
		},
		NoticeSource:    "file",
		DefaultUser:     guestUser(),
		RotatesHostKeys: true,
		BillingInterval: time.Second,
		LeakBoundDoc:    "each machine is a process that ends itself when its lease is over",
	}, nil
}

// Check tells who the caller is: the owner of the root folder's machines.
func (p *Provider) Check(ctx context.Context, raw json.RawMessage) (providers.Identity, error) {
	cfg, err := p.parse("check", raw)
	if err != nil {
		return providers.Identity{}, err
	}
	if err := ctx.Err(); err != nil {
		return providers.Identity{}, ledgerError("check", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return providers.Identity{}, providers.Errorf(providers.Internal, "check", "hostname: %w", err)
	}
	id := providers.Identity{
		Owner: fmt.Sprintf("local:%s@%s", guestUser(), host),
		Notes: []string{"machines live in " + cfg.root},
	}
	// The nearest folder that exists must let us create the rest.
	at := cfg.root
	for {
		info, err := os.Stat(at)
		if err == nil {
			if !info.IsDir() || !writable(at) {
				id.Missing = append(id.Missing, "write "+at)
			}
			return id, nil
		}
		parent := filepath.Dir(at)
		if parent == at {
			id.Missing = append(id.Missing, "write "+cfg.root)
			return id, nil
		}
		at = parent
	}
}

// Offers lists each zone in each market asked for, at the price of the block.
func (p *Provider) Offers(ctx context.Context, req providers.OffersRequest) ([]providers.Offer, error) {
	cfg, err := p.parse("offers", req.Config)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, ledgerError("offers", err)
	}
	if !inRegions(req.Regions) {
		return nil, nil
	}
	cpus, memory := runtime.NumCPU(), memoryGiB()
	rejected := reject(req, cpus, memory)
	var offers []providers.Offer
	for _, market := range req.Markets {
		price, ok := cfg.price[market]
		if !ok {
			return nil, providers.Errorf(providers.Invalid, "offers", "unknown market %q", market)
		}
		for _, zone := range cfg.zones {
			offers = append(offers, providers.Offer{
				Provider: Name, InstanceType: InstanceType, Region: Region, Zone: zone, Market: market,
				CPUs: cpus, MemoryGiB: memory,
				USDPerHour:  new(price),
				PriceDate:   cfg.priceDate,
				PriceSource: cfg.priceSource,
				Rejected:    rejected,
			})
		}
	}
	return offers, nil
}

func inRegions(regions []string) bool {
	for _, r := range regions {
		if r == Region {
			return true
		}
	}
	return len(regions) == 0
}

// reject says why this computer does not satisfy the request.
func reject(req providers.OffersRequest, cpus int, memory float64) string {
	for _, name := range req.InstanceTypes {
		if name == InstanceType {
			return ""
		}
	}
	switch {
	case len(req.InstanceTypes) > 0:
		return fmt.Sprintf("the only instance type is %q", InstanceType)
	case len(req.GPUs) > 0:
		return "local machines have no GPU of their own"
	case req.CPUs > cpus:
		return fmt.Sprintf("this computer has %d CPUs", cpus)
	case req.MemoryGiB > memory && memory > 0:
		return "this computer has " + strconv.FormatFloat(memory, 'f', 1, 64) + " GiB of memory"
	}
	return ""
}

// guestUser is who we are, and so who everybody in a machine is.
func guestUser() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}
