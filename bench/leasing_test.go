//go:build bench

package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/health/proxyzoo"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

const (
	// leaseRounds of each side, one after the other, with leasesPerRound by leaseWriters at the same time. Many short rounds
	// hardly suffer when other work on the machine comes and goes.
	leaseRounds, leasesPerRound, leaseWriters = 21, 128, 32
	// burst is how many leases are asked for at once.
	burst, burstRounds = 300, 16
	// echoRounds of echoLeases each, one every echoPace.
	echoRounds, echoLeases = 6, 75
	echoPace               = 25 * time.Millisecond
	// benchProxies have room for all leases of a step and not much more.
	benchProxies, benchCapacity = 50, 10
	// longTTL outlives everything; renewals are of leases with shortTTL, each after a third of it, and only those count
	// that come after the leases have got a status of their own.
	longTTL, shortTTL                         = 3600, 12
	renewedLeases, renewalsBefore, renewCount = 200, 3, 6
	// crashes of a leader, with heldLeases bound.
	crashes, heldLeases = 2, 400

	minHTTPVsRaw           = 0.70
	maxBoundVsEcho         = 1.3
	maxWritesPerLease      = 1
	minFollowerVsLeader    = 0.5
	minFollowerVsRawWrites = 0.6
	maxBurstVsRaw          = 1.5
	maxPickGrowth          = 3
	maxGapVsDuration       = 1.3
	maxRenewWrites         = 0.5
)

// leasingBench is what the steps of the benchmark share.
type leasingBench struct {
	report
	env *testenv.Env
	api *apiServer
	// config and client are core's user: who else writes grants is refused.
	config *rest.Config
	client client.Client
	// namespace is core's, raw the one that nobody watches.
	namespace, raw string
	seen           *leaseWatch
	cores          *cores
	leader         *core
	follower       *core
	// detached is a replica that neither leads nor asks the leader.
	detached *core
	// sample is a lease as the leader creates it, bound one as it is after its status was written.
	sample, bound *v1alpha1.ProxyLease

	mu            sync.Mutex
	lost, doubled int
}

func TestLeasing(t *testing.T) {
	var env *testenv.Env
	apart(t, func() { env = testenv.New(t) })
	b := &leasingBench{report: report{t, "leasing"}, env: env, api: newAPIServer(t, env), config: env.Core(t), namespace: env.Namespace(t), raw: env.Namespace(t)}
	b.prepare()
	defer b.cores.stop()
	b.throughput()
	b.bursts()
	b.latency()
	b.renewals()
	b.pick()
	b.failover()
	b.atMost("lost", float64(b.lost), 0)
	b.atMost("doubled", float64(b.doubled), 0)
}

func (b *leasingBench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// prepare starts two cores and makes proxies that they find healthy.
func (b *leasingBench) prepare() {
	t := b.t
	t.Helper()
	b.config.QPS = -1
	var err error
	b.client, err = client.New(b.config, client.Options{Scheme: manager.Scheme()})
	b.must(err)
	ca := proxyzoo.NewCA(t, "bench")
	origin := proxyzoo.NewOrigin(t, ca, "127.0.0.1")
	forward := proxyzoo.Start(t, proxyzoo.Closed(proxyzoo.Tunnel, strings.TrimPrefix(origin.URL, "https://")))
	host, port := splitHostPort(t, forward.Addr)
	b.cores = &cores{t: t, binary: testenv.BuildOperator(t), arguments: []string{
		"core", "--kubeconfig=" + kubeconfig(t, b.config), "--leader-election-namespace=" + b.namespace,
		"--watch-namespaces=" + b.namespace, "--default-namespace=" + b.namespace, "--metrics-bind-address=0", "--health-probe-bind-address=0",
		"--api-auth=token", "--api-token-file=" + file(t, "token", apiToken), "--log-level=info",
		"--health-check-urls=" + origin.URL + "/status/204", "--health-check-ca-file=" + file(t, "ca.pem", ca.PEM()),
		"--allow-proxy-cidrs=127.0.0.0/8", "--allow-probe-target-cidrs=127.0.0.0/8",
	}}
	for i := range benchProxies {
		px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: fmt.Sprint("proxy-", i)}}
		px.Spec.Mode, px.Spec.Port, px.Spec.External = v1alpha1.ModeExternal, port, &v1alpha1.External{Host: host}
		px.Spec.Capacity = new(int32(benchCapacity))
		// After its first probe a proxy is left alone while something else is measured.
		px.Spec.HealthCheck = &v1alpha1.HealthCheck{PeriodSeconds: new(int32(86_400))}
		b.must(b.client.Create(t.Context(), px))
	}
	b.seen = watchLeases(b)
	b.leader, b.follower = b.cores.leader(b.cores.start(), b.cores.start())
	b.detached = b.cores.start("--peer-bind-address=0")
	b.cores.await("all proxies can be leased", func(ctx context.Context) bool {
		list := &v1alpha1.ProxyList{}
		b.must(b.client.List(ctx, list, client.InNamespace(b.namespace)))
		return !slices.ContainsFunc(list.Items, func(px v1alpha1.Proxy) bool { return ledger.Closed(&px) != "" })
	})
	b.samples()
}

// samples keeps one lease as it is created and one as it is bound.
func (b *leasingBench) samples() {
	ctx := b.t.Context()
	g, err := b.leader.acquire(ctx, longTTL, uuid.NewString())
	b.must(err)
	b.sample = &v1alpha1.ProxyLease{}
	b.must(b.client.Get(ctx, client.ObjectKey{Namespace: b.namespace, Name: g.name}, b.sample))
	b.must(b.leader.release(ctx, g))
	b.must(b.client.Create(ctx, b.pending("sample")))
	b.bound = b.seen.await(b, "sample")
	b.must(b.client.Delete(ctx, b.pending("sample")))
}

// pending is a lease that asks for any proxy.
func (b *leasingBench) pending(name string) *v1alpha1.ProxyLease {
	lease := &v1alpha1.ProxyLease{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: name}}
	lease.Spec.Selector, lease.Spec.Holder, lease.Spec.TTLSeconds = &metav1.LabelSelector{}, "bench", longTTL
	return lease
}

// parallel does n things, with so many workers at the same time, and gives the time that it took.
func (b *leasingBench) parallel(workers, n int, do func(ctx context.Context, i int) error) time.Duration {
	b.t.Helper()
	bounded, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	group, ctx := errgroup.WithContext(bounded)
	var next atomic.Int64
	start := time.Now()
	for range workers {
		group.Go(func() error {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := do(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	b.must(group.Wait())
	return time.Since(start)
}

// leases asks a core for n leases, and gives them and the time that it took.
func (b *leasingBench) leases(c *core, workers, n int, ttlSeconds int32) ([]granted, time.Duration) {
	b.t.Helper()
	all := make([]granted, n)
	took := b.parallel(workers, n, func(ctx context.Context, i int) (err error) {
		all[i], err = c.acquire(ctx, ttlSeconds, uuid.NewString())
		return err
	})
	return all, took
}

// check counts which of the leases are lost and which were given twice.
func (b *leasingBench) check(all []granted) {
	b.t.Helper()
	list := &v1alpha1.ProxyLeaseList{}
	b.must(b.client.List(b.t.Context(), list, client.InNamespace(b.namespace)))
	holds, load := map[string]string{}, map[string]int{}
	for i := range list.Items {
		if binding, ok := record.BindingOf(&list.Items[i]); ok && record.Holds(&list.Items[i]) {
			holds[list.Items[i].Name] = binding.ProxyName
			load[binding.ProxyName]++
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	promised := map[string]bool{}
	for _, g := range all {
		if holds[g.name] != g.proxy {
			b.lost++
			b.note("lease %s was promised on %s and is on %q", g.name, g.proxy, holds[g.name])
		}
		if promised[g.name] {
			b.doubled++
			b.note("lease %s was promised twice", g.name)
		}
		promised[g.name] = true
	}
	for _, n := range load {
		b.doubled += max(0, n-benchCapacity)
	}
}

// give releases leases after looking at them.
func (b *leasingBench) give(c *core, all []granted) {
	b.t.Helper()
	b.check(all)
	b.parallel(leaseWriters, len(all), func(ctx context.Context, i int) error { return c.release(ctx, all[i]) })
}

// latency measures cr_bound_p50_vs_echo.
func (b *leasingBench) latency() {
	t := b.t
	t.Helper()
	stop := b.startEcho()
	defer stop()
	var bound, echoed, ratio sample
	for i := range echoRounds {
		pace := func(namespace string) float64 {
			times := make(sample, echoLeases)
			var group errgroup.Group
			next := time.NewTicker(echoPace)
			defer next.Stop()
			for j := range echoLeases {
				<-next.C
				group.Go(func() error {
					lease := b.pending(fmt.Sprintf("latency-%d-%d", i, j))
					lease.Namespace = namespace
					start := time.Now()
					if err := b.client.Create(t.Context(), lease); err != nil {
						return err
					}
					times[j] = b.seen.boundAt(b, client.ObjectKeyFromObject(lease)).Sub(start).Seconds()
					return b.client.Delete(t.Context(), lease)
				})
			}
			b.must(group.Wait())
			return times.median()
		}
		bound, echoed = append(bound, 1000*pace(b.namespace)), append(echoed, 1000*pace(b.raw))
		ratio = append(ratio, bound[i]/echoed[i])
	}
	b.note("ms from create to Bound, p50 of %d: %v", echoLeases, bound)
	b.note("ms from create to the echo's status, p50 of %d: %v", echoLeases, echoed)
	b.note("cr_bound_p50_vs_echo: %v", ratio)
	b.atMost("cr_bound_p50_vs_echo", ratio.median(), maxBoundVsEcho)
}

// startEcho starts the echo in a process of its own.
func (b *leasingBench) startEcho() (stop func()) {
	t := b.t
	t.Helper()
	text, err := json.Marshal(echoConfig{Kubeconfig: kubeconfig(t, b.config), Namespace: b.raw, Status: b.bound.Status})
	b.must(err)
	binary, err := os.Executable()
	b.must(err)
	command := exec.Command(binary)
	command.Env = append(os.Environ(), echoVariable+"="+string(text))
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	b.must(err)
	stdout, err := command.StdoutPipe()
	b.must(err)
	b.must(command.Start())
	_, readErr := bufio.NewReader(stdout).ReadString('\n')
	stop = func() {
		_ = stdin.Close()
		if err := command.Wait(); err != nil {
			t.Errorf("the echo ended with %v", err)
		}
	}
	if readErr != nil {
		stop()
		t.Fatalf("the echo does not watch: %v", readErr)
	}
	return stop
}

// renewals measures renew_writes: holders that renew after every third of the TTL.
func (b *leasingBench) renewals() {
	t := b.t
	t.Helper()
	all, _ := b.leases(b.leader, leaseWriters, renewedLeases, shortTTL)
	next := time.NewTicker(shortTTL * time.Second / 3)
	defer next.Stop()
	var before work
	for i := range renewalsBefore + renewCount {
		<-next.C
		if i == renewalsBefore {
			before = b.api.work(t)
		}
		b.parallel(leaseWriters, len(all), func(ctx context.Context, i int) error { return b.leader.renew(ctx, all[i]) })
	}
	writes := b.api.work(t).since(before)
	b.note("%d renewals of each of %d leases: %s", renewCount, renewedLeases, writes.each(renewCount*renewedLeases, ofLeases))
	b.atMost("renew_writes", writes.count(ofLeases)/(renewCount*renewedLeases), maxRenewWrites)
	b.give(b.leader, all)
}

// failover measures failover_gap_vs_lease_duration: the leader is killed while callers ask for leases, and other ones are
// bound.
func (b *leasingBench) failover() {
	t := b.t
	t.Helper()
	var gaps sample
	duration := 0.0
	for range crashes {
		held, _ := b.leases(b.leader, leaseWriters, heldLeases, longTTL)
		election := &coordinationv1.Lease{}
		b.must(b.client.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: manager.Core().ElectionID()}, election))
		duration = float64(*election.Spec.LeaseDurationSeconds)
		b.leader.Signal(syscall.SIGKILL)
		killed := time.Now()
		var more granted
		key := uuid.NewString()
		b.cores.await("the other core leases", func(ctx context.Context) bool {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			var err error
			more, err = b.follower.acquire(ctx, longTTL, key)
			return err == nil
		})
		gaps = append(gaps, time.Since(killed).Seconds())
		<-b.leader.Done()
		b.leader, b.follower = b.follower, b.cores.start()
		b.give(b.follower, append(held, more))
	}
	b.note("seconds from the leader's end to the next grant: %v; the election's lease lasts %.0f", gaps, duration)
	b.atMost("failover_gap_vs_lease_duration", slices.Max(gaps)/duration, maxGapVsDuration)
}
