package instance

import (
	"slices"
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// pauseMax is how long a process may be cut off before what it had begun takes place after all.
	pauseMax = 6 * time.Minute
	// restartMax is how long a successor takes after a crash.
	restartMax = 20 * time.Second
	// maxPaused is how many processes may be cut off at once.
	maxPaused = 2
)

// life is one name of a Proxy, from its creation to the release of its last object, and the manager that serves it: the
// production code's decisions and records, with the calls that act.go and sync.go make for them.
type life struct {
	*world
	// without is the rule that is switched off.
	without rule
	timing  providers.Timing
	// memory is what the process knows besides what is stored, see accepted.go.
	memory attempt
	// paused counts the processes that are cut off in the midst of a reconcile.
	paused int
	// until is when the process that was cut off last goes on.
	until    time.Time
	failures int
}

// simSubject is what one reconcile works on, see subject.
type simSubject struct {
	px       simProxy
	desired  Desired
	observed *Observed
	memory   attempt
	// held tells that nothing could be made, whatever a rule that is switched off makes of it.
	held bool
}

func (s *simSubject) record() v1alpha1.Instance { return s.memory.addTo(s.px.uid, s.px.stored()) }

// run reconciles as the work queue would, until l.until or until nothing is left of the Proxy.
func (l *life) run() {
	for l.now.Before(l.until) && !l.over() {
		after := l.reconcile()
		after += l.upTo(after / 5)
		if l.chance(10) {
			// Something else wakes it.
			after = l.upTo(after)
		}
		l.idle(min(after, l.until.Sub(l.now)))
	}
}

// overtake cuts the process off once in odds times.
func (l *life) overtake(late counter, odds int, limit time.Duration) {
	if l.chance(odds) {
		l.cutOff(late, limit)
	}
}

// cutOff stops the process where it stands. A successor does the work for a time; then what the process had begun takes
// place after all, and it goes on with what it knew.
func (l *life) cutOff(late counter, limit time.Duration) {
	limit = min(limit, l.until.Sub(l.now))
	if limit <= 0 || l.paused == maxPaused {
		return
	}
	l.count(overtaken)
	l.count(late)
	pause, memory, outer := l.upTo(limit), l.memory, l.until
	if l.chance(2) {
		pause = l.upTo(min(limit, restartMax))
	}
	l.until = l.now.Add(pause)
	l.tell("--- cut off before %q for %v", counterNames[late], pause)
	l.memory = attempt{}
	l.paused++
	l.run()
	l.paused--
	if !l.over() {
		l.pass(l.until.Sub(l.now))
	}
	l.memory, l.until = memory, outer
	l.tell("--- goes on with %q", counterNames[late])
}

// crash ends the process now and then, after an effect and before the next.
func (l *life) crash() bool {
	if !l.chance(25) {
		return false
	}
	l.count(crashes)
	l.tell("crash")
	l.memory = attempt{}
	return true
}

// failed is when a reconcile that ended with an error is tried again.
func (l *life) failed(err error) time.Duration {
	if after := providers.RetryAfterOf(err); after > 0 {
		return after
	}
	l.failures++
	return min(retryMin<<min(l.failures, 10), time.Minute)
}

// reconcile mirrors Reconcile and advance. It returns when to look again.
func (l *life) reconcile() time.Duration {
	l.count(steps)
	s := &simSubject{px: l.api.read(), memory: l.memory}
	if s.px.gone {
		l.memory = attempt{}
		return l.timing.Slow
	}
	s.desired = l.desired(&s.px)
	s.held = s.desired.Hold != nil
	l.bendDesired(&s.desired)
	l.overtake(oldLooks, 150, pauseMax)
	for range maxDecisions {
		a := Decide(s.desired, l.bendRecord(s), s.observed, l.now, l.timing)
		if l.trace != nil && a.Kind != Look {
			l.tell("%s version %d: %s %s", s.px.uid, s.px.version, a.Kind, a.Reason)
		}
		if after, more := l.act(s, a); !more {
			return after
		}
	}
	l.tell("no end after %d decisions", maxDecisions)
	l.count(unfinished)
	return l.timing.Slow
}

// act mirrors the function of that name.
func (l *life) act(s *simSubject, a Action) (after time.Duration, more bool) {
	r := s.record()
	switch a.Kind {
	case Ignore:
		return l.timing.Slow, false
	case Look:
		l.look(s)
		return 0, true
	case AddFinalizer:
		if wait, ok := l.store(s, true, func(p *simProxy) { p.finalizer = true }); !ok {
			return wait, false
		}
		s.desired.Finalizer = true
		return 0, true
	case RecordFirstIntent:
		return l.intendFirst(s, a, r)
	case RecordIntent:
		return l.intend(s, a, r)
	case Create:
		return l.create(s, a, r), false
	case Delete:
		return l.delete(s, a, r), false
	case RecordMissing:
		wait, ok := l.storeRecord(s, recordMissing(r, l.now))
		if !ok {
			return wait, false
		}
		return a.After, l.without == notFoundTwice
	case RemoveFinalizer:
		if wait, ok := l.store(s, l.without != releaseLocked, func(p *simProxy) { p.finalizer = false }); !ok {
			return wait, false
		}
		return l.timing.Slow, false
	}
	return l.report(s, a, r), false
}

// store writes to the object; ok tells that the reconcile goes on.
func (l *life) store(s *simSubject, locked bool, change func(*simProxy)) (wait time.Duration, ok bool) {
	l.overtake(lateWrites, 80, pauseMax)
	if err := l.api.write(&s.px, locked, change); err != nil {
		l.tell("write to %s: %v", s.px.uid, err)
		return conflictRetry, false
	}
	if l.crash() {
		return l.upTo(restartMax), false
	}
	return 0, true
}

func (l *life) storeRecord(s *simSubject, r v1alpha1.Instance) (wait time.Duration, ok bool) {
	if r = asStored(r); sameRecord(r, s.px.record) {
		return 0, true
	}
	return l.store(s, l.without != statusLocked, func(p *simProxy) { p.record = r })
}

// idle lets time pass until then, or until something happens that wakes the controller.
func (l *life) idle(d time.Duration) {
	for until := l.now.Add(d); l.now.Before(until); {
		l.woken = false
		if !l.step(until) {
			return
		}
		if l.woken && l.random.IntN(4) > 0 {
			l.pass(min(l.upTo(time.Second), until.Sub(l.now)))
			return
		}
	}
}

// pass lets time pass, and what happens in it happen.
func (l *life) pass(d time.Duration) {
	for until := l.now.Add(max(0, d)); l.step(until); {
	}
}

// step goes on to the next event; without one until then, to the end of it.
func (l *life) step(until time.Time) bool {
	if len(l.events) == 0 || l.events[0].at.After(until) {
		l.now = until
		return false
	}
	next := l.events[0]
	l.events = slices.Delete(l.events, 0, 1)
	if next.at.After(l.now) {
		l.now = next.at
	}
	next.do()
	return true
}
