package local

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/ephemeral-launcher/launcher/providers"
)

// settings is the provider block, read and completed.
type settings struct {
	root     string
	zones    []string
	capacity int // machines per zone; negative: unlimited
	boot     time.Duration
	notice   time.Duration
	silent   float64
	price    map[providers.Market]float64
	// The defaults date from when they were written here, a price of the block is today's.
	priceDate   time.Time
	priceSource string
}

// block mirrors Info.Schema.
type block struct {
	Root       string              `json:"root"`
	Zones      []string            `json:"zones"`
	Capacity   *int                `json:"capacity"`
	Boot       string              `json:"boot"`
	Notice     string              `json:"notice"`
	Silent     float64             `json:"silent"`
	USDPerHour map[string]*float64 `json:"usd_per_hour"`
	Isolation  string              `json:"isolation"`
}

func (p *Provider) parse(op string, raw json.RawMessage) (settings, error) {
	var b block
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &b); err != nil {
			refusal := providers.Errorf(providers.Invalid, op, "read the provider block: %w", err)
			if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
				refusal.Attribute = wrong.Field
			}
			return settings{}, refusal
		}
	}
	invalid := func(attribute, format string, args ...any) (settings, error) {
		refusal := providers.Errorf(providers.Invalid, op, format, args...)
		refusal.Attribute = attribute
		return settings{}, refusal
	}

	s := settings{
		zones:       []string{"a", "b", "c"},
		capacity:    -1,
		notice:      30 * time.Second,
		silent:      b.Silent,
		price:       map[providers.Market]float64{providers.Spot: 0.03, providers.OnDemand: 0.10},
		priceDate:   time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC),
		priceSource: "documented price of the local provider",
	}
	var err error
	if s.root, err = p.root(b.Root); err != nil {
		return invalid("root", "find the root folder: %w", err)
	}
	if len(b.Zones) > 0 {
		s.zones = b.Zones
	}
	zone := regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,29}$`)
	seen := map[string]bool{}
	for _, z := range s.zones {
		if !zone.MatchString(z) || seen[z] {
			return invalid("zones", "zone %q is not a name of its own of lower-case letters, digits and hyphens", z)
		}
		seen[z] = true
	}
	if b.Capacity != nil {
		if s.capacity = *b.Capacity; s.capacity < 0 {
			return invalid("capacity", "capacity %d is negative", s.capacity)
		}
	}
	for _, d := range []struct {
		name, text string
		to         *time.Duration
	}{{"boot", b.Boot, &s.boot}, {"notice", b.Notice, &s.notice}} {
		if d.text == "" {
			continue
		}
		if *d.to, err = time.ParseDuration(d.text); err != nil || *d.to < 0 {
			return invalid(d.name, "%q is not a duration such as 30s", d.text)
		}
	}
	if !(s.silent >= 0 && s.silent <= 1) {
		return invalid("silent", "silent %v is not between 0 and 1", s.silent)
	}
	for market, usd := range b.USDPerHour {
		m := providers.Market(market)
		if _, known := s.price[m]; !known {
			return invalid("usd_per_hour", "unknown market %q", market)
		}
		if usd == nil || !(*usd >= 0) {
			return invalid("usd_per_hour."+market, "a price cannot be negative")
		}
		s.price = maps.Clone(s.price)
		s.price[m] = *usd
		s.priceSource, s.priceDate = "usd_per_hour of the job file", time.Now().UTC().Truncate(24*time.Hour)
	}
	switch b.Isolation {
	case "", "none":
	case "netns":
		return invalid("isolation", `isolation "netns" is not available in this build`)
	default:
		return invalid("isolation", `isolation %q is not "none"`, b.Isolation)
	}
	return s, nil
}

// root finds the cloud: the block's own word, then the options', then the environment's.
func (p *Provider) root(configured string) (string, error) {
	for _, root := range []string{configured, p.opts.Root, os.Getenv(EnvRoot)} {
		if root == "" {
			continue
		}
		if !filepath.IsAbs(root) {
			return "", errors.New(root + " is not an absolute path")
		}
		return filepath.Clean(root), nil
	}
	home := os.Getenv("LAUNCHER_HOME")
	if state := os.Getenv("XDG_STATE_HOME"); home == "" && filepath.IsAbs(state) {
		home = filepath.Join(state, "launcher")
	}
	if home == "" {
		user, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		home = filepath.Join(user, ".local", "state", "launcher")
	}
	return filepath.Abs(filepath.Join(home, "local"))
}
