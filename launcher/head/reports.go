package head

import (
	"strings"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
	"github.com/ephemeral-launcher/launcher/launcher/rendezvous"
)

// report takes in what an agent says.
func (l *worldLoop) report(k *link, r *control.Report) {
	name := k.name
	if l.links[name] != k {
		return // a node that is not ours any more
	}
	l.step(rendezvous.Heard{Node: name})
	switch b := r.Body.(type) {
	case *control.Report_StartFailed:
		l.Log.Warn("start refused", "node", name, "error", b.StartFailed.Error)
		l.step(rendezvous.Ended{Node: name, Generation: int(b.StartFailed.Generation)})
	case *control.Report_Exited:
		l.exited(name, b.Exited)
	case *control.Report_Ended:
		l.step(rendezvous.Ended{Node: name, Generation: int(b.Ended.Generation)})
	case *control.Report_Notice:
		l.noticed(name, b.Notice, time.Duration(b.Notice.DeadlineStampNs-r.StampNs))
	case *control.Report_Progress:
		l.progressed(k, b.Progress)
	case *control.Report_Scale:
		l.scaled(int(b.Scale.Workers), name)
	case *control.Report_Checkpoint:
		l.checkpointed(k, b.Checkpoint)
	case *control.Report_SetupDone:
		k.settleSetup(b.SetupDone)
	case *control.Report_Rekeyed:
		k.settleRekey(b.Rekeyed)
	case *control.Report_LeaseOver:
		l.Log.Warn("member lease over", "node", name, "generation", b.LeaseOver.Generation)
	}
}

func (l *worldLoop) exited(node string, e *control.Exited) {
	phase := rendezvous.ByItself
	if e.Phase >= control.Phase_TERMINATED {
		phase = rendezvous.AfterTerm
	}
	var lines []string
	if e.Code != 0 && e.LastLines != "" {
		lines = strings.Split(strings.TrimRight(e.LastLines, "\n"), "\n")
	}
	l.record(nil, journal.NewEvent(journal.ProcessExited, node, int(e.Generation), journal.Exited{
		Rank: int(e.Rank), LocalRank: int(e.LocalRank), Code: int(e.Code), Signal: e.Signal, LastLines: lines, Asked: phase != rendezvous.ByItself || e.Phase == control.Phase_SIGNALLED,
	}))
	l.step(rendezvous.Exited{Node: node, Generation: int(e.Generation), LocalRank: int(e.LocalRank), Code: int(e.Code), Signal: e.Signal, Phase: phase})
}

// noticed takes in a preemption: the supervisor orders the replacement when it sees the event, the core plans the swap, and every node is told.
func (l *worldLoop) noticed(node string, n *control.Notice, left time.Duration) {
	deadline := max(l.Clock()+left, time.Nanosecond)
	if n.Withdrawn {
		// Its replacement is on the way and will have the slot, and two machines for one slot are one too many: it goes all the same.
		l.Log.Info("notice withdrawn", "node", node)
		return
	}
	if l.notices[node] == nil {
		at := journal.At(deadline)
		l.notices[node] = &control.NodeNotice{Node: node, Slot: uint32(l.links[node].slot), DeadlineUnixNs: time.Now().Add(left).UnixNano(), Source: n.Source}
		l.record(nil, journal.NewEvent(journal.NodeNotice, node, 0, journal.Noticed{Source: n.Source, DeadlineAt: &at}))
		l.saveOutputs(false)
		l.tellWorld()
	}
	l.step(rendezvous.Notice{Node: node, Deadline: deadline})
}

// remember takes over a notice from the journal.
func (l *worldLoop) remember(node string, deadline time.Duration) {
	slot, _, err := journal.ParseNodeName(node)
	if err != nil {
		return // not a worker
	}
	l.notices[node] = &control.NodeNotice{Node: node, Slot: uint32(slot), DeadlineUnixNs: time.Now().Add(deadline - l.Clock()).UnixNano(), Source: "journal"}
	l.core.Step(l.Clock(), rendezvous.Notice{Node: node, Deadline: deadline})
}

// tellWorld sends the world and its notices to every member, for the node-local API and the notice files.
func (l *worldLoop) tellWorld() {
	if !l.formed {
		return
	}
	world := l.worldMessage()
	for _, m := range l.generation.Members {
		if k := l.links[m.Node]; k != nil {
			k.order(&control.Order{Body: &control.Order_Notify{Notify: &control.Notify{World: world}}})
		}
	}
}

func (l *worldLoop) progressed(k *link, p *control.Progress) {
	if l.formed && int(p.Generation) == l.generation.Generation {
		l.record(nil, journal.NewEvent(journal.ProgressReported, k.name, int(p.Generation), journal.Progress{Step: p.Step, Numbers: p.Numbers}))
	}
}

// scaled passes on what the job asks for; what the job file does not allow is passed over.
func (l *worldLoop) scaled(workers int, by string) {
	w := l.Job.Workers
	if workers < 1 || !w.Fixed && (workers < w.Min || workers > w.Max) {
		l.Log.Warn("scale refused", "workers", workers, "by", by)
		return
	}
	l.record(nil, journal.NewEvent(journal.RunScaled, "", 0, journal.Scaled{Workers: workers, By: by}))
}

// lose gives a node up that can never join: its host key is wrong, or setup fails on it. The core says nothing of a node outside
// the generation, so what is not known from another event is recorded here: else the supervisor would wait for the node.
func (l *worldLoop) lose(node, cause string, known bool) {
	k := l.links[node]
	if k == nil {
		return
	}
	l.step(rendezvous.Gone{Node: node, Evidence: cause})
	if l.links[node] != k {
		return
	}
	if known {
		l.dismiss(node)
		return
	}
	l.lost(rendezvous.Lost{Node: node, Cause: cause})
}

// joined makes a prepared node a member.
func (l *worldLoop) joined(k *link, procs int, hello *control.HelloReport) {
	name := k.name
	if l.links[name] != k {
		return
	}
	k.member = true
	l.record(nil, journal.NewEvent(journal.NodeJoined, name, 0, journal.Joined{Procs: procs, CPUs: int(hello.Cpus), GPUs: len(hello.Gpus)}))
	running := 0
	if hello.State == control.GenerationState_RUNNING || hello.State == control.GenerationState_ENDING {
		running = int(hello.Generation)
	}
	l.step(rendezvous.Joined{Node: name, Slot: k.slot, Attempt: k.attempt, Procs: procs, Addr: hostOf(k.node.ClusterAddress), Running: running})
	if running == 0 && l.formed && k.startedBefore(l.generation.Generation) {
		l.step(rendezvous.Ended{Node: name, Generation: l.generation.Generation})
	}
}
