package leasing

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// What controllers are told of proxies, because no event of an object says it.

// changesBuffer is how many proxies that became empty, or too full, may wait to be taken in.
const changesBuffer = 256

// listeners are those who are told of proxies, each by a channel of its own. The zero value has none.
type listeners struct {
	mu       sync.Mutex
	channels []chan event.TypedGenericEvent[types.NamespacedName]
}

func (l *listeners) add() <-chan event.TypedGenericEvent[types.NamespacedName] {
	l.mu.Lock()
	defer l.mu.Unlock()
	channel := make(chan event.TypedGenericEvent[types.NamespacedName], changesBuffer)
	l.channels = append(l.channels, channel)
	return channel
}

func (l *listeners) tell(proxy types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, channel := range l.channels {
		announce(channel, proxy)
	}
}

// LeaseChanges names proxies that are asked to drain and carry no lease, when either came about. Who calls it gets a channel of
// its own.
func (a *Allocator) LeaseChanges() <-chan event.TypedGenericEvent[types.NamespacedName] {
	return a.emptied.add()
}

// Emptied tells whether a proxy carries no lease and will be given none: leasing has seen that it is asked to drain. A lease that
// is being granted counts. It is false when this replica does not know.
func (a *Allocator) Emptied(proxy types.NamespacedName, uid types.UID) bool {
	px := a.ledger.Proxy(proxy, uid)
	// In this order: from the moment at which the drain was seen no lease is added.
	return a.Recovered() && px != nil && record.Draining(px) && a.ledger.Load(uid) == 0
}

// checkEmpty tells of a proxy that is asked to drain and carries no lease.
func (a *Allocator) checkEmpty(px *v1alpha1.Proxy) {
	if record.Draining(px) && a.ledger.Load(px.UID) == 0 {
		a.emptied.tell(types.NamespacedName{Namespace: px.Namespace, Name: px.Name})
	}
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
