package guard

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/clock"

	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// maxLimiterWait is how long a call may wait for its turn; it holds a worker that other classes need too.
	maxLimiterWait = 2 * time.Second
	// DefaultPause is how long a class is left alone after RateLimited when the provider does not say for how long.
	DefaultPause = 10 * time.Second
	// maxPause bounds what a provider may ask for.
	maxPause = 5 * time.Minute
)

var errThrottled = errors.New("throttled")

// limiter is a token bucket that can be paused.
type limiter struct {
	clock  clock.WithTicker
	bucket *rate.Limiter

	mu     sync.Mutex
	paused time.Time
}

func newLimiter(c clock.WithTicker, l providers.Limits) *limiter {
	return &limiter{clock: c, bucket: rate.NewLimiter(
		rate.Limit(cmp.Or(l.CallsPerSecond, providers.DefaultCallsPerSecond)), cmp.Or(l.Burst, providers.DefaultBurst))}
}

// wait returns when the call may be made, or an error and when to ask again.
func (l *limiter) wait(ctx context.Context) (time.Time, error) {
	now := l.clock.Now()
	l.mu.Lock()
	paused := l.paused
	l.mu.Unlock()
	if paused.After(now) {
		return paused, errThrottled
	}
	reservation := l.bucket.ReserveN(now, 1)
	delay := reservation.DelayFrom(now)
	if delay <= 0 {
		return now, nil
	}
	if delay > maxLimiterWait {
		reservation.CancelAt(now)
		return now.Add(delay), errThrottled
	}
	timer := l.clock.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C():
		return now, nil
	case <-ctx.Done():
		reservation.CancelAt(l.clock.Now())
		return now.Add(delay), ctx.Err()
	}
}

// gap is the time between two calls at the limit's rate.
func gap(l providers.Limits) time.Duration {
	return time.Duration(float64(time.Second) / cmp.Or(l.CallsPerSecond, providers.DefaultCallsPerSecond))
}

// pause stops the class for as long as the provider asks; 0 means the default.
func (l *limiter) pause(d time.Duration) {
	until := l.clock.Now().Add(min(cmp.Or(d, DefaultPause), maxPause))
	l.mu.Lock()
	defer l.mu.Unlock()
	if until.After(l.paused) {
		l.paused = until
	}
}
