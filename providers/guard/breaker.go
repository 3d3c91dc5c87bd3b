package guard

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// BreakerThreshold is how many calls in a row must fail with Unavailable or Auth before the breaker opens.
	BreakerThreshold = 5
	// BreakerOpenFor is how long an open breaker lets nothing through; then one call may try.
	BreakerOpenFor = 30 * time.Second
)

// breaker is closed (calls pass), open (none passes) or half open (one call is under way to find out).
type breaker struct {
	clock clock.PassiveClock

	mu        sync.Mutex
	failures  int
	openUntil time.Time // zero: closed
	probing   bool
}

func newBreaker(c clock.PassiveClock) *breaker { return &breaker{clock: c} }

// allow tells whether a call may be made, or else how long to wait.
func (b *breaker) allow() (time.Duration, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.openUntil.IsZero() {
		return 0, true
	}
	if wait := b.openUntil.Sub(b.clock.Now()); wait > 0 {
		return wait, false
	}
	if b.probing {
		return BreakerOpenFor, false
	}
	b.probing = true
	return 0, true
}

func (b *breaker) success() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures, b.openUntil, b.probing = 0, time.Time{}, false
}

func (b *breaker) failure() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures++
	b.probing = false
	if b.failures >= BreakerThreshold {
		b.openUntil = b.clock.Now().Add(BreakerOpenFor)
	}
}

// forgive takes back an allowed call that had no outcome.
func (b *breaker) forgive() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
}

func (b *breaker) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.openUntil.IsZero()
}
