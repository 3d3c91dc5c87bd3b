package fsm

import "time"

// MaxRetryAfter bounds how long a throttling proxy may keep itself unprobed.
const MaxRetryAfter = 10 * time.Minute

// Timing holds the distances between probes of one proxy.
type Timing struct {
	// Period while the verdict stands unchallenged.
	Period time.Duration
	// Fast while it is unknown or challenged.
	Fast time.Duration
	// UnhealthyMax bounds the back-off of proxies that stay unhealthy.
	UnhealthyMax time.Duration
}

// Last is what the delay depends on besides the verdict.
type Last struct {
	Kind Kind
	// NoFast: repeating soon does not help.
	NoFast bool
	// Local: the probe failed for reasons of our own and counts for nothing.
	Local bool
	// RetryAfter is what a throttling proxy asked for; zero for none.
	RetryAfter time.Duration
}

// Delay returns how long after the last probe the next one is due.
func (m *Machine) Delay(now time.Time, t Timing, last Last) time.Duration {
	switch {
	case last.Local:
		return t.Fast
	case last.RetryAfter > 0:
		return min(max(last.RetryAfter, t.Period), max(MaxRetryAfter, t.Period))
	case last.Kind == Neutral, last.Kind == Held:
		return t.Period
	case m.status == Unhealthy && last.Kind == Failure:
		// As long again as it has been down: a short outage ends soon after its end, a long one costs little.
		floor := t.Fast
		if last.NoFast {
			floor = t.Period
		}
		return min(max(now.Sub(m.since), floor), max(t.UnhealthyMax, floor))
	case last.NoFast:
		return t.Period
	case m.status == Healthy && m.failures == 0:
		return t.Period
	default:
		return t.Fast
	}
}
