package proxypool

import (
	"context"
	"fmt"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

// startManager runs the controller in a manager as production has it, for one namespace: other tests left theirs behind.
func startManager(t *testing.T, env *testenv.Env, namespace string) {
	t.Helper()
	mgr, err := manager.New(env.Config, manager.Core(), manager.Options{
		MetricsBindAddress: "0", HealthProbeBindAddress: "0", SkipNameValidation: true, WatchNamespaces: []string{namespace},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := Add(t.Context(), mgr, Options{Clock: clock.RealClock{}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Errorf("manager: %v", err)
		}
	})
}

func getPool(t *testing.T, env *testenv.Env, pool *v1alpha1.ProxyPool) *v1alpha1.ProxyPool {
	t.Helper()
	fresh := &v1alpha1.ProxyPool{}
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(pool), fresh); err != nil {
		t.Fatal(err)
	}
	return fresh
}

func livingMembers(t *testing.T, env *testenv.Env, pool *v1alpha1.ProxyPool) []v1alpha1.Proxy {
	t.Helper()
	list := &v1alpha1.ProxyList{}
	if err := env.Client.List(t.Context(), list, client.InNamespace(pool.Namespace)); err != nil {
		t.Fatal(err)
	}
	var out []v1alpha1.Proxy
	for _, px := range list.Items {
		if px.DeletionTimestamp.IsZero() {
			out = append(out, px)
		}
	}
	return out
}

func TestA37_P14_ScaleSubresource(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	startManager(t, env, namespace)
	pool := livePool(namespace, 0)
	if err := env.Client.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	before := createdProxies(t, env)
	for _, replicas := range []int32{20, 3, 0, 2} {
		scale(t, env, pool, replicas)
		waitFor(t, fmt.Sprintf("%d members", replicas), func() bool { return len(livingMembers(t, env, pool)) == int(replicas) })
		waitFor(t, "status", func() bool {
			fresh := getPool(t, env, pool)
			return fresh.Status.Replicas == replicas && fresh.Status.ObservedGeneration == fresh.Generation
		})
		got := &autoscalingv1.Scale{}
		if err := env.Client.SubResource("scale").Get(t.Context(), pool, got); err != nil {
			t.Fatal(err)
		}
		if got.Status.Replicas != replicas || got.Status.Selector != "crawl.example.com/pool=eu" {
			t.Errorf("scale says %d replicas by %q", got.Status.Replicas, got.Status.Selector)
		}
	}
	if made := createdProxies(t, env) - before; made != 22 {
		t.Errorf("the API server made %d proxies, want 20 and 2", made)
	}
	for _, px := range livingMembers(t, env, pool) {
		owner := metav1.GetControllerOf(&px)
		if owner == nil || owner.UID != pool.UID || !ptr.Deref(owner.BlockOwnerDeletion, false) ||
			px.Labels["geo"] != "eu" || px.Labels[v1alpha1.LabelPool] != "eu" || px.Labels[v1alpha1.LabelRevision] == "" ||
			px.Spec.ReplacePolicy != v1alpha1.ReplaceOnDelete || px.Spec.Mode != v1alpha1.ModeManaged {
			t.Errorf("member %s is not as the pool wants it: %+v", px.Name, px.ObjectMeta)
		}
	}
}

func TestA38_P10_LaggingReadsMakeNoProxyTooMany(t *testing.T) {
	env := testenv.New(t)
	for _, lag := range []int{1, 7, 1000} {
		for _, restarts := range []bool{false, true} {
			t.Run(fmt.Sprintf("lag %d restarts %v", lag, restarts), func(t *testing.T) {
				namespace := env.Namespace(t)
				cache := newLaggingClient(t, env, namespace, lag)
				d := newDirectPool(t, env, cache, livePool(namespace, 0))
				before := createdProxies(t, env)
				step := func() {
					if restarts {
						d.restart()
					}
					d.reconcile()
					d.clock.SetTime(d.clock.Now().Add(3 * time.Second))
				}
				d.scale(20)
				for range 8 {
					step()
					if got := d.alive(); got > 20 {
						t.Fatalf("%d proxies, 20 are wanted", got)
					}
				}
				if got := d.alive(); got != 20 {
					t.Errorf("%d proxies, want 20", got)
				}
				if made := createdProxies(t, env) - before; made != 20 {
					t.Errorf("the API server made %d proxies, want 20", made)
				}
				d.scale(3)
				for range 8 {
					step()
					if got := d.alive(); got < 3 {
						t.Fatalf("%d proxies, 3 are wanted", got)
					}
				}
				if got := d.alive(); got != 3 {
					t.Errorf("%d proxies, want 3", got)
				}
				if made := createdProxies(t, env) - before; made != 20 {
					t.Errorf("the API server made %d proxies in all, want 20", made)
				}
				// The cache catches up, and nothing is left to do.
				cache.setLag(0)
				d.restart()
				d.reconcile()
				if got, made := d.alive(), createdProxies(t, env)-before; got != 3 || made != 20 {
					t.Errorf("after catching up: %d proxies, %d made", got, made)
				}
			})
		}
	}
}

// Names freed by deletions must not tempt an outdated view into filling them besides what was made elsewhere.
func TestP11_UpAndDownWithLaggingReads(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	cache := newLaggingClient(t, env, namespace, 0)
	d := newDirectPool(t, env, cache, livePool(namespace, 6))
	for i, step := range []struct {
		lag, replicas int
	}{{0, 6}, {9, 2}, {5, 6}, {12, 1}, {3, 8}, {20, 8}, {2, 4}} {
		cache.setLag(step.lag)
		d.scale(int32(step.replicas))
		d.reconcile()
		d.clock.SetTime(d.clock.Now().Add(visibilityTimeout / 2))
		d.reconcile()
		if got := d.alive(); got != step.replicas {
			t.Fatalf("step %d: %d proxies, want %d", i, got, step.replicas)
		}
	}
}

func TestA40_PoolDeletedMidScaleMakesNothing(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	stale := &stalePoolClient{Client: newLaggingClient(t, env, namespace, 0)}
	d := newDirectPool(t, env, stale, livePool(namespace, 5))
	d.scale(20)
	stale.pool = getPool(t, env, d.pool)
	if err := env.Client.Delete(t.Context(), d.pool, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		t.Fatal(err)
	}
	before := createdProxies(t, env)
	// The reconciler still sees the living pool.
	d.reconcile()
	// It sees that the pool is being deleted.
	stale.pool = nil
	d.reconcile()
	if made := createdProxies(t, env) - before; made != 0 {
		t.Errorf("a deleted pool made %d proxies", made)
	}
}

type stalePoolClient struct {
	client.Client
	pool *v1alpha1.ProxyPool
}

func (c *stalePoolClient) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if pool, ok := obj.(*v1alpha1.ProxyPool); ok && c.pool != nil {
		c.pool.DeepCopyInto(pool)
		return nil
	}
	return c.Client.Get(ctx, key, obj, opts...)
}

// A name that somebody else's Proxy has is stepped over; the Proxy is neither adopted nor deleted.
func TestForeignNamesakeIsLeftAlone(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	pool := livePool(namespace, 2)
	defaulted := pool.Spec.Template.Spec
	foreign := &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: memberName("eu", RevisionOf(&defaulted), 0),
			Labels:          map[string]string{v1alpha1.LabelPool: "eu"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "crawl.example.com/v1alpha1", Kind: "ProxyPool", Name: "eu", UID: "former-pool", Controller: new(true)}},
		},
		Spec: v1alpha1.ProxySpec{ProxyTemplateSpec: v1alpha1.ProxyTemplateSpec{Provider: "kubernetes"}},
	}
	if err := env.Client.Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	d := newDirectPool(t, env, newLaggingClient(t, env, namespace, 0), pool)
	d.reconcile()
	d.reconcile()
	if got := d.alive(); got != 3 {
		t.Errorf("%d proxies, want the foreign one and 2", got)
	}
	if got := getPool(t, env, pool); got.Status.CollisionCount != 1 || got.Status.Replicas != 2 {
		t.Errorf("collisions %d, replicas %d; want 1 and 2", got.Status.CollisionCount, got.Status.Replicas)
	}
	d.scale(0)
	d.reconcile()
	if got := d.alive(); got != 1 {
		t.Errorf("%d proxies after scaling to zero, want the foreign one", got)
	}
}

// Labels and capacity reach members in place, and go again, without a new generation of instances.
func TestTemplateLabelsReachMembersInPlace(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	startManager(t, env, namespace)
	pool := livePool(namespace, 2)
	pool.Spec.Template.Metadata.Labels["tier"] = "a"
	if err := env.Client.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "2 members", func() bool { return len(livingMembers(t, env, pool)) == 2 })
	uids := map[string]bool{}
	for _, px := range livingMembers(t, env, pool) {
		uids[string(px.UID)] = true
	}
	patch := `{"spec":{"template":{"metadata":{"labels":{"geo":"us","tier":null}},"spec":{"capacity":5,"deletion":{"drainTimeoutSeconds":30}}}}}`
	if err := env.Client.Patch(t.Context(), pool.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "changes in place", func() bool {
		for _, px := range livingMembers(t, env, pool) {
			_, tier := px.Labels["tier"]
			if !uids[string(px.UID)] || px.Labels["geo"] != "us" || tier || ptr.Deref(px.Spec.Capacity, 0) != 5 ||
				px.Spec.Deletion == nil || ptr.Deref(px.Spec.Deletion.DrainTimeoutSeconds, 0) != 30 {
				return false
			}
		}
		return true
	})
}

func TestRolloutOnARealAPIServer(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	startManager(t, env, namespace)
	pool := livePool(namespace, 4)
	if err := env.Client.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	makeReady := func() {
		for _, px := range livingMembers(t, env, pool) {
			if meta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionReady) {
				continue
			}
			desired := px.Status.DeepCopy()
			for manager, name := range map[string]string{
				v1alpha1.ManagerCore: v1alpha1.ConditionReady, v1alpha1.ManagerProvider("kubernetes"): v1alpha1.ConditionProvisioned,
			} {
				meta.SetStatusCondition(&desired.Conditions, metav1.Condition{Type: name, Status: metav1.ConditionTrue, Reason: "Test"})
				if err := statusapply.Proxy(t.Context(), env.Client, manager, &px, desired); err != nil {
					t.Logf("set %s of %s: %v", name, px.Name, err)
				}
			}
		}
	}
	complete := func(port int32) func() bool {
		return func() bool {
			makeReady()
			fresh := getPool(t, env, pool)
			ready := meta.FindStatusCondition(fresh.Status.Conditions, v1alpha1.ConditionReady)
			if fresh.Status.ObservedGeneration != fresh.Generation || ready == nil || ready.Status != metav1.ConditionTrue {
				return false
			}
			for _, px := range livingMembers(t, env, pool) {
				if px.Spec.Port != port {
					return false
				}
			}
			return true
		}
	}
	waitFor(t, "a ready pool", complete(3128))
	before := createdProxies(t, env)
	patch := `{"spec":{"template":{"spec":{"port":8080}}}}`
	if err := env.Client.Patch(t.Context(), pool.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the rollout", complete(8080))
	if made := createdProxies(t, env) - before; made != 4 {
		t.Errorf("the rollout made %d proxies, want 4", made)
	}
	if got := len(livingMembers(t, env, pool)); got != 4 {
		t.Errorf("%d members after the rollout, want 4", got)
	}
}
