package proxy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

// The class has its finalizer before the first Proxy is bound to it, for one write however many Proxies there are.
func TestA16_TheClassIsHeldBeforeAnythingIsBoundToIt(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	class := newClass(t, env, "hold-"+namespace, nil)
	acceptClass(t, env, class)
	direct, err := client.NewWithWatch(env.Config, client.Options{Scheme: manager.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	clock := clocktesting.NewFakeClock(time.Now())
	var log []string
	r := &Reconciler{
		Options: Options{ControllerName: v1alpha1.DefaultControllerName, Clock: clock}, Recorder: events.NewFakeRecorder(100),
		Client: interceptor.NewClient(direct, interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
				log = append(log, fmt.Sprintf("%T", obj))
				return c.Patch(ctx, obj, patch, opts...)
			},
			SubResourceApply: func(ctx context.Context, c client.Client, _ string, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
				log = append(log, "status")
				return c.Status().Apply(ctx, obj, opts...)
			},
		}),
	}
	for n := range 5 {
		px := newProxy(t, env, namespace, class.Name, func(px *v1alpha1.Proxy) { px.Name = fmt.Sprint("p-", n) })
		for waited := false; ; waited = true {
			result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(px)})
			if err != nil {
				t.Fatal(err)
			}
			if get(t, env, px).Status.Binding != nil {
				if waited != (n == 0) {
					t.Errorf("Proxy %d waited: %v", n, waited)
				}
				break
			}
			clock.Step(result.RequeueAfter)
		}
	}
	if want := []string{"*v1alpha1.ProviderClass", "status", "status", "status", "status", "status"}; !slices.Equal(log, want) {
		t.Errorf("writes %v, want %v", log, want)
	}
}

// A class that is deleted while its first Proxy is being bound either has no Proxy, or stays.
func TestA16_NoClassVanishesUnderItsFirstProxy(t *testing.T) {
	env := testenv.New(t)
	startCore(t, env, Options{Health: newScriptedHealth()})
	namespace := env.Namespace(t)
	bound := 0
	// Around the moments in which the class is held, and in which the Proxy is bound.
	for n, after := range []time.Duration{
		0, 250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2 * time.Millisecond, 4 * time.Millisecond, 8 * time.Millisecond,
		holdSettle - 5*time.Millisecond, holdSettle, holdSettle + 5*time.Millisecond, holdSettle + 20*time.Millisecond,
	} {
		class := newClass(t, env, fmt.Sprintf("race-%d-%s", n, namespace), nil)
		acceptClass(t, env, class)
		px := newProxy(t, env, namespace, class.Name, func(px *v1alpha1.Proxy) { px.Name = fmt.Sprint("race-", n) })
		<-time.After(after)
		if err := env.Client.Delete(t.Context(), class.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "a decision", func() bool {
			switch reasonOf(get(t, env, px), v1alpha1.ConditionAccepted) {
			case v1alpha1.ReasonBound, v1alpha1.ReasonClassNotFound, v1alpha1.ReasonClassTerminating:
				return true
			}
			return false
		})
		now := get(t, env, px)
		fresh := &v1alpha1.ProviderClass{}
		err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(class), fresh)
		if client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		if now.Status.Binding != nil {
			bound++
			if err != nil || !slices.Contains(fresh.Finalizers, v1alpha1.FinalizerClassInUse) {
				t.Errorf("round %d: bound to a class that is gone", n)
			}
		}
	}
	t.Logf("%d were bound in time", bound)
}

// A deletion that waits for a class which is not the one says how to get out, also where no provider manager does.
func TestA15_ADeletionWithoutItsClassSaysHowOut(t *testing.T) {
	now := metav1.NewTime(time.Unix(1e9, 0))
	px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "px", DeletionTimestamp: &now, Finalizers: []string{v1alpha1.FinalizerInstance(v1alpha1.ProviderKVM)},
	}}
	px.Spec.Mode, px.Spec.Provider = v1alpha1.ModeManaged, "c"
	px.Status.Binding = &v1alpha1.Binding{Type: v1alpha1.ProviderKVM, ClassName: "c", ClassUID: "former"}
	for name, class := range map[string]*v1alpha1.ProviderClass{
		"gone":                       nil,
		"made again":                 {ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "another"}, Spec: v1alpha1.ProviderClassSpec{Type: v1alpha1.ProviderKVM}},
		"made again as another type": {ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "another"}, Spec: v1alpha1.ProviderClassSpec{Type: v1alpha1.ProviderGCP}},
	} {
		t.Run(name, func(t *testing.T) {
			status := Compose(px, Input{Class: class, Now: now.Time, LeasesKnown: true})
			for _, c := range status.Conditions {
				if c.Type == v1alpha1.ConditionReady && !strings.Contains(c.Message, "crawl.example.com/skip-cleanup=true") {
					t.Errorf("message %q", c.Message)
				}
			}
			if status.Binding == nil || status.Binding.ClassUID != "former" {
				t.Errorf("the binding moved: %+v", status.Binding)
			}
		})
	}
}
