package proxypool

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// says makes a member not ready, with a message.
func says(message string) option {
	return func(px *v1alpha1.Proxy) {
		meta.SetStatusCondition(&px.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "Test", Message: message, LastTransitionTime: metav1.NewTime(start.Add(-time.Minute)),
		})
	}
}

func refusedWith(message string) option {
	return func(px *v1alpha1.Proxy) {
		says("NotAccepted: " + message)(px)
		meta.SetStatusCondition(&px.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: "Test", Message: message,
		})
	}
}

func drainedBy(requesters ...string) option {
	return func(px *v1alpha1.Proxy) {
		for _, requester := range requesters {
			px.Spec.DrainRequests = append(px.Spec.DrainRequests, v1alpha1.DrainRequest{Requester: requester})
		}
	}
}

func drainedUntil(minutes time.Duration) option {
	return func(px *v1alpha1.Proxy) {
		px.Spec.DrainRequests = []v1alpha1.DrainRequest{{
			Requester: drainRequester, Reason: reasonScaleDown, DeadlineTime: new(metav1.NewTime(start.Add(minutes * time.Minute))),
		}}
	}
}

// Whatever keeps a pool from being as it should be, or is there besides, is in its condition Ready.
func TestReadySaysWhatIsInTheWay(t *testing.T) {
	const complete = "All 2 proxies are up to date and available."
	for name, c := range map[string]struct {
		members [][]option
		refused string
		want    string
	}{
		"nothing": {members: [][]option{{ready}, {ready}}, want: complete},
		"the first that is not ready speaks": {
			members: [][]option{{ready}, {says("CredentialsNotFound: no Secret")}, {says("another")}},
			want:    "1 of 2 proxies are up to date and available; 3 exist. Proxy m1: CredentialsNotFound: no Secret",
		},
		"what is refused comes before": {
			members: [][]option{{says("on its way")}, {refusedWith("spec.provider: unknown")}},
			want:    "0 of 2 proxies are up to date and available; 2 exist. Proxy m1: spec.provider: unknown",
		},
		"what the API server refuses, too": {
			members: [][]option{{says("on its way")}}, refused: "create member x: no",
			want: "0 of 2 proxies are up to date and available; 1 exist. create member x: no",
		},
		"a member that nobody has looked at yet": {
			members: [][]option{{ready}, {}}, want: "1 of 2 proxies are up to date and available; 2 exist.",
		},
		"draining ones, until the last deadline": {
			members: [][]option{{ready}, {ready}, {ready, drainedUntil(5)}, {ready, drainedUntil(9)}},
			want:    complete + " Draining besides: 2, until their leases end or 2026-03-01T12:09:00Z.",
		},
		"draining ones without a deadline": {
			members: [][]option{{ready}, {ready}, {ready, drainedUntil(5)}, {ready, drainedBy(drainRequester), old}},
			want:    complete + " Draining besides: 2, until their leases end.",
		},
		"ones that others drain": {
			members: [][]option{{ready}, {ready}, {ready, drainedBy("maintenance", "abuse")}, {ready, drainedBy("maintenance")}},
			want:    complete + " Kept from leases by drain requests of abuse, maintenance, which the pool does not lift: 2.",
		},
		"leaving ones, up to the limit": {
			members: [][]option{{ready}, {deleting}, {deleting}, {deleting}},
			want:    "1 of 2 proxies are up to date and available; 1 exist. No more are made, since with those that are leaving (3) the limit of 4 proxies is reached.",
		},
	} {
		pool := newPool(2)
		pool.Spec.Strategy = &v1alpha1.PoolStrategy{Type: v1alpha1.StrategyOnRelease}
		var list []*v1alpha1.Proxy
		for i, options := range c.members {
			list = append(list, memberOf(pool, "m"+string(rune('0'+i)), options...))
		}
		plan := MakePlan(Input{Pool: pool, Members: list, Now: start, Leases: leased(1), Refused: c.refused})
		if got := conditionOf(plan, v1alpha1.ConditionReady).Message; got != c.want {
			t.Errorf("%s:\n%q, want\n%q", name, got, c.want)
		}
	}
}

// Scaled to zero while leases run: Ready, since leases may run for long, and it says what is still there.
func TestPoolOfZeroTellsOfWhatDrains(t *testing.T) {
	w := drainingWorld(3, 1)
	w.pool.Spec.Replicas = new(int32(0))
	w.step()
	plan := w.step()
	ready, progress := conditionOf(plan, v1alpha1.ConditionReady), progressing(plan)
	if ready.Status != metav1.ConditionTrue || !strings.Contains(ready.Message, "Draining besides: 3, until their leases end or 2026-03-01T12:10:00Z.") {
		t.Errorf("Ready is %+v", ready)
	}
	if progress.Reason != v1alpha1.ReasonComplete || !strings.Contains(progress.Message, "wait for those that drain: 3") {
		t.Errorf("Progressing is %+v", progress)
	}
	clear(w.leases)
	for range 2 {
		w.step()
		w.gone()
	}
	if got := conditionOf(w.plan(), v1alpha1.ConditionReady).Message; got != "All 0 proxies are up to date and available." {
		t.Errorf("in the end Ready says %q", got)
	}
}

// Drain requests of others are never lifted. A member that they keep empty is given up once the pool has its size without it,
// and never while it is leased.
func TestForeignDrainsAreNeitherLiftedNorKeptForever(t *testing.T) {
	for name, c := range map[string]struct {
		replicas, active, foreign int
		leases                    int
		deletes                   int
	}{
		"a successor is to be made":   {replicas: 4, active: 3, foreign: 1},
		"a successor is there":        {replicas: 4, active: 4, foreign: 1, deletes: 1},
		"it is leased":                {replicas: 4, active: 4, foreign: 1, leases: 1},
		"scaled to zero":              {replicas: 0, active: 0, foreign: 3, deletes: 3},
		"scaled to zero, and leased":  {replicas: 0, active: 0, foreign: 3, leases: 2},
		"too many, with active ones":  {replicas: 2, active: 3, foreign: 2, deletes: 3},
		"all are drained by somebody": {replicas: 4, active: 0, foreign: 4},
	} {
		pool := newPool(int32(c.replicas))
		list := members(pool, c.active+c.foreign, ready)
		for _, px := range list[c.active:] {
			drainedBy("maintenance")(px)
		}
		plan := MakePlan(Input{Pool: pool, Members: list, Now: start, Leases: func(uid types.UID) int {
			for _, px := range list[c.active:] {
				if px.UID == uid {
					return c.leases
				}
			}
			return 0
		}})
		if len(plan.Deletes) != c.deletes || len(plan.Undrains) > 0 {
			t.Errorf("%s: %v go and %d are taken back, want %d and none", name, deletedNames(plan), len(plan.Undrains), c.deletes)
		}
	}
	// A person's cordon is neither: such a member is one like any other.
	pool := newPool(2)
	cordoned := func(px *v1alpha1.Proxy) { px.Spec.Leasing = v1alpha1.LeasingDisabled }
	if plan := MakePlan(Input{Pool: pool, Members: members(pool, 2, ready, cordoned), Now: start}); plan.acts() {
		t.Error("a cordon of a person is acted on")
	}
}

// All members drained by others: the pool makes what its limit allows, and says what holds it up.
func TestForeignDrainsThatStarveAPoolAreSaid(t *testing.T) {
	w := newWorld(4, 0)
	for _, px := range w.members {
		drainedBy("maintenance")(px)
	}
	for range 10 {
		w.step()
		for _, px := range w.members {
			if len(px.Spec.DrainRequests) == 0 && !isAvailable(px) {
				w.makeReady(px)
			}
		}
	}
	got := conditionOf(w.plan(), v1alpha1.ConditionReady).Message
	for _, want := range []string{"2 of 4 ", "(4) the limit of 6 proxies is reached", "drain requests of maintenance, which the pool does not lift: 4."} {
		if !strings.Contains(got, want) {
			t.Errorf("Ready says %q, want %q in it", got, want)
		}
	}
}

// The pool looks again when a member says something else.
func TestPoolIsWokenByWhatMembersSay(t *testing.T) {
	pool := newPool(1)
	before, after := memberOf(pool, "m", says("on its way")), memberOf(pool, "m", says("no image"))
	if !memberChanged(event.UpdateEvent{ObjectOld: before, ObjectNew: after}) {
		t.Error("another message does not wake the pool")
	}
	if memberChanged(event.UpdateEvent{ObjectOld: before, ObjectNew: before.DeepCopy()}) {
		t.Error("nothing wakes the pool")
	}
}

func TestFailuresAreTriedAgainEverMoreRarely(t *testing.T) {
	var f failures
	one, two := types.NamespacedName{Name: "one"}, types.NamespacedName{Name: "two"}
	last := time.Duration(0)
	for range 100 {
		next := f.next(one)
		if next < last || next > lastRetry || last > 0 && next > 2*last {
			t.Fatalf("%v after %v", next, last)
		}
		last = next
	}
	if last != lastRetry || f.next(two) != firstRetry {
		t.Errorf("at last after %v", last)
	}
	f.forget(one)
	if got := f.next(one); got != firstRetry {
		t.Errorf("after a success %v", got)
	}
	conflict, other := errOutdated, errors.New("no")
	for err, want := range map[error]bool{
		conflict: true, other: false, errors.Join(conflict, conflict): true, errors.Join(conflict, errors.Join(other, conflict)): false,
	} {
		if outdated(err) != want {
			t.Errorf("outdated(%v) is %v", err, !want)
		}
	}
}
