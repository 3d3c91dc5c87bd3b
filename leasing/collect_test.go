package leasing

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
	"crawl.example.com/egress-proxies-operator/leasing/record"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// simLeases is how many short leases come and go by default. What exists at once does not grow with it: 50 000 take a quarter
// of a minute, and minutes with the race detector.
var simLeases = flag.Int("sim.leases", 10_000, "short leases of the simulation of their deletion")

// calm is a world without trouble and its one leader, in which the proxies have room for everybody.
type calm struct {
	*simProcess
	api *simAPI
	// most is the highest number of leases that existed at once.
	objects, most int
}

// inCalm runs f in such a world, in a bubble of its own.
func inCalm(t *testing.T, prepare func(*Allocator), f func(t *testing.T, c *calm)) {
	synctest.Test(t, func(t *testing.T) {
		w := &simWorld{seed: 5, holds: map[types.UID]*hold{}, api: &simAPI{objects: map[simID]client.Object{}}}
		for i := range 4 {
			_ = w.api.create(fixture.Proxy("team", fmt.Sprint("p", i)))
		}
		c := &calm{api: w.api, simProcess: newSimProcess(w, "leader")}
		w.api.onChange = func(before, after client.Object) {
			if _, ok := before.(*v1alpha1.ProxyLease); ok && after == nil {
				c.objects--
			}
			if _, ok := after.(*v1alpha1.ProxyLease); ok && before == nil {
				c.objects++
				c.most = max(c.most, c.objects)
			}
		}
		prepare(c.backend.Allocator)
		ctx, resign := context.WithCancel(c.ctx)
		c.lead(ctx)
		go c.housekeeping(ctx)
		for !c.backend.Recovered() {
			_ = pause(ctx, time.Second)
		}
		f(t, c)
		resign()
		<-c.done
		c.kill()
		_ = pause(context.Background(), time.Minute)
		synctest.Wait()
	})
}

// housekeeping renews the leadership and forgets events that were delivered.
func (c *calm) housekeeping(ctx context.Context) {
	forgotten := 0
	for pause(ctx, simRetryPeriod) == nil {
		c.renew()
		c.api.mu.Lock()
		clear(c.api.log[forgotten:c.cache.at])
		forgotten = c.cache.at
		c.api.mu.Unlock()
	}
}

// exist are the leases that exist.
func (c *calm) exist() int {
	c.api.mu.Lock()
	defer c.api.mu.Unlock()
	return c.objects
}

func (c *calm) lease(n int, ttl int32) (httpapi.Lease, error) {
	lease, _, err := c.backend.Lease(c.ctx, httpapi.LeaseRequest{
		Namespace: "team", Holder: fmt.Sprint("h", n%7), Mode: v1alpha1.LeaseShared, TTLSeconds: ttl, Key: fmt.Sprint(n),
	})
	return lease, err
}

func TestL26_ShortLeasesLeaveABoundedNumberOfObjectsBehind(t *testing.T) {
	count := *simLeases
	if testing.Short() {
		count = min(count, 5_000)
	}
	const perSecond, ttl = 500, 10
	inCalm(t, func(*Allocator) {}, func(t *testing.T, c *calm) {
		var calls sync.WaitGroup
		var granted atomic.Int32
		for i := range count {
			_ = pause(c.ctx, time.Second/perSecond)
			calls.Go(func() {
				lease, err := c.lease(i, ttl)
				if err != nil {
					t.Errorf("lease %d: %v", i, err)
					return
				}
				granted.Add(1)
				if i%2 == 0 { // the others are forgotten by their holders
					if err := c.backend.Release(c.ctx, lease.Ref); err != nil {
						t.Errorf("release %d: %v", i, err)
					}
				}
			})
		}
		calls.Wait()
		// Those that live, those that are kept after their end, and what is under way.
		live, kept := perSecond/2*ttl, 1000
		if limit := live + kept + 1000; int(granted.Load()) != count || c.most > limit {
			t.Fatalf("%d leases, %d objects at once, want at most %d", granted.Load(), c.most, limit)
		}
		t.Logf("%d leases, at most %d objects at once", count, c.most)
		_ = pause(c.ctx, 4*time.Minute)
		if n := c.exist(); n != 0 || c.backend.finished.Len() != 0 || c.backend.objects() != 0 {
			t.Fatalf("%d objects are left behind, %d are kept, %d are known", n, c.backend.finished.Len(), c.backend.objects())
		}
	})
}

func TestL26_TheBrakeRefusesCallsUntilThereAreFewerLeases(t *testing.T) {
	const limit = 300
	inCalm(t, func(a *Allocator) { a.brake.Max = limit }, func(t *testing.T, c *calm) {
		refused := 0
		for i := range 400 {
			_ = pause(c.ctx, 10*time.Millisecond)
			if _, err := c.lease(i, 60); err != nil {
				wantCode(t, err, wire.CodeTooManyLeases)
				if refused, _ := errors.AsType[*httpapi.Error](err); refused.RetryAfter == 0 {
					t.Fatal("no Retry-After")
				}
				refused++
			}
		}
		if refused != 100 || c.exist() != limit {
			t.Fatalf("%d were refused, %d objects", refused, c.exist())
		}
		// Whoever has a lease is answered all the same.
		lease, err := c.lease(7, 60)
		if err != nil {
			t.Fatalf("a replay while the brake is on: %v", err)
		}
		if _, err := c.backend.Renew(c.ctx, lease.Ref); err != nil {
			t.Fatalf("a renewal while the brake is on: %v", err)
		}
		if err := c.backend.Release(c.ctx, lease.Ref); err != nil {
			t.Fatalf("a release while the brake is on: %v", err)
		}
		// One place is not enough to let go of the brake, or it would flutter.
		if _, err := c.lease(1000, 60); err == nil {
			t.Fatal("the brake flutters")
		}
		// When the leases have expired they are finished and would be kept for two minutes; now they make room at once.
		_ = pause(c.ctx, 70*time.Second)
		if _, err := c.lease(1001, 60); err != nil {
			t.Fatalf("the brake stays on: %v, with %d objects of which %d are finished", err, c.exist(), c.backend.finished.Len())
		}
		if kept := c.backend.finished.Len(); kept < limit/2 || kept > limit*9/10 {
			t.Fatalf("%d finished leases are kept", kept)
		}
	})
}

// The brake goes by what there was, and not by when somebody asked.
func TestL26_TheBrakeIsLetGoAlsoIfNobodyAsks(t *testing.T) {
	const limit = 100
	inCalm(t, func(a *Allocator) { a.brake.Max = limit }, func(t *testing.T, c *calm) {
		var held []httpapi.Lease
		for i := range limit {
			lease, err := c.lease(i, 600)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, lease)
		}
		if _, err := c.lease(limit, 600); err == nil {
			t.Fatal("the brake does not work")
		}
		for _, lease := range held[:limit/10] {
			if err := c.backend.Release(c.ctx, lease.Ref); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 5 { // others, which no brake refuses
			lease := fixture.Lease("team", fmt.Sprint("cr-", i))
			if err := c.api.create(lease); err != nil {
				t.Fatal(err)
			}
		}
		_ = pause(c.ctx, 5*time.Second)
		if _, err := c.lease(limit+1, 600); err != nil {
			t.Fatalf("with %d leases: %v", c.exist(), err)
		}
	})
}

// The last reports of a lease count, although it may be deleted as soon as it has ended.
func TestReportsAreTakenInBeforeAFinishedLeaseIsDeleted(t *testing.T) {
	inCalm(t, func(*Allocator) {}, func(t *testing.T, c *calm) {
		lease := fixture.Lease("team", "l", func(l *v1alpha1.ProxyLease) {
			l.Spec.TTLSeconds, l.Spec.TTLSecondsAfterFinished = 10, new(int32(0))
			l.Spec.Reports = []v1alpha1.LeaseReport{{Target: "x.example", Result: v1alpha1.ReportBanned, Count: 1}}
		})
		if err := c.api.create(lease); err != nil {
			t.Fatal(err)
		}
		_ = pause(c.ctx, 5*time.Second)
		stored := &v1alpha1.ProxyLease{}
		if err := c.api.get(idOf(lease), stored); err != nil || !record.Holds(stored) {
			t.Fatalf("%v %+v", err, stored.Status)
		}
		_ = pause(c.ctx, 30*time.Second)
		if n := c.exist(); n != 0 {
			t.Fatal("the lease is there")
		}
		px := &v1alpha1.Proxy{}
		if err := c.api.get(simID{"Proxy", types.NamespacedName{Namespace: "team", Name: stored.Status.ProxyRef.Name}}, px); err != nil {
			t.Fatal(err)
		}
		if len(px.Status.Cooldowns) != 1 || px.Status.Cooldowns[0].Target != "x.example" {
			t.Fatalf("cooldowns %+v", px.Status.Cooldowns)
		}
	})
}
