package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"crawl.example.com/egress-proxies-operator/controllers/health"
	"crawl.example.com/egress-proxies-operator/controllers/providerclass"
	"crawl.example.com/egress-proxies-operator/controllers/proxy"
	"crawl.example.com/egress-proxies-operator/controllers/proxylease"
	"crawl.example.com/egress-proxies-operator/controllers/proxypool"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/providersconfig"
	"crawl.example.com/egress-proxies-operator/internal/tracing"
	"crawl.example.com/egress-proxies-operator/leasing"
	"crawl.example.com/egress-proxies-operator/leasing/policy"
	"crawl.example.com/egress-proxies-operator/leasing/retention"
)

// coreOptions are the flags of the core manager.
type coreOptions struct {
	manager.Options

	api apiOptions

	providersConfig string
	maxLeases       int

	healthURLs       []string
	healthCAFile     string
	allowProxies     []string
	allowTargets     []string
	traceHealthProbe bool
}

func (o *coreOptions) addFlags(flags *pflag.FlagSet) {
	o.api.addFlags(flags)
	flags.StringVar(&o.providersConfig, "providers-config", "", "YAML file with named providers, applied as ProviderClasses and read again when it changes")
	flags.IntVar(&o.maxLeases, "max-leases", retention.DefaultMaxLeases, "ProxyLease objects, live and finished ones, from which on no more are granted by HTTP")
	flags.StringSliceVar(&o.healthURLs, "health-check-urls", health.DefaultTargetURLs, "https URLs fetched through the proxies, comma separated")
	flags.StringVar(&o.healthCAFile, "health-check-ca-file", "", "PEM file trusted for health checks in addition to the system's roots")
	flags.StringSliceVar(&o.allowProxies, "allow-proxy-cidrs", nil, "ranges in which proxies may be although they are loopback or link-local")
	flags.StringSliceVar(&o.allowTargets, "allow-probe-target-cidrs", nil, "ranges that health check URLs may name although they are loopback, link-local or private")
	flags.BoolVar(&o.traceHealthProbe, "trace-health-probes", false, "make a span of every health probe (many)")
}

// core is what the flags of the core manager say, checked.
type core struct {
	coreOptions
	healthDefaults health.Defaults
	allowedProxies []netip.Prefix
	// unguarded grants over HTTP although nothing keeps others from writing grants.
	unguarded bool
}

// check turns flags into what they mean, or into one error that names the flag.
func (o coreOptions) check() (*core, error) {
	c := &core{coreOptions: o}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if err := o.api.validate(); err != nil {
		return nil, err
	}
	if o.maxLeases < 1 {
		return nil, fmt.Errorf("--max-leases: %d is not positive", o.maxLeases)
	}
	var err error
	if c.allowedProxies, err = parsePrefixes(health.FlagAllowedProxies, o.allowProxies); err != nil {
		return nil, err
	}
	targets, err := parsePrefixes(health.FlagAllowedTargets, o.allowTargets)
	if err != nil {
		return nil, err
	}
	bundle := ""
	if o.healthCAFile != "" {
		data, err := os.ReadFile(o.healthCAFile)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", health.FlagCAFile, err)
		}
		bundle = string(data)
	}
	if c.healthDefaults, err = health.NewDefaults(o.healthURLs, bundle, targets); err != nil {
		return nil, err
	}
	if o.providersConfig != "" {
		if _, err := providersconfig.Load(o.providersConfig); err != nil {
			return nil, fmt.Errorf("--providers-config: %w", err)
		}
	}
	return c, nil
}

func parsePrefixes(flag string, texts []string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is not a range such as 10.0.0.0/8", flag, text)
		}
		prefixes = append(prefixes, prefix.Masked())
	}
	return prefixes, nil
}

func newCoreCommand() *cobra.Command {
	var o coreOptions
	command := &cobra.Command{
		Use:   "core",
		Short: "Run the core manager: a controller for each kind, the health engine and the HTTP API",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.check()
			if err != nil {
				return err
			}
			flush, err := process(cmd.Context(), "core", o.LogLevel)
			if err != nil {
				return err
			}
			defer flush()
			mgr, err := newCoreManager(cmd.Context(), c)
			if err != nil {
				return err
			}
			return start(cmd.Context(), mgr)
		},
	}
	o.AddFlags(command.Flags())
	o.addFlags(command.Flags())
	return command
}

// newCoreManager assembles the core manager: this is the one place where health, leasing and the controllers meet.
func newCoreManager(ctx context.Context, c *core) (ctrl.Manager, error) {
	cfg, err := manager.RESTConfig(c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	realClock := clock.RealClock{}
	leads := func() bool { return true }
	var leader func() string
	if c.LeaderElect {
		if c.AdvertisedAddress, err = c.api.advertised(); err != nil {
			return nil, err
		}
	}
	c.WrapLock = func(lock resourcelock.Interface) resourcelock.Interface {
		fence := leasing.NewFence(lock, manager.RenewDeadline, realClock)
		leads = fence.Leads
		if c.api.asksPeers() {
			leader = func() string { return manager.AddressOf(fence.Leader()) }
		}
		return fence
	}
	mgr, err := manager.New(cfg, manager.Core(), c.Options)
	if err != nil {
		return nil, err
	}

	engineOptions := health.Options{Log: mgr.GetLogger().WithName("health"), Clock: realClock, AllowedProxies: c.allowedProxies}
	if c.traceHealthProbe {
		engineOptions.Tracer = otel.Tracer(tracing.Name)
	}
	engine := health.New(engineOptions)
	if err := metrics.Registry.Register(engine.Collector()); err != nil {
		return nil, fmt.Errorf("register the metrics of health checks: %w", err)
	}

	guard, err := c.guard(mgr, realClock)
	if err != nil {
		return nil, err
	}
	allocator, err := leasing.New(leasing.Options{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Cache: mgr.GetCache(),
		Clock: realClock, Log: mgr.GetLogger().WithName("leasing"), Recorder: mgr.GetEventRecorder("leasing"),
		Registerer: metrics.Registry, Verdicts: verdictsOf(engine), Hinter: engine, Leads: leads, Namespaces: c.WatchNamespaces,
		Guard: guard, MaxLeases: c.maxLeases,
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(
		mgr.Add(engine),
		mgr.Add(allocator),
		c.api.add(mgr, allocator, c.LeaderElectionNamespace, c.AdvertisedAddress, leader),
		proxy.Add(ctx, mgr, proxy.Options{
			Namespaces: c.WatchNamespaces, ControllerName: c.ControllerName, Health: engine, HealthDefaults: c.healthDefaults,
			Leases: allocator, LeaseChanges: allocator.LeaseChanges(), Clock: realClock,
		}),
		providerclass.Add(ctx, mgr, providerclass.Options{ControllerName: c.ControllerName, Clock: realClock}),
		proxypool.Add(ctx, mgr, proxypool.Options{Leases: allocator, LeaseChanges: allocator.LeaseChanges(), Clock: realClock, Registerer: metrics.Registry}),
		proxylease.Add(mgr, proxylease.Options{Allocator: allocator, Clock: realClock}),
	); err != nil {
		return nil, err
	}
	if c.providersConfig != "" {
		if err := addProvidersConfig(ctx, mgr, c.providersConfig); err != nil {
			return nil, err
		}
	}
	return mgr, nil
}

// guard looks whether grants are protected, for the HTTP API; nil when it does not matter.
func (c *core) guard(mgr ctrl.Manager, realClock clock.Clock) (leasing.Guard, error) {
	if c.unguarded || !c.api.enabled() {
		return nil, nil
	}
	guard, err := policy.NewGuard(mgr.GetAPIReader(), mgr.GetClient(), realClock, mgr.GetLogger().WithName("policy"), metrics.Registry)
	if err != nil {
		return nil, err
	}
	return guard, mgr.Add(guard)
}

// addProvidersConfig applies the file as ProviderClasses. A file that is wrong stops the process here, before it leads.
func addProvidersConfig(ctx context.Context, mgr ctrl.Manager, file string) error {
	applier, err := providersconfig.NewApplier(file, mgr.GetClient(), clock.RealClock{}, mgr.GetLogger().WithName("providers-config"))
	if err != nil {
		return fmt.Errorf("--providers-config: %w", err)
	}
	if err := applier.Check(ctx); err != nil {
		return fmt.Errorf("--providers-config: %w", err)
	}
	if err := metrics.Registry.Register(applier); err != nil {
		return fmt.Errorf("register the metrics of the providers config: %w", err)
	}
	return mgr.Add(applier)
}

// verdictsOf shows the engine to leasing: a verdict on another incarnation is none.
func verdictsOf(engine *health.Engine) leasing.VerdictFunc {
	return func(proxy types.UID, instanceID string) (healthy, known bool) {
		verdict, ok := engine.Verdict(proxy)
		if !ok || !verdict.Known || verdict.InstanceID != instanceID {
			return false, false
		}
		return verdict.Healthy, true
	}
}
