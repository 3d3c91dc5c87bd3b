package proxylease

import (
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// A renewal costs a write only when less than half of the TTL is left by what is stored; then it is stored when it is answered.
func TestRenewalsAreWrittenWhenHalfOfTheTTLIsOver(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	leader := f.start()
	follower := f.start(following)
	start := time.Now()
	here, there := leader.acquire(201, `{"ttlSeconds":10}`), leader.acquire(201, `{"ttlSeconds":10}`)
	f.lease("cr", func(l *v1alpha1.ProxyLease) { l.Spec.TTLSeconds = 10 })
	byObject := f.awaitPhase("cr", v1alpha1.LeaseBound)
	leader.writes.take()
	follower.writes.take()
	renew := func(c *core, lease httpLease) httpLease {
		t.Helper()
		status, body := c.call(http.MethodPost, "/v1/leases/"+lease.LeaseID+"/renew", "")
		if status != 200 {
			t.Fatalf("renew: %d %s", status, body)
		}
		return decode[httpLease](t, body)
	}
	bump := func() {
		t.Helper()
		l := f.get("cr")
		l.Spec.RenewTime = new(metav1.NowMicro())
		if err := f.Client.Update(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	early := 0
	for early < 5 {
		if got := renew(leader, here); !got.ExpiresAt.Equal(here.ExpiresAt) {
			t.Fatalf("renewed until %v, stored is %v", got.ExpiresAt, here.ExpiresAt)
		}
		if got := renew(follower, there); !got.ExpiresAt.Equal(there.ExpiresAt) {
			t.Fatalf("the follower renewed until %v, stored is %v", got.ExpiresAt, there.ExpiresAt)
		}
		bump()
		early++
		tick(t, 300*time.Millisecond)
	}
	if n, m := leader.writes.take(), follower.writes.take(); len(n) != 0 || len(m) != 0 {
		t.Fatalf("%d early renewals of each lease cost %v and %v", early, n, m)
	}

	for time.Since(start) < 5500*time.Millisecond {
		tick(t, 100*time.Millisecond)
	}
	// The last bump is worth its write by now, without another one.
	eventually(t, "the renewal by the object is stored", func() string {
		if l := f.get("cr"); record.RenewalPending(l) || !l.Status.ExpireTime.After(byObject.Status.ExpireTime.Time) {
			return l.Status.ExpireTime.String()
		}
		return ""
	})
	if got := leader.writes.take(); len(got) != 1 || got["PATCH proxyleases"] != 1 {
		t.Fatalf("%d renewals by the object cost %v", early, got)
	}
	renewed := renew(leader, here)
	if stored := record.Expiry(f.get(here.name())); !stored.Equal(renewed.ExpiresAt) || !stored.After(here.ExpiresAt) {
		t.Fatalf("answered %v, stored is %v", renewed.ExpiresAt, stored)
	}
	for range 5 {
		if again := renew(leader, here); !again.ExpiresAt.Equal(renewed.ExpiresAt) {
			t.Fatalf("renewed until %v, stored is %v", again.ExpiresAt, renewed.ExpiresAt)
		}
	}
	if got := leader.writes.take(); len(got) != 1 || got["PATCH proxyleases"] != 1 {
		t.Fatalf("six late renewals cost %v", got)
	}
	// A replica that does not lead stores that it was asked, and its promise follows from that.
	elsewhere := renew(follower, there)
	if l := f.get(there.name()); l.Spec.RenewTime == nil || !elsewhere.ExpiresAt.After(there.ExpiresAt) {
		t.Fatalf("answered %v, stored is %+v", elsewhere.ExpiresAt, l.Spec.RenewTime)
	}
	if got := follower.writes.take(); len(got) != 1 || got["PATCH proxyleases"] != 1 {
		t.Fatalf("a late renewal at the follower costs %v", got)
	}
	eventually(t, "the leader keeps the follower's promise", func() string {
		if l := f.get(there.name()); record.RenewalPending(l) || record.Expiry(l).Before(elsewhere.ExpiresAt) {
			return record.Expiry(l).String()
		}
		return ""
	})
}
