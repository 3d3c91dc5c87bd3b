package charts_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/kubernetes"
)

const (
	coreUser     = "system:serviceaccount:" + namespace + ":" + release + "-controller-manager"
	providerUser = "system:serviceaccount:" + namespace + ":" + release + "-provider-kubernetes"
)

// installed applies the chart and waits until its policies are in force.
func installed(t *testing.T) *testenv.Env {
	t.Helper()
	env := testenv.New(t)
	all := render(t)
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	must(t, client.IgnoreAlreadyExists(env.Client.Create(t.Context(), own)))
	apply(t, env.Client, all)
	core, provider := as(t, env.Config, coreUser), as(t, env.Config, providerUser)
	eventually(t, "roles and policies are in force", func() bool {
		lease := newLease(metav1.NamespaceDefault, "probe")
		lease.Spec.Grant = newGrant()
		px := newProxy(metav1.NamespaceDefault, "probe")
		px.Labels = map[string]string{v1alpha1.LabelPool: "x"}
		return core.List(t.Context(), &v1alpha1.ProviderClassList{}) == nil && core.List(t.Context(), &v1alpha1.ProxyList{}) == nil &&
			provider.List(t.Context(), &v1alpha1.ProviderClassList{}) == nil && provider.List(t.Context(), &corev1.PodList{}) == nil &&
			apierrors.IsForbidden(env.Client.Create(t.Context(), lease, client.DryRunAll)) &&
			apierrors.IsForbidden(env.Client.Create(t.Context(), px, client.DryRunAll)) &&
			apierrors.IsForbidden(env.Client.Create(t.Context(), newPod(metav1.NamespaceDefault, "probe", "uid"), client.DryRunAll))
	})
	return env
}

func newLease(namespace, name string) *v1alpha1.ProxyLease {
	return &v1alpha1.ProxyLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.ProxyLeaseSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"geo": "local"}}, TTLSeconds: 300},
	}
}

func newGrant() *v1alpha1.LeaseGrant {
	return &v1alpha1.LeaseGrant{ProxyName: "px", ProxyUID: "uid", InstanceID: "i", Epoch: 1, Seq: 1, ExpireTime: metav1.NowMicro()}
}

func newProxy(namespace, name string) *v1alpha1.Proxy {
	return &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.ProxySpec{Mode: v1alpha1.ModeManaged, ProxyTemplateSpec: v1alpha1.ProxyTemplateSpec{Provider: "kubernetes"}},
	}
}

func newPod(namespace, name, mark string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if mark != "" {
		pod.Labels[v1alpha1.LabelProxyUID] = mark
	}
	return pod
}

func wantForbidden(t *testing.T, what string, err error, says string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: got %v, want a refusal that says %q", what, err, says)
	}
}

func TestOnlyCoreWritesGrants(t *testing.T) {
	env := installed(t)
	ns := env.Namespace(t)
	core, admin := as(t, env.Config, coreUser), env.Client

	forged := newLease(ns, "forged")
	forged.Spec.Grant = newGrant()
	wantForbidden(t, "a grant by a cluster administrator", admin.Create(t.Context(), forged.DeepCopy()), "spec.grant")
	wantForbidden(t, "a grant by the provider's account", as(t, env.Config, providerUser).Create(t.Context(), forged.DeepCopy()), "")

	plain := newLease(ns, "plain")
	must(t, admin.Create(t.Context(), plain))
	plain.Spec.RenewTime = new(metav1.NowMicro())
	must(t, admin.Update(t.Context(), plain))

	granted := newLease(ns, "granted")
	granted.Spec.Grant = newGrant()
	must(t, core.Create(t.Context(), granted))
	granted.Spec.RenewTime = new(metav1.NowMicro())
	if err := admin.Update(t.Context(), granted.DeepCopy()); err != nil {
		t.Errorf("a renewal of a granted lease: %v", err)
	}
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(granted), granted); err != nil {
		t.Fatal(err)
	}
	granted.Spec.Grant = nil
	if err := admin.Update(t.Context(), granted); err == nil {
		t.Error("a grant could be taken away")
	}
}

func TestReservedMetadata(t *testing.T) {
	env := installed(t)
	ns := env.Namespace(t)
	core, admin := as(t, env.Config, coreUser), env.Client

	for what, change := range map[string]func(*v1alpha1.Proxy){
		"a label":       func(px *v1alpha1.Proxy) { px.Labels = map[string]string{v1alpha1.LabelPool: "x"} },
		"an annotation": func(px *v1alpha1.Proxy) { px.Annotations = map[string]string{v1alpha1.AnnotationInstanceHash: "x"} },
		"a finalizer": func(px *v1alpha1.Proxy) {
			px.Finalizers = []string{v1alpha1.FinalizerInstance(v1alpha1.ProviderKubernetes)}
		},
	} {
		px := newProxy(ns, "px")
		change(px)
		wantForbidden(t, what+" by a user", admin.Create(t.Context(), px.DeepCopy()), "crawl.example.com/")
		must(t, core.Create(t.Context(), px.DeepCopy(), client.DryRunAll))
	}
	template := newPool(ns)
	template.Spec.Template.Metadata.Annotations = map[string]string{v1alpha1.AnnotationDeletionCost: "1"}
	must(t, admin.Create(t.Context(), template))

	member := newProxy(ns, "member")
	member.Labels = map[string]string{v1alpha1.LabelPool: "x", "geo": "local"}
	member.Finalizers = []string{v1alpha1.FinalizerInstance(v1alpha1.ProviderKubernetes)}
	must(t, core.Create(t.Context(), member))
	change := func(what, says string, change func(*v1alpha1.Proxy)) {
		t.Helper()
		px := &v1alpha1.Proxy{}
		must(t, admin.Get(t.Context(), client.ObjectKeyFromObject(member), px))
		change(px)
		if err := admin.Update(t.Context(), px); says == "" && err != nil {
			t.Errorf("%s: %v", what, err)
		} else if says != "" {
			wantForbidden(t, what, err, says)
		}
	}
	change("what users set", "", func(px *v1alpha1.Proxy) {
		px.Labels["geo"] = "eu"
		px.Annotations = map[string]string{v1alpha1.AnnotationSkipCleanup: "true", v1alpha1.AnnotationDeletionCost: "5", "mine": "x"}
		px.Finalizers = append(px.Finalizers, "example.org/mine")
	})
	change("taking away what users set", "", func(px *v1alpha1.Proxy) { px.Annotations, px.Finalizers = nil, px.Finalizers[:1] })
	change("moving to another pool", "metadata.labels", func(px *v1alpha1.Proxy) { px.Labels[v1alpha1.LabelPool] = "y" })
	change("leaving the pool", "metadata.labels", func(px *v1alpha1.Proxy) { delete(px.Labels, v1alpha1.LabelPool) })
	change("taking the finalizer off", "skip-cleanup", func(px *v1alpha1.Proxy) { px.Finalizers = nil })

	// A person confirms deletions on a class, and the provider manager spends what was confirmed.
	change("confirming deletions on a proxy", "metadata.annotations", func(px *v1alpha1.Proxy) {
		px.Annotations = map[string]string{v1alpha1.AnnotationGCConfirm: "5"}
	})
	class := &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: ns}, Spec: v1alpha1.ProviderClassSpec{
		Type: v1alpha1.ProviderKubernetes, AllowedNamespaces: v1alpha1.NamespaceAccess{From: v1alpha1.NamespacesFromAll},
	}}
	must(t, admin.Create(t.Context(), class))
	confirm := func(c client.Client, value string) error {
		return c.Patch(t.Context(), class.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"crawl.example.com/gc-confirm":`+value+`}}}`)))
	}
	provider := as(t, env.Config, providerUser)
	wantForbidden(t, "confirming by the provider manager", confirm(provider, `"3"`), "annotations")
	must(t, confirm(admin, `"5"`))
	must(t, confirm(provider, `"3"`))
	must(t, confirm(provider, "null"))
	must(t, confirm(admin, `"5"`))
	must(t, confirm(admin, "null"))
	must(t, admin.Delete(t.Context(), class))
}

func newPool(namespace string) *v1alpha1.ProxyPool {
	pool := &v1alpha1.ProxyPool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pool"}}
	pool.Spec.Template.Spec.Provider = "kubernetes"
	return pool
}

func TestProxyInstancesAreTheProviders(t *testing.T) {
	env := installed(t)
	ns := env.Namespace(t)
	admin, provider := env.Client, as(t, env.Config, providerUser)

	wantForbidden(t, "a pod with a proxy's mark by a user", admin.Create(t.Context(), newPod(ns, "fake", "uid")), v1alpha1.LabelProxyUID)
	must(t, admin.Create(t.Context(), newPod(ns, "ordinary", "")))
	wantForbidden(t, "an ordinary pod by the provider", provider.Create(t.Context(), newPod(ns, "free", "")), "made for a Proxy")
	wantForbidden(t, "a pod whose owner is not the marked Proxy", provider.Create(t.Context(), newPod(ns, "free", "uid")), "made for a Proxy")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "users"}}
	wantForbidden(t, "an ordinary Secret by the provider", provider.Create(t.Context(), secret.DeepCopy()), "made for a Proxy")
	must(t, admin.Create(t.Context(), secret))
	secret.Data = map[string][]byte{"x": []byte("y")}
	wantForbidden(t, "a change of a user's Secret by the provider", provider.Update(t.Context(), secret), "made for a Proxy")
}

// A provider manager writes status and its own finalizers, and nothing else of an object.
func TestA44_ProvidersWriteNoSpecification(t *testing.T) {
	env := installed(t)
	ns := env.Namespace(t)
	class := &v1alpha1.ProviderClass{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: v1alpha1.ProviderClassSpec{
			Type: v1alpha1.ProviderKubernetes, AllowedNamespaces: v1alpha1.NamespaceAccess{From: v1alpha1.NamespacesFromAll},
		},
	}
	px := newProxy(ns, "px")
	must(t, env.Client.Create(t.Context(), class))
	must(t, env.Client.Create(t.Context(), px))
	provider := as(t, env.Config, providerUser)
	patch := func(obj client.Object, merge string) error {
		return provider.Patch(t.Context(), obj.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(merge)))
	}
	eventually(t, "the policy is in force", func() bool {
		return provider.Patch(t.Context(), px.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"port":3129}}`)), client.DryRunAll) != nil
	})
	for _, refused := range []struct {
		obj         client.Object
		merge, says string
	}{
		{px, `{"spec":{"port":3129}}`, "spec"},
		{px, `{"spec":{"leasing":"Disabled"}}`, "spec"},
		{px, `{"metadata":{"labels":{"geo":"eu"}}}`, "metadata"},
		{px, `{"metadata":{"annotations":{"crawl.example.com/skip-cleanup":"true"}}}`, "metadata"},
		{px, `{"metadata":{"annotations":{"crawl.example.com/gc-confirm":"9"}}}`, "metadata"},
		{class, `{"metadata":{"annotations":{"crawl.example.com/first-intent":"{}"}}}`, "metadata"},
		{px, `{"metadata":{"finalizers":["crawl.example.com/lease-drain"]}}`, "metadata.finalizers"},
		{class, `{"spec":{"garbageCollection":"Off"}}`, "spec"},
		{class, `{"metadata":{"annotations":{"crawl.example.com/gc-confirm":"9"}}}`, "metadata"},
		{class, `{"metadata":{"finalizers":["crawl.example.com/class-in-use"]}}`, "metadata.finalizers"},
		{px, `{"metadata":{"finalizers":["example.org/mine"]}}`, "metadata.finalizers"},
	} {
		wantForbidden(t, refused.merge, patch(refused.obj, refused.merge), refused.says)
	}
	must(t, patch(px, `{"metadata":{"annotations":{"crawl.example.com/first-intent":"{}"},"finalizers":["crawl.example.com/instance-kubernetes"]}}`))
	must(t, patch(class, `{"metadata":{"finalizers":["crawl.example.com/class-instances"]}}`))
	must(t, patch(px, `{"metadata":{"finalizers":null}}`))
	must(t, patch(class, `{"metadata":{"finalizers":null}}`))
}

// The provider does its whole work with its own role and nothing else.
func TestProviderWorksWithItsRole(t *testing.T) {
	env := installed(t)
	ns := env.Namespace(t)
	px := newProxy(ns, "px")
	must(t, env.Client.Create(t.Context(), px))
	mine := as(t, env.Config, providerUser)
	class := &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: v1alpha1.ProviderClassSpec{Type: v1alpha1.ProviderKubernetes}}
	provider, err := kubernetes.NewFactory().Open(t.Context(), class, providers.Runtime{
		ClusterID: "c", Client: mine, Reader: mine, Clock: clocktesting.NewFakeClock(metav1.Now().Time),
	})
	must(t, err)
	defer func() { _ = provider.Close() }()
	must(t, provider.Check(t.Context()))
	req := providers.CreateRequest{
		Name:        providers.InstanceName("c", px.Name, px.UID),
		Owner:       providers.Owner{ClusterID: "c", Namespace: ns, Name: px.Name, UID: px.UID},
		Spec:        px.Spec,
		Credentials: &providers.Credentials{Username: "u", Password: "p"},
	}
	if _, err := provider.Create(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if _, err := provider.Create(t.Context(), req); !providers.IsAlreadyExists(err) {
		t.Errorf("second Create: %v", err)
	}
	instances, err := provider.List(t.Context())
	if err != nil || len(instances) != 1 {
		t.Fatalf("got %v, %v, want one instance", instances, err)
	}
	if _, err := provider.Get(t.Context(), instances[0].Ref); err != nil {
		t.Fatal(err)
	}
	must(t, provider.Delete(t.Context(), instances[0].Ref))
}

// What a manager must not be able to do is as important as what it can.
func TestA44_ManagersHaveNoOtherRights(t *testing.T) {
	env := installed(t)
	ns := env.Namespace(t)
	core, provider := as(t, env.Config, coreUser), as(t, env.Config, providerUser)
	secret := func(namespace, name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	for what, err := range map[string]error{
		"core lists pods":                          core.List(t.Context(), &corev1.PodList{}, client.InNamespace(ns)),
		"core makes a pod":                         core.Create(t.Context(), newPod(ns, "x", "")),
		"core makes a Secret elsewhere":            core.Create(t.Context(), secret(ns, "x")),
		"core changes another Secret of its own":   core.Patch(t.Context(), secret(namespace, "discovery-token"), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`))),
		"core deletes a class":                     core.Delete(t.Context(), &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: "x"}}),
		"the provider deletes a proxy":             provider.Delete(t.Context(), newProxy(ns, "x")),
		"the provider makes a class":               provider.Create(t.Context(), &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: "x"}}),
		"the provider reads leases":                provider.List(t.Context(), &v1alpha1.ProxyLeaseList{}, client.InNamespace(ns)),
		"the provider deletes a Secret":            provider.Delete(t.Context(), secret(ns, "x")),
		"the provider lists namespaces":            provider.List(t.Context(), &corev1.NamespaceList{}),
		"a ServiceAccount without a role does not": as(t, env.Config, "system:serviceaccount:"+ns+":default").List(t.Context(), &v1alpha1.ProxyList{}, client.InNamespace(ns)),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: got %v, want Forbidden", what, err)
		}
	}
	// Another test's core may have made it in the same namespace; what counts is that it is not forbidden.
	if err := core.Create(t.Context(), secret(namespace, "lease-signing-key"), client.DryRunAll); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Errorf("core makes its signing key: %v", err)
	}
	for _, list := range []client.ObjectList{&v1alpha1.ProxyList{}, &v1alpha1.ProxyPoolList{}, &v1alpha1.ProxyLeaseList{}, &v1alpha1.ProviderClassList{}, &corev1.NamespaceList{}, &corev1.SecretList{}} {
		if err := core.List(t.Context(), list); err != nil {
			t.Errorf("core: %v", err)
		}
	}
}

func TestLeaseUserLeasesAndNothingElse(t *testing.T) {
	env := installed(t)
	ns := env.Namespace(t)
	user := "crawler-" + ns
	binding := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
		"metadata": map[string]any{"namespace": ns, "name": "crawler"},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": release + "-lease-user"},
		"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}},
	}}
	must(t, env.Client.Create(t.Context(), binding))
	crawler := as(t, env.Config, user)
	lease := newLease(ns, "mine")
	eventually(t, "the crawler may lease", func() bool { return crawler.Create(t.Context(), lease.DeepCopy()) == nil })
	must(t, crawler.List(t.Context(), &v1alpha1.ProxyList{}, client.InNamespace(ns)))
	must(t, crawler.Delete(t.Context(), lease))
	if err := crawler.Create(t.Context(), newProxy(ns, "x")); !apierrors.IsForbidden(err) {
		t.Errorf("a crawler makes a proxy: %v", err)
	}
	if err := crawler.List(t.Context(), &corev1.SecretList{}, client.InNamespace(ns)); !apierrors.IsForbidden(err) {
		t.Errorf("a crawler reads Secrets: %v", err)
	}
}
