//go:build bench

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/health"
	"crawl.example.com/egress-proxies-operator/controllers/provider"
	"crawl.example.com/egress-proxies-operator/controllers/providerclass"
	"crawl.example.com/egress-proxies-operator/controllers/proxy"
	"crawl.example.com/egress-proxies-operator/controllers/proxylease"
	"crawl.example.com/egress-proxies-operator/controllers/proxypool"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/leasing"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// This file is the process of the managers: core's and a provider's, as cmd puts them together (newCoreManager,
// newProviderManager, runDev), without the listeners. The provider is the fake.

// managersVariable is set, to a managersConfig as JSON, in the process of the managers.
const managersVariable = "EGRESS_BENCH_MANAGERS"

// providerType of the fake, as of a third party.
const providerType v1alpha1.ProviderType = "bench.example.com/fake"

// providerTiming is that of providers/kubernetes: like a pod, an instance of the fake is seen as soon as it was accepted,
// and the fake wakes the manager as a watch of pods does.
var providerTiming = providers.Timing{Window: 5 * time.Second, Settle: 5 * time.Second, Confirm: time.Second}

// providerLimits never hold a call back: here it is not the provider whose rate is measured.
var providerLimits = providers.Limits{CallsPerSecond: 1e6, Burst: 1e6}

// managersConfig is what the managers are started with.
type managersConfig struct {
	Kubeconfig string
	// Namespace that is watched, and the one of the elections.
	Namespace, ElectionNamespace string
	// TargetURL and TargetCA are what is probed through proxies.
	TargetURL, TargetCA string
	// ProxyHost is the address of every instance.
	ProxyHost string
}

// usage is what the process of the managers tells of itself.
type usage struct {
	// CPUSeconds that the process used, in user and kernel mode.
	CPUSeconds float64
	// HeapInuse and HeapAlloc after a garbage collection, in bytes; 0 when none was asked for.
	HeapInuse, HeapAlloc uint64
	// Reconciles by controller, and how many wait.
	Reconciles map[string]float64
	Waiting    float64
	// Calls to the fake by method, and its instances.
	Calls     map[string]int
	Instances int
}

// planted is an instance for the fake.
type planted struct {
	Class    string
	Instance providers.Instance
}

// managers is the state of the process.
type managers struct {
	config managersConfig
	cloud  *fake.Cloud
	start  chan struct{}
	once   sync.Once
}

// runManagers runs the managers until stdin ends, and returns the exit code. The address of its control server is the
// first line of stdout; nothing happens before it is told to start.
func runManagers(text string) int {
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	klog.SetLogger(ctrl.Log.WithName("client-go"))
	m := &managers{start: make(chan struct{})}
	if err := m.run(text); err != nil {
		fmt.Fprintln(os.Stderr, "managers:", err)
		return 1
	}
	return 0
}

func (m *managers) run(text string) error {
	if err := json.Unmarshal([]byte(text), &m.config); err != nil {
		return fmt.Errorf("parse %s: %w", managersVariable, err)
	}
	m.cloud = fake.NewCloud(clock.RealClock{}, fake.Behaviour{Addresses: []string{m.config.ProxyHost}, Wakes: true})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		// The parent holds the other end: when it is gone, so are the managers.
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for control: %w", err)
	}
	server := &http.Server{Handler: m.control(), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	defer func() { _ = server.Close() }()
	fmt.Println(listener.Addr())
	select {
	case <-ctx.Done():
		return nil
	case <-m.start:
	}
	core, err := m.newCore(ctx)
	if err != nil {
		return err
	}
	instances, err := m.newProvider(ctx)
	if err != nil {
		return err
	}
	group, groupContext := errgroup.WithContext(ctx)
	for _, mgr := range []ctrl.Manager{core, instances} {
		group.Go(func() error { return mgr.Start(groupContext) })
	}
	return group.Wait()
}

func (m *managers) options() manager.Options {
	return manager.Options{
		MetricsBindAddress: "0", HealthProbeBindAddress: "0", SkipNameValidation: true,
		LeaderElect: true, LeaderElectionNamespace: m.config.ElectionNamespace,
		WatchNamespaces: []string{m.config.Namespace}, ControllerName: v1alpha1.DefaultControllerName,
	}
}

// newCore is newCoreManager of cmd.
func (m *managers) newCore(ctx context.Context) (ctrl.Manager, error) {
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	defaults, err := health.NewDefaults([]string{m.config.TargetURL}, m.config.TargetCA, loopback)
	if err != nil {
		return nil, err
	}
	cfg, err := manager.RESTConfig(m.config.Kubeconfig)
	if err != nil {
		return nil, err
	}
	realClock, options := clock.RealClock{}, m.options()
	leads := func() bool { return true }
	options.WrapLock = func(lock resourcelock.Interface) resourcelock.Interface {
		fence := leasing.NewFence(lock, manager.RenewDeadline, realClock)
		leads = fence.Leads
		return fence
	}
	mgr, err := manager.New(cfg, manager.Core(), options)
	if err != nil {
		return nil, err
	}
	engine := health.New(health.Options{Log: mgr.GetLogger().WithName("health"), Clock: realClock, AllowedProxies: loopback})
	allocator, err := leasing.New(leasing.Options{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Cache: mgr.GetCache(),
		Clock: realClock, Log: mgr.GetLogger().WithName("leasing"), Recorder: mgr.GetEventRecorder("leasing"),
		Registerer: metrics.Registry, Verdicts: verdictsOf(engine), Hinter: engine, Leads: leads, Namespaces: options.WatchNamespaces,
	})
	if err != nil {
		return nil, err
	}
	return mgr, errors.Join(
		metrics.Registry.Register(engine.Collector()),
		mgr.Add(engine),
		mgr.Add(allocator),
		proxy.Add(ctx, mgr, proxy.Options{
			Namespaces: options.WatchNamespaces, ControllerName: options.ControllerName, Health: engine, HealthDefaults: defaults,
			Leases: allocator, LeaseChanges: allocator.LeaseChanges(), Clock: realClock,
		}),
		providerclass.Add(ctx, mgr, providerclass.Options{ControllerName: options.ControllerName}),
		proxypool.Add(ctx, mgr, proxypool.Options{Leases: allocator, LeaseChanges: allocator.LeaseChanges(), Clock: realClock}),
		proxylease.Add(mgr, proxylease.Options{Allocator: allocator, Clock: realClock}),
	)
}

func verdictsOf(engine *health.Engine) leasing.VerdictFunc {
	return func(proxy types.UID, instanceID string) (healthy, known bool) {
		verdict, ok := engine.Verdict(proxy)
		if !ok || !verdict.Known || verdict.InstanceID != instanceID {
			return false, false
		}
		return verdict.Healthy, true
	}
}

// newProvider is newProviderManager of cmd.
func (m *managers) newProvider(ctx context.Context) (ctrl.Manager, error) {
	cfg, err := manager.RESTConfig(m.config.Kubeconfig)
	if err != nil {
		return nil, err
	}
	options := m.options()
	mgr, err := manager.New(cfg, manager.Provider(providerType), options)
	if err != nil {
		return nil, err
	}
	clusterID, err := manager.ClusterID(ctx, mgr.GetAPIReader(), "")
	if err != nil {
		return nil, err
	}
	return mgr, provider.Add(mgr, provider.Options{
		Factory: &fake.Factory{Cloud: m.cloud, ProviderType: providerType, Times: providerTiming, Rate: providerLimits},
		Clock:   clock.RealClock{}, ClusterID: clusterID, ControllerName: options.ControllerName,
		Namespaces: options.WatchNamespaces, Registerer: metrics.Registry,
	})
}

// control is the server by which the benchmark talks to the process.
func (m *managers) control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /plant", func(w http.ResponseWriter, r *http.Request) {
		var all []planted
		if err := json.NewDecoder(r.Body).Decode(&all); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		for _, p := range all {
			m.cloud.Plant(p.Class, p.Instance)
		}
	})
	mux.HandleFunc("POST /start", func(http.ResponseWriter, *http.Request) { m.once.Do(func() { close(m.start) }) })
	mux.HandleFunc("GET /usage", func(w http.ResponseWriter, r *http.Request) {
		u, err := m.usage(r.FormValue("collect") != "")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(u)
	})
	mux.HandleFunc("POST /profile", func(w http.ResponseWriter, r *http.Request) {
		// The file is closed by the end of the process; there is one profile.
		file, err := os.Create(r.FormValue("file"))
		if err == nil {
			err = pprof.StartCPUProfile(file)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("DELETE /profile", func(http.ResponseWriter, *http.Request) { pprof.StopCPUProfile() })
	return mux
}

func (m *managers) usage(collect bool) (usage, error) {
	u := usage{Reconciles: map[string]float64{}, Calls: map[string]int{}, Instances: len(m.cloud.Instances())}
	if collect {
		// What a finalizer or a pool holds goes with the second collection.
		runtime.GC()
		runtime.GC()
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		u.HeapInuse, u.HeapAlloc = memory.HeapInuse, memory.HeapAlloc
	}
	for _, call := range m.cloud.Calls() {
		u.Calls[call.Method]++
	}
	families, err := metrics.Registry.Gather()
	if err != nil {
		return u, fmt.Errorf("gather metrics: %w", err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			switch label := labelsOf(metric); family.GetName() {
			case "controller_runtime_reconcile_total":
				u.Reconciles[label["controller"]] += metric.GetCounter().GetValue()
			case "workqueue_depth", "controller_runtime_active_workers":
				u.Waiting += metric.GetGauge().GetValue()
			}
		}
	}
	var times syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &times); err != nil {
		return u, fmt.Errorf("read the CPU time: %w", err)
	}
	u.CPUSeconds = time.Duration(times.Utime.Nano() + times.Stime.Nano()).Seconds()
	return u, nil
}
