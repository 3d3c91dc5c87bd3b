package kubernetes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/kubernetes/kubelettest"
)

// These tests run against a real API server, with a stand-in for scheduler and kubelet.

// patience is how long a condition may take on a busy machine.
const patience = 30 * time.Second

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(context.Background(), 20*time.Millisecond, patience, true, func(context.Context) (bool, error) { return holds(), nil })
	if err != nil {
		t.Fatalf("%s: not within %s", what, patience)
	}
}

func waitForState(t *testing.T, provider providers.Provider, ref providers.Ref, want providers.State) providers.Instance {
	t.Helper()
	var instance providers.Instance
	eventually(t, "state "+string(want), func() bool {
		var err error
		instance, err = provider.Get(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		return instance.State == want
	})
	return instance
}

// newUID is a Proxy UID nobody else has, so that tests of one control plane do not meet.
func newUID(t *testing.T, namespace string, n int) types.UID {
	t.Helper()
	return types.UID(fmt.Sprintf("%s-%d", namespace, n))
}

func TestLifecycleOfAPod(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	kubelet := kubelettest.Run(t, env.Config, namespace)
	kubelet.HoldStarts(true)
	provider := open(t, providers.Runtime{Client: env.Client, Reader: env.Client}, newClass(nil))
	must(t, provider.Check(t.Context()))

	req := newRequest(namespace, newUID(t, namespace, 1), nil)
	if _, err := provider.Get(t.Context(), refOf(req)); !providers.IsNotFound(err) {
		t.Fatalf("Get before Create: got %v, want NotFound", err)
	}
	if _, err := provider.Create(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	first := waitForState(t, provider, refOf(req), providers.StatePending)
	if first.Owner != req.Owner || first.Hash != req.Hash || first.ID == "" || first.ProviderID != "pod://"+namespace+"/"+req.Name || first.CreatedAt.IsZero() {
		t.Errorf("got %+v", first)
	}
	kubelet.HoldStarts(false)
	running := waitForState(t, provider, providers.Ref{ProviderID: first.ProviderID}, providers.StateRunning)
	if len(running.Addresses) != 1 || running.ID != first.ID {
		t.Errorf("got %+v", running)
	}
	if _, err := provider.Create(t.Context(), req); !providers.IsAlreadyExists(err) {
		t.Errorf("second Create: got %v, want AlreadyExists", err)
	}

	wrong := first.Ref
	wrong.ID = "another-incarnation"
	if err := provider.Delete(t.Context(), wrong); !providers.IsNotFound(err) {
		t.Errorf("Delete of another incarnation: got %v, want NotFound", err)
	}
	if still := waitForState(t, provider, refOf(req), providers.StateRunning); still.ID != first.ID {
		t.Error("Delete of another incarnation touched this one")
	}

	kubelet.HoldDeletions(true)
	must(t, provider.Delete(t.Context(), first.Ref))
	waitForState(t, provider, first.Ref, providers.StateTerminating)
	must(t, provider.Delete(t.Context(), first.Ref))
	if _, err := provider.Create(t.Context(), req); !providers.IsAlreadyExists(err) {
		t.Errorf("Create beside a terminating pod: got %v, want AlreadyExists", err)
	}
	if instances, err := provider.List(t.Context()); err != nil || !slices.ContainsFunc(instances, func(i providers.Instance) bool { return i.ID == first.ID }) {
		t.Errorf("a terminating pod is not listed: %v, %v", instances, err)
	}
	kubelet.HoldDeletions(false)
	eventually(t, "the pod is gone", func() bool {
		_, err := provider.Get(t.Context(), first.Ref)
		return providers.IsNotFound(err)
	})
	if err := provider.Delete(t.Context(), first.Ref); !providers.IsNotFound(err) {
		t.Errorf("Delete of what is gone: got %v, want NotFound", err)
	}

	// The next incarnation has the same name, and what is meant for the first one passes it by.
	if _, err := provider.Create(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	second := waitForState(t, provider, refOf(req), providers.StateRunning)
	if second.ID == first.ID || slices.Equal(second.Addresses, running.Addresses) {
		t.Errorf("the second incarnation is the first one: %+v", second)
	}
	if err := provider.Delete(t.Context(), first.Ref); !providers.IsNotFound(err) {
		t.Errorf("late Delete of the first incarnation: got %v, want NotFound", err)
	}
	waitForState(t, provider, second.Ref, providers.StateRunning)
}

func TestListSeesAllOfItsClassAndNothingElse(t *testing.T) {
	env := testenv.New(t)
	one, two := env.Namespace(t), env.Namespace(t)
	class := newClass(nil)
	class.Name = "list-" + one
	provider := open(t, providers.Runtime{Client: env.Client, Reader: env.Client}, class)
	provider.(*Provider).pageSize = 2
	var want []string
	for n := range 7 {
		req := newRequest([]string{one, two}[n%2], newUID(t, one, n), nil)
		want = append(want, req.Name)
		if _, err := provider.Create(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	other := newRequest(one, newUID(t, one, 100), nil)
	if _, err := open(t, providers.Runtime{Client: env.Client, Reader: env.Client}, newClass(nil)).Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	elsewhere := newRequest(one, newUID(t, one, 101), func(r *providers.CreateRequest) { r.Owner.ClusterID = "another-cluster" })
	if _, err := provider.Create(t.Context(), elsewhere); err != nil {
		t.Fatal(err)
	}

	check := func(provider providers.Provider, want []string) {
		t.Helper()
		instances, err := provider.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, instance := range instances {
			got = append(got, instance.Name)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	check(provider, want)
	limited := open(t, providers.Runtime{Client: env.Client, Reader: env.Client, Namespaces: []string{two}}, class)
	check(limited, []string{newRequest(two, newUID(t, one, 1), nil).Name, newRequest(two, newUID(t, one, 3), nil).Name, newRequest(two, newUID(t, one, 5), nil).Name})
}

func TestPasswordIsRenewedByTheNextCreate(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	provider := open(t, providers.Runtime{Client: env.Client, Reader: env.Client}, newClass(nil))
	read := func(name string) string {
		secret := &corev1.Secret{}
		must(t, env.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, secret))
		if owner := metav1.GetControllerOf(secret); owner == nil || owner.Kind != "Proxy" {
			t.Errorf("the Secret is not owned by the Proxy: %v", secret.OwnerReferences)
		}
		return string(secret.Data[passwordFile])
	}
	req := newRequest(namespace, newUID(t, namespace, 1), func(r *providers.CreateRequest) {
		r.Credentials = &providers.Credentials{Username: "u", Password: "old"}
	})
	if _, err := provider.Create(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	old := read(req.Name)
	req.Credentials.Password = "new"
	if _, err := provider.Create(t.Context(), req); !providers.IsAlreadyExists(err) {
		t.Fatalf("got %v, want AlreadyExists", err)
	}
	if renewed := read(req.Name); renewed == old || !strings.HasPrefix(renewed, "u:"+bcryptPrefix) {
		t.Errorf("the password file is %q, was %q", renewed, old)
	}
}

func TestRestrictedPodSecurityAdmitsThePod(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	label(t, env, namespace, "restricted")
	req := newRequest(namespace, newUID(t, namespace, 1), func(r *providers.CreateRequest) {
		r.Zone = "eu-1"
		r.Spec.Port = 443
		r.Credentials = &providers.Credentials{Username: "u", Password: "p"}
	})
	if _, err := open(t, providers.Runtime{Client: env.Client, Reader: env.Client}, newClass(nil)).Create(t.Context(), req); err != nil {
		t.Fatal(err)
	}
}

func label(t *testing.T, env *testenv.Env, namespace, level string) {
	t.Helper()
	object := &corev1.Namespace{}
	must(t, env.Client.Get(t.Context(), client.ObjectKey{Name: namespace}, object))
	object.Labels["pod-security.kubernetes.io/enforce"] = level
	must(t, env.Client.Update(t.Context(), object))
}

// The taxonomy depends on the wording of the real server.
func TestRefusalsOfTheRealServer(t *testing.T) {
	env := testenv.New(t)
	for name, test := range map[string]struct {
		prepare func(t *testing.T, namespace string)
		class   func(*v1alpha1.ProviderClassSpec)
		want    providers.Reason
		says    string
	}{
		"quota used up": {func(t *testing.T, namespace string) {
			hard := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}
			quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
			must(t, env.Client.Create(t.Context(), quota))
			// The controller that would do this does not run here.
			quota.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: hard}
			must(t, env.Client.Status().Update(t.Context(), quota))
		}, nil, providers.Capacity, "resource quota is used up"},
		"limit range": {func(t *testing.T, namespace string) {
			must(t, env.Client.Create(t.Context(), &corev1.LimitRange{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "l"},
				Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
					Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")},
				}}},
			}))
		}, nil, providers.Capacity, "limits or policies"},
		"terminating namespace": {func(t *testing.T, namespace string) {
			must(t, env.Client.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
		}, nil, providers.Unavailable, "namespace is being deleted"},
		"invalid pod": {func(*testing.T, string) {}, func(s *v1alpha1.ProviderClassSpec) {
			s.Kubernetes = &v1alpha1.KubernetesClass{Resources: &corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"no such resource": resource.MustParse("1")},
			}}
		}, providers.InvalidSpec, "spec.containers[0].resources"},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := env.Namespace(t)
			test.prepare(t, namespace)
			provider := open(t, providers.Runtime{Client: env.Client, Reader: env.Client}, newClass(test.class))
			var err error
			// Admission reads its own caches, which may be a moment behind.
			eventually(t, "a refusal", func() bool {
				_, err = provider.Create(t.Context(), newRequest(namespace, newUID(t, namespace, 1), nil))
				if err == nil {
					must(t, client.IgnoreNotFound(env.Client.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(namespace))))
				}
				return err != nil
			})
			if providers.ReasonOf(err) != test.want || !strings.Contains(providers.StableMessage(err), test.says) {
				t.Errorf("got %s %q, want %s %q", providers.ReasonOf(err), providers.StableMessage(err), test.want, test.says)
			}
		})
	}
}

func TestWithoutRightsTheClassIsNotReady(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	stranger, err := client.New(env.AddUser(t, "stranger-"+namespace), client.Options{Scheme: manager.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	provider := open(t, providers.Runtime{Client: stranger, Reader: stranger}, newClass(nil))
	if err := provider.Check(t.Context()); providers.ReasonOf(err) != providers.Auth {
		t.Errorf("Check: got %v, want Auth", err)
	}
	if _, err := provider.Create(t.Context(), newRequest(namespace, "uid", nil)); providers.ReasonOf(err) != providers.Auth {
		t.Errorf("Create: got %v, want Auth", err)
	}
	if _, err := provider.Get(t.Context(), providers.Ref{Namespace: namespace, Name: "x"}); providers.ReasonOf(err) != providers.Auth {
		t.Errorf("Get: got %v, want Auth", err)
	}
	if _, err := provider.List(t.Context()); providers.ReasonOf(err) != providers.Auth {
		t.Errorf("List: got %v, want Auth", err)
	}
}

func TestEventsWakeTheOwner(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	kubelet := kubelettest.Run(t, env.Config, namespace)
	mgr, err := manager.New(env.Config, manager.Provider(v1alpha1.ProviderKubernetes), manager.Options{
		MetricsBindAddress: "0", HealthProbeBindAddress: "0", LeaderElectionNamespace: namespace, SkipNameValidation: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})

	runtime := providers.Runtime{Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Informers: mgr.GetCache()}
	provider := open(t, runtime, newClass(nil))
	other := newClass(nil)
	other.Name = "other"
	silent := open(t, runtime, other)
	events, none := provider.(providers.Eventer).Events(), silent.(providers.Eventer).Events()

	req := newRequest(namespace, newUID(t, namespace, 1), nil)
	if _, err := provider.Create(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	// wake returns at an event of the Proxy after which the condition holds.
	wake := func(what string, holds func() bool) {
		t.Helper()
		timeout := time.After(patience)
		for {
			select {
			case e := <-events:
				if e.Object.Namespace == namespace && e.Object != req.Owner {
					t.Fatalf("%s: woke %+v, want %+v", what, e.Object, req.Owner)
				}
				if e.Object == req.Owner && holds() {
					return
				}
			case e := <-none:
				t.Fatalf("the class %s got an event of %+v", other.Name, e.Object)
			case <-timeout:
				t.Fatalf("%s: no event within %s", what, patience)
			}
		}
	}
	wake("running", func() bool {
		instance, err := provider.Get(t.Context(), refOf(req))
		return err == nil && instance.State == providers.StateRunning
	})
	kubelet.HoldDeletions(true)
	must(t, env.Client.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: req.Name}}))
	wake("deleted by somebody", func() bool {
		instance, err := provider.Get(t.Context(), refOf(req))
		return err == nil && instance.State == providers.StateTerminating
	})
	kubelet.HoldDeletions(false)
	wake("gone", func() bool {
		_, err := provider.Get(t.Context(), refOf(req))
		return providers.IsNotFound(err)
	})
	must(t, provider.Close())
	must(t, provider.Close())
}
