package guard

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// maxSpread bounds how far the callers of one class are spread; more of them than fit share the time.
const maxSpread = 5 * time.Minute

// places tells each caller that is refused a time of its own to come back, one call's share of the class's rate after
// the one before. Without it five hundred Proxies would wait for the same instant, find the provider well, and exceed
// the rate together.
type places struct {
	clock clock.PassiveClock
	gap   time.Duration

	mu   sync.Mutex
	last time.Time
}

// next is how long to wait for the next free place that is not before earliest.
func (p *places) next(earliest time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	place := p.last.Add(p.gap)
	if place.Before(earliest) || place.Sub(earliest) > maxSpread {
		place = earliest
	}
	p.last = place
	return place.Sub(p.clock.Now())
}
