package leasing

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
)

// Everybody who asks is told that a drained proxy is empty: at its last lease's end, and at once if it had none. A listener that
// takes nothing in holds up nobody.
func TestEveryListenerIsToldOfEmptyProxies(t *testing.T) {
	a := newBackend(t, true).Allocator
	one, two := a.LeaseChanges(), a.LeaseChanges()
	_ = a.LeaseChanges() // never read
	told := func() (n int) {
		for _, channel := range []<-chan event.TypedGenericEvent[types.NamespacedName]{one, two} {
			for len(channel) > 0 {
				<-channel
				n++
			}
		}
		return n
	}
	a.role.Store(int32(leads))
	a.ledger.Open()
	a.ledger.Start(1, "")
	drain := func(px *v1alpha1.Proxy) { px.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: "pool"}} }
	version := func(v string) func(*v1alpha1.Proxy) { return func(px *v1alpha1.Proxy) { px.ResourceVersion = v } }
	key, uid := types.NamespacedName{Namespace: "team", Name: "p"}, fixture.Proxy("team", "p").UID

	a.onProxy(fixture.Proxy("team", "p", version("1")))
	if told() != 0 || a.Emptied(key, uid) {
		t.Fatal("a proxy that nobody drains is told of")
	}
	lease := bound(fixture.Proxy("team", "p"), "l")
	lease.ResourceVersion = "2"
	a.onLease(lease)
	a.onProxy(fixture.Proxy("team", "p", drain, version("3")))
	if told() != 0 || a.Emptied(key, uid) {
		t.Fatal("a leased proxy is told of")
	}
	a.onLeaseGone(lease)
	if n := told(); n != 2 || !a.Emptied(key, uid) {
		t.Errorf("at the end of its last lease %d are told, want both; emptied %v", n, a.Emptied(key, uid))
	}
	a.onProxy(fixture.Proxy("team", "p", version("4")))
	if told() != 0 || a.Emptied(key, uid) {
		t.Error("a proxy that is not drained any more is told of")
	}
	a.onProxy(fixture.Proxy("team", "p", drain, version("5")))
	if n := told(); n != 2 || !a.Emptied(key, uid) {
		t.Errorf("of an idle proxy that is drained %d are told, want both", n)
	}
	a.onProxy(fixture.Proxy("team", "p", drain, version("6")))
	if n := told(); n != 0 {
		t.Errorf("it is told again, %d times", n)
	}
	for range 2 * changesBuffer {
		a.emptied.tell(key)
	}
	if n := told(); n != 2*changesBuffer {
		t.Errorf("%d are kept for two listeners, want %d", n, 2*changesBuffer)
	}
	a.role.Store(int32(stepsDown))
	if a.Emptied(key, uid) {
		t.Error("a replica that does not lead knows that a proxy is empty")
	}
}
