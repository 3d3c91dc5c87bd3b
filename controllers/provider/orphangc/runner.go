package orphangc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// DefaultPeriod is the time between two sweeps.
	DefaultPeriod = 10 * time.Minute
	// startDelay keeps a new leader from sweeping while calls of its predecessor may be on their way.
	startDelay = 5 * time.Minute
	// jitter spreads the sweeps of several managers, as a fraction.
	jitter = 0.2
	// pageSize of the list of Proxies.
	pageSize = 500
)

// Options of the runner.
type Options struct {
	// Set opens the providers; its Factory says which type is swept.
	Set   *providers.Set
	Clock clock.WithTicker
	// ClusterID is the mark of the instances that may be deleted.
	ClusterID string
	// ControllerName: only classes with it are swept.
	ControllerName string
	// Namespaces that are watched; empty means all.
	Namespaces []string
	// Period, MinAge and MaxDeletes: 0 means the default.
	Period, MinAge time.Duration
	MaxDeletes     int
	// Registerer for the metrics; nil for none.
	Registerer prometheus.Registerer
}

// Runner sweeps all classes of a type now and then. It runs on the leader only.
type Runner struct {
	Options
	// Client writes and reads classes; Reader reads Proxies past every cache.
	Client   client.Client
	Reader   client.Reader
	Recorder events.EventRecorder

	kind    v1alpha1.ProviderType
	manager string
	metrics *metrics
	// strikes of each class. A restart starts anew, which delays a deletion by one sweep.
	strikes map[types.UID]map[string]bool
}

// NewRunner makes a Runner. reader must not be a cache.
func NewRunner(c client.Client, reader client.Reader, recorder events.EventRecorder, o Options) (*Runner, error) {
	o.Period = cmp.Or(o.Period, DefaultPeriod)
	o.MinAge = cmp.Or(o.MinAge, DefaultMinAge)
	o.MaxDeletes = cmp.Or(o.MaxDeletes, DefaultMaxDeletes)
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	kind := o.Set.Factory().Type()
	return &Runner{
		Options: o, Client: c, Reader: reader, Recorder: recorder,
		kind: kind, manager: v1alpha1.ManagerProvider(kind), metrics: m,
		strikes: map[types.UID]map[string]bool{},
	}, nil
}

// Add adds the runner to a provider manager.
func Add(mgr manager.Manager, o Options) error {
	name := "orphan-gc-" + string(o.Set.Factory().Type())
	r, err := NewRunner(mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder(name), o)
	if err != nil {
		return err
	}
	if err := mgr.Add(r); err != nil {
		return fmt.Errorf("add %s: %w", name, err)
	}
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (r *Runner) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (r *Runner) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithName("orphan-gc").WithValues("providerType", r.kind))
	next := startDelay
	for {
		timer := r.Clock.NewTimer(wait.Jitter(next, jitter))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
		if err := r.SweepAll(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "A sweep failed")
		}
		next = r.Period
	}
}

// SweepAll sweeps each class of the type. A class that cannot be swept does not keep the others from it.
func (r *Runner) SweepAll(ctx context.Context) error {
	classes := &v1alpha1.ProviderClassList{}
	if err := r.Client.List(ctx, classes); err != nil {
		return fmt.Errorf("list classes: %w", err)
	}
	var problems []error
	present := map[types.UID]bool{}
	for i := range classes.Items {
		class := &classes.Items[i]
		if class.Spec.Type != r.kind || class.Spec.ControllerName != r.ControllerName {
			continue
		}
		present[class.UID] = true
		if err := r.sweep(ctx, class); err != nil {
			problems = append(problems, fmt.Errorf("sweep class %s: %w", class.Name, err))
		}
	}
	for uid := range r.strikes {
		if !present[uid] {
			delete(r.strikes, uid)
		}
	}
	return errors.Join(problems...)
}

// sweep looks through one class and reports on it.
func (r *Runner) sweep(ctx context.Context, class *v1alpha1.ProviderClass) error {
	mode := cmp.Or(class.Spec.GarbageCollection, v1alpha1.GarbageCollectionDelete)
	if mode == v1alpha1.GarbageCollectionOff || class.Annotations[v1alpha1.AnnotationSkipCleanup] == "true" {
		delete(r.strikes, class.UID)
		return errors.Join(r.setConfirmation(ctx, class, 0),
			r.report(ctx, class, metav1.ConditionFalse, v1alpha1.ReasonDisabled, "orphans are not looked for"))
	}
	// The list of instances comes first, see the package comment.
	provider, err := r.Set.Open(ctx, class)
	if errors.Is(err, providers.ErrInvalidClass) {
		// Accepted says so already.
		return nil
	}
	var instances []providers.Instance
	if err == nil {
		instances, err = provider.List(ctx)
	}
	if err != nil {
		delete(r.strikes, class.UID)
		return errors.Join(err, r.report(ctx, class, metav1.ConditionFalse, v1alpha1.ReasonListFailed,
			"the instances could not be listed: "+providers.StableMessage(err)))
	}
	live, err := r.liveProxies(ctx)
	if err != nil {
		delete(r.strikes, class.UID)
		return err
	}
	policy := Policy{ClusterID: r.ClusterID, Namespaces: r.Namespaces, MinAge: r.MinAge, MaxDeletes: r.MaxDeletes}
	if mode == v1alpha1.GarbageCollectionDelete {
		policy.Confirmed, _ = confirmation(class)
	}
	result := Sweep(instances, live, r.strikes[class.UID], r.Clock.Now(), policy)
	r.strikes[class.UID] = result.Strikes
	r.metrics.orphans.WithLabelValues(string(r.kind), class.Name).Set(float64(result.Orphans))

	if err := r.spend(ctx, class, result); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
			// What is known of the class is out of date. The next sweep sees what became of the confirmation.
			return nil
		}
		return err
	}
	switch {
	case result.Tripped && !result.Confirmed:
		return r.report(ctx, class, metav1.ConditionFalse, v1alpha1.ReasonTooManyOrphans, trippedMessage(class, result))
	case result.Orphans == 0:
		return r.report(ctx, class, metav1.ConditionTrue, v1alpha1.ReasonClean, "every instance has its Proxy")
	case mode == v1alpha1.GarbageCollectionReport:
		return r.report(ctx, class, metav1.ConditionFalse, v1alpha1.ReasonOrphansFound,
			"there are instances without a Proxy; spec.garbageCollection is Report, so they are left")
	}
	failed, err := r.deleteOrphans(ctx, class, provider, result.Delete)
	message := "there are instances without a Proxy; they are deleted a few at a time"
	if result.Confirmed {
		err = errors.Join(err, r.refund(ctx, class, failed))
		message = "there are instances without a Proxy; they are deleted a few at a time, as was confirmed"
	}
	return errors.Join(err, r.report(ctx, class, metav1.ConditionFalse, v1alpha1.ReasonOrphansFound, message))
}

// deleteOrphans takes a last look at each Proxy and deletes the instance if it is still absent. It returns how many could
// not be deleted.
func (r *Runner) deleteOrphans(ctx context.Context, class *v1alpha1.ProviderClass, provider providers.Provider, orphans []providers.Instance) (failed int, err error) {
	var problems []error
	for _, i := range orphans {
		px := &v1alpha1.Proxy{}
		err := r.Reader.Get(ctx, client.ObjectKey{Namespace: i.Owner.Namespace, Name: i.Owner.Name}, px)
		if client.IgnoreNotFound(err) != nil {
			problems = append(problems, fmt.Errorf("look for Proxy %s/%s: %w", i.Owner.Namespace, i.Owner.Name, err))
			continue
		}
		if err == nil && px.UID == i.Owner.UID {
			// The list cannot have been complete.
			r.metrics.saved.WithLabelValues(string(r.kind), class.Name).Inc()
			log.FromContext(ctx).Info("An instance taken for an orphan has a Proxy", "instance", i.Name, "namespace", px.Namespace, "name", px.Name)
			continue
		}
		if err := provider.Delete(ctx, i.Ref); err != nil && !providers.IsNotFound(err) {
			problems = append(problems, fmt.Errorf("delete orphan %s: %w", i.Name, err))
			continue
		}
		r.metrics.deleted.WithLabelValues(string(r.kind), class.Name).Inc()
		r.Recorder.Eventf(class, nil, corev1.EventTypeNormal, "OrphanDeleted", "Delete",
			"deleted instance %s of the former Proxy %s/%s", i.Name, i.Owner.Namespace, i.Owner.Name)
	}
	return len(problems), errors.Join(problems...)
}

// liveProxies are the UIDs of all Proxies of the cluster, read from the API server's quorum to the last page.
func (r *Runner) liveProxies(ctx context.Context) (map[types.UID]bool, error) {
	live := map[types.UID]bool{}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("ProxyList"))
	// A namespaced manager may not list the cluster; then each of its namespaces is listed, and owners elsewhere are no
	// candidates.
	namespaces := r.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, namespace := range namespaces {
		token := ""
		for {
			if err := r.Reader.List(ctx, list, client.InNamespace(namespace), client.Limit(pageSize), client.Continue(token)); err != nil {
				return nil, fmt.Errorf("list Proxies: %w", err)
			}
			for i := range list.Items {
				live[list.Items[i].UID] = true
			}
			if token = list.GetContinue(); token == "" {
				break
			}
		}
	}
	return live, nil
}

// report writes the GarbageCollection condition of a class and leaves the rest of its status as it was read.
func (r *Runner) report(ctx context.Context, class *v1alpha1.ProviderClass, status metav1.ConditionStatus, reason, message string) error {
	next := class.Status.DeepCopy()
	before := meta.FindStatusCondition(next.Conditions, v1alpha1.ConditionGarbageCollection)
	transition := before == nil || before.Reason != reason
	meta.SetStatusCondition(&next.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionGarbageCollection, Status: status, Reason: reason, Message: message,
		ObservedGeneration: class.Generation, LastTransitionTime: metav1.NewTime(r.Clock.Now()),
	})
	err := statusapply.Whole(ctx, r.Client, r.manager, class, &class.Status, next)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		// The class controller wrote meanwhile, or the class is gone; the next sweep says it again.
		return nil
	}
	if err == nil && transition && reason == v1alpha1.ReasonTooManyOrphans {
		r.Recorder.Eventf(class, nil, corev1.EventTypeWarning, reason, "Sweep", "%s", message)
	}
	return err
}
