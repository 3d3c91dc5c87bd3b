package leasing

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/grant"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
	"crawl.example.com/egress-proxies-operator/leasing/record"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// maxUnusable is how many proxies a call looks at whose credentials cannot be read.
const maxUnusable = 16

// Lease implements httpapi.Backend.
func (b Backend) Lease(ctx context.Context, r httpapi.LeaseRequest) (httpapi.Lease, bool, error) {
	return b.lease(ctx, r, wanted(r, leaseName(r)))
}

func (b Backend) lease(ctx context.Context, r httpapi.LeaseRequest, want *v1alpha1.ProxyLease) (httpapi.Lease, bool, error) {
	if err := b.cacheReady(ctx); err != nil {
		return httpapi.Lease{}, false, err
	}
	if err := b.protected(); err != nil {
		return httpapi.Lease{}, false, err
	}
	key := client.ObjectKeyFromObject(want)
	if r.Key != "" {
		// What is heard of a release late is no matter to a lease that the key has had since.
		if b.consumed.has(key, b.Clock.Now()) && (!b.Recovered() || !b.ledger.Knows(key)) {
			return httpapi.Lease{}, false, consumedKey("The lease of this Idempotency-Key was released")
		}
		// Requests with one key take turns, so that the second finds what the first has made.
		leave, err := b.flights.enter(ctx, key, func() (func(), error) { return b.calls.enter(callerOf(r)) })
		if err != nil {
			return httpapi.Lease{}, false, b.refusal(err)
		}
		defer leave()
	}
	switch role(b.role.Load()) {
	case leads:
		return b.leaseHere(ctx, r, want)
	case recovers, stepsDown:
		return httpapi.Lease{}, false, notReady("The leader is recovering")
	default:
		passed := b.askLeader(ctx, &r, want.Name)
		if passed.done {
			return passed.answer.Lease, passed.answer.Replayed, passed.err
		}
		lease, replayed, err := b.leaseElsewhere(ctx, r, want)
		if err != nil && passed.doubt && r.Key == "" {
			go b.withdrawNamed(key) // the leader may act yet, and nobody can ask for it again
		}
		return lease, replayed && r.Key != "", err
	}
}

// leaseHere grants as the leader: one write.
func (b Backend) leaseHere(ctx context.Context, r httpapi.LeaseRequest, want *v1alpha1.ProxyLease) (httpapi.Lease, bool, error) {
	// A repeated request takes no slot, so it neither waits for one nor counts for any limit.
	if r.Key != "" {
		if lease, ok := b.ledger.Taken(client.ObjectKeyFromObject(want)); ok {
			return b.replayTaken(ctx, r, want, lease)
		}
	}
	if err := b.room(ctx, client.ObjectKeyFromObject(want)); err != nil {
		return httpapi.Lease{}, false, err
	}
	if err := b.inNamespace(ctx, want.Namespace); err != nil {
		return httpapi.Lease{}, false, err
	}
	start := b.Clock.Now()
	reservation, ttl, err := b.reserveUsable(ctx, r, want)
	if taken, ok := errors.AsType[*ledger.TakenError](err); ok {
		return b.replayTaken(ctx, r, want, taken.Lease)
	}
	if err != nil {
		return httpapi.Lease{}, false, b.refusal(err)
	}
	lease, err := b.pipeline.Create(ctx, want, reservation, ttl, r.Key != "")
	if exists, ok := errors.AsType[*grant.ExistsError](err); ok {
		return b.replay(ctx, r, want, exists.Lease)
	}
	if err != nil {
		return httpapi.Lease{}, false, b.refusal(err)
	}
	b.track(lease)
	b.metrics.grants.WithLabelValues(pathHTTP).Inc()
	b.metrics.duration.WithLabelValues(pathHTTP).Observe(b.Clock.Since(start).Seconds())
	answer, err := b.answer(ctx, lease)
	return answer, false, err
}

// inNamespace refuses calls for a namespace that does not exist; a replica that does not lead learns it from its creation. One
// that has proxies exists.
func (b Backend) inNamespace(ctx context.Context, name string) error {
	if b.ledger.HasProxies(name) {
		return nil
	}
	for _, reader := range []client.Reader{b.Client, b.Live} { // the cache may not know it yet
		namespace := &metav1.PartialObjectMetadata{}
		namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
		// Whether it exists is no reason to fail when that cannot be told.
		if err := reader.Get(ctx, client.ObjectKey{Name: name}, namespace); !apierrors.IsNotFound(err) {
			return nil
		}
	}
	return noNamespace()
}

// reserveUsable takes a slot of a proxy that the caller can use, with the TTL that the lease gets. A proxy whose credentials
// cannot be read is of no use, and is passed over until its controller has noticed: being of no use it stays the emptiest.
func (b Backend) reserveUsable(ctx context.Context, r httpapi.LeaseRequest, want *v1alpha1.ProxyLease) (ledger.Reservation, int32, error) {
	cancel := func(reservation ledger.Reservation) {
		b.ledger.Cancel(reservation)
		b.wake()
	}
	var without []string
	for {
		reservation, err := b.reserve(ctx, callerOf(r), want, without, r.Wait)
		if _, none := errors.AsType[*ledger.NoProxyError](err); none && len(without) > 0 {
			return ledger.Reservation{}, 0, noCredentials()
		}
		if err != nil {
			return ledger.Reservation{}, 0, err
		}
		px := reservation.Proxy
		ttl, err := b.ttl(ctx, px, r.TTLSeconds)
		if err != nil {
			cancel(reservation)
			return ledger.Reservation{}, 0, unavailable(err)
		}
		if ref := px.Spec.CredentialsSecretRef; ref != nil {
			if _, _, err := b.Credentials.Read(ctx, want.Namespace, ref.Name); err != nil {
				b.Log.Error(err, "Read the credentials of a proxy to lease", "proxy", client.ObjectKeyFromObject(px))
				cancel(reservation)
				if without = append(without, px.Name); len(without) == maxUnusable {
					return ledger.Reservation{}, 0, noCredentials()
				}
				r.Wait = 0
				continue
			}
		}
		return reservation, ttl, nil
	}
}

// reserve takes a slot for a call, of no proxy in without, and waits for one if the call says so. Who waits already comes
// first.
func (b Backend) reserve(ctx context.Context, who caller, want *v1alpha1.ProxyLease, without []string, wait time.Duration) (ledger.Reservation, error) {
	request, pool, err := requestOf(want)
	if err != nil {
		return ledger.Reservation{}, err
	}
	request.Excluded = slices.Concat(request.Excluded, without)
	if b.waiting.len() == 0 {
		r, err := b.ledger.Reserve(request, b.Clock.Now())
		none, refused := errors.AsType[*ledger.NoProxyError](err)
		if !refused {
			return r, err
		}
		if wait == 0 {
			return r, b.withoutPool(ctx, none, request, pool)
		}
	}
	id := "call/" + uuid.NewString()
	v := &waiter{request: request, identity: who.identity, pool: pool, since: b.Clock.Now(), served: make(chan served, 1), polls: wait == 0}
	leave, err := b.calls.enter(who)
	if err != nil {
		return ledger.Reservation{}, err
	}
	defer leave()
	b.waiting.add(id, v)
	b.pass()
	if wait > 0 {
		b.rouse() // for the dispatcher's timers
		timer := b.Clock.NewTimer(wait)
		defer timer.Stop()
		select {
		case s := <-v.served:
			v.served <- s
		case <-timer.C():
		case <-ctx.Done():
		}
	}
	if b.waiting.remove(id) {
		if ctx.Err() != nil {
			return ledger.Reservation{}, ctx.Err()
		}
		return ledger.Reservation{}, b.withoutPool(ctx, b.ledger.Explain(request, b.Clock.Now()), request, pool)
	}
	s := <-v.served // served, perhaps at the last moment
	if s.err == nil && ctx.Err() != nil {
		b.ledger.Cancel(s.reservation)
		b.wake()
		return ledger.Reservation{}, ctx.Err()
	}
	return s.reservation, s.err
}

// replayTaken answers a repeated request of which the ledger knows the lease.
func (b Backend) replayTaken(ctx context.Context, r httpapi.LeaseRequest, want *v1alpha1.ProxyLease, lease ledger.Lease) (httpapi.Lease, bool, error) {
	if !lease.Written {
		return httpapi.Lease{}, false, outcomeUnknown()
	}
	return b.replayStored(ctx, r, want)
}

// replayStored answers a repeated request with the lease that exists for its key.
func (b Backend) replayStored(ctx context.Context, r httpapi.LeaseRequest, want *v1alpha1.ProxyLease) (httpapi.Lease, bool, error) {
	stored, err := b.storedAs(ctx, want)
	switch {
	case err != nil:
		return httpapi.Lease{}, false, err
	case stored == nil:
		return httpapi.Lease{}, false, consumedKey("The lease of this Idempotency-Key has ended")
	}
	return b.replay(ctx, r, want, stored)
}

// storedAs is the lease of a name as the API server has it; nil when there is none.
func (b Backend) storedAs(ctx context.Context, want *v1alpha1.ProxyLease) (*v1alpha1.ProxyLease, error) {
	stored := &v1alpha1.ProxyLease{}
	switch err := b.Live.Get(ctx, client.ObjectKeyFromObject(want), stored); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, unavailable(err)
	}
	return stored, nil
}

// replay answers with a stored lease that was made for the same key. One that is still pending is waited for.
func (b Backend) replay(ctx context.Context, r httpapi.LeaseRequest, want, stored *v1alpha1.ProxyLease) (httpapi.Lease, bool, error) {
	switch {
	case stored.Annotations[record.AnnotationRequestHash] != want.Annotations[record.AnnotationRequestHash]:
		return httpapi.Lease{}, false, &httpapi.Error{
			Status: 422, Code: wire.CodeKeyReused, Field: wire.HeaderKey,
			Detail: "The key was used for another request; use a new one",
		}
	case record.Finished(stored), !stored.DeletionTimestamp.IsZero():
		return httpapi.Lease{}, false, consumedKey("The lease of this Idempotency-Key has ended: " + endReason(stored))
	case record.Pending(stored):
		return b.follow(ctx, r, stored, true)
	}
	// A creation may have been carried out long after it was sent, by a leader that may not have promised it any more.
	if b.Recovered() {
		switch ok, err := b.admitted(ctx, stored); {
		case err != nil:
			return httpapi.Lease{}, false, unavailable(err)
		case !ok:
			return httpapi.Lease{}, false, outcomeUnknown()
		}
	} else {
		known, err := b.confirmed(ctx, stored)
		if err != nil {
			return httpapi.Lease{}, false, err
		}
		if stored = known; record.Finished(stored) {
			return httpapi.Lease{}, false, consumedKey("The lease of this Idempotency-Key has ended: " + endReason(stored))
		}
		if holds, err := b.holdsLive(ctx, stored); err != nil {
			return httpapi.Lease{}, false, unavailable(err)
		} else if !holds {
			return httpapi.Lease{}, false, outcomeUnknown()
		}
	}
	answer, err := b.answer(ctx, stored)
	return answer, true, err
}

// holdsLive asks the API server whether a bound lease may use its proxy: an exclusive one is named by it, and with any other
// one it names none. Of a proxy that is gone it tells nothing; what that means for the lease is another question.
func (b Backend) holdsLive(ctx context.Context, lease *v1alpha1.ProxyLease) (bool, error) {
	binding, ok := record.BindingOf(lease)
	if !ok {
		return false, nil
	}
	px := &v1alpha1.Proxy{}
	err := b.Live.Get(ctx, types.NamespacedName{Namespace: lease.Namespace, Name: binding.ProxyName}, px)
	if apierrors.IsNotFound(err) || err == nil && px.UID != binding.ProxyUID {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the proxy of a lease: %w", err)
	}
	named := types.UID("")
	if x := px.Status.Exclusive; x != nil {
		named = x.LeaseUID
	}
	return named == lease.UID || named == "" && lease.Spec.Mode != v1alpha1.LeaseExclusive, nil
}

// wanted is the lease that a request asks for.
func wanted(r httpapi.LeaseRequest, name string) *v1alpha1.ProxyLease {
	lease := &v1alpha1.ProxyLease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   r.Namespace,
			Name:        name,
			Annotations: map[string]string{record.AnnotationRequestHash: requestHash(r)},
		},
		Spec: v1alpha1.ProxyLeaseSpec{
			ProxyName: r.Proxy, Targets: r.Targets, Mode: r.Mode, Holder: r.Holder, TTLSeconds: r.TTLSeconds,
			ExcludedProxyNames: r.Exclude, OnProxyFailure: v1alpha1.OnFailureKeep,
		},
	}
	record.Choose(&lease.Spec, r.Selector, r.Pool)
	return lease
}

// leaseName is made from the Idempotency-Key, so that the API server itself refuses a second lease; without a key it is random.
func leaseName(r httpapi.LeaseRequest) string {
	key := cmp.Or(r.Key, uuid.NewString())
	sum := sha256.Sum256([]byte(r.Namespace + "\x00" + r.Holder + "\x00" + key))
	return "http-" + hex.EncodeToString(sum[:20])
}

// requestHash covers what the caller asks for, but not how long it is willing to wait.
func requestHash(r httpapi.LeaseRequest) string {
	r.Key, r.Wait = "", 0
	data, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("marshal a lease request: %v", err)) // strings and numbers only
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}
