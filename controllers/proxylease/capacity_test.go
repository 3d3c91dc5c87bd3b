package proxylease

import (
	"fmt"
	"net/http"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

func TestL19_LoweredCapacityEvictsNobodyAndIsShown(t *testing.T) {
	f := newFleet(t)
	f.proxy("a", capacity(4))
	c := f.start()
	for i := range 3 {
		name := fmt.Sprint("l", i)
		f.lease(name)
		if l := f.awaitPhase(name, v1alpha1.LeaseBound); meta.FindStatusCondition(l.Status.Conditions, v1alpha1.ConditionOvercommitted) != nil {
			t.Fatalf("%s is overcommitted from the start: %+v", name, l.Status.Conditions)
		}
	}
	byHTTP := c.acquire(201, `{"ttlSeconds":900}`)
	setCapacity := func(n int32) {
		t.Helper()
		px := f.getProxy("a")
		px.Spec.Capacity = &n
		if err := f.Client.Update(t.Context(), px); err != nil {
			t.Fatal(err)
		}
		f.setStatus(px, func(*v1alpha1.ProxyStatus) {})
	}
	shown := func(want metav1.ConditionStatus, reason string, names ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("Overcommitted is %s", want), func() string {
			for _, name := range names {
				l := f.get(name)
				if l == nil || l.Status.Phase != v1alpha1.LeaseBound {
					t.Fatalf("%s was evicted: %+v", name, l)
				}
				if c := meta.FindStatusCondition(l.Status.Conditions, v1alpha1.ConditionOvercommitted); c == nil || c.Status != want || c.Reason != reason {
					return fmt.Sprintf("%s: %+v", name, c)
				}
			}
			return ""
		})
	}
	setCapacity(2)
	shown(metav1.ConditionTrue, v1alpha1.ReasonAboveCapacity, "l0", "l1", "l2")
	release := func(name string) {
		t.Helper()
		if err := f.Client.Delete(t.Context(), f.get(name)); err != nil {
			t.Fatal(err)
		}
	}
	c.refused(503, wire.CodeNoProxy, http.MethodPost, "/v1/leases", `{}`)
	release("l2") // three are left for two slots
	eventually(t, "the slot is known to be free", func() string {
		if load, _ := c.allocator.CountLeases(f.getProxy("a").UID); load != 3 {
			return fmt.Sprint(load)
		}
		return ""
	})
	shown(metav1.ConditionTrue, v1alpha1.ReasonAboveCapacity, "l0", "l1")
	c.refused(503, wire.CodeNoProxy, http.MethodPost, "/v1/leases", `{}`)
	if status, body := c.call(http.MethodGet, "/v1/leases/"+byHTTP.LeaseID, ""); status != 200 {
		t.Fatalf("the HTTP lease was evicted: %d %s", status, body)
	}
	if status, _ := c.call(http.MethodDelete, "/v1/leases/"+byHTTP.LeaseID, ""); status != 204 {
		t.Fatal("release")
	}
	shown(metav1.ConditionFalse, v1alpha1.ReasonWithinCapacity, "l0", "l1")
	c.refused(503, wire.CodeNoProxy, http.MethodPost, "/v1/leases", `{}`) // it fits, and is full
	setCapacity(1)
	shown(metav1.ConditionTrue, v1alpha1.ReasonAboveCapacity, "l0", "l1")
	setCapacity(3)
	shown(metav1.ConditionFalse, v1alpha1.ReasonWithinCapacity, "l0", "l1")
	c.acquire(201, `{"waitSeconds":20}`) // its status may be taken in a moment later
}

func TestL11_OneFreedSlotUnderManyWaitingLeasesIsOneWrite(t *testing.T) {
	const waiting = 60
	f := newFleet(t)
	f.proxy("a", capacity(1))
	c := f.start()
	first := c.acquire(201, `{"ttlSeconds":900}`)
	for i := range waiting {
		f.lease(fmt.Sprintf("l%02d", i), func(l *v1alpha1.ProxyLease) { l.Spec.Holder = fmt.Sprint("holder", i%7) })
	}
	count := func(phase v1alpha1.LeasePhase) (n int) {
		for _, l := range f.leases() {
			if l.Status.Phase == phase {
				n++
			}
		}
		return n
	}
	eventually(t, "all say that they wait", func() string {
		if n := count(v1alpha1.LeasePending); n != waiting {
			return fmt.Sprint(n)
		}
		return ""
	})
	c.writes.take()
	if status, _ := c.call(http.MethodDelete, "/v1/leases/"+first.LeaseID, ""); status != 204 {
		t.Fatal("release")
	}
	eventually(t, "one is bound", func() string {
		if n := count(v1alpha1.LeaseBound); n != 1 {
			return fmt.Sprint(n)
		}
		return ""
	})
	// Whatever it would have caused besides is before this in the API server's order.
	f.lease("after", pinnedTo("a"))
	f.awaitPhase("after", v1alpha1.LeasePending)
	if got := c.writes.take(); len(got) != 2 || got["DELETE proxyleases"] != 1 || got["PATCH proxyleases"] != 2 {
		t.Fatalf("a freed slot cost %v, want the release, one grant, and the word of the last lease that it waits", got)
	}
}
