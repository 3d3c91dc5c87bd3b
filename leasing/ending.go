package leasing

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/expiry"
	"crawl.example.com/egress-proxies-operator/leasing/grant"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

const (
	// endTimeout bounds the write that ends a lease; endRetry is the pause before it is tried again.
	endTimeout = 30 * time.Second
	endRetry   = 5 * time.Second
	// enders is how many leases are ended at once, so that a mass expiry leaves room for grants.
	enders = 16
)

// watchDeadlines ends leases whose moment has come.
func (a *Allocator) watchDeadlines(ctx context.Context) {
	slots := make(chan struct{}, enders)
	for {
		now := a.Clock.Now()
		for _, d := range a.deadlines.Due(now) {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			go func() {
				defer func() { <-slots }()
				if d.What == expiry.Wait {
					a.timeOut(d.Lease, d.UID)
				} else {
					a.expire(d)
				}
			}()
		}
		var due <-chan time.Time
		stop := func() bool { return true }
		if next, ok := a.deadlines.Next(); ok {
			timer := a.Clock.NewTimer(next.Sub(now))
			due, stop = timer.C(), timer.Stop
		}
		select {
		case <-due:
		case <-a.kick:
		case <-ctx.Done():
			stop()
			return
		}
		stop()
	}
}

// expire ends a lease whose TTL is over, unless it was renewed in the meantime: the write carries the resourceVersion of
// what it was decided on, so a renewal and the expiry exclude each other.
func (a *Allocator) expire(d expiry.Deadline) {
	ctx, cancel := context.WithTimeout(a.pipeline.Base, endTimeout)
	defer cancel()
	next := d
	lease, err := a.pipeline.Update(ctx, d.Lease, d.UID, func(l *v1alpha1.ProxyLease) *v1alpha1.ProxyLeaseStatus {
		now := a.Clock.Now()
		next = expiry.Of(l, d, true, now)
		if !record.Holds(l) || next.At.After(now) || !a.Leads() {
			return nil
		}
		return record.Ended(l, a.proxyOf(l), v1alpha1.LeaseExpired, v1alpha1.ReasonExpired, "The lease was not renewed in time", now)
	})
	switch {
	case errors.Is(err, grant.ErrGone):
		// Deleted, whatever a late answer made the ledger believe.
		believed, ok := a.ledger.Taken(d.Lease)
		a.ledger.Released(d.Lease, d.UID, a.Clock.Now())
		if ok && believed.UID == d.UID {
			a.freed(types.NamespacedName{Namespace: d.Lease.Namespace, Name: believed.Binding.ProxyName}, believed.Binding.ProxyUID, d.UID)
		}
		a.wake()
		return
	case err != nil:
		a.Log.Error(err, "Expire a lease", "lease", d.Lease)
		next.At = a.Clock.Now().Add(endRetry)
	case lease.Status.Phase == v1alpha1.LeaseExpired:
		a.metrics.ended.WithLabelValues(v1alpha1.ReasonExpired).Inc()
		a.ended(lease)
		a.keep(lease)
		return
	case !record.Holds(lease):
		return
	case !next.At.After(a.Clock.Now()):
		next.At = a.Clock.Now().Add(endRetry) // it may be another leader's business now
	}
	if a.deadlines.Set(next) {
		a.kickDeadlines()
	}
}

// timeOut fails a lease that has waited long enough, unless it was granted in the meantime.
func (a *Allocator) timeOut(key types.NamespacedName, uid types.UID) {
	a.waiting.remove(string(uid))
	a.finishPending(key, uid, func(l *v1alpha1.ProxyLease) *ledger.NoProxyError { return a.whyWaiting(a.pipeline.Base, l) })
}

// fail ends a lease that can never be granted.
func (a *Allocator) fail(lease *v1alpha1.ProxyLease, reason, message string) {
	a.finishPending(types.NamespacedName{Namespace: lease.Namespace, Name: lease.Name}, lease.UID,
		func(*v1alpha1.ProxyLease) *ledger.NoProxyError {
			return &ledger.NoProxyError{Reason: reason, Message: message}
		})
}

// finishPending fails a lease if it holds nothing; a grant that is under way wins.
func (a *Allocator) finishPending(key types.NamespacedName, uid types.UID, why func(*v1alpha1.ProxyLease) *ledger.NoProxyError) {
	if taken, ok := a.ledger.Lookup(key); ok && taken.UID == uid {
		return
	}
	ctx, cancel := context.WithTimeout(a.pipeline.Base, endTimeout)
	defer cancel()
	lease, err := a.pipeline.Update(ctx, key, uid, func(l *v1alpha1.ProxyLease) *v1alpha1.ProxyLeaseStatus {
		if !record.Pending(l) || !a.Leads() {
			return nil
		}
		none := why(l)
		status := record.Ended(l, nil, v1alpha1.LeaseFailed, none.Reason, none.Message, a.Clock.Now())
		if !none.Earliest.IsZero() {
			status.RetryTime = new(metav1.NewMicroTime(none.Earliest.Truncate(time.Microsecond)))
		}
		return status
	})
	if err != nil {
		if !errors.Is(err, grant.ErrGone) {
			a.Log.Error(err, "Fail a lease", "lease", key)
			a.chores.AddAfter(chore{what: requeue, key: key, uid: uid}, endRetry)
		}
		return
	}
	switch {
	case record.Pending(lease): // it may be another leader's business now
		a.chores.AddAfter(chore{what: requeue, key: key, uid: uid}, endRetry)
	case lease.Status.Phase == v1alpha1.LeaseFailed:
		a.metrics.ended.WithLabelValues(endReason(lease)).Inc()
		a.ended(lease)
		a.keep(lease)
	}
}

// Revoke ends a bound lease for a reason that its holder has not caused.
func (a *Allocator) Revoke(ctx context.Context, lease *v1alpha1.ProxyLease, reason, message string) error {
	revoked, err := a.pipeline.Update(ctx, types.NamespacedName{Namespace: lease.Namespace, Name: lease.Name}, lease.UID,
		func(l *v1alpha1.ProxyLease) *v1alpha1.ProxyLeaseStatus {
			if !record.Holds(l) || !a.Leads() {
				return nil
			}
			return record.Ended(l, a.proxyOf(l), v1alpha1.LeaseRevoked, reason, message, a.Clock.Now())
		})
	if errors.Is(err, grant.ErrGone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("revoke lease: %w", err)
	}
	if revoked.Status.Phase == v1alpha1.LeaseRevoked {
		a.metrics.ended.WithLabelValues(reason).Inc()
		a.Recorder.Eventf(revoked, nil, corev1.EventTypeWarning, "Revoked", "Revoke", "%s: %s", reason, message)
		a.ended(revoked)
		a.keep(revoked)
	}
	return nil
}

// Release deletes a lease: its holder gave it back, or it has ended long enough ago. namesake says that its name is another
// lease's now.
func (a *Allocator) Release(ctx context.Context, lease *v1alpha1.ProxyLease) (namesake bool, err error) {
	namesake, err = a.pipeline.Release(ctx, lease)
	if err != nil {
		return false, fmt.Errorf("release: %w", err)
	}
	a.finished.Remove(lease.UID)
	a.braked()
	a.ended(lease)
	return namesake, nil
}

// WriteStatus writes what decide makes of a lease's status; nil leaves it. It starts from the cache and decides again after
// a conflict. A lease that is gone is not an error.
func (a *Allocator) WriteStatus(ctx context.Context, lease *v1alpha1.ProxyLease, decide func(*v1alpha1.ProxyLease) *v1alpha1.ProxyLeaseStatus) error {
	written, err := a.pipeline.Update(ctx, types.NamespacedName{Namespace: lease.Namespace, Name: lease.Name}, lease.UID,
		func(l *v1alpha1.ProxyLease) *v1alpha1.ProxyLeaseStatus {
			if record.Holds(l) && unconfirmed(l) && !a.mayConfirm(l) {
				return nil // its first status confirms it
			}
			return decide(l)
		})
	if errors.Is(err, grant.ErrGone) {
		return nil
	}
	if err == nil && record.Holds(written) {
		a.track(written)
	}
	return err
}

// Deadline is when a bound lease expires, by the leader's clock. What the given object asks for is taken in first: the
// informer's event of it may be handled later.
func (a *Allocator) Deadline(lease *v1alpha1.ProxyLease) (time.Time, bool) {
	a.track(lease)
	d, ok := a.deadlines.Get(lease.UID)
	return d.At, ok && d.What == expiry.TTL
}

// Enqueue lets a pending lease wait for a proxy, and tells since when it waits.
func (a *Allocator) Enqueue(lease *v1alpha1.ProxyLease) (since time.Time, waits bool) {
	if taken, ok := a.ledger.Lookup(types.NamespacedName{Namespace: lease.Namespace, Name: lease.Name}); ok && taken.UID == lease.UID {
		return time.Time{}, false // it is being granted
	}
	a.enqueue(lease)
	return a.waiting.waits(string(lease.UID))
}

// WhyWaiting says why a pending lease cannot be granted now.
func (a *Allocator) WhyWaiting(ctx context.Context, lease *v1alpha1.ProxyLease) (reason, message string) {
	why := a.whyWaiting(ctx, lease)
	return why.Reason, why.Message
}

func (a *Allocator) whyWaiting(ctx context.Context, lease *v1alpha1.ProxyLease) *ledger.NoProxyError {
	request, pool, err := requestOf(lease)
	if err != nil {
		return &ledger.NoProxyError{Reason: v1alpha1.ReasonInvalidSelector, Message: err.Error()}
	}
	return a.withoutPool(ctx, a.ledger.Explain(request, a.Clock.Now()), request, pool)
}

// withoutPool says of a request that no proxy matches whether that is because its pool does not exist.
func (a *Allocator) withoutPool(ctx context.Context, why *ledger.NoProxyError, r ledger.Request, pool string) *ledger.NoProxyError {
	if !why.Unmatched || pool == "" {
		return why
	}
	err := a.Client.Get(ctx, types.NamespacedName{Namespace: r.Lease.Namespace, Name: pool}, &v1alpha1.ProxyPool{})
	if !apierrors.IsNotFound(err) {
		return why
	}
	return &ledger.NoProxyError{
		Reason: v1alpha1.ReasonPoolNotFound, Unmatched: true, Message: fmt.Sprintf("ProxyPool %s does not exist", pool),
	}
}

// LeasesNamed are the leases that hold the proxy of that name, or one that had the name before.
func (a *Allocator) LeasesNamed(proxy types.NamespacedName) []types.NamespacedName {
	leases := a.ledger.LeasesNamed(proxy)
	names := make([]types.NamespacedName, 0, len(leases))
	for _, l := range leases {
		names = append(names, l.Key)
	}
	return names
}

// proxyOf is the proxy a lease holds, as last seen; nil when it is gone.
func (a *Allocator) proxyOf(lease *v1alpha1.ProxyLease) *v1alpha1.Proxy {
	b, ok := record.BindingOf(lease)
	if !ok {
		return nil
	}
	return a.ledger.Proxy(types.NamespacedName{Namespace: lease.Namespace, Name: b.ProxyName}, b.ProxyUID)
}

// bounds are the bounds of the leases of a proxy's pool; nil when there are none.
func (a *Allocator) bounds(ctx context.Context, px *v1alpha1.Proxy) (*v1alpha1.PoolLeases, error) {
	name := record.Pool(px)
	if name == "" {
		return nil, nil
	}
	pool := &v1alpha1.ProxyPool{}
	err := a.Client.Get(ctx, types.NamespacedName{Namespace: px.Namespace, Name: name}, pool)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read pool %s/%s: %w", px.Namespace, name, err)
	}
	return pool.Spec.Leases, nil
}

// Waiting is how many leases and calls wait for a proxy.
func (a *Allocator) Waiting() int { return a.waiting.len() }
