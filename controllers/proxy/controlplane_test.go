package proxy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/health"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

func good(v *health.Verdict) {
	v.Known, v.Healthy, v.Reason, v.Message = true, true, "ProbeSucceeded", "The probe succeeded."
	v.AccessRestricted, v.AccessReason, v.LastTransition = new(true), "ForbiddenTargetsRefused", time.Now()
}

func bad(v *health.Verdict) {
	v.Known, v.Healthy, v.Reason, v.Message, v.LastTransition = true, false, "ConnectRefused", "The proxy refuses.", time.Now()
}

func patch(t *testing.T, env *testenv.Env, obj client.Object, body string) {
	t.Helper()
	copied, ok := obj.DeepCopyObject().(client.Object)
	if !ok {
		t.Fatalf("%T is no object", obj)
	}
	if err := env.Client.Patch(t.Context(), copied, client.RawPatch(types.MergePatchType, []byte(body))); err != nil {
		t.Fatalf("patch %s: %v", body, err)
	}
}

func TestA17_BindingWaitsForTheClass(t *testing.T) {
	env := testenv.New(t)
	startCore(t, env, Options{Health: newScriptedHealth()})
	namespace := env.Namespace(t)
	px := newProxy(t, env, namespace, "a17-"+namespace, nil)
	waitReason(t, env, px, v1alpha1.ConditionAccepted, v1alpha1.ReasonClassNotFound)

	class := newClass(t, env, px.Spec.Provider, func(class *v1alpha1.ProviderClass) {
		class.Spec.AllowedNamespaces = v1alpha1.NamespaceAccess{
			From: v1alpha1.NamespacesFromSelector, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"crawlers": "yes"}},
		}
	})
	got := waitReason(t, env, px, v1alpha1.ConditionReady, v1alpha1.ReasonWaitingForProviderManager)
	if reasonOf(got, v1alpha1.ConditionAccepted) != v1alpha1.ReasonClassNotAccepted || got.Status.Binding != nil {
		t.Errorf("without a provider manager: %+v", got.Status)
	}

	acceptClass(t, env, class)
	waitReason(t, env, px, v1alpha1.ConditionAccepted, v1alpha1.ReasonNamespaceNotAllowed)

	patch(t, env, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, `{"metadata":{"labels":{"crawlers":"yes"}}}`)
	got = waitReason(t, env, px, v1alpha1.ConditionAccepted, v1alpha1.ReasonBound)
	if b := got.Status.Binding; b == nil || b.Type != v1alpha1.ProviderKubernetes || b.ClassUID != class.UID || b.ClassName != class.Name || b.BoundTime == nil {
		t.Errorf("binding %+v", b)
	}
}

func TestA15_A16_ClassInUseAndReplaced(t *testing.T) {
	env := testenv.New(t)
	startCore(t, env, Options{Health: newScriptedHealth()})
	namespace := env.Namespace(t)
	name := "a16-" + namespace
	class := newClass(t, env, name, nil)
	acceptClass(t, env, class)
	first := newProxy(t, env, namespace, name, nil)
	waitReason(t, env, first, v1alpha1.ConditionAccepted, v1alpha1.ReasonBound)
	classHas := func(finalizer string) bool {
		fresh := &v1alpha1.ProviderClass{}
		err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(class), fresh)
		if client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		return err == nil && fresh.UID == class.UID && strings.Contains(strings.Join(fresh.Finalizers, " "), finalizer)
	}
	waitFor(t, "the finalizer of a class in use", func() bool { return classHas(v1alpha1.FinalizerClassInUse) })

	// Deleted while in use: it stays, and takes nobody else.
	if err := env.Client.Delete(t.Context(), class.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	second := newProxy(t, env, namespace, name, func(px *v1alpha1.Proxy) { px.Name = "late" })
	waitReason(t, env, second, v1alpha1.ConditionAccepted, v1alpha1.ReasonClassTerminating)
	if !classHas(v1alpha1.FinalizerClassInUse) {
		t.Fatal("a class in use vanished")
	}

	// Forced away and made again with another type: the bound proxy keeps its binding.
	removeClass(t, env, class)
	again := newClass(t, env, name, func(class *v1alpha1.ProviderClass) {
		class.Spec.Type, class.Spec.GCP = v1alpha1.ProviderGCP, &v1alpha1.GCPClass{Project: "my-project"}
	})
	acceptClass(t, env, again)
	got := waitReason(t, env, first, v1alpha1.ConditionAccepted, v1alpha1.ReasonClassReplaced)
	if got.Status.Binding.Type != v1alpha1.ProviderKubernetes || got.Status.Binding.ClassUID != class.UID {
		t.Errorf("the binding moved: %+v", got.Status.Binding)
	}
	got = waitReason(t, env, second, v1alpha1.ConditionAccepted, v1alpha1.ReasonBound)
	if got.Status.Binding.Type != v1alpha1.ProviderGCP {
		t.Errorf("the late proxy is bound to %+v", got.Status.Binding)
	}

	// The last proxy goes, and so may the class.
	class = again
	waitFor(t, "the finalizer of the new class", func() bool { return classHas(v1alpha1.FinalizerClassInUse) })
	if err := env.Client.Delete(t.Context(), again.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	if err := env.Client.Delete(t.Context(), second.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the class to vanish with its last proxy", func() bool { return !classHas("") })
}

func TestA36_External(t *testing.T) {
	env := testenv.New(t)
	engine := newScriptedHealth()
	startCore(t, env, Options{Health: engine})
	px := newProxy(t, env, env.Namespace(t), "", func(px *v1alpha1.Proxy) {
		px.Spec.Mode, px.Spec.External = v1alpha1.ModeExternal, &v1alpha1.External{Host: "203.0.113.5"}
	})
	got := waitReason(t, env, px, v1alpha1.ConditionHealthy, "Probing")
	if len(got.Finalizers) != 0 || got.Status.Instance == nil || got.Status.Instance.Addresses[0] != "203.0.113.5" || got.Status.Binding != nil {
		t.Errorf("external proxy: finalizers %v, %+v", got.Finalizers, got.Status)
	}
	target, ok := engine.target(px.UID)
	if !ok || target.Address != "203.0.113.5:3128" || target.Managed || target.Credentials != nil {
		t.Errorf("target %+v", target)
	}
	engine.judge(px, good)
	got = waitReason(t, env, px, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	if got.Status.Phase != v1alpha1.PhaseReady || !strings.HasPrefix(got.Status.EgressIdentity, identityInstance) {
		t.Errorf("phase %s, identity %s", got.Status.Phase, got.Status.EgressIdentity)
	}

	// Another host is another instance, whose health is unknown.
	patch(t, env, px, `{"spec":{"external":{"host":"203.0.113.6"}}}`)
	moved := waitReason(t, env, px, v1alpha1.ConditionReady, v1alpha1.ReasonHealthUnknown)
	if moved.Status.Instance.ID == got.Status.Instance.ID || moved.Status.Instance.Addresses[0] != "203.0.113.6" {
		t.Errorf("after the move: %+v", moved.Status.Instance)
	}
	if err := env.Client.Patch(t.Context(), px.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"mode":"Managed"}}`))); err == nil {
		t.Error("the mode can be switched")
	}
	if err := env.Client.Delete(t.Context(), px.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the engine to forget", func() bool { _, ok := engine.target(px.UID); return !ok })
}

func TestA26_HealthOfThePreviousInstanceIsNotReady(t *testing.T) {
	env := testenv.New(t)
	engine := newScriptedHealth()
	startCore(t, env, Options{Health: engine})
	namespace := env.Namespace(t)
	class := newClass(t, env, "a26-"+namespace, nil)
	acceptClass(t, env, class)
	px := newProxy(t, env, namespace, class.Name, nil)
	waitReason(t, env, px, v1alpha1.ConditionAccepted, v1alpha1.ReasonBound)
	provision(t, env, px, "i-1")
	waitReason(t, env, px, v1alpha1.ConditionHealthy, "Probing")
	engine.judge(px, good)
	waitReason(t, env, px, v1alpha1.ConditionReady, v1alpha1.ReasonReady)

	provision(t, env, px, "i-2")
	waitReason(t, env, px, v1alpha1.ConditionReady, v1alpha1.ReasonHealthUnknown)
	// A late result of the first instance.
	engine.judge(px, func(v *health.Verdict) { good(v); v.InstanceID = "i-1" })
	got := waitReason(t, env, px, v1alpha1.ConditionHealthy, v1alpha1.ReasonInstanceChanged)
	if meta.IsStatusConditionTrue(got.Status.Conditions, v1alpha1.ConditionReady) || got.Status.Health != nil {
		t.Errorf("the health of i-1 counts for i-2: %+v", got.Status)
	}
	engine.judge(px, func(v *health.Verdict) { good(v); v.InstanceID = "i-2" })
	got = waitReason(t, env, px, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	if got.Status.Health.InstanceID != "i-2" {
		t.Errorf("health %+v", got.Status.Health)
	}
}

func TestA46_FlipIsOneWriteAndRestartIsNone(t *testing.T) {
	env := testenv.New(t)
	engine := newScriptedHealth()
	c := startCore(t, env, Options{Health: engine})
	namespace := env.Namespace(t)
	class := newClass(t, env, "a46-"+namespace, nil)
	acceptClass(t, env, class)
	px := newProxy(t, env, namespace, class.Name, nil)
	waitReason(t, env, px, v1alpha1.ConditionAccepted, v1alpha1.ReasonBound)
	provision(t, env, px, "i-1")
	waitReason(t, env, px, v1alpha1.ConditionHealthy, "Probing")
	engine.judge(px, good)
	waitReason(t, env, px, v1alpha1.ConditionReady, v1alpha1.ReasonReady)

	// A marker proxy after each flip shows that the queue was worked off.
	settle := func(name string) {
		marker := newProxy(t, env, namespace, "none", func(px *v1alpha1.Proxy) { px.Name = name })
		waitReason(t, env, marker, v1alpha1.ConditionAccepted, v1alpha1.ReasonClassNotFound)
	}
	for i, flip := range []func(*health.Verdict){bad, good, bad, good} {
		before := c.writes.count.Load()
		engine.judge(px, flip)
		want := []string{v1alpha1.ReasonNotHealthy, v1alpha1.ReasonReady}[i%2]
		waitReason(t, env, px, v1alpha1.ConditionReady, want)
		settle(fmt.Sprintf("flip-%d", i))
		// One write of the marker.
		if got := c.writes.count.Load() - before - 1; got != 1 {
			t.Errorf("flip %d took %d writes, want 1", i, got)
		}
	}
	c.stop()
	version := get(t, env, px).ResourceVersion

	// The real engine takes over from the status.
	c = startCore(t, env, Options{Health: health.New(health.Options{})})
	settle("restarted")
	waitFor(t, "the proxy to be reconciled", func() bool { return c.writes.count.Load() > 0 })
	if got := c.writes.count.Load(); got != 1 {
		t.Errorf("a restart took %d writes, want that of the marker alone", got)
	}
	if got := get(t, env, px).ResourceVersion; got != version {
		t.Errorf("a restart moved the proxy from %s to %s", version, got)
	}
}

func TestA28_SpecChangeIsObserved(t *testing.T) {
	env := testenv.New(t)
	startCore(t, env, Options{Health: newScriptedHealth()})
	px := newProxy(t, env, env.Namespace(t), "none", nil)
	waitReason(t, env, px, v1alpha1.ConditionAccepted, v1alpha1.ReasonClassNotFound)
	patch(t, env, px, `{"spec":{"capacity":7}}`)
	waitFor(t, "observedGeneration", func() bool {
		got := get(t, env, px)
		if got.Generation < 2 || got.Status.ObservedGeneration != got.Generation {
			return false
		}
		for _, condition := range got.Status.Conditions {
			if condition.ObservedGeneration != got.Generation {
				return false
			}
		}
		return true
	})
}

func TestA14_SkipCleanupWithoutProviderManager(t *testing.T) {
	env := testenv.New(t)
	startCore(t, env, Options{Health: newScriptedHealth()})
	namespace := env.Namespace(t)
	class := newClass(t, env, "a14-"+namespace, nil)
	acceptClass(t, env, class)
	for _, when := range []string{"before", "during"} {
		t.Run(when+" deletion", func(t *testing.T) {
			px := newProxy(t, env, namespace, class.Name, func(px *v1alpha1.Proxy) {
				px.Name, px.Finalizers = when, []string{v1alpha1.FinalizerInstance(v1alpha1.ProviderKubernetes)}
			})
			waitReason(t, env, px, v1alpha1.ConditionAccepted, v1alpha1.ReasonBound)
			provision(t, env, px, "i-"+when)
			annotate := func() {
				patch(t, env, px, `{"metadata":{"annotations":{"crawl.example.com/skip-cleanup":"true"}}}`)
			}
			if when == "before" {
				annotate()
			}
			if err := env.Client.Delete(t.Context(), px.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			if when == "during" {
				waitReason(t, env, px, v1alpha1.ConditionReady, v1alpha1.ReasonTerminating)
				annotate()
			}
			waitFor(t, "the object to be released", func() bool { return !exists(t, env, px) })
			waitFor(t, "event InstanceAbandoned", func() bool {
				list := &eventsv1.EventList{}
				if err := env.Client.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
					t.Fatal(err)
				}
				for _, e := range list.Items {
					if e.Reason == eventAbandoned && e.Regarding.UID == px.UID && strings.Contains(e.Note, "pod://ns/i-"+when) && strings.Contains(e.Note, "garbage collection") {
						return true
					}
				}
				return false
			})
		})
	}
}

func TestDrainHoldsAPlainDeletion(t *testing.T) {
	env := testenv.New(t)
	leases := &scriptedLeases{}
	startCore(t, env, Options{Health: newScriptedHealth(), Leases: leases})
	namespace := env.Namespace(t)
	withTimeout := func(name string, seconds int32) *v1alpha1.Proxy {
		px := newProxy(t, env, namespace, "", func(px *v1alpha1.Proxy) {
			px.Name, px.Spec.Mode, px.Spec.External = name, v1alpha1.ModeExternal, &v1alpha1.External{Host: "203.0.113.5"}
			px.Spec.Deletion = &v1alpha1.ProxyDeletion{DrainTimeoutSeconds: &seconds}
		})
		waitFor(t, "the drain finalizer", func() bool { return drainHeld(get(t, env, px)) })
		return px
	}
	remove := func(px *v1alpha1.Proxy) {
		if err := env.Client.Delete(t.Context(), px.DeepCopy()); err != nil {
			t.Fatal(err)
		}
	}

	leases.count.Store(1)
	px := withTimeout("long", 3600)
	remove(px)
	got := waitReason(t, env, px, v1alpha1.ConditionDrained, v1alpha1.ReasonDraining)
	if got.Status.Phase != v1alpha1.PhaseDraining {
		t.Errorf("phase %s, want Draining", got.Status.Phase)
	}
	leases.unknown.Store(true)
	leases.count.Store(0)
	patch(t, env, px, `{"spec":{"capacity":2}}`)
	waitFor(t, "a reconcile with unknown leases", func() bool { got := get(t, env, px); return got.Status.ObservedGeneration == got.Generation })
	if !exists(t, env, px) {
		t.Fatal("released while nobody knows the leases")
	}
	leases.unknown.Store(false)
	waitFor(t, "release after the last lease", func() bool { return !exists(t, env, px) })

	leases.count.Store(1)
	px = withTimeout("short", 1)
	remove(px)
	waitFor(t, "release at the deadline", func() bool { return !exists(t, env, px) })

	// Taking the timeout back takes the finalizer away.
	px = withTimeout("changed", 3600)
	patch(t, env, px, `{"spec":{"deletion":null}}`)
	waitFor(t, "no finalizer", func() bool { return len(get(t, env, px).Finalizers) == 0 })
}

func TestCredentialsSecret(t *testing.T) {
	env := testenv.New(t)
	engine := newScriptedHealth()
	startCore(t, env, Options{Health: engine})
	namespace := env.Namespace(t)
	px := newProxy(t, env, namespace, "", func(px *v1alpha1.Proxy) {
		px.Spec.Mode, px.Spec.External = v1alpha1.ModeExternal, &v1alpha1.External{Host: "203.0.113.5"}
		px.Spec.CredentialsSecretRef = &v1alpha1.LocalSecretRef{Name: "login"}
	})
	message := func() string {
		if c := meta.FindStatusCondition(get(t, env, px).Status.Conditions, v1alpha1.ConditionHealthy); c != nil {
			return c.Message
		}
		return ""
	}
	waitReason(t, env, px, v1alpha1.ConditionHealthy, v1alpha1.ReasonCredentialsNotFound)
	if !strings.Contains(message(), v1alpha1.LabelProxyCredentials+"=true") {
		t.Errorf("the message does not name the label: %s", message())
	}
	if _, ok := engine.target(px.UID); ok {
		t.Error("probed without credentials")
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "login"},
		StringData: map[string]string{"username": "me"},
	}
	if err := env.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	patch(t, env, secret, `{"metadata":{"labels":{"crawl.example.com/proxy-credentials":"true"}}}`)
	waitReason(t, env, px, v1alpha1.ConditionHealthy, v1alpha1.ReasonCredentialsInvalid)
	patch(t, env, secret, `{"stringData":{"password":"hunter2"}}`)
	waitReason(t, env, px, v1alpha1.ConditionHealthy, "Probing")
	target, ok := engine.target(px.UID)
	want, err := health.NewCredentials("me", "hunter2")
	if err != nil {
		t.Fatal(err)
	}
	if !ok || target.Credentials.Fingerprint() != want.Fingerprint() || !target.RequireAuth {
		t.Errorf("target %+v", target)
	}
	patch(t, env, secret, `{"stringData":{"password":"hunter3"}}`)
	waitFor(t, "the new password", func() bool {
		target, _ := engine.target(px.UID)
		return target.Credentials != nil && target.Credentials.Fingerprint() != want.Fingerprint()
	})
	patch(t, env, secret, `{"metadata":{"labels":{"crawl.example.com/proxy-credentials":null}}}`)
	waitReason(t, env, px, v1alpha1.ConditionHealthy, v1alpha1.ReasonCredentialsNotFound)
}

func TestInvalidCheckIsACondition(t *testing.T) {
	env := testenv.New(t)
	engine := newScriptedHealth()
	startCore(t, env, Options{Health: engine})
	px := newProxy(t, env, env.Namespace(t), "", func(px *v1alpha1.Proxy) {
		px.Spec.Mode, px.Spec.External = v1alpha1.ModeExternal, &v1alpha1.External{Host: "203.0.113.5"}
		px.Spec.HealthCheck = &v1alpha1.HealthCheck{Targets: []v1alpha1.ProbeTarget{{URL: "https://169.254.169.254/"}}}
	})
	got := waitReason(t, env, px, v1alpha1.ConditionHealthy, v1alpha1.ReasonInvalidCheck)
	if c := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionHealthy); !strings.Contains(c.Message, "spec.healthCheck.targets[0].url") {
		t.Errorf("the message does not name the field: %s", c.Message)
	}
	if _, ok := engine.target(px.UID); ok {
		t.Error("probed with a check that is not valid")
	}
	patch(t, env, px, `{"spec":{"healthCheck":{"targets":null,"mode":"Disabled"}}}`)
	waitReason(t, env, px, v1alpha1.ConditionHealthy, v1alpha1.ReasonCheckDisabled)
	patch(t, env, px, `{"spec":{"healthCheck":null}}`)
	waitReason(t, env, px, v1alpha1.ConditionHealthy, "Probing")
}

func TestOtherControllerNameIsLeftAlone(t *testing.T) {
	env := testenv.New(t)
	c := startCore(t, env, Options{Health: newScriptedHealth()})
	namespace := env.Namespace(t)
	class := newClass(t, env, "other-"+namespace, func(class *v1alpha1.ProviderClass) { class.Spec.ControllerName = "crawl.example.com/other" })
	acceptClass(t, env, class)
	px := newProxy(t, env, namespace, class.Name, func(px *v1alpha1.Proxy) {
		px.Spec.Deletion = &v1alpha1.ProxyDeletion{DrainTimeoutSeconds: new(int32(60))}
	})
	// A Proxy that comes later is handled later.
	marker := newProxy(t, env, namespace, "none", func(px *v1alpha1.Proxy) { px.Name = "marker" })
	waitReason(t, env, marker, v1alpha1.ConditionAccepted, v1alpha1.ReasonClassNotFound)
	if got := c.writes.count.Load(); got != 1 {
		t.Errorf("%d writes, want that of the marker alone", got)
	}
	if got := get(t, env, px); len(got.Finalizers) != 0 || got.Status.Binding != nil || reasonOf(got, v1alpha1.ConditionReady) != v1alpha1.ReasonPending {
		t.Errorf("another installation's proxy was touched: %+v", got.Status)
	}
}
