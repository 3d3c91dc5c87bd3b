package leasing

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// newLeader is a backend that leads and knows the proxies. None of its loops runs. When the test has ended, nothing may wait.
func newLeader(t *testing.T, proxies ...*v1alpha1.Proxy) Backend {
	t.Helper()
	b := newBackend(t, true)
	t.Cleanup(func() {
		if n := b.calls.len() + b.waiting.len() + len(b.calls.identities) + len(b.calls.holders) + len(b.waiting.pools); n != 0 {
			t.Errorf("%d are counted that wait when all have ended", n)
		}
	})
	b.role.Store(int32(leads))
	b.ledger.Open()
	for _, px := range proxies {
		b.ledger.ObserveProxy(px)
	}
	b.ledger.Start(1, "")
	return b
}

// until waits for what other goroutines do.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !done(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("not within ten seconds: ", what)
		}
	}
}

func request(identity, worker string) httpapi.LeaseRequest {
	r := httpapi.LeaseRequest{
		Namespace: "team", Identity: identity, Holder: identity, Mode: v1alpha1.LeaseShared, Selector: map[string]string{}, Wait: time.Minute,
	}
	if worker != "" {
		r.Holder += "/" + worker
	}
	return r
}

// waitsFor starts calls that wait until the test has ended.
func (b Backend) waitsFor(t *testing.T, requests ...httpapi.LeaseRequest) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		calls.Wait()
	})
	before := b.calls.len()
	for i, r := range requests {
		calls.Go(func() { _, _, _ = b.Lease(ctx, r) })
		until(t, "the call waits", func() bool { return b.calls.len() == before+i+1 })
	}
}

// Whatever holders a caller makes up: its identity has its limit, and leaves places to others.
func TestMadeUpHoldersShareTheLimitOfTheirIdentity(t *testing.T) {
	for name, follower := range map[string]bool{"leader": false, "follower": true} {
		t.Run(name, func(t *testing.T) {
			b := newLeader(t)
			b.calls.max, b.calls.perIdentity, b.calls.perHolder = 6, 3, 2
			waits := func(r httpapi.LeaseRequest) { b.waitsFor(t, r) }
			if follower {
				b.role.Store(int32(follows)) // its calls wait for the leader's decision
			}
			waits(request("a", "1"))
			waits(request("a", "1"))
			refused := func(r httpapi.LeaseRequest, code string) {
				t.Helper()
				_, _, err := b.Lease(t.Context(), r)
				wantCode(t, err, code)
			}
			refused(request("a", "1"), wire.CodeHolderLimit)
			waits(request("a", "2"))
			for i := range 5 {
				refused(request("a", fmt.Sprint("made-up-", i)), wire.CodeHolderLimit)
			}
			elsewhere := request("a", "")
			elsewhere.Namespace = "other"
			refused(elsewhere, wire.CodeHolderLimit)
			for _, holder := range []string{"b", "c", "d"} {
				waits(request(holder, ""))
			}
			refused(request("e", ""), wire.CodeQueueFull)
		})
	}
}

// Calls with one Idempotency-Key wait for each other, and count as calls that wait from then on.
func TestCallsThatWaitForTheirLikeCount(t *testing.T) {
	for name, c := range map[string]struct {
		limit func(*calls)
		code  string
	}{
		"of the holder":   {func(c *calls) { c.perHolder = 2 }, wire.CodeHolderLimit},
		"of the identity": {func(c *calls) { c.perIdentity = 2 }, wire.CodeHolderLimit},
		"of all":          {func(c *calls) { c.max = 2 }, wire.CodeQueueFull},
	} {
		t.Run(name, func(t *testing.T) {
			b := newLeader(t)
			c.limit(&b.calls)
			r := request("a", "")
			r.Key = "same"
			b.waitsFor(t, r, r) // for a proxy, and for that one
			for range 40 {
				_, _, err := b.Lease(t.Context(), r)
				wantCode(t, err, c.code)
			}
			if n := b.waiting.len(); n != 1 {
				t.Fatalf("%d wait for a proxy", n)
			}
		})
	}
}

// Leases that wait as objects do not use up the calls of the holder of their name.
func TestOnlyCallsCountForTheLimitOfCalls(t *testing.T) {
	b := newLeader(t)
	b.calls.perIdentity, b.calls.perHolder = 1, 1
	for i := range 3 {
		b.enqueue(fixture.Lease("team", fmt.Sprint(i), func(l *v1alpha1.ProxyLease) { l.Spec.Holder = "token" }))
	}
	t.Cleanup(func() {
		for i := range 3 {
			b.waiting.remove(fmt.Sprint("team-", i))
		}
	})
	b.waitsFor(t, request("token", ""))
	_, _, err := b.Lease(t.Context(), request("token", ""))
	wantCode(t, err, wire.CodeHolderLimit)
}

func TestOneIdentityMayTakeHalfOfTheQueue(t *testing.T) {
	b := newBackend(t, true)
	if b.calls.max != DefaultMaxWaiting || b.calls.perIdentity != DefaultMaxWaiting/2 || b.calls.perHolder != DefaultMaxWaitingPerHolder {
		t.Fatalf("the limits are %d, %d, %d", b.calls.max, b.calls.perIdentity, b.calls.perHolder)
	}
}
