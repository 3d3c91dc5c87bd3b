// Package proxypool is core's controller of ProxyPools.
//
// A pool owns its Proxies directly. What happens next is decided by one pure function, MakePlan, from the list of owned
// members; the controller only reads, does what the plan says, and writes the status.
package proxypool

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/tracing"
)

const controllerName = "proxypool"

var poolKind = v1alpha1.SchemeGroupVersion.WithKind("ProxyPool")

// indexOwner is the cache's index of Proxies by the UID of their controller.
const indexOwner = "proxypool.metadata.controller.uid"

// Leases is what the controller needs of leasing. known is false while leasing does not know, as after a restart before
// leases were recovered.
type Leases interface {
	// CountLeases that hold a proxy.
	CountLeases(proxyUID types.UID) (leases int, known bool)
	// Emptied tells of a proxy that is asked to drain whether it has no lease and, because leasing knows of it, gets none.
	Emptied(proxy types.NamespacedName, uid types.UID) bool
	// PoolCounts are the leases that proxies of a pool carry, and those that wait for one.
	PoolCounts(namespace, pool string) (leased, pending int32, known bool)
}

// Options of the controller.
type Options struct {
	// Leases; nil counts none.
	Leases Leases
	// LeaseChanges names proxies that are asked to drain and became empty, to end a drain without delay. May be nil.
	LeaseChanges <-chan event.TypedGenericEvent[types.NamespacedName]
	Clock        clock.PassiveClock
	// Registerer of the metrics; nil for none.
	Registerer prometheus.Registerer
}

// Reconciler reconciles ProxyPools.
type Reconciler struct {
	Options
	Client client.Client
	// APIReader reads from the API server itself.
	APIReader client.Reader
	Recorder  events.EventRecorder

	memories memories
	failures failures
	reports  reports
	demand   *prometheus.GaugeVec
}

// Add adds the controller and its index to a manager.
func Add(ctx context.Context, mgr manager.Manager, o Options) error {
	r := &Reconciler{
		Options: o, Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder("proxypool-controller"),
	}
	if err := r.registerMetrics(); err != nil {
		return err
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.Proxy{}, indexOwner, byOwner); err != nil {
		return fmt.Errorf("index proxies by %s: %w", indexOwner, err)
	}
	b := ctrl.NewControllerManagedBy(mgr).Named(controllerName).
		For(&v1alpha1.ProxyPool{}, builder.WithPredicates(predicate.Funcs{UpdateFunc: poolChanged})).
		Owns(&v1alpha1.Proxy{}, builder.WithPredicates(predicate.Funcs{UpdateFunc: memberChanged})).
		// Those who lost their pool while nobody was looking, and whose pool may be gone, are brought up by nobody else.
		Watches(&v1alpha1.Proxy{}, handler.EnqueueRequestsFromMapFunc(formerPool)).
		Watches(&v1alpha1.ProxyLease{}, r.leaseHandler(), builder.WithPredicates(predicate.Funcs{UpdateFunc: leaseReported}))
	if o.LeaseChanges != nil {
		b = b.WatchesRawSource(source.TypedChannel(o.LeaseChanges, handler.TypedEnqueueRequestsFromMapFunc(r.poolOf)))
	}
	if err := b.Complete(tracing.Reconciler(controllerName, r)); err != nil {
		return fmt.Errorf("add the %s controller: %w", controllerName, err)
	}
	return nil
}

func byOwner(object client.Object) []string {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
		return []string{string(owner.UID)}
	}
	if px, ok := object.(*v1alpha1.Proxy); ok {
		if pool := formerMember(px); pool != "" {
			return []string{formerly + pool}
		}
	}
	return nil
}

// poolOf is the pool whose member a proxy is.
func (r *Reconciler) poolOf(ctx context.Context, proxy types.NamespacedName) []reconcile.Request {
	px := &v1alpha1.Proxy{}
	if err := r.Client.Get(ctx, proxy, px); err != nil {
		// Gone, or to be read again: the pool looks at its members' leases every countInterval anyway.
		return nil
	}
	owner := metav1.GetControllerOfNoCopy(px)
	if owner == nil || owner.Kind != poolKind.Kind {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: px.Namespace, Name: owner.Name}}}
}

// formerPool is the pool that a proxy still seems to be a member of.
func formerPool(_ context.Context, object client.Object) []reconcile.Request {
	px, ok := object.(*v1alpha1.Proxy)
	if !ok || formerMember(px) == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: px.Namespace, Name: formerMember(px)}}}
}

func poolChanged(e event.UpdateEvent) bool {
	return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() ||
		e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
		!e.ObjectOld.GetDeletionTimestamp().Equal(e.ObjectNew.GetDeletionTimestamp())
}

// annotations of a member without that of the provider manager, which means nothing to a pool.
func annotations(px *v1alpha1.Proxy) map[string]string {
	out := maps.Clone(px.Annotations)
	delete(out, v1alpha1.AnnotationFirstIntent)
	return out
}

// memberChanged tells whether a plan could come out differently. A member's status is written several times on its way to
// Ready, and most of it means nothing to the pool.
func memberChanged(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*v1alpha1.Proxy)
	after, ok2 := e.ObjectNew.(*v1alpha1.Proxy)
	if !ok || !ok2 || before.UID != after.UID {
		return true
	}
	held := func(px *v1alpha1.Proxy) bool { return slices.Contains(px.Finalizers, v1alpha1.FinalizerLeaseDrain) }
	if !before.DeletionTimestamp.IsZero() && !after.DeletionTimestamp.IsZero() {
		return held(before) != held(after) || !equality.Semantic.DeepEqual(before.OwnerReferences, after.OwnerReferences)
	}
	for _, name := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionDrained} {
		if meta.IsStatusConditionTrue(before.Status.Conditions, name) != meta.IsStatusConditionTrue(after.Status.Conditions, name) {
			return true
		}
	}
	return before.Generation != after.Generation ||
		!before.DeletionTimestamp.Equal(after.DeletionTimestamp) ||
		outOfDate(before) != outOfDate(after) ||
		!unhealthySince(before).Equal(unhealthySince(after)) ||
		!maps.Equal(before.Labels, after.Labels) ||
		(!maps.Equal(before.Annotations, after.Annotations) && !maps.Equal(annotations(before), annotations(after))) ||
		waitsForCapacity(before) != waitsForCapacity(after) ||
		refusal(before) != refusal(after) || unreadiness(before) != unreadiness(after) ||
		!equality.Semantic.DeepEqual(before.OwnerReferences, after.OwnerReferences)
}
