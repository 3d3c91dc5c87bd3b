package instance

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// TestRelevant: what changes a decision wakes the controller, and what others write does not.
func TestRelevant(t *testing.T) {
	finalizer := v1alpha1.FinalizerInstance(v1alpha1.ProviderKubernetes)
	held := func(px *v1alpha1.Proxy) { px.Finalizers = []string{v1alpha1.FinalizerLeaseDrain, finalizer} }
	health := func(status metav1.ConditionStatus) func(*v1alpha1.Proxy) {
		return func(px *v1alpha1.Proxy) {
			px.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionHealthy, Status: status}}
		}
	}
	for _, test := range []struct {
		name          string
		before, after func(*v1alpha1.Proxy)
		want          bool
	}{
		{"nothing", nil, nil, false},
		{"specification", nil, func(px *v1alpha1.Proxy) { px.Generation = 2 }, true},
		{"deletion", nil, func(px *v1alpha1.Proxy) { px.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, true},
		{"drain ends", held, func(px *v1alpha1.Proxy) { px.Finalizers = []string{finalizer} }, true},
		{"own finalizer goes", held, func(px *v1alpha1.Proxy) { px.Finalizers = []string{v1alpha1.FinalizerLeaseDrain} }, true},
		{"own finalizer comes", nil, func(px *v1alpha1.Proxy) { px.Finalizers = []string{finalizer} }, false},
		{"skip-cleanup", nil, func(px *v1alpha1.Proxy) { px.Annotations = map[string]string{v1alpha1.AnnotationSkipCleanup: "true"} }, true},
		{"another annotation", nil, func(px *v1alpha1.Proxy) { px.Annotations = map[string]string{"a": "b"} }, false},
		{"binding", nil, func(px *v1alpha1.Proxy) { px.Status.Binding = &v1alpha1.Binding{ClassName: "c"} }, true},
		{"instance wiped", func(px *v1alpha1.Proxy) { px.Status.Instance = &v1alpha1.Instance{} }, nil, true},
		{"own record", nil, func(px *v1alpha1.Proxy) { px.Status.Instance = &v1alpha1.Instance{} }, false},
		{"health", nil, func(px *v1alpha1.Proxy) { px.Status.Health = &v1alpha1.Health{InstanceID: "i"} }, false},
		{"becomes unhealthy", health(metav1.ConditionTrue), health(metav1.ConditionFalse), true},
		{"becomes healthy", health(metav1.ConditionFalse), health(metav1.ConditionTrue), false},
		{"was never healthy", nil, health(metav1.ConditionFalse), false},
		{"cooldown", nil, func(px *v1alpha1.Proxy) { px.Status.Cooldowns = []v1alpha1.Cooldown{{Target: "a"}} }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			before, after := &v1alpha1.Proxy{}, &v1alpha1.Proxy{}
			before.Generation, after.Generation = 1, 1
			if test.before != nil {
				test.before(before)
			}
			if test.after != nil {
				test.after(after)
			}
			if got := relevant(finalizer).Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}
