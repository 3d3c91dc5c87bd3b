// Package record says what a ProxyLease object means: which proxy it holds, since when, until when, and how it ended.
//
// The functions are pure. Everybody who asks such a question (ledger, recovery, HTTP API, controller) asks it here, so that
// two readers never disagree about one object.
package record

import (
	"maps"
	"net"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// AnnotationRequestHash on a lease that was asked for by HTTP is the hash of the request, so that a repeated
// Idempotency-Key with another request is told apart from a retry.
const AnnotationRequestHash = v1alpha1.GroupName + "/request-hash"

// Binding is which incarnation of which proxy a lease holds, and by which grant.
type Binding struct {
	ProxyName  string
	ProxyUID   types.UID
	InstanceID string
	// Epoch and Seq identify the grant: no two grants have both in common.
	Epoch, Seq int64
}

// BindingOf is the binding recorded on a lease: status first, then the grant of a lease that was asked for by HTTP and has
// no status yet. A finished lease has one too: it says what the lease held.
func BindingOf(l *v1alpha1.ProxyLease) (Binding, bool) {
	if ref := l.Status.ProxyRef; ref != nil {
		return Binding{
			ProxyName: ref.Name, ProxyUID: ref.UID, InstanceID: ref.InstanceID,
			Epoch: l.Status.GrantEpoch, Seq: l.Status.GrantSeq,
		}, true
	}
	if g := l.Spec.Grant; g != nil {
		return Binding{
			ProxyName: g.ProxyName, ProxyUID: g.ProxyUID, InstanceID: g.InstanceID,
			Epoch: g.Epoch, Seq: g.Seq,
		}, true
	}
	return Binding{}, false
}

// Choose writes into the spec of a lease that names no proxy which ones will do: those with the labels, of the pool if one is
// named, and all of the namespace when nothing is asked for.
func Choose(spec *v1alpha1.ProxyLeaseSpec, selector map[string]string, pool string) {
	switch {
	case spec.ProxyName != "":
	case pool != "" && len(selector) == 0:
		spec.PoolRef = &v1alpha1.LocalRef{Name: pool}
	default:
		all := map[string]string{}
		maps.Copy(all, selector)
		if pool != "" {
			all[v1alpha1.LabelPool] = pool
		}
		spec.Selector = &metav1.LabelSelector{MatchLabels: all}
	}
}

// Finished tells whether a lease has ended for good.
func Finished(l *v1alpha1.ProxyLease) bool {
	switch l.Status.Phase {
	case v1alpha1.LeaseExpired, v1alpha1.LeaseRevoked, v1alpha1.LeaseFailed:
		return true
	}
	return false
}

// Holds tells whether a lease holds a proxy now.
func Holds(l *v1alpha1.ProxyLease) bool {
	_, bound := BindingOf(l)
	return bound && !Finished(l) && l.DeletionTimestamp.IsZero()
}

// Pending tells whether a lease waits for a proxy.
func Pending(l *v1alpha1.ProxyLease) bool {
	_, bound := BindingOf(l)
	return !bound && !Finished(l) && l.DeletionTimestamp.IsZero()
}

// Expiry is when the lease ends by what is stored of it; zero when it never held a proxy. It is what holders are told and
// what survives a restart; the leader's clock decides when that moment has come.
func Expiry(l *v1alpha1.ProxyLease) time.Time {
	var at time.Time
	if g := l.Spec.Grant; g != nil {
		at = g.ExpireTime.Time
	}
	if s := l.Status.ExpireTime; s != nil && s.After(at) {
		at = s.Time
	}
	return at
}

// TTL is how long the lease lives without a renewal: after clamping once it is bound, as asked for before.
func TTL(l *v1alpha1.ProxyLease) time.Duration {
	return time.Duration(TTLSeconds(l)) * time.Second
}

// TTLSeconds is TTL in seconds.
func TTLSeconds(l *v1alpha1.ProxyLease) int32 {
	switch {
	case l.Status.EffectiveTTLSeconds > 0:
		return l.Status.EffectiveTTLSeconds
	case l.Spec.TTLSeconds > 0:
		return l.Spec.TTLSeconds
	}
	return v1alpha1.DefaultLeaseTTLSeconds
}

// RenewalPending tells whether the holder has changed spec.renewTime since the allocator last took it in. Only the change
// counts, never the value: the clock it was read from is a stranger's.
func RenewalPending(l *v1alpha1.ProxyLease) bool {
	return l.Spec.RenewTime != nil && !sameTime(l.Spec.RenewTime, l.Status.LastRenewTime)
}

func sameTime(a, b *metav1.MicroTime) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Equal(b)
}

// KeepAfterFinish is how long a finished lease is kept.
func KeepAfterFinish(l *v1alpha1.ProxyLease) time.Duration {
	seconds := int32(v1alpha1.DefaultTTLSecondsAfterFinished)
	if s := l.Spec.TTLSecondsAfterFinished; s != nil {
		seconds = *s
	}
	return time.Duration(seconds) * time.Second
}

// InstanceID is the incarnation a Proxy has now; empty when it has none.
func InstanceID(px *v1alpha1.Proxy) string {
	if px.Status.Instance == nil {
		return ""
	}
	return px.Status.Instance.ID
}

// Host is the address of a Proxy's endpoint; empty when it has none.
func Host(px *v1alpha1.Proxy) string {
	if i := px.Status.Instance; i != nil && len(i.Addresses) > 0 {
		return i.Addresses[0]
	}
	return ""
}

// EgressIP is the address a Proxy was last seen to leave from.
func EgressIP(px *v1alpha1.Proxy) string {
	if px.Status.Health == nil {
		return ""
	}
	return px.Status.Health.EgressIP
}

// URL is where clients find a Proxy, without credentials; empty when it has no address.
func URL(px *v1alpha1.Proxy) string {
	host := Host(px)
	if host == "" {
		return ""
	}
	return "http://" + net.JoinHostPort(host, strconv.Itoa(int(px.EndpointPort())))
}

// Pool is the name of the pool a Proxy belongs to; empty when it belongs to none.
func Pool(px *v1alpha1.Proxy) string { return px.Labels[v1alpha1.LabelPool] }

// ClampTTL is the TTL in seconds that is granted: the wish, else the pool's default, else the general one, never above the
// pool's maximum and never below the general minimum. bounds may be nil.
func ClampTTL(wish int32, bounds *v1alpha1.PoolLeases) int32 {
	limit := int32(v1alpha1.MaxLeaseTTLSeconds)
	ttl := wish
	if bounds != nil {
		if bounds.MaxTTLSeconds != nil {
			limit = min(limit, *bounds.MaxTTLSeconds)
		}
		if ttl <= 0 && bounds.DefaultTTLSeconds != nil {
			ttl = *bounds.DefaultTTLSeconds
		}
	}
	if ttl <= 0 {
		ttl = v1alpha1.DefaultLeaseTTLSeconds
	}
	return max(min(ttl, limit), v1alpha1.MinLeaseTTLSeconds)
}
