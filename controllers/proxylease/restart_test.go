package proxylease

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

func TestC1_CooldownAndLeaseSurviveARestart(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	f.proxy("b")
	c := f.start()
	lease := c.acquire(201, `{"target":"x.example","ttlSeconds":900}`)
	c.writes.take()
	if status, body := c.call(http.MethodPost, "/v1/leases/"+lease.LeaseID+"/report", `{"result":"rate_limited","target":"x.example"}`); status != 204 {
		t.Fatalf("report: %d %s", status, body)
	}
	// Stored when the answer came.
	cooldowns := f.getProxy(lease.proxyName()).Status.Cooldowns
	if len(cooldowns) != 1 || cooldowns[0].Target != "x.example" || time.Until(cooldowns[0].UntilTime.Time) < 14*time.Minute {
		t.Fatalf("cooldowns %+v", cooldowns)
	}
	check := func(c *core) {
		t.Helper()
		for range 3 {
			next := c.acquire(201, `{"target":"x.example"}`)
			if next.Proxy.ID == lease.Proxy.ID {
				t.Fatal("the cooling proxy was leased for the target")
			}
			c.call(http.MethodDelete, "/v1/leases/"+next.LeaseID, "")
		}
		if _, body := c.call(http.MethodGet, "/v1/proxies?target=x.example", ""); len(decode[struct{ Proxies []any }](t, body).Proxies) != 1 {
			t.Fatalf("list for the target: %s", body)
		}
		elsewhere := map[string]bool{}
		for range 3 {
			elsewhere[c.acquire(201, `{"target":"other.example"}`).Proxy.ID] = true
		}
		if !elsewhere[lease.Proxy.ID] {
			t.Fatal("the cooling proxy is not leased for other targets")
		}
	}
	check(c)
	c.stop()
	second := f.start()
	check(second)
	status, body := second.call(http.MethodGet, "/v1/leases/"+lease.LeaseID, "")
	if got := decode[httpLease](t, body); status != 200 || got.Proxy.ID != lease.Proxy.ID || !got.ExpiresAt.Equal(lease.ExpiresAt) {
		t.Fatalf("after the restart: %d %s", status, body)
	}
	second.call(http.MethodDelete, "/v1/leases/"+lease.LeaseID, "")
	second.refused(410, wire.CodeLeaseEnded, http.MethodGet, "/v1/leases/"+lease.LeaseID, "")
}

func TestC3_OneReportCoolsTheWholeExit(t *testing.T) {
	f := newFleet(t)
	shared := func(s *v1alpha1.ProxyStatus) { s.EgressIdentity = "class:" + f.ns }
	f.setStatus(f.proxy("a"), shared)
	f.setStatus(f.proxy("b"), shared)
	c := f.start()
	lease := c.acquire(201, `{}`)
	c.call(http.MethodPost, "/v1/leases/"+lease.LeaseID+"/report", `{"result":"banned","target":"x.example"}`)
	p := c.refused(503, wire.CodeNoProxy, http.MethodPost, "/v1/leases", `{"target":"x.example"}`)
	if p.Reason != v1alpha1.ReasonCooling {
		t.Fatalf("reason %q", p.Reason)
	}
	f.proxy("own-exit")
	eventually(t, "a proxy with an exit of its own is leased", func() string {
		status, body := c.call(http.MethodPost, "/v1/leases", `{"target":"x.example"}`)
		if status != 201 {
			return string(body)
		}
		if got := decode[httpLease](t, body).proxyName(); got != "own-exit" {
			t.Fatalf("got %s", got)
		}
		return ""
	})
	// When the proxy that remembers it goes away, another one of the exit does.
	if err := f.Client.Delete(t.Context(), f.getProxy(lease.proxyName())); err != nil {
		t.Fatal(err)
	}
	other := map[string]string{"a": "b", "b": "a"}[lease.proxyName()]
	eventually(t, "the cooldown is carried over", func() string {
		if list := f.getProxy(other).Status.Cooldowns; len(list) != 1 || list[0].Target != "x.example" {
			return fmt.Sprintf("%+v", list)
		}
		return ""
	})
}

func TestC4_NewInstanceOrAddressIsNotCooling(t *testing.T) {
	f := newFleet(t)
	px := f.proxy("a")
	f.setStatus(px, func(s *v1alpha1.ProxyStatus) { s.Health.EgressIP, s.EgressIdentity = "198.51.100.1", "ip:198.51.100.1" })
	c := f.start()
	report := func() {
		t.Helper()
		lease := c.acquire(201, `{"target":"x.example"}`)
		c.call(http.MethodPost, "/v1/leases/"+lease.LeaseID+"/report", `{"result":"rate_limited","target":"x.example"}`)
		c.refused(503, wire.CodeNoProxy, http.MethodPost, "/v1/leases", `{"target":"x.example"}`)
	}
	leasable := func() string {
		if status, body := c.call(http.MethodPost, "/v1/leases", `{"target":"x.example"}`); status != 201 {
			return string(body)
		}
		return ""
	}
	report()
	f.setStatus(px, func(s *v1alpha1.ProxyStatus) { s.Health.EgressIP, s.EgressIdentity = "198.51.100.2", "ip:198.51.100.2" })
	eventually(t, "another exit address is leased", leasable)
	report()
	f.ready(px, "another-instance")
	eventually(t, "another instance is leased", leasable)
}

func TestC5_ReportsOfManyTargetsStayBounded(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	c := f.start()
	lease := c.acquire(201, `{}`)
	for i := range v1alpha1.MaxCooldowns + 16 {
		status, body := c.call(http.MethodPost, "/v1/leases/"+lease.LeaseID+"/report", fmt.Sprintf(`{"result":"rate_limited","target":"t%d.example"}`, i))
		if status != 204 {
			t.Fatalf("report %d: %d %s", i, status, body)
		}
	}
	if n := len(f.getProxy("a").Status.Cooldowns); n != v1alpha1.MaxCooldowns {
		t.Fatalf("%d cooldowns", n)
	}
}

func TestR1_RestartLosesAndDoublesNothing(t *testing.T) {
	f := newFleet(t)
	const proxies, slots = 10, 6
	for i := range proxies {
		f.proxy(fmt.Sprint("p", i), capacity(slots))
	}
	c := f.start()
	// 40 bound by HTTP, 10 by objects, and calls that are under way while the core stops.
	var granted []httpLease
	for range 40 {
		granted = append(granted, c.acquire(201, `{"ttlSeconds":900}`))
	}
	for i := range 10 {
		f.lease(fmt.Sprint("cr", i))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range 20 {
		wg.Go(func() {
			status, body := c.call(http.MethodPost, "/v1/leases", `{"ttlSeconds":900}`, keyHeader, fmt.Sprint("under-way-", i))
			if status == 200 || status == 201 {
				mu.Lock()
				granted = append(granted, decode[httpLease](t, body))
				mu.Unlock()
			}
		})
	}
	c.stop()
	wg.Wait()
	for i := range 4 {
		f.lease(fmt.Sprint("while-down", i))
	}
	second := f.start()
	for _, lease := range granted {
		status, body := second.call(http.MethodGet, "/v1/leases/"+lease.LeaseID, "")
		if status != 200 || decode[httpLease](t, body).Proxy.ID != lease.Proxy.ID {
			t.Fatalf("lost: %d %s", status, body)
		}
	}
	// Whoever was not answered repeats with its key and gets the one lease that was meant for it.
	for i := range 20 {
		eventually(t, "a repeated request is answered", func() string {
			status, body := second.call(http.MethodPost, "/v1/leases", `{"ttlSeconds":900}`, keyHeader, fmt.Sprint("under-way-", i))
			p := problem{}
			if status == 503 {
				p = decode[problem](t, body)
			}
			if status != 200 && status != 201 && p.Code != wire.CodeNoProxy {
				return string(body)
			}
			return ""
		})
	}
	eventually(t, "every slot is used and none twice", func() string {
		load, total := map[string]int{}, 0
		for _, l := range f.leases() {
			name := ""
			if l.Status.ProxyRef != nil {
				name = l.Status.ProxyRef.Name
			} else if l.Spec.Grant != nil {
				name = l.Spec.Grant.ProxyName
			} else {
				continue
			}
			load[name]++
			total++
		}
		for name, n := range load {
			if n > slots {
				t.Fatalf("%s carries %d leases", name, n)
			}
		}
		if total != proxies*slots {
			return fmt.Sprintf("%d of %d slots are used: %v", total, proxies*slots, load)
		}
		return ""
	})
	// Grants of the second core are told apart from those of the first. It may have made none so far.
	f.proxy("spare", capacity(40))
	eventually(t, "the second core grants", func() string {
		status, body := second.call(http.MethodPost, "/v1/leases", `{"ttlSeconds":900}`)
		if status != 201 {
			return string(body)
		}
		return ""
	})
	epochs := map[int64]bool{}
	for _, l := range f.leases() {
		if l.Spec.Grant != nil {
			epochs[l.Spec.Grant.Epoch] = true
		}
	}
	if len(epochs) != 2 {
		t.Fatalf("epochs %v", epochs)
	}
}

func TestR4_RenewedWhileTheCoreWasDownLives(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	c := f.start()
	short := func(l *v1alpha1.ProxyLease) { l.Spec.TTLSeconds = 10 }
	f.lease("renewed", short)
	f.lease("forgotten", short)
	f.awaitPhase("renewed", v1alpha1.LeaseBound)
	bound := f.awaitPhase("forgotten", v1alpha1.LeaseBound)
	byHTTP := c.acquire(201, `{"ttlSeconds":900}`)
	if l := f.get(byHTTP.name()); l.Status.Phase != "" {
		t.Fatalf("a fresh HTTP lease has a status: %+v", l.Status)
	}
	c.stop()
	for time.Since(bound.Status.BoundTime.Time) < 11*time.Second {
		tick(t, 2*time.Second)
		l := f.get("renewed")
		l.Spec.RenewTime = new(metav1.NowMicro())
		if err := f.Client.Update(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	restarted := time.Now()
	f.start()
	expired := f.awaitPhase("forgotten", v1alpha1.LeaseExpired)
	if early := expired.Status.FinishTime.Sub(restarted); early < 2*time.Second {
		t.Fatalf("expired %v after the restart, before the grace", early)
	}
	if l := f.get("renewed"); l.Status.Phase != v1alpha1.LeaseBound {
		t.Fatalf("the renewed lease is %s", l.Status.Phase)
	}
	// By now the HTTP lease is old enough to have a status of its own, which says what its grant said.
	l := f.awaitPhase(byHTTP.name(), v1alpha1.LeaseBound)
	if l.Status.ProxyRef.UID != l.Spec.Grant.ProxyUID || !l.Status.ExpireTime.Equal(&l.Spec.Grant.ExpireTime) || l.Status.EffectiveTTLSeconds != 900 {
		t.Fatalf("mirrored %+v", l.Status)
	}
}

func TestL3_FailedStatusWriteNeverBindsTwice(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	f.proxy("b")
	faulty := &faults{}
	f.start(withTransport(faulty.wrap))
	p := faulty.plan(http.MethodPatch, "/proxyleases/l/status", requestLost, replyLost)
	f.lease("l")
	l := f.awaitPhase("l", v1alpha1.LeaseBound)
	eventually(t, "both faults were met", func() string {
		if faulty.met(p) != 2 {
			return fmt.Sprint(faulty.met(p))
		}
		return ""
	})
	// It stays with the proxy that was chosen first, and only that one carries it.
	f.lease("m")
	m := f.awaitPhase("m", v1alpha1.LeaseBound)
	if l.Status.ProxyRef.Name == m.Status.ProxyRef.Name {
		t.Fatalf("the second lease went to %s, where the first is", m.Status.ProxyRef.Name)
	}
	if got := f.get("l"); got.Status.GrantSeq != l.Status.GrantSeq || got.Status.ProxyRef.UID != l.Status.ProxyRef.UID {
		t.Fatalf("bound again: %+v", got.Status)
	}
}

func TestL4_ConflictKeepsTheProxy(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	f.proxy("b")
	faulty := &faults{}
	c := f.start(withTransport(faulty.wrap))
	faulty.plan(http.MethodPatch, "/proxyleases/l/status", func(send func() (*http.Response, error)) (*http.Response, error) {
		// Somebody labels the lease between the decision and the write.
		l := f.get("l")
		l.Labels = map[string]string{"edited": "true"}
		if err := f.Client.Update(t.Context(), l); err != nil {
			t.Error(err)
		}
		return send()
	})
	c.writes.take()
	f.lease("l")
	l := f.awaitPhase("l", v1alpha1.LeaseBound)
	if got := c.writes.take(); got["PATCH proxyleases"] != 2 || l.Status.GrantSeq != 1 {
		t.Fatalf("writes %v, grant %d", got, l.Status.GrantSeq)
	}
}
