package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/client"
	"crawl.example.com/egress-proxies-operator/leasing/record"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// maxWaitSeconds is the longest wait that a lease can have; the schema's bound.
const maxWaitSeconds = 86400

// nameOf is the name of the lease of a key. That it follows from the key lets the API server refuse a second one.
func nameOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "client-" + hex.EncodeToString(sum[:20])
}

func (b *backend) namespace(r client.Request) string {
	if r.Namespace != "" {
		return r.Namespace
	}
	return b.Namespace
}

// wanted is the lease that a request asks for.
func (b *backend) wanted(ctx context.Context, r client.Request, key string) (*v1alpha1.ProxyLease, error) {
	namespace := b.namespace(r)
	if namespace == "" {
		return nil, invalid("namespace", "is required, here or in the options")
	}
	lease := &v1alpha1.ProxyLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: nameOf(key)},
		Spec: v1alpha1.ProxyLeaseSpec{
			Targets: distinct(r.Targets), Mode: v1alpha1.LeaseMode(r.Mode), Holder: r.Holder, TTLSeconds: ceilSeconds(r.TTL),
			WaitSeconds: waitSeconds(ctx, r.Wait), OnProxyFailure: v1alpha1.OnFailureKeep,
		},
	}
	if lease.Spec.Mode == "" {
		lease.Spec.Mode = v1alpha1.LeaseShared
	}
	if b.Owner != nil {
		lease.OwnerReferences = []metav1.OwnerReference{*b.Owner}
	}
	if r.Proxy != "" {
		if r.Pool != "" || len(r.Selector) > 0 {
			return nil, invalid("proxy", "must not be combined with pool or selector")
		}
		lease.Spec.ProxyName = proxyName(r.Proxy, namespace)
	}
	if _, twice := r.Selector[v1alpha1.LabelPool]; twice && r.Pool != "" {
		return nil, invalid("pool", "must not be combined with the selector's label of the same meaning")
	}
	record.Choose(&lease.Spec, r.Selector, r.Pool)
	for _, id := range r.Exclude {
		lease.Spec.ExcludedProxyNames = append(lease.Spec.ExcludedProxyNames, proxyName(id, namespace))
	}
	lease.Spec.ExcludedProxyNames = distinct(lease.Spec.ExcludedProxyNames)
	return lease, nil
}

// proxyName reads the name of a proxy, or its id "namespace/name".
func proxyName(id, namespace string) string { return strings.TrimPrefix(id, namespace+"/") }

// distinct is what the schema wants of a set.
func distinct(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }

// ceilSeconds rounds up to whole seconds.
func ceilSeconds(d time.Duration) int32 {
	const most = math.MaxInt32 * time.Second
	return int32((min(max(d, -most), most) + time.Second - 1) / time.Second)
}

// waitSeconds is how long the lease may stay pending; nil: as long as it takes. A crawler that dies while it waits leaves a
// lease behind that waits on, so the deadline of the context bounds it, a little later than that.
func waitSeconds(ctx context.Context, wait time.Duration) *int32 {
	if wait < 0 {
		return new(int32(0))
	}
	deadline, bounded := ctx.Deadline()
	switch late := min(time.Until(deadline), maxWaitSeconds*time.Second) + 2*time.Second; {
	case bounded && (wait == 0 || late < wait):
		wait = max(late, time.Second)
	case wait == 0:
		return nil
	}
	return new(min(ceilSeconds(wait), maxWaitSeconds))
}

// sameRequest tells whether an object was made for the request. How long to wait is no part of it.
func sameRequest(a, b *v1alpha1.ProxyLease) bool {
	of := func(l *v1alpha1.ProxyLease) v1alpha1.ProxyLeaseSpec {
		spec := *l.Spec.DeepCopy()
		spec.WaitSeconds, spec.RenewTime, spec.Reports = nil, nil, nil
		return spec
	}
	return apiequality.Semantic.DeepEqual(of(a), of(b))
}

func invalid(field, detail string) error {
	return &client.Error{Status: http.StatusUnprocessableEntity, Code: wire.CodeInvalidField, Field: field, Detail: detail}
}
