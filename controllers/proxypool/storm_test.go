package proxypool

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
)

const (
	// stormDrain is how long leases have to end in the storm, stormTime how long it rages.
	stormDrain = 4 * time.Second
	stormTime  = 48 * time.Second
	// stormHolders lease by the HTTP API's backend, stormObjects by object, from both pools by one label.
	stormHolders = 10
	stormObjects = 3
)

// random is a source that several may use.
type random struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (r *random) intN(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rng.IntN(n)
}

func (r *random) between(from, to time.Duration) time.Duration {
	return from + time.Duration(r.intN(int(to-from)))
}

// wait waits for so long or until the context ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// Two pools whose proxies are leased by one label. One is scaled, rolled out, rolled back and restarted all the time, the other
// one scaled while all of its members reach their greatest age; a person deletes proxies; and many holders lease, some of whom
// never let go.
func TestP1_AllocationStormDuringScaleDownRolloutAndRecycling(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("EGRESS_STORM_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("EGRESS_STORM_SEED=%d", seed)
	f := startFleet(t)
	saw := f.watch()
	budget := func(pool *v1alpha1.ProxyPool) {
		pool.Spec.Strategy = &v1alpha1.PoolStrategy{MaxSurge: new(intstr.FromInt32(2)), MaxUnavailable: new(intstr.FromInt32(1))}
	}
	rolled := f.pool("rolled", 8, stormDrain, budget)
	aged := f.pool("aged", 6, stormDrain, func(pool *v1alpha1.ProxyPool) {
		budget(pool)
		// Due from half of it on.
		pool.Spec.Recycle = &v1alpha1.PoolRecycle{MaxAgeSeconds: new(int32(60)), JitterPercent: new(int32(50))}
	})
	f.settled(rolled, 8)
	f.settled(aged, 6)

	r := &random{rng: rand.New(rand.NewPCG(seed, seed))}
	ctx, cancel := context.WithTimeout(t.Context(), stormTime)
	defer cancel()
	var storm sync.WaitGroup
	for i := range stormHolders {
		storm.Go(func() { f.holder(ctx, r, fmt.Sprint("holder-", i)) })
	}
	for i := range stormObjects {
		storm.Go(func() { f.objectHolder(ctx, r, fmt.Sprint("object-", i)) })
	}
	storm.Go(func() {
		for ctx.Err() == nil {
			spec := ""
			switch r.intN(6) {
			case 0, 1, 2:
				spec = fmt.Sprintf(`{"replicas":%d}`, 3+r.intN(9))
			case 3, 4:
				spec = fmt.Sprintf(`{"template":{"spec":{"port":%d}}}`, 3128+r.intN(2))
			case 5:
				spec = fmt.Sprintf(`{"rollout":{"afterTime":%q}}`, time.Now().UTC().Format(time.RFC3339))
			}
			if err := f.patch(rolled, spec); err != nil && ctx.Err() == nil {
				t.Errorf("change the pool: %v", err)
			}
			wait(ctx, r.between(500*time.Millisecond, 4*time.Second))
		}
	})
	storm.Go(func() {
		for ctx.Err() == nil {
			if err := f.patch(aged, fmt.Sprintf(`{"replicas":%d}`, 4+r.intN(4))); err != nil && ctx.Err() == nil {
				t.Errorf("change the pool: %v", err)
			}
			wait(ctx, r.between(3*time.Second, 8*time.Second))
		}
	})
	storm.Go(func() {
		for ctx.Err() == nil {
			wait(ctx, r.between(2*time.Second, 6*time.Second))
			list := &v1alpha1.ProxyList{}
			if err := f.env.Client.List(ctx, list, client.InNamespace(f.namespace)); err != nil || len(list.Items) == 0 {
				continue
			}
			px := &list.Items[r.intN(len(list.Items))]
			if owner := metav1.GetControllerOf(px); owner != nil && owner.UID == aged.UID && r.intN(3) > 0 {
				continue // or none would reach its age
			}
			saw.mu.Lock()
			saw.byHand[px.UID] = true
			saw.mu.Unlock()
			if err := f.env.Client.Delete(ctx, px); client.IgnoreNotFound(err) != nil && ctx.Err() == nil {
				t.Errorf("delete %s: %v", px.Name, err)
			}
		}
	})
	storm.Wait()

	// Whatever it was in the middle of: it comes to rest, though some never let go of their leases.
	f.must(f.patch(rolled, `{"replicas":5}`))
	f.must(f.patch(aged, `{"replicas":4,"recycle":null}`))
	f.settled(rolled, 5)
	f.settled(aged, 4)
	for pool, want := range map[*v1alpha1.ProxyPool]int{rolled: 5, aged: 4} {
		members := f.members(pool)
		for _, px := range members {
			if len(px.Spec.DrainRequests) > 0 || px.Labels[v1alpha1.LabelRevision] != members[0].Labels[v1alpha1.LabelRevision] {
				t.Errorf("%s is left with the drain requests %v, or of an old revision", px.Name, px.Spec.DrainRequests)
			}
		}
		if len(members) != want {
			t.Errorf("%d proxies of pool %s, want %d", len(members), pool.Name, want)
		}
	}
	waitFor(t, "as many instances as proxies", func() bool { return len(f.cloud.Instances()) == 9 })
	s := saw.check(t, stormDrain)
	reasons := map[string]int{}
	for note, n := range f.told() {
		for _, reason := range []string{reasonScaleDown, reasonRollout, reasonMaxAge} {
			if len(note) > len(reason) && note[len(note)-len(reason):] == reason {
				reasons[reason] += n
			}
		}
	}
	t.Logf("%d grants, %d revoked; %d drains, %d taken back, %d proxies gone; by reason %v", s.granted, s.revoked, s.drained, s.undrained, s.deleted, reasons)
	if s.granted < 50 || s.revoked == 0 || s.drained == 0 || reasons[reasonScaleDown] == 0 || reasons[reasonRollout] == 0 || reasons[reasonMaxAge] == 0 {
		t.Error("this was no storm")
	}
}

// holder leases again and again, for a short while or until the proxy is taken away.
func (f *fleet) holder(ctx context.Context, r *random, name string) {
	api := leasing.Backend{Allocator: f.allocator}
	for i := 0; ctx.Err() == nil; i++ {
		lease, _, err := api.Lease(ctx, httpapi.LeaseRequest{
			Namespace: f.namespace, Holder: name, Key: fmt.Sprintf("%s-%d", name, i), Selector: map[string]string{"geo": "eu"}, TTLSeconds: 300, Wait: time.Second,
		})
		if err != nil {
			wait(ctx, 100*time.Millisecond)
			continue
		}
		if r.intN(5) == 0 {
			wait(ctx, r.between(stormDrain, 3*stormDrain))
			if r.intN(2) == 0 {
				continue // never given back
			}
		} else {
			wait(ctx, r.between(50*time.Millisecond, 1500*time.Millisecond))
		}
		// What is revoked meanwhile cannot be given back.
		_ = api.Release(context.WithoutCancel(ctx), lease.Ref)
	}
}

// objectHolder does the same by object.
func (f *fleet) objectHolder(ctx context.Context, r *random, name string) {
	for i := 0; ctx.Err() == nil; i++ {
		lease := &v1alpha1.ProxyLease{
			ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: fmt.Sprintf("%s-%d", name, i)},
			Spec: v1alpha1.ProxyLeaseSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"geo": "eu"}}, Holder: name, TTLSeconds: 300,
			},
		}
		if err := f.env.Client.Create(ctx, lease); err != nil {
			if ctx.Err() == nil {
				f.t.Errorf("create a lease: %v", err)
			}
			return
		}
		wait(ctx, r.between(200*time.Millisecond, 6*time.Second))
		if err := f.env.Client.Delete(context.WithoutCancel(ctx), lease); client.IgnoreNotFound(err) != nil {
			f.t.Errorf("delete a lease: %v", err)
		}
	}
}
