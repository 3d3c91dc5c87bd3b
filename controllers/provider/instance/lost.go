package instance

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// A finalizer does not always hold. The API server reads an object, sees that no finalizer forbids to remove it, and
// removes it a moment later without looking again; a finalizer that is stored in that moment goes with it. A Proxy that
// is deleted right after it was bound can so disappear under an attempt to create. What was made for it is cleared here
// at once. The memory of it does not survive a restart; then the orphan collection does it, later.

// lostProxies remembers Proxies that went without being released.
type lostProxies struct {
	mu    sync.Mutex
	names map[types.NamespacedName]map[types.UID]*v1alpha1.Proxy
}

func newLostProxies() *lostProxies {
	return &lostProxies{names: map[types.NamespacedName]map[types.UID]*v1alpha1.Proxy{}}
}

// note remembers a Proxy, if an instance may have been made for it.
func (l *lostProxies) note(px *v1alpha1.Proxy) bool {
	if stored(px).IntentTime == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	key := client.ObjectKeyFromObject(px)
	if l.names[key] == nil {
		l.names[key] = map[types.UID]*v1alpha1.Proxy{}
	}
	l.names[key][px.UID] = px
	return true
}

func (l *lostProxies) of(key types.NamespacedName) []*v1alpha1.Proxy {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.names[key]))
}

func (l *lostProxies) forget(px *v1alpha1.Proxy) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := client.ObjectKeyFromObject(px)
	delete(l.names[key], px.UID)
	if len(l.names[key]) == 0 {
		delete(l.names, key)
	}
}

// onDelete wakes the controller for a Proxy that is gone with our finalizer on it.
func (r *Reconciler) onDelete(_ context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	px, ok := e.Object.(*v1alpha1.Proxy)
	if !ok || !hasFinalizer(px, r.finalizer) || px.Annotations[v1alpha1.AnnotationSkipCleanup] == "true" {
		return
	}
	if r.lost.note(px.DeepCopy()) {
		q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(px)})
	}
}

// clearLost deletes what was made for Proxies of a name that are gone. It returns when to look again; 0 when nothing is
// left. A failure must not keep a namesake that was made since from its turn.
func (r *Reconciler) clearLost(ctx context.Context, key types.NamespacedName) time.Duration {
	var after time.Duration
	for _, px := range r.lost.of(key) {
		wait, err := r.clear(ctx, px)
		if err != nil {
			log.FromContext(ctx).Error(err, "Clearing up after a Proxy that is gone failed", "uid", px.UID)
			wait = cmp.Or(providers.RetryAfterOf(err), r.Timing.PollMax)
		}
		if wait == 0 {
			r.lost.forget(px)
			continue
		}
		if after == 0 || wait < after {
			after = wait
		}
	}
	return after
}

func (r *Reconciler) clear(ctx context.Context, px *v1alpha1.Proxy) (time.Duration, error) {
	// The cache drops what its selector no longer matches, too; only the API server knows whether the Proxy is gone.
	live := &v1alpha1.Proxy{}
	err := r.Reader.Get(ctx, client.ObjectKeyFromObject(px), live)
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("look for the Proxy: %w", err)
	}
	if !apierrors.IsNotFound(err) && live.UID == px.UID {
		return 0, nil
	}
	s := r.newSubject(px)
	mine, err := r.openClass(ctx, s)
	if err != nil {
		return 0, err
	}
	if !mine || s.provider == nil {
		return 0, nil
	}
	record, asked := s.record(), r.Clock.Now()
	found, err := s.provider.Get(ctx, s.ref())
	switch {
	case providers.IsNotFound(err) && unsettled(record, asked, r.Timing):
		return poll(record, r.Clock.Now(), r.Timing), nil
	case providers.IsNotFound(err):
		return 0, nil
	case err != nil:
		return 0, err
	case found.Owner.UID != px.UID:
		return 0, nil
	case found.State != providers.StateTerminating:
		log.FromContext(ctx).Info("Deleting the instance of a Proxy that went without being released", "instance", s.name)
		if err := s.provider.Delete(ctx, found.Ref); err != nil && !providers.IsNotFound(err) {
			return 0, err
		}
	}
	return r.Timing.Poll, nil
}
