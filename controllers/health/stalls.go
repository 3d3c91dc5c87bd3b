package health

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// stallInterval is how often the engine looks whether it gets its CPU time.
	stallInterval = 100 * time.Millisecond
	// behind is how late the engine may run before it starts fewer probes at once. Each probe waits for the CPU several
	// times, and all of that counts against its timeout.
	behind = 50 * time.Millisecond
	// minStall is the shortest delay that excuses a timeout; a tenth of the timeout does as well, if that is longer.
	minStall = 500 * time.Millisecond
	// maxStalls is how many delays are remembered.
	maxStalls = 64
)

// stalls watches whether this process is kept from running, by its own work or by a busy neighbour. While it is, few
// probes are started at once, and those that time out say nothing about their proxies.
type stalls struct {
	// busy is told when the process falls behind and when it has caught up.
	busy func(bool)

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
	last, wasBehind := c.Now(), false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			now := c.Now()
			late := now.Sub(last) - stallInterval
			last = now
			s.note(now, late)
			if isBehind := late > behind; isBehind != wasBehind {
				wasBehind = isBehind
				s.busy(isBehind)
			}
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
