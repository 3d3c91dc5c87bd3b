package proxypool

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/objpatch"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// A member that is leased is not deleted but asked to drain: its leases may run until the deadline of its deletion policy,
// and as long as it is there a larger pool takes it back instead of making a new one.

const (
	// drainRequester is the pool's own drain request on a member. It lifts no other.
	drainRequester = "pool"
	// drainGrace is how long after its deadline a drain may take to revoke what is left.
	drainGrace = time.Minute
)

// remove gives members up.
func (p *planner) remove(victims []member, reason string) {
	for _, m := range victims {
		if timeout := record.DrainTimeout(m.Proxy); m.leases > 0 && timeout > 0 {
			p.drain(m, reason, new(metav1.NewTime(p.in.Now.Add(timeout))))
			continue
		}
		p.plan.Deletes = append(p.plan.Deletes, Delete{Proxy: m.Proxy, Reason: reason})
	}
}

// drain asks a member to be empty, instead of what the pool has asked of it before; nil is no deadline.
func (p *planner) drain(m member, reason string, deadline *metav1.Time) {
	request := v1alpha1.DrainRequest{Requester: drainRequester, Reason: reason, DeadlineTime: deadline}
	p.plan.Drains = append(p.plan.Drains, Update{
		Proxy: m.Proxy, Reason: reason, Patient: deadline == nil,
		Ops: []objpatch.Op{objpatch.Set("/spec/drainRequests", append(m.foreignRequests(), request))},
	})
}

// replace gives a member up for a successor. With OnRelease nobody loses a lease on a proxy that works: the member takes no
// new leases, even if it has none now, and goes when those it has have ended. A member that stayed open would never be
// without leases as long as others wait for one, so it is closed as soon as the budget lets the pool do without it.
func (p *planner) replace(m member) {
	if p.onRelease() && !p.sick(&m) && (m.ready || m.leases > 0) {
		p.drain(m, m.due, nil)
		return
	}
	p.remove([]member{m}, m.due)
}

func (p *planner) onRelease() bool {
	strategy := p.in.Pool.Spec.Strategy
	return strategy != nil && strategy.Type == v1alpha1.StrategyOnRelease
}

// finishDrains deletes members that the pool drained. One that waits for its leases without a deadline gets one when the
// reason to wait is gone: the strategy is another, it does not work, or the pool has become so small that it is no
// predecessor of any replica.
func (p *planner) finishDrains() {
	var waiting []member
	for _, m := range p.all {
		request := m.drainedByPool()
		switch {
		case request == nil || m.deleting || m.kept:
		case m.emptied, !m.patient && !p.in.Now.Before(request.DeadlineTime.Add(drainGrace)):
			p.plan.Deletes = append(p.plan.Deletes, Delete{Proxy: m.Proxy, Reason: request.Reason})
		case m.patient && (!p.onRelease() || p.sick(&m)):
			p.hasten(m, request.Reason)
		case m.patient:
			waiting = append(waiting, m)
		}
	}
	slices.SortFunc(waiting, p.compareVictims)
	for _, m := range waiting[:max(len(waiting)-p.replicas, 0)] {
		p.hasten(m, reasonScaleDown)
	}
}

// hasten gives a member up that waits for its leases. One whose last lease has ended a moment ago is left to be seen empty.
func (p *planner) hasten(m member, reason string) {
	if m.leases > 0 {
		p.remove([]member{m}, reason)
	}
}

// keep decides whether the pool takes back a member that it drains: one that waits for its leases and is not to be replaced
// any more, and in a paused pool one that works, since to let it go would be to finish its replacement. Taken back, it is a
// replica like any other in this very plan, and may be the one to go if there are too many.
func (p *planner) keep(m *member) {
	request := m.drainedByPool()
	if request == nil || m.deleting {
		return
	}
	m.kept = m.patient && m.due == "" || p.paused() && m.ready && request.Reason != reasonScaleDown
	if m.kept {
		m.leaving = len(m.foreignRequests()) > 0
	}
}

// takeBack lifts the pool's requests from members that are kept and were not picked to go after all.
func (p *planner) takeBack() {
	for _, m := range p.all {
		if m.kept && !slices.ContainsFunc(p.plan.Deletes, func(d Delete) bool { return d.Proxy == m.Proxy }) &&
			!slices.ContainsFunc(p.plan.Drains, func(u Update) bool { return u.Proxy == m.Proxy }) {
			p.lift(m)
		}
	}
}

func (p *planner) lift(m member) {
	op := objpatch.Remove("/spec/drainRequests")
	if others := m.foreignRequests(); len(others) > 0 {
		op = objpatch.Set("/spec/drainRequests", others)
	}
	p.plan.Undrains = append(p.plan.Undrains, Update{Proxy: m.Proxy, Ops: []objpatch.Op{op}})
}

// undrain takes up to n members back that only the pool drains and that are as the template wants them; those that are
// given up last come back first. A paused pool takes those of an old template, too: it makes none in their place.
func (p *planner) undrain(n int) (taken int) {
	recycle := p.in.Pool.Spec.Recycle
	var candidates []member
	for _, m := range p.all {
		if m.drainedByPool() == nil || len(m.Spec.DrainRequests) != 1 || m.deleting || m.kept || m.patient || !m.unhealthySince.IsZero() {
			continue
		}
		if p.paused() || !m.stale && !m.badlyReported(recycle, p.in.Now) && !passed(m.bestBefore(recycle), p.in.Now) {
			candidates = append(candidates, m)
		}
	}
	slices.SortFunc(candidates, func(a, b member) int { return p.compareVictims(b, a) })
	for _, m := range candidates[:min(max(n, 0), len(candidates))] {
		p.lift(m)
		p.plan.Deletes = slices.DeleteFunc(p.plan.Deletes, func(d Delete) bool { return d.Proxy.UID == m.UID })
		taken++
	}
	return taken
}

// foreignRequests to drain a member are those of others than the pool, which lifts none of them.
func (m *member) foreignRequests() []v1alpha1.DrainRequest {
	return slices.DeleteFunc(slices.Clone(m.Spec.DrainRequests), byPool)
}

// foreign members are there only because the pool may not lift what others ask of them.
func (m *member) foreign() bool { return m.leaving && !m.deleting && m.drainedByPool() == nil }

// dropForeign deletes members that others have emptied, for a pool that has its replicas without them.
func (p *planner) dropForeign() {
	for _, m := range p.all {
		if m.foreign() && m.emptied {
			p.plan.Deletes = append(p.plan.Deletes, Delete{Proxy: m.Proxy, Reason: reasonScaleDown})
		}
	}
}

// drainedByPool is the pool's own request on a member; nil when there is none.
func (m *member) drainedByPool() *v1alpha1.DrainRequest {
	if i := slices.IndexFunc(m.Spec.DrainRequests, byPool); i >= 0 {
		return &m.Spec.DrainRequests[i]
	}
	return nil
}

func byPool(request v1alpha1.DrainRequest) bool { return request.Requester == drainRequester }

// setDrainBlocked says which member is still leased although it had to be empty.
func (p *planner) setDrainBlocked() {
	for _, m := range p.all {
		deadline := record.EmptyBy(m.Proxy)
		if m.leaving && m.leases > 0 && !deadline.IsZero() && !p.in.Now.Before(deadline.Add(drainGrace)) {
			p.set(v1alpha1.ConditionDrainBlocked, metav1.ConditionTrue, v1alpha1.ReasonDraining,
				"Proxy %s had to be empty by %s and is still leased.", m.Name, deadline.UTC().Format(time.RFC3339))
			return
		}
	}
	if meta.FindStatusCondition(p.plan.Status.Conditions, v1alpha1.ConditionDrainBlocked) != nil {
		p.set(v1alpha1.ConditionDrainBlocked, metav1.ConditionFalse, v1alpha1.ReasonDrained, "No proxy is leased after its deadline.")
	}
}
