//go:build bench

package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
	"crawl.example.com/egress-proxies-operator/controllers/health/proxyzoo"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// rounds of each side, one after the other.
	rounds = 5
	// proxiesPerRound are created, become Ready and are deleted in each round.
	proxiesPerRound = 300
	// writers is how many create Proxies at the same time, and on the raw side write the status as well. It is the number of
	// workers that one controller of the operator has, so that the raw side is not held back by having fewer of them; more
	// do not make it faster, since the API server has no CPU time left.
	writers = 8
	// few and many settled Proxies, whose heaps are compared.
	few, many = 1_000, 10_000
	// fillers create the settled Proxies.
	fillers = 16

	// minReadyVsRaw and maxHeapGrowth are the bounds that fail a run.
	minReadyVsRaw = 0.3
	maxHeapGrowth = 10.5

	// patience bounds a step; only a hanging run takes that long, or one on a machine that is busy with something else.
	patience = 8 * time.Minute

	// profilesVariable names a folder for CPU profiles of the first round: of the managers until all Proxies are Ready, and
	// of the API server for the first profileSeconds of it.
	profilesVariable = "BENCH_PROFILES"
	profileSeconds   = 5

	className = "bench"
)

// provisioning is what the steps of the benchmark share.
type provisioning struct {
	report
	env       *testenv.Env
	api       *apiServer
	config    managersConfig
	clusterID string
	proxyPort int32
	// final is a Proxy that the managers made Ready.
	final *v1alpha1.Proxy
}

func TestProvisioning(t *testing.T) {
	var env *testenv.Env
	apart(t, func() { env = testenv.New(t) })
	b := &provisioning{report: report{t, "provisioning"}, env: env, api: newAPIServer(t, env)}
	b.prepare()
	b.readyAgainstRaw()
	b.heap()
}

// prepare starts what stands in for the world: an HTTPS origin, and a forward proxy that is every instance's address.
func (b *provisioning) prepare() {
	t := b.t
	t.Helper()
	ca := proxyzoo.NewCA(t, "bench")
	origin := proxyzoo.NewOrigin(t, ca, "127.0.0.1")
	forward := proxyzoo.Start(t, proxyzoo.Closed(proxyzoo.Tunnel, strings.TrimPrefix(origin.URL, "https://")))
	host, port, err := probe.SplitAddress(forward.Addr)
	if err != nil {
		t.Fatal(err)
	}
	b.proxyPort = int32(port)
	b.config = managersConfig{
		Kubeconfig: kubeconfig(t, b.env.Config), Namespace: b.env.Namespace(t), ElectionNamespace: b.env.Namespace(t),
		TargetURL: origin.URL + "/status/204", TargetCA: ca.PEM(), ProxyHost: host,
	}
	if b.clusterID, err = manager.ClusterID(t.Context(), b.env.Client, ""); err != nil {
		t.Fatal(err)
	}
	b.must(b.env.Client.Create(t.Context(), &v1alpha1.ProviderClass{
		ObjectMeta: metav1.ObjectMeta{Name: className},
		Spec: v1alpha1.ProviderClassSpec{
			Type: providerType, AllowedNamespaces: v1alpha1.NamespaceAccess{From: v1alpha1.NamespacesFromAll},
			// A limit that spares clouds would be what is measured.
			MaxConcurrentCreates: new(int32(1000)),
			// After its first probe a proxy is left alone while something else is measured.
			HealthCheck: &v1alpha1.HealthCheck{PeriodSeconds: new(int32(86_400))},
		},
	}))
}

func (b *provisioning) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// classReady waits until the class is ready.
func (b *provisioning) classReady(p *process) {
	b.t.Helper()
	class := &v1alpha1.ProviderClass{}
	p.waitFor(patience, "the class to be ready", func() bool {
		b.must(b.env.Client.Get(b.t.Context(), client.ObjectKey{Name: className}, class))
		return meta.IsStatusConditionTrue(class.Status.Conditions, v1alpha1.ConditionReady)
	})
}

func (b *provisioning) proxy(namespace, name string) *v1alpha1.Proxy {
	px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	px.Spec.Provider, px.Spec.Port = className, b.proxyPort
	return px
}

// parallel does n things, with so many workers at the same time.
func (b *provisioning) parallel(workers, n int, do func(ctx context.Context, i int) error) {
	b.t.Helper()
	bounded, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	group, ctx := errgroup.WithContext(bounded)
	var next atomic.Int64
	for range workers {
		group.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return nil
				}
				if err := do(ctx, i); err != nil {
					return err
				}
			}
		})
	}
	b.must(group.Wait())
}

// round is what one round of Proxies through the managers took.
type round struct {
	// perSecond is how many became Ready per second, from the first create to the last Ready.
	perSecond float64
	// up is what the API server did until the last was Ready, down from there until the last was gone.
	up, down work
	// managersCPU in seconds, of the whole round.
	managersCPU float64
}

// life creates n Proxies, waits until they are Ready, deletes them and waits until they are gone.
func (b *provisioning) life(p *process, r *readiness, name string, n int, profiles string) round {
	t := b.t
	t.Helper()
	stopProfile, stopOther := func() {}, func() {}
	if profiles != "" {
		stopProfile = p.profile(filepath.Join(profiles, "managers-ready.pprof"))
		stopOther = b.api.profile(t, filepath.Join(profiles, "apiserver-ready.pprof"), profileSeconds)
	}
	cpu, before := p.usage(false).CPUSeconds, b.api.work(t)
	start := time.Now()
	b.parallel(writers, n, func(ctx context.Context, i int) error {
		return b.env.Client.Create(ctx, b.proxy(b.config.Namespace, fmt.Sprintf("%s-%d", name, i)))
	})
	last := r.wait(p, patience, "all Proxies to be Ready", func(r *readiness) bool { return len(r.ready) == n })
	stopProfile()
	stopOther()
	middle := b.api.work(t)
	b.final = r.one(t).DeepCopy()
	b.parallel(writers, n, func(ctx context.Context, i int) error {
		return b.env.Client.Delete(ctx, b.proxy(b.config.Namespace, fmt.Sprintf("%s-%d", name, i)))
	})
	r.wait(p, patience, "all Proxies to be gone", func(r *readiness) bool { return len(r.present) == 0 })
	after := b.api.work(t)
	u := p.usage(false)
	if u.Instances != 0 {
		t.Errorf("%d instances are left", u.Instances)
	}
	return round{
		perSecond: float64(n) / last.Sub(start).Seconds(),
		up:        middle.since(before), down: after.since(middle), managersCPU: u.CPUSeconds - cpu,
	}
}

// raw creates n Proxies that nobody acts on, each followed by one write of the final status. It gives the time until a watch
// has shown the last of them Ready, as life does, and the CPU time of the API server, in seconds.
func (b *provisioning) raw(p *process, r *readiness, namespace, name string, n int) (took time.Duration, cpu float64) {
	b.t.Helper()
	before := b.api.work(b.t)
	start := time.Now()
	b.parallel(writers, n, func(ctx context.Context, i int) error {
		px := b.proxy(namespace, fmt.Sprintf("%s-%d", name, i))
		if err := b.env.Client.Create(ctx, px); err != nil {
			return err
		}
		return statusapply.Whole(ctx, b.env.Client, v1alpha1.ManagerCore, px, &px.Status, b.final.Status.DeepCopy())
	})
	took = r.wait(p, patience, "all raw Proxies to be Ready", func(r *readiness) bool { return len(r.ready) == n }).Sub(start)
	cpu = b.api.work(b.t).since(before).cpu
	b.must(b.env.Client.DeleteAllOf(b.t.Context(), &v1alpha1.Proxy{}, client.InNamespace(namespace)))
	r.wait(p, patience, "all raw Proxies to be gone", func(r *readiness) bool { return len(r.present) == 0 })
	return took, cpu
}

// readyAgainstRaw measures ready_vs_raw, writes_per_proxy_life and cpu_vs_apiserver.
func (b *provisioning) readyAgainstRaw() {
	t := b.t
	t.Helper()
	p := startProcess(t, b.config)
	defer p.stop()
	p.begin()
	b.classReady(p)
	r := watchReadiness(t, b.env, b.config.Namespace)
	rawNamespace := b.env.Namespace(t)
	rawReady := watchReadiness(t, b.env, rawNamespace)
	b.life(p, r, "warm", proxiesPerRound/4, "")
	b.raw(p, rawReady, rawNamespace, "warm", proxiesPerRound/4)

	b.note("%d rounds of %d Proxies each, %d writers; raw is Create and one status write of the same object, as many by as many "+
		"writers, half of them before and half after", rounds, proxiesPerRound, writers)
	var ready, raw, ratio, cpu sample
	var up, down work
	var rawCPU float64
	for i := range rounds {
		profiles := ""
		if i == 0 {
			profiles = os.Getenv(profilesVariable)
		}
		before, beforeCPU := b.raw(p, rawReady, rawNamespace, fmt.Sprintf("before-%d", i), proxiesPerRound/2)
		one := b.life(p, r, fmt.Sprintf("round-%d", i), proxiesPerRound, profiles)
		after, afterCPU := b.raw(p, rawReady, rawNamespace, fmt.Sprintf("after-%d", i), proxiesPerRound/2)
		baseline := proxiesPerRound / (before + after).Seconds()
		rawCPU += beforeCPU + afterCPU
		ready, raw, ratio = append(ready, one.perSecond), append(raw, baseline), append(ratio, one.perSecond/baseline)
		cpu = append(cpu, one.managersCPU/(one.up.cpu+one.down.cpu))
		up, down = up.plus(one.up), down.plus(one.down)
		b.note("round %d: %.1f Proxies to Ready per second, raw %.1f; CPU seconds of the managers %.1f, of the API server %.1f",
			i+1, one.perSecond, baseline, one.managersCPU, one.up.cpu+one.down.cpu)
	}
	n := rounds * proxiesPerRound
	life := up.plus(down)
	milliseconds := func(seconds float64) float64 { return 1000 * seconds / float64(n) }
	b.note("CPU of the API server per Proxy: %.1f ms until Ready, %.1f ms until it is gone; raw %.1f ms",
		milliseconds(up.cpu), milliseconds(down.cpu), milliseconds(rawCPU))
	b.note("that alone, raw by until Ready, which other work on the machine hardly changes: %.3g", rawCPU/up.cpu)
	b.note("ready per second: %v", ready)
	b.note("raw per second: %v", raw)
	b.note("ready_vs_raw: %v", ratio)
	b.atLeast("ready_vs_raw", ratio.median(), minReadyVsRaw)
	b.note("writes per Proxy, the user's create and delete included, until Ready: %s", up.each(n, ofProxies))
	b.note("writes per Proxy from there until it is gone: %s", down.each(n, ofProxies))
	b.note("events per Proxy, not counted below: until Ready %.2f, then %.2f", up.count(ofEvents)/float64(n), down.count(ofEvents)/float64(n))
	b.result("writes_per_proxy_life", life.count(ofProxies)/float64(n))
	b.note("cpu_vs_apiserver over whole lives, TLS of health probes included: %v", cpu)
	b.result("cpu_vs_apiserver", cpu.median())
}

// heap measures heap_10k_vs_1k. The Proxies are written as the managers would have left them, and their instances are
// planted in the fake, so that managers that start find everything settled: Managed, Ready, and nothing to do.
func (b *provisioning) heap() {
	b.t.Helper()
	b.config.Namespace = b.env.Namespace(b.t)
	var instances []planted
	small := b.settledHeap(&instances, few)
	large := b.settledHeap(&instances, many)
	mib := func(bytes uint64) float64 { return float64(bytes) / (1 << 20) }
	b.note("heap in use by the managers after a collection: %.1f MiB with %d Proxies, %.1f MiB with %d; allocated %.1f and %.1f MiB",
		mib(small.HeapInuse), few, mib(large.HeapInuse), many, mib(small.HeapAlloc), mib(large.HeapAlloc))
	b.atMost("heap_10k_vs_1k", float64(large.HeapInuse)/float64(small.HeapInuse), maxHeapGrowth)
}

// settledHeap fills the namespace up to n settled Proxies and gives the usage of managers that have taken them in.
func (b *provisioning) settledHeap(instances *[]planted, n int) usage {
	t := b.t
	t.Helper()
	first := len(*instances)
	*instances = append(*instances, make([]planted, n-first)...)
	start := time.Now()
	b.parallel(fillers, n-first, func(ctx context.Context, i int) error {
		px := b.proxy(b.config.Namespace, fmt.Sprintf("settled-%d", first+i))
		px.Finalizers = []string{v1alpha1.FinalizerInstance(providerType)}
		if err := b.env.Client.Create(ctx, px); err != nil {
			return err
		}
		(*instances)[first+i] = planted{Class: className, Instance: b.settle(px)}
		settled := px.Status.DeepCopy()
		px.Status = v1alpha1.ProxyStatus{}
		return statusapply.Whole(ctx, b.env.Client, v1alpha1.ManagerCore, px, &px.Status, settled)
	})
	b.note("%d settled Proxies made in %.0f s", n-first, time.Since(start).Seconds())

	p := startProcess(t, b.config)
	defer p.stop()
	p.plant(*instances)
	before := b.api.work(t)
	p.begin()
	b.classReady(p)
	p.waitFor(patience, "the managers to have taken all Proxies in", func() bool {
		u := p.usage(false)
		return u.Calls["Get"] >= n && u.Reconciles["proxy"] >= float64(n) && u.Waiting == 0
	})
	u := p.usage(true)
	if wrote := b.api.work(t).since(before); wrote.count(ofProxies) > 0 || u.Instances != n {
		t.Errorf("%d Proxies were not settled: the managers wrote %s, and there are %d instances",
			n, wrote.each(1, ofProxies), u.Instances)
	}
	return u
}

// settle gives a new Proxy the status of a Ready one, and gives its instance.
func (b *provisioning) settle(px *v1alpha1.Proxy) providers.Instance {
	status := b.final.Status.DeepCopy()
	id := "settled-" + string(px.UID)
	status.EgressIdentity = strings.ReplaceAll(status.EgressIdentity, status.Instance.ID, id)
	status.Health.InstanceID = id
	i := status.Instance
	i.ID, i.Name = id, providers.InstanceName(b.clusterID, px.Name, px.UID)
	i.ProviderID = "fake:///" + i.Name
	i.Hash = providers.InstanceHash(px.UID, &px.Spec, nil, "")
	i.DesiredHash = i.Hash
	px.Status = *status
	return providers.Instance{
		Ref:   providers.Ref{Namespace: px.Namespace, Name: i.Name, Zone: i.Zone, ID: i.ID, ProviderID: i.ProviderID},
		Owner: providers.Owner{ClusterID: b.clusterID, Namespace: px.Namespace, Name: px.Name, UID: px.UID},
		Hash:  i.Hash, CreatedAt: i.CreationTime.Time, Addresses: i.Addresses, State: providers.StateRunning,
	}
}
