package providersconfig

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

const (
	// FieldManager owns on ProviderClasses what the file says.
	FieldManager = v1alpha1.ManagerCore + "-config"
	// PollInterval is how often the file is looked at. A mounted ConfigMap is swapped by renaming a link, which watching
	// the file itself would miss.
	PollInterval = 5 * time.Second
	// retryInterval is how soon a manifest that could not be applied is tried again.
	retryInterval = 30 * time.Second
)

// Load reads and parses a file. Errors start with the file's name.
func Load(file string) ([]*unstructured.Unstructured, error) {
	classes, _, err := load(file)
	return classes, err
}

func load(file string) (classes []*unstructured.Unstructured, sum [sha256.Size]byte, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, sum, fmt.Errorf("read providers config: %w", err)
	}
	if classes, err = Parse(data); err != nil {
		return nil, sha256.Sum256(data), fmt.Errorf("%s: %w", file, err)
	}
	return classes, sha256.Sum256(data), nil
}

// Print writes the ProviderClasses of a file as YAML manifests.
func Print(w io.Writer, file string) error {
	classes, err := Load(file)
	if err != nil {
		return err
	}
	for _, class := range classes {
		data, err := yaml.Marshal(class.Object)
		if err != nil {
			return fmt.Errorf("%s: write manifest of %s: %w", file, class.GetName(), err)
		}
		if _, err := fmt.Fprintf(w, "---\n%s", data); err != nil {
			return fmt.Errorf("write manifests: %w", err)
		}
	}
	return nil
}

// Applier keeps ProviderClasses as a file says, by server-side apply. It never deletes one: an entry that leaves the file
// leaves its class and all proxies of it alone. It runs on the leader only.
type Applier struct {
	file   string
	client client.Client
	clock  clock.WithTicker
	log    logr.Logger

	// classes are the last good state of the file, and seen is the content that was looked at last.
	classes []*unstructured.Unstructured
	seen    [sha256.Size]byte

	valid   prometheus.Gauge
	applied *prometheus.CounterVec
}

// NewApplier reads the file and fails when it is not valid, so that a wrong file is one clear error at start.
func NewApplier(file string, c client.Client, clk clock.WithTicker, log logr.Logger) (*Applier, error) {
	classes, sum, err := load(file)
	if err != nil {
		return nil, err
	}
	a := &Applier{
		file: file, client: c, clock: clk, log: log.WithValues("file", file), classes: classes, seen: sum,
		valid: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "proxy_operator_providers_config_valid",
			Help: "Whether the providers config file is valid (1) or the last good state is kept (0).",
		}),
		applied: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxy_operator_providers_config_applied_total",
			Help: "Attempts to apply a ProviderClass of the providers config file, by result.",
		}, []string{"result"}),
	}
	a.valid.Set(1)
	return a, nil
}

// Describe implements prometheus.Collector.
func (a *Applier) Describe(out chan<- *prometheus.Desc) {
	a.valid.Describe(out)
	a.applied.Describe(out)
}

// Collect implements prometheus.Collector.
func (a *Applier) Collect(out chan<- prometheus.Metric) { a.valid.Collect(out); a.applied.Collect(out) }

// NeedLeaderElection implements manager.LeaderElectionRunnable: two versions of the file must not fight during an upgrade.
func (a *Applier) NeedLeaderElection() bool { return true }

// Check asks the API server, without changing anything, whether it would take every entry. Call it at start, before a
// leader is elected: a file with an entry that breaks a rule of the schema then stops the new process and not the one that
// works. Only refusals are errors; an API server that cannot answer is tried again by Start.
func (a *Applier) Check(ctx context.Context) error {
	for i, class := range a.classes {
		err := a.apply(ctx, class, client.DryRunAll)
		if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
			return fmt.Errorf("%s: providers[%d] (%s): %s", a.file, i, class.GetName(), oneLine(refusal(err)))
		}
	}
	return nil
}

// refusal is what the API server has against an object, without the object's name and kind, which the caller gives.
func refusal(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil || len(status.Status().Details.Causes) == 0 {
		return err.Error()
	}
	cause := status.Status().Details.Causes[0]
	return cause.Field + ": " + cause.Message
}

// Start applies the file now and whenever its content changes, until ctx ends. What cannot be applied is logged, counted
// and tried again; it stops nothing.
func (a *Applier) Start(ctx context.Context) error {
	ticker := a.clock.NewTicker(PollInterval)
	defer ticker.Stop()
	retry := time.Time{}
	failed := a.applyAll(ctx)
	if failed {
		retry = a.clock.Now().Add(retryInterval)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		if a.reload() || failed && !a.clock.Now().Before(retry) {
			failed = a.applyAll(ctx)
			retry = a.clock.Now().Add(retryInterval)
		}
	}
}

// reload looks at the file. It returns true when there is new good content; of bad content the last good state is kept.
func (a *Applier) reload() bool {
	classes, sum, err := load(a.file)
	switch {
	case err == nil && sum == a.seen:
		a.valid.Set(1)
		return false
	case err != nil && sum == a.seen:
		return false
	case err != nil:
		a.valid.Set(0)
		a.seen = sum
		a.log.Error(err, "Providers config is not valid; the last good one stays in force")
		return false
	}
	a.valid.Set(1)
	a.classes, a.seen = classes, sum
	a.log.Info("Providers config changed", "providers", len(classes))
	return true
}

// applyAll applies every class, whatever becomes of the others. It returns true when one failed.
func (a *Applier) applyAll(ctx context.Context) (failed bool) {
	for _, class := range a.classes {
		if err := a.apply(ctx, class); err != nil {
			if ctx.Err() != nil {
				return true
			}
			failed = true
			a.applied.WithLabelValues("error").Inc()
			a.log.Error(err, "Apply ProviderClass of the providers config", "providerClass", class.GetName())
			continue
		}
		a.applied.WithLabelValues("success").Inc()
	}
	return failed
}

func (a *Applier) apply(ctx context.Context, class *unstructured.Unstructured, opts ...client.ApplyOption) error {
	// The answer is written into the object, and this one is applied again.
	manifest := client.ApplyConfigurationFromUnstructured(class.DeepCopy())
	opts = append(opts, client.FieldOwner(FieldManager), client.ForceOwnership, client.DisableReadYourWritesConsistency)
	if err := a.client.Apply(ctx, manifest, opts...); err != nil {
		return fmt.Errorf("apply ProviderClass %s: %w", class.GetName(), err)
	}
	return nil
}
