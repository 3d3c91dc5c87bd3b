package sched

import (
	"hash/fnv"
	"time"
)

const (
	// JitterPercent is how much a period varies to either side, so that proxies that happen to meet drift apart.
	JitterPercent = 5
	// StartGap is the distance between probes that are wanted at once. A burst of new proxies is spread at 250 per
	// second: 5 000 healthy proxies probed at the same moment gave 98 % false failures.
	StartGap = 4 * time.Millisecond
)

// FirstDue returns when the first probe of id is due: its phase within the period, counted from the epoch. It is the
// same after every restart and in every replica, without any state.
func FirstDue(now time.Time, id string, period time.Duration) time.Time {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	phase := time.Duration(mix(h.Sum64()) % uint64(period))
	due := now.Truncate(period).Add(phase)
	if due.Before(now) {
		due = due.Add(period)
	}
	return due
}

// mix spreads the bits of an FNV sum: ids that differ only at their end would otherwise fall close together.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// Jitter varies a delay by up to JitterPercent to either side; random is in [0, 1).
func Jitter(delay time.Duration, random float64) time.Duration {
	return delay + time.Duration((2*random-1)*JitterPercent/100*float64(delay))
}

// Next returns the due time after a probe that was due at due. Ticks that were missed (all slots taken, the machine
// suspended) are skipped and not made up for.
func Next(due, now time.Time, delay time.Duration) time.Time {
	next := due.Add(delay)
	if next.After(now) {
		return next
	}
	return now.Add(delay - now.Sub(due)%delay)
}

// Spreader hands out start times for what should run at once, StartGap apart. The zero value is ready.
type Spreader struct {
	last time.Time
}

// Next returns now, or the first free moment after it.
func (s *Spreader) Next(now time.Time) time.Time {
	at := s.last.Add(StartGap)
	if at.Before(now) {
		at = now
	}
	s.last = at
	return at
}
