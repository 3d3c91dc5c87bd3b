//go:build e2e

package e2e

import (
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// witness has every change of the proxies of a namespace, in the order of the API server.
type witness struct {
	mu      sync.Mutex
	changes []change
	// broke says that the watch ended before its time, so that changes may be missing.
	broke bool
}

type change struct {
	proxy *v1alpha1.Proxy
	gone  bool
}

// watchProxies watches until the test ends.
func watchProxies(t *testing.T, namespace string) *witness {
	t.Helper()
	watcher, err := cluster.Watch(t.Context(), &v1alpha1.ProxyList{}, client.InNamespace(namespace))
	if err != nil {
		t.Fatalf("watch proxies: %v", err)
	}
	w := &witness{}
	var done sync.WaitGroup
	done.Go(func() {
		for event := range watcher.ResultChan() {
			px, ok := event.Object.(*v1alpha1.Proxy)
			if !ok {
				continue
			}
			w.mu.Lock()
			w.changes = append(w.changes, change{px, event.Type == watch.Deleted})
			w.mu.Unlock()
		}
		w.mu.Lock()
		w.broke = true
		w.mu.Unlock()
	})
	t.Cleanup(func() {
		watcher.Stop()
		done.Wait()
	})
	return w
}

// deadlineOf is when the leases of a draining proxy end; zero when nobody said.
func (w *witness) deadlineOf(name string) (deadline time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.changes {
		for _, request := range c.proxy.Spec.DrainRequests {
			if c.proxy.Name == name && request.DeadlineTime.After(deadline) {
				deadline = request.DeadlineTime.Time
			}
		}
	}
	return deadline
}

// stillThere names those of the proxies that were not seen going; "" for none.
func (w *witness) stillThere(names ...string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	gone := map[string]bool{}
	for _, c := range w.changes {
		gone[c.proxy.Name] = gone[c.proxy.Name] || c.gone
	}
	var left []string
	for _, name := range names {
		if !gone[name] {
			left = append(left, name)
		}
	}
	return strings.Join(left, ", ")
}

// check goes through the rollout of the fleet change by change: how many proxies exist, how many that work are left when one is
// given up, and that none of those in notBefore was deleted before that time.
func (w *witness) check(t *testing.T, notBefore map[string]time.Time) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broke {
		t.Fatal("the watch ended before the rollout did")
	}
	now := map[types.UID]*v1alpha1.Proxy{}
	most, least := 0, fleetSize+fleetSurge
	for _, c := range w.changes {
		px := c.proxy
		before := now[px.UID]
		now[px.UID] = px
		if c.gone {
			delete(now, px.UID)
		}
		most = max(most, len(now))
		if staysAndWorks(before) && (c.gone || leaves(px)) {
			working := 0
			for uid, other := range now {
				if uid != px.UID && staysAndWorks(other) {
					working++
				}
			}
			least = min(least, working)
		}
		// Timestamps have no fractions of a second.
		if at := px.DeletionTimestamp; !at.IsZero() && at.Time.Before(notBefore[px.Name].Truncate(time.Second)) {
			t.Errorf("%s was deleted at %s, %s before it could", px.Name, at, notBefore[px.Name].Sub(at.Time))
		}
	}
	if limit := fleetSize + fleetSurge + fleetDraining; most > limit {
		t.Errorf("%d proxies at once, want at most %d", most, limit)
	}
	if least < fleetSize {
		t.Errorf("%d proxies were left that work, want at least %d", least, fleetSize)
	}
	say(t, "%d changes: at most %d proxies at once, never fewer than %d that work", len(w.changes), most, least)
}

func leaves(px *v1alpha1.Proxy) bool {
	return !px.DeletionTimestamp.IsZero() || len(px.Spec.DrainRequests) > 0
}

func staysAndWorks(px *v1alpha1.Proxy) bool {
	return px != nil && !leaves(px) && meta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionReady)
}
