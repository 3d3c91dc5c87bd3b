package proxy

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// FirstVerdictGrace is how long an instance that came to run may go without a word of core. The first probe is under way
// and most often decides within it, and then one write says both: that it runs, and how it is.
const FirstVerdictGrace = 3 * time.Second

// awaitVerdict is how long the write of desired can wait for the first verdict on a new instance; 0 when it cannot. It is
// pure.
func awaitVerdict(px *v1alpha1.Proxy, desired *v1alpha1.ProxyStatus, in Input) time.Duration {
	provisioned := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionProvisioned)
	switch {
	case px.Spec.Mode == v1alpha1.ModeExternal, !px.DeletionTimestamp.IsZero():
		return 0
	case in.Problem != nil || in.Verdict == nil || in.Verdict.Known:
		// There is nothing to wait for.
		return 0
	case provisioned == nil || provisioned.Status != metav1.ConditionTrue:
		return 0
	case px.Status.ObservedGeneration != px.Generation, px.Status.Binding == nil || desired.Binding == nil:
		return 0
	case meta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionReady):
		// That it is not ready any more must be said at once.
		return 0
	}
	left := FirstVerdictGrace - in.Now.Sub(provisioned.LastTransitionTime.Time)
	if left > FirstVerdictGrace {
		// The clocks of the two managers differ.
		return 0
	}
	return max(0, left)
}
