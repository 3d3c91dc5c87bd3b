package proxylease

import (
	"net/http"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// One proxy with one slot, from the race for it to a cooldown that outlives the core.
func TestA47_LeasesEndToEnd(t *testing.T) {
	f := newFleet(t)
	px := f.proxy("only", capacity(1))
	c := f.start()

	answers := make(chan int)
	for range 2 {
		go func() {
			status, _ := c.call(http.MethodPost, "/v1/leases", `{"ttlSeconds":10}`)
			answers <- status
		}()
	}
	if first, second := <-answers, <-answers; min(first, second) != 201 || max(first, second) != 503 {
		t.Fatalf("two calls for one slot: %d and %d, want 201 and 503", first, second)
	}

	// The winner's lease is not renewed: its time ends, and whoever waits gets the slot.
	begun := time.Now()
	f.lease("next", func(l *v1alpha1.ProxyLease) { l.Spec.TTLSeconds = 900 })
	f.awaitPhase("next", v1alpha1.LeaseBound)
	if took := time.Since(begun); took < 5*time.Second {
		t.Errorf("the slot was free after %v", took)
	}

	// The proxy gets another instance, and with it another address: the lease does not silently go along.
	f.ready(px, "instance-2")
	if l := f.awaitPhase("next", v1alpha1.LeaseRevoked); boundReason(l) != v1alpha1.ReasonProxyReplaced {
		t.Fatalf("reason %s", boundReason(l))
	}

	held := c.acquire(201, `{"target":"x.example","ttlSeconds":900}`)
	if status, body := c.call(http.MethodPost, "/v1/leases/"+held.LeaseID+"/report", `{"result":"rate_limited","target":"x.example"}`); status != 204 {
		t.Fatalf("report: %d %s", status, body)
	}
	c.stop()
	c = f.start()
	if status, body := c.call(http.MethodDelete, "/v1/leases/"+held.LeaseID, ""); status != 204 {
		t.Fatalf("release: %d %s", status, body)
	}
	c.refused(503, wire.CodeNoProxy, http.MethodPost, "/v1/leases", `{"target":"x.example"}`)
	c.acquire(201, `{"target":"other.example"}`)
}
