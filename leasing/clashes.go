package leasing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/grant"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// What becomes of writes that former leaders have sent; package ledger has the rules.

const (
	// fencers is how many leases are fenced at once.
	fencers = 16
	// fencePause is the pause before those are looked at again that could not be fenced yet.
	fencePause = 200 * time.Millisecond
)

// errNotYet says that an exclusive lease cannot be told to be the only one yet.
var errNotYet = errors.New("leases that a former leader was granting are not settled yet")

// fenceFound writes every lease that was found waiting, unless granting it does. Until that is done no exclusive lease is given.
func (a *Allocator) fenceFound(ctx context.Context, pending []*v1alpha1.ProxyLease) {
	a.pass() // what can be granted is written by that
	for {
		pending = slices.DeleteFunc(slices.Clone(pending), func(l *v1alpha1.ProxyLease) bool {
			return !a.ledger.Unfenced(client.ObjectKeyFromObject(l), l.UID)
		})
		if len(pending) == 0 {
			a.wake()
			return
		}
		var writes sync.WaitGroup
		slots := make(chan struct{}, fencers)
		for _, lease := range pending {
			if taken, ok := a.ledger.Lookup(client.ObjectKeyFromObject(lease)); ok && taken.UID == lease.UID {
				continue // its grant is being written
			}
			slots <- struct{}{}
			writes.Go(func() {
				defer func() { <-slots }()
				if _, err := a.fence(ctx, lease); err != nil && ctx.Err() == nil {
					a.Log.Error(err, "Fence a lease", "lease", client.ObjectKeyFromObject(lease))
				}
			})
		}
		writes.Wait()
		timer := a.Clock.NewTimer(fencePause)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// fence makes sure that nobody binds a pending lease by what was read of it before this leader came. holds: it was bound
// already, and that was taken in.
func (a *Allocator) fence(ctx context.Context, lease *v1alpha1.ProxyLease) (holds bool, err error) {
	epoch := a.ledger.Epoch()
	fenced, err := a.pipeline.Update(ctx, client.ObjectKeyFromObject(lease), lease.UID, func(l *v1alpha1.ProxyLease) *v1alpha1.ProxyLeaseStatus {
		if !record.Pending(l) || l.Status.GrantEpoch == epoch || !a.Leads() {
			return nil
		}
		status := l.Status.DeepCopy()
		status.GrantEpoch = epoch
		return status
	})
	switch {
	case errors.Is(err, grant.ErrGone):
		a.ledger.Released(client.ObjectKeyFromObject(lease), lease.UID, a.Clock.Now())
		return false, nil
	case err != nil:
		return false, fmt.Errorf("fence a lease that a former leader was granting: %w", err)
	}
	// What was read may be news; what is only cached is not.
	if a.onLease(fenced); record.Holds(fenced) {
		return true, nil
	}
	return false, nil
}

// castOut lets the leases be revoked that clash with another one on their proxy.
func (a *Allocator) castOut() {
	for _, lease := range a.ledger.TakeOutcasts() {
		a.chores.Add(chore{what: revokeClash, key: lease.Key, uid: lease.UID})
	}
}

// revokeOutcast ends a lease that clashes with another one.
func (a *Allocator) revokeOutcast(ctx context.Context, key types.NamespacedName, uid types.UID) error {
	if !a.Leads() {
		return fmt.Errorf("revoke a lease that clashes with another: %w", grant.ErrDeposed)
	}
	a.metrics.conflicts.Inc()
	lease := &v1alpha1.ProxyLease{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: uid}}
	return a.Revoke(ctx, lease, v1alpha1.ReasonConflict, "The proxy is held by another lease, and one of the two is Exclusive")
}

// unconfirmed tells whether nothing on a lease says that a leader counts it: it was granted by its creation, which may have
// been carried out at any time.
func unconfirmed(l *v1alpha1.ProxyLease) bool { return l.Spec.Grant != nil && l.Status.ProxyRef == nil }

// confirm says on a lease that was granted by its creation that the leader counts it, if it does. Other replicas may promise
// it from then on.
func (a *Allocator) confirm(ctx context.Context, key types.NamespacedName, uid types.UID) error {
	_, err := a.pipeline.Update(ctx, key, uid, func(l *v1alpha1.ProxyLease) *v1alpha1.ProxyLeaseStatus {
		if !record.Holds(l) || !unconfirmed(l) || !a.mayConfirm(l) {
			return nil
		}
		return record.Mirrored(l, a.proxyOf(l), a.Clock.Now())
	})
	if errors.Is(err, grant.ErrGone) {
		return nil
	}
	return err
}

// mayConfirm tells whether this replica may say that it counts the lease. It has to be asked before each write.
func (a *Allocator) mayConfirm(l *v1alpha1.ProxyLease) bool {
	return a.ledger.Admits(client.ObjectKeyFromObject(l), l.UID) && a.Leads()
}

// admitted tells a leader whether a stored lease may be promised (again): the ledger counts it, its proxy agrees, and nobody
// else leads.
func (b Backend) admitted(ctx context.Context, stored *v1alpha1.ProxyLease) (bool, error) {
	b.onLease(stored)
	if !b.ledger.Admits(client.ObjectKeyFromObject(stored), stored.UID) {
		return false, nil
	}
	if stored.Spec.Mode == v1alpha1.LeaseExclusive {
		// The first request may have died between the creation and the claim.
		taken, err := b.EnsureExclusive(ctx, stored)
		if err != nil || taken {
			return false, nil
		}
	}
	holds, err := b.holdsLive(ctx, stored)
	return err == nil && holds && b.mayConfirm(stored), err
}

// confirmed waits until the leader has said that it counts a stored lease, and gives what is stored then. A change of
// spec.renewTime makes it say so soon.
func (b Backend) confirmed(ctx context.Context, stored *v1alpha1.ProxyLease) (*v1alpha1.ProxyLease, error) {
	events, stop := b.followed.watch(client.ObjectKeyFromObject(stored))
	defer stop()
	timer := b.Clock.NewTimer(leaderPatience)
	defer timer.Stop()
	for lease := stored; ; {
		switch {
		case lease.UID != stored.UID, !lease.DeletionTimestamp.IsZero():
			return nil, outcomeUnknown()
		case record.Finished(lease), !unconfirmed(lease):
			return lease, nil
		case !record.RenewalPending(lease):
			asked := lease.DeepCopy()
			asked.Spec.RenewTime = new(metav1.NewMicroTime(b.Clock.Now().Truncate(time.Microsecond)))
			err := b.Client.Patch(ctx, asked, client.MergeFromWithOptions(lease, client.MergeFromWithOptimisticLock{}))
			switch {
			case err == nil:
				lease = asked
			case apierrors.IsConflict(err):
				lease = &v1alpha1.ProxyLease{}
				if err := b.Live.Get(ctx, client.ObjectKeyFromObject(stored), lease); err != nil {
					return nil, outcomeUnknown()
				}
				continue
			default:
				return nil, outcomeUnknown()
			}
		}
		for waiting := true; waiting; {
			select {
			case seen := <-events:
				// One that was read before is of no use, and neither is a namesake's.
				if waiting = seen.UID != stored.UID || older(seen, lease); !waiting {
					lease = seen
				}
			case <-timer.C():
				return nil, outcomeUnknown()
			case <-ctx.Done():
				return nil, outcomeUnknown()
			}
		}
	}
}

// older tells whether a is certainly an older state than b.
func older(a, b *v1alpha1.ProxyLease) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order < 0
}
