package provider_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/provider"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

// patience is how long a condition may take on a busy machine.
const patience = time.Minute

// bed is a running provider manager of type gcp, with the caches and clients of production, on a fake cloud.
type bed struct {
	t         *testing.T
	client    client.Client
	namespace string
	cloud     *fake.Cloud
	class     *v1alpha1.ProviderClass
	// stop the manager.
	stop func()
}

func newBed(t *testing.T) *bed {
	t.Helper()
	env := testenv.New(t)
	s := &bed{t: t, client: env.Client, namespace: env.Namespace(t)}
	s.cloud = fake.NewCloud(clock.RealClock{}, fake.Behaviour{Start: 100 * time.Millisecond, Stop: 100 * time.Millisecond})
	s.class = &v1alpha1.ProviderClass{
		ObjectMeta: metav1.ObjectMeta{Name: s.namespace},
		Spec: v1alpha1.ProviderClassSpec{
			Type: v1alpha1.ProviderGCP, GCP: &v1alpha1.GCPClass{Project: "project"},
			ControllerName:    "crawl.example.com/" + s.namespace,
			AllowedNamespaces: v1alpha1.NamespaceAccess{From: v1alpha1.NamespacesFromAll},
		},
	}
	s.stop = s.start(env, s.class.Spec.ControllerName)
	s.must(s.client.Create(t.Context(), s.class))
	return s
}

// start runs a manager until the test ends or stop is called.
func (s *bed) start(env *testenv.Env, controllerName string) (stop func()) {
	s.t.Helper()
	mgr, err := manager.New(env.Config, manager.Provider(v1alpha1.ProviderGCP), manager.Options{
		MetricsBindAddress: "0", HealthProbeBindAddress: "0", WatchNamespaces: []string{s.namespace}, SkipNameValidation: true,
	})
	s.must(err)
	s.must(provider.Add(mgr, provider.Options{
		Factory: &fake.Factory{Cloud: s.cloud, ProviderType: v1alpha1.ProviderGCP, Rate: providers.Limits{CallsPerSecond: 1e4, Burst: 1e4}, Times: providers.Timing{
			Window: time.Second, Settle: 2 * time.Second, Confirm: time.Second,
			// Long, so that only events can explain what happens soon.
			Poll: 200 * time.Millisecond, PollMax: 200 * time.Millisecond, Slow: time.Hour,
		}},
		Clock: clock.RealClock{}, ClusterID: "cluster", ControllerName: controllerName,
		Namespaces: []string{s.namespace}, Registerer: prometheus.NewRegistry(),
	}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("manager: %v", err)
		}
	})
	s.t.Cleanup(stop)
	return stop
}

func (s *bed) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *bed) eventually(what string, holds func() bool) {
	s.t.Helper()
	err := wait.PollUntilContextTimeout(context.Background(), 20*time.Millisecond, patience, true, func(context.Context) (bool, error) { return holds(), nil })
	if err != nil {
		s.t.Fatalf("%s: not within %v; instances %+v", what, patience, s.cloud.Instances())
	}
}

// bind does core's part.
func (s *bed) bind(px *v1alpha1.Proxy) {
	s.t.Helper()
	next := px.Status.DeepCopy()
	next.Binding = &v1alpha1.Binding{Type: v1alpha1.ProviderGCP, ClassName: s.class.Name, ClassUID: s.class.UID}
	s.must(statusapply.Proxy(s.t.Context(), s.client, v1alpha1.ManagerCore, px, next))
}

func (s *bed) status(px *v1alpha1.Proxy) *v1alpha1.ProxyStatus {
	s.t.Helper()
	now := &v1alpha1.Proxy{}
	err := s.client.Get(context.Background(), client.ObjectKeyFromObject(px), now)
	if apierrors.IsNotFound(err) {
		return nil
	}
	s.must(err)
	return &now.Status
}

func (s *bed) runs(px *v1alpha1.Proxy) bool {
	status := s.status(px)
	return status != nil && meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionProvisioned)
}

func TestProviderManager_LifeOfAProxy(t *testing.T) {
	s := newBed(t)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "data", Labels: map[string]string{v1alpha1.LabelCloudInit: "true"}},
		Data:       map[string][]byte{"data": []byte("1")},
	}
	s.must(s.client.Create(t.Context(), secret))
	s.eventually("the class is ready", func() bool {
		class := &v1alpha1.ProviderClass{}
		s.must(s.client.Get(t.Context(), client.ObjectKeyFromObject(s.class), class))
		return meta.IsStatusConditionTrue(class.Status.Conditions, v1alpha1.ConditionReady)
	})
	px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "px"}}
	px.Spec.Provider = s.class.Name
	px.Spec.CloudInit = &v1alpha1.CloudInit{SecretKeyRef: &v1alpha1.SecretKeyRef{Name: "data", Key: "data"}}
	s.must(s.client.Create(t.Context(), px))
	s.bind(px)
	s.eventually("the instance runs", func() bool { return s.runs(px) })
	first := s.status(px).Instance

	// A Secret's event wakes its Proxy.
	secret.Data["data"] = []byte("2")
	s.must(s.client.Update(t.Context(), secret))
	s.eventually("the instance is replaced", func() bool { return s.runs(px) && s.status(px).Instance.ID != first.ID })
	second := s.status(px).Instance

	// The provider's event wakes its Proxy.
	s.cloud.Remove(second.Name)
	s.cloud.Notify(providers.Owner{Namespace: s.namespace, Name: "px"})
	s.eventually("the lost instance is made anew", func() bool { return s.runs(px) && s.status(px).Instance.ID != second.ID })

	// A class cannot go before its Proxy; then it goes by itself.
	s.must(s.client.Delete(t.Context(), s.class))
	s.must(s.client.Delete(t.Context(), px))
	s.eventually("the Proxy is gone", func() bool { return s.status(px) == nil })
	if left := s.cloud.Instances(); len(left) != 0 {
		t.Errorf("left %+v", left)
	}
	s.eventually("the class is gone", func() bool {
		return apierrors.IsNotFound(s.client.Get(t.Context(), client.ObjectKeyFromObject(s.class), &v1alpha1.ProviderClass{}))
	})
}

// Twenty Proxies of a burst, half of them deleted while they are made; some of those go without a deletionTimestamp, see
// instance/lost.go. Two managers act at once, since nothing elects.
func TestA9_TwoManagersInOneFleet(t *testing.T) {
	const proxies = 20
	s := newBed(t)
	s.start(testenv.New(t), s.class.Spec.ControllerName)
	var all []*v1alpha1.Proxy
	for n := range proxies {
		px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: fmt.Sprintf("px-%02d", n)}}
		px.Spec.Provider = s.class.Name
		s.must(s.client.Create(t.Context(), px))
		s.bind(px)
		all = append(all, px)
		if n%2 == 1 {
			s.must(s.client.Delete(t.Context(), px))
		}
	}
	for n, px := range all {
		if n%2 == 1 {
			s.eventually(px.Name+" is gone", func() bool { return s.status(px) == nil })
		} else {
			s.eventually(px.Name+" runs", func() bool { return s.runs(px) })
		}
	}
	s.eventually("half of them are left", func() bool { return len(s.cloud.Instances()) == proxies/2 })
	for n, px := range all {
		if n%2 == 0 {
			s.must(s.client.Delete(t.Context(), px))
		}
	}
	for _, px := range all {
		s.eventually(px.Name+" is gone", func() bool { return s.status(px) == nil })
	}
	s.eventually("nothing is left", func() bool { return len(s.cloud.Instances()) == 0 })
}
