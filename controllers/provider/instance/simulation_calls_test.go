package instance

import (
	"context"
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// look mirrors the function of that name. The answer is the truth of the moment in which the provider gives it; it may
// take its time to arrive.
func (l *life) look(s *simSubject) {
	r, asked := s.record(), l.now
	instance, err := l.cloud.get(providers.Ref{Name: s.px.name(), Zone: s.px.record.Zone, ProviderID: s.px.record.ProviderID})
	l.tell("get in %q: %s %s %s", s.px.record.Zone, reasonOutcome(err), instance.ID, instance.State)
	if l.chance(15) {
		l.count(slowLooks)
		l.pass(l.upTo(min(simGetMax, l.until.Sub(l.now))))
	}
	l.overtake(oldLooks, 150, pauseMax)
	s.observed = &Observed{Time: asked, Found: err == nil, Instance: instance}
	switch {
	case err != nil && !providers.IsNotFound(err):
		l.count(errorsOfGet)
		s.observed.Err = err
	case err == nil && instance.Owner.UID == foreignUID:
		l.count(foreignFound)
	}
	l.bendObserved(s)
	if s.desired.Deleting || s.desired.Hold != nil || s.observed.Found || s.observed.Err != nil {
		return
	}
	s.desired.Zone, _ = chooseZone(l, s.px.placement(), s.px.uid, l.generation, r, l.now, l.timing)
	l.bendZone(s)
}

// intendFirst stores the finalizer and the first intent in one write.
func (l *life) intendFirst(s *simSubject, a Action, r v1alpha1.Instance) (time.Duration, bool) {
	next := recordIntent(s.desired, r, "", l.now)
	switch l.without {
	case intentStored:
		s.px.first = next
	case placeStored:
		next.Zone = ""
	}
	wait, ok := l.store(s, l.without != intentLocked, func(p *simProxy) {
		p.finalizer = true
		if l.without != intentStored {
			p.first = next
		}
	})
	s.desired.Finalizer = true
	return wait, ok
}

func (l *life) intend(s *simSubject, a Action, r v1alpha1.Instance) (time.Duration, bool) {
	next := recordIntent(s.desired, r, s.px.name(), l.now)
	if r.Zone != "" && r.Zone != next.Zone {
		l.count(moved)
	}
	if r.ID != "" && s.px.record.State == string(providers.StateTerminating) {
		l.count(replaced)
	}
	switch {
	case l.without == intentStored:
		s.px.record = next
		return 0, true
	case l.without == intentPerCreate && r.IntentTime != nil:
		return l.create(s, a, r), false
	case l.without == placeStored:
		next.Zone = ""
	}
	wait, ok := l.store(s, l.without != intentLocked, func(p *simProxy) { p.record = next })
	return wait, ok
}

// create mirrors the function of that name: its call ends with the window, and what is on its way then arrives within what
// Settle allows for.
func (l *life) create(s *simSubject, a Action, r v1alpha1.Instance) time.Duration {
	limit := r.IntentTime.Add(simTiming.Settle - simVisibleMax).Sub(l.now)
	if l.without == callEndsWithWindow {
		limit = pauseMax
	}
	if l.chance(25) {
		if l.chance(2) {
			// Another owner is faster, and may be gone again when the call arrives.
			l.intrude(r.Zone, limit)
		}
		l.cutOff(lateCreates, limit)
	}
	ref := providers.Ref{Name: s.px.name(), Zone: r.Zone}
	if l.without == placeStored {
		ref.Zone, _ = l.Place(s.px.placement(), s.px.uid, nil)
	}
	receipt, err := l.cloud.create(ref, s.px.uid, s.desired.Hash, s.px.spec)
	l.tell("create in %s: %s", ref.Zone, reasonOutcome(err))
	if l.crash() {
		return l.upTo(restartMax)
	}
	if l.now.After(r.IntentTime.Add(simTiming.Window)) {
		err = context.DeadlineExceeded
	}
	next := recordCreated(s.desired, r, receipt, err, l.now)
	if onlySubmitted(r, next) {
		l.memory = attempt{proxy: proxyOf(s.px.uid), number: next.Attempt, intent: next.IntentTime.Time, submitted: next.SubmittedTime}
		return a.After
	}
	if wait, ok := l.storeRecord(s, next); !ok {
		return wait
	}
	switch {
	case refused(next):
		return backoff(next.Attempt)
	case err != nil && !providers.IsAlreadyExists(err):
		return l.failed(err)
	}
	return a.After
}

// delete mirrors the function of that name.
func (l *life) delete(s *simSubject, a Action, r v1alpha1.Instance) time.Duration {
	seen := recordFound(s.desired, r, s.observed.Instance, l.now)
	if s.held {
		l.tell("deletes what it could not make again")
		l.count(needless)
	}
	l.overtake(lateDeletes, 40, pauseMax)
	err := l.cloud.delete(s.observed.Instance.Ref)
	l.tell("delete %s in %s: %s", s.observed.Instance.ID, s.observed.Instance.Zone, reasonOutcome(err))
	if l.crash() {
		return l.upTo(restartMax)
	}
	if err != nil && !providers.IsNotFound(err) {
		if wait, ok := l.storeRecord(s, seen); !ok {
			return wait
		}
		return l.failed(err)
	}
	if wait, ok := l.storeRecord(s, recordDeleting(seen, messageOf(a))); !ok {
		return wait
	}
	if s.desired.Deleting && l.without == acceptedIsNotGone {
		_, _ = l.store(s, true, func(p *simProxy) { p.finalizer = false })
	}
	return a.After
}

// report mirrors the function of that name.
func (l *life) report(s *simSubject, a Action, r v1alpha1.Instance) time.Duration {
	o := s.observed
	switch {
	case s.desired.Blind != nil:
		l.count(blindLooks)
	case s.desired.Hold != nil:
		l.count(holds)
	}
	switch {
	case o != nil && o.Found && o.Instance.Owner.UID == s.px.uid:
		r = recordFound(s.desired, r, o.Instance, l.now)
	case o != nil && o.Err == nil && !o.Found && r.ID != "" && confirmed(r, l.now, l.timing):
		r = recordGone(r)
	}
	if wait, ok := l.storeRecord(s, r); !ok {
		return wait
	}
	if a.Reason == v1alpha1.ReasonRunning {
		l.ranWell(s)
	}
	if o != nil && o.Err != nil && a.After == 0 {
		return l.failed(o.Err)
	}
	l.failures = 0
	return a.After
}

// ranWell is called after a look at a running instance.
func (l *life) ranWell(s *simSubject) {
	l.count(ran)
	l.memory = attempt{}
	if s.px.onDelete && providers.HashDiffers(s.observed.Instance.Hash, s.desired.Hash) {
		l.count(keptOnDelete)
	}
	if l.without == finalizerFirst && !s.px.finalizer {
		_, _ = l.store(s, true, func(p *simProxy) { p.finalizer = true })
	}
}
