package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/client"
	"crawl.example.com/egress-proxies-operator/leasing/record"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// watchRetry is the pause after a refusal to be told of changes; the lease lives on without.
const watchRetry = 30 * time.Second

// handle is a lease of one ProxyLease object.
type handle struct {
	backend  *backend
	key      types.NamespacedName
	uid      types.UID
	follower *follower

	mu sync.Mutex
	// last is the newest state that was seen, as far as is known.
	last *v1alpha1.ProxyLease
	// renewed is the last spec.renewTime that was written.
	renewed     time.Time
	credentials *client.Credentials
	// counts are those of reports whose success is not known, by target and result: a repetition is the same report.
	counts map[reportKey]int32
}

func newHandle(ctx context.Context, b *backend, lease *v1alpha1.ProxyLease) *handle {
	return &handle{
		backend: b, key: ctrlclient.ObjectKeyFromObject(lease), uid: lease.UID, last: lease,
		follower: follow(ctx, b.client, lease), counts: map[reportKey]int32{},
	}
}

// errUndecided ends the waiting for an operator that says nothing.
var errUndecided = &client.Error{Status: http.StatusServiceUnavailable, Code: wire.CodeNotReady, Detail: "no leader has decided about the lease in time"}

// bound waits until the lease holds a proxy.
func (h *handle) bound(ctx context.Context, lease *v1alpha1.ProxyLease, wait time.Duration) (client.Terms, error) {
	waiting := ctx
	if wait != 0 {
		limited, cancel := context.WithTimeoutCause(ctx, max(wait, 0)+leaderPatience, errUndecided)
		defer cancel()
		waiting = limited
	}
	for {
		switch {
		case lease == nil || lease.UID != h.uid:
			return client.Terms{}, lostBy(nil)
		case lease.Status.Phase == v1alpha1.LeaseFailed:
			h.drop(ctx) // so that the key may be used again
			return client.Terms{}, failed(lease)
		case lostBy(lease) != nil:
			return client.Terms{}, lostBy(lease)
		case record.Holds(lease) && lease.Status.ProxyRef != nil:
			return h.granted(ctx, lease)
		}
		var err error
		if lease, err = h.follower.next(waiting); err != nil {
			if _, refused := errors.AsType[*client.Error](err); refused {
				h.drop(ctx)
			}
			return client.Terms{}, err
		}
	}
}

// granted takes in a lease that was just bound. Without its credentials it would be of no use.
func (h *handle) granted(ctx context.Context, lease *v1alpha1.ProxyLease) (client.Terms, error) {
	credentials, err := h.backend.credentials(ctx, lease)
	if err != nil {
		if e, ok := errors.AsType[*client.Error](err); ok && e.Status < http.StatusInternalServerError {
			h.drop(ctx)
		}
		return client.Terms{}, err
	}
	h.mu.Lock()
	h.credentials = credentials
	h.mu.Unlock()
	return h.observe(lease), nil
}

// drop gives back a lease that nobody will use. What is left of it ends with its TTL.
func (h *handle) drop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	_ = h.Release(ctx)
}

// observe remembers a state and says what it means for the holder.
func (h *handle) observe(lease *v1alpha1.ProxyLease) client.Terms {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = lease
	terms := client.Terms{
		Credentials: h.credentials, TTL: record.TTL(lease),
		Draining: meta.IsStatusConditionTrue(lease.Status.Conditions, v1alpha1.ConditionDraining),
	}
	if ref := lease.Status.ProxyRef; ref != nil {
		terms.Proxy = client.Proxy{Namespace: ref.Namespace, Name: ref.Name, URL: ref.URL, EgressIP: ref.EgressIP}
	}
	return terms
}

// ID implements client.Handle: who may change the object may use the lease, so its name is all there is to know.
func (h *handle) ID() string { return h.key.String() }

// Name implements client.Handle.
func (h *handle) Name() string { return h.key.String() }

// Renew implements client.Handle. The answer is the state after the change: if that is not the end, the end can come only
// after the renewal was taken in.
func (h *handle) Renew(ctx context.Context) (client.Terms, error) {
	h.mu.Lock()
	// Only that it changes counts; a clock that stands still must not keep it from changing.
	now := time.Now().Truncate(time.Microsecond)
	if before := h.renewed; !now.After(before) {
		now = before.Add(time.Microsecond)
	}
	h.renewed = now
	h.mu.Unlock()
	sent := time.Now()
	lease, err := h.patch(ctx, map[string]any{"spec": map[string]any{"renewTime": metav1.NewMicroTime(now)}})
	if err == nil {
		err = lostBy(lease)
	}
	if err != nil {
		return client.Terms{}, fmt.Errorf("renew the lease: %w", err)
	}
	terms := h.observe(lease)
	terms.Until = sent.Add(terms.TTL)
	return terms, nil
}

// patch merges a change into the object; a namesake is not touched.
func (h *handle) patch(ctx context.Context, change map[string]any) (*v1alpha1.ProxyLease, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if change["metadata"] == nil {
		change["metadata"] = map[string]any{"uid": h.uid}
	}
	data, err := json.Marshal(change)
	if err != nil {
		return nil, fmt.Errorf("encode the change: %w", err)
	}
	lease := &v1alpha1.ProxyLease{ObjectMeta: metav1.ObjectMeta{Namespace: h.key.Namespace, Name: h.key.Name}}
	err = h.backend.client.Patch(ctx, lease, ctrlclient.RawPatch(types.MergePatchType, data))
	if apierrors.IsNotFound(err) {
		return nil, lostBy(nil)
	}
	return lease, apiErrorOrNil(err)
}

// Check implements client.Handle. The credentials are read again: that they were changed may be why it is asked for.
func (h *handle) Check(ctx context.Context) (client.Terms, error) {
	lease, err := h.get(ctx)
	if err == nil {
		err = lostBy(lease)
	}
	if err != nil {
		return client.Terms{}, fmt.Errorf("look at the lease: %w", err)
	}
	h.renewCredentials(ctx, lease)
	return h.observe(lease), nil
}

// get reads the object; nil when it is gone.
func (h *handle) get(ctx context.Context) (*v1alpha1.ProxyLease, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	lease := &v1alpha1.ProxyLease{}
	err := h.backend.client.Get(ctx, h.key, lease)
	if apierrors.IsNotFound(err) || err == nil && lease.UID != h.uid {
		return nil, nil
	}
	return lease, apiErrorOrNil(err)
}

// renewCredentials reads the credentials again, and keeps those there are when that fails.
func (h *handle) renewCredentials(ctx context.Context, lease *v1alpha1.ProxyLease) {
	credentials, err := h.backend.credentials(ctx, lease)
	if err != nil {
		return
	}
	h.mu.Lock()
	h.credentials = credentials
	h.mu.Unlock()
}

// Watch implements client.Watcher.
func (h *handle) Watch(ctx context.Context, changed func(client.Terms)) error {
	defer h.follower.stop()
	for {
		lease, err := h.follower.next(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			timer := time.NewTimer(watchRetry)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
			continue
		case lease != nil && lease.UID != h.uid:
			lease = nil
		}
		if err := lostBy(lease); err != nil {
			return err
		}
		changed(h.observe(lease))
	}
}

// Release implements client.Handle.
func (h *handle) Release(ctx context.Context) error {
	h.follower.stop()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	lease := &v1alpha1.ProxyLease{ObjectMeta: metav1.ObjectMeta{Namespace: h.key.Namespace, Name: h.key.Name}}
	err := h.backend.client.Delete(ctx, lease, ctrlclient.Preconditions{UID: &h.uid})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // a conflict: it is a namesake
		return nil
	}
	return fmt.Errorf("delete the lease: %w", apiError(err))
}

func apiErrorOrNil(err error) error {
	if err == nil {
		return nil
	}
	return apiError(err)
}
