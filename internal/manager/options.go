package manager

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// Defaults of the flags that all managers share.
const (
	// DefaultMetricsBindAddress serves Prometheus metrics.
	DefaultMetricsBindAddress = ":8080"
	// DefaultHealthProbeBindAddress serves /healthz and /readyz.
	DefaultHealthProbeBindAddress = ":8081"
	// DefaultLogLevel of the process log on stderr.
	DefaultLogLevel = "info"
)

// inClusterNamespaceFile holds the namespace of a pod that has a ServiceAccount.
const inClusterNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Options are what all managers have in common.
type Options struct {
	// MetricsBindAddress and HealthProbeBindAddress are host:port; "0" switches the listener off.
	MetricsBindAddress     string
	HealthProbeBindAddress string
	// LeaderElect makes several replicas safe: only one acts.
	LeaderElect bool
	// LeaderElectionNamespace holds the election's Lease and, for core, the operator's own Secrets.
	LeaderElectionNamespace string
	// WatchNamespaces limits what is watched; empty means all.
	WatchNamespaces []string
	// Kubeconfig names a kubeconfig file; empty looks where kubectl looks.
	Kubeconfig string
	// LogLevel is debug, info, warn or error.
	LogLevel string
	// ClusterID marks what providers make; empty means the UID of kube-system.
	ClusterID string
	// ControllerName says which ProviderClasses are this installation's.
	ControllerName string
	// AdvertisedAddress is where the other replicas ask this one when it leads; empty: nowhere. See AddressOf.
	AdvertisedAddress string
	// WrapLock is put around the election's lock, to watch it being renewed; nil for nothing.
	WrapLock func(resourcelock.Interface) resourcelock.Interface
	// SkipNameValidation admits two managers of one role in one process, for tests.
	SkipNameValidation bool
}

// AddFlags registers the flags of the options with their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.MetricsBindAddress, "metrics-bind-address", DefaultMetricsBindAddress, "host:port of the metrics endpoint, 0 for none")
	flags.StringVar(&o.HealthProbeBindAddress, "health-probe-bind-address", DefaultHealthProbeBindAddress, "host:port of /healthz and /readyz, 0 for none")
	flags.BoolVar(&o.LeaderElect, "leader-elect", true, "elect a leader among the replicas")
	flags.StringVar(&o.LeaderElectionNamespace, "leader-election-namespace", OwnNamespace(), "namespace of the election's Lease and of the operator's own Secrets")
	flags.StringSliceVar(&o.WatchNamespaces, "watch-namespaces", nil, "namespaces to watch, comma separated (default all)")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig file (default KUBECONFIG, the pod's ServiceAccount or ~/.kube/config)")
	flags.StringVar(&o.LogLevel, "log-level", DefaultLogLevel, "debug, info, warn or error")
	flags.StringVar(&o.ClusterID, "cluster-id", "", "mark of everything providers make (default the UID of the kube-system namespace)")
	flags.StringVar(&o.ControllerName, "controller-name", v1alpha1.DefaultControllerName, "ProviderClasses with this controllerName are handled")
}

// Validate reports the first wrong flag by name.
func (o *Options) Validate() error {
	for flag, address := range map[string]string{
		"metrics-bind-address": o.MetricsBindAddress, "health-probe-bind-address": o.HealthProbeBindAddress,
	} {
		if err := ValidateBindAddress(flag, address); err != nil {
			return err
		}
	}
	if o.LeaderElectionNamespace == "" {
		return errors.New("--leader-election-namespace is required outside of a cluster")
	}
	if problems := validation.IsDNS1123Label(o.LeaderElectionNamespace); len(problems) > 0 {
		return fmt.Errorf("--leader-election-namespace: %q: %s", o.LeaderElectionNamespace, problems[0])
	}
	for _, name := range o.WatchNamespaces {
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return fmt.Errorf("--watch-namespaces: %q: %s", name, problems[0])
		}
	}
	if problems := validation.IsValidLabelValue(o.ClusterID); len(problems) > 0 {
		return fmt.Errorf("--cluster-id: %q: %s", o.ClusterID, problems[0])
	}
	if o.ControllerName == "" {
		return errors.New("--controller-name must not be empty")
	}
	return nil
}

// ValidateBindAddress admits host:port and "0".
func ValidateBindAddress(flag, address string) error {
	if address == "0" {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--%s: %q is not host:port: %w", flag, address, err)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return fmt.Errorf("--%s: %q: %w", flag, address, err)
	}
	return nil
}

// OwnNamespace is the namespace this process runs in: POD_NAMESPACE, or that of its ServiceAccount, or "".
func OwnNamespace() string {
	if name := os.Getenv("POD_NAMESPACE"); name != "" {
		return name
	}
	data, err := os.ReadFile(inClusterNamespaceFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
