package proxypool

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/health"
	"crawl.example.com/egress-proxies-operator/controllers/provider"
	"crawl.example.com/egress-proxies-operator/controllers/providerclass"
	"crawl.example.com/egress-proxies-operator/controllers/proxy"
	"crawl.example.com/egress-proxies-operator/controllers/proxylease"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/leasing"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// fleet is the whole operator on a real API server: core with all of its controllers and leasing, and a provider manager on
// a cloud in memory. Only the health of proxies is made up: an instance that runs is healthy.
type fleet struct {
	t         *testing.T
	env       *testenv.Env
	namespace string
	class     string
	cloud     *fake.Cloud
	allocator *leasing.Allocator
	engine    *wellness
	// metrics of the controller of pools.
	metrics *prometheus.Registry
}

func startFleet(t *testing.T) *fleet {
	t.Helper()
	env := testenv.New(t)
	f := &fleet{t: t, env: env, namespace: env.Namespace(t), metrics: prometheus.NewRegistry()}
	f.class = "fleet-" + f.namespace
	f.cloud = fake.NewCloud(clock.RealClock{}, fake.Behaviour{Start: 50 * time.Millisecond, Stop: 50 * time.Millisecond, Wakes: true})
	f.must(env.Client.Create(t.Context(), &v1alpha1.ProviderClass{
		ObjectMeta: metav1.ObjectMeta{Name: f.class},
		Spec: v1alpha1.ProviderClassSpec{
			Type: v1alpha1.ProviderGCP, GCP: &v1alpha1.GCPClass{Project: "my-project"},
			AllowedNamespaces: v1alpha1.NamespaceAccess{From: v1alpha1.NamespacesFromAll},
		},
	}))
	f.startCore()
	f.startProvider()
	waitFor(t, "the class to be ready", func() bool {
		class := &v1alpha1.ProviderClass{}
		f.must(env.Client.Get(t.Context(), client.ObjectKey{Name: f.class}, class))
		return meta.IsStatusConditionTrue(class.Status.Conditions, v1alpha1.ConditionReady) && f.allocator.Recovered()
	})
	return f
}

func (f *fleet) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) newManager(role manager.Role) ctrlmanager.Manager {
	f.t.Helper()
	mgr, err := manager.New(f.env.Config, role, manager.Options{
		MetricsBindAddress: "0", HealthProbeBindAddress: "0", SkipNameValidation: true, WatchNamespaces: []string{f.namespace},
	})
	f.must(err)
	return mgr
}

func (f *fleet) start(mgr ctrlmanager.Manager) {
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- mgr.Start(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			f.t.Errorf("manager: %v", err)
		}
	})
}

// startCore is newCoreManager of cmd.
func (f *fleet) startCore() {
	f.t.Helper()
	mgr, realClock, namespaces := f.newManager(manager.Core()), clock.RealClock{}, []string{f.namespace}
	f.engine = newWellness()
	// They are never contacted.
	defaults, err := health.NewDefaults(health.DefaultTargetURLs, "", nil)
	f.must(err)
	f.allocator, err = leasing.New(leasing.Options{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Cache: mgr.GetCache(), Clock: realClock,
		Recorder: mgr.GetEventRecorder("leasing"), Registerer: prometheus.NewRegistry(), Namespaces: namespaces, RestartGrace: time.Second,
	})
	f.must(err)
	f.must(mgr.Add(f.allocator))
	f.must(proxy.Add(f.t.Context(), mgr, proxy.Options{
		Namespaces: namespaces, ControllerName: v1alpha1.DefaultControllerName, Health: f.engine, HealthDefaults: defaults,
		Leases: f.allocator, LeaseChanges: f.allocator.LeaseChanges(), Clock: realClock,
	}))
	f.must(providerclass.Add(f.t.Context(), mgr, providerclass.Options{ControllerName: v1alpha1.DefaultControllerName, Clock: realClock}))
	f.must(Add(f.t.Context(), mgr, Options{Leases: f.allocator, LeaseChanges: f.allocator.LeaseChanges(), Clock: realClock, Registerer: f.metrics}))
	f.must(proxylease.Add(mgr, proxylease.Options{Allocator: f.allocator, Clock: realClock}))
	f.start(mgr)
}

func (f *fleet) startProvider() {
	f.t.Helper()
	mgr := f.newManager(manager.Provider(v1alpha1.ProviderGCP))
	f.must(provider.Add(mgr, provider.Options{
		Factory: &fake.Factory{
			Cloud: f.cloud, ProviderType: v1alpha1.ProviderGCP,
			Times: providers.Timing{Window: 10 * time.Second, Settle: 10 * time.Second, Confirm: time.Second, Poll: 200 * time.Millisecond, PollMax: 200 * time.Millisecond},
			Rate:  providers.Limits{CallsPerSecond: 1e6, Burst: 1e6},
		},
		Clock: clock.RealClock{}, ClusterID: "cluster", ControllerName: v1alpha1.DefaultControllerName,
		Namespaces: []string{f.namespace}, Registerer: prometheus.NewRegistry(),
	}))
	f.start(mgr)
}

// pool creates a pool whose leases have so long to end when their proxy goes.
func (f *fleet) pool(name string, replicas int32, drain time.Duration, change func(*v1alpha1.ProxyPool)) *v1alpha1.ProxyPool {
	f.t.Helper()
	pool := livePool(f.namespace, replicas)
	pool.Name, pool.Spec.Template.Spec.Provider = name, f.class
	pool.Spec.Template.Spec.Deletion = &v1alpha1.ProxyDeletion{DrainTimeoutSeconds: new(int32(drain.Seconds()))}
	if change != nil {
		change(pool)
	}
	f.must(f.env.Client.Create(f.t.Context(), pool))
	return pool
}

// patch merges a change into the specification of a pool.
func (f *fleet) patch(pool *v1alpha1.ProxyPool, spec string) error {
	return f.env.Client.Patch(f.t.Context(), pool.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":`+spec+`}`)))
}

// settled waits until a pool is as it should be with that many replicas, and nothing drains or goes any more.
func (f *fleet) settled(pool *v1alpha1.ProxyPool, replicas int32) {
	f.t.Helper()
	done := false
	defer func() {
		if !done {
			f.t.Logf("pool: %+v", getPool(f.t, f.env, pool).Status)
			for _, px := range f.members(pool) {
				f.t.Logf("member %s: drains %v, deleted %v, %+v", px.Name, px.Spec.DrainRequests, px.DeletionTimestamp, px.Status.Conditions)
			}
		}
	}()
	waitFor(f.t, "pool "+pool.Name+" to settle", func() bool {
		fresh := getPool(f.t, f.env, pool)
		s := &fresh.Status
		done = s.ObservedGeneration == fresh.Generation && meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReady) &&
			s.Replicas == replicas && s.Available == replicas && s.Updated == replicas && s.Draining == 0 && s.Terminating == 0
		return done
	})
}

// members of a pool, those that are leaving included.
func (f *fleet) members(pool *v1alpha1.ProxyPool) []v1alpha1.Proxy {
	f.t.Helper()
	list := &v1alpha1.ProxyList{}
	f.must(f.env.Client.List(f.t.Context(), list, client.InNamespace(f.namespace)))
	var out []v1alpha1.Proxy
	for _, px := range list.Items {
		if owner := metav1.GetControllerOf(&px); owner != nil && owner.UID == pool.UID {
			out = append(out, px)
		}
	}
	return out
}

// wellness is a health engine for which every instance works, until it falls.
type wellness struct {
	mu       sync.Mutex
	verdicts map[types.UID]health.Verdict
	changes  chan event.TypedGenericEvent[types.NamespacedName]
}

func newWellness() *wellness {
	return &wellness{verdicts: map[types.UID]health.Verdict{}, changes: make(chan event.TypedGenericEvent[types.NamespacedName], 1<<16)}
}

func (w *wellness) Upsert(target health.Target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if target.Address == "" || w.verdicts[target.UID].InstanceID == target.InstanceID {
		return
	}
	w.verdicts[target.UID] = health.Verdict{
		InstanceID: target.InstanceID, Known: true, Healthy: true, Reason: "Test", Message: "It works.", AccessRestricted: new(true), LastTransition: time.Now(),
	}
	w.changes <- event.TypedGenericEvent[types.NamespacedName]{Object: target.Key}
}

// fall makes the instance of a proxy unhealthy.
func (w *wellness) fall(px *v1alpha1.Proxy) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.verdicts[px.UID]
	v.Healthy, v.Reason, v.Message, v.LastTransition = false, "Fallen", "It does not work.", time.Now()
	w.verdicts[px.UID] = v
	w.changes <- event.TypedGenericEvent[types.NamespacedName]{Object: client.ObjectKeyFromObject(px)}
}

func (w *wellness) Remove(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.verdicts, uid)
}

func (w *wellness) Verdict(uid types.UID) (health.Verdict, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := w.verdicts[uid]
	return v, ok
}

func (w *wellness) Changes() <-chan event.TypedGenericEvent[types.NamespacedName] { return w.changes }
