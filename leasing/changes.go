package leasing

import (
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// What controllers are told of proxies, because no event of an object says it.

// changesBuffer is how many proxies that became empty, or too full, may wait to be taken in.
const changesBuffer = 256

// LeaseChanges names proxies that are asked to drain and became empty.
func (a *Allocator) LeaseChanges() <-chan event.TypedGenericEvent[types.NamespacedName] {
	return a.changes
}

// Overcommitted tells whether the proxy of a bound lease carries more leases than its capacity.
func (a *Allocator) Overcommitted(lease *v1alpha1.ProxyLease) bool {
	b, ok := record.BindingOf(lease)
	return ok && a.ledger.Overcommitted(types.NamespacedName{Namespace: lease.Namespace, Name: b.ProxyName}, b.ProxyUID)
}

// OvercommitChanges names proxies that began or ceased to carry more leases than their capacity.
func (a *Allocator) OvercommitChanges() <-chan event.TypedGenericEvent[types.NamespacedName] {
	return a.overcommits
}

// announce says that something changed about a proxy. When nobody takes it in, whoever cares finds out by looking.
func announce(changes chan<- event.TypedGenericEvent[types.NamespacedName], proxy types.NamespacedName) {
	select {
	case changes <- event.TypedGenericEvent[types.NamespacedName]{Object: proxy}:
	default:
	}
}
