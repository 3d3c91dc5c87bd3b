package proxypool

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

// What was meant to be careful must not keep a pool from what its owner asks for.

func waitsForQuota(px *v1alpha1.Proxy) {
	meta.SetStatusCondition(&px.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionProvisioned, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWaitingForCapacity,
		LastTransitionTime: metav1.NewTime(start.Add(-time.Minute)),
	})
}

// All members wait for capacity, and the template is corrected to a place that has some.
func TestRolloutOutOfAFullZone(t *testing.T) {
	for _, n := range []int32{1, 2, 3, 4, 10} {
		pool := newPool(n)
		list := members(pool, int(n), old, waitsForQuota)
		for step := range 60 {
			plan := MakePlan(Input{Pool: pool, Members: list, Now: start.Add(time.Duration(step) * time.Minute)})
			gone := map[types.UID]bool{}
			for _, d := range plan.Deletes {
				gone[d.Proxy.UID] = true
			}
			var next []*v1alpha1.Proxy
			for _, px := range list {
				if !gone[px.UID] {
					next = append(next, px)
				}
			}
			for _, name := range plan.Creates {
				next = append(next, memberOf(pool, name, ready))
			}
			list = next
		}
		plan := MakePlan(Input{Pool: pool, Members: list, Now: start.Add(time.Hour)})
		if plan.Status.Updated != n || plan.Status.Available != n || len(list) != int(n) {
			t.Errorf("%d replicas: %d exist, %d of the new template, %d available", n, len(list), plan.Status.Updated, plan.Status.Available)
		}
	}
}

func onRelease(pool *v1alpha1.ProxyPool) {
	pool.Spec.Strategy = &v1alpha1.PoolStrategy{Type: v1alpha1.StrategyOnRelease}
}

// OnRelease protects leases on proxies that work, of whatever template.
func TestOnReleaseDoesNotKeepWhatDoesNotWork(t *testing.T) {
	for name, more := range map[string][]option{"current": nil, "stale": {old}} {
		pool := newPool(4)
		onRelease(pool)
		pool.Spec.Remediation = &v1alpha1.PoolRemediation{UnhealthyTimeoutSeconds: new(int32(10))}
		list := members(pool, 4, ready)
		sick := append([]option{unhealthy, condition(v1alpha1.ConditionHealthy, metav1.ConditionFalse)}, more...)
		list[0] = memberOf(pool, list[0].Name, sick...)
		plan := MakePlan(Input{Pool: pool, Members: list, Now: start, Leases: leased(1)})
		if len(plan.Deletes) != 1 || plan.Deletes[0].Proxy != list[0] {
			t.Errorf("%s: %d are deleted, want the one that does not work", name, len(plan.Deletes))
		}
	}
}

// Scaling down is not replacing: it reaches leased members of an old template, too.
func TestOnReleaseScalesDown(t *testing.T) {
	pool := newPool(8)
	onRelease(pool)
	list := members(pool, 10, ready, old, drains(time.Minute))
	plan := MakePlan(Input{Pool: pool, Members: list, Now: start, Leases: leased(1)})
	if len(plan.Drains) != 2 || plan.Drains[0].Reason != reasonScaleDown {
		t.Errorf("%d of 10 are drained, want 2 for the scale", len(plan.Drains))
	}
}

// A pool is not Ready while its template does not reach its members; the condition says which field is refused, and the pool
// looks again by itself.
func TestTemplateThatMembersRefuseIsNotReady(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	startManager(t, env, namespace)
	pool := livePool(namespace, 2)
	if err := env.Client.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "two members", func() bool { return len(livingMembers(t, env, pool)) == 2 })
	for _, px := range livingMembers(t, env, pool) {
		ready(&px)
		if err := env.Client.Status().Update(t.Context(), &px); err != nil {
			t.Fatal(err)
		}
	}
	isReady := func() *metav1.Condition {
		return meta.FindStatusCondition(getPool(t, env, pool).Status.Conditions, v1alpha1.ConditionReady)
	}
	waitFor(t, "Ready", func() bool { c := isReady(); return c != nil && c.Status == metav1.ConditionTrue })
	label := func(value string) {
		if err := env.Client.Patch(t.Context(), pool, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"template":{"metadata":{"labels":{"geo":"`+value+`"}}}}}`))); err != nil {
			t.Fatal(err)
		}
	}
	label("not a label")
	waitFor(t, "not Ready, with the field", func() bool {
		c := isReady()
		return c.Status == metav1.ConditionFalse && c.ObservedGeneration == pool.Generation && strings.Contains(c.Message, "metadata.labels")
	})
	label("us")
	waitFor(t, "Ready again", func() bool {
		c := isReady()
		return c.Status == metav1.ConditionTrue && c.ObservedGeneration == pool.Generation
	})
}

// Members that were orphaned while they were drained, and while nobody was looking, become ordinary proxies that can be leased.
func TestOrphansOfADrainAreReleased(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	px := newProxy(livePool(namespace, 1), "eu-abcdefgh-0", "abcdefgh")
	px.OwnerReferences = nil
	px.Spec.DrainRequests = []v1alpha1.DrainRequest{
		{Requester: drainRequester, Reason: reasonScaleDown, DeadlineTime: new(metav1.NewTime(time.Now().Add(time.Minute)))},
		{Requester: "somebody"},
	}
	if err := env.Client.Create(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	startManager(t, env, namespace)
	waitFor(t, "the release", func() bool {
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(px), px); err != nil {
			t.Fatal(err)
		}
		return px.Labels[v1alpha1.LabelPool] == ""
	})
	if len(px.Spec.DrainRequests) != 1 || px.Spec.DrainRequests[0].Requester != "somebody" || px.Spec.ReplacePolicy != v1alpha1.ReplaceAutomatic {
		t.Errorf("an ordinary proxy now, with %+v and %s", px.Spec.DrainRequests, px.Spec.ReplacePolicy)
	}
}
