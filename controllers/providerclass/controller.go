// Package providerclass is core's controller of ProviderClasses: it keeps a class while Proxies are bound to it. What the
// class is worth is said by its provider manager.
//
// Its finalizer is there before the first binding is: whoever binds stores it (controllers/proxy), and this controller puts
// it back. It goes when the class is deleted and no Proxy is bound, but not in the moment of the deletion: a binding that
// was decided on before may still be on its way.
package providerclass

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/objpatch"
	"crawl.example.com/egress-proxies-operator/internal/tracing"
)

const controllerName = "providerclass"

// indexClassUID is the cache's index of Proxies by the class they are bound to. A namesake is another class.
const indexClassUID = "providerclass.status.binding.classUID"

// bindGrace is how long a deleted class is kept for bindings that were decided on before: more than a reconcile takes, and
// more than the cache needs to see what it wrote.
const bindGrace = 5 * time.Second

// conflictRequeue is how soon a decision on outdated data is made again.
const conflictRequeue = 100 * time.Millisecond

// Options of the controller.
type Options struct {
	// ControllerName says which ProviderClasses are this installation's.
	ControllerName string
	// Clock is the time; nil means the real one.
	Clock clock.PassiveClock
}

// Reconciler reconciles ProviderClasses.
type Reconciler struct {
	Options
	Client client.Client

	mu sync.Mutex
	// deleted is by name which class was first seen to be deleted, and when.
	deleted map[string]deletion
}

type deletion struct {
	class types.UID
	since time.Time
}

// NewReconciler makes a Reconciler that reads and writes with c, whose cache has this package's index.
func NewReconciler(c client.Client, o Options) *Reconciler {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return &Reconciler{Options: o, Client: c, deleted: map[string]deletion{}}
}

// Add adds the controller and its index to a manager.
func Add(ctx context.Context, mgr manager.Manager, o Options) error {
	r := NewReconciler(mgr.GetClient(), o)
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.Proxy{}, indexClassUID, byClassUID); err != nil {
		return fmt.Errorf("index proxies by %s: %w", indexClassUID, err)
	}
	err := ctrl.NewControllerManagedBy(mgr).Named(controllerName).
		For(&v1alpha1.ProviderClass{}, builder.WithPredicates(predicate.Funcs{UpdateFunc: classChanged})).
		Watches(&v1alpha1.Proxy{}, handler.EnqueueRequestsFromMapFunc(boundClass), builder.WithPredicates(predicate.Funcs{UpdateFunc: bindingChanged})).
		Complete(tracing.Reconciler(controllerName, r))
	if err != nil {
		return fmt.Errorf("add the %s controller: %w", controllerName, err)
	}
	return nil
}

// Reconcile sets core's finalizer on a class in use, and takes it off a deleted class that is not.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	class := &v1alpha1.ProviderClass{}
	if err := r.Client.Get(ctx, req.NamespacedName, class); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.Name)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("get ProviderClass %s: %w", req.Name, err)
	}
	if class.Spec.ControllerName != r.ControllerName {
		return reconcile.Result{}, nil
	}
	bound := &v1alpha1.ProxyList{}
	if err := r.Client.List(ctx, bound, client.MatchingFields{indexClassUID: string(class.UID)}, client.Limit(1), client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list proxies of ProviderClass %s: %w", req.Name, err)
	}
	inUse := len(bound.Items) > 0
	grace := r.grace(class)
	err := objpatch.Finalizers(ctx, r.Client, class, wantedFinalizers(class, inUse || grace > 0))
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: conflictRequeue}, nil
	}
	return reconcile.Result{RequeueAfter: grace}, err
}

// grace is how long a deleted class is kept although no Proxy is known to be bound to it. It is this process's own time: the
// clock of the API server may be another.
func (r *Reconciler) grace(class *v1alpha1.ProviderClass) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if class.DeletionTimestamp.IsZero() {
		delete(r.deleted, class.Name)
		return 0
	}
	now := r.Clock.Now()
	if r.deleted[class.Name].class != class.UID {
		r.deleted[class.Name] = deletion{class.UID, now}
	}
	return max(0, r.deleted[class.Name].since.Add(bindGrace).Sub(now))
}

func (r *Reconciler) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.deleted, name)
}

// wantedFinalizers are those the class should have. The finalizer stays on a class that is out of use until the class is
// deleted, so that a fleet that comes and goes causes no writes. Under skip-cleanup the provider manager's goes as well:
// that is the way out when no such manager runs or its instances cannot be listed.
func wantedFinalizers(class *v1alpha1.ProviderClass, inUse bool) []string {
	held := slices.Contains(class.Finalizers, v1alpha1.FinalizerClassInUse)
	deleting := !class.DeletionTimestamp.IsZero()
	abandoned := class.Annotations[v1alpha1.AnnotationSkipCleanup] == "true"
	switch {
	case inUse && !held && !deleting:
		return append(slices.Clone(class.Finalizers), v1alpha1.FinalizerClassInUse)
	case !inUse && deleting:
		return slices.DeleteFunc(slices.Clone(class.Finalizers), func(name string) bool {
			return name == v1alpha1.FinalizerClassInUse || abandoned && name == v1alpha1.FinalizerClassInstances
		})
	default:
		return class.Finalizers
	}
}

func byClassUID(object client.Object) []string {
	if px, ok := object.(*v1alpha1.Proxy); ok && px.Status.Binding != nil && px.Status.Binding.ClassUID != "" {
		return []string{string(px.Status.Binding.ClassUID)}
	}
	return nil
}

func boundClass(_ context.Context, object client.Object) []reconcile.Request {
	px, ok := object.(*v1alpha1.Proxy)
	if !ok || px.Status.Binding == nil || px.Status.Binding.ClassName == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: px.Status.Binding.ClassName}}}
}

func classChanged(e event.UpdateEvent) bool {
	return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() ||
		e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero() ||
		e.ObjectOld.GetAnnotations()[v1alpha1.AnnotationSkipCleanup] != e.ObjectNew.GetAnnotations()[v1alpha1.AnnotationSkipCleanup] ||
		!slices.Equal(e.ObjectOld.GetFinalizers(), e.ObjectNew.GetFinalizers())
}

func bindingChanged(e event.UpdateEvent) bool {
	return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() || !slices.Equal(byClassUID(e.ObjectOld), byClassUID(e.ObjectNew))
}
