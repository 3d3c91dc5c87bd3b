package health

import (
	"fmt"
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// number is one resolved number, and where a user set it; the path is empty for a default.
type number struct {
	value int
	path  string
}

func (n number) set() bool { return n.path != "" }

func (n number) seconds() time.Duration { return time.Duration(n.value) * time.Second }

// numbers are the numeric settings before they are made to fit each other.
type numbers struct {
	period, timeout, fast, unhealthyMax, fall, rise, body number
}

// setNumbers resolves the numeric fields. The ranges are those of the CRD, which also guards flags and files this way.
func (s *Settings) setNumbers(ls []layer, _ Defaults) error {
	const day = 24 * time.Hour
	type check = v1alpha1.HealthCheck
	seconds := func(d time.Duration) int { return int(d / time.Second) }
	var n numbers
	for _, f := range []struct {
		to                  *number
		field               string
		low, high, fallback int
		get                 func(*check) *int32
	}{
		{&n.period, "periodSeconds", 1, seconds(day), seconds(DefaultPeriod), func(c *check) *int32 { return c.PeriodSeconds }},
		{&n.timeout, "timeoutSeconds", 1, 120, seconds(DefaultTimeout), func(c *check) *int32 { return c.TimeoutSeconds }},
		{&n.fast, "fastPeriodSeconds", 1, 3600, seconds(DefaultFastPeriod), func(c *check) *int32 { return c.FastPeriodSeconds }},
		{&n.unhealthyMax, "unhealthyPeriodMaxSeconds", 1, seconds(day), seconds(DefaultUnhealthyPeriodMax), func(c *check) *int32 { return c.UnhealthyPeriodMaxSeconds }},
		{&n.fall, "failureThreshold", 1, 100, DefaultFailureThreshold, func(c *check) *int32 { return c.FailureThreshold }},
		{&n.rise, "successThreshold", 1, 100, DefaultSuccessThreshold, func(c *check) *int32 { return c.SuccessThreshold }},
		{&n.body, "maxBodyBytes", 0, 1 << 20, DefaultMaxBodyBytes, func(c *check) *int32 { return c.MaxBodyBytes }},
	} {
		var err error
		if *f.to, err = pick(ls, f.field, f.low, f.high, f.fallback, f.get); err != nil {
			return err
		}
	}
	if err := n.fit(); err != nil {
		return err
	}
	s.Period, s.Timeout, s.FastPeriod, s.UnhealthyPeriodMax = n.period.seconds(), n.timeout.seconds(), n.fast.seconds(), n.unhealthyMax.seconds()
	s.FailureThreshold, s.SuccessThreshold, s.MaxBodyBytes = n.fall.value, n.rise.value, n.body.value
	return nil
}

func pick(ls []layer, field string, low, high, fallback int, get func(*v1alpha1.HealthCheck) *int32) (number, error) {
	for _, l := range ls {
		p := get(l.check)
		if p == nil {
			continue
		}
		if int(*p) < low || int(*p) > high {
			return number{}, fmt.Errorf("%s: %d is not between %d and %d", l.path(field), *p, low, high)
		}
		n := number{value: int(*p)}
		if !l.flags {
			n.path = l.path(field)
		}
		return n, nil
	}
	return number{value: fallback}, nil
}

// fit makes timeout < period, fast <= period and fast <= unhealthyMax hold by moving defaults, and refuses what users
// set against each other.
func (n *numbers) fit() error {
	if n.timeout.set() && n.period.set() && n.timeout.value >= n.period.value {
		return fmt.Errorf("%s: %d must be less than the %d of %s", n.timeout.path, n.timeout.value, n.period.value, n.period.path)
	}
	if n.fast.set() && n.period.set() && n.fast.value > n.period.value {
		return fmt.Errorf("%s: %d must not be more than the %d of %s", n.fast.path, n.fast.value, n.period.value, n.period.path)
	}
	if n.unhealthyMax.set() && n.fast.set() && n.unhealthyMax.value < n.fast.value {
		return fmt.Errorf("%s: %d must not be less than the %d of %s", n.unhealthyMax.path, n.unhealthyMax.value, n.fast.value, n.fast.path)
	}
	if !n.period.set() {
		if n.timeout.set() {
			n.period.value = max(n.period.value, n.timeout.value+1)
		}
		if n.fast.set() {
			n.period.value = max(n.period.value, n.fast.value)
		}
	}
	n.timeout.value = min(n.timeout.value, max(1, n.period.value-1))
	n.fast.value = min(n.fast.value, n.period.value)
	if n.unhealthyMax.set() {
		n.fast.value = min(n.fast.value, n.unhealthyMax.value)
	} else {
		n.unhealthyMax.value = max(n.unhealthyMax.value, n.period.value)
	}
	return nil
}
