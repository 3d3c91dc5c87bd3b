package host

import (
	"math/rand/v2"
	"time"
)

const (
	// MinBackoff is the pause after the first failed dial. It doubles with each one more.
	MinBackoff = time.Second
	// MaxBackoff is the longest pause.
	MaxBackoff = time.Minute
	// jitter is by how much a pause may be shorter, so that hosts that went down together are not dialled together.
	jitter = 0.25
)

// backoff is the pause between dials of a host that is down.
type backoff struct {
	pause time.Duration
	until time.Time
}

// failed notes a failed dial and gives the pause after it.
func (b *backoff) failed(now time.Time) time.Duration {
	b.pause = min(max(2*b.pause, MinBackoff), MaxBackoff)
	pause := time.Duration(float64(b.pause) * (1 - jitter*rand.Float64()))
	b.until = now.Add(pause)
	return pause
}

// waits tells whether the pause is not over.
func (b *backoff) waits(now time.Time) bool { return now.Before(b.until) }
