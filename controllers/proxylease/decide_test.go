package proxylease

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

var now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func heldProxy(change func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
	px := &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"},
		Status: v1alpha1.ProxyStatus{
			Instance: &v1alpha1.Instance{ID: "i"}, Health: &v1alpha1.Health{InstanceID: "i"},
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionHealthy, Status: metav1.ConditionTrue}},
		},
	}
	change(px)
	return px
}

func TestJudge(t *testing.T) {
	at := func(d time.Duration) *metav1.Time { return new(metav1.NewTime(now.Add(d))) }
	sick := func(px *v1alpha1.Proxy) { px.Status.Conditions[0].Status = metav1.ConditionFalse }
	for name, c := range map[string]struct {
		px     *v1alpha1.Proxy
		policy v1alpha1.ProxyFailurePolicy
		reason string
		again  time.Time
	}{
		"as it was":       {px: heldProxy(func(*v1alpha1.Proxy) {})},
		"gone":            {reason: v1alpha1.ReasonProxyDeleted},
		"a namesake":      {px: heldProxy(func(px *v1alpha1.Proxy) { px.UID = "v" }), reason: v1alpha1.ReasonProxyDeleted},
		"replaced":        {px: heldProxy(func(px *v1alpha1.Proxy) { px.Status.Instance.ID = "j" }), reason: v1alpha1.ReasonProxyReplaced},
		"without address": {px: heldProxy(func(px *v1alpha1.Proxy) { px.Status.Instance = nil })},
		"being deleted":   {px: heldProxy(func(px *v1alpha1.Proxy) { px.DeletionTimestamp = at(0) }), reason: v1alpha1.ReasonProxyDeleted},
		"deleted with patience": {px: heldProxy(func(px *v1alpha1.Proxy) {
			px.DeletionTimestamp = at(-time.Minute)
			px.Spec.Deletion = &v1alpha1.ProxyDeletion{DrainTimeoutSeconds: ptr.To[int32](90)}
		}), again: now.Add(30 * time.Second)},
		"patience is over": {px: heldProxy(func(px *v1alpha1.Proxy) {
			px.DeletionTimestamp = at(-time.Minute)
			px.Spec.Deletion = &v1alpha1.ProxyDeletion{DrainTimeoutSeconds: ptr.To[int32](60)}
		}), reason: v1alpha1.ReasonProxyDeleted},
		"draining": {px: heldProxy(func(px *v1alpha1.Proxy) { px.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: "x"}} })},
		"draining until then": {px: heldProxy(func(px *v1alpha1.Proxy) {
			px.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: "x", DeadlineTime: at(time.Minute)}}
		}), again: now.Add(time.Minute)},
		"drain deadline": {px: heldProxy(func(px *v1alpha1.Proxy) {
			px.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: "x", DeadlineTime: at(0)}}
		}), reason: v1alpha1.ReasonDrainDeadline},
		// Whichever way came first: who was told to be gone by a moment is not given more time by the other.
		"drained, then deleted": {px: heldProxy(func(px *v1alpha1.Proxy) {
			px.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: "x", DeadlineTime: at(time.Second)}}
			px.DeletionTimestamp = at(-time.Second)
			px.Spec.Deletion = &v1alpha1.ProxyDeletion{DrainTimeoutSeconds: ptr.To[int32](3600)}
		}), again: now.Add(time.Second)},
		"drain deadline of a deleted one": {px: heldProxy(func(px *v1alpha1.Proxy) {
			px.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: "x", DeadlineTime: at(0)}}
			px.DeletionTimestamp = at(-time.Second)
			px.Spec.Deletion = &v1alpha1.ProxyDeletion{DrainTimeoutSeconds: ptr.To[int32](3600)}
		}), reason: v1alpha1.ReasonDrainDeadline},
		"deleted, to be drained later": {px: heldProxy(func(px *v1alpha1.Proxy) {
			px.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: "x", DeadlineTime: at(time.Hour)}}
			px.DeletionTimestamp = at(-time.Minute)
			px.Spec.Deletion = &v1alpha1.ProxyDeletion{DrainTimeoutSeconds: ptr.To[int32](60)}
		}), reason: v1alpha1.ReasonProxyDeleted},
		"L22 unhealthy, Keep":    {px: heldProxy(sick), policy: v1alpha1.OnFailureKeep},
		"L22 unhealthy, Revoke":  {px: heldProxy(sick), policy: v1alpha1.OnFailureRevoke, reason: v1alpha1.ReasonProxyUnhealthy},
		"health is not known":    {px: heldProxy(func(px *v1alpha1.Proxy) { px.Status.Conditions[0].Status = metav1.ConditionUnknown }), policy: v1alpha1.OnFailureRevoke},
		"health of another time": {px: heldProxy(func(px *v1alpha1.Proxy) { sick(px); px.Status.Health.InstanceID = "old" }), policy: v1alpha1.OnFailureRevoke},
	} {
		t.Run(name, func(t *testing.T) {
			lease := &v1alpha1.ProxyLease{
				Spec: v1alpha1.ProxyLeaseSpec{OnProxyFailure: c.policy},
				Status: v1alpha1.ProxyLeaseStatus{
					Phase: v1alpha1.LeaseBound, ProxyRef: &v1alpha1.BoundProxy{Name: "p", UID: "u", InstanceID: "i"},
				},
			}
			if got := judge(lease, c.px, now); got.Reason != c.reason || !got.Again.Equal(c.again) || (got.Reason != "") != (got.Message != "") {
				t.Fatalf("%+v, want %q and %v", got, c.reason, c.again)
			}
		})
	}
}
