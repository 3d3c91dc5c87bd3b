package leasing

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// bound is a lease of a minute that holds the proxy.
func bound(px *v1alpha1.Proxy, name string) *v1alpha1.ProxyLease {
	return fixture.Lease(px.Namespace, name, func(l *v1alpha1.ProxyLease) {
		l.Status = *record.Bound(l, px, record.Grant{
			Binding:    record.Binding{ProxyName: px.Name, ProxyUID: px.UID, InstanceID: record.InstanceID(px), Epoch: 1, Seq: 1},
			TTLSeconds: 60, Time: fixture.Start,
		})
	})
}

// A renewal is never stored as taken in with the end of before it, however late its event is handled.
func TestDeadlineKnowsTheRenewalThatIsAskedFor(t *testing.T) {
	b := newBackend(t, true)
	lease := bound(fixture.Proxy("team", "p"), "l")
	b.track(lease)
	b.Clock.(*clocktesting.FakeClock).Step(40 * time.Second)
	renewed := lease.DeepCopy()
	renewed.Spec.RenewTime = new(metav1.NewMicroTime(fixture.Start.Add(time.Hour)))
	want := fixture.Start.Add(100 * time.Second)
	if at, ok := b.Deadline(renewed); !ok || !at.Equal(want) {
		t.Fatalf("it ends at %v", at)
	}
	b.Clock.(*clocktesting.FakeClock).Step(time.Second)
	b.track(renewed) // the event, at last: it is the same renewal
	if at, _ := b.Deadline(renewed); !at.Equal(want) {
		t.Fatalf("it was renewed twice, until %v", at)
	}
}

// The deadline of a lease whose deletion went unnoticed finds out, and its proxy is seen to as by the event.
func TestDeadlineOfALeaseThatIsGoneFreesItsProxy(t *testing.T) {
	px := fixture.Proxy("team", "p")
	lease := bound(px, "l")
	lease.Spec.Mode = v1alpha1.LeaseExclusive
	px.Status.Exclusive = &v1alpha1.Exclusive{LeaseUID: lease.UID}
	b := newBackend(t, true, px) // the lease is not stored
	b.ledger.Open()
	b.ledger.ObserveProxy(px)
	b.ledger.Start(1, "")
	b.onLease(lease)
	draining := px.DeepCopy()
	draining.ResourceVersion, draining.Spec.DrainRequests = "9", []v1alpha1.DrainRequest{{Requester: "test"}}
	b.ledger.ObserveProxy(draining)
	d, ok := b.deadlines.Get(lease.UID)
	if !ok || b.ledger.Load(px.UID) != 1 {
		t.Fatal("the lease is not known")
	}
	b.Clock.(*clocktesting.FakeClock).Step(2 * time.Minute)
	changes := b.LeaseChanges()
	b.expire(d)
	if n := b.ledger.Load(px.UID); n != 0 {
		t.Fatalf("the proxy carries %d leases", n)
	}
	if b.chores.Len() != 1 || len(changes) != 1 {
		t.Fatalf("%d chores and %d announcements of a proxy that nothing holds", b.chores.Len(), len(changes))
	}
}
