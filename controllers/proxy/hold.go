package proxy

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/objpatch"
)

// holdSettle is how long core's finalizer is on a class before a Proxy is bound to it. The API server looks at finalizers
// when it begins to delete, and takes an object away although one was stored meanwhile; so a class may vanish, and be seen
// to have vanished, a moment after it was held. The first Proxies of a class wait for that moment to pass.
const holdSettle = time.Second

// holdClass stores core's finalizer on a class before the first Proxy is bound to it, and returns how long the binding has
// to wait: a class that is deleted just then must not vanish under its Proxy. It is one write for each class;
// controllers/providerclass takes it off.
func (r *Reconciler) holdClass(ctx context.Context, class *v1alpha1.ProviderClass) (time.Duration, error) {
	if isHeld(class) {
		return r.holds.left(class, r.Clock.Now()), nil
	}
	if err := objpatch.Finalizers(ctx, r.Client, class, append(slices.Clone(class.Finalizers), v1alpha1.FinalizerClassInUse)); err != nil {
		return 0, fmt.Errorf("hold ProviderClass %s: %w", class.Name, err)
	}
	return holdSettle, nil
}

func isHeld(class *v1alpha1.ProviderClass) bool {
	return slices.Contains(class.Finalizers, v1alpha1.FinalizerClassInUse)
}

// holds remember by name since when a class is seen to be held.
type holds struct {
	mu      sync.Mutex
	classes map[string]hold
}

type hold struct {
	class types.UID
	since time.Time
}

// left is what is left of the time that a class must have been held.
func (h *holds) left(class *v1alpha1.ProviderClass, now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.classes[class.Name].class != class.UID {
		if h.classes == nil {
			h.classes = map[string]hold{}
		}
		h.classes[class.Name] = hold{class.UID, now}
	}
	return max(0, h.classes[class.Name].since.Add(holdSettle).Sub(now))
}

// forget a class that is gone.
func (h *holds) forget(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.classes, name)
}
