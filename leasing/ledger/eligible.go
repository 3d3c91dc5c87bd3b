package ledger

import (
	"k8s.io/apimachinery/pkg/api/meta"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// Reasons for which a Proxy is closed that no condition of the API names.
const (
	// ReasonLeasingDisabled is that a person has cordoned the proxy.
	ReasonLeasingDisabled = "LeasingDisabled"
	// ReasonNotObserved is that the newest specification has not been taken in yet.
	ReasonNotObserved = "NotObserved"
	// ReasonNotReady is that the Ready condition of the proxy is not True.
	ReasonNotReady = "NotReady"
)

// Closed is why a Proxy takes no new lease, whoever asks; empty when it takes them. Load, capacity and cooldowns are not
// its matter.
func Closed(px *v1alpha1.Proxy) string {
	s := &px.Status
	switch {
	case !px.DeletionTimestamp.IsZero():
		return v1alpha1.ReasonTerminating
	case px.Spec.Leasing == v1alpha1.LeasingDisabled:
		return ReasonLeasingDisabled
	case len(px.Spec.DrainRequests) > 0:
		return v1alpha1.ReasonDraining
	case record.Host(px) == "":
		return v1alpha1.ReasonNotProvisioned
	case s.ObservedGeneration != px.Generation:
		return ReasonNotObserved
	case !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionHealthy):
		return v1alpha1.ReasonNotHealthy
	case s.Health == nil || s.Health.InstanceID != record.InstanceID(px):
		return v1alpha1.ReasonInstanceChanged
	case px.Spec.Mode != v1alpha1.ModeExternal && !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionAccessRestricted):
		return v1alpha1.ReasonOpen
	case !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReady):
		return ReasonNotReady
	}
	return ""
}
