package proxypool

import (
	"fmt"
	"slices"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// lease asks for a lease of a pool by object, and gives it when it is bound.
func (f *fleet) lease(name, pool string) *v1alpha1.ProxyLease {
	f.t.Helper()
	lease := &v1alpha1.ProxyLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: name},
		Spec:       v1alpha1.ProxyLeaseSpec{PoolRef: &v1alpha1.LocalRef{Name: pool}, Holder: name, TTLSeconds: 600},
	}
	f.must(f.env.Client.Create(f.t.Context(), lease))
	waitFor(f.t, "lease "+name+" to be bound", func() bool { return f.readLease(lease).Status.Phase == v1alpha1.LeaseBound })
	return lease
}

func (f *fleet) readLease(lease *v1alpha1.ProxyLease) *v1alpha1.ProxyLease {
	f.t.Helper()
	f.must(f.env.Client.Get(f.t.Context(), client.ObjectKeyFromObject(lease), lease))
	return lease
}

// told counts what the events about pools say.
func (f *fleet) told() map[string]int {
	f.t.Helper()
	list := &eventsv1.EventList{}
	f.must(f.env.Client.List(f.t.Context(), list, client.InNamespace(f.namespace)))
	out := map[string]int{}
	for _, e := range list.Items {
		if e.Regarding.Kind == "ProxyPool" {
			out[e.Note]++
		}
	}
	return out
}

// Holders that do not go: they are told, keep their leases until the deadline and no longer, and then the proxies go.
func TestP3_HoldersThatStayAreRevokedAtTheDeadline(t *testing.T) {
	f := startFleet(t)
	const drain = 5 * time.Second
	pool := f.pool("eu", 3, drain, nil)
	f.settled(pool, 3)
	var leases []*v1alpha1.ProxyLease
	for i := range 3 {
		leases = append(leases, f.lease(fmt.Sprint("holder-", i), "eu"))
	}
	saw := f.watch()
	scaled := time.Now().Truncate(time.Second)
	scale(t, f.env, pool, 1)
	f.settled(pool, 1)
	// They were told.
	deadlines, told := saw.drains()
	if len(deadlines) != 2 || len(told) != 2 {
		t.Errorf("drained were %v, and told %v; want two each", deadlines, told)
	}
	for name, deadline := range deadlines {
		if deadline.Before(scaled.Add(drain)) {
			t.Errorf("%s has to be empty by %s, which is earlier than the policy says", name, deadline)
		}
	}
	revoked := 0
	for _, lease := range leases {
		s := f.readLease(lease).Status
		deadline, drained := deadlines[s.ProxyRef.Name]
		if !drained {
			if s.Phase != v1alpha1.LeaseBound {
				t.Errorf("%s on a proxy that stays is %s", lease.Name, s.Phase)
			}
			continue
		}
		revoked++
		bound := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionBound)
		if s.Phase != v1alpha1.LeaseRevoked || bound == nil || bound.Status != metav1.ConditionFalse || bound.Reason != v1alpha1.ReasonDrainDeadline {
			t.Errorf("%s is %s, Bound is %+v", lease.Name, s.Phase, bound)
		}
		if s.FinishTime == nil || s.FinishTime.Time.Before(deadline) {
			t.Errorf("%s ended at %v, before the deadline %s", lease.Name, s.FinishTime, deadline)
		}
	}
	if revoked != 2 {
		t.Errorf("%d leases were revoked, want 2", revoked)
	}
	if left := f.members(pool); len(left) != 1 || len(f.cloud.Instances()) != 1 {
		t.Errorf("%d proxies and %d instances are left, want 1", len(left), len(f.cloud.Instances()))
	}
	// The events name each victim and why.
	waitFor(t, "the events", func() bool {
		told := f.told()
		for name := range deadlines {
			if told["Draining proxy "+name+", which is leased: ScaleDown"] == 0 || told["Deleted proxy "+name+": ScaleDown"] == 0 {
				return false
			}
		}
		return true
	})
}

// Five become two: the one that does not work goes first, idle ones next, leased ones last, and events tell each choice.
func TestT6_TheLeastMissedMembersGoFirst(t *testing.T) {
	f := startFleet(t)
	pool := f.pool("eu", 5, time.Minute, nil)
	f.settled(pool, 5)
	members := f.members(pool)
	leased := map[string]bool{}
	for i := range 2 {
		lease := f.lease(fmt.Sprint("holder-", i), "eu")
		leased[lease.Status.ProxyRef.Name] = true
	}
	if len(leased) != 2 {
		t.Fatalf("leased are %v, want two", leased)
	}
	sickest := members[slices.IndexFunc(members, func(px v1alpha1.Proxy) bool { return !leased[px.Name] })]
	f.engine.fall(&sickest)
	waitFor(t, sickest.Name+" to be unhealthy", func() bool { return getPool(t, f.env, pool).Status.Ready == 4 })
	names := func() (out []string) {
		for _, px := range f.members(pool) {
			out = append(out, px.Name)
		}
		return out
	}
	scale(t, f.env, pool, 4)
	f.settled(pool, 4)
	if slices.Contains(names(), sickest.Name) {
		t.Errorf("of %v, %s stayed, which does not work", names(), sickest.Name)
	}
	scale(t, f.env, pool, 2)
	f.settled(pool, 2)
	for _, name := range names() {
		if !leased[name] {
			t.Errorf("%s stayed, which is idle", name)
		}
	}
	waitFor(t, "an event for each", func() bool {
		told := f.told()
		for _, px := range members {
			if !leased[px.Name] && told["Deleted proxy "+px.Name+": "+reasonScaleDown] == 0 {
				return false
			}
		}
		return true
	})
}

// demand of a pool as the metric says it.
func (f *fleet) demand(pool string) float64 {
	f.t.Helper()
	families, err := f.metrics.Gather()
	f.must(err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if family.GetName() == "proxy_operator_pool_demand" && label.GetName() == "pool" && label.GetValue() == pool {
					return m.GetGauge().GetValue()
				}
			}
		}
	}
	return -1
}

// A lease that waits for an empty pool shows as demand, by which an autoscaler makes it grow, and is served then.
func TestALeaseOfAnEmptyPoolIsDemandAndIsServed(t *testing.T) {
	f := startFleet(t)
	pool := f.pool("eu", 0, 0, nil)
	f.settled(pool, 0)
	lease := &v1alpha1.ProxyLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "waits"},
		Spec:       v1alpha1.ProxyLeaseSpec{PoolRef: &v1alpha1.LocalRef{Name: "eu"}, Holder: "crawler"},
	}
	f.must(f.env.Client.Create(t.Context(), lease))
	waitFor(t, "demand", func() bool { return f.demand("eu") == 1 && getPool(t, f.env, pool).Status.Pending == 1 })
	scale(t, f.env, pool, 1)
	waitFor(t, "the lease to be bound", func() bool { return f.readLease(lease).Status.Phase == v1alpha1.LeaseBound })
	waitFor(t, "the status", func() bool {
		s := getPool(t, f.env, pool).Status
		return s.Leased == 1 && s.Pending == 0 && f.demand("eu") == 1
	})
	f.must(f.env.Client.Delete(t.Context(), lease))
	scale(t, f.env, pool, 0)
	waitFor(t, "no demand", func() bool { return f.demand("eu") == 0 })
	f.must(f.env.Client.Delete(t.Context(), pool))
	waitFor(t, "no metric of a pool that is gone", func() bool { return f.demand("eu") == -1 })
}

// Deleting the pool drains as scaling down does: the holder is told and keeps its lease, and when it gives it back the proxy
// goes without waiting for the deadline.
func TestDeletingAPoolDrainsItsMembers(t *testing.T) {
	f := startFleet(t)
	f.env.ControllerManager(t)
	pool := f.pool("eu", 2, 10*time.Minute, nil)
	f.settled(pool, 2)
	lease := f.lease("holder", "eu")
	f.must(f.env.Client.Delete(t.Context(), pool, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	waitFor(t, "the idle member to go and the holder to be told", func() bool {
		return len(f.members(pool)) == 1 && meta.IsStatusConditionTrue(f.readLease(lease).Status.Conditions, v1alpha1.ConditionDraining)
	})
	if f.readLease(lease).Status.Phase != v1alpha1.LeaseBound || len(f.cloud.Instances()) != 1 {
		t.Errorf("the lease is %s, and %d instances are left", lease.Status.Phase, len(f.cloud.Instances()))
	}
	f.must(f.env.Client.Delete(t.Context(), lease))
	waitFor(t, "the other one to go", func() bool { return len(f.members(pool)) == 0 && len(f.cloud.Instances()) == 0 })
}
