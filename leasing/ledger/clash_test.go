package ledger

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
)

// While a former leader's binding of a lease may land, no exclusive lease is given in its namespace. Every way in which that
// ends counts, and nothing else.
func TestR10_NoExclusiveLeaseBeforeBindingsOfFormerLeadersAreSettled(t *testing.T) {
	found := fixture.Lease(ns, "waits", func(l *v1alpha1.ProxyLease) { l.ResourceVersion = "5" })
	key := types.NamespacedName{Namespace: ns, Name: "waits"}
	later := func(change ...func(*v1alpha1.ProxyLease)) *v1alpha1.ProxyLease {
		l := found.DeepCopy()
		l.ResourceVersion = "9"
		for _, c := range change {
			c(l)
		}
		return l
	}
	other := func(l *v1alpha1.ProxyLease) { l.UID = "another" }
	for name, c := range map[string]struct {
		settle func(l *Ledger)
		open   bool
	}{
		"nothing":                {func(*Ledger) {}, false},
		"seen as it was":         {func(l *Ledger) { l.ObserveLease(found) }, false},
		"a namesake was deleted": {func(l *Ledger) { l.DeleteLease(later(other)) }, false},
		"an older namesake": {func(l *Ledger) {
			l.ObserveLease(later(other, func(l *v1alpha1.ProxyLease) { l.ResourceVersion = "3" }))
		}, false},
		"another lease": {func(l *Ledger) {
			l.ObserveLease(fixture.Lease(ns, "new", func(l *v1alpha1.ProxyLease) { l.ResourceVersion = "8" }))
		}, false},
		"written":       {func(l *Ledger) { l.ObserveLease(later()) }, true},
		"written by us": {func(l *Ledger) { l.Finish(later()) }, true},
		"ended": {func(l *Ledger) {
			l.Finish(later(func(l *v1alpha1.ProxyLease) { l.Status.Phase = v1alpha1.LeaseFailed }))
		}, true},
		"deleted":                  {func(l *Ledger) { l.DeleteLease(found) }, true},
		"released":                 {func(l *Ledger) { l.Released(key, found.UID, fixture.Start) }, true},
		"deleted and created anew": {func(l *Ledger) { l.ObserveLease(later(other)) }, true},
		"granted by us": {func(l *Ledger) {
			res, err := l.Reserve(request("waits", pinned("a"), func(r *Request) { r.UID = found.UID }), fixture.Start)
			if err == nil {
				l.Commit(later(func(o *v1alpha1.ProxyLease) { o.Spec.Grant = granted(res, "9").Spec.Grant }))
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(fixture.Proxy(ns, "a"), fixture.Proxy(ns, "b"), fixture.Proxy("elsewhere", "a"))
			l.Expect(found)
			if !l.Unfenced(key, found.UID) || l.Settled(ns) || !l.Settled("elsewhere") {
				t.Fatal("it is not waited for")
			}
			c.settle(l)
			if l.Settled(ns) != c.open || l.Unfenced(key, found.UID) == c.open {
				t.Fatalf("settled: %v", l.Settled(ns))
			}
			mustReserve(t, l, request("shared", pinned("a")))
			if _, err := l.Reserve(request("x", exclusive), fixture.Start); (err == nil) != c.open {
				t.Fatalf("an exclusive one got %v", err)
			}
			elsewhere := request("x", exclusive)
			elsewhere.Lease.Namespace = "elsewhere"
			mustReserve(t, l, elsewhere)
		})
	}
}
