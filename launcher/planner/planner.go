// Package planner ranks what the providers offer for a job. It is pure: offers go in, candidates come out; it calls no
// provider, reads no clock and decides nothing that costs money.
package planner

import (
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/providers"
)

// Source is what one provider block of the job has on offer.
type Source struct {
	Block jobspec.Provider
	Info  providers.Info
	// Head and Workers are the offers for the two roles, all regions.
	Head, Workers []providers.Offer
	// Err says why there are none: no credentials, no answer.
	Err string
}

// Candidate is one region of one provider: a run lives inside it.
type Candidate struct {
	Provider string         `json:"provider"`
	Region   string         `json:"region"`
	Config   jobspec.Config `json:"config,omitempty"`
	Info     providers.Info `json:"-"`
	// Factor is the block's price_factor: the amounts below are at list price × Factor.
	Factor float64 `json:"price_factor"`
	// Head and Workers are the usable offers, best first.
	Head    []providers.Offer `json:"head"`
	Workers []providers.Offer `json:"workers"`
	// Count is how many workers the amounts are for.
	Count int `json:"count"`
	// USDPerHour is the whole cluster's price at the best offers; nil where one of them has no price.
	USDPerHour *float64 `json:"usd_per_hour"`
	// Buys is how long budget_usd lasts at that rate, the reserve for an orderly end left out; 0 without budget or price.
	Buys time.Duration `json:"buys,omitempty"`
	// WorstUSD is what a run costs that only max_duration ends: the amount at risk without a budget; nil without price.
	WorstUSD *float64 `json:"worst_usd,omitempty"`
}

// Rejection is an offer, or a whole region or provider, that cannot be used.
type Rejection struct {
	Provider     string           `json:"provider"`
	Region       string           `json:"region,omitempty"`
	Zone         string           `json:"zone,omitempty"`
	Role         providers.Role   `json:"role,omitempty"`
	InstanceType string           `json:"instance_type,omitempty"`
	Market       providers.Market `json:"market,omitempty"`
	Why          string           `json:"why"`
}

// Ranking is the outcome: candidates best first, and what was left out.
type Ranking struct {
	Candidates []Candidate `json:"candidates"`
	Rejected   []Rejection `json:"rejected,omitempty"`
}
