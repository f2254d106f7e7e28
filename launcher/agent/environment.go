package agent

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ephemeral-launcher/launcher/launcher/control"
)

// rdzvConf makes torchrun quick where the head decides: no node of a c10d rendezvous is its host, and a round is
// complete when all are there, which torch/distributed/elastic/rendezvous/dynamic_rendezvous.py waits out otherwise.
const rdzvConf = "is_host=0,read_timeout=900,join_timeout=3600,last_call_timeout=1"

// rankEnvironment is the environment of one rank process, or of torchrun. Later entries win, and ours come last: a
// job that sets RANK does not know its rank.
//
// The names and values are those of torch/distributed/elastic/agent/server/local_elastic_agent.py, and for torchrun
// PET_ and an option's name as in torch/distributed/argparse_util.py.
func (a *Agent) rankEnvironment(s *control.Start, local uint32) []string {
	env := environment{}
	env.addAll(a.o.Environ)
	env.addMap(s.Env)
	env.addMap(s.Secrets)
	generation := strconv.FormatUint(s.World.GetGeneration(), 10)
	run := a.o.Join.Run
	port := portOf(a.o.Store.Addr())
	own := &control.Member{}
	for _, m := range s.World.GetMembers() {
		if m.Node == a.o.Join.Node {
			own = m
		}
	}
	if s.Checkpoint != "" {
		env["LAUNCHER_CHECKPOINT"] = a.inWorkdir(s.Checkpoint)
	}
	if a.o.API != nil {
		env["LAUNCHER_API"] = "http://" + a.o.API.Addr().String()
		env["LAUNCHER_API_TOKEN"] = a.token
	}
	env.addMap(map[string]string{
		"LAUNCHER_RUN":         run,
		"LAUNCHER_NODE":        a.o.Join.Node,
		"LAUNCHER_SLOT":        number(a.o.Join.Slot),
		"LAUNCHER_GENERATION":  generation,
		"LAUNCHER_NODE_ADDR":   own.Address,
		"LAUNCHER_HOSTFILE":    a.path("run/hostfile"),
		"LAUNCHER_NOTICE_FILE": a.path("run/notice.json"),
		"LAUNCHER_SCRATCH":     a.path("scratch"),

		"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
		"MASTER_ADDR":                        "127.0.0.1",
		"MASTER_PORT":                        port,
	})
	// Lines that wait in Python's buffer come late, and those of a process that is killed never.
	env.addDefault("PYTHONUNBUFFERED", "1")
	if s.Procs > 1 {
		// As torchrun does, lest every process starts a thread per core.
		env.addDefault("OMP_NUM_THREADS", "1")
	}
	if name := interfaceOf(own.Address); name != "" {
		// Left alone, gloo takes the interface of the host's name, which is often loopback, and NCCL the first it meets.
		env.addDefault("GLOO_SOCKET_IFNAME", name)
		env.addDefault("NCCL_SOCKET_IFNAME", "="+name) // "=": no prefix
	}
	if s.Kind == control.RunKind_TORCHRUN {
		for _, name := range []string{"PET_STANDALONE", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NODE_RANK"} {
			delete(env, name)
		}
		env.addMap(map[string]string{
			"PET_NNODES":           or(s.TorchrunNnodes, strconv.Itoa(len(s.World.GetMembers()))),
			"PET_NPROC_PER_NODE":   number(s.Procs),
			"PET_RDZV_BACKEND":     "c10d",
			"PET_RDZV_ENDPOINT":    "127.0.0.1:" + port,
			"PET_RDZV_ID":          or(s.TorchrunRdzvId, run+"-"+generation),
			"PET_RDZV_CONF":        or(s.TorchrunRdzvConf, rdzvConf),
			"PET_MAX_RESTARTS":     number(s.TorchrunMaxRestarts),
			"PET_MONITOR_INTERVAL": "0.1",
		})
		if own.Address != "" {
			// torchrun from 2.0 on ranks its nodes by this text and tells them apart by it and the pid; so it counts as the head does. As an address
			// it would be read under MASTER_ADDR only, and the head's store has the true one there.
			env["PET_LOCAL_ADDR"] = fmt.Sprintf("%06d.%s", s.GroupRank, own.Address)
		}
		return env.list()
	}
	rank := s.FirstRank + local
	env.addMap(map[string]string{
		"RANK":                         number(rank),
		"LOCAL_RANK":                   number(local),
		"WORLD_SIZE":                   number(s.WorldSize),
		"LOCAL_WORLD_SIZE":             number(s.Procs),
		"GROUP_RANK":                   number(s.GroupRank),
		"GROUP_WORLD_SIZE":             strconv.Itoa(len(s.World.GetMembers())),
		"ROLE_NAME":                    "default",
		"ROLE_RANK":                    number(rank),
		"ROLE_WORLD_SIZE":              number(s.WorldSize),
		"NODE_RANK":                    number(s.GroupRank),
		"TORCHELASTIC_USE_AGENT_STORE": "True",
		"TORCHELASTIC_RESTART_COUNT":   number(s.Restarts),
		"TORCHELASTIC_MAX_RESTARTS":    number(s.MaxRestarts),
		"TORCHELASTIC_RUN_ID":          run,
	})
	env.addDefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
	return env.list()
}

// jobEnvironment is that of setup and of commands the user runs: the job's own, with what does not depend on a
// generation.
func (a *Agent) jobEnvironment(env ...map[string]string) []string {
	e := environment{}
	e.addAll(a.o.Environ)
	for _, m := range env {
		e.addMap(m)
	}
	e.addMap(map[string]string{
		"LAUNCHER_RUN":     a.o.Join.Run,
		"LAUNCHER_NODE":    a.o.Join.Node,
		"LAUNCHER_SLOT":    number(a.o.Join.Slot),
		"LAUNCHER_SCRATCH": a.path("scratch"),
	})
	return e.list()
}

type environment map[string]string

func (e environment) addAll(list []string) {
	for _, entry := range list {
		if name, value, ok := strings.Cut(entry, "="); ok {
			e[name] = value
		}
	}
}

func (e environment) addMap(m map[string]string) { maps.Copy(e, m) }

func (e environment) addDefault(name, value string) {
	if _, ok := e[name]; !ok {
		e[name] = value
	}
}

func (e environment) list() []string {
	list := make([]string, 0, len(e))
	for _, name := range slices.Sorted(maps.Keys(e)) {
		list = append(list, name+"="+e[name])
	}
	return list
}

func number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// interfaceOf is the name of the network interface that has the address; "" where none has, as behind NAT.
func interfaceOf(address string) string {
	want, err := netip.ParseAddr(address)
	if err != nil {
		return ""
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addresses {
			if has, err := netip.ParsePrefix(a.String()); err == nil && has.Addr().Unmap() == want.Unmap() {
				return i.Name
			}
		}
	}
	return ""
}

func portOf(addr net.Addr) string {
	_, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return ""
	}
	return port
}
