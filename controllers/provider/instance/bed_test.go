package instance

import (
	"context"
	"os"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

// bed is a namespace and a class of a real API server, a fake cloud and a clock that the test moves.
type bed struct {
	t         *testing.T
	env       *testenv.Env
	client    client.WithWatch
	namespace string
	clock     *clocktesting.FakeClock
	cloud     *fake.Cloud
	class     *v1alpha1.ProviderClass
	*Reconciler
}

func newBed(t *testing.T, b fake.Behaviour) *bed {
	t.Helper()
	return newBedOf(t, v1alpha1.ProviderKubernetes, b)
}

func newBedOf(t *testing.T, kind v1alpha1.ProviderType, b fake.Behaviour) *bed {
	t.Helper()
	env := testenv.New(t)
	c, err := client.NewWithWatch(env.Config, client.Options{Scheme: manager.Scheme(), FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		t.Fatal(err)
	}
	clock := clocktesting.NewFakeClock(time.Now().Truncate(time.Second))
	s := &bed{t: t, env: env, client: c, namespace: env.Namespace(t), clock: clock, cloud: fake.NewCloud(clock, b)}
	s.class = &v1alpha1.ProviderClass{
		ObjectMeta: metav1.ObjectMeta{Name: s.namespace},
		Spec: v1alpha1.ProviderClassSpec{
			Type:              kind,
			AllowedNamespaces: v1alpha1.NamespaceAccess{From: v1alpha1.NamespacesFromAll},
		},
	}
	s.must(c.Create(t.Context(), s.class))
	s.Reconciler = s.newReconciler(c)
	return s
}

// newReconciler makes another process: only the API server and the cloud are shared.
func (s *bed) newReconciler(c client.Client) *Reconciler {
	set := providers.NewSet(&fake.Factory{Cloud: s.cloud, ProviderType: s.class.Spec.Type}, providers.Runtime{ClusterID: "cluster", Clock: s.clock}, nil)
	return NewReconciler(c, s.client, events.NewFakeRecorder(1000), Options{
		Set: set, Clock: s.clock, ClusterID: "cluster", ControllerName: v1alpha1.DefaultControllerName, ResolveCredentials: true,
	})
}

func (s *bed) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// proxy stores a Proxy that core has bound to the class.
func (s *bed) proxy(name string, change ...func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
	s.t.Helper()
	px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	px.Spec.Provider = s.class.Name
	for _, f := range change {
		f(px)
	}
	s.must(s.client.Create(s.t.Context(), px))
	next := px.Status.DeepCopy()
	next.Binding = &v1alpha1.Binding{Type: s.class.Spec.Type, ClassName: s.class.Name, ClassUID: s.class.UID}
	s.must(statusapply.Proxy(s.t.Context(), s.client, v1alpha1.ManagerCore, px, next))
	return px
}

func requestFor(px *v1alpha1.Proxy) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKeyFromObject(px)}
}

// get reads a Proxy; nil when it is gone.
func (s *bed) get(px *v1alpha1.Proxy) *v1alpha1.Proxy {
	s.t.Helper()
	now := &v1alpha1.Proxy{}
	err := s.client.Get(context.Background(), client.ObjectKeyFromObject(px), now)
	if apierrors.IsNotFound(err) || (err == nil && now.UID != px.UID) {
		return nil
	}
	s.must(err)
	return now
}

// run reconciles as the work queue would, moving the clock by what each reconcile asks for, until done or for a time.
func (s *bed) run(px *v1alpha1.Proxy, limit time.Duration, done func() bool) {
	s.t.Helper()
	s.runWith(s.Reconciler, px, limit, done)
}

func (s *bed) runWith(r *Reconciler, px *v1alpha1.Proxy, limit time.Duration, done func() bool) {
	s.t.Helper()
	for end := s.clock.Now().Add(limit); s.clock.Now().Before(end); {
		result, err := r.Reconcile(s.t.Context(), requestFor(px))
		if done != nil && done() {
			return
		}
		step := result.RequeueAfter
		if err != nil {
			step = retryMin
		}
		if step == 0 {
			if done != nil {
				s.t.Fatalf("nothing will look again; cloud: %+v, status: %+v", s.cloud.Instances(), s.get(px))
			}
			return
		}
		s.clock.Step(step)
	}
	if done != nil {
		s.t.Fatalf("not within %v; cloud: %+v, status: %+v", limit, s.cloud.Instances(), s.get(px))
	}
}

func (s *bed) provisioned(px *v1alpha1.Proxy) func() bool {
	return func() bool {
		now := s.get(px)
		return now != nil && meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionProvisioned)
	}
}

func (s *bed) gone(px *v1alpha1.Proxy) func() bool { return func() bool { return s.get(px) == nil } }

func (s *bed) running(name string, change ...func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
	s.t.Helper()
	px := s.proxy(name, change...)
	s.run(px, 30*time.Minute, s.provisioned(px))
	return s.get(px)
}

func (s *bed) condition(px *v1alpha1.Proxy, kind string) metav1.Condition {
	s.t.Helper()
	if c := meta.FindStatusCondition(s.get(px).Status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

func (s *bed) wantInstances(n int) {
	s.t.Helper()
	if got := s.cloud.Instances(); len(got) != n {
		s.t.Errorf("the cloud has %d instances, want %d: %+v", len(got), n, got)
	}
}
