package leasing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/cooldown"
	"crawl.example.com/egress-proxies-operator/leasing/grant"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// TakeReport takes in what the holder of a lease saw at a target. When it returns nil, the proxy's cooldown is stored.
// first says that the lease has not reported the target before: repetitions never escalate. A report about a proxy or an
// incarnation that is gone has no effect.
//
// Any replica may do it: the write carries the resourceVersion it was decided on.
func (a *Allocator) TakeReport(ctx context.Context, lease *v1alpha1.ProxyLease, r v1alpha1.LeaseReport, retryAfter time.Duration, first bool) error {
	b, ok := record.BindingOf(lease)
	if !ok {
		return nil
	}
	a.metrics.reports.WithLabelValues(string(r.Result)).Inc()
	if a.Hinter != nil && r.Result != v1alpha1.ReportOK {
		a.Hinter.Hint(b.ProxyUID)
	}
	if !cooldown.Cools(r.Result) {
		return nil
	}
	hit := cooldown.Hit{Target: r.Target, Result: r.Result, InstanceID: b.InstanceID, RetryAfter: retryAfter, Repeat: !first}
	key := types.NamespacedName{Namespace: lease.Namespace, Name: b.ProxyName}
	evicted := 0
	_, err := a.pipeline.UpdateProxy(ctx, key, b.ProxyUID, func(px *v1alpha1.Proxy) (*v1alpha1.ProxyStatus, error) {
		if record.InstanceID(px) != b.InstanceID {
			return nil, nil
		}
		list, changed, n := cooldown.Add(px.Status.Cooldowns, hit, a.Clock.Now())
		if !changed {
			return nil, nil
		}
		evicted = n
		status := px.Status.DeepCopy()
		status.Cooldowns = list
		return status, nil
	})
	if errors.Is(err, grant.ErrGone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("store the cooldown of proxy %s: %w", key, err)
	}
	a.metrics.evicted.Add(float64(evicted))
	return nil
}

// EnsureExclusive makes the proxy of a bound exclusive lease name it. taken says that the proxy names another lease that
// holds it: then this one does not.
func (a *Allocator) EnsureExclusive(ctx context.Context, lease *v1alpha1.ProxyLease) (taken bool, err error) {
	b, ok := record.BindingOf(lease)
	if !ok || lease.Spec.Mode != v1alpha1.LeaseExclusive {
		return false, nil
	}
	key := client.ObjectKeyFromObject(lease)
	if known, ok := a.ledger.Lookup(key); ok && known.UID == lease.UID && known.Outcast {
		return true, nil
	}
	px := a.ledger.Proxy(types.NamespacedName{Namespace: lease.Namespace, Name: b.ProxyName}, b.ProxyUID)
	if px != nil && (px.Status.Exclusive == nil || px.Status.Exclusive.LeaseUID != lease.UID) && !a.ledger.Settled(lease.Namespace) {
		return false, errNotYet
	}
	err = a.pipeline.Claim(ctx, lease, b)
	switch {
	case errors.Is(err, grant.ErrGone):
		return false, nil // the end of the proxy is another matter
	case !errors.Is(err, grant.ErrTaken):
		return false, err
	}
	px = a.ledger.Proxy(types.NamespacedName{Namespace: lease.Namespace, Name: b.ProxyName}, b.ProxyUID)
	if px != nil && a.ledger.StaleExclusive(px) != "" {
		a.checkExclusive(px, "")
		return false, err // the other one has to be cleared away first
	}
	a.metrics.conflicts.Inc()
	return true, nil
}
