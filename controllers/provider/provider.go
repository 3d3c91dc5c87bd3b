// Package provider assembles a provider manager: the instance controller, the class controller and the garbage collection
// of one provider type, around one Set of guarded providers. Main and tests use it alike.
package provider

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"crawl.example.com/egress-proxies-operator/controllers/provider/class"
	"crawl.example.com/egress-proxies-operator/controllers/provider/instance"
	"crawl.example.com/egress-proxies-operator/controllers/provider/orphangc"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/guard"
)

// Options of a provider manager.
type Options struct {
	Factory providers.Factory
	Clock   clock.WithTicker
	// ClusterID marks every instance.
	ClusterID string
	// ControllerName: only classes with it are handled.
	ControllerName string
	// Namespaces that are watched; empty means all.
	Namespaces []string
	// Client for the factory, with the Reader and the Informers beside it; only the kubernetes provider gets them, see
	// providers.Runtime.
	Client    client.Client
	Reader    client.Reader
	Informers cache.Informers
	// Secrets for the factory, see providers.Runtime.
	Secrets func(ctx context.Context, name string) (map[string][]byte, error)
	// CacheDir of the factory, for what can be fetched again.
	CacheDir string
	// ResolveCredentials, see instance.Options.
	ResolveCredentials bool
	// Registerer for the metrics.
	Registerer prometheus.Registerer
}

// Add adds the controllers of one provider type to its manager.
func Add(mgr manager.Manager, o Options) error {
	logger := mgr.GetLogger().WithName("provider-" + string(o.Factory.Type()))
	set, err := NewSet(o, logger)
	if err != nil {
		return err
	}
	if err := errors.Join(
		instance.Add(mgr, instance.Options{
			Set: set, Clock: o.Clock, ClusterID: o.ClusterID, ControllerName: o.ControllerName, ResolveCredentials: o.ResolveCredentials,
		}),
		class.Add(mgr, class.Options{Set: set, Clock: o.Clock, ControllerName: o.ControllerName}),
		orphangc.Add(mgr, orphangc.Options{
			Set: set, Clock: o.Clock, ClusterID: o.ClusterID, ControllerName: o.ControllerName,
			Namespaces: o.Namespaces, Registerer: o.Registerer,
		}),
		mgr.Add(closer{set}),
	); err != nil {
		return fmt.Errorf("assemble the manager of provider %s: %w", o.Factory.Type(), err)
	}
	return nil
}

// NewSet makes the guarded providers of a manager.
func NewSet(o Options, logger logr.Logger) (*providers.Set, error) {
	metrics, err := guard.NewMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register metrics of provider %s: %w", o.Factory.Type(), err)
	}
	runtime := providers.Runtime{
		ClusterID: o.ClusterID, Clock: o.Clock, Logger: logger, CacheDir: o.CacheDir,
		Client: o.Client, Reader: o.Reader, Informers: o.Informers, Namespaces: o.Namespaces,
		Secrets: o.Secrets, Registerer: o.Registerer,
	}
	return providers.NewSet(o.Factory, runtime, guard.ForSet(o.Factory, o.Clock, metrics)), nil
}

// closer closes the providers when the manager stops.
type closer struct{ set *providers.Set }

// Start implements manager.Runnable.
func (c closer) Start(ctx context.Context) error {
	<-ctx.Done()
	c.set.Close()
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (closer) NeedLeaderElection() bool { return false }
