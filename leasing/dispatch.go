package leasing

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/grant"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// bindRetry is the pause before a lease is tried again whose grant could not be written.
const bindRetry = time.Second

// wake makes the dispatcher look whether something can be granted, because something has changed.
func (a *Allocator) wake() {
	a.waiting.changed()
	a.rouse()
}

// rouse makes the dispatcher look after who has come, and when it has to look again.
func (a *Allocator) rouse() {
	select {
	case a.wakeup <- struct{}{}:
	default:
	}
}

// dispatch serves waiters whenever there may be something for them.
func (a *Allocator) dispatch(ctx context.Context) {
	for {
		next := a.pass()
		var due <-chan time.Time
		stop := func() bool { return true }
		if !next.IsZero() {
			timer := a.Clock.NewTimer(next.Sub(a.Clock.Now()))
			due, stop = timer.C(), timer.Stop
		}
		select {
		case <-a.wakeup:
		case <-due:
		case <-ctx.Done():
			stop()
			return
		}
		stop()
	}
}

// pass serves as many waiters as can be served. It gives the moment at which there has to be another pass although nothing
// happens; zero: there is none.
func (a *Allocator) pass() (again time.Time) {
	if !a.Recovered() {
		return again
	}
	now := a.Clock.Now()
	return a.waiting.pass(now, a.ledger.NextCooldownEnd, func(id string, v *waiter) (bool, time.Time) {
		reservation, err := a.ledger.Try(v.claiming(), now)
		var taken *ledger.TakenError
		switch {
		case err == nil && v.served == nil:
			a.pipeline.Go(func() { a.bind(types.UID(id), v, reservation) })
		case err == nil || v.served != nil && errors.As(err, &taken):
			v.served <- served{reservation, err}
		case errors.As(err, &taken) && taken.Lease.UID == types.UID(id):
			// The lease has been served already.
		default:
			// Also while a call holds a slot under the lease's name: one of the two will be refused.
			return false, a.claim(v, now)
		}
		a.waiting.demands.served(v, now)
		if v.request.Mode == v1alpha1.LeaseExclusive {
			a.wake() // it may have claimed another proxy than it got
		}
		return true, time.Time{}
	})
}

// bind writes the grant of a lease that exists.
func (a *Allocator) bind(uid types.UID, v *waiter, r ledger.Reservation) {
	ctx := a.pipeline.Base
	ttl, err := a.ttl(ctx, r.Proxy, v.ttlSeconds)
	if err != nil {
		a.ledger.Cancel(r)
	} else {
		lease, bindErr := a.pipeline.Bind(ctx, uid, r, ttl)
		if bindErr == nil {
			a.track(lease)
			a.metrics.grants.WithLabelValues(pathCR).Inc()
			a.metrics.duration.WithLabelValues(pathCR).Observe(a.Clock.Since(v.since).Seconds())
			return
		}
		err = bindErr
	}
	if errors.Is(err, grant.ErrGone) || ctx.Err() != nil {
		a.wake()
		return
	}
	a.Log.Error(err, "Grant a lease", "lease", r.Lease, "proxy", r.Binding.ProxyName)
	timer := a.Clock.NewTimer(bindRetry)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
		return
	}
	// What became of the lease is read again before it waits again.
	a.chores.Add(chore{what: requeue, key: r.Lease, uid: uid})
}

// ttl is the TTL that a lease of this proxy gets, in seconds.
func (a *Allocator) ttl(ctx context.Context, px *v1alpha1.Proxy, wish int32) (int32, error) {
	bounds, err := a.bounds(ctx, px)
	if err != nil {
		return 0, err
	}
	return record.ClampTTL(wish, bounds), nil
}
