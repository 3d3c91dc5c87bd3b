package proxylease

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// verdict is what has to become of a bound lease because of its proxy.
type verdict struct {
	// Revoke with this reason and message; empty: the lease stays.
	Reason, Message string
	// Again is when to look again; zero: when something changes.
	Again time.Time
}

// judge decides whether a bound lease keeps its proxy. px is the Proxy of that name, nil when there is none. It is pure.
//
// An instance that was replaced is another exit with another address: the lease ends rather than silently going on with
// it. A probe that failed ends nothing by itself; the thresholds of the health engine lie behind the Healthy condition.
func judge(lease *v1alpha1.ProxyLease, px *v1alpha1.Proxy, now time.Time) verdict {
	b, _ := record.BindingOf(lease)
	if px == nil || px.UID != b.ProxyUID {
		return verdict{Reason: v1alpha1.ReasonProxyDeleted, Message: fmt.Sprintf("Proxy %s was deleted", b.ProxyName)}
	}
	if instance := record.InstanceID(px); instance != "" && b.InstanceID != "" && instance != b.InstanceID {
		return verdict{
			Reason:  v1alpha1.ReasonProxyReplaced,
			Message: fmt.Sprintf("The instance of proxy %s was replaced and has another address; lease again", b.ProxyName),
		}
	}
	end := record.EmptyBy(px)
	if !end.IsZero() && !now.Before(end) {
		if end.Equal(record.DrainDeadline(px)) {
			return verdict{Reason: v1alpha1.ReasonDrainDeadline, Message: fmt.Sprintf("Proxy %s had to be empty by %s", b.ProxyName, end.UTC().Format(time.RFC3339))}
		}
		return verdict{Reason: v1alpha1.ReasonProxyDeleted, Message: fmt.Sprintf("Proxy %s is being deleted", b.ProxyName)}
	}
	v := verdict{Again: end}
	if !px.DeletionTimestamp.IsZero() {
		return v
	}
	healthy := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionHealthy)
	if lease.Spec.OnProxyFailure == v1alpha1.OnFailureRevoke && healthy != nil && healthy.Status == metav1.ConditionFalse &&
		px.Status.Health != nil && px.Status.Health.InstanceID == b.InstanceID {
		return verdict{Reason: v1alpha1.ReasonProxyUnhealthy, Message: fmt.Sprintf("Proxy %s is unhealthy: %s", b.ProxyName, healthy.Reason)}
	}
	return v
}

// prospects is what the leases of a proxy depend on.
type prospects struct {
	uid             types.UID
	instance        string
	deleting        bool
	drain           time.Time
	draining        bool
	ready, healthy  metav1.ConditionStatus
	reason, message string
	exclusive       types.UID
}

func outlook(px *v1alpha1.Proxy) prospects {
	p := prospects{
		uid: px.UID, instance: record.InstanceID(px), deleting: !px.DeletionTimestamp.IsZero(),
		drain: record.EmptyBy(px), draining: record.Draining(px),
	}
	if c := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		p.ready, p.reason, p.message = c.Status, c.Reason, c.Message
	}
	if c := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionHealthy); c != nil {
		p.healthy = c.Status
	}
	if x := px.Status.Exclusive; x != nil {
		p.exclusive = x.LeaseUID
	}
	return p
}
