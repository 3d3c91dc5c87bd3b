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
			deadline := metav1.NewTime(p.in.Now.Add(timeout))
			request := v1alpha1.DrainRequest{Requester: drainRequester, Reason: reason, DeadlineTime: &deadline}
			p.plan.Drains = append(p.plan.Drains, Update{
				Proxy: m.Proxy, Reason: reason,
				Ops: []objpatch.Op{objpatch.Set("/spec/drainRequests", append(slices.Clone(m.Spec.DrainRequests), request))},
			})
			continue
		}
		p.plan.Deletes = append(p.plan.Deletes, Delete{Proxy: m.Proxy, Reason: reason})
	}
}

// finishDrains deletes members that the pool drained.
func (p *planner) finishDrains() {
	for _, m := range p.all {
		request := m.drainedByPool()
		if request == nil || m.deleting {
			continue
		}
		late := request.DeadlineTime == nil || !p.in.Now.Before(request.DeadlineTime.Add(drainGrace))
		if m.leases == 0 || late {
			p.plan.Deletes = append(p.plan.Deletes, Delete{Proxy: m.Proxy, Reason: request.Reason})
		}
	}
}

// undrain takes up to n members back that only the pool drains and that are as the template wants them; those that are
// given up last come back first.
func (p *planner) undrain(n int) (taken int) {
	var candidates []member
	for _, m := range p.all {
		if m.drainedByPool() != nil && len(m.Spec.DrainRequests) == 1 && !m.deleting && !m.stale && m.unhealthySince.IsZero() &&
			!m.badlyReported(p.in.Pool.Spec.Recycle, p.in.Now) && !passed(m.bestBefore(p.in.Pool.Spec.Recycle), p.in.Now) {
			candidates = append(candidates, m)
		}
	}
	slices.SortFunc(candidates, func(a, b member) int { return compareVictims(b, a) })
	for _, m := range candidates[:min(max(n, 0), len(candidates))] {
		p.plan.Undrains = append(p.plan.Undrains, Update{Proxy: m.Proxy, Ops: []objpatch.Op{objpatch.Remove("/spec/drainRequests")}})
		p.plan.Deletes = slices.DeleteFunc(p.plan.Deletes, func(d Delete) bool { return d.Proxy.UID == m.UID })
		taken++
	}
	return taken
}

// drainedByPool is the pool's own request on a member; nil when there is none.
func (m *member) drainedByPool() *v1alpha1.DrainRequest {
	if i := slices.IndexFunc(m.Spec.DrainRequests, byPool); i >= 0 {
		return &m.Spec.DrainRequests[i]
	}
	return nil
}

func byPool(request v1alpha1.DrainRequest) bool { return request.Requester == drainRequester }

// emptyBy is when the leases of a leaving member end at the latest; zero when nobody says.
func (m *member) emptyBy() time.Time {
	if !m.DeletionTimestamp.IsZero() {
		return m.DeletionTimestamp.Add(record.DrainTimeout(m.Proxy))
	}
	return record.DrainDeadline(m.Proxy)
}

// setDrainBlocked says which member is still leased although it had to be empty.
func (p *planner) setDrainBlocked() {
	for _, m := range p.all {
		deadline := record.DrainDeadline(m.Proxy)
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
