package main

import (
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ephemeral-launcher/launcher/launcher"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

func (a *app) statusCommand() *cli.Command {
	return &cli.Command{
		Name: "status", Usage: "show a run's nodes, generation and spend", ArgsUsage: "[RUN]",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "the nodes that are gone too"},
			outputFlag(),
		},
		Action: a.status,
	}
}

// runStatus is what `status -o json` prints.
type runStatus struct {
	Run         string            `json:"run"`
	Job         string            `json:"job"`
	State       string            `json:"state"`
	Supervisor  string            `json:"supervisor"`
	Provider    string            `json:"provider,omitempty"`
	Region      string            `json:"region,omitempty"`
	Generation  int               `json:"generation"`
	GenPhase    journal.GenPhase  `json:"generation_phase,omitempty"`
	WorldSize   int               `json:"world_size"`
	Want        int               `json:"want,omitempty"`
	Nodes       []nodeStatus      `json:"nodes"`
	SpendUSD    float64           `json:"spend_usd"`
	USDPerHour  float64           `json:"usd_per_hour"`
	Goodput     float64           `json:"goodput"`
	Preemptions int               `json:"preemptions"`
	Lost        int               `json:"lost"`
	Restarts    int               `json:"restarts"`
	Progress    *journal.Progress `json:"progress,omitempty"`
	// Stopping and Finished say why it ends, Result how it ended.
	Stopping *journal.Stopping `json:"stopping,omitempty"`
	Finished *journal.Finished `json:"finished,omitempty"`
	Result   *launcher.Result  `json:"result,omitempty"`
	Since    time.Time         `json:"since"`
	// AsOf is the newest event this is made from.
	AsOf time.Time `json:"as_of"`
}

type nodeStatus struct {
	Node  string        `json:"node"`
	Role  string        `json:"role"`
	Slot  int           `json:"slot"` // the head's is -1
	Phase journal.Phase `json:"phase"`
	// Notice: a preemption was announced. Suspect: its connection dropped.
	Notice  bool   `json:"notice,omitempty"`
	Suspect string `json:"suspect,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Machine string `json:"machine,omitempty"`
	Type    string `json:"instance_type,omitempty"`
	Zone    string `json:"zone,omitempty"`
	Market  string `json:"market,omitempty"`
	// USDPerHour is the list price; nil: not known.
	USDPerHour *float64   `json:"usd_per_hour"`
	Since      *time.Time `json:"since,omitempty"` // when its machine was asked for
}

func (a *app) status(c *cli.Context) error {
	args, _, err := operands(c, 0, 1)
	if err != nil {
		return err
	}
	asJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	opts, err := a.options()
	if err != nil {
		return err
	}
	run, err := a.findRun(args, opts)
	if err != nil {
		return err
	}
	ctx, cancel := interruptible(c.Context)
	defer cancel()
	state, err := a.present(ctx, run, opts)
	if err != nil {
		return err
	}
	s := statusOf(state, time.Now(), c.Bool("all") || state.Clean != nil)
	if s.Result, err = stored(run, opts); err != nil {
		return err
	}
	if asJSON {
		return a.ui.printJSON(s)
	}
	a.ui.status(s, time.Now())
	return nil
}

// statusOf makes the document from the state.
func statusOf(s *journal.State, now time.Time, all bool) *runStatus {
	at := s.At
	if s.Clean == nil {
		at = max(at, journal.At(now.Sub(s.Began))) // machines bill between events too
	}
	r := &runStatus{
		Run: s.Run, Job: s.Created.JobName, State: runState(s), Supervisor: "client", Generation: s.Generation.Number, GenPhase: s.Generation.Phase,
		WorldSize: s.Generation.WorldSize, Want: s.Want, Nodes: []nodeStatus{}, SpendUSD: s.SpendUSD(at), USDPerHour: s.USDPerHour(), Goodput: s.Goodput(at),
		Preemptions: s.Preemptions, Lost: s.LostNodes, Restarts: s.Restarts, Progress: s.Progress, Stopping: s.Stopping, Finished: s.Finished,
		Since: s.Began, AsOf: s.Began.Add(s.At.Duration()),
	}
	if s.Epoch%2 == 0 {
		r.Supervisor = "head"
	}
	if s.Planned != nil {
		r.Provider, r.Region = s.Planned.Provider, s.Planned.Region
	}
	for _, n := range s.List("") {
		if all || !n.Phase.Ended() {
			r.Nodes = append(r.Nodes, nodeOf(n, s.Began))
		}
	}
	return r
}

func nodeOf(n *journal.Node, began time.Time) nodeStatus {
	v := nodeStatus{
		Node: n.Name, Role: string(n.Role), Slot: n.Slot, Phase: n.Phase, Notice: n.Notice != nil, Suspect: n.Suspect, Reason: n.Reason,
	}
	if m := n.Machine; m != nil {
		v.Machine, v.Type, v.Zone, v.Market = m.ID, m.Offer.InstanceType, m.Offer.Zone, string(m.Offer.Market)
	}
	if usd, ok := n.USDPerHour(); ok {
		v.USDPerHour = &usd
	}
	if n.IntendedAt >= 0 {
		since := began.Add(n.IntendedAt.Duration())
		v.Since = &since
	}
	return v
}

func (u *ui) status(s *runStatus, now time.Time) {
	u.printf("%s: %s", s.Run, s.State)
	if s.Finished != nil {
		u.printf(", %s", endText(s.Finished.Stopping))
	} else if s.Stopping != nil {
		u.printf(", %s", endText(*s.Stopping))
	}
	u.printf("\n")
	if s.Generation > 0 {
		u.printf("generation %d, %s, world size %d\n", s.Generation, s.GenPhase, s.WorldSize)
	}
	u.printf("%s spent, %s/h now, goodput %.0f %%, %s, %s\n", dollars(s.SpendUSD), dollars(s.USDPerHour), 100*s.Goodput, count(s.Preemptions, "preemption"), lostText(s.Lost))
	if s.Progress != nil {
		u.printf("step %d\n", s.Progress.Step)
	}
	rows := [][]string{{"NODE", "ROLE", "SLOT", "PHASE", "MACHINE", "TYPE", "ZONE", "MARKET", "PRICE", "AGE"}}
	for _, n := range s.Nodes {
		phase, slot, age := string(n.Phase), strconv.Itoa(n.Slot), ""
		if n.Notice && !n.Phase.Ended() {
			phase += " (notice)"
		}
		if n.Suspect != "" && !n.Phase.Ended() {
			phase += " (suspect)"
		}
		if n.Slot < 0 {
			slot = "-"
		}
		if n.Since != nil {
			age = span(now.Sub(*n.Since))
		}
		rows = append(rows, []string{n.Node, n.Role, slot, phase, n.Machine, n.Type, n.Zone, n.Market, price(n.USDPerHour), age})
	}
	if len(rows) > 1 {
		u.table(rows)
	}
	if s.Result != nil && s.Result.Outputs != "" {
		u.printf("outputs %s\n", s.Result.Outputs)
	}
}
