package proxypool

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// counts are what the status says in numbers.
type counts struct {
	ready, available, updated, updatedAvailable int
	draining, terminating                       int
	// due are members to be replaced; extra those above the replicas that replacing them takes.
	due, extra int
}

func (p *planner) count() counts {
	var c counts
	for _, m := range p.active {
		if m.ready {
			c.ready++
		}
		if m.available {
			c.available++
		}
		if m.due != "" {
			c.due++
		}
		if !m.stale {
			c.updated++
			if m.available {
				c.updatedAvailable++
			}
		}
	}
	c.extra = min(max(len(p.active)-p.replicas, 0), c.due)
	for _, m := range p.all {
		switch {
		case !m.leaving:
		case m.deleting && !slices.Contains(m.Finalizers, v1alpha1.FinalizerLeaseDrain):
			c.terminating++
		default:
			c.draining++
		}
	}
	return c
}

// setStatus computes the whole status and when it changes by time alone.
func (p *planner) setStatus() {
	c := p.count()
	pool := p.in.Pool
	out := pool.Status.DeepCopy()
	out.ObservedGeneration = pool.Generation
	out.Replicas = int32(len(p.active))
	out.Ready, out.Available, out.Updated = int32(c.ready), int32(c.available), int32(c.updated)
	out.Draining, out.Terminating = int32(c.draining), int32(c.terminating)
	out.Leased, out.Pending = p.in.Leased, p.in.Pending
	out.CollisionCount += p.in.Collisions
	// HPA and KEDA refuse a pool whose selector is empty.
	out.Selector = v1alpha1.LabelPool + "=" + pool.Name
	out.UpdateRevision = p.revision
	// Complete: nothing is left to make, to replace, to change or to take away.
	complete := len(p.plan.Updates) == 0 && c.updatedAvailable >= p.replicas && len(p.active) == p.replicas+c.extra && c.updated == len(p.active)
	if complete || out.CurrentRevision == "" {
		out.CurrentRevision = p.revision
	}
	p.plan.Status = *out
	p.setConditions(c, complete)
	p.setRecheck()
}

func (p *planner) set(condition string, status metav1.ConditionStatus, reason, format string, args ...any) {
	meta.SetStatusCondition(&p.plan.Status.Conditions, metav1.Condition{
		Type: condition, Status: status, Reason: reason, Message: fmt.Sprintf(format, args...),
		ObservedGeneration: p.in.Pool.Generation, LastTransitionTime: metav1.NewTime(p.in.Now),
	})
}

func (p *planner) setConditions(c counts, complete bool) {
	if !p.in.Pool.DeletionTimestamp.IsZero() {
		for _, condition := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionAvailable, v1alpha1.ConditionProgressing} {
			p.set(condition, metav1.ConditionFalse, v1alpha1.ReasonTerminating, "The pool is being deleted.")
		}
		return
	}
	if complete {
		p.set(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReplicasReady, "All %d proxies are up to date and available.%s", p.replicas, p.besides())
	} else {
		p.set(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonReplicasNotReady,
			"%d of %d proxies are up to date and available; %d exist.%s%s", c.updatedAvailable, p.replicas, len(p.active), p.obstacle(), p.besides())
	}
	if least := max(p.replicas-p.unavailable, 0); c.available >= least {
		p.set(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonMinimumAvailable, "At least %d proxies are available.", least)
	} else {
		p.set(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonMinimumNotAvailable, "Fewer than %d proxies are available.", least)
	}
	p.setProgressing(c, complete)
	p.setRemediationAllowed()
	p.setDrainBlocked()
	p.setQuotaExceeded()
}

func (p *planner) setProgressing(c counts, complete bool) {
	deadline := seconds(p.in.Pool.Spec.ProgressDeadlineSeconds, DefaultProgressDeadline)
	stale := c.updated < len(p.active)
	switch {
	case complete && c.due > 0:
		p.set(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonRecycling, "Proxies are being replaced for their age or health.")
		return
	case complete && c.draining > 0:
		p.set(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonComplete, "Nothing is left to do but to wait for those that drain: %d.", c.draining)
		return
	case complete:
		p.set(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonComplete, "Nothing is left to do.")
		return
	case stale && !p.due():
		p.set(v1alpha1.ConditionProgressing, metav1.ConditionUnknown, v1alpha1.ReasonPaused, "spec.paused keeps proxies of an old template.")
		return
	}
	if standstill := p.in.Now.Sub(p.lastProgress()); standstill >= deadline && !p.waitsForLeases() {
		p.set(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonProgressDeadline, "No proxy became ready for %s; see the conditions of the proxies.", deadline)
		return
	}
	if stale {
		p.set(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonRollingOut, "Proxies of an old template are being replaced.")
		return
	}
	p.set(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonScaling, "The number of proxies is being brought to %d.", p.replicas)
}

// waitsForLeases tells whether nothing but leases that may still run holds the pool up: every member that is as it should be
// works, and others drain.
func (p *planner) waitsForLeases() bool {
	for _, m := range p.active {
		if m.due == "" && !m.ready {
			return false
		}
	}
	return slices.ContainsFunc(p.all, func(m member) bool {
		end := record.EmptyBy(m.Proxy)
		return m.leaving && m.leases > 0 && (m.patient && end.IsZero() || p.in.Now.Before(end))
	})
}

// lastProgress is when something last got on: a proxy was made, deleted or became ready, or there was something new to do.
// It is read off the members and survives a restart.
func (p *planner) lastProgress() time.Time {
	last := p.in.Pool.CreationTimestamp.Time
	later := func(t *metav1.Time) {
		if t != nil && t.After(last) {
			last = t.Time
		}
	}
	if current := meta.FindStatusCondition(p.in.Pool.Status.Conditions, v1alpha1.ConditionProgressing); current != nil {
		switch {
		case current.ObservedGeneration != p.in.Pool.Generation, current.Reason == v1alpha1.ReasonComplete, current.Reason == v1alpha1.ReasonPaused:
			// What is to be done now is new.
			return p.in.Now
		case current.Reason != v1alpha1.ReasonProgressDeadline:
			later(&current.LastTransitionTime)
		}
	}
	if ready := meta.FindStatusCondition(p.in.Pool.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
		later(&ready.LastTransitionTime)
	}
	for _, m := range p.all {
		later(&m.CreationTimestamp)
		later(m.DeletionTimestamp)
		if ready := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionReady); ready != nil && m.ready {
			later(&ready.LastTransitionTime)
		}
	}
	return last
}

// setRecheck finds the next moment at which time alone changes something: a proxy becomes available, or the progress
// deadline passes.
func (p *planner) setRecheck() {
	next := time.Duration(0)
	in := func(d time.Duration) {
		if d > 0 && (next == 0 || d < next) {
			next = d
		}
	}
	for _, m := range p.active {
		if ready := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionReady); m.ready && !m.available && ready != nil {
			in(ready.LastTransitionTime.Add(p.in.minReady()).Sub(p.in.Now))
		}
		if age := m.bestBefore(p.in.Pool.Spec.Recycle); !age.IsZero() {
			in(age.Sub(p.in.Now))
		}
	}
	if rollout := p.in.Pool.Spec.Rollout; rollout != nil && rollout.AfterTime != nil {
		in(rollout.AfterTime.Sub(p.in.Now))
	}
	for _, m := range p.all {
		if sick := m.unhealthyUntil(p.in.Pool.Spec.Remediation); (!m.leaving || m.patient) && !sick.IsZero() {
			in(sick.Sub(p.in.Now))
		}
		if m.leaving && !m.deleting {
			if deadline := record.DrainDeadline(m.Proxy); !deadline.IsZero() {
				in(deadline.Add(drainGrace).Sub(p.in.Now))
			}
		}
	}
	if progressing := meta.FindStatusCondition(p.plan.Status.Conditions, v1alpha1.ConditionProgressing); progressing != nil &&
		progressing.Status == metav1.ConditionTrue && progressing.Reason != v1alpha1.ReasonComplete {
		in(p.lastProgress().Add(seconds(p.in.Pool.Spec.ProgressDeadlineSeconds, DefaultProgressDeadline)).Sub(p.in.Now))
	}
	p.plan.Recheck = next
}
