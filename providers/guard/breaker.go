package guard

import (
	"sync"
	"time"

	"k8s.io/utils/clock"

	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// BreakerThreshold is how many calls in a row must fail with Unavailable or Auth before the breaker opens.
	BreakerThreshold = 5
	// BreakerOpenFor is how long an open breaker lets nothing through; then one call may try.
	BreakerOpenFor = 30 * time.Second
	// probeWait is when those may ask again who come while that one call is under way.
	probeWait = 5 * time.Second
	// probeTimeout is when the one call is given up: more than the longest timeout of a call. A provider that ignores its
	// context would otherwise hold the breaker open for ever.
	probeTimeout = 2 * time.Minute
)

// breaker is closed (calls pass), open (none passes) or half open (one call is under way to find out). The checks of the
// class pass always: they are few, and the first to know that a provider is back.
type breaker struct {
	clock clock.PassiveClock

	mu        sync.Mutex
	failures  int
	openUntil time.Time // zero: closed
	probing   time.Time // when the call began that finds out; zero: none is under way
	// cause is the last failure. What is refused because of it says the same, so that no condition changes with the
	// breaker's state.
	cause *providers.Error
}

func newBreaker(c clock.PassiveClock) *breaker { return &breaker{clock: c} }

// allow returns nil when a call may be made, or else the failure because of which it may not, and when to ask again.
func (b *breaker) allow() (until time.Time, cause *providers.Error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	switch {
	case b.openUntil.IsZero():
		return now, nil
	case now.Before(b.openUntil):
		return b.openUntil, b.cause
	case !b.probing.IsZero() && now.Before(b.probing.Add(probeTimeout)):
		return now.Add(probeWait), b.cause
	}
	b.probing = now
	return now, nil
}

func (b *breaker) success() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures, b.openUntil, b.probing, b.cause = 0, time.Time{}, time.Time{}, nil
}

// failure notes a call that failed. That a check failed does not keep an open breaker open: what it needs may be more than
// what the other calls need.
func (b *breaker) failure(err *providers.Error, check bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if check && !b.openUntil.IsZero() {
		return
	}
	b.failures++
	b.probing, b.cause = time.Time{}, err
	if b.failures >= BreakerThreshold {
		b.openUntil = b.clock.Now().Add(BreakerOpenFor)
	}
}

// forgive takes back an allowed call that had no outcome.
func (b *breaker) forgive(check bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !check {
		b.probing = time.Time{}
	}
}

func (b *breaker) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.openUntil.IsZero()
}
