// Package fsm turns the outcomes of one proxy's probes into a verdict that does not flap. It is pure: time comes in as
// an argument, and nothing is written anywhere.
package fsm

import (
	"math/bits"
	"time"
)

// Status is the standing verdict.
type Status uint8

// The verdicts. A proxy that was never judged is Unknown, which nobody may lease.
const (
	Unknown Status = iota
	Healthy
	Unhealthy
)

// String returns the name used in metrics.
func (s Status) String() string {
	return [...]string{"unknown", "healthy", "unhealthy"}[s]
}

// Reasons that the machine adds to those of its observations.
const (
	// ReasonProbing: not judged yet.
	ReasonProbing = "Probing"
	// ReasonFlapping: failed again soon after it had recovered.
	ReasonFlapping = "Flapping"
)

// Texts for users; stable.
const (
	MessageProbing  = "No probe has decided yet."
	messageFlapping = "Failed again within 30 minutes of an earlier failure, so more successes are asked for. "
)

const (
	// FlapWindow is how soon a second fall after a first one doubles the successes asked for.
	FlapWindow = 30 * time.Minute
	// MaxDamping is how often the successes asked for double at most: 16 times the threshold.
	MaxDamping = 4
	// ReasonInterval is how rarely a standing Unhealthy verdict changes its reason: each change is a status write.
	ReasonInterval = 10 * time.Minute
)

// Key says what is judged and how. A change of either makes results that are still on their way worthless.
type Key struct {
	// What: another instance or address is another thing, and its verdict starts at Unknown.
	UID, InstanceID, Address string
	// How: with other credentials or settings the counters start again, but the verdict stands until it is refuted.
	// Otherwise an edit of a class would take its whole fleet out of leasing at once.
	Credentials, Settings string
}

// Same reports whether both keys name the same thing.
func (k Key) Same(other Key) bool {
	return k.UID == other.UID && k.InstanceID == other.InstanceID && k.Address == other.Address
}

// Config holds the thresholds.
type Config struct {
	// Fall and Rise are how many failures or successes in a row change a verdict.
	Fall, Rise int
	// Targets is how many probe targets can be relied on. With two or more, failures that may be the target's fault
	// must come from two.
	Targets int
}

// Kind is how an observation counts.
type Kind uint8

const (
	// Success of a probe.
	Success Kind = iota
	// Failure of the proxy.
	Failure
	// Held is a failure that is put down to the target for now: it only marks when the trouble began.
	Held
	// Neutral says nothing about the proxy.
	Neutral
)

// Observation is the outcome of one probe.
type Observation struct {
	Kind            Kind
	Reason, Message string
	// Immediate failures do not wait for the threshold.
	Immediate bool
	// AboutTarget failures may be the target's fault; Target is its index, below 64.
	AboutTarget bool
	Target      int
}

// Machine is the state of one proxy. Make one with New or Restore.
type Machine struct {
	key             Key
	status          Status
	reason, message string
	since           time.Time // of status
	reasonTime      time.Time // of reason
	failures        int       // in a row
	successes       int       // in a row, while Unhealthy
	failedTargets   uint64    // set of targets in the current row of failures
	firstFailure    time.Time // of the current row, also of held ones
	fallTime        time.Time // of the last fall
	damping         int       // how often Rise is doubled
}

// New returns a machine that knows nothing.
func New(key Key, now time.Time) Machine {
	return Machine{key: key, reason: ReasonProbing, message: MessageProbing, since: now, reasonTime: now}
}

// Restore returns a machine that goes on from a recorded verdict, with counters at zero, so that a restart flips
// nothing.
func Restore(key Key, status Status, reason, message string, since time.Time) Machine {
	return Machine{key: key, status: status, reason: reason, message: message, since: since, reasonTime: since}
}

// Key returns what is judged and how.
func (m *Machine) Key() Key { return m.key }

// Status returns the standing verdict.
func (m *Machine) Status() Status { return m.status }

// Reason returns the reason of the standing verdict and a stable sentence about it.
func (m *Machine) Reason() (reason, message string) { return m.reason, m.message }

// Since returns when the verdict began to stand.
func (m *Machine) Since() time.Time { return m.since }

// FirstFailure returns when the current row of failures began; zero outside one.
func (m *Machine) FirstFailure() time.Time { return m.firstFailure }

// Rekey tells the machine what is judged from now on. It reports whether the verdict or its reason changed.
func (m *Machine) Rekey(key Key, now time.Time) bool {
	if key == m.key {
		return false
	}
	if !m.key.Same(key) {
		changed := m.status != Unknown || m.reason != ReasonProbing
		*m = New(key, now)
		return changed
	}
	m.key = key
	m.failures, m.successes, m.failedTargets, m.firstFailure = 0, 0, 0, time.Time{}
	return false
}

// Observe takes one outcome in and reports whether the verdict or its reason changed, which is worth one status write.
func (m *Machine) Observe(now time.Time, cfg Config, o Observation) bool {
	switch o.Kind {
	case Success:
		return m.success(now, cfg, o)
	case Failure:
		return m.failure(now, cfg, o)
	case Held:
		if m.firstFailure.IsZero() {
			m.firstFailure = now
		}
		return false
	default:
		return m.status == Unknown && m.setReason(now, o.Reason, o.Message)
	}
}

func (m *Machine) success(now time.Time, cfg Config, o Observation) bool {
	m.failures, m.failedTargets, m.firstFailure = 0, 0, time.Time{}
	switch m.status {
	case Healthy:
		return false
	case Unhealthy:
		m.successes++
		if m.successes < cfg.Rise<<m.damping {
			return false
		}
	}
	// The first success of something never judged is enough: the fleet is there to be used.
	m.become(Healthy, now, o)
	return true
}

func (m *Machine) failure(now time.Time, cfg Config, o Observation) bool {
	m.successes = 0
	m.failures++
	if m.firstFailure.IsZero() {
		m.firstFailure = now
	}
	if o.AboutTarget {
		m.failedTargets |= 1 << o.Target
	} else {
		m.failedTargets = ^uint64(0) // no target would have done better
	}
	if m.status == Unhealthy {
		if now.Sub(m.reasonTime) < ReasonInterval || m.reason == ReasonFlapping {
			return false
		}
		return m.setReason(now, o.Reason, o.Message)
	}
	enough := m.failures >= cfg.Fall || o.Immediate
	if !enough || bits.OnesCount64(m.failedTargets) < min(2, cfg.Targets) {
		return m.status == Unknown && m.setReason(now, o.Reason, o.Message)
	}
	if m.status == Healthy {
		m.fall(now, &o)
	}
	m.become(Unhealthy, now, o)
	return true
}

// fall damps the way back up for proxies that fall again and again.
func (m *Machine) fall(now time.Time, o *Observation) {
	if m.fallTime.IsZero() || now.Sub(m.fallTime) > FlapWindow {
		m.damping = 0
	} else {
		m.damping = min(m.damping+1, MaxDamping)
		o.Reason, o.Message = ReasonFlapping, messageFlapping+o.Message
	}
	m.fallTime = now
}

func (m *Machine) become(status Status, now time.Time, o Observation) {
	m.status, m.since = status, now
	m.reason, m.message, m.reasonTime = o.Reason, o.Message, now
	m.successes = 0
	if status == Healthy {
		m.failures = 0
	}
}

func (m *Machine) setReason(now time.Time, reason, message string) bool {
	if reason == m.reason {
		return false
	}
	m.reason, m.message, m.reasonTime = reason, message, now
	return true
}
