package proxypool

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// create makes the members of the plan in growing batches. Before each it asks the API server for the pool, since a pool
// that was deleted meanwhile must not grow.
func (r *Reconciler) create(ctx context.Context, mem *memory, pool *v1alpha1.ProxyPool, plan Plan) (collisions int32, err error) {
	var mu sync.Mutex
	created, refused := 0, ""
	rest := plan.Creates
	for batch := 1; len(rest) > 0 && err == nil; batch = min(2*batch, maxUnchecked) {
		if _, err := r.checkPool(ctx, pool); err != nil {
			return collisions, err
		}
		n := min(batch, len(rest))
		err = untilError(rest[:n], maxBatch, func(name string) error {
			px := newProxy(pool, name, plan.Status.UpdateRevision)
			markServed(px, pool, r.Clock.Now())
			outcome, err := r.createMember(ctx, pool, px)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				refused = err.Error()
				return err
			}
			switch outcome {
			case nameTaken, memberLeaving:
				collisions++
				mem.blocked[name] = r.Clock.Now().Add(blockedTimeout)
			case memberMade:
				created++
			}
			if outcome != nameTaken {
				mem.noteCreated(px, r.Clock.Now())
			}
			return nil
		})
		rest = rest[n:]
	}
	if created > 0 {
		r.Recorder.Eventf(pool, nil, corev1.EventTypeNormal, eventCreated, actionScale, "Created %d proxies of revision %s", created, plan.Status.UpdateRevision)
	}
	// Of those that ran beside each other some may have been taken.
	mem.refused = refused
	if err != nil {
		// Whether a create that failed took effect is not known.
		mem.verified = false
		r.Recorder.Eventf(pool, nil, corev1.EventTypeWarning, eventCreateFailed, actionScale, "%v", err)
	}
	return collisions, err
}

// outcome of an attempt to make a member.
type outcome int

const (
	memberMade outcome = iota
	// memberExists: a namesake is a living member of this pool.
	memberExists
	// memberLeaving: it is a member that is being deleted.
	memberLeaving
	// nameTaken: it is none of ours.
	nameTaken
)

// createMember makes a member and leaves it, or the member that has its name, in px.
func (r *Reconciler) createMember(ctx context.Context, pool *v1alpha1.ProxyPool, px *v1alpha1.Proxy) (outcome, error) {
	err := r.Client.Create(ctx, px)
	if err == nil {
		return memberMade, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return 0, fmt.Errorf("create member %s: %w", px.Name, err)
	}
	holder := &v1alpha1.Proxy{}
	if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(px), holder); err != nil {
		if apierrors.IsNotFound(err) {
			return nameTaken, nil
		}
		return 0, fmt.Errorf("get the holder of name %s: %w", px.Name, err)
	}
	*px = *holder
	switch owner := metav1.GetControllerOfNoCopy(px); {
	case owner == nil || owner.UID != pool.UID:
		return nameTaken, nil
	case !px.DeletionTimestamp.IsZero():
		return memberLeaving, nil
	default:
		return memberExists, nil
	}
}
