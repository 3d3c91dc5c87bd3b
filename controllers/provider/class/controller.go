// Package class is the provider manager's half of a ProviderClass: whether its configuration is valid (Accepted), whether
// the provider answers (Ready), and that the class stays as long as the provider has instances of it.
package class

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/tracing"
	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// CheckPeriod is the time between two checks of a class that is ready.
	CheckPeriod = time.Minute
	// RecheckPeriod is the time between two checks of one that is not.
	RecheckPeriod = 15 * time.Second
	// doubtPeriod is the time until the second check that decides whether a class that was ready is not any more.
	doubtPeriod = 5 * time.Second
	// doubt is how many checks in a row must fail before a class that was ready is called not ready.
	doubt = 2
	// retryMin and retryMax bound the time between retries of a reconcile that failed.
	retryMin = time.Second
	retryMax = time.Minute
)

// Options of the controller.
type Options struct {
	// Set opens the providers; its Factory says which type the controller is for.
	Set *providers.Set
	// Clock is the time that is written.
	Clock clock.PassiveClock
	// ControllerName: only classes with it are handled.
	ControllerName string
}

// Reconciler reconciles ProviderClasses of one type.
type Reconciler struct {
	Options
	Client   client.Client
	Recorder events.EventRecorder

	kind    v1alpha1.ProviderType
	manager string

	mu sync.Mutex
	// known is the UID under which each class was last seen, and doubts what is doubted of it.
	known  map[string]types.UID
	doubts map[types.UID]*doubts
}

// NewReconciler makes a Reconciler that reads and writes with c.
func NewReconciler(c client.Client, recorder events.EventRecorder, o Options) *Reconciler {
	kind := o.Set.Factory().Type()
	return &Reconciler{
		Options: o, Client: c, Recorder: recorder,
		kind: kind, manager: v1alpha1.ManagerProvider(kind),
		known: map[string]types.UID{}, doubts: map[types.UID]*doubts{},
	}
}

// Add adds the controller to a provider manager.
func Add(mgr manager.Manager, o Options) error {
	name := "provider-class-" + string(o.Set.Factory().Type())
	r := NewReconciler(mgr.GetClient(), mgr.GetEventRecorder(name), o)
	err := builder.ControllerManagedBy(mgr).
		Named(name).
		For(&v1alpha1.ProviderClass{}, builder.WithPredicates(relevant(r.kind))).
		Watches(&v1alpha1.Proxy{}, handler.EnqueueRequestsFromMapFunc(r.waitingClass), builder.WithPredicates(deletions())).
		WithOptions(controller.Options{
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](retryMin, retryMax),
		}).
		Complete(tracing.Reconciler(name, r))
	if err != nil {
		return fmt.Errorf("add controller %s: %w", name, err)
	}
	return nil
}

// relevant lets through classes of the type whose specification or deletion changed: a status that this controller writes
// must not wake it, since every wake is a call to the provider. A watch that missed something tells of a class that was
// made anew as of a change; its predecessor may have been of the type.
func relevant(kind v1alpha1.ProviderType) predicate.Predicate {
	is := func(obj client.Object) bool {
		class, ok := obj.(*v1alpha1.ProviderClass)
		return ok && class.Spec.Type == kind
	}
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return is(e.Object) },
		DeleteFunc:  func(e event.DeleteEvent) bool { return is(e.Object) },
		GenericFunc: func(e event.GenericEvent) bool { return is(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return (is(e.ObjectOld) || is(e.ObjectNew)) &&
				(e.ObjectOld.GetUID() != e.ObjectNew.GetUID() ||
					e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
					e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero())
		},
	}
}

func deletions() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// waitingClass wakes a class that is being deleted when the last of its Proxies is gone. How many are left is counted now and
// then: a fleet that goes is no reason to ask the provider for each of its Proxies.
func (r *Reconciler) waitingClass(ctx context.Context, obj client.Object) []reconcile.Request {
	px, ok := obj.(*v1alpha1.Proxy)
	if !ok || px.Status.Binding == nil {
		return nil
	}
	key := client.ObjectKey{Name: px.Status.Binding.ClassName}
	class := &v1alpha1.ProviderClass{}
	if err := r.Client.Get(ctx, key, class); err != nil || class.DeletionTimestamp.IsZero() {
		return nil
	}
	if left, _, err := r.bound(ctx, class.UID); err == nil && left > 0 {
		return nil
	}
	return []reconcile.Request{{NamespacedName: key}}
}
