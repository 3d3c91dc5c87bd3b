package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/provider"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/gcp"
	"crawl.example.com/egress-proxies-operator/providers/kubernetes"
	"crawl.example.com/egress-proxies-operator/providers/kvm"
	"crawl.example.com/egress-proxies-operator/providers/kvm2"
)

// factories are the providers this binary has. This is the only place that knows them all.
func factories() map[v1alpha1.ProviderType]providers.Factory {
	all := map[v1alpha1.ProviderType]providers.Factory{}
	for _, factory := range []providers.Factory{
		gcp.NewFactory(),
		kubernetes.NewFactory(),
		kvm.NewFactory(),
		kvm2.NewFactory(),
	} {
		all[factory.Type()] = factory
	}
	return all
}

func newProviderCommand() *cobra.Command {
	var o manager.Options
	known := slices.Sorted(maps.Keys(factories()))
	command := &cobra.Command{
		Use:       "provider TYPE",
		Short:     "Run the provider manager of one type: " + join(known),
		ValidArgs: toStrings(known),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("provider: exactly one TYPE is required: %s", join(known))
			}
			if !slices.Contains(known, v1alpha1.ProviderType(args[0])) {
				return fmt.Errorf("provider: unknown TYPE %q: want one of %s", args[0], join(known))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return runProvider(cmd.Context(), factories()[v1alpha1.ProviderType(args[0])], o)
		},
	}
	o.AddFlags(command.Flags())
	return command
}

// warner is a Factory that knows at the start of its manager what it will lack.
type warner interface{ Warnings() []string }

// runProvider runs the manager of one provider type until ctx ends.
func runProvider(ctx context.Context, factory providers.Factory, o manager.Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	flush, err := process(ctx, "provider-"+string(factory.Type()), o.LogLevel)
	if err != nil {
		return err
	}
	defer flush()
	mgr, err := newProviderManager(ctx, factory, o)
	if err != nil {
		return err
	}
	return start(ctx, mgr)
}

// newProviderManager assembles a provider manager: the class controller, the instance controller and the garbage collection.
func newProviderManager(ctx context.Context, factory providers.Factory, o manager.Options) (ctrl.Manager, error) {
	cfg, err := manager.RESTConfig(o.Kubeconfig)
	if err != nil {
		return nil, err
	}
	mgr, err := manager.New(cfg, manager.Provider(factory.Type()), o)
	if err != nil {
		return nil, err
	}
	clusterID, err := manager.ClusterID(ctx, mgr.GetAPIReader(), o.ClusterID)
	if err != nil {
		return nil, err
	}
	options := provider.Options{
		Factory: factory, Clock: clock.RealClock{}, ClusterID: clusterID, ControllerName: o.ControllerName,
		Namespaces: o.WatchNamespaces, Registerer: metrics.Registry, Secrets: ownSecrets(mgr.GetAPIReader(), o.LeaderElectionNamespace),
	}
	if factory.Type() == v1alpha1.ProviderKubernetes {
		// Pods are made in this cluster, and their Squid is configured with the credentials; other providers need neither.
		options.Client, options.Reader, options.Informers = mgr.GetClient(), mgr.GetAPIReader(), mgr.GetCache()
		options.ResolveCredentials = true
	}
	if err := provider.Add(mgr, options); err != nil {
		return nil, err
	}
	if w, ok := factory.(warner); ok {
		for _, warning := range w.Warnings() {
			mgr.GetLogger().Error(nil, warning, "type", factory.Type())
		}
	}
	return mgr, nil
}

// ownSecrets reads Secrets of the operator's own namespace, past the cache, which holds those with user data only. Which ones
// a manager may read is for its role to say.
func ownSecrets(reader client.Reader, namespace string) func(context.Context, string) (map[string][]byte, error) {
	return func(ctx context.Context, name string) (map[string][]byte, error) {
		secret := &corev1.Secret{}
		if err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, secret); err != nil {
			return nil, fmt.Errorf("read Secret %s/%s: %w", namespace, name, err)
		}
		return secret.Data, nil
	}
}

func start(ctx context.Context, mgr ctrl.Manager) error {
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the manager: %w", err)
	}
	return nil
}

func toStrings(types []v1alpha1.ProviderType) []string {
	out := make([]string, len(types))
	for i, t := range types {
		out[i] = string(t)
	}
	return out
}

func join(types []v1alpha1.ProviderType) string { return strings.Join(toStrings(types), ", ") }
