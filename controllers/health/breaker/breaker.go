// Package breaker notices that a probe target, and not the proxies, stopped working. It is pure: time comes in as an
// argument.
//
// It opens only when almost nobody succeeds. A breaker at 50 % would hide a real loss of 70 % of a fleet for ever; at
// 10 % it hides none, and still opens before the first proxy has failed often enough to fall.
package breaker

import "time"

const (
	// MinSamples is how many proxies must have been asked since the trouble began. Smaller fleets cannot tell a dead
	// target from dead proxies this way.
	MinSamples = 10
	// MaxSuccessPercent is the share of successes up to which a target is suspect.
	MaxSuccessPercent = 10
	// MaxHold is how long a suspect target may hold failures back where there is no other to ask. It bounds how long a
	// real loss of a whole fleet stays hidden.
	MaxHold = 15 * time.Minute
	// TrialInterval is how often a suspect target is tried when probes can go elsewhere.
	TrialInterval = 5 * time.Second

	// History is how far back samples reach: the longest row of failures that decides, with its timeouts.
	History = 8 * time.Minute
)

const buckets = int64(History / time.Second)

// Breaker watches one target. It is not safe for concurrent use.
type Breaker struct {
	samples   [buckets]sample
	openTime  time.Time // zero: closed
	trialTime time.Time
}

type sample struct {
	second      int64
	ok, notFine int32
}

// Record counts one sample about the target: the success of a proxy, or the *first* failure in a row of one that was
// healthy before. Later failures of the same row would count failing proxies many times over, since they are probed
// more often. It reports whether the sample closed the breaker: a success through any proxy proves that the target is
// up.
func (b *Breaker) Record(now time.Time, ok bool) (closed bool) {
	s := b.at(now)
	if !ok {
		s.notFine++
		return false
	}
	s.ok++
	closed = b.Open()
	b.openTime = time.Time{}
	return closed
}

// Suspect reports whether a failure in a row that began at since should be put down to the target. It opens the
// breaker when the samples since then say so.
func (b *Breaker) Suspect(now, since time.Time) bool {
	if b.Open() {
		return true
	}
	ok, all := b.count(now, since)
	if all < MinSamples || ok*100 > all*MaxSuccessPercent {
		return false
	}
	b.openTime = now
	return true
}

// Open reports whether the target is suspect. It stays so until a success.
func (b *Breaker) Open() bool { return !b.openTime.IsZero() }

// Exhausted reports whether the target has been suspect for longer than MaxHold.
func (b *Breaker) Exhausted(now time.Time) bool { return b.Open() && now.Sub(b.openTime) > MaxHold }

// TryTrial reports whether it is time to try a suspect target again, and counts it as tried.
func (b *Breaker) TryTrial(now time.Time) bool {
	if now.Sub(b.trialTime) < TrialInterval {
		return false
	}
	b.trialTime = now
	return true
}

// count sums the samples after the second in which the trouble began; that second still has successes from before.
func (b *Breaker) count(now, since time.Time) (ok, all int64) {
	first := max(since.Unix()+1, now.Unix()-buckets+1)
	for i := range b.samples {
		if s := &b.samples[i]; s.second >= first && s.second <= now.Unix() {
			ok += int64(s.ok)
			all += int64(s.ok) + int64(s.notFine)
		}
	}
	return ok, all
}

func (b *Breaker) at(now time.Time) *sample {
	second := now.Unix()
	s := &b.samples[second%buckets]
	if s.second != second {
		*s = sample{second: second}
	}
	return s
}
