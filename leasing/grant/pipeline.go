// Package grant writes what the ledger decided: grants, their ends, and what a proxy must remember of its leases.
//
// An HTTP lease is one write, the creation of a ProxyLease that carries its grant; a lease that exists already is granted
// by one write of its status. A write that was not answered is ambiguous: it may have happened, or may happen later. It is
// settled by the same write under the same name until the API server gives an authoritative answer, and the slot stays
// taken until then. That a read does not find the object settles nothing.
package grant

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

const (
	// writers is how many writes are under way at once: the API server's work is the only real cost of a grant.
	writers = 64
	// attemptTimeout bounds one call.
	attemptTimeout = 5 * time.Second
	// answerWithin is how long a requester waits for an ambiguous write to be settled.
	answerWithin = 10 * time.Second
	// abandonTimeout bounds the release of a lease that nobody waits for.
	abandonTimeout = 30 * time.Second
	// backoffMin and backoffMax are the pauses between attempts to settle.
	backoffMin = 50 * time.Millisecond
	backoffMax = 5 * time.Second
	// settledAfter is for how long the API server may still carry out a write that it did not answer: several times the
	// time that it gives a request. Until then a refusal of the same write, sent again, says nothing about the first one.
	settledAfter = 5 * time.Minute
)

// Pipeline writes grants.
type Pipeline struct {
	// Client writes, and reads from the cache.
	Client client.Client
	// Live reads from the API server.
	Live   client.Reader
	Ledger *ledger.Ledger
	Clock  clock.Clock
	Log    logr.Logger
	// Base ends when nothing may be written any more. Settling goes on until then, whatever happens to the requester.
	Base context.Context
	// Leads tells, by a clock and not by a call, whether this process may still act as the leader.
	Leads func() bool
	// OnUnknown is called for every write whose outcome is not known at first; OnChange whenever slots may have become
	// free. Both may be nil.
	OnUnknown, OnChange func()
	// OnProxy is called for every Proxy that was written and that the ledger knows, with what it knew before: the event of
	// the write brings no news then. It must not block and may be nil.
	OnProxy func(before, px *v1alpha1.Proxy)

	once  sync.Once
	slots chan struct{}
	busy  inflight
	// proxies are locks that a context ends the wait for: they are held during calls.
	proxies [64]chan struct{}
}

// Create writes an HTTP lease for which r was reserved: want plus the grant, in one write. keep says that the requester can
// ask for the same lease again (it sent an Idempotency-Key): a lease that is written after the requester went away is then
// kept for it, else released.
//
// Errors: *ExistsError, ErrUnknown, ErrDeposed, ErrTaken, or the API server's refusal. Except for ErrUnknown the slot is
// settled when Create returns.
func (p *Pipeline) Create(ctx context.Context, want *v1alpha1.ProxyLease, r ledger.Reservation, ttlSeconds int32, keep bool) (*v1alpha1.ProxyLease, error) {
	type outcome struct {
		lease *v1alpha1.ProxyLease
		err   error
	}
	answer := func(o outcome) (*v1alpha1.ProxyLease, error) {
		if o.err != nil {
			return nil, o.err
		}
		return o.lease, nil
	}
	done := make(chan outcome, 1)
	var decided atomic.Bool // by whoever is first: the answer is delivered, or the requester has given up
	settling, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(p.Base, cancel)
	p.busy.Go(func() {
		defer stop()
		defer cancel()
		lease, err := p.create(settling, want, r, ttlSeconds, decided.Load)
		if err == nil && ctx.Err() != nil {
			err = ErrUnknown // nobody is there to learn of it
		}
		delivered := decided.CompareAndSwap(false, true)
		done <- outcome{lease, err}
		// Without a key nobody can ask for it again.
		if (!delivered || err != nil) && lease != nil && !keep && !errors.Is(err, ErrDeposed) {
			p.releaseAbandoned(settling, lease)
		}
	})
	timer := p.Clock.NewTimer(answerWithin)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	case o := <-done:
		return answer(o)
	}
	if decided.CompareAndSwap(false, true) {
		return nil, ErrUnknown
	}
	return answer(<-done)
}

// releaseAbandoned releases a lease that was written for a requester who cannot learn of it any more.
func (p *Pipeline) releaseAbandoned(ctx context.Context, lease *v1alpha1.ProxyLease) {
	ctx, cancel := context.WithTimeout(ctx, abandonTimeout)
	defer cancel()
	if _, err := p.Release(ctx, lease); err != nil {
		p.Log.Error(err, "Release a lease whose requester went away", "lease", client.ObjectKeyFromObject(lease))
	}
}

// Go runs f, which Drain waits for.
func (p *Pipeline) Go(f func()) { p.busy.Go(f) }

// Drain waits until no grant is under way, at most until ctx ends.
func (p *Pipeline) Drain(ctx context.Context) { p.busy.wait(ctx) }

// create settles one creation. A lease that comes with an error is written but not promised. Nothing is sent for a
// requester who has given up before its turn came: then the slot is free at once.
func (p *Pipeline) create(ctx context.Context, want *v1alpha1.ProxyLease, r ledger.Reservation, ttlSeconds int32, givenUp func() bool) (*v1alpha1.ProxyLease, error) {
	g := record.Grant{Binding: r.Binding, TTLSeconds: ttlSeconds, Time: p.Clock.Now()}
	want = want.DeepCopy()
	want.Spec.TTLSeconds = ttlSeconds
	want.Spec.Grant = &v1alpha1.LeaseGrant{
		ProxyName: g.ProxyName, ProxyUID: g.ProxyUID, InstanceID: g.InstanceID, Epoch: g.Epoch, Seq: g.Seq,
		ExpireTime: metav1.NewMicroTime(g.Expiry().Truncate(time.Microsecond)),
	}
	sent := false
	var unanswered time.Time
	for wait := p.backoff(ctx); ; {
		for sent && !p.Leads() { // what was sent remains to be settled, but not by a replica that does not lead
			if !wait() {
				return nil, ErrUnknown
			}
		}
		if !sent && !p.Leads() {
			return nil, p.cancelled(r, ErrDeposed)
		}
		lease := want.DeepCopy()
		err := p.write(ctx, func(ctx context.Context) error {
			if !sent && givenUp() {
				return errNotSent
			}
			sent = true
			return p.Client.Create(ctx, lease)
		})
		switch {
		case errors.Is(err, errNotSent):
			return nil, p.cancelled(r, ErrUnknown)
		case err == nil:
			return p.granted(ctx, lease, r)
		case apierrors.IsAlreadyExists(err):
			existing := &v1alpha1.ProxyLease{}
			if err := p.readLive(ctx, client.ObjectKeyFromObject(want), existing); err != nil {
				if !apierrors.IsNotFound(err) && p.settles(err, unanswered) {
					return nil, p.cancelled(r, fmt.Errorf("read lease %s/%s: %w", want.Namespace, want.Name, err))
				}
				// Deleted in between, or no answer: only a creation settles it.
				if !wait() {
					return nil, ErrUnknown
				}
				continue
			}
			if b, _ := record.BindingOf(existing); b.Epoch == g.Epoch && b.Seq == g.Seq && b.ProxyUID == g.ProxyUID {
				return p.granted(ctx, existing, r) // an earlier attempt of ours was carried out
			}
			return nil, p.cancelled(r, &ExistsError{Lease: existing})
		case p.settles(err, unanswered):
			return nil, p.cancelled(r, fmt.Errorf("create lease %s/%s: %w", want.Namespace, want.Name, err))
		}
		if Ambiguous(err) {
			unanswered = p.Clock.Now()
			p.unknown(ctx, err, "Creation of a lease was not answered", want)
		}
		if !wait() {
			return nil, ErrUnknown
		}
	}
}

// granted turns a written lease into a promise: exclusive ones are arbitrated on the Proxy first, and the leadership is
// checked between the API server's answer and ours. Without it nothing is promised and nothing is cleaned up: whoever
// leads now knows the lease and may have promised it already.
func (p *Pipeline) granted(ctx context.Context, lease *v1alpha1.ProxyLease, r ledger.Reservation) (*v1alpha1.ProxyLease, error) {
	if !p.Ledger.Commit(lease) {
		return nil, ErrGone // deleted before we had the answer
	}
	if r.Mode == v1alpha1.LeaseExclusive {
		if err := p.Claim(ctx, lease, r.Binding); err != nil {
			return lease, err
		}
	}
	if !p.Ledger.Admits(client.ObjectKeyFromObject(lease), lease.UID) {
		return lease, ErrTaken
	}
	if !p.Leads() {
		return lease, ErrDeposed
	}
	return lease, nil
}

func (p *Pipeline) cancelled(r ledger.Reservation, err error) error {
	p.Ledger.Cancel(r)
	p.changed()
	return err
}

// Bind writes the grant r of a lease that exists, in one write of its status. After a conflict the same proxy is written
// again: another one is never chosen while the first may have been written.
func (p *Pipeline) Bind(ctx context.Context, uid types.UID, r ledger.Reservation, ttlSeconds int32) (*v1alpha1.ProxyLease, error) {
	g := record.Grant{Binding: r.Binding, TTLSeconds: ttlSeconds, Time: p.Clock.Now()}
	if r.Mode == v1alpha1.LeaseExclusive {
		lease := &v1alpha1.ProxyLease{ObjectMeta: metav1.ObjectMeta{Namespace: r.Lease.Namespace, Name: r.Lease.Name, UID: uid}}
		if err := p.Claim(ctx, lease, r.Binding); err != nil {
			return nil, p.cancelled(r, err)
		}
	}
	if !p.Leads() {
		return nil, p.cancelled(r, ErrDeposed)
	}
	sent, deposed := false, false
	decide := func(l *v1alpha1.ProxyLease) *v1alpha1.ProxyLeaseStatus {
		if !record.Pending(l) {
			return nil
		}
		// Asked again for every attempt: settling may take longer than the leadership lasts.
		if deposed = !p.Leads(); deposed {
			return nil
		}
		sent = true
		return record.Bound(l, r.Proxy, g)
	}
	lease, err := p.Update(ctx, r.Lease, uid, decide)
	// An attempt may still be carried out, and nothing is cleaned up without the leadership.
	for wait := p.backoff(ctx); deposed && sent; lease, err = p.Update(ctx, r.Lease, uid, decide) {
		if !wait() {
			return nil, ErrUnknown
		}
	}
	switch {
	case deposed:
		return nil, p.cancelled(r, ErrDeposed)
	case err == nil:
		if b, ok := record.BindingOf(lease); ok && b == r.Binding && !record.Finished(lease) && p.Ledger.Commit(lease) {
			return lease, nil
		}
		err = ErrGone // ended, or bound by another leader
	case !errors.Is(err, ErrGone) && (Ambiguous(err) || ctx.Err() != nil):
		// Only the end of the process stops the settling; the ledger goes with it.
		return nil, ErrUnknown
	}
	err = p.cancelled(r, err)
	if b, bound := record.BindingOf(cmp.Or(lease, &v1alpha1.ProxyLease{})); r.Mode == v1alpha1.LeaseExclusive && (!bound || b.ProxyUID != r.Binding.ProxyUID || record.Finished(lease)) {
		return nil, errors.Join(err, p.Disown(ctx, types.NamespacedName{Namespace: r.Lease.Namespace, Name: r.Binding.ProxyName}, uid))
	}
	return nil, err
}

// Update writes the status of a lease as decide wants it; nil means nothing to write. It starts from the cache and decides
// again on a fresh read after a conflict and after an ambiguous outcome, until it is settled or ctx ends. The lease that
// is returned is the last one that was read or written. Errors: ErrGone or the API server's refusal.
func (p *Pipeline) Update(ctx context.Context, key types.NamespacedName, uid types.UID, decide func(*v1alpha1.ProxyLease) *v1alpha1.ProxyLeaseStatus) (*v1alpha1.ProxyLease, error) {
	lease := &v1alpha1.ProxyLease{}
	err := p.Client.Get(ctx, key, lease)
	var unanswered time.Time
	for wait := p.backoff(ctx); ; {
		if err == nil && lease.UID == uid {
			desired := decide(lease)
			if desired == nil {
				return lease, nil
			}
			err = p.write(ctx, func(ctx context.Context) error {
				return statusapply.Whole(ctx, p.Client, v1alpha1.ManagerLeasing, lease, &lease.Status, desired)
			})
			switch {
			case err == nil:
				p.Ledger.Finish(lease)
				return lease, nil
			case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
			case p.settles(err, unanswered):
				return nil, fmt.Errorf("write status of lease %s: %w", key, err)
			default:
				if Ambiguous(err) {
					unanswered = p.Clock.Now()
					p.unknown(ctx, err, "Status of a lease was not answered", lease)
				}
				if !wait() {
					return nil, fmt.Errorf("write status of lease %s: %w", key, err)
				}
			}
		}
		lease = &v1alpha1.ProxyLease{}
		err = p.readLive(ctx, key, lease)
		switch {
		case apierrors.IsNotFound(err), err == nil && lease.UID != uid:
			return nil, ErrGone
		case err != nil && p.settles(err, unanswered):
			return nil, fmt.Errorf("read lease %s: %w", key, err)
		case err != nil:
			if !wait() {
				return nil, fmt.Errorf("read lease %s: %w", key, err)
			}
		}
	}
}

// settles tells whether an error means that nothing was written and nothing will be. unanswered is when the last attempt was
// made that was not answered; zero when all were.
func (p *Pipeline) settles(err error, unanswered time.Time) bool {
	return !Ambiguous(err) && (unanswered.IsZero() || p.Clock.Since(unanswered) > settledAfter)
}

// Release deletes a lease, in one write. That it is gone already is a success; namesake says that its name is another's now. An
// exclusive lease lets go of its proxy.
func (p *Pipeline) Release(ctx context.Context, lease *v1alpha1.ProxyLease) (namesake bool, err error) {
	key := client.ObjectKeyFromObject(lease)
	exclusive := p.Exclusive(lease) // the event of the deletion may be handled before this is
	for wait := p.backoff(ctx); ; {
		err := attempt(ctx, func(ctx context.Context) error {
			return p.Client.Delete(ctx, &v1alpha1.ProxyLease{ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.Name}},
				client.Preconditions{UID: &lease.UID})
		})
		namesake = apierrors.IsConflict(err) // the precondition
		if err == nil || apierrors.IsNotFound(err) || namesake {
			break
		}
		if !Ambiguous(err) || !wait() {
			return false, fmt.Errorf("delete lease %s: %w", key, err)
		}
	}
	return namesake, p.Deleted(ctx, key, lease.UID, exclusive)
}

// Deleted takes in that a lease was deleted, by this replica or another one. The proxy that it had for itself, if any, is free
// when Deleted returns.
func (p *Pipeline) Deleted(ctx context.Context, key types.NamespacedName, uid types.UID, exclusive types.NamespacedName) error {
	p.Ledger.Released(key, uid, p.Clock.Now())
	p.changed()
	if exclusive.Name == "" {
		return nil
	}
	return p.Unclaim(ctx, exclusive, uid)
}

// Exclusive is the proxy that a lease has for itself; without a name when there is none, or none is known. Of a lease that the
// cache does not show yet only the name and the UID are needed: the ledger of the leader may have it.
func (p *Pipeline) Exclusive(lease *v1alpha1.ProxyLease) (proxy types.NamespacedName) {
	b, ok := record.BindingOf(lease)
	mode := lease.Spec.Mode
	if known, found := p.Ledger.Lookup(client.ObjectKeyFromObject(lease)); !ok && found && known.UID == lease.UID {
		b, mode = known.Binding, known.Mode
	}
	if mode != v1alpha1.LeaseExclusive || b.ProxyName == "" {
		return proxy
	}
	return types.NamespacedName{Namespace: lease.Namespace, Name: b.ProxyName}
}
