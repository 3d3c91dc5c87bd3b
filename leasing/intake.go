package leasing

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/expiry"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// What the allocator learns of leases and proxies: events of the cache, which wait while the ledger is being built.

// backlog holds events back while the ledger is being built, in the order in which they came.
type backlog struct {
	mu     sync.Mutex
	open   bool
	events []func()
}

func (b *backlog) do(f func()) {
	b.mu.Lock()
	if !b.open {
		b.events = append(b.events, f)
		b.mu.Unlock()
		return
	}
	b.mu.Unlock()
	f()
}

// release runs what was held back; from then on events pass.
func (b *backlog) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.events {
		f()
	}
	b.events, b.open = nil, true
}

// listen subscribes to the informers. It happens before the list is read, so that nothing falls between the two.
func (a *Allocator) listen(ctx context.Context) (stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, s := range stops {
			s()
		}
	}
	subscribe := func(object client.Object, handler toolscache.ResourceEventHandler) error {
		informer, err := a.Cache.GetInformer(ctx, object)
		if err != nil {
			return fmt.Errorf("watch %T: %w", object, err)
		}
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return fmt.Errorf("watch %T: %w", object, err)
		}
		stops = append(stops, func() {
			if err := informer.RemoveEventHandler(registration); err != nil {
				a.Log.Error(err, "Stop watching", "kind", fmt.Sprintf("%T", object))
			}
		})
		return nil
	}
	if err := subscribe(&v1alpha1.Proxy{}, handlers(&a.backlog, a.onProxy, a.onProxyGone)); err != nil {
		return stop, err
	}
	return stop, subscribe(&v1alpha1.ProxyLease{}, handlers(&a.backlog, a.onLease, a.onLeaseGone))
}

// handlers treats an addition like an update, because after a new list one may come as the other, and finds the last known
// state in the tombstone of a deletion that the watch has missed.
func handlers[T client.Object](b *backlog, seen, gone func(T)) toolscache.ResourceEventHandler {
	see := func(object any) {
		if o, ok := object.(T); ok {
			b.do(func() { seen(o) })
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    see,
		UpdateFunc: func(_, object any) { see(object) },
		DeleteFunc: func(object any) {
			if tombstone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = tombstone.Obj
			}
			if o, ok := object.(T); ok {
				b.do(func() { gone(o) })
			}
		},
	}
}

// onLease takes in an event of a lease.
func (a *Allocator) onLease(lease *v1alpha1.ProxyLease) {
	current := a.ledger.ObserveLease(lease)
	a.castOut()
	if !current {
		return
	}
	switch {
	case record.Pending(lease):
		a.enqueue(lease)
	case record.Holds(lease):
		a.waiting.remove(string(lease.UID))
		a.track(lease)
		if unconfirmed(lease) && record.RenewalPending(lease) {
			a.chores.Add(chore{what: confirmLease, key: client.ObjectKeyFromObject(lease), uid: lease.UID})
		}
	default:
		a.ended(lease)
		a.keep(lease)
	}
}

// onLeaseGone takes in the event of a lease's deletion.
func (a *Allocator) onLeaseGone(lease *v1alpha1.ProxyLease) {
	a.finished.Remove(lease.UID)
	a.ledger.DeleteLease(lease)
	a.braked()
	a.ended(lease)
}

// ended cleans up after a lease that holds and waits for nothing any more.
func (a *Allocator) ended(lease *v1alpha1.ProxyLease) {
	a.waiting.remove(string(lease.UID))
	a.deadlines.Delete(lease.UID)
	if b, ok := record.BindingOf(lease); ok {
		a.freed(types.NamespacedName{Namespace: lease.Namespace, Name: b.ProxyName}, b.ProxyUID, lease.UID)
	}
	a.wake()
}

// freed sees to a proxy of which a lease has let go.
func (a *Allocator) freed(proxy types.NamespacedName, uid, lease types.UID) {
	if px := a.ledger.Proxy(proxy, uid); px != nil {
		a.checkExclusive(px, lease)
		a.checkEmpty(px)
	}
}

// track keeps the deadline of a bound lease up to what its object says.
func (a *Allocator) track(lease *v1alpha1.ProxyLease) {
	known, ok := a.deadlines.Get(lease.UID)
	if a.deadlines.Set(expiry.Of(lease, known, ok, a.Clock.Now())) {
		a.kickDeadlines()
	}
}

// onProxy takes in an event of a proxy.
func (a *Allocator) onProxy(px *v1alpha1.Proxy) {
	old := a.ledger.Proxy(client.ObjectKeyFromObject(px), px.UID)
	if ledger.Outdated(px, old) {
		return // our own newer write was taken in before
	}
	open := a.ledger.ObserveProxy(px)
	a.checkProxy(old, px)
	if open {
		a.wake()
	}
}

// onProxyGone takes in the event of a proxy's deletion.
func (a *Allocator) onProxyGone(px *v1alpha1.Proxy) {
	a.carryCooldowns(px)
	a.ledger.DeleteProxy(px)
	a.wake() // who has claimed it claims another
}
