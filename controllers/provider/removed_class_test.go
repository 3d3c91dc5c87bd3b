package provider_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/provider"
	"crawl.example.com/egress-proxies-operator/controllers/provider/orphangc"
	"crawl.example.com/egress-proxies-operator/controllers/providerclass"
	"crawl.example.com/egress-proxies-operator/controllers/proxy"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// run starts a manager until the test ends.
func (s *bed) run(mgr ctrlmanager.Manager) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("manager: %v", err)
		}
	})
}

// core starts a core manager for the bed's installation.
func (s *bed) core(env *testenv.Env) {
	s.t.Helper()
	mgr, err := manager.New(env.Config, manager.Core(), manager.Options{
		MetricsBindAddress: "0", HealthProbeBindAddress: "0", WatchNamespaces: []string{s.namespace}, SkipNameValidation: true,
	})
	s.must(err)
	name := s.class.Spec.ControllerName
	s.must(proxy.Add(s.t.Context(), mgr, proxy.Options{ControllerName: name, Clock: clock.RealClock{}}))
	s.must(providerclass.Add(s.t.Context(), mgr, providerclass.Options{ControllerName: name, Clock: clock.RealClock{}}))
	s.run(mgr)
}

// other starts the manager of another type and gives its cloud.
func (s *bed) other(env *testenv.Env, kind v1alpha1.ProviderType) *fake.Cloud {
	s.t.Helper()
	mgr, err := manager.New(env.Config, manager.Provider(kind), manager.Options{
		MetricsBindAddress: "0", HealthProbeBindAddress: "0", WatchNamespaces: []string{s.namespace}, SkipNameValidation: true,
	})
	s.must(err)
	cloud := fake.NewCloud(clock.RealClock{}, fake.Behaviour{})
	s.must(provider.Add(mgr, provider.Options{
		Factory: &fake.Factory{Cloud: cloud, ProviderType: kind}, Clock: clock.RealClock{}, ClusterID: "cluster",
		ControllerName: s.class.Spec.ControllerName, Namespaces: []string{s.namespace}, Registerer: prometheus.NewRegistry(),
	}))
	s.run(mgr)
	return cloud
}

func (s *bed) proxy(name string) *v1alpha1.Proxy {
	s.t.Helper()
	px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	px.Spec.Provider = s.class.Name
	s.must(s.client.Create(s.t.Context(), px))
	return px
}

// removeByForce takes a class away past its finalizers, which core may put back until it is gone.
func (s *bed) removeByForce(class *v1alpha1.ProviderClass) {
	s.t.Helper()
	s.must(s.client.Delete(s.t.Context(), class.DeepCopy()))
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	s.eventually("the class is gone", func() bool {
		s.must(client.IgnoreNotFound(s.client.Patch(s.t.Context(), class.DeepCopy(), patch)))
		now := &v1alpha1.ProviderClass{}
		return apierrors.IsNotFound(s.client.Get(s.t.Context(), client.ObjectKeyFromObject(class), now)) || now.UID != class.UID
	})
}

// blocked tells whether the deletion of px says that it is blocked, why, and how to get out, as both managers have to.
func (s *bed) blocked(px *v1alpha1.Proxy, reason string) bool {
	status := s.status(px)
	if status == nil {
		return false
	}
	blocked := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionCleanupBlocked)
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	return blocked != nil && blocked.Status == metav1.ConditionTrue && blocked.Reason == reason &&
		strings.Contains(blocked.Message, v1alpha1.AnnotationSkipCleanup) &&
		ready != nil && ready.Reason == v1alpha1.ReasonTerminating && strings.Contains(ready.Message, v1alpha1.AnnotationSkipCleanup)
}

// A class with running Proxies is removed by force, and something else may take its name. Whatever that is: no manager
// touches the instances, a deletion says that it waits for the class and how to get out, and the way out works. What was
// abandoned is collected only where a class of the same name and type comes back.
func TestA15_AClassIsRemovedByForceUnderItsProxies(t *testing.T) {
	for name, test := range map[string]struct {
		again  func(*v1alpha1.ProviderClass)
		reason string
		// collected tells whether the orphan collection finds what was abandoned.
		collected bool
	}{
		"and is gone": {reason: v1alpha1.ReasonClassNotFound},
		"and made again": {
			again: func(*v1alpha1.ProviderClass) {}, reason: v1alpha1.ReasonClassReplaced, collected: true,
		},
		"and made again as another type": {
			again: func(class *v1alpha1.ProviderClass) {
				class.Spec.Type, class.Spec.GCP = v1alpha1.ProviderKubernetes, nil
			},
			reason: v1alpha1.ReasonClassReplaced,
		},
	} {
		t.Run(name, func(t *testing.T) {
			env := testenv.New(t)
			s := newBed(t)
			s.core(env)
			otherCloud := s.other(env, v1alpha1.ProviderKubernetes)
			kept, given := s.proxy("kept"), s.proxy("given-up")
			s.eventually("both run", func() bool { return s.runs(kept) && s.runs(given) })
			mutations := s.cloud.Mutations()

			s.removeByForce(s.class)
			if test.again != nil {
				next := &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: s.class.Name}, Spec: s.class.Spec}
				test.again(next)
				s.must(s.client.Create(t.Context(), next))
				s.eventually("the new class is accepted", func() bool {
					s.must(s.client.Get(t.Context(), client.ObjectKeyFromObject(next), next))
					return meta.IsStatusConditionTrue(next.Status.Conditions, v1alpha1.ConditionReady)
				})
			}
			for _, px := range []*v1alpha1.Proxy{kept, given} {
				s.eventually(px.Name+" says what became of its class", func() bool {
					c := meta.FindStatusCondition(s.status(px).Conditions, v1alpha1.ConditionAccepted)
					return c != nil && c.Reason == test.reason && strings.Contains(c.Message, v1alpha1.AnnotationSkipCleanup)
				})
				if !s.runs(px) || s.status(px).Binding.ClassUID != s.class.UID || s.status(px).Binding.Type != v1alpha1.ProviderGCP {
					t.Errorf("%s: %+v", px.Name, s.status(px))
				}
				s.must(s.client.Delete(t.Context(), px.DeepCopy()))
				s.eventually(px.Name+" says why it does not go, and how it would", func() bool { return s.blocked(px, test.reason) })
			}

			annotate := func(px *v1alpha1.Proxy) {
				t.Helper()
				patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"crawl.example.com/skip-cleanup":"true"}}}`))
				s.must(s.client.Patch(t.Context(), px.DeepCopy(), patch))
				s.eventually(px.Name+" is gone", func() bool { return s.status(px) == nil })
			}
			annotate(given)
			if !s.blocked(kept, test.reason) {
				t.Errorf("the other one: %+v", s.status(kept))
			}
			if got := s.cloud.Mutations(); got != mutations || len(s.cloud.Instances()) != 2 {
				t.Errorf("%d calls that change something, want %d; instances %+v", got, mutations, s.cloud.Instances())
			}
			for _, call := range otherCloud.Calls() {
				if call.Method != fake.MethodCheck && call.Method != fake.MethodList {
					t.Errorf("the manager of the other type called %+v", call)
				}
			}
			annotate(kept)
			s.collect(test.collected)
		})
	}
}

// collect sweeps the cloud as its orphan collection will after an hour.
func (s *bed) collect(collected bool) {
	s.t.Helper()
	// Without any Proxy the collection would not believe what it sees.
	witness := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "witness"}}
	witness.Spec.Mode, witness.Spec.External = v1alpha1.ModeExternal, &v1alpha1.External{Host: "192.0.2.1"}
	s.must(s.client.Create(s.t.Context(), witness))
	later := clocktesting.NewFakeClock(time.Now().Add(time.Hour))
	set := providers.NewSet(&fake.Factory{Cloud: s.cloud, ProviderType: v1alpha1.ProviderGCP}, providers.Runtime{ClusterID: "cluster", Clock: later}, nil)
	runner, err := orphangc.NewRunner(s.client, s.client, events.NewFakeRecorder(10), orphangc.Options{
		Set: set, Clock: later, ClusterID: "cluster", ControllerName: s.class.Spec.ControllerName, Namespaces: []string{s.namespace},
	})
	s.must(err)
	for range 2 {
		s.must(runner.SweepAll(s.t.Context()))
	}
	left := s.cloud.Instances()
	for _, i := range left {
		if i.State == providers.StateTerminating {
			left = nil
		}
	}
	if collected != (len(left) == 0) {
		s.t.Errorf("instances %+v, want them collected: %v", s.cloud.Instances(), collected)
	}
}
