// Package manager makes the controller-runtime managers of the operator, for main and for tests alike, so that tests run
// with the caches and clients of production.
package manager

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/tracing"
	"crawl.example.com/egress-proxies-operator/internal/version"
)

const (
	// reconciliationTimeout bounds one reconcile: no call may hold a worker for ever.
	reconciliationTimeout = 2 * time.Minute
	// gracefulShutdownTimeout is how long running reconciles and requests may go on after a signal.
	gracefulShutdownTimeout = 20 * time.Second
	// workers is how many reconciles of one controller run at once. They wait for I/O most of the time.
	workers = 8
	// leaseDuration, RenewDeadline and retryPeriod time the election: a leader that could not renew for RenewDeadline steps
	// down before another may take over after leaseDuration.
	leaseDuration = 15 * time.Second
	// RenewDeadline is how long a leader may go on without having renewed.
	RenewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	// clientQPS and clientBurst limit calls to the API server. The server's own priority and fairness is what protects
	// it; these only stop a runaway loop.
	clientQPS   = 400
	clientBurst = 800
)

// Scheme knows the kinds of Kubernetes and of the operator.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			// Only two different types of one name can cause this.
			panic(err)
		}
	}
	return scheme
}

// Role is which manager a process is: what it may see and the name under which it is elected.
type Role struct {
	// Name is "core" or "provider-TYPE".
	Name string
	// FieldOwner of everything the role writes outside of status.
	FieldOwner string

	byObject map[client.Object]cache.ByObject
	// resources that must be served with what this binary needs.
	resources []string
}

// Core is the role of the core manager. Of Secrets it caches only proxy credentials.
func Core() Role {
	return Role{
		Name:       "core",
		FieldOwner: v1alpha1.ManagerCore,
		byObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: labelledSecrets(v1alpha1.LabelProxyCredentials),
		},
		resources: []string{"proxies", "proxypools", "proxyleases", "providerclasses"},
	}
}

// Provider is the role of the provider manager of a type. It sees only Proxies that are bound to its type. Of Secrets it
// caches those it can use: pods are configured with credentials, machines with user data.
func Provider(t v1alpha1.ProviderType) Role {
	role := Role{
		Name:       "provider-" + string(t),
		FieldOwner: v1alpha1.ManagerProvider(t),
		byObject: map[client.Object]cache.ByObject{
			&v1alpha1.Proxy{}: boundTo(t),
			&corev1.Secret{}:  labelledSecrets(v1alpha1.LabelCloudInit),
		},
		resources: []string{"proxies", "providerclasses"},
	}
	if t == v1alpha1.ProviderKubernetes {
		role.byObject = map[client.Object]cache.ByObject{
			&v1alpha1.Proxy{}: boundTo(t),
			&corev1.Secret{}:  labelledSecrets(v1alpha1.LabelProxyCredentials),
			&corev1.Pod{}:     {Label: hasLabel(v1alpha1.LabelProxyUID)},
		}
	}
	return role
}

// ElectionID is the name of the Lease by which the role's leader is elected. The slash of a third-party type, which no
// object's name may have, becomes a dash as in its finalizer.
func (r Role) ElectionID() string {
	return strings.ReplaceAll(r.Name, "/", "-") + ".egress.crawl.example.com"
}

// New makes the manager of a role.
func New(cfg *rest.Config, role Role, o Options) (manager.Manager, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent = "egress-proxies-operator-" + role.Name + "/" + version.Version
	if cfg.QPS == 0 {
		cfg.QPS, cfg.Burst = clientQPS, clientBurst
	}
	// A leader must be able to renew while the controllers use up their budget.
	electionConfig := rest.CopyConfig(cfg)
	cfg.Wrap(tracing.Transport)

	namespaces := map[string]cache.Config{}
	for _, name := range o.WatchNamespaces {
		namespaces[name] = cache.Config{}
	}
	lock, err := electionLock(electionConfig, role, o)
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(cfg, manager.Options{
		Scheme: Scheme(),
		Cache: cache.Options{
			DefaultTransform:  cache.TransformStripManagedFields(),
			DefaultNamespaces: namespaces,
			ByObject:          role.byObject,
		},
		Client: client.Options{
			FieldOwner:      role.FieldOwner,
			FieldValidation: metav1.FieldValidationStrict,
		},
		Controller: config.Controller{
			MaxConcurrentReconciles: workers,
			ReconciliationTimeout:   reconciliationTimeout,
			EnableWarmup:            new(true),
			// Tests run several managers of a role in one process.
			SkipNameValidation: new(o.SkipNameValidation),
		},
		LeaderElection:                      o.LeaderElect,
		LeaderElectionResourceLockInterface: lock,
		LeaderElectionReleaseOnCancel:       true,
		LeaseDuration:                       new(leaseDuration),
		RenewDeadline:                       new(RenewDeadline),
		RetryPeriod:                         new(retryPeriod),
		Metrics:                             metricsserver.Options{BindAddress: o.MetricsBindAddress},
		HealthProbeBindAddress:              o.HealthProbeBindAddress,
		GracefulShutdownTimeout:             new(gracefulShutdownTimeout),
	})
	if err != nil {
		return nil, fmt.Errorf("make the %s manager: %w", role.Name, err)
	}
	if err := errors.Join(
		mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("crds", crdCheck(mgr.GetAPIReader(), role.resources)),
		mgr.AddReadyzCheck("caches", cacheCheck(mgr)),
	); err != nil {
		return nil, fmt.Errorf("add checks to the %s manager: %w", role.Name, err)
	}
	return mgr, nil
}

// electionLock is the lock of the role's election, with what the caller wants around it; nil without an election.
func electionLock(cfg *rest.Config, role Role, o Options) (resourcelock.Interface, error) {
	if !o.LeaderElect {
		return nil, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name this process for the election: %w", err)
	}
	identity := identityOf(host, o.AdvertisedAddress)
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, o.LeaderElectionNamespace, role.ElectionID(),
		resourcelock.ResourceLockConfig{Identity: identity}, cfg, RenewDeadline)
	if err != nil {
		return nil, fmt.Errorf("make the election lock %s: %w", role.ElectionID(), err)
	}
	if o.WrapLock != nil {
		lock = o.WrapLock(lock)
	}
	return lock, nil
}

// ClusterID is the override, or else the UID of the kube-system namespace: it marks everything providers make.
func ClusterID(ctx context.Context, reader client.Reader, override string) (string, error) {
	if override != "" {
		return override, nil
	}
	namespace := &corev1.Namespace{}
	if err := reader.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, namespace); err != nil {
		return "", fmt.Errorf("find the cluster's id: %w (or set --cluster-id)", err)
	}
	return string(namespace.UID), nil
}

// cacheCheck is ready when the caches are filled.
func cacheCheck(mgr manager.Manager) healthz.Checker {
	return func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return errors.New("caches are not filled")
		}
		return nil
	}
}

// boundTo selects the Proxies of a provider manager at the server.
func boundTo(t v1alpha1.ProviderType) cache.ByObject {
	return cache.ByObject{Field: fields.OneTermEqualSelector("status.binding.type", string(t))}
}

// labelledSecrets caches Secrets whose owner has opted in by a label, and of them no more than is needed.
func labelledSecrets(label string) cache.ByObject {
	return cache.ByObject{Label: labels.SelectorFromSet(labels.Set{label: "true"}), Transform: trimSecret}
}

func hasLabel(name string) labels.Selector {
	selector, err := labels.Parse(name)
	if err != nil {
		panic(err)
	}
	return selector
}

func trimSecret(object any) (any, error) {
	if secret, ok := object.(*corev1.Secret); ok {
		secret.ManagedFields = nil
		secret.Annotations = nil
	}
	return object, nil
}
