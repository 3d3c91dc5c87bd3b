// Package proxy is core's controller of Proxies.
//
// It binds a Proxy to its ProviderClass, stands in for the provider of External proxies, feeds the health engine, sums
// everything up in core's slice of the status, holds deletions while leases run out, and lets go of instances that a user
// abandons. What it says is computed in one place, Compose.
package proxy

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/health"
	"crawl.example.com/egress-proxies-operator/internal/tracing"
)

const controllerName = "proxy"

// Names of the cache's indexes over Proxies that this controller adds.
const (
	indexProvider    = "proxy.spec.provider"
	indexCredentials = "proxy.spec.credentialsSecretRef.name"
)

// Health is what the controller needs of the health engine.
type Health interface {
	// Upsert watches a proxy or tells what changed about it.
	Upsert(health.Target)
	// Remove forgets a proxy.
	Remove(proxyUID types.UID)
	// Verdict on a proxy; false when it is not watched.
	Verdict(proxyUID types.UID) (health.Verdict, bool)
	// Changes names the proxies whose verdict changed.
	Changes() <-chan event.TypedGenericEvent[types.NamespacedName]
}

// LeaseCounter is what the controller needs of leasing.
type LeaseCounter interface {
	// CountLeases that hold a proxy. known is false while that is not known, as after a restart before leases were
	// recovered: then nothing is released because of the number.
	CountLeases(proxyUID types.UID) (leases int, known bool)
}

// Options of the controller.
type Options struct {
	// Namespaces that are watched; empty means all.
	Namespaces []string
	// ControllerName says which ProviderClasses are this installation's.
	ControllerName string
	// Health engine; nil probes nothing.
	Health Health
	// HealthDefaults are the flags of the health checks.
	HealthDefaults health.Defaults
	// Leases; nil counts none.
	Leases LeaseCounter
	// LeaseChanges names proxies whose number of leases fell to zero, to end a drain without delay. May be nil.
	LeaseChanges <-chan event.TypedGenericEvent[types.NamespacedName]
	Clock        clock.PassiveClock
}

// Reconciler reconciles Proxies.
type Reconciler struct {
	Options
	Client   client.Client
	Recorder events.EventRecorder

	watched watchList
	holds   holds
}

// Add adds the controller and its indexes to a manager.
func Add(ctx context.Context, mgr manager.Manager, o Options) error {
	r := &Reconciler{Options: o, Client: mgr.GetClient(), Recorder: mgr.GetEventRecorder("proxy-controller")}
	for name, extract := range map[string]client.IndexerFunc{indexProvider: byProvider, indexCredentials: byCredentials} {
		if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.Proxy{}, name, extract); err != nil {
			return fmt.Errorf("index proxies by %s: %w", name, err)
		}
	}
	b := ctrl.NewControllerManagedBy(mgr).Named(controllerName).
		For(&v1alpha1.Proxy{}, builder.WithPredicates(predicate.Funcs{UpdateFunc: proxyChanged})).
		Watches(&v1alpha1.ProviderClass{}, handler.EnqueueRequestsFromMapFunc(r.ofClass), builder.WithPredicates(predicate.Funcs{UpdateFunc: classChanged})).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.ofSecret), builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.ofNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{}))
	if o.Health != nil {
		b = b.WatchesRawSource(source.TypedChannel(o.Health.Changes(), byName))
	}
	if o.LeaseChanges != nil {
		b = b.WatchesRawSource(source.TypedChannel(o.LeaseChanges, byName))
	}
	if err := b.Complete(tracing.Reconciler(controllerName, r)); err != nil {
		return fmt.Errorf("add the %s controller: %w", controllerName, err)
	}
	return nil
}

// byName enqueues the proxy that an event names.
var byName = handler.TypedFuncs[types.NamespacedName, reconcile.Request]{
	GenericFunc: func(_ context.Context, e event.TypedGenericEvent[types.NamespacedName], q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		q.Add(reconcile.Request{NamespacedName: e.Object})
	},
}

func byProvider(object client.Object) []string {
	if px, ok := object.(*v1alpha1.Proxy); ok && px.Spec.Provider != "" {
		return []string{px.Spec.Provider}
	}
	return nil
}

func byCredentials(object client.Object) []string {
	if px, ok := object.(*v1alpha1.Proxy); ok && px.Spec.CredentialsSecretRef != nil {
		return []string{px.Spec.CredentialsSecretRef.Name}
	}
	return nil
}

func (r *Reconciler) ofClass(ctx context.Context, class client.Object) []reconcile.Request {
	return r.requests(ctx, nil, client.MatchingFields{indexProvider: class.GetName()})
}

func (r *Reconciler) ofSecret(ctx context.Context, secret client.Object) []reconcile.Request {
	return r.requests(ctx, nil, client.InNamespace(secret.GetNamespace()), client.MatchingFields{indexCredentials: secret.GetName()})
}

// ofNamespace are the unbound proxies of a namespace: its labels decide which classes admit them.
func (r *Reconciler) ofNamespace(ctx context.Context, namespace client.Object) []reconcile.Request {
	if len(r.Namespaces) > 0 && !slices.Contains(r.Namespaces, namespace.GetName()) {
		// Namespaces are watched all, and the proxies of this one are not.
		return nil
	}
	unbound := func(px *v1alpha1.Proxy) bool {
		return px.Status.Binding == nil && px.Spec.Mode != v1alpha1.ModeExternal
	}
	return r.requests(ctx, unbound, client.InNamespace(namespace.GetName()))
}

func (r *Reconciler) requests(ctx context.Context, admit func(*v1alpha1.Proxy) bool, opts ...client.ListOption) []reconcile.Request {
	list := &v1alpha1.ProxyList{}
	if err := r.Client.List(ctx, list, append(opts, client.UnsafeDisableDeepCopy)...); err != nil {
		// Only a cache that was stopped cannot be listed.
		log.FromContext(ctx).Error(err, "List proxies to wake")
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		if admit == nil || admit(&list.Items[i]) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return out
}

// proxyChanged tells whether core has something to do: everything but what leasing writes. Core's own slice counts too, so
// that it is put right when somebody overwrites it.
func proxyChanged(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*v1alpha1.Proxy)
	after, ok2 := e.ObjectNew.(*v1alpha1.Proxy)
	if !ok || !ok2 {
		return true
	}
	x, y := before.Status, after.Status
	x.Cooldowns, x.Exclusive, y.Cooldowns, y.Exclusive = nil, nil, nil, nil
	return before.Generation != after.Generation ||
		!before.DeletionTimestamp.Equal(after.DeletionTimestamp) ||
		!equality.Semantic.DeepEqual(before.Finalizers, after.Finalizers) ||
		!maps.Equal(before.Annotations, after.Annotations) ||
		!equality.Semantic.DeepEqual(x, y)
}

// classChanged tells whether a class means something else for its proxies.
func classChanged(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*v1alpha1.ProviderClass)
	after, ok2 := e.ObjectNew.(*v1alpha1.ProviderClass)
	if !ok || !ok2 {
		return true
	}
	accepted := func(class *v1alpha1.ProviderClass) any {
		return meta.FindStatusCondition(class.Status.Conditions, v1alpha1.ConditionAccepted)
	}
	return before.UID != after.UID ||
		before.Generation != after.Generation ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
		isHeld(before) != isHeld(after) ||
		before.Status.EgressScope != after.Status.EgressScope ||
		!equality.Semantic.DeepEqual(accepted(before), accepted(after))
}
