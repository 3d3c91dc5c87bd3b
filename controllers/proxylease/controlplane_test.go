package proxylease

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

func TestL1_NPlusOneLeasesForNSlots(t *testing.T) {
	f := newFleet(t)
	f.proxy("a", capacity(2))
	f.proxy("b", capacity(3))
	f.start()
	for i := range 6 {
		f.lease(fmt.Sprint("l", i))
	}
	load := map[string]int{}
	eventually(t, "five are bound and one waits, with the reason", func() string {
		clear(load)
		waiting := 0
		for i := range 6 {
			switch l := f.get(fmt.Sprint("l", i)); l.Status.Phase {
			case v1alpha1.LeaseBound:
				load[l.Status.ProxyRef.Name]++
			case v1alpha1.LeasePending:
				if boundReason(l) == v1alpha1.ReasonAtCapacity {
					waiting++
				}
			}
		}
		if load["a"]+load["b"] != 5 || waiting != 1 {
			return fmt.Sprintf("loads %v, %d wait", load, waiting)
		}
		return ""
	})
	if load["a"] != 2 || load["b"] != 3 {
		t.Fatalf("loads %v", load)
	}
}

func TestL1_ConcurrentHTTPLeasesNeverExceedCapacity(t *testing.T) {
	f := newFleet(t)
	f.proxy("a", capacity(4))
	f.proxy("b", capacity(4))
	c := f.start()
	var wg sync.WaitGroup
	var mu sync.Mutex
	statuses := map[int]int{}
	for range 32 {
		wg.Go(func() {
			status, _ := c.call(http.MethodPost, "/v1/leases", `{}`)
			mu.Lock()
			statuses[status]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if statuses[201] != 8 || statuses[503] != 24 {
		t.Fatalf("statuses %v", statuses)
	}
}

func TestL2_ExclusiveLeasesNeverShare(t *testing.T) {
	f := newFleet(t)
	for i := range 4 {
		f.proxy(fmt.Sprint("p", i))
	}
	c := f.start()
	var wg sync.WaitGroup
	var mu sync.Mutex
	holders := map[string]int{}
	for range 16 {
		wg.Go(func() {
			status, body := c.call(http.MethodPost, "/v1/leases", `{"mode":"Exclusive"}`)
			if status == http.StatusCreated {
				mu.Lock()
				holders[decode[httpLease](t, body).Proxy.ID]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(holders) != 4 {
		t.Fatalf("holders %v", holders)
	}
	for id, n := range holders {
		if n != 1 {
			t.Fatalf("%s was granted %d times", id, n)
		}
	}
	c.refused(503, wire.CodeNoProxy, http.MethodPost, "/v1/leases", `{}`)
	for i := range 4 {
		if x := f.getProxy(fmt.Sprint("p", i)).Status.Exclusive; x == nil || x.LeaseUID == "" {
			t.Fatalf("p%d names no lease", i)
		}
	}
}

func TestExclusiveReleaseFreesTheProxy(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	c := f.start()
	lease := c.acquire(201, `{"mode":"Exclusive"}`)
	f.lease("waits", func(l *v1alpha1.ProxyLease) { l.Spec.Mode = v1alpha1.LeaseExclusive })
	c.call(http.MethodDelete, "/v1/leases/"+lease.LeaseID, "")
	bound := f.awaitPhase("waits", v1alpha1.LeaseBound)
	if x := f.getProxy("a").Status.Exclusive; x == nil || x.LeaseUID != bound.UID {
		t.Fatalf("the proxy names %+v, want %s", x, bound.UID)
	}
	if err := f.Client.Delete(t.Context(), bound); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the proxy is free for a shared lease", func() string {
		status, body := c.call(http.MethodPost, "/v1/leases", `{}`)
		if status != http.StatusCreated {
			return string(body)
		}
		return ""
	})
}

func TestL9_WaitingLeasesWake(t *testing.T) {
	for name, wake := range map[string]func(f *fleet, c *core, first httpLease){
		"slot freed":  func(_ *fleet, c *core, first httpLease) { c.call(http.MethodDelete, "/v1/leases/"+first.LeaseID, "") },
		"proxy ready": func(f *fleet, _ *core, _ httpLease) { f.proxy("another") },
		"capacity raised": func(f *fleet, _ *core, _ httpLease) {
			px := f.getProxy("a")
			px.Spec.Capacity = ptr.To[int32](2)
			if err := f.Client.Update(t.Context(), px); err != nil {
				t.Fatal(err)
			}
			f.setStatus(px, func(*v1alpha1.ProxyStatus) {})
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			f.proxy("a", capacity(1))
			c := f.start()
			first := c.acquire(201, `{}`)
			f.lease("waits")
			f.awaitPhase("waits", v1alpha1.LeasePending)
			wake(f, c, first)
			f.awaitPhase("waits", v1alpha1.LeaseBound)
		})
	}
}

func TestL15_AndL18_TTLIsClampedRenewedAndEnds(t *testing.T) {
	f := newFleet(t)
	pool := &v1alpha1.ProxyPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "pool"},
		Spec: v1alpha1.ProxyPoolSpec{
			Replicas: ptr.To[int32](0),
			Template: v1alpha1.ProxyTemplate{Spec: v1alpha1.ProxyTemplateSpec{Provider: "class"}},
			Leases:   &v1alpha1.PoolLeases{MaxTTLSeconds: ptr.To[int32](10)},
		},
	}
	if err := f.Client.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	f.proxy("a", func(px *v1alpha1.Proxy) { px.Labels[v1alpha1.LabelPool] = "pool" })
	c := f.start()
	inPool := func(l *v1alpha1.ProxyLease) {
		l.Spec.Selector, l.Spec.PoolRef = nil, &v1alpha1.LocalRef{Name: "pool"}
		l.Spec.TTLSeconds = 3600
	}
	start := time.Now()
	f.lease("forgotten", inPool)
	f.lease("renewed", inPool)
	held := c.acquire(201, `{"pool":"pool","ttlSeconds":3600}`)
	if left := time.Until(held.ExpiresAt); left > 10*time.Second {
		t.Fatalf("the HTTP lease was granted for %v", left)
	}
	bound := f.awaitPhase("forgotten", v1alpha1.LeaseBound)
	if bound.Status.EffectiveTTLSeconds != 10 {
		t.Fatalf("effective TTL %d", bound.Status.EffectiveTTLSeconds)
	}
	f.awaitPhase("renewed", v1alpha1.LeaseBound)
	if leased, pending, known := c.allocator.PoolCounts(f.ns, "pool"); leased != 3 || pending != 0 || !known {
		t.Fatalf("the pool carries %d leases, %d wait", leased, pending)
	}
	// The value of renewTime is that of a clock that is an hour behind; only the change counts (L16).
	for time.Since(start) < 6*time.Second {
		tick(t, 100*time.Millisecond)
	}
	l := f.get("renewed")
	l.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(-time.Hour)))
	if err := f.Client.Update(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	status, body := c.call(http.MethodPost, "/v1/leases/"+held.LeaseID+"/renew", "")
	if status != 200 || !decode[httpLease](t, body).ExpiresAt.After(held.ExpiresAt) {
		t.Fatalf("renew: %d %s", status, body)
	}
	expired := f.awaitPhase("forgotten", v1alpha1.LeaseExpired)
	if early := expired.Status.FinishTime.Sub(bound.Status.BoundTime.Time); early < 10*time.Second {
		t.Fatalf("expired after %v", early)
	}
	if got := f.get("renewed"); got.Status.Phase != v1alpha1.LeaseBound {
		t.Fatalf("a renewed lease is %s", got.Status.Phase)
	}
	if status, body := c.call(http.MethodGet, "/v1/leases/"+held.LeaseID, ""); status != 200 {
		t.Fatalf("a renewed HTTP lease: %d %s", status, body)
	}
	// Without a change it ends, too.
	f.awaitPhase("renewed", v1alpha1.LeaseExpired)
	f.awaitPhase(held.name(), v1alpha1.LeaseExpired)
	p := c.refused(410, wire.CodeLeaseEnded, http.MethodPost, "/v1/leases/"+held.LeaseID+"/renew", "")
	if p.Reason != v1alpha1.ReasonExpired {
		t.Fatalf("reason %q", p.Reason)
	}
}

func TestHTTPGrantIsOneWrite(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	c := f.start()
	c.writes.take()
	for range 5 {
		c.acquire(201, `{"target":"x.example"}`)
	}
	if got := c.writes.take(); len(got) != 1 || got["POST proxyleases"] != 5 {
		t.Fatalf("writes of five grants: %v", got)
	}
	lease := c.acquire(201, `{}`)
	c.writes.take()
	for range 2 {
		if status, body := c.call(http.MethodPost, "/v1/leases/"+lease.LeaseID+"/renew", ""); status != 200 {
			t.Fatalf("renew: %d %s", status, body)
		}
	}
	if got := c.writes.take(); len(got) != 0 {
		t.Fatalf("renewals of a fresh lease wrote %v", got)
	}
	c.call(http.MethodDelete, "/v1/leases/"+lease.LeaseID, "")
	if got := c.writes.take(); len(got) != 1 || got["DELETE proxyleases"] != 1 {
		t.Fatalf("writes of a release: %v", got)
	}
}

func TestCRGrantIsOneWrite(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	c := f.start()
	c.writes.take()
	f.lease("l")
	f.awaitPhase("l", v1alpha1.LeaseBound)
	if got := c.writes.take(); len(got) != 1 || got["PATCH proxyleases"] != 1 {
		t.Fatalf("writes: %v", got)
	}
}

func TestL10_ImpossibleLeaseBlocksNobody(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	f.start()
	f.lease("moon", func(l *v1alpha1.ProxyLease) {
		l.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"geo": "moon"}}
	})
	f.lease("invalid", func(l *v1alpha1.ProxyLease) {
		l.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "geo", Operator: "Sideways"}}}
	})
	f.lease("possible")
	f.awaitPhase("possible", v1alpha1.LeaseBound)
	if l := f.awaitPhase("invalid", v1alpha1.LeaseFailed); boundReason(l) != v1alpha1.ReasonInvalidSelector {
		t.Fatalf("reason %s", boundReason(l))
	}
	if l := f.awaitPhase("moon", v1alpha1.LeasePending); boundReason(l) != v1alpha1.ReasonNoProxy {
		t.Fatalf("reason %s", boundReason(l))
	}
}

func TestL14_WaitSeconds(t *testing.T) {
	f := newFleet(t)
	f.start()
	waits := func(seconds int32) func(*v1alpha1.ProxyLease) {
		return func(l *v1alpha1.ProxyLease) { l.Spec.WaitSeconds = &seconds }
	}
	f.lease("now", waits(0))
	f.lease("soon", waits(2))
	f.lease("patient", waits(3600))
	if l := f.awaitPhase("now", v1alpha1.LeaseFailed); boundReason(l) != v1alpha1.ReasonNoProxy {
		t.Fatalf("reason %s", boundReason(l))
	}
	if l := f.awaitPhase("soon", v1alpha1.LeaseFailed); l.Status.FinishTime.Sub(l.CreationTimestamp.Time) < 2*time.Second {
		t.Fatalf("failed after %v", l.Status.FinishTime.Sub(l.CreationTimestamp.Time))
	}
	f.proxy("a")
	f.awaitPhase("patient", v1alpha1.LeaseBound)
}

func TestL23_PinByName(t *testing.T) {
	f := newFleet(t)
	f.proxy("a", capacity(1))
	f.proxy("b")
	f.start()
	pin := func(name string) func(*v1alpha1.ProxyLease) {
		return func(l *v1alpha1.ProxyLease) { l.Spec.Selector, l.Spec.ProxyName = nil, name }
	}
	f.lease("first", pin("a"))
	if l := f.awaitPhase("first", v1alpha1.LeaseBound); l.Status.ProxyRef.Name != "a" {
		t.Fatalf("bound to %s", l.Status.ProxyRef.Name)
	}
	f.lease("second", pin("a"))
	if l := f.awaitPhase("second", v1alpha1.LeasePending); boundReason(l) != v1alpha1.ReasonPinnedBusy {
		t.Fatalf("reason %s", boundReason(l))
	}
}

func TestL22_AndRevocations(t *testing.T) {
	f := newFleet(t)
	flapping, replaced, deleted := f.proxy("flapping"), f.proxy("replaced"), f.proxy("deleted")
	draining := f.proxy("draining")
	f.start()
	on := func(proxy string, change ...func(*v1alpha1.ProxyLease)) *v1alpha1.ProxyLease {
		change = append(change, func(l *v1alpha1.ProxyLease) { l.Spec.Selector, l.Spec.ProxyName = nil, proxy })
		name := fmt.Sprintf("%s-%d", proxy, len(change))
		f.lease(name, change...)
		return f.awaitPhase(name, v1alpha1.LeaseBound)
	}
	keeps := on("flapping")
	revokes := on("flapping", func(l *v1alpha1.ProxyLease) { l.Spec.OnProxyFailure = v1alpha1.OnFailureRevoke })
	onReplaced, onDeleted, onDraining := on("replaced"), on("deleted"), on("draining")

	f.setHealthy(flapping, metav1.ConditionFalse)
	if l := f.awaitPhase(revokes.Name, v1alpha1.LeaseRevoked); boundReason(l) != v1alpha1.ReasonProxyUnhealthy {
		t.Fatalf("reason %s", boundReason(l))
	}
	eventually(t, "the other lease says that its proxy is not ready, and lives", func() string {
		l := f.get(keeps.Name)
		if l.Status.Phase != v1alpha1.LeaseBound || !meta.IsStatusConditionFalse(l.Status.Conditions, v1alpha1.ConditionProxyReady) {
			return fmt.Sprintf("%+v", l.Status)
		}
		return ""
	})
	f.ready(replaced, "another-instance")
	if l := f.awaitPhase(onReplaced.Name, v1alpha1.LeaseRevoked); boundReason(l) != v1alpha1.ReasonProxyReplaced {
		t.Fatalf("reason %s", boundReason(l))
	}
	if err := f.Client.Delete(t.Context(), deleted); err != nil {
		t.Fatal(err)
	}
	if l := f.awaitPhase(onDeleted.Name, v1alpha1.LeaseRevoked); boundReason(l) != v1alpha1.ReasonProxyDeleted {
		t.Fatalf("reason %s", boundReason(l))
	}
	px := f.getProxy(draining.Name)
	px.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: "test", DeadlineTime: new(metav1.NewTime(time.Now().Add(10 * time.Second)))}}
	if err := f.Client.Update(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lease says that its proxy drains", func() string {
		if l := f.get(onDraining.Name); l.Status.Phase != v1alpha1.LeaseBound || !meta.IsStatusConditionTrue(l.Status.Conditions, v1alpha1.ConditionDraining) {
			return fmt.Sprintf("%+v", l.Status)
		}
		return ""
	})
	if l := f.awaitPhase(onDraining.Name, v1alpha1.LeaseRevoked); boundReason(l) != v1alpha1.ReasonDrainDeadline {
		t.Fatalf("reason %s", boundReason(l))
	}
}

func TestFinishedLeasesAreDeleted(t *testing.T) {
	f := newFleet(t)
	f.start()
	f.lease("short", func(l *v1alpha1.ProxyLease) {
		l.Spec.WaitSeconds, l.Spec.TTLSecondsAfterFinished = ptr.To[int32](0), ptr.To[int32](1)
	})
	eventually(t, "the lease is deleted", func() string {
		if f.get("short") != nil {
			return "it is there"
		}
		return ""
	})
}

func TestReportsOfSpecCountOnce(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	c := f.start()
	f.lease("l")
	l := f.awaitPhase("l", v1alpha1.LeaseBound)
	l.Spec.Reports = []v1alpha1.LeaseReport{{Target: "x.example", Result: v1alpha1.ReportRateLimited, Count: 3}}
	if err := f.Client.Update(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	observed := func() string {
		l := f.get("l")
		if len(l.Status.ObservedReports) != 1 || l.Status.ObservedReports[0].Count != 3 {
			return fmt.Sprintf("%+v", l.Status.ObservedReports)
		}
		return ""
	}
	eventually(t, "the report is taken in", observed)
	before := f.getProxy("a").Status.Cooldowns
	if len(before) != 1 || before[0].Hits != 1 {
		t.Fatalf("cooldowns %+v", before)
	}
	c.stop()
	second := f.start()
	second.writes.take()
	second.refused(503, wire.CodeNoProxy, http.MethodPost, "/v1/leases", `{"target":"x.example"}`)
	// Another lease is handled after the one that was there, so nothing is still to come.
	f.lease("other")
	f.awaitPhase("other", v1alpha1.LeaseBound)
	if after := f.getProxy("a").Status.Cooldowns; len(after) != 1 || after[0].Hits != 1 || !after[0].UntilTime.Equal(before[0].UntilTime) {
		t.Fatalf("after the restart: %+v, before: %+v", after, before)
	}
}

// tick waits for a moment of real time: the API server's clock cannot be faked.
func tick(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}
