//go:build bench

package bench

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/proxypool"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

const (
	// poolWorkers reconcile pools in these benchmarks.
	poolWorkers = 10
	// poolMembers are created in each round, by the pool controller and raw, by poolWriters at the same time on both sides.
	poolMembers = 400
	poolWriters = 16
	// poolSteps are changes of the size by one, up and then down, whose reconciles are counted.
	poolSteps = 15
	// poolCrowd become Ready at the same time.
	poolCrowd = 150

	minCreatesVsRaw        = 0.5
	maxPlanGrowth          = 15
	maxReconcilesPerChange = 3
)

// pools is what the steps of the benchmark share.
type pools struct{ *provisioning }

func TestPools(t *testing.T) {
	var env *testenv.Env
	apart(t, func() { env = testenv.New(t) })
	b := &pools{&provisioning{report: report{t, "pools"}, env: env, api: newAPIServer(t, env)}}
	b.prepare()
	b.plans()
	b.createsBeyondTarget()
	b.createsAgainstRaw()
	b.reconciles()
}

func (b *pools) pool(namespace, name string) *v1alpha1.ProxyPool {
	return &v1alpha1.ProxyPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.ProxyPoolSpec{
			Replicas: new(int32(0)),
			Template: v1alpha1.ProxyTemplate{
				Metadata: v1alpha1.TemplateMetadata{Labels: map[string]string{"geo": "eu"}},
				Spec:     v1alpha1.ProxyTemplateSpec{Provider: className, Port: b.proxyPort},
			},
		},
	}
}

// scale sets the size as `kubectl scale` does.
func (b *pools) scale(pool *v1alpha1.ProxyPool, replicas int) {
	b.t.Helper()
	body := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	b.must(b.env.Client.SubResource("scale").Patch(b.t.Context(), pool.DeepCopy(), client.RawPatch(types.MergePatchType, body)))
}

// startPools runs nothing but the controller of pools, in this process, whose caches learn of Proxies so much later. It ends
// with the test or when the returned function is called.
func (b *pools) startPools(namespace string, lag time.Duration) (stop func()) {
	t := b.t
	t.Helper()
	cfg := rest.CopyConfig(b.env.Config)
	if lag > 0 {
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return lateWatches{next, lag} })
	}
	mgr, err := manager.New(cfg, manager.Core(), manager.Options{
		MetricsBindAddress: "0", HealthProbeBindAddress: "0", SkipNameValidation: true, WatchNamespaces: []string{namespace},
	})
	b.must(err)
	b.must(proxypool.Add(t.Context(), manyWorkers{mgr}, proxypool.Options{Clock: clock.RealClock{}}))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the manager ended: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// manyWorkers gives its controllers poolWorkers.
type manyWorkers struct{ ctrlmanager.Manager }

func (m manyWorkers) GetControllerOptions() config.Controller {
	options := m.Manager.GetControllerOptions()
	options.MaxConcurrentReconciles = poolWorkers
	return options
}

// waitPresent waits until a watch shows so many Proxies, and gives the moment at which it did.
func (b *pools) waitPresent(r *readiness, n int) time.Time {
	t := b.t
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		r.mu.Lock()
		present := len(r.present)
		r.mu.Unlock()
		if present == n {
			return time.Now()
		}
		select {
		case <-deadline:
			t.Fatalf("waited in vain for %d Proxies; %d are there", n, present)
		case <-tick.C:
		}
	}
}

func (b *pools) created(w work) float64 {
	return w.count(func(w write) bool {
		return ofProxies(w) && w.subresource == "" && w.verb == "POST" && !w.refused
	})
}

// createsBeyondTarget measures creates_beyond_target.
func (b *pools) createsBeyondTarget() {
	b.t.Helper()
	beyond := 0.0
	// The second is longer than the controller believes a cache to lag, so it asks the API server meanwhile.
	for _, lag := range []time.Duration{2 * time.Second, 12 * time.Second} {
		namespace := b.env.Namespace(b.t)
		pool := b.pool(namespace, "eu")
		b.must(b.env.Client.Create(b.t.Context(), pool))
		r := watchReadiness(b.t, b.env, namespace)
		stop := b.startPools(namespace, lag)
		before := b.api.work(b.t)
		wanted, size := 0, 0
		for _, next := range []int{200, 5, 200} {
			b.scale(pool, next)
			wanted += max(next-size, 0)
			size = next
			b.waitPresent(r, size)
		}
		// What the cache shows late must not be made up for.
		deadline := time.Now().Add(lag + 2*time.Second)
		for time.Now().Before(deadline) {
			b.waitPresent(r, size)
			<-time.After(100 * time.Millisecond)
		}
		made := b.api.work(b.t).since(before)
		b.note("0, 200, 5 and 200 members by %d workers, with caches that learn of Proxies %s late: the API server made %.0f, %d are wanted",
			poolWorkers, lag, b.created(made), wanted)
		beyond += b.created(made) - float64(wanted)
		stop()
		b.must(b.env.Client.DeleteAllOf(b.t.Context(), &v1alpha1.Proxy{}, client.InNamespace(namespace)))
	}
	b.atMost("creates_beyond_target", beyond, 0)
}

// createsAgainstRaw measures creates_vs_raw.
func (b *pools) createsAgainstRaw() {
	t := b.t
	t.Helper()
	namespace, rawNamespace := b.env.Namespace(t), b.env.Namespace(t)
	pool := b.pool(namespace, "eu")
	b.must(b.env.Client.Create(t.Context(), pool))
	seen, rawSeen := watchReadiness(t, b.env, namespace), watchReadiness(t, b.env, rawNamespace)
	defer b.startPools(namespace, 0)()

	var member *v1alpha1.Proxy
	grow := func(n int) time.Duration {
		start := time.Now()
		b.scale(pool, n)
		took := b.waitPresent(seen, n).Sub(start)
		member = seen.any(t)
		b.scale(pool, 0)
		b.waitPresent(seen, 0)
		return took
	}
	raw := func(n int) time.Duration {
		start := time.Now()
		b.parallel(poolWriters, n, func(ctx context.Context, i int) error {
			px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{
				Namespace: rawNamespace, Name: fmt.Sprintf("%s-%d", member.Name, i),
				Labels: member.Labels, Annotations: member.Annotations, OwnerReferences: member.OwnerReferences,
			}, Spec: *member.Spec.DeepCopy()}
			return b.env.Client.Create(ctx, px)
		})
		took := b.waitPresent(rawSeen, n).Sub(start)
		b.must(b.env.Client.DeleteAllOf(t.Context(), &v1alpha1.Proxy{}, client.InNamespace(rawNamespace)))
		b.waitPresent(rawSeen, 0)
		return took
	}
	grow(poolMembers / 4)
	raw(poolMembers / 4)
	b.note("%d rounds of %d members each; raw is Create of the same object by %d writers, half of them before and half after", rounds, poolMembers, poolWriters)
	var ours, theirs, ratio sample
	for range rounds {
		took := raw(poolMembers / 2)
		pace := poolMembers / grow(poolMembers).Seconds()
		took += raw(poolMembers / 2)
		baseline := poolMembers / took.Seconds()
		ours, theirs, ratio = append(ours, pace), append(theirs, baseline), append(ratio, pace/baseline)
	}
	b.note("members per second: %v", ours)
	b.note("raw per second: %v", theirs)
	b.note("creates_vs_raw: %v", ratio)
	b.atLeast("creates_vs_raw", ratio.median(), minCreatesVsRaw)
}

// any is one of the Proxies that exist.
func (r *readiness) any(t *testing.T) *v1alpha1.Proxy {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, px := range r.present {
		return px
	}
	t.Fatal("there is no Proxy")
	return nil
}

// plans measures plan_5000_vs_500: one plan of a pool that rolls, recycles and has leases.
func (b *pools) plans() {
	const few, many = 500, 5000
	var ratio, small, large sample
	fewer, more := b.rolling(few), b.rolling(many)
	// In CPU time, which other work on the machine changes less than the time that passes.
	time10 := func(in proxypool.Input) float64 {
		start := cpuSeconds(b.t)
		for range 10 {
			plan := proxypool.MakePlan(in)
			if len(plan.Creates) == 0 || len(plan.Deletes) == 0 {
				b.t.Fatal("the plan does nothing")
			}
		}
		return (cpuSeconds(b.t) - start) * 100
	}
	time10(fewer)
	for range 2*rounds + 1 {
		s, l := time10(fewer), time10(more)
		small, large, ratio = append(small, s), append(large, l), append(ratio, l/s)
	}
	b.note("CPU milliseconds of a plan with %d members: %v", few, small)
	b.note("CPU milliseconds of a plan with %d members: %v", many, large)
	b.note("plan_5000_vs_500: %v", ratio)
	b.atMost("plan_5000_vs_500", ratio.median(), maxPlanGrowth)
}

// cpuSeconds is the CPU time that this process has used.
func cpuSeconds(t *testing.T) float64 {
	t.Helper()
	var times syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &times); err != nil {
		t.Fatalf("read the CPU time: %v", err)
	}
	return time.Duration(times.Utime.Nano() + times.Stime.Nano()).Seconds()
}

// rolling is a pool of n members in the middle of a rollout.
func (b *pools) rolling(n int) proxypool.Input {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	pool := b.pool("crawl", "eu")
	pool.UID, pool.Generation, pool.Spec.Replicas = "pool", 1, new(int32(n))
	pool.Spec.Recycle = &v1alpha1.PoolRecycle{MaxAgeSeconds: new(int32(7200))}
	in := proxypool.Input{Pool: pool, Now: now, Leases: func(uid types.UID) int { return int(uid[len(uid)-1]) % 2 }}
	for i := range n {
		px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{
			Namespace: "crawl", Name: fmt.Sprintf("eu-%d", i), UID: types.UID(fmt.Sprintf("uid-%d", i)),
			CreationTimestamp: metav1.NewTime(now.Add(-time.Duration(i) * time.Second)), Labels: pool.Spec.Template.Metadata.Labels,
		}}
		px.Spec.ProxyTemplateSpec = *pool.Spec.Template.Spec.DeepCopy()
		if i%2 == 0 {
			px.Spec.Port++
		}
		for _, name := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionProvisioned, v1alpha1.ConditionHealthy, v1alpha1.ConditionReady} {
			meta.SetStatusCondition(&px.Status.Conditions, metav1.Condition{
				Type: name, Status: metav1.ConditionTrue, Reason: "Bench", LastTransitionTime: px.CreationTimestamp,
			})
		}
		in.Members = append(in.Members, px)
	}
	return in
}

// reconciles measures reconciles_per_member_change with all managers at work. A change is that a member appears, becomes
// Ready or goes.
func (b *pools) reconciles() {
	t := b.t
	t.Helper()
	pool := b.pool(b.config.Namespace, "eu")
	b.must(b.env.Client.Create(t.Context(), pool))
	p := startProcess(t, b.config)
	defer p.stop()
	p.begin()
	b.classReady(p)
	r := watchReadiness(t, b.env, b.config.Namespace)
	reach := func(n int) {
		b.scale(pool, n)
		r.wait(p, patience, fmt.Sprintf("%d Ready Proxies", n), func(r *readiness) bool { return len(r.ready) == n && len(r.present) == n })
		p.waitFor(patience, "the pool to know", func() bool {
			fresh := &v1alpha1.ProxyPool{}
			b.must(b.env.Client.Get(t.Context(), client.ObjectKeyFromObject(pool), fresh))
			return int(fresh.Status.Ready) == n && int(fresh.Status.Replicas) == n && fresh.Status.Terminating == 0 && p.usage(false).Waiting == 0
		})
	}
	perChange := func(what string, changes int, do func()) float64 {
		before := p.usage(false).Reconciles["proxypool"]
		do()
		n := p.usage(false).Reconciles["proxypool"] - before
		b.note("%s: %.0f reconciles for %d changes of members", what, n, changes)
		return n / float64(changes)
	}
	reach(1)
	single := perChange(fmt.Sprintf("%d members one after the other, there and away", poolSteps), 3*poolSteps, func() {
		for i := range poolSteps {
			reach(2 + i)
		}
		for i := range poolSteps {
			reach(poolSteps - i)
		}
	})
	crowd := perChange(fmt.Sprintf("%d members at once, there and away", poolCrowd), 3*poolCrowd, func() {
		reach(1 + poolCrowd)
		reach(1)
	})
	b.atMost("reconciles_per_member_change", max(single, crowd), maxReconcilesPerChange)
}
