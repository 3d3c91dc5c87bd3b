package proxypool

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

func patient(px *v1alpha1.Proxy) bool {
	m := member{Proxy: px}
	request := m.drainedByPool()
	return request != nil && request.DeadlineTime == nil
}

// releaseWorld is a pool with OnRelease in the middle of a rollout.
func releaseWorld(replicas int32, leasesEach int, surge, unavailable int32) *world {
	w := drainingWorld(replicas, leasesEach)
	w.pool.Spec.Strategy = &v1alpha1.PoolStrategy{
		Type: v1alpha1.StrategyOnRelease, MaxSurge: new(intstr.FromInt32(surge)), MaxUnavailable: new(intstr.FromInt32(unavailable)),
	}
	w.pool.Spec.Template.Spec.Port = 8080
	w.pool.Generation++
	return w
}

// With OnRelease a member takes no new leases once the budget can do without it, and no lease is ended for it.
func TestOnReleaseClosesWithinTheBudgetAndWaitsForTheLease(t *testing.T) {
	w := releaseWorld(2, 1, 0, 1)
	plan := w.step()
	if len(plan.Drains) != 1 || !plan.Drains[0].Patient || len(plan.Deletes) != 0 {
		t.Fatalf("%d are drained and %v deleted, want one closed", len(plan.Drains), deletedNames(plan))
	}
	closed := plan.Drains[0].Proxy
	w.now = w.now.Add(24 * time.Hour)
	if plan := w.step(); len(plan.Deletes)+len(plan.Drains) != 0 || progressing(plan).Status != metav1.ConditionTrue {
		t.Errorf("a day later %v are deleted, %d drained, and Progressing is %+v", deletedNames(plan), len(plan.Drains), progressing(plan))
	}
	w.leases[closed.UID] = 0
	if got := deletedNames(w.step()); len(got) != 1 || got[0] != closed.Name {
		t.Errorf("deletes %v, want the released one", got)
	}
}

// An idle member, too, is closed first and goes when leasing knows: a lease may be granted at that moment.
func TestOnReleaseClosesIdleMembersFirst(t *testing.T) {
	w := releaseWorld(1, 0, 0, 1)
	seen := false
	plan := func() Plan {
		return MakePlan(Input{Pool: w.pool, Members: w.members, Now: w.now, Leases: leased(0), Emptied: func(*v1alpha1.Proxy) bool { return seen }})
	}
	first := plan()
	if len(first.Drains) != 1 || len(first.Deletes) != 0 {
		t.Fatalf("%d are closed and %v deleted, want one closed", len(first.Drains), deletedNames(first))
	}
	first.Drains[0].Proxy.Spec.DrainRequests = first.Drains[0].Ops[0].Value.([]v1alpha1.DrainRequest)
	if got := deletedNames(plan()); len(got) != 0 {
		t.Errorf("deletes %v before leasing knows", got)
	}
	seen = true
	if got := deletedNames(plan()); len(got) != 1 {
		t.Errorf("deletes %v, want the one that is closed and empty", got)
	}
}

// What does not work any more is not waited for without end, nor is anything when the strategy is changed, nor more than there
// are replicas.
func TestOnReleaseStopsWaiting(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		reason string
		want   int
	}{
		"it goes on":           {change: func(*world) {}},
		"a rolling update now": {change: func(w *world) { w.pool.Spec.Strategy.Type = v1alpha1.StrategyRollingUpdate }, reason: reasonRollout, want: 2},
		"it does not work": {change: func(w *world) {
			w.pool.Spec.Remediation = &v1alpha1.PoolRemediation{UnhealthyTimeoutSeconds: new(int32(60))}
			for _, px := range w.members {
				if patient(px) {
					sick(time.Hour)(px)
				}
			}
		}, reason: reasonRollout, want: 2},
		"scaled to one":  {change: func(w *world) { w.pool.Spec.Replicas = new(int32(1)) }, reason: reasonScaleDown, want: 1},
		"scaled to zero": {change: func(w *world) { w.pool.Spec.Replicas = new(int32(0)) }, reason: reasonScaleDown, want: 2},
	} {
		w := releaseWorld(4, 1, 0, 2)
		w.step()
		closed := map[*v1alpha1.Proxy]bool{}
		for _, px := range w.members {
			if closed[px] = patient(px); closed[px] {
				px.Spec.DrainRequests = append([]v1alpha1.DrainRequest{{Requester: "maintenance"}}, px.Spec.DrainRequests...)
			}
		}
		c.change(w)
		n := 0
		for _, d := range w.step().Drains {
			if !closed[d.Proxy] {
				continue
			}
			n++
			request := d.Proxy.Spec.DrainRequests
			if len(request) != 2 || request[0].Requester != "maintenance" || request[1].DeadlineTime == nil || request[1].Reason != c.reason {
				t.Errorf("%s: the requests are %+v", name, request)
			}
		}
		if n != c.want {
			t.Errorf("%s: %d that were waited for get a deadline, want %d", name, n, c.want)
		}
	}
}

// A rollback opens what was closed, and somebody else's request stays.
func TestOnReleaseRollbackOpensAgain(t *testing.T) {
	w := releaseWorld(4, 1, 1, 2)
	w.step()
	other := v1alpha1.DrainRequest{Requester: "maintenance"}
	var both *v1alpha1.Proxy
	for _, px := range w.members {
		if patient(px) {
			both = px
		}
	}
	both.Spec.DrainRequests = append([]v1alpha1.DrainRequest{other}, both.Spec.DrainRequests...)
	w.pool.Spec.Template.Spec.Port = 3128
	w.pool.Generation++
	lifted := 0
	for _, u := range w.plan().Undrains {
		lifted++
		if u.Proxy == both {
			if left, _ := u.Ops[0].Value.([]v1alpha1.DrainRequest); len(left) != 1 || left[0] != other {
				t.Errorf("of two requests %+v are left", u.Ops)
			}
		} else if u.Ops[0].Value != nil {
			t.Errorf("the op is %+v", u.Ops[0])
		}
	}
	if lifted != 2 {
		t.Errorf("%d were opened, want 2", lifted)
	}
	both.Spec.DrainRequests = both.Spec.DrainRequests[1:]
	for range 10 {
		w.step()
		w.gone()
	}
	if n := w.count(func(px *v1alpha1.Proxy) bool { return px.Spec.Port == 3128 && isAvailable(px) }); n != 4 || len(w.members) != 4 {
		t.Errorf("%d of the first four are left open, of %d", n, len(w.members))
	}
}

// Members that are never without leases while they take any: each freed place is leased again at once. The rollout completes,
// no lease on a proxy that works is ended, and the budget holds.
func TestOnReleaseCompletesUnderStandingDemand(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, seed))
		replicas := int32(1 + rng.IntN(8))
		surge, unavailable := int32(rng.IntN(3)), int32(rng.IntN(3))
		if surge+unavailable == 0 {
			unavailable = 1
		}
		w := releaseWorld(replicas, 0, surge, min(unavailable, replicas))
		if rng.IntN(2) == 0 {
			// As long as there is none its leases would be ended at once by any other strategy.
			w.pool.Spec.Template.Spec.Deletion = nil
			for _, px := range w.members {
				px.Spec.Deletion = nil
			}
		}
		capacity := 1 + rng.IntN(4)
		least := int(replicas) - int(min(unavailable, replicas))
		if surge == 0 && unavailable == 0 {
			least--
		}
		done := false
		for range 3000 {
			for _, px := range w.members {
				if !isAvailable(px) && px.DeletionTimestamp.IsZero() && len(px.Spec.DrainRequests) == 0 && rng.IntN(3) == 0 {
					w.makeReady(px)
				}
				if n := w.leases[px.UID]; n > 0 && rng.IntN(8) == 0 {
					w.leases[px.UID]--
				}
				if isAvailable(px) {
					w.leases[px.UID] = capacity
				}
			}
			before := w.count(isAvailable)
			plan := w.step()
			for _, d := range plan.Deletes {
				if w.leases[d.Proxy.UID] > 0 {
					t.Fatalf("seed %d: %s goes with leases: %s", seed, d.Proxy.Name, d.Reason)
				}
			}
			if after := w.count(isAvailable); after < before && after < least {
				t.Fatalf("seed %d: %d are open, want at least %d", seed, after, least)
			}
			w.gone()
			if done = plan.Status.Updated == replicas && plan.Status.Available == replicas && len(w.members) == int(replicas) && !plan.acts(); done {
				break
			}
		}
		if !done {
			t.Fatalf("seed %d: no end with %d replicas, surge %d, unavailable %d: %+v", seed, replicas, surge, unavailable, w.plan().Status)
		}
	}
}

// The whole operator: the only proxy is leased all the time, one lease after the other, and the rollout completes nevertheless,
// without a lease that is ended by it.
func TestOnReleaseUnderDemandInTheWholeOperator(t *testing.T) {
	f := startFleet(t)
	pool := f.pool("eu", 1, 0, func(p *v1alpha1.ProxyPool) {
		p.Spec.Template.Spec.Capacity = new(int32(1))
		p.Spec.Strategy = &v1alpha1.PoolStrategy{
			Type: v1alpha1.StrategyOnRelease, MaxSurge: new(intstr.FromInt32(0)), MaxUnavailable: new(intstr.FromInt32(1)),
		}
	})
	f.settled(pool, 1)
	first := f.members(pool)[0].UID
	ask := func(i int) *v1alpha1.ProxyLease {
		l := &v1alpha1.ProxyLease{
			ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: fmt.Sprint("l", i)},
			Spec:       v1alpha1.ProxyLeaseSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"geo": "eu"}}, Holder: fmt.Sprint("h", i)},
		}
		f.must(f.env.Client.Create(t.Context(), l))
		return l
	}
	bound := func(l *v1alpha1.ProxyLease) func() bool {
		return func() bool { return f.readLease(l).Status.Phase == v1alpha1.LeaseBound }
	}
	current := ask(0)
	waitFor(t, "the first lease", bound(current))
	waiting := ask(1)
	f.must(f.patch(pool, `{"template":{"spec":{"port":8080}}}`))
	holders := map[types.UID]bool{}
	for i := 2; i < 8; i++ {
		if f.readLease(current).Status.Phase != v1alpha1.LeaseBound {
			t.Errorf("%s ended by itself: %+v", current.Name, current.Status.Conditions)
		}
		waitFor(t, "the successor, or the old one closed", func() bool {
			for _, px := range f.members(pool) {
				if px.UID != first || patient(&px) && meta.IsStatusConditionTrue(f.readLease(current).Status.Conditions, v1alpha1.ConditionDraining) {
					return true
				}
			}
			return false
		})
		f.must(f.env.Client.Delete(t.Context(), current))
		waitFor(t, waiting.Name, bound(waiting))
		current, waiting = waiting, ask(i)
		holders[current.Status.ProxyRef.UID] = true
	}
	if holders[first] {
		t.Error("the old proxy was leased again after it was to be replaced")
	}
	for _, l := range []*v1alpha1.ProxyLease{waiting, current} {
		f.must(f.env.Client.Delete(t.Context(), l))
	}
	f.settled(pool, 1)
	told := f.told()
	for note := range told {
		if strings.HasPrefix(note, "Draining proxy") && !strings.HasSuffix(note, "which goes without leases: "+reasonRollout) {
			t.Errorf("an event says %q", note)
		}
	}
}

// Many holders that lease again at once what they give back, of proxies that several share: the rollout completes, and every
// lease runs until its holder gives it back.
func TestOnReleaseWithSharedProxiesUnderDemand(t *testing.T) {
	f := startFleet(t)
	pool := f.pool("eu", 3, 0, func(p *v1alpha1.ProxyPool) {
		p.Spec.Template.Spec.Capacity = new(int32(3))
		p.Spec.Strategy = &v1alpha1.PoolStrategy{
			Type: v1alpha1.StrategyOnRelease, MaxSurge: new(intstr.FromInt32(1)), MaxUnavailable: new(intstr.FromInt32(0)),
		}
	})
	f.settled(pool, 3)
	saw := f.watch()
	stop := f.crawl(9, 30*time.Millisecond)
	f.must(f.patch(pool, `{"template":{"spec":{"port":8080}}}`))
	f.settled(pool, 3)
	stop()
	if ended := saw.revoked(); len(ended) > 0 {
		t.Errorf("leases were ended: %v", ended)
	}
	for _, px := range f.members(pool) {
		if px.Spec.Port != 8080 || len(px.Spec.DrainRequests) > 0 {
			t.Errorf("%s has port %d and drain requests %v", px.Name, px.Spec.Port, px.Spec.DrainRequests)
		}
	}
}

// crawl lets holders lease by the HTTP API's backend, each again as soon as it has given back, until stop is called.
func (f *fleet) crawl(holders int, hold time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var crawlers sync.WaitGroup
	for i := range holders {
		name := fmt.Sprint("crawler-", i)
		crawlers.Go(func() {
			api := leasing.Backend{Allocator: f.allocator}
			for n := 0; ctx.Err() == nil; n++ {
				lease, _, err := api.Lease(ctx, httpapi.LeaseRequest{
					Namespace: f.namespace, Holder: name, Key: fmt.Sprintf("%s-%d", name, n), Selector: map[string]string{"geo": "eu"}, TTLSeconds: 300, Wait: time.Second,
				})
				if err != nil {
					continue
				}
				wait(ctx, hold)
				_ = api.Release(context.WithoutCancel(ctx), lease.Ref)
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); crawlers.Wait() })
	f.t.Cleanup(stop)
	return stop
}

// revoked are the leases that ended otherwise than by being given back.
func (w *witness) revoked() (names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if lease, ok := e.object.(*v1alpha1.ProxyLease); ok && record.Finished(lease) {
			names = append(names, fmt.Sprintf("%s: %s", lease.Name, lease.Status.Phase))
		}
	}
	return names
}
