package ledger

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

const ns = "team"

func newLedger(proxies ...*v1alpha1.Proxy) *Ledger {
	l := New(nil)
	l.Open()
	for _, px := range proxies {
		l.ObserveProxy(px)
	}
	l.Start(1, "")
	return l
}

func request(name string, change ...func(*Request)) Request {
	r := Request{
		Lease: types.NamespacedName{Namespace: ns, Name: name}, Holder: "h", Selector: labels.Everything(), Mode: v1alpha1.LeaseShared,
	}
	for _, c := range change {
		c(&r)
	}
	return r
}

func targets(names ...string) func(*Request) { return func(r *Request) { r.Targets = names } }
func exclusive(r *Request)                   { r.Mode = v1alpha1.LeaseExclusive }
func inEU(r *Request)                        { r.Selector = labels.SelectorFromSet(labels.Set{"geo": "eu"}) }
func pinned(name string) func(*Request) {
	return func(r *Request) { r.ProxyName, r.Selector = name, nil }
}

func mustReserve(t testing.TB, l *Ledger, r Request) Reservation {
	t.Helper()
	res, err := l.Reserve(r, fixture.Start)
	if err != nil {
		t.Fatalf("reserve %s: %v", r.Lease, err)
	}
	return res
}

// Try decides as Reserve does, and says nothing about why.
func TestTryIsReserveThatGivesNoReason(t *testing.T) {
	l := newLedger(fixture.Proxy(ns, "a", fixture.Capacity(1)))
	res, err := l.Try(request("1"), fixture.Start)
	if err != nil || res.Binding.ProxyName != "a" || res.Binding.Seq != 1 {
		t.Fatalf("tried: %+v, %v", res, err)
	}
	if _, err := l.Try(request("2"), fixture.Start); !errors.Is(err, ErrNoProxy) {
		t.Fatalf("tried a full proxy: %v", err)
	}
	wantReason(t, l, request("2"), v1alpha1.ReasonAtCapacity)
	if taken, ok := errors.AsType[*TakenError](func() error { _, err := l.Try(request("1"), fixture.Start); return err }()); !ok || taken.Lease.Written {
		t.Fatalf("tried again: %v", taken)
	}
	l.Cancel(res)
	if _, err := l.Try(request("2"), fixture.Start); err != nil {
		t.Fatalf("tried a proxy that is free again: %v", err)
	}
}

// wantReason fails the test unless the request is refused for that reason, and gives the end of the cooldown in the way.
func wantReason(t testing.TB, l *Ledger, r Request, reason string) (earliest time.Time) {
	t.Helper()
	_, err := l.Reserve(r, fixture.Start)
	var none *NoProxyError
	if !errors.As(err, &none) || none.Reason != reason {
		t.Fatalf("reserve %s: %v, want reason %s", r.Lease, err, reason)
	}
	return none.Earliest
}

// granted is the lease object of a reservation, as the answer to its write.
func granted(res Reservation, rv string) *v1alpha1.ProxyLease {
	return fixture.Lease(ns, res.Lease.Name, func(l *v1alpha1.ProxyLease) {
		l.ResourceVersion = rv
		l.Spec.Mode = res.Mode
		l.Spec.Grant = &v1alpha1.LeaseGrant{
			ProxyName: res.Binding.ProxyName, ProxyUID: res.Binding.ProxyUID, InstanceID: res.Binding.InstanceID,
			Epoch: res.Binding.Epoch, Seq: res.Binding.Seq, ExpireTime: metav1.NewMicroTime(fixture.Start),
		}
	})
}

func TestL1_NSlotsGiveExactlyNReservations(t *testing.T) {
	l := newLedger(fixture.Proxy(ns, "a", fixture.Capacity(3)), fixture.Proxy(ns, "b", fixture.Capacity(4)))
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := 0
	for i := range 64 {
		wg.Go(func() {
			if _, err := l.Reserve(request(fmt.Sprint(i)), fixture.Start); err == nil {
				mu.Lock()
				got++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if got != 7 || l.Load(ns+"-a") != 3 || l.Load(ns+"-b") != 4 {
		t.Fatalf("%d reservations, loads %d and %d", got, l.Load(ns+"-a"), l.Load(ns+"-b"))
	}
	wantReason(t, l, request("more"), v1alpha1.ReasonAtCapacity)
}

func TestL2_ExclusiveNeverSharesAProxy(t *testing.T) {
	var proxies []*v1alpha1.Proxy
	for i := range 8 {
		proxies = append(proxies, fixture.Proxy(ns, fmt.Sprint("p", i)))
	}
	l := newLedger(proxies...)
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]int{}
	for i := range 64 {
		wg.Go(func() {
			if res, err := l.Reserve(request(fmt.Sprint(i), exclusive), fixture.Start); err == nil {
				mu.Lock()
				seen[res.Binding.ProxyName]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(seen) != 8 {
		t.Fatalf("%d proxies granted", len(seen))
	}
	for name, n := range seen {
		if n != 1 {
			t.Fatalf("proxy %s granted %d times", name, n)
		}
	}
	wantReason(t, l, request("shared"), v1alpha1.ReasonAtCapacity)
}

func TestExclusiveNeedsAnIdleProxy(t *testing.T) {
	l := newLedger(fixture.Proxy(ns, "a"))
	mustReserve(t, l, request("shared"))
	wantReason(t, l, request("x", exclusive), v1alpha1.ReasonAtCapacity)
}

func TestProxyThatNamesAnUnknownExclusiveLeaseIsNotGiven(t *testing.T) {
	px := fixture.Proxy(ns, "a", func(px *v1alpha1.Proxy) { px.Status.Exclusive = &v1alpha1.Exclusive{LeaseUID: "stranger"} })
	l := newLedger(px)
	wantReason(t, l, request("x", exclusive), v1alpha1.ReasonAtCapacity)
	if got := l.StaleExclusive(px); got != "stranger" {
		t.Fatalf("stale %q", got)
	}
}

func TestL3_LeaseNeverHasTwoSlots(t *testing.T) {
	l := newLedger(fixture.Proxy(ns, "a"), fixture.Proxy(ns, "b"))
	mustReserve(t, l, request("x"))
	_, err := l.Reserve(request("x"), fixture.Start)
	var taken *TakenError
	if !errors.As(err, &taken) || l.Load(ns+"-a")+l.Load(ns+"-b") != 1 {
		t.Fatalf("second reservation: %v", err)
	}
}

func TestL5_DeletedWhileReservedFreesTheSlotAtOnce(t *testing.T) {
	l := newLedger(fixture.Proxy(ns, "a", fixture.Capacity(1)))
	lease := fixture.Lease(ns, "x")
	res := mustReserve(t, l, request("x", func(r *Request) { r.UID = lease.UID }))
	l.DeleteLease(lease)
	mustReserve(t, l, request("y"))
	if l.Commit(granted(res, "9")) {
		t.Fatal("a deleted lease was committed")
	}
	l.Cancel(res)
	if l.Load(ns+"-a") != 1 {
		t.Fatalf("load %d", l.Load(ns+"-a"))
	}
}

func TestL7_LastKnownStateOfALostDeletionFreesTheSlot(t *testing.T) {
	l := newLedger(fixture.Proxy(ns, "a", fixture.Capacity(1)))
	res := mustReserve(t, l, request("x"))
	l.Commit(granted(res, "5"))
	// After a re-list the informer only has an older state of what was deleted.
	l.DeleteLease(granted(res, "3"))
	mustReserve(t, l, request("y"))
}

func TestDeletionOfANamesakeFreesNothing(t *testing.T) {
	l := newLedger(fixture.Proxy(ns, "a", fixture.Capacity(1)))
	res := mustReserve(t, l, request("x"))
	l.Commit(granted(res, "5"))
	l.DeleteLease(fixture.Lease(ns, "x", func(o *v1alpha1.ProxyLease) { o.UID = "other" }))
	wantReason(t, l, request("y"), v1alpha1.ReasonAtCapacity)
}

func TestL8_LateEventsNeverRollBack(t *testing.T) {
	key := types.NamespacedName{Namespace: ns, Name: "x"}
	t.Run("bound event after release", func(t *testing.T) {
		l := newLedger(fixture.Proxy(ns, "a", fixture.Capacity(1)))
		lease := granted(mustReserve(t, l, request("x")), "5")
		l.Commit(lease)
		l.Released(key, lease.UID, fixture.Start)
		l.ObserveLease(lease)
		if l.Load(ns+"-a") != 0 {
			t.Fatal("the released lease came back")
		}
		l.DeleteLease(lease)
		if len(l.tombs) != 0 {
			t.Fatal("the tombstone stayed after the event")
		}
	})
	t.Run("bound event after expiry", func(t *testing.T) {
		l := newLedger(fixture.Proxy(ns, "a", fixture.Capacity(1)))
		lease := granted(mustReserve(t, l, request("x")), "5")
		l.Commit(lease)
		ended := lease.DeepCopy()
		ended.ResourceVersion = "9"
		ended.Status.Phase = v1alpha1.LeaseExpired
		l.Finish(ended)
		l.ObserveLease(lease)
		if l.Load(ns+"-a") != 0 {
			t.Fatal("the expired lease came back")
		}
	})
	t.Run("object older than the list", func(t *testing.T) {
		l := newLedger(fixture.Proxy(ns, "a", fixture.Capacity(1)))
		old := granted(mustReserve(t, l, request("x")), "7")
		l = newLedger(fixture.Proxy(ns, "a", fixture.Capacity(1)))
		l.Start(2, "20")
		l.ObserveLease(old)
		if l.Load(ns+"-a") != 0 {
			t.Fatal("a lease that is gone came back")
		}
	})
	t.Run("answer after the deletion", func(t *testing.T) {
		l := newLedger(fixture.Proxy(ns, "a", fixture.Capacity(1)))
		lease := granted(mustReserve(t, l, request("x")), "5")
		l.Commit(lease)
		l.Released(key, lease.UID, fixture.Start)
		l.DeleteLease(lease)
		late := lease.DeepCopy()
		late.ResourceVersion = "6"
		l.Finish(late)
		if l.Load(ns+"-a") != 0 {
			t.Fatal("the deleted lease came back")
		}
		// Nor does it take the place of a namesake that is being granted.
		mustReserve(t, l, request("x"))
		l.Finish(late)
		if got, ok := l.Lookup(key); !ok || got.Written {
			t.Fatalf("the namesake's reservation became %+v", got)
		}
	})
	t.Run("answer after the proxy's deletion", func(t *testing.T) {
		px := fixture.Proxy(ns, "a")
		l := newLedger(px)
		l.AnswerProxy(px)
		l.DeleteProxy(px)
		l.AnswerProxy(px)
		if l.Proxy(types.NamespacedName{Namespace: ns, Name: "a"}, "") != nil {
			t.Fatal("the deleted proxy came back")
		}
	})
	t.Run("older proxy", func(t *testing.T) {
		l := newLedger(fixture.Proxy(ns, "a", func(px *v1alpha1.Proxy) {
			px.ResourceVersion = "10"
			px.Spec.Leasing = v1alpha1.LeasingDisabled
		}))
		l.ObserveProxy(fixture.Proxy(ns, "a"))
		wantReason(t, l, request("x"), v1alpha1.ReasonNoProxy)
	})
}

func TestL9_WhatOpensAProxy(t *testing.T) {
	full := func() *Ledger {
		l := newLedger(fixture.Proxy(ns, "a", fixture.Capacity(1)))
		mustReserve(t, l, request("first"))
		return l
	}
	newer := func(change ...func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
		px := fixture.Proxy(ns, "a", change...)
		px.ResourceVersion = "2"
		return px
	}
	for name, c := range map[string]struct {
		ledger *Ledger
		event  func(*Ledger) bool
	}{
		"capacity raised": {full(), func(l *Ledger) bool { return l.ObserveProxy(newer(fixture.Capacity(2))) }},
		"uncordoned": {newLedger(fixture.Proxy(ns, "a", func(px *v1alpha1.Proxy) { px.Spec.Leasing = v1alpha1.LeasingDisabled })),
			func(l *Ledger) bool { return l.ObserveProxy(newer()) }},
		"ready": {newLedger(fixture.Proxy(ns, "a", fixture.Unready)), func(l *Ledger) bool { return l.ObserveProxy(newer()) }},
		"drain withdrawn": {newLedger(fixture.Proxy(ns, "a", func(px *v1alpha1.Proxy) {
			px.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: "pool"}}
		})), func(l *Ledger) bool { return l.ObserveProxy(newer()) }},
		"created": {newLedger(), func(l *Ledger) bool { return l.ObserveProxy(newer()) }},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := c.ledger.Reserve(request("x"), fixture.Start); err == nil {
				t.Fatal("granted before the event")
			}
			if !c.event(c.ledger) {
				t.Fatal("the event does not wake")
			}
			mustReserve(t, c.ledger, request("x"))
		})
	}
}

func TestL19_LoweredCapacityEvictsNobody(t *testing.T) {
	l := newLedger(fixture.Proxy(ns, "a", fixture.Capacity(2)))
	said := 0
	l.OnOvercommit(func(types.NamespacedName) { said++ })
	x, y := mustReserve(t, l, request("x")), mustReserve(t, l, request("y"))
	lower := fixture.Proxy(ns, "a", fixture.Capacity(1))
	lower.ResourceVersion = "2"
	l.ObserveProxy(lower)
	if l.Load(ns+"-a") != 2 {
		t.Fatalf("load %d", l.Load(ns+"-a"))
	}
	key := types.NamespacedName{Namespace: ns, Name: "a"}
	if !l.Overcommitted(key, "team-a") || l.Overcommitted(key, "another") || l.CountOvercommitted() != 1 || said != 1 {
		t.Fatalf("overcommitted %v, said %d times", l.Overcommitted(key, "team-a"), said)
	}
	wantReason(t, l, request("z"), v1alpha1.ReasonAtCapacity)
	l.Cancel(x)
	if l.Overcommitted(key, "team-a") || said != 2 {
		t.Fatalf("still overcommitted, said %d times", said)
	}
	wantReason(t, l, request("z"), v1alpha1.ReasonAtCapacity)
	l.Cancel(y)
	mustReserve(t, l, request("z"))
	if said != 2 {
		t.Fatalf("said %d times", said)
	}
}

func TestL23_PinIsHonouredIfFree(t *testing.T) {
	l := newLedger(fixture.Proxy(ns, "a", fixture.Capacity(1)), fixture.Proxy(ns, "b"))
	if res := mustReserve(t, l, request("x", pinned("a"))); res.Binding.ProxyName != "a" {
		t.Fatalf("got %s", res.Binding.ProxyName)
	}
	wantReason(t, l, request("y", pinned("a")), v1alpha1.ReasonPinnedBusy)
	wantReason(t, l, request("y", pinned("nowhere")), v1alpha1.ReasonProxyNotFound)
}

func TestEligibility(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.Proxy)
		reason string
	}{
		"as it should be":     {func(*v1alpha1.Proxy) {}, ""},
		"deleting":            {func(px *v1alpha1.Proxy) { px.DeletionTimestamp = new(metav1.Now()) }, v1alpha1.ReasonTerminating},
		"cordoned":            {func(px *v1alpha1.Proxy) { px.Spec.Leasing = v1alpha1.LeasingDisabled }, ReasonLeasingDisabled},
		"draining":            {func(px *v1alpha1.Proxy) { px.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: "x"}} }, v1alpha1.ReasonDraining},
		"no address":          {func(px *v1alpha1.Proxy) { px.Status.Instance.Addresses = nil }, v1alpha1.ReasonNotProvisioned},
		"another generation":  {func(px *v1alpha1.Proxy) { px.Generation = 2 }, ReasonNotObserved},
		"another incarnation": {func(px *v1alpha1.Proxy) { px.Status.Instance.ID = "new" }, v1alpha1.ReasonInstanceChanged},
		"never probed":        {func(px *v1alpha1.Proxy) { px.Status.Health = nil }, v1alpha1.ReasonInstanceChanged},
		"unhealthy":           {fixture.Unready, v1alpha1.ReasonNotHealthy},
		"open to strangers":   {func(px *v1alpha1.Proxy) { px.Status.Conditions[2].Status = metav1.ConditionUnknown }, v1alpha1.ReasonOpen},
		"external, open": {func(px *v1alpha1.Proxy) {
			px.Spec.Mode = v1alpha1.ModeExternal
			px.Status.Conditions[2].Status = metav1.ConditionFalse
		}, ""},
		"not ready": {func(px *v1alpha1.Proxy) { px.Status.Conditions[0].Status = metav1.ConditionFalse }, ReasonNotReady},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Closed(fixture.Proxy(ns, "a", c.change)); got != c.reason {
				t.Fatalf("closed for %q, want %q", got, c.reason)
			}
		})
	}
}

func TestVerdictInMemoryComesFirst(t *testing.T) {
	sick := map[types.UID]bool{ns + "-a": true}
	l := New(func(uid types.UID, _ string) (bool, bool) { return !sick[uid], true })
	l.Open()
	l.ObserveProxy(fixture.Proxy(ns, "a"))
	l.ObserveProxy(fixture.Proxy(ns, "b"))
	l.Start(1, "")
	for i := range 4 {
		if res := mustReserve(t, l, request(fmt.Sprint(i))); res.Binding.ProxyName != "b" {
			t.Fatal("a proxy was given whose newest verdict is bad")
		}
	}
}

func TestLeastLoadedThenLeastRecentlyUsedForTheTarget(t *testing.T) {
	l := newLedger(fixture.Proxy(ns, "a"), fixture.Proxy(ns, "b"), fixture.Proxy(ns, "c"))
	order := ""
	var held []Reservation
	for i, target := range []string{"x", "y", "x"} {
		res := mustReserve(t, l, request(fmt.Sprint(i), targets(target)))
		order += res.Binding.ProxyName
		held = append(held, res)
	}
	if order != "abc" {
		t.Fatalf("order %s", order)
	}
	for _, res := range held {
		l.Cancel(res)
	}
	// All are idle again. a and c have been used for x, b only for y.
	if res := mustReserve(t, l, request("again", targets("x"))); res.Binding.ProxyName != "b" {
		t.Fatalf("got %s, want b, which was never used for the target", res.Binding.ProxyName)
	}
}

func TestSpreadIsEven(t *testing.T) {
	var proxies []*v1alpha1.Proxy
	for i := range 100 {
		proxies = append(proxies, fixture.Proxy(ns, fmt.Sprint("p", i), fixture.Labels(map[string]string{"class": fmt.Sprint(i % 7)})))
	}
	l := newLedger(proxies...)
	for i := range 1050 {
		mustReserve(t, l, request(fmt.Sprint(i)))
	}
	low, high := 1<<30, 0
	for _, px := range proxies {
		low, high = min(low, l.Load(px.UID)), max(high, l.Load(px.UID))
	}
	if high-low > 1 {
		t.Fatalf("loads from %d to %d", low, high)
	}
}

func TestSelectorExclusionAndCooldown(t *testing.T) {
	cooling := fixture.Proxy(ns, "cooling", func(px *v1alpha1.Proxy) {
		px.Status.Cooldowns = []v1alpha1.Cooldown{{Target: "x.example", UntilTime: &metav1.Time{Time: fixture.Start.Add(60e9)}, InstanceID: "i-cooling"}}
	})
	l := newLedger(fixture.Proxy(ns, "us", fixture.Labels(map[string]string{"geo": "us"})), cooling)
	if earliest := wantReason(t, l, request("1", inEU, targets("x.example")), v1alpha1.ReasonCooling); !earliest.Equal(fixture.Start.Add(60e9)) {
		t.Fatalf("earliest %v", earliest)
	}
	mustReserve(t, l, request("2", inEU, targets("y.example")))
	if res := mustReserve(t, l, request("3", targets("x.example"))); res.Binding.ProxyName != "us" {
		t.Fatalf("got %s", res.Binding.ProxyName)
	}
	wantReason(t, l, request("4", inEU, func(r *Request) { r.Excluded = []string{"cooling"} }), v1alpha1.ReasonNoProxy)
	if _, err := l.Reserve(request("5", inEU, targets("x.example")), fixture.Start.Add(60e9)); err != nil {
		t.Fatalf("after the cooldown: %v", err)
	}
}

func TestC3_ProxiesOfOneExitShareCooldowns(t *testing.T) {
	same := func(px *v1alpha1.Proxy) { px.Status.EgressIdentity = "ip/198.51.100.7" }
	reported := fixture.Proxy(ns, "a", same, func(px *v1alpha1.Proxy) {
		px.Status.Cooldowns = []v1alpha1.Cooldown{{Target: "x", UntilTime: &metav1.Time{Time: fixture.Start.Add(60e9)}, InstanceID: "i-a"}}
	})
	l := newLedger(reported, fixture.Proxy(ns, "b", same))
	wantReason(t, l, request("1", targets("x")), v1alpha1.ReasonCooling)
	l.ObserveProxy(fixture.Proxy(ns, "c"))
	if res := mustReserve(t, l, request("2", targets("x"))); res.Binding.ProxyName != "c" {
		t.Fatalf("got %s, want the one with an exit of its own", res.Binding.ProxyName)
	}
	if got := l.Sibling(reported); got == nil || got.Name != "b" {
		t.Fatalf("sibling %v", got)
	}
}

func TestC4_NewInstanceIsNotCooling(t *testing.T) {
	l := newLedger(fixture.Proxy(ns, "a", func(px *v1alpha1.Proxy) {
		px.Status.Cooldowns = []v1alpha1.Cooldown{{Target: "x", UntilTime: &metav1.Time{Time: fixture.Start.Add(60e9)}, InstanceID: "the-old-one"}}
	}))
	mustReserve(t, l, request("1", targets("x")))
}

func TestRecreatedProxyStartsWithoutLoad(t *testing.T) {
	l := newLedger(fixture.Proxy(ns, "a", fixture.Capacity(1)))
	res := mustReserve(t, l, request("x"))
	l.Commit(granted(res, "5"))
	again := fixture.Proxy(ns, "a", fixture.Capacity(1), func(px *v1alpha1.Proxy) { px.UID, px.ResourceVersion = "new", "8" })
	l.ObserveProxy(again)
	if res := mustReserve(t, l, request("y")); res.Binding.ProxyUID != "new" {
		t.Fatalf("got %v", res.Binding)
	}
	if got := l.LeasesNamed(types.NamespacedName{Namespace: ns, Name: "a"}); len(got) != 2 {
		t.Fatalf("leases of the proxies of that name: %v", got)
	}
}

func TestForeignGrantUnderOurNameWins(t *testing.T) {
	l := newLedger(fixture.Proxy(ns, "a"), fixture.Proxy(ns, "b"))
	res := mustReserve(t, l, request("x"))
	foreign := granted(res, "4")
	foreign.Spec.Grant.ProxyName, foreign.Spec.Grant.ProxyUID, foreign.Spec.Grant.Epoch = "b", ns+"-b", 0
	l.ObserveLease(foreign)
	l.Cancel(res)
	if l.Load(ns+"-a") != 0 || l.Load(ns+"-b") != 1 {
		t.Fatalf("loads %d and %d", l.Load(ns+"-a"), l.Load(ns+"-b"))
	}
}

func TestPoolLoad(t *testing.T) {
	inPool := fixture.Labels(map[string]string{v1alpha1.LabelPool: "demo"})
	l := newLedger(fixture.Proxy(ns, "a", inPool), fixture.Proxy(ns, "b", inPool), fixture.Proxy(ns, "c"))
	for i := range 6 {
		mustReserve(t, l, request(strconv.Itoa(i)))
	}
	if got := l.PoolLoad(ns, "demo"); got != 4 {
		t.Fatalf("pool carries %d", got)
	}
	if got := record.Pool(fixture.Proxy(ns, "c")); got != "" {
		t.Fatalf("pool %q", got)
	}
}

// benchLedger is a ledger with n proxies in 50 label classes, a few leases on each.
func benchLedger(b *testing.B, n int) *Ledger {
	l := New(nil)
	l.Open()
	for i := range n {
		l.ObserveProxy(fixture.Proxy(ns, fmt.Sprint("p", i), fixture.Labels(map[string]string{"class": fmt.Sprint(i % 50)})))
	}
	l.Start(1, "")
	for i := range 4 * n {
		mustReserve(b, l, request(fmt.Sprint("fill", i)))
	}
	return l
}

func BenchmarkReserve(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			l := benchLedger(b, n)
			r := request("bench", targets("x.example"))
			for b.Loop() {
				res, err := l.Reserve(r, fixture.Start)
				if err != nil {
					b.Fatal(err)
				}
				l.Cancel(res)
			}
		})
	}
}

// Deletions that the watch shows before they are acknowledged leave tombstones. They cost a release next to nothing, and do not
// stay for good.
func TestManyTombstonesAreLookedThroughSeldom(t *testing.T) {
	l := New(nil)
	l.Open()
	now := time.Now()
	release := func(n int) {
		l.Released(types.NamespacedName{Namespace: "team", Name: "x"}, types.UID(fmt.Sprint(n)), now)
	}
	sweeps, last := 0, l.sweepAt
	for n := range 100 * tombstoneSweep {
		if release(n); l.sweepAt != last {
			sweeps, last = sweeps+1, l.sweepAt
		}
	}
	if sweeps > 10 {
		t.Errorf("they were looked through %d times", sweeps)
	}
	now = now.Add(tombstoneTTL + time.Second)
	for n := range 200 * tombstoneSweep {
		release(-1 - n)
	}
	if _, stays := l.tombs["0"]; stays || len(l.tombs) > 200*tombstoneSweep {
		t.Errorf("%d are left", len(l.tombs))
	}
}
