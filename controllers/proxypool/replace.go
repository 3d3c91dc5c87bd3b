package proxypool

import (
	"hash/fnv"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// Which members are to be replaced, and why. A rollout, the greatest age, reports and lasting ill health share one budget, that of
// spec.strategy: a member is due or not, and roll does the rest.

const (
	// DefaultJitterPercent spreads spec.recycle.maxAgeSeconds.
	DefaultJitterPercent = 10
	// DefaultMaxUnhealthy stops recycling and remediation, as a share of the replicas.
	DefaultMaxUnhealthy = "40%"
)

// whyDue is why a member is to be replaced; "" when it is not.
func (p *planner) whyDue(m *member) string {
	spec := &p.in.Pool.Spec
	switch {
	case p.paused():
		return ""
	case m.stale:
		return reasonRollout
	case !p.calm():
		// It is the probe target or the uplink that is down, and successors would be no better.
		return ""
	case p.sick(m):
		return reasonUnhealthy
	case m.badlyReported(spec.Recycle, p.in.Now):
		return reasonReported
	case passed(m.bestBefore(spec.Recycle), p.in.Now):
		return reasonMaxAge
	}
	return ""
}

func (p *planner) paused() bool { return p.in.Pool.Spec.Paused != nil && *p.in.Pool.Spec.Paused }

// calm: not so many are unhealthy that it must be something else.
func (p *planner) calm() bool { return p.unhealthy <= p.maxUnhealthy() }

// sick tells whether a member has been unhealthy for longer than it may, of whatever template it is.
func (p *planner) sick(m *member) bool {
	return passed(m.unhealthyUntil(p.in.Pool.Spec.Remediation), p.in.Now) && p.calm()
}

// passed tells whether a moment has come; the zero one never does.
func passed(moment, now time.Time) bool { return !moment.IsZero() && !now.Before(moment) }

func (p *planner) maxUnhealthy() int {
	if remediation := p.in.Pool.Spec.Remediation; remediation != nil {
		return scaled(remediation.MaxUnhealthy, DefaultMaxUnhealthy, p.replicas, true)
	}
	return scaled(nil, DefaultMaxUnhealthy, p.replicas, true)
}

// unhealthySince is since when a proxy that runs does not work; zero when it works or nothing is known.
func unhealthySince(px *v1alpha1.Proxy) time.Time {
	healthy := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionHealthy)
	if healthy == nil || healthy.Status != metav1.ConditionFalse || !meta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionProvisioned) {
		return time.Time{}
	}
	return healthy.LastTransitionTime.Time
}

// unhealthyUntil is how long a member may stay unhealthy; zero for ever.
func (m *member) unhealthyUntil(remediation *v1alpha1.PoolRemediation) time.Time {
	if m.unhealthySince.IsZero() || remediation == nil || remediation.UnhealthyTimeoutSeconds == nil {
		return time.Time{}
	}
	return m.unhealthySince.Add(seconds(remediation.UnhealthyTimeoutSeconds, 0))
}

// bestBefore is when a member is too old; zero for never. Members that were made together do not all age together: each is
// due earlier by a share of the jitter that follows from its UID.
func (m *member) bestBefore(recycle *v1alpha1.PoolRecycle) time.Time {
	if recycle == nil || recycle.MaxAgeSeconds == nil || m.CreationTimestamp.IsZero() {
		return time.Time{}
	}
	percent := int32(DefaultJitterPercent)
	if recycle.JitterPercent != nil {
		percent = *recycle.JitterPercent
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(m.UID))
	share := float64(hash.Sum32()) / (1 << 32)
	age := seconds(recycle.MaxAgeSeconds, 0)
	return m.CreationTimestamp.Add(age - time.Duration(float64(age)*float64(percent)/100*share))
}

// successors is how many members are not to be replaced.
func (p *planner) successors() int {
	n := 0
	for _, m := range p.active {
		if m.due == "" {
			n++
		}
	}
	return n
}

// due tells whether anything is to be replaced.
func (p *planner) due() bool {
	return slices.ContainsFunc(p.active, func(m member) bool { return m.due != "" })
}

// setRemediationAllowed says whether recycling and remediation go on, where the pool asks for them.
func (p *planner) setRemediationAllowed() {
	spec := &p.in.Pool.Spec
	switch n, most := p.unhealthy, p.maxUnhealthy(); {
	case spec.Recycle == nil && spec.Remediation == nil:
		meta.RemoveStatusCondition(&p.plan.Status.Conditions, v1alpha1.ConditionRemediationAllowed)
	case n > most:
		p.set(v1alpha1.ConditionRemediationAllowed, metav1.ConditionFalse, v1alpha1.ReasonTooManyUnhealthy,
			"More than %d proxies are unhealthy at once (spec.remediation.maxUnhealthy), so none is replaced for its age, for reports or for its health: see whether what they are probed with works.", most)
	default:
		p.set(v1alpha1.ConditionRemediationAllowed, metav1.ConditionTrue, v1alpha1.ReasonWithinLimit, "At most %d proxies are unhealthy.", most)
	}
}
