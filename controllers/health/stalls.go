package health

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// stallInterval is how often the engine looks whether it gets its CPU time.
	stallInterval = 250 * time.Millisecond
	// minStall is the shortest delay that excuses a timeout; a tenth of the timeout does as well, if that is longer.
	minStall = 500 * time.Millisecond
	// maxStalls is how many delays are remembered.
	maxStalls = 64
)

// stalls remembers when this process was kept from running. A probe that timed out then says nothing about the proxy:
// a busy neighbour must not make a fleet unhealthy.
type stalls struct {
	mu   sync.Mutex
	seen []stall
}

type stall struct {
	end    time.Time
	length time.Duration
}

// watch measures how late a ticker is until ctx ends.
func (s *stalls) watch(ctx context.Context, c clock.WithTicker) {
	ticker := c.NewTicker(stallInterval)
	defer ticker.Stop()
	last := c.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			now := c.Now()
			s.note(now, now.Sub(last)-stallInterval)
			last = now
		}
	}
}

func (s *stalls) note(end time.Time, length time.Duration) {
	if length < minStall {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) == maxStalls {
		s.seen = s.seen[1:]
	}
	s.seen = append(s.seen, stall{end, length})
}

// during reports whether a probe that began at start and had the given timeout was held up by this process.
func (s *stalls) during(start time.Time, timeout time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.seen {
		if x.end.After(start) && x.length >= max(minStall, timeout/10) {
			return true
		}
	}
	return false
}
