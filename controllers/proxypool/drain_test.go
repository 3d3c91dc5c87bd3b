package proxypool

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// leased is a count that is the same for all.
func leased(n int) func(types.UID) int { return func(types.UID) int { return n } }

// draining gives members time for their leases.
func drains(timeout time.Duration) option {
	return func(px *v1alpha1.Proxy) {
		px.Spec.Deletion = &v1alpha1.ProxyDeletion{DrainTimeoutSeconds: new(int32(timeout.Seconds()))}
	}
}

// drainingWorld has leased members whose leases may run for ten minutes.
func drainingWorld(replicas int32, leasesEach int) *world {
	w := newWorld(replicas, leasesEach)
	w.pool.Spec.Template.Spec.Deletion = &v1alpha1.ProxyDeletion{DrainTimeoutSeconds: new(int32(600))}
	for _, px := range w.members {
		drains(10 * time.Minute)(px)
	}
	return w
}

func TestP3_LeasedMembersDrainUntilTheirDeadline(t *testing.T) {
	w := drainingWorld(3, 2)
	w.pool.Spec.Replicas = new(int32(1))
	asked := w.now
	plan := w.step()
	if len(plan.Deletes) != 0 || len(plan.Drains) != 2 {
		t.Fatalf("deletes %v and drains %d, want none and 2", deletedNames(plan), len(plan.Drains))
	}
	for _, d := range plan.Drains {
		request := d.Proxy.Spec.DrainRequests[0]
		if request.Requester != drainRequester || request.Reason != reasonScaleDown || !request.DeadlineTime.Time.Equal(asked.Add(10*time.Minute)) {
			t.Errorf("request %+v", request)
		}
	}
	if plan := w.plan(); plan.acts() || plan.Status.Draining != 2 || plan.Status.Replicas != 1 {
		t.Errorf("while they drain it acts, or counts wrongly: %+v", plan.Status)
	}
	// One is released: it goes at once.
	w.leases[plan.Drains[0].Proxy.UID] = 0
	if got := deletedNames(w.step()); len(got) != 1 || got[0] != plan.Drains[0].Proxy.Name {
		t.Errorf("deletes %v, want the released one", got)
	}
	w.gone()
	// The other one keeps its lease past the deadline, which should have revoked it: a condition says so, and it goes.
	w.now = asked.Add(10*time.Minute + drainGrace)
	late := w.step()
	if c := conditionOf(late, v1alpha1.ConditionDrainBlocked); c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonDraining {
		t.Errorf("DrainBlocked is %+v", c)
	}
	if got := deletedNames(late); len(got) != 1 {
		t.Errorf("deletes %v past the deadline", got)
	}
	w.gone()
	if c := conditionOf(w.step(), v1alpha1.ConditionDrainBlocked); c.Status != metav1.ConditionFalse {
		t.Errorf("DrainBlocked is %+v", c)
	}
}

func TestP11_GrowingTakesDrainingMembersBackFirst(t *testing.T) {
	w := drainingWorld(6, 1)
	for _, size := range []int32{2, 5, 1, 6, 3, 6} {
		w.pool.Spec.Replicas = &size
		w.pool.Generation++
		w.step()
		if plan := w.plan(); plan.acts() || plan.Status.Replicas != size || int(plan.Status.Draining) != 6-int(size) {
			t.Fatalf("at size %d: %+v", size, plan.Status)
		}
	}
	if w.made != 0 || len(w.members) != 6 {
		t.Errorf("%d were made and %d exist, want the six of the beginning", w.made, len(w.members))
	}
	for _, px := range w.members {
		if len(px.Spec.DrainRequests) != 0 {
			t.Errorf("%s is still asked to drain", px.Name)
		}
	}
}

func TestP11_OnlyThePoolsOwnDrainIsLifted(t *testing.T) {
	for name, spoil := range map[string]func(*v1alpha1.Proxy){
		"somebody else's request": func(px *v1alpha1.Proxy) { px.Spec.DrainRequests[0].Requester = "person" },
		"somebody else's besides": func(px *v1alpha1.Proxy) {
			px.Spec.DrainRequests = append(px.Spec.DrainRequests, v1alpha1.DrainRequest{Requester: "person"})
		},
		"an old template": old,
		"being deleted":   deleting,
		"does not work":   sick(time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			w := drainingWorld(2, 1)
			w.pool.Spec.Replicas = new(int32(1))
			drained := w.step().Drains[0].Proxy
			spoil(drained)
			w.pool.Spec.Replicas = new(int32(2))
			plan := w.plan()
			if len(plan.Undrains) != 0 || len(plan.Creates) != 1 {
				t.Errorf("takes back %d and makes %v, want a new one", len(plan.Undrains), plan.Creates)
			}
		})
	}
	// A person's cordon stays on a member that comes back.
	w := drainingWorld(2, 1)
	w.pool.Spec.Replicas = new(int32(1))
	drained := w.step().Drains[0].Proxy
	drained.Spec.Leasing = v1alpha1.LeasingDisabled
	w.pool.Spec.Replicas = new(int32(2))
	w.step()
	if drained.Spec.Leasing != v1alpha1.LeasingDisabled || len(drained.Spec.DrainRequests) != 0 {
		t.Errorf("after taking it back: %+v", drained.Spec)
	}
}

// A rollback takes back what the rollout was draining.
func TestRollbackTakesDrainingMembersBack(t *testing.T) {
	w := drainingWorld(8, 1)
	w.pool.Spec.Template.Spec.Port = 8080
	w.pool.Generation++
	plan := w.step()
	if len(plan.Drains) != 2 || len(plan.Creates) != 2 {
		t.Fatalf("drains %d and makes %v", len(plan.Drains), plan.Creates)
	}
	w.pool.Spec.Template.Spec.Port = 3128
	w.pool.Generation++
	for range 3 {
		w.step()
		w.gone()
	}
	for _, px := range w.members {
		if len(px.Spec.DrainRequests) > 0 || px.Spec.Port != 3128 {
			t.Errorf("%s drains or is of the broken template", px.Name)
		}
	}
	if len(w.members) != 8 || w.made != 2 {
		t.Errorf("%d exist and %d were made", len(w.members), w.made)
	}
}

// What this process patched counts, although the cache shows the version before.
func TestPatchedMembersAreSeenBeforeTheCacheShowsThem(t *testing.T) {
	pool := newPool(1)
	px := members(pool, 1, ready)[0]
	px.ResourceVersion = "7"
	mem := (&memories{}).of(pool)
	drained := px.DeepCopy()
	drained.ResourceVersion = "8"
	drained.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: drainRequester, DeadlineTime: new(metav1.NewTime(start))}}
	mem.notePatched("7", drained)
	if got := mem.view([]*v1alpha1.Proxy{px}, start); len(got[0].Spec.DrainRequests) != 1 {
		t.Error("the patch is not seen")
	}
	later := px.DeepCopy()
	later.ResourceVersion = "9"
	if got := mem.view([]*v1alpha1.Proxy{later}, start); got[0] != later {
		t.Error("a later version is not seen")
	}
	if got := mem.view([]*v1alpha1.Proxy{px}, start); got[0] != px {
		t.Error("the memory outlives its use")
	}
}

// Two patches in a row, of which the cache shows neither yet, or only the first: the member is as the second left it.
func TestPatchesOfPatchedMembersAreSeen(t *testing.T) {
	pool := newPool(1)
	version := func(n string, drained bool) *v1alpha1.Proxy {
		px := members(pool, 1, ready)[0]
		if px.ResourceVersion = n; drained {
			px.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: drainRequester}}
		}
		return px
	}
	mem := (&memories{}).of(pool)
	mem.notePatched("5", version("6", false))
	mem.notePatched("6", version("7", true))
	for _, cached := range []string{"5", "6"} {
		if got := mem.view([]*v1alpha1.Proxy{version(cached, false)}, start); got[0].ResourceVersion != "7" {
			t.Errorf("the cache is at 5 and then 6: the member is seen as %s, want 7", got[0].ResourceVersion)
		}
	}
	if got := mem.view([]*v1alpha1.Proxy{version("8", false)}, start); got[0].ResourceVersion != "8" {
		t.Errorf("a later version is not seen, but %s", got[0].ResourceVersion)
	}
	if got := mem.view([]*v1alpha1.Proxy{version("5", false)}, start); got[0].ResourceVersion != "5" {
		t.Error("the memory outlives its use")
	}
}

// A rollout that only waits for leases which may run until their deadline stands still for nobody's fault.
func TestWaitingForLeasesIsNoStandstill(t *testing.T) {
	w := drainingWorld(4, 1)
	w.pool.Spec.Template.Spec.Deletion.DrainTimeoutSeconds = new(int32(3600))
	for _, px := range w.members {
		drains(time.Hour)(px)
	}
	w.pool.Spec.Template.Spec.Port = 8080
	w.pool.Generation++
	settle := func() {
		for range 20 {
			w.step()
			w.gone()
			for _, px := range w.members {
				if !isAvailable(px) {
					w.makeReady(px)
				}
			}
		}
	}
	settle()
	w.now = w.now.Add(DefaultProgressDeadline + time.Minute)
	if c := progressing(w.step()); c.Status != metav1.ConditionTrue {
		t.Errorf("while members drain, Progressing is %+v", c)
	}
	// A successor that does not work is reported all the same.
	for _, px := range w.members {
		if px.Spec.Port == 8080 {
			unhealthy(px)
		}
	}
	w.step()
	w.now = w.now.Add(DefaultProgressDeadline)
	if c := progressing(w.step()); c.Reason != v1alpha1.ReasonProgressDeadline {
		t.Errorf("with a successor that does not work, Progressing is %+v", c)
	}
}
