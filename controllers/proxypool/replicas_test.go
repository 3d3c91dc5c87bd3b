package proxypool

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// Zero is zero, also in the middle of a rollout whose surge would keep some and that waits for releases.
func TestScalingToZeroDuringARollout(t *testing.T) {
	for _, kind := range []v1alpha1.PoolStrategyType{v1alpha1.StrategyRollingUpdate, v1alpha1.StrategyOnRelease} {
		w := drainingWorld(4, 1)
		w.pool.Spec.Strategy = &v1alpha1.PoolStrategy{Type: kind, MaxSurge: new(intstr.FromInt32(2))}
		w.pool.Spec.Template.Spec.Port = 8080
		w.step()
		w.pool.Spec.Replicas = new(int32(0))
		w.pool.Generation++
		w.step()
		plan := w.step()
		if plan.Status.Replicas != 0 || plan.acts() {
			t.Errorf("%s: %d replicas are left, and %s", kind, plan.Status.Replicas, describe(plan))
		}
		if c := conditionOf(plan, v1alpha1.ConditionAvailable); c.Status != metav1.ConditionTrue || strings.Contains(c.Message, "-1") {
			t.Errorf("%s: Available is %+v", kind, c)
		}
	}
}

func TestRolloutInTheFutureIsLookedAtInTime(t *testing.T) {
	pool := newPool(1)
	pool.Spec.Rollout = &v1alpha1.PoolRollout{AfterTime: new(metav1.NewTime(start.Add(time.Hour)))}
	if plan := MakePlan(Input{Pool: pool, Members: members(pool, 1, ready), Now: start}); plan.acts() || plan.Recheck != time.Hour {
		t.Errorf("looks again in %s, want 1h, and %s", plan.Recheck, describe(plan))
	}
}

// A pool whose members are refused says which field it is, and tells when that changes.
func TestRefusedMembersAreToldOfByField(t *testing.T) {
	pool := newPool(2)
	list := members(pool, 2)
	before := list[1].DeepCopy()
	meta.SetStatusCondition(&list[1].Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonClassNotFound,
		Message: "spec.provider: ProviderClass none does not exist.",
	})
	c := conditionOf(MakePlan(Input{Pool: pool, Members: list, Now: start}), v1alpha1.ConditionReady)
	if c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, list[1].Name+": spec.provider: ProviderClass none does not exist.") {
		t.Errorf("Ready is %+v", c)
	}
	if !memberChanged(event.UpdateEvent{ObjectOld: before, ObjectNew: list[1]}) {
		t.Error("the pool does not look when a member is refused")
	}
	failed(list[1])
	meta.SetStatusCondition(&list[1].Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonBound})
	meta.SetStatusCondition(&list[1].Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionProvisioned, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonInvalidSpec, Message: "spec.placement.zone: Invalid value",
	})
	c = conditionOf(MakePlan(Input{Pool: pool, Members: list, Now: start}), v1alpha1.ConditionReady)
	if !strings.Contains(c.Message, "spec.placement.zone") {
		t.Errorf("Ready is %+v", c)
	}
}

// A pool looks when something that it plans with has changed, and at nothing else of the many writes of a life.
func TestWhatOfAMemberWakesThePool(t *testing.T) {
	upToDate := func(status metav1.ConditionStatus, reason string) option {
		return func(px *v1alpha1.Proxy) {
			meta.SetStatusCondition(&px.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionUpToDate, Status: status, Reason: reason})
		}
	}
	held := func(px *v1alpha1.Proxy) { px.Finalizers = []string{v1alpha1.FinalizerLeaseDrain} }
	nothing := func(*v1alpha1.Proxy) {}
	for name, tt := range map[string]struct {
		before, after []option
		wakes         bool
	}{
		"it becomes ready":           {[]option{unhealthy}, []option{ready}, true},
		"it is ready no more":        {[]option{ready}, []option{unhealthy}, true},
		"it is not ready yet":        {[]option{nothing}, []option{condition(v1alpha1.ConditionReady, metav1.ConditionFalse)}, false},
		"it is provisioned":          {[]option{nothing}, []option{condition(v1alpha1.ConditionProvisioned, metav1.ConditionTrue)}, false},
		"it is up to date":           {[]option{nothing}, []option{upToDate(metav1.ConditionTrue, "UpToDate")}, false},
		"its secret has changed":     {[]option{ready}, []option{ready, upToDate(metav1.ConditionFalse, v1alpha1.ReasonSpecChanged)}, true},
		"it becomes unhealthy":       {[]option{unhealthy}, []option{unhealthy, sick(0)}, true},
		"it is unhealthy anew":       {[]option{sick(0)}, []option{sick(1)}, true},
		"a probe says nothing new":   {[]option{sick(0)}, []option{sick(0), cooling(1)}, false},
		"it is empty":                {[]option{ready}, []option{ready, condition(v1alpha1.ConditionDrained, metav1.ConditionTrue)}, true},
		"it drains":                  {[]option{ready}, []option{ready, condition(v1alpha1.ConditionDrained, metav1.ConditionFalse)}, false},
		"it is being deleted":        {[]option{ready}, []option{ready, deleting}, true},
		"its deletion goes on":       {[]option{ready, deleting}, []option{unhealthy, deleting}, false},
		"its deletion is let go":     {[]option{ready, deleting, held}, []option{ready, deleting}, true},
		"its cost changes":           {[]option{ready}, []option{ready, cost(1)}, true},
		"the provider notes its aim": {[]option{ready, cost(1)}, []option{ready, cost(1), func(px *v1alpha1.Proxy) { px.Annotations[v1alpha1.AnnotationFirstIntent] = "x" }}, false},
		"somebody takes it away":     {[]option{ready, deleting}, []option{ready, deleting, func(px *v1alpha1.Proxy) { px.OwnerReferences = nil }}, true},
	} {
		pool := newPool(1)
		before, after := memberOf(pool, "a", tt.before...), memberOf(pool, "a", tt.after...)
		if got := memberChanged(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != tt.wakes {
			t.Errorf("%s: wakes %v, want %v", name, got, tt.wakes)
		}
	}
}
