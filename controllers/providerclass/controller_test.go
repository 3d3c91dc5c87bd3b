package providerclass

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/manager"
)

func TestA16_FinalizerWhileInUse(t *testing.T) {
	mine, other := v1alpha1.FinalizerClassInUse, v1alpha1.FinalizerClassInstances
	for _, tt := range []struct {
		name            string
		have            []string
		inUse, deleting bool
		skipCleanup     bool
		want            []string
	}{
		{name: "unused"},
		{name: "comes into use", inUse: true, want: []string{mine}},
		{name: "in use beside another", have: []string{other}, inUse: true, want: []string{other, mine}},
		{name: "falls out of use", have: []string{mine}, want: []string{mine}},
		{name: "deleted in use", have: []string{mine}, inUse: true, deleting: true, want: []string{mine}},
		{name: "deleted out of use", have: []string{mine, other}, deleting: true, want: []string{other}},
		// The API server takes no new finalizer on an object that is being deleted.
		{name: "comes into use while being deleted", have: []string{other}, inUse: true, deleting: true, want: []string{other}},
		{name: "abandoned", have: []string{mine, other}, deleting: true, skipCleanup: true},
		{name: "abandoned in use", have: []string{mine, other}, inUse: true, deleting: true, skipCleanup: true, want: []string{mine, other}},
		{name: "abandoned and not deleted", have: []string{other}, skipCleanup: true, want: []string{other}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			class := &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Finalizers: tt.have}}
			if tt.skipCleanup {
				class.Annotations = map[string]string{v1alpha1.AnnotationSkipCleanup: "true"}
			}
			if tt.deleting {
				class.DeletionTimestamp = new(metav1.NewTime(time.Unix(1, 0)))
			}
			if got := wantedFinalizers(class, tt.inUse); !slices.Equal(got, tt.want) {
				t.Errorf("finalizers %v, want %v", got, tt.want)
			}
		})
	}
}

// A Proxy that is bound to a former class of the same name does not hold the present one.
func TestNamesakeIsAnotherClass(t *testing.T) {
	class := &v1alpha1.ProviderClass{
		ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "new"}, Spec: v1alpha1.ProviderClassSpec{ControllerName: v1alpha1.DefaultControllerName},
	}
	bound := func(name string, uid types.UID) *v1alpha1.Proxy {
		return &v1alpha1.Proxy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Status:     v1alpha1.ProxyStatus{Binding: &v1alpha1.Binding{ClassName: "c", ClassUID: uid}},
		}
	}
	c := fake.NewClientBuilder().WithScheme(manager.Scheme()).WithIndex(&v1alpha1.Proxy{}, indexClassUID, byClassUID).
		WithObjects(class, bound("a", "old")).Build()
	r := NewReconciler(c, Options{ControllerName: v1alpha1.DefaultControllerName})
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(class)}); err != nil {
		t.Fatal(err)
	}
	got := &v1alpha1.ProviderClass{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(class), got); err != nil {
		t.Fatal(err)
	}
	if len(got.Finalizers) != 0 {
		t.Errorf("finalizers %v, want none", got.Finalizers)
	}
}

// A Proxy may be bound in the moment in which its class is deleted: the finalizer waits for what was decided on before.
func TestA16_ADeletedClassWaitsForBindingsUnderWay(t *testing.T) {
	for name, bind := range map[string]bool{"none comes": false, "one comes": true} {
		t.Run(name, func(t *testing.T) {
			class := &v1alpha1.ProviderClass{
				ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "uid", Finalizers: []string{v1alpha1.FinalizerClassInUse}},
				Spec:       v1alpha1.ProviderClassSpec{ControllerName: v1alpha1.DefaultControllerName},
			}
			c := fake.NewClientBuilder().WithScheme(manager.Scheme()).WithIndex(&v1alpha1.Proxy{}, indexClassUID, byClassUID).WithObjects(class).Build()
			clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
			r := NewReconciler(c, Options{ControllerName: v1alpha1.DefaultControllerName, Clock: clock})
			reconciled := func() time.Duration {
				t.Helper()
				result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(class)})
				if err != nil {
					t.Fatal(err)
				}
				return result.RequeueAfter
			}
			exists := func() bool {
				t.Helper()
				err := c.Get(t.Context(), client.ObjectKeyFromObject(class), &v1alpha1.ProviderClass{})
				if client.IgnoreNotFound(err) != nil {
					t.Fatal(err)
				}
				return err == nil
			}
			if after := reconciled(); after != 0 {
				t.Errorf("a class that is not deleted is looked at again after %v", after)
			}
			if err := c.Delete(t.Context(), class.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			if after := reconciled(); after != bindGrace || !exists() {
				t.Fatalf("looked at again after %v, exists: %v", after, exists())
			}
			px := &v1alpha1.Proxy{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "px"},
				Status:     v1alpha1.ProxyStatus{Binding: &v1alpha1.Binding{ClassName: "c", ClassUID: "uid"}},
			}
			if bind {
				if err := c.Create(t.Context(), px); err != nil {
					t.Fatal(err)
				}
			}
			clock.Step(bindGrace)
			if after := reconciled(); after != 0 || exists() != bind {
				t.Errorf("looked at again after %v, exists: %v, want %v", after, exists(), bind)
			}
			if bind {
				if err := c.Delete(t.Context(), px); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				reconciled()
			}
			if exists() || len(r.deleted) != 0 {
				t.Errorf("exists: %v, remembered: %v", exists(), r.deleted)
			}
		})
	}
}
