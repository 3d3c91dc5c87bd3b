package proxy

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/provider"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// together is core and a provider manager, each with the caches of production, on one API server and a fake cloud.
type together struct {
	t         *testing.T
	env       *testenv.Env
	namespace string
	class     *v1alpha1.ProviderClass
	cloud     *fake.Cloud
	engine    *scriptedHealth
	leases    *scriptedLeases
	// stopProvider stops the provider manager.
	stopProvider func()
}

func startTogether(t *testing.T) *together {
	t.Helper()
	env := testenv.New(t)
	s := &together{t: t, env: env, namespace: env.Namespace(t), engine: newScriptedHealth(), leases: &scriptedLeases{}}
	s.cloud = fake.NewCloud(clock.RealClock{}, fake.Behaviour{Start: 100 * time.Millisecond, Stop: 100 * time.Millisecond})
	startCore(t, env, Options{Health: s.engine, Leases: s.leases})
	s.class = newClass(t, env, "together-"+s.namespace, func(class *v1alpha1.ProviderClass) {
		class.Spec.Type, class.Spec.GCP = v1alpha1.ProviderGCP, &v1alpha1.GCPClass{Project: "my-project"}
	})
	s.startProvider()
	return s
}

func (s *together) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *together) startProvider() {
	s.t.Helper()
	mgr, err := manager.New(s.env.Config, manager.Provider(v1alpha1.ProviderGCP), manager.Options{
		MetricsBindAddress: "0", HealthProbeBindAddress: "0", WatchNamespaces: []string{s.namespace}, SkipNameValidation: true,
	})
	s.must(err)
	s.must(provider.Add(mgr, provider.Options{
		Factory: &fake.Factory{Cloud: s.cloud, ProviderType: v1alpha1.ProviderGCP, Times: providers.Timing{
			Window: time.Second, Settle: 2 * time.Second, Confirm: time.Second,
			// Long, so that only events can explain what happens soon.
			Poll: 200 * time.Millisecond, PollMax: 200 * time.Millisecond, Slow: time.Hour,
		}},
		Clock: clock.RealClock{}, ClusterID: "cluster", ControllerName: v1alpha1.DefaultControllerName,
		Namespaces: []string{s.namespace}, Registerer: prometheus.NewRegistry(),
	}))
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- mgr.Start(ctx) }()
	s.stopProvider = sync.OnceFunc(func() {
		cancel()
		if err := <-stopped; err != nil {
			s.t.Errorf("provider manager: %v", err)
		}
	})
	s.t.Cleanup(s.stopProvider)
}

func (s *together) proxy(name string, change func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
	s.t.Helper()
	return newProxy(s.t, s.env, s.namespace, s.class.Name, func(px *v1alpha1.Proxy) {
		px.Name = name
		if change != nil {
			change(px)
		}
	})
}

// works waits until an instance runs, finds it healthy and waits until the Proxy says so.
func (s *together) works(px *v1alpha1.Proxy) *v1alpha1.Proxy {
	s.t.Helper()
	waitFor(s.t, px.Name+" to be provisioned and watched", func() bool {
		now := get(s.t, s.env, px)
		target, ok := s.engine.target(px.UID)
		return ok && meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionProvisioned) && target.InstanceID == now.Status.Instance.ID
	})
	s.engine.judge(px, good)
	return waitReason(s.t, s.env, px, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
}

func (s *together) remove(px *v1alpha1.Proxy) {
	s.t.Helper()
	s.must(s.env.Client.Delete(s.t.Context(), px.DeepCopy()))
}

func (s *together) gone(px *v1alpha1.Proxy) {
	s.t.Helper()
	waitFor(s.t, px.Name+" to be gone", func() bool { return !exists(s.t, s.env, px) })
}

func (s *together) wantInstances(n int) {
	s.t.Helper()
	if got := s.cloud.Instances(); len(got) != n {
		s.t.Errorf("the cloud has %d instances, want %d: %+v", len(got), n, got)
	}
}

// settles waits until both managers have worked off what they had to do: a Proxy that comes later works.
func (s *together) settles(name string) {
	s.t.Helper()
	marker := s.proxy(name, nil)
	s.works(marker)
	s.remove(marker)
	s.gone(marker)
}

func draining(seconds int32) func(*v1alpha1.Proxy) {
	return func(px *v1alpha1.Proxy) { px.Spec.Deletion = &v1alpha1.ProxyDeletion{DrainTimeoutSeconds: &seconds} }
}

// TestDrain_KeepsTheInstanceUntilTheLastLease: through both managers, on every way a drain ends.
func TestDrain_KeepsTheInstanceUntilTheLastLease(t *testing.T) {
	s := startTogether(t)
	for name, c := range map[string]struct {
		seconds int32
		ends    func(*v1alpha1.Proxy)
	}{
		"the last lease ends":       {3600, func(*v1alpha1.Proxy) { s.leases.count.Store(0) }},
		"the time is up":            {2, func(*v1alpha1.Proxy) {}},
		"the time is shortened":     {3600, func(px *v1alpha1.Proxy) { patch(t, s.env, px, `{"spec":{"deletion":{"drainTimeoutSeconds":1}}}`) }},
		"the time is taken back":    {3600, func(px *v1alpha1.Proxy) { patch(t, s.env, px, `{"spec":{"deletion":null}}`) }},
		"the provider was away too": {3600, func(*v1alpha1.Proxy) { s.stopProvider(); s.leases.count.Store(0); s.startProvider() }},
	} {
		t.Run(name, func(t *testing.T) {
			s.leases.count.Store(1)
			px := s.works(s.proxy("px", draining(c.seconds)))
			s.cloud.Hook(fake.MethodDelete, func(call fake.Call) {
				if now := get(t, s.env, px); call.Name == px.Status.Instance.Name && drainHeld(now) {
					t.Error("the instance is deleted while leases hold it")
				}
			})
			defer s.cloud.Hook(fake.MethodDelete, nil)
			began := time.Now().Truncate(time.Second)
			s.remove(px)
			if c.seconds > 2 {
				now := waitReason(t, s.env, px, v1alpha1.ConditionDrained, v1alpha1.ReasonDraining)
				if now.Status.Phase != v1alpha1.PhaseDraining || !meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionProvisioned) {
					t.Errorf("phase %s, Provisioned %s", now.Status.Phase, reasonOf(now, v1alpha1.ConditionProvisioned))
				}
				if instances := s.cloud.Instances(); len(instances) != 1 || instances[0].State != providers.StateRunning {
					t.Errorf("instances %+v", instances)
				}
			}
			c.ends(px)
			s.gone(px)
			if took := time.Since(began); took < time.Duration(c.seconds)*time.Second && c.seconds <= 2 {
				t.Errorf("gone after %v, before the time was up", took)
			}
			s.wantInstances(0)
		})
	}
}

// TestDrain_WithoutAnInstance: what was never provisioned waits for nobody, whatever its drain timeout.
func TestDrain_WithoutAnInstance(t *testing.T) {
	s := startTogether(t)
	px := newProxy(t, s.env, s.namespace, "none-"+s.namespace, draining(3600))
	waitReason(t, s.env, px, v1alpha1.ConditionAccepted, v1alpha1.ReasonClassNotFound)
	waitFor(t, "the drain finalizer", func() bool { return drainHeld(get(t, s.env, px)) })
	s.remove(px)
	s.gone(px)
}

// TestSkipCleanup_DuringADrain: the instance is given up, and leases still run out on it first.
func TestSkipCleanup_DuringADrain(t *testing.T) {
	s := startTogether(t)
	s.leases.count.Store(1)
	px := s.works(s.proxy("px", draining(3600)))
	s.remove(px)
	waitReason(t, s.env, px, v1alpha1.ConditionDrained, v1alpha1.ReasonDraining)
	patch(t, s.env, px, `{"metadata":{"annotations":{"crawl.example.com/skip-cleanup":"true"}}}`)
	finalizer := v1alpha1.FinalizerInstance(v1alpha1.ProviderGCP)
	waitFor(t, "the instance to be given up", func() bool {
		now := get(t, s.env, px)
		return len(now.Finalizers) == 1 && now.Finalizers[0] != finalizer
	})
	s.settles("marker")
	if !exists(t, s.env, px) {
		t.Fatal("released while a lease holds it")
	}
	s.leases.count.Store(0)
	s.gone(px)
	s.wantInstances(1)
	if i := s.cloud.Instances()[0]; i.Owner.UID != px.UID || i.State != providers.StateRunning {
		t.Errorf("left %+v", i)
	}
}

// TestBadInput_AnEventRecovers: through the caches of production, which do not hold a Secret without its label. Polls are an
// hour apart.
func TestBadInput_AnEventRecovers(t *testing.T) {
	s := startTogether(t)
	secret := func(labels map[string]string, key, data string) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "user-data", Labels: labels},
			Data:       map[string][]byte{key: []byte(data)},
		}
	}
	labelled := map[string]string{v1alpha1.LabelCloudInit: "true"}
	px := s.proxy("px", func(px *v1alpha1.Proxy) {
		px.Spec.CloudInit = &v1alpha1.CloudInit{SecretKeyRef: &v1alpha1.SecretKeyRef{Name: "user-data", Key: "data"}}
	})
	wrong := func(mentions string) {
		t.Helper()
		waitFor(t, "CloudInitError with "+mentions, func() bool {
			now := get(t, s.env, px)
			c := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionCloudInitReady)
			return c != nil && c.Reason == v1alpha1.ReasonCloudInitError && contains(c.Message, mentions)
		})
	}
	wrong(v1alpha1.LabelCloudInit)
	if phase := get(t, s.env, px).Status.Phase; phase != v1alpha1.PhaseProvisioning {
		t.Errorf("phase %s", phase)
	}
	// A Secret without the label is as good as none, and its events reach nobody.
	s.must(s.env.Client.Create(t.Context(), secret(nil, "other", "1")))
	s.settles("unlabelled")
	wrong(v1alpha1.LabelCloudInit)
	s.must(s.env.Client.Update(t.Context(), secret(labelled, "other", "1")))
	wrong("secretKeyRef.key")
	s.must(s.env.Client.Update(t.Context(), secret(labelled, "data", "1")))
	first := s.works(px).Status.Instance.ID

	// What works stays, and goes on as soon as it can.
	s.must(s.env.Client.Update(t.Context(), secret(nil, "data", "2")))
	wrong(v1alpha1.LabelCloudInit)
	if now := get(t, s.env, px); now.Status.Phase != v1alpha1.PhaseReady || now.Status.Instance.ID != first {
		t.Errorf("phase %s, instance %+v", now.Status.Phase, now.Status.Instance)
	}
	s.must(s.env.Client.Update(t.Context(), secret(labelled, "data", "2")))
	waitFor(t, "the replacement", func() bool {
		i := get(t, s.env, px).Status.Instance
		return i.ID != "" && i.ID != first
	})
	s.works(px)
	s.wantInstances(1)
	s.must(client.IgnoreNotFound(s.env.Client.Delete(t.Context(), secret(nil, "", ""))))
	wrong(v1alpha1.LabelCloudInit)
	s.remove(px)
	s.gone(px)
	s.wantInstances(0)
}
