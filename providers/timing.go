package providers

import (
	"cmp"
	"time"
)

// Timing is how long the controllers wait for the answers of a provider. Zero fields mean the default.
type Timing struct {
	// Window is how long after an intent was stored its Create may run; the call's context ends with it.
	Window time.Duration
	// Settle is how long after an intent its outcome stays unknown while Get says NotFound. It must be at least Window plus
	// the longest time until Get sees what was accepted; with less, an instance can appear after its Proxy was released.
	Settle time.Duration
	// Confirm is the time between two NotFound before an instance is believed to be gone.
	Confirm time.Duration
	// Poll and PollMax bound the time between two looks at an instance that is on its way; it grows with its age.
	Poll, PollMax time.Duration
	// Slow is the time between two looks at an instance that runs, and between retries that wait for a person.
	Slow time.Duration
}

// Defaults of Timing. They suit clouds, whose answers are late; see Timed for providers that know better.
const (
	DefaultWindow  = 15 * time.Second
	DefaultSettle  = 2 * time.Minute
	DefaultConfirm = 15 * time.Second
	DefaultPoll    = 3 * time.Second
	DefaultPollMax = 10 * time.Second
	DefaultSlow    = 5 * time.Minute
)

// Or fills in what is not set from another Timing.
func (t Timing) Or(other Timing) Timing {
	return Timing{
		Window:  cmp.Or(t.Window, other.Window),
		Settle:  cmp.Or(t.Settle, other.Settle),
		Confirm: cmp.Or(t.Confirm, other.Confirm),
		Poll:    cmp.Or(t.Poll, other.Poll),
		PollMax: cmp.Or(t.PollMax, other.PollMax),
		Slow:    cmp.Or(t.Slow, other.Slow),
	}
}

// WithDefaults fills in what is not set.
func (t Timing) WithDefaults() Timing {
	return t.Or(Timing{
		Window: DefaultWindow, Settle: DefaultSettle, Confirm: DefaultConfirm,
		Poll: DefaultPoll, PollMax: DefaultPollMax, Slow: DefaultSlow,
	})
}

// Timed is implemented by factories whose providers need other times than the defaults, for example because their Get is
// never late.
type Timed interface {
	Timing() Timing
}

// TimingOf is the timing of a factory's providers, complete.
func TimingOf(f Factory) Timing {
	if timed, ok := f.(Timed); ok {
		return timed.Timing().WithDefaults()
	}
	return Timing{}.WithDefaults()
}

// Limits bound the calls to the provider of one class.
type Limits struct {
	// CallsPerSecond over time, and Burst at once.
	CallsPerSecond float64
	Burst          int
}

// Defaults of Limits: well below the default quotas of the public clouds.
const (
	DefaultCallsPerSecond = 10
	DefaultBurst          = 50
)

// Limited is implemented by factories whose providers bear more or fewer calls than the defaults.
type Limited interface {
	Limits() Limits
}

// LimitsOf are the limits of a factory's providers, complete.
func LimitsOf(f Factory) Limits {
	limits := Limits{}
	if limited, ok := f.(Limited); ok {
		limits = limited.Limits()
	}
	return Limits{
		CallsPerSecond: cmp.Or(limits.CallsPerSecond, DefaultCallsPerSecond),
		Burst:          cmp.Or(limits.Burst, DefaultBurst),
	}
}
