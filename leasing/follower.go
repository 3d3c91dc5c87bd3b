package leasing

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/expiry"
	"crawl.example.com/egress-proxies-operator/leasing/grant"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/peer"
	"crawl.example.com/egress-proxies-operator/leasing/record"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// leaderPatience is how long, beyond what a call is willing to wait, the leader may take to decide about a lease.
const leaderPatience = 5 * time.Second

// withdrawPause is the first pause between attempts to delete a lease whose creation was not answered; each is twice as long as
// the one before.
const withdrawPause = time.Second

// leaseElsewhere grants as a replica that does not lead and has not got an answer from the one that does: it creates an ordinary
// pending lease and waits for the leader to bind it.
func (b Backend) leaseElsewhere(ctx context.Context, r httpapi.LeaseRequest, want *v1alpha1.ProxyLease) (httpapi.Lease, bool, error) {
	// A repeated request counts for no limit. What the cache still shows may be gone, and the key free again.
	if r.Key != "" && b.Client.Get(ctx, client.ObjectKeyFromObject(want), &v1alpha1.ProxyLease{}) == nil {
		switch stored, err := b.storedAs(ctx, want); {
		case err != nil:
			return httpapi.Lease{}, false, err
		case stored != nil:
			return b.replay(ctx, r, want, stored)
		}
	}
	if err := b.room(ctx, client.ObjectKeyFromObject(want)); err != nil {
		return httpapi.Lease{}, false, err
	}
	start := b.Clock.Now()
	leave, err := b.calls.enter(callerOf(r))
	if err != nil {
		return httpapi.Lease{}, false, b.refusal(err)
	}
	defer leave()
	want.Spec.WaitSeconds = new(int32(r.Wait / time.Second))
	created, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	lease := want.DeepCopy()
	switch err := b.Client.Create(created, lease); {
	case apierrors.IsAlreadyExists(err):
		return b.replayStored(ctx, r, want)
	case grant.Ambiguous(err):
		if r.Key == "" {
			go b.withdrawNamed(client.ObjectKeyFromObject(want)) // nobody can ask for it again
		}
		return httpapi.Lease{}, false, outcomeUnknown()
	case err != nil:
		return httpapi.Lease{}, false, unavailable(err)
	}
	answer, replayed, err := b.follow(ctx, r, lease, false)
	if err == nil {
		b.metrics.grants.WithLabelValues(pathFollower).Inc()
		b.metrics.duration.WithLabelValues(pathFollower).Observe(b.Clock.Since(start).Seconds())
	}
	return answer, replayed, err
}

// follow waits for the leader to decide about a pending lease, and answers with what it decided.
func (b Backend) follow(ctx context.Context, r httpapi.LeaseRequest, lease *v1alpha1.ProxyLease, replayed bool) (httpapi.Lease, bool, error) {
	decided, err := b.awaitDecision(ctx, lease, r.Wait+leaderPatience)
	if err != nil {
		return httpapi.Lease{}, false, err
	}
	if decided.Status.Phase == v1alpha1.LeaseFailed {
		// The key is free again, as it would be if the leader had been asked itself.
		b.withdraw(decided)
		why, earliest := endedBy(decided), time.Time{}
		if t := decided.Status.RetryTime; t != nil {
			earliest = t.Time
		}
		return httpapi.Lease{}, false, b.noProxy(why.Reason, why.Detail, earliest)
	}
	if record.Finished(decided) {
		return httpapi.Lease{}, false, endedBy(decided)
	}
	if r.Key == "" && ctx.Err() != nil {
		b.withdraw(decided) // nobody is there to learn of it
		return httpapi.Lease{}, false, outcomeUnknown()
	}
	answer, err := b.answer(ctx, decided)
	if refused, ok := errors.AsType[*httpapi.Error](err); ok && refused.Code == wire.CodeNoProxy && !replayed {
		b.withdraw(decided) // nobody was told of it, and it is of no use
	}
	return answer, replayed, err
}

// awaitDecision waits until the lease is bound or has failed. A lease that nobody decides about is withdrawn.
func (b Backend) awaitDecision(ctx context.Context, lease *v1alpha1.ProxyLease, patience time.Duration) (*v1alpha1.ProxyLease, error) {
	events, stop := b.followed.watch(client.ObjectKeyFromObject(lease))
	defer stop()
	// The decision may have been seen before the watch began.
	if cached := (&v1alpha1.ProxyLease{}); b.Client.Get(ctx, client.ObjectKeyFromObject(lease), cached) == nil &&
		cached.UID == lease.UID && !record.Pending(cached) && cached.DeletionTimestamp.IsZero() {
		return cached, nil
	}
	timer := b.Clock.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case seen := <-events:
			switch {
			case seen.UID != lease.UID:
			case !seen.DeletionTimestamp.IsZero():
				return nil, outcomeUnknown() // somebody deleted it while it waited
			case !record.Pending(seen):
				return seen, nil
			}
		case <-timer.C():
			return b.giveUp(lease, notReady("No leader has decided about the lease in time"))
		case <-ctx.Done():
			return b.giveUp(lease, outcomeUnknown())
		}
	}
}

// giveUp deletes a lease that is still pending. One that was bound at the last moment is the result after all.
func (b Backend) giveUp(lease *v1alpha1.ProxyLease, problem error) (*v1alpha1.ProxyLease, error) {
	ctx, cancel := context.WithTimeout(b.pipeline.Base, callTimeout)
	defer cancel()
	for {
		current := &v1alpha1.ProxyLease{}
		if err := b.Live.Get(ctx, client.ObjectKeyFromObject(lease), current); err != nil || current.UID != lease.UID {
			return nil, problem
		}
		if !record.Pending(current) {
			return current, nil
		}
		err := b.Client.Delete(ctx, current, client.Preconditions{UID: &current.UID, ResourceVersion: &current.ResourceVersion})
		if !apierrors.IsConflict(err) {
			return nil, problem
		}
	}
}

// withdraw deletes a lease that nobody will use.
func (b Backend) withdraw(lease *v1alpha1.ProxyLease) {
	ctx, cancel := context.WithTimeout(b.pipeline.Base, callTimeout)
	defer cancel()
	if _, err := b.Allocator.Release(ctx, lease); err != nil {
		b.Log.Error(err, "Withdraw a lease", "lease", client.ObjectKeyFromObject(lease))
		return
	}
	b.tellLeader(ctx, peer.Notice{Released: refOf(lease), Withdrawn: true, Proxy: b.pipeline.Exclusive(lease)})
}

// withdrawNamed deletes a lease whose creation was not answered, if it was or will soon be carried out. The name is nobody
// else's. One that comes later still is bounded by waitSeconds and its TTL.
func (b Backend) withdrawNamed(key types.NamespacedName) {
	ctx, cancel := context.WithTimeout(b.pipeline.Base, callTimeout)
	defer cancel()
	lease := &v1alpha1.ProxyLease{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	for pause := withdrawPause; b.Client.Delete(ctx, lease) != nil; pause *= 2 {
		timer := b.Clock.NewTimer(pause)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// renewBySpec renews as a replica that does not lead: the change of spec.renewTime is stored, and the leader, this one or
// the next, gives the lease another TTL from when it sees it, which is not before now.
func (b Backend) renewBySpec(ctx context.Context, lease *v1alpha1.ProxyLease) (*v1alpha1.ProxyLease, error) {
	now := b.Clock.Now()
	renewed := lease.DeepCopy()
	renewed.Spec.RenewTime = new(metav1.NewMicroTime(now.Truncate(time.Microsecond)))
	// With the resourceVersion: a lease that ended in the meantime is not renewed.
	err := b.Client.Patch(ctx, renewed, client.MergeFromWithOptions(lease, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		current, err := b.alive(ctx, refOf(lease))
		if err != nil {
			return nil, err
		}
		if !worthRenewing(current, now) {
			return current, nil
		}
		return b.renewBySpec(ctx, current)
	case err != nil:
		return nil, unavailable(err)
	}
	// What is promised follows from what is stored.
	renewed.Status.ExpireTime = new(metav1.NewMicroTime(now.Add(record.TTL(renewed))))
	return renewed, nil
}

// worthRenewing tells whether a renewal has to be written.
func worthRenewing(lease *v1alpha1.ProxyLease, now time.Time) bool {
	return expiry.Worth(record.Expiry(lease), record.TTL(lease), now)
}

// followed passes the events of leases on to the calls that wait for them.
type followed struct {
	mu    sync.Mutex
	calls map[types.NamespacedName]map[chan *v1alpha1.ProxyLease]struct{}
	// objects are the leases that exist, by UID.
	objects map[types.UID]struct{}
}

// len is how many leases exist.
func (f *followed) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.objects)
}

// forget takes in that a lease is gone.
func (f *followed) forget(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.objects, uid)
}

// watch gives the newest state of a lease as it changes.
func (f *followed) watch(key types.NamespacedName) (events <-chan *v1alpha1.ProxyLease, stop func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls == nil {
		f.calls = map[types.NamespacedName]map[chan *v1alpha1.ProxyLease]struct{}{}
	}
	if f.calls[key] == nil {
		f.calls[key] = map[chan *v1alpha1.ProxyLease]struct{}{}
	}
	c := make(chan *v1alpha1.ProxyLease, 1)
	f.calls[key][c] = struct{}{}
	return c, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.calls[key], c)
		if len(f.calls[key]) == 0 {
			delete(f.calls, key)
		}
	}
}

func (f *followed) see(lease *v1alpha1.ProxyLease) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.objects == nil {
		f.objects = map[types.UID]struct{}{}
	}
	f.objects[lease.UID] = struct{}{}
	for c := range f.calls[client.ObjectKeyFromObject(lease)] {
		select {
		case <-c: // only the newest counts
		default:
		}
		c <- lease
	}
}

// Follow passes events on until ctx ends. Every replica that serves the HTTP API runs it.
func (a *Allocator) Follow(ctx context.Context) error {
	informer, err := a.Cache.GetInformer(ctx, &v1alpha1.ProxyLease{})
	if err != nil {
		return fmt.Errorf("watch leases: %w", err)
	}
	open := &backlog{open: true}
	gone := func(l *v1alpha1.ProxyLease) {
		l = l.DeepCopy()
		if l.DeletionTimestamp.IsZero() {
			l.DeletionTimestamp = new(metav1.NewTime(a.Clock.Now()))
		}
		a.followed.see(l)
		a.followed.forget(l.UID)
		a.braked()
	}
	registration, err := informer.AddEventHandler(handlers(open, a.followed.see, gone))
	if err != nil {
		return fmt.Errorf("watch leases: %w", err)
	}
	<-ctx.Done()
	if err := informer.RemoveEventHandler(registration); err != nil {
		return fmt.Errorf("stop watching leases: %w", err)
	}
	return nil
}
