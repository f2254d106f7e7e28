package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/ephemeral-launcher/launcher/launcher"
	"github.com/ephemeral-launcher/launcher/launcher/planner"
	"github.com/ephemeral-launcher/launcher/providers"
)

func (a *app) planCommand() *cli.Command {
	return &cli.Command{
		Name: "plan", Usage: "show what a job would rent, where, and what it costs; rents nothing", ArgsUsage: "FILE",
		Flags:  []cli.Flag{varFlag(), outputFlag()},
		Action: a.plan,
	}
}

func (a *app) plan(c *cli.Context) error {
	args, _, err := operands(c, 1, 1)
	if err != nil {
		return err
	}
	asJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	job, err := a.load(args[0], c.StringSlice("var"))
	if err != nil {
		return err
	}
	opts, err := a.options()
	if err != nil {
		return err
	}
	plan, err := launcher.Plan(c.Context, job, opts)
	if err != nil {
		return err
	}
	if asJSON {
		err = a.ui.printJSON(plan)
	} else {
		a.ui.plan(plan, time.Now())
	}
	if err == nil && len(plan.Candidates) == 0 {
		return &launcher.NoCandidateError{Job: job.Name, Rejected: plan.Rejected, Providers: plan.Providers}
	}
	return err
}

// shownOffers and shownRejections are how many a text listing shows before it counts the rest.
const (
	shownOffers     = 4
	shownRejections = 12
)

// plan prints the candidates, best first, and why the others were rejected.
func (u *ui) plan(p *launcher.PlanResult, now time.Time) {
	for i, c := range p.Candidates {
		total := "price unknown"
		if c.USDPerHour != nil {
			total = dollars(*c.USDPerHour) + "/h"
		}
		u.printf("%d. %s %s: %s for the head and %s", i+1, c.Provider, c.Region, total, count(c.Count, "worker"))
		if c.Factor != 1 {
			u.printf(" at price_factor %g", c.Factor)
		}
		u.printf("\n")
		rows := [][]string{{"   role", "type", "zone", "market", "price", "dated", "source"}}
		rows = append(rows, offerRows("head", c.Head, now)...)
		rows = append(rows, offerRows("worker", c.Workers, now)...)
		u.table(rows)
		u.money(p, c)
	}
	for _, q := range p.Providers {
		if q.Error != "" {
			u.printf("provider %s could not be asked: %s\n", q.Name, q.Error)
			continue
		}
		u.printf("provider %s: %s\n", q.Name, strings.Join(providerFacts(q), "; "))
		for _, line := range identityNotes(q.Identity) {
			u.printf("   %s\n", line)
		}
	}
	u.printf("egress %s; a run lasts %s at most\n", p.Egress, span(p.MaxDuration))
	for i, r := range p.Rejected {
		if i == shownRejections {
			u.printf("rejected: %d more; launcher plan -o json has them all\n", len(p.Rejected)-i)
			break
		}
		where := strings.Join(strings.Fields(strings.Join([]string{r.Provider, r.Region, r.Zone, string(r.Role), r.InstanceType, string(r.Market)}, " ")), " ")
		u.printf("rejected: %s: %s\n", where, r.Why)
	}
}

func (u *ui) money(p *launcher.PlanResult, c planner.Candidate) {
	switch {
	case p.BudgetUSD > 0 && c.Buys > 0:
		u.printf("   the budget of %s buys %s of this\n", dollars(p.BudgetUSD), span(c.Buys))
	case p.BudgetUSD > 0:
		u.printf("   the budget of %s cannot be counted without prices\n", dollars(p.BudgetUSD))
	case c.WorstUSD != nil:
		u.printf("   no budget: at worst %s, when only max_duration ends it\n", dollars(*c.WorstUSD))
	default:
		u.printf("   no budget and no price: the worst case is not known\n")
	}
}

func offerRows(role string, offers []providers.Offer, now time.Time) [][]string {
	var rows [][]string
	for i, o := range offers {
		if i == shownOffers {
			rows = append(rows, []string{"   " + role, fmt.Sprintf("and %d more", len(offers)-i)})
			break
		}
		kind := o.InstanceType
		if o.GPU.Count > 0 {
			kind += fmt.Sprintf(" (%d × %s)", o.GPU.Count, o.GPU.Model)
		}
		rows = append(rows, []string{"   " + role, kind, o.Zone, string(o.Market), price(o.USDPerHour), priceAge(o.PriceDate, now), o.PriceSource})
	}
	return rows
}

// priceAge says how old a price is.
func priceAge(date, now time.Time) string {
	if date.IsZero() {
		return "unknown date"
	}
	if days := int(now.Sub(date).Hours() / 24); days > 0 {
		return fmt.Sprintf("%s, %s old", date.Format(time.DateOnly), count(days, "day"))
	}
	return "today"
}

func providerFacts(p launcher.PlanProvider) []string {
	var facts []string
	if p.Identity != nil && p.Identity.Owner != "" {
		facts = append(facts, "you are "+p.Identity.Owner)
	}
	facts = append(facts, "head identity "+orNone(p.HeadIdentity), "worker identity "+orNone(p.WorkerIdentity))
	return append(facts, "leak bound "+leakText(p.LeakBound, p.LeakBoundDoc))
}

func identityNotes(id *providers.Identity) []string {
	if id == nil {
		return nil
	}
	var lines []string
	for _, m := range id.Missing {
		lines = append(lines, "missing right: "+m)
	}
	return append(lines, id.Notes...)
}

func leakText(bound time.Duration, doc string) string {
	text := "none: it must be ended by hand"
	if bound >= 0 {
		text = span(bound)
	}
	if doc != "" {
		text += " (" + doc + ")"
	}
	return text
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
