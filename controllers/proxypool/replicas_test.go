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
