package health

import (
	"context"
	"net"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/controllers/health/classify"
	"crawl.example.com/egress-proxies-operator/controllers/health/fsm"
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
	"crawl.example.com/egress-proxies-operator/controllers/health/sched"
)

// recent is how far back a failure looks for others like it.
const recent = 20 * time.Second

// job is what one run needs to know of an entry.
type job struct {
	generation int
	target     Target
	index      int // of the probe target
	probe      probe.Request
	expect     classify.Expect
	accessDue  bool
}

// run probes one proxy once. It is the scheduler's Run.
func (e *Engine) run(ctx context.Context, uid types.UID, due time.Time) (time.Time, bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	en, j, ok := e.begin(uid, cancel)
	if !ok {
		return due, false // removed a moment ago; the scheduler forgot it too
	}
	result := e.prober.Probe(ctx, j.probe)
	outcome := classify.Classify(result, j.expect)
	if outcome.Timeout && e.stalls.during(result.Start, j.probe.Timeout) {
		outcome = classify.Outcome{Class: classify.Local, Reason: classify.ReasonLocalCPU}
	}
	outcome = e.whose(en, j, outcome)
	var found accessResult
	if outcome.Class == classify.Success && j.accessDue {
		found = e.checkAccess(ctx, j.target, j.probe.Target.Authority())
	}
	e.metrics.Probe(outcome.Class.String(), outcome.Reason, result)
	e.trace(ctx, j.target, result, outcome)

	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.clock.Now()
	if e.entries[uid] != en {
		return now, false
	}
	en.cancel = nil
	if en.generation != j.generation {
		// What was probed is not what is watched now. Upsert has scheduled the next probe.
		return en.nextDue, en.background()
	}
	en.lastEnd = now
	en.attempts++
	last := e.observe(en, j, outcome, now)
	if outcome.Class == classify.Success {
		en.noteEgressIP(now, result)
		en.noteAccess(now, found)
	}
	e.publish(en)
	delay := en.machine.Delay(now, en.target.Check.timing(), last)
	en.nextDue = sched.Next(due, now, sched.Jitter(delay, e.random()))
	return en.nextDue, en.background()
}

// begin snapshots an entry for a probe.
func (e *Engine) begin(uid types.UID, cancel context.CancelFunc) (*entry, job, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	en, ok := e.entries[uid]
	if !ok || len(en.targets) == 0 {
		return nil, job{}, false
	}
	now := e.clock.Now()
	en.cancel = cancel
	check := en.target.Check
	index := e.pickTarget(en, now)
	return en, job{
		generation: en.generation,
		target:     en.target,
		index:      index,
		expect:     en.targets[index].expect,
		accessDue:  en.target.Managed && !now.Before(en.access.nextTime),
		probe: probe.Request{
			Proxy: en.target.Address, Credentials: en.target.Credentials, Target: en.targets[index].probe,
			Timeout: check.Timeout, MaxBody: check.MaxBodyBytes,
		},
	}, true
}

// whose decides whether trouble of our network or resolver is ours. It is not when another proxy was reached since this
// one's former probe, which had the same trouble: an outage of ours has no successes in between, so none of its failures
// counts, and a proxy that nothing leads to is found out as soon as others have been probed as often as its threshold says.
func (e *Engine) whose(en *entry, j job, outcome classify.Outcome) classify.Outcome {
	e.mu.Lock()
	defer e.mu.Unlock()
	now, before := e.clock.Now(), en.localTime
	if en.generation == j.generation {
		en.localTime = time.Time{}
	}
	switch {
	case outcome.Class == classify.Success:
		e.reached = now
		if named(j.target.Address) {
			e.resolved = now
		}
		return outcome
	case outcome.Class != classify.Local || en.generation != j.generation:
		return outcome
	}
	last := e.reached
	switch outcome.Reason {
	case classify.ReasonLocalNetwork:
	case classify.ReasonLocalResolver:
		last = e.resolved // that an address is reached says nothing about the resolver
	default:
		en.localTime = before // neither one nor the other
		return outcome
	}
	en.localTime = now
	if before.IsZero() || !last.After(before) {
		return outcome
	}
	return outcome.AgainstProxy()
}

// named tells whether an address, host:port, has a host name.
func named(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	_, err = netip.ParseAddr(host)
	return err != nil
}

// observe feeds the outcome to the target's breaker and the proxy's machine.
func (e *Engine) observe(en *entry, j job, outcome classify.Outcome, now time.Time) fsm.Last {
	last := fsm.Last{NoFast: outcome.NoFast, RetryAfter: outcome.RetryAfter}
	switch outcome.Class {
	case classify.Local:
		last.Local = true
		return last
	case classify.Success:
		last.Kind = fsm.Success
		if en.targets[j.index].breaker.Record(now, true) {
			e.log.Info("Probe target answers again", "target", en.targets[j.index].name)
		}
	case classify.Neutral:
		last.Kind = fsm.Neutral
	case classify.Failure:
		last.Kind = fsm.Failure
		if outcome.AboutTarget && e.blameTarget(en, j.index, now) {
			last.Kind = fsm.Held
		}
	}
	check := en.target.Check
	en.machine.Observe(now, fsm.Config{
		Fall: check.FailureThreshold, Rise: check.SuccessThreshold, Targets: usable(en.targets),
	}, fsm.Observation{
		Kind: last.Kind, Reason: outcome.Reason, Message: outcome.Message,
		Immediate: outcome.Immediate, AboutTarget: outcome.AboutTarget, Target: j.index,
	})
	return last
}

// blameTarget decides whether a failure is put down to the probe target. If all of several targets are suspect it is
// not: that targets of different operators fail together through all proxies is the fleet's loss of egress.
func (e *Engine) blameTarget(en *entry, index int, now time.Time) bool {
	t := en.targets[index]
	since := en.machine.FirstFailure()
	if since.IsZero() {
		since = now
		if en.machine.Status() == fsm.Healthy {
			t.breaker.Record(now, false)
		}
	}
	wasOpen := t.breaker.Open()
	// Either nobody has succeeded since this proxy's trouble began, or nobody does lately.
	if !t.breaker.Suspect(now, since) && !t.breaker.Suspect(now, now.Add(-recent)) {
		return false
	}
	if !wasOpen {
		e.log.Info("Probe target is suspect: hardly any proxy reaches it", "target", t.name)
	}
	if len(en.targets) == 1 {
		return !t.breaker.Exhausted(now)
	}
	return usable(en.targets) > 0
}
