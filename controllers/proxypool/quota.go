package proxypool

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// waiting is how many members wait for the provider's quota or capacity. They go on trying, ever more rarely; a pool that
// made more of them would only have more that wait.
func (p *planner) waiting() int {
	n := 0
	for _, m := range p.active {
		if waitsForCapacity(m.Proxy) {
			n++
		}
	}
	return n
}

// successorsWait tells whether members of the template of today wait. Those of an old one say nothing about it: another zone or
// machine type may be the very cure.
func (p *planner) successorsWait() bool {
	return slices.ContainsFunc(p.active, func(m member) bool { return m.due == "" && waitsForCapacity(m.Proxy) })
}

func waitsForCapacity(px *v1alpha1.Proxy) bool {
	provisioned := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionProvisioned)
	return provisioned != nil && provisioned.Status == metav1.ConditionFalse && provisioned.Reason == v1alpha1.ReasonWaitingForCapacity
}

func (p *planner) setQuotaExceeded() {
	n := p.waiting()
	switch {
	case n > 0:
		p.set(v1alpha1.ConditionQuotaExceeded, metav1.ConditionTrue, v1alpha1.ReasonWaitingForCapacity,
			"The provider refuses more instances for lack of quota or capacity; proxies wait for it, and until they have it no more are made.")
	case meta.FindStatusCondition(p.plan.Status.Conditions, v1alpha1.ConditionQuotaExceeded) != nil:
		p.set(v1alpha1.ConditionQuotaExceeded, metav1.ConditionFalse, v1alpha1.ReasonWithinLimit, "No proxy waits for quota or capacity.")
	}
}
