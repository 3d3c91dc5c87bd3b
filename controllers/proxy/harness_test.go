package proxy

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/health"
	"crawl.example.com/egress-proxies-operator/controllers/providerclass"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

const waitTimeout = 60 * time.Second

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.After(waitTimeout)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-deadline:
			t.Fatalf("waited in vain for: %s", what)
		case <-tick.C:
		}
	}
}

// scriptedHealth is an engine whose verdicts are the test's.
type scriptedHealth struct {
	mu       sync.Mutex
	targets  map[types.UID]health.Target
	verdicts map[types.UID]health.Verdict
	changes  chan event.TypedGenericEvent[types.NamespacedName]
}

func newScriptedHealth() *scriptedHealth {
	return &scriptedHealth{
		targets: map[types.UID]health.Target{}, verdicts: map[types.UID]health.Verdict{},
		changes: make(chan event.TypedGenericEvent[types.NamespacedName], 100),
	}
}

func (h *scriptedHealth) Upsert(target health.Target) {
	h.mu.Lock()
	defer h.mu.Unlock()
	former, known := h.targets[target.UID]
	h.targets[target.UID] = target
	switch {
	case !known && target.Initial != nil && target.Initial.InstanceID == target.InstanceID:
		h.verdicts[target.UID] = *target.Initial
	case !known || former.InstanceID != target.InstanceID:
		h.verdicts[target.UID] = health.Verdict{InstanceID: target.InstanceID, Reason: "Probing", Message: "No probe has decided yet."}
	}
}

func (h *scriptedHealth) Remove(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.targets, uid)
	delete(h.verdicts, uid)
}

func (h *scriptedHealth) Verdict(uid types.UID) (health.Verdict, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v, ok := h.verdicts[uid]
	return v, ok
}

func (h *scriptedHealth) Changes() <-chan event.TypedGenericEvent[types.NamespacedName] {
	return h.changes
}

func (h *scriptedHealth) target(uid types.UID) (health.Target, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	target, ok := h.targets[uid]
	return target, ok
}

// judge sets the verdict on the instance that is watched and wakes the controller.
func (h *scriptedHealth) judge(px *v1alpha1.Proxy, change func(*health.Verdict)) {
	h.mu.Lock()
	v := h.verdicts[px.UID]
	change(&v)
	h.verdicts[px.UID] = v
	h.mu.Unlock()
	h.changes <- event.TypedGenericEvent[types.NamespacedName]{Object: client.ObjectKeyFromObject(px)}
}

// scriptedLeases count what the test says.
type scriptedLeases struct {
	count   atomic.Int32
	unknown atomic.Bool
}

func (l *scriptedLeases) CountLeases(types.UID) (int, bool) {
	return int(l.count.Load()), !l.unknown.Load()
}

// writes counts the writes to Proxies that a manager sends.
type writes struct {
	next  http.RoundTripper
	count atomic.Int64
}

func (w *writes) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/proxies/") {
		w.count.Add(1)
	}
	return w.next.RoundTrip(r)
}

// core is a core manager with the controllers of Proxies and ProviderClasses, as production has it.
type core struct {
	t      *testing.T
	env    *testenv.Env
	writes *writes
	stop   func()
}

func startCore(t *testing.T, env *testenv.Env, o Options) *core {
	t.Helper()
	c := &core{t: t, env: env, writes: &writes{}}
	cfg := rest.CopyConfig(env.Config)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { c.writes.next = next; return c.writes })
	mgr, err := manager.New(cfg, manager.Core(), manager.Options{
		MetricsBindAddress: "0", HealthProbeBindAddress: "0", SkipNameValidation: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	o.ControllerName, o.Clock = v1alpha1.DefaultControllerName, clock.RealClock{}
	if o.HealthDefaults, err = health.NewDefaults(nil, "", nil); err != nil {
		t.Fatal(err)
	}
	if err := Add(t.Context(), mgr, o); err != nil {
		t.Fatal(err)
	}
	if err := providerclass.Add(t.Context(), mgr, providerclass.Options{ControllerName: v1alpha1.DefaultControllerName}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- mgr.Start(ctx) }()
	c.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Errorf("manager: %v", err)
		}
	})
	t.Cleanup(c.stop)
	return c
}

// class makes a ProviderClass of the kubernetes type and accepts it, as its provider manager would.
func newClass(t *testing.T, env *testenv.Env, name string, change func(*v1alpha1.ProviderClass)) *v1alpha1.ProviderClass {
	t.Helper()
	class := &v1alpha1.ProviderClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ProviderClassSpec{
			Type: v1alpha1.ProviderKubernetes, AllowedNamespaces: v1alpha1.NamespaceAccess{From: v1alpha1.NamespacesFromAll},
		},
	}
	if change != nil {
		change(class)
	}
	if err := env.Client.Create(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeClass(t, env, class) })
	return class
}

// removeClass deletes a class past its finalizers.
func removeClass(t *testing.T, env *testenv.Env, class *v1alpha1.ProviderClass) {
	t.Helper()
	ctx := context.Background()
	fresh := class.DeepCopy()
	if err := client.IgnoreNotFound(env.Client.Delete(ctx, fresh)); err != nil {
		t.Errorf("delete class: %v", err)
	}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	if err := client.IgnoreNotFound(env.Client.Patch(ctx, fresh, patch)); err != nil {
		t.Errorf("release class: %v", err)
	}
}

func acceptClass(t *testing.T, env *testenv.Env, class *v1alpha1.ProviderClass) {
	t.Helper()
	fresh := &v1alpha1.ProviderClass{}
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(class), fresh); err != nil {
		t.Fatal(err)
	}
	desired := fresh.Status.DeepCopy()
	meta.SetStatusCondition(&desired.Conditions, metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: "Test"})
	if err := statusapply.Whole(t.Context(), env.Client, v1alpha1.ManagerProvider(class.Spec.Type), fresh, &fresh.Status, desired); err != nil {
		t.Fatal(err)
	}
}

func newProxy(t *testing.T, env *testenv.Env, namespace, class string, change func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
	t.Helper()
	px := &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p"},
		Spec:       v1alpha1.ProxySpec{Mode: v1alpha1.ModeManaged, ProxyTemplateSpec: v1alpha1.ProxyTemplateSpec{Provider: class}},
	}
	if change != nil {
		change(px)
	}
	if err := env.Client.Create(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	return px
}

func get(t *testing.T, env *testenv.Env, px *v1alpha1.Proxy) *v1alpha1.Proxy {
	t.Helper()
	fresh := &v1alpha1.Proxy{}
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(px), fresh); err != nil {
		t.Fatal(err)
	}
	return fresh
}

func exists(t *testing.T, env *testenv.Env, px *v1alpha1.Proxy) bool {
	t.Helper()
	fresh := &v1alpha1.Proxy{}
	err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(px), fresh)
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return err == nil && fresh.UID == px.UID
}

// provision does what a provider manager does once an instance runs.
func provision(t *testing.T, env *testenv.Env, px *v1alpha1.Proxy, id string) {
	t.Helper()
	waitFor(t, "status write of the provider manager", func() bool {
		fresh := get(t, env, px)
		desired := fresh.Status.DeepCopy()
		desired.Instance = &v1alpha1.Instance{ID: id, ProviderID: "pod://ns/" + id, State: "Running", Addresses: []string{"10.1.2.3"}}
		meta.SetStatusCondition(&desired.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionProvisioned, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonRunning,
		})
		return statusapply.Proxy(t.Context(), env.Client, v1alpha1.ManagerProvider(v1alpha1.ProviderKubernetes), fresh, desired) == nil
	})
}

func reasonOf(px *v1alpha1.Proxy, name string) string {
	_, reason := status(px.Status, name)
	return reason
}

func waitReason(t *testing.T, env *testenv.Env, px *v1alpha1.Proxy, name, reason string) *v1alpha1.Proxy {
	t.Helper()
	waitFor(t, name+" with reason "+reason, func() bool { return reasonOf(get(t, env, px), name) == reason })
	return get(t, env, px)
}
