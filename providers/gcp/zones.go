package gcp

import (
	"maps"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// How long a zone is left alone, by what was lacking. They fit how long such things last, as users of Compute Engine report.
const (
	// StockoutCooldown doubles with each further stock-out, up to StockoutCooldownMax.
	StockoutCooldown    = 5 * time.Minute
	StockoutCooldownMax = time.Hour
	// UnsupportedCooldown is for a machine type that the zone does not have.
	UnsupportedCooldown = time.Hour
	// QuotaCooldown is for the whole region: quotas are.
	QuotaCooldown = 10 * time.Minute
	// AddressCooldown is for the whole region, whose subnetwork has no free address: one is free when any VM goes.
	AddressCooldown = time.Minute
	// PolicyCooldown is for all zones: a policy of the organization does not look at them, except one about locations.
	PolicyCooldown = 10 * time.Minute
)

// cause is what was lacking.
type cause string

const (
	causeStockout    cause = "stock-out"
	causeUnsupported cause = "unsupported"
	causeQuota       cause = "quota"
	causeAddresses   cause = "addresses"
	causePolicy      cause = "policy"
	causeLocation    cause = "location"
)

// closure is where and for which machine type nothing is to be had; "" is everywhere and every type.
type closure struct{ place, machineType string }

type cooldown struct {
	cause cause
	until time.Time
	// step is the last length of a stock-out's.
	step time.Duration
}

// zoneBook remembers where an attempt came to nothing lately. It is only a hint for the next choice: a restart forgets it.
type zoneBook struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	entries map[closure]cooldown
}

func newZoneBook(c clock.PassiveClock) *zoneBook {
	return &zoneBook{clock: c, entries: map[closure]cooldown{}}
}

// note takes in that a machine type was not to be had in a zone.
func (b *zoneBook) note(zone, machineType string, why cause) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key, step := closure{zone, machineType}, StockoutCooldown
	switch why {
	case causeUnsupported:
		step = UnsupportedCooldown
	case causeQuota:
		key, step = closure{place: regionOf(zone), machineType: machineType}, QuotaCooldown
	case causeAddresses:
		key, step = closure{place: regionOf(zone)}, AddressCooldown
	case causePolicy:
		key, step = closure{}, PolicyCooldown
	case causeLocation:
		key, step = closure{place: zone}, PolicyCooldown
	}
	now := b.clock.Now()
	maps.DeleteFunc(b.entries, func(_ closure, c cooldown) bool { return !now.Before(c.until.Add(StockoutCooldownMax)) })
	before := b.entries[key]
	if why == causeStockout && before.cause == why {
		switch {
		case now.Before(before.until):
			// The same stock-out, met by another Proxy.
			step = before.step
		case now.Before(before.until.Add(StockoutCooldownMax)):
			step = min(2*before.step, StockoutCooldownMax)
		}
	}
	if until := now.Add(step); until.After(before.until) {
		b.entries[key] = cooldown{why, until, step}
	}
}

// closed tells whether a zone is to be left alone for a machine type.
func (b *zoneBook) closed(zone, machineType string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	for _, key := range []closure{{zone, machineType}, {place: zone}, {regionOf(zone), machineType}, {place: regionOf(zone)}, {}} {
		if now.Before(b.entries[key].until) {
			return true
		}
	}
	return false
}

// lacks tells whether a zone is known not to have a machine type.
func (b *zoneBook) lacks(zone, machineType string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.entries[closure{zone, machineType}]
	return known.cause == causeUnsupported && b.clock.Now().Before(known.until)
}
