package proxylease

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

func TestC7_ALeaseWaitsForTheFirstProxyThatHasCooledDown(t *testing.T) {
	f := newFleet(t)
	begun := time.Now()
	ends := map[string]time.Time{"first": begun.Add(20 * time.Second).Truncate(time.Second), "later": begun.Add(time.Hour)}
	for name, end := range ends {
		f.setStatus(f.proxy(name), func(s *v1alpha1.ProxyStatus) {
			s.Cooldowns = []v1alpha1.Cooldown{{Target: "x.example", InstanceID: "i-" + name, Hits: 1, UntilTime: new(metav1.NewTime(end))}}
		})
	}
	c := f.start()
	for i := range 3 {
		f.lease(fmt.Sprint("l", i), func(l *v1alpha1.ProxyLease) { l.Spec.Targets = []string{"x.example"} })
	}
	if l := f.awaitPhase("l0", v1alpha1.LeasePending); boundReason(l) != v1alpha1.ReasonCooling {
		t.Fatalf("reason %s", boundReason(l))
	}
	p := c.refused(503, wire.CodeNoProxy, http.MethodPost, "/v1/leases", `{"target":"x.example"}`)
	if p.Reason != v1alpha1.ReasonCooling {
		t.Fatalf("reason %q", p.Reason)
	}
	answered := make(chan httpLease, 1)
	go func() { answered <- c.acquire(201, `{"target":"x.example","waitSeconds":60}`) }()
	if other := c.acquire(201, `{"target":"y.example"}`); other.Proxy.ID == "" {
		t.Fatal("another target")
	}
	for i := range 3 {
		l := f.awaitPhase(fmt.Sprint("l", i), v1alpha1.LeaseBound)
		if late := l.Status.BoundTime.Sub(ends["first"]); l.Status.ProxyRef.Name != "first" || late < 0 || late > 15*time.Second {
			t.Fatalf("%s got %s %v after the first cooldown's end", l.Name, l.Status.ProxyRef.Name, late)
		}
	}
	if got := <-answered; got.proxyName() != "first" {
		t.Fatalf("the call got %s", got.proxyName())
	}
}

func TestC8_AReportShortlyAfterTheExpiryCounts(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	c := f.start()
	held := c.acquire(201, `{"ttlSeconds":10}`)
	f.lease("by-object", func(l *v1alpha1.ProxyLease) { l.Spec.TTLSeconds = 10 })
	f.awaitPhase(held.name(), v1alpha1.LeaseExpired)
	if status, body := c.call(http.MethodPost, "/v1/leases/"+held.LeaseID+"/report", `{"result":"rate_limited","target":"late.example"}`); status != 204 {
		t.Fatalf("late report: %d %s", status, body)
	}
	if list := f.getProxy("a").Status.Cooldowns; len(list) != 1 || list[0].Target != "late.example" {
		t.Fatalf("cooldowns %+v", list)
	}
	l := f.awaitPhase("by-object", v1alpha1.LeaseExpired)
	l.Spec.Reports = []v1alpha1.LeaseReport{{Target: "later.example", Result: v1alpha1.ReportBanned, Count: 1}}
	if err := f.Client.Update(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the late report of the object counts", func() string {
		if list := f.getProxy("a").Status.Cooldowns; len(list) != 2 {
			return fmt.Sprintf("%+v", list)
		}
		return ""
	})
	c.refused(404, wire.CodeLeaseNotFound, http.MethodPost, "/v1/leases/unknown/report", `{"result":"rate_limited","target":"late.example"}`)
	if status, _ := c.call(http.MethodDelete, "/v1/leases/"+held.LeaseID, ""); status != 204 {
		t.Fatal("release")
	}
	c.refused(410, wire.CodeLeaseEnded, http.MethodPost, "/v1/leases/"+held.LeaseID+"/report", `{"result":"rate_limited","target":"too-late.example"}`)
	if list := f.getProxy("a").Status.Cooldowns; len(list) != 2 {
		t.Fatalf("cooldowns %+v", list)
	}
}

func TestT18_WithTheOnlyProxyDownALeaseIsRefusedWithRetryAfter(t *testing.T) {
	f := newFleet(t)
	px := f.proxy("only")
	c := f.start()
	c.acquire(201, `{}`)
	f.setHealthy(px, metav1.ConditionFalse)
	eventually(t, "leases are refused", func() string {
		r, err := http.NewRequest(http.MethodPost, c.url+"/v1/leases", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != 503 || answer.Header.Get("Retry-After") == "" {
			return fmt.Sprint(answer.StatusCode, answer.Header)
		}
		return ""
	})
	p := c.refused(503, wire.CodeNoProxy, http.MethodPost, "/v1/leases", `{}`)
	if p.Reason != v1alpha1.ReasonNoProxy {
		t.Fatalf("reason %q", p.Reason)
	}
	c.refused(503, wire.CodeNoProxy, http.MethodPost, "/v1/leases", `{"proxy":"only"}`)
	f.lease("waits")
	if l := f.awaitPhase("waits", v1alpha1.LeasePending); l.Status.ProxyRef != nil || boundReason(l) != v1alpha1.ReasonNoProxy {
		t.Fatalf("status %+v", l.Status)
	}
	f.setHealthy(px, metav1.ConditionTrue)
	f.awaitPhase("waits", v1alpha1.LeaseBound)
}
