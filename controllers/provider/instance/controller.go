// Package instance is the controller that makes, watches, replaces and deletes the instance behind a Managed Proxy, through
// any provider.
//
// A reconcile reads the Proxy, asks the provider, and lets the pure function Decide choose one action. The rules that keep
// it from ever leaking or doubling an instance, each found by simulating lives with lost replies, late visibility and
// crashes:
//
//   - The finalizer is stored with the first intent, an intent before each attempt to create, and with it the place. A place
//     is never left, and a Proxy never released, while the attempt may still come to something (Timing.Settle).
//   - NotFound is believed the second time, Timing.Confirm after the first.
//   - Every write, and the release above all, carries the resourceVersion of what it was decided on.
//   - An error of Get is never absence, and user data that cannot be resolved is never a difference.
//   - What carries another owner's UID is left alone.
package instance

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/tracing"
	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// retryMin and retryMax bound the time between retries of a reconcile that failed.
	retryMin = time.Second
	retryMax = 5 * time.Minute
	// DefaultMaxConcurrentCreates of a class that does not say.
	DefaultMaxConcurrentCreates = int32(20)
	// DefaultMaxConcurrentReplacements of a class that does not say.
	DefaultMaxConcurrentReplacements = int32(1)

	// classIndex finds the Proxies bound to a class by its name; secretIndex those that refer to a Secret by its name.
	classIndex  = "status.binding.className"
	secretIndex = "secretRefs"
)

// Options of the controller.
type Options struct {
	// Set opens the providers; its Factory says which type the controller is for.
	Set *providers.Set
	// Clock is the time that decisions are made by.
	Clock clock.PassiveClock
	// ClusterID marks every instance.
	ClusterID string
	// ControllerName: only classes with it are handled.
	ControllerName string
	// Timing overrides that of the factory; zero fields mean the factory's.
	Timing providers.Timing
	// ResolveCredentials hands spec.credentialsSecretRef to Create. It is for providers that configure the proxy program
	// themselves; the others' users do that by cloud-init, and their managers may not read such Secrets.
	ResolveCredentials bool
}

// Reconciler reconciles Proxies of one provider type.
type Reconciler struct {
	Options
	Client client.Client
	// Reader reads past every cache.
	Reader   client.Reader
	Recorder events.EventRecorder

	kind      v1alpha1.ProviderType
	manager   string
	finalizer string
	// creates and replacements bound what is under way at once in a class.
	creates, replacements *budget
	lost                  *lostProxies
	accepted              *acceptedAttempts
	// sizes and limits say how often what runs can be looked at.
	sizes  *sizes
	limits providers.Limits
}

// NewReconciler makes a Reconciler that reads and writes with c. reader must not be a cache.
func NewReconciler(c client.Client, reader client.Reader, recorder events.EventRecorder, o Options) *Reconciler {
	factory := o.Set.Factory()
	o.Timing = o.Timing.Or(providers.TimingOf(factory))
	return &Reconciler{
		Options: o, Client: c, Reader: reader, Recorder: recorder,
		kind:      factory.Type(),
		manager:   v1alpha1.ManagerProvider(factory.Type()),
		finalizer: v1alpha1.FinalizerInstance(factory.Type()),
		creates:   newBudget(), replacements: newBudget(), lost: newLostProxies(), accepted: newAcceptedAttempts(),
		sizes: newSizes(), limits: providers.LimitsOf(factory),
	}
}

// Add adds the controller to a provider manager, whose cache holds only Proxies bound to its type.
func Add(mgr manager.Manager, o Options) error {
	name := "proxy-instance-" + string(o.Set.Factory().Type())
	r := NewReconciler(mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder(name), o)
	indexer, background := mgr.GetFieldIndexer(), context.Background()
	if err := errors.Join(
		indexer.IndexField(background, &v1alpha1.Proxy{}, classIndex, indexClass),
		indexer.IndexField(background, &v1alpha1.Proxy{}, secretIndex, indexSecrets),
	); err != nil {
		return fmt.Errorf("index Proxies: %w", err)
	}
	err := builder.ControllerManagedBy(mgr).
		Named(name).
		For(&v1alpha1.Proxy{}, builder.WithPredicates(relevant(r.finalizer))).
		Watches(&v1alpha1.Proxy{}, handler.Funcs{DeleteFunc: r.onDelete}).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.proxiesOfSecret)).
		Watches(&v1alpha1.ProviderClass{}, handler.EnqueueRequestsFromMapFunc(r.proxiesOfClass), builder.WithPredicates(classChanged(r.kind))).
		WatchesRawSource(source.Channel(o.Set.Events(), handler.TypedEnqueueRequestsFromMapFunc(requestOf))).
		WithOptions(controller.Options{
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](retryMin, retryMax),
		}).
		Complete(tracing.Reconciler(name, r))
	if err != nil {
		return fmt.Errorf("add controller %s: %w", name, err)
	}
	return nil
}

// relevant lets through what can change a decision. What others write to the status, and what this controller writes
// itself, must not wake it: the writers would keep each other busy. A finalizer or a record that disappears is somebody
// else's doing.
func relevant(finalizer string) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1alpha1.Proxy)
		after, ok2 := e.ObjectNew.(*v1alpha1.Proxy)
		if !ok || !ok2 {
			return false
		}
		return before.Generation != after.Generation ||
			before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
			(hasFinalizer(before, finalizer) && !hasFinalizer(after, finalizer)) ||
			// Core lets go of a Proxy whose leases have run out: now the instance may go.
			(hasFinalizer(before, v1alpha1.FinalizerLeaseDrain) && !hasFinalizer(after, v1alpha1.FinalizerLeaseDrain)) ||
			before.Annotations[v1alpha1.AnnotationSkipCleanup] != after.Annotations[v1alpha1.AnnotationSkipCleanup] ||
			bindingOf(before) != bindingOf(after) ||
			// What does not work any more may be gone.
			(meta.IsStatusConditionTrue(before.Status.Conditions, v1alpha1.ConditionHealthy) && meta.IsStatusConditionFalse(after.Status.Conditions, v1alpha1.ConditionHealthy)) ||
			(before.Status.Instance != nil && after.Status.Instance == nil)
	}}
}

func bindingOf(px *v1alpha1.Proxy) v1alpha1.Binding {
	if px.Status.Binding == nil {
		return v1alpha1.Binding{}
	}
	binding := *px.Status.Binding
	binding.BoundTime = nil
	return binding
}

// classChanged lets through changes of a class of this type that its Proxies must know of: its configuration, its
// deletion, and that its provider answers again, also while the class is being deleted.
func classChanged(kind v1alpha1.ProviderType) predicate.Predicate {
	answers := func(class *v1alpha1.ProviderClass) bool {
		ready := meta.FindStatusCondition(class.Status.Conditions, v1alpha1.ConditionReady)
		return ready != nil && (ready.Status == metav1.ConditionTrue || ready.Reason == v1alpha1.ReasonTerminating)
	}
	return predicate.And(
		predicate.NewPredicateFuncs(func(obj client.Object) bool {
			class, ok := obj.(*v1alpha1.ProviderClass)
			return ok && class.Spec.Type == kind
		}),
		predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.ProviderClass)
			after, ok2 := e.ObjectNew.(*v1alpha1.ProviderClass)
			return ok && ok2 && (before.Generation != after.Generation ||
				before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() || (!answers(before) && answers(after)))
		}})
}

func indexClass(obj client.Object) []string {
	px, ok := obj.(*v1alpha1.Proxy)
	if !ok || px.Status.Binding == nil {
		return nil
	}
	return []string{px.Status.Binding.ClassName}
}

func indexSecrets(obj client.Object) []string {
	px, ok := obj.(*v1alpha1.Proxy)
	if !ok {
		return nil
	}
	var names []string
	if c := px.Spec.CloudInit; c != nil && c.SecretKeyRef != nil {
		names = append(names, c.SecretKeyRef.Name)
	}
	if ref := px.Spec.CredentialsSecretRef; ref != nil {
		names = append(names, ref.Name)
	}
	return names
}

func (r *Reconciler) proxiesOfSecret(ctx context.Context, secret client.Object) []reconcile.Request {
	return r.requests(ctx, client.InNamespace(secret.GetNamespace()), client.MatchingFields{secretIndex: secret.GetName()})
}

func (r *Reconciler) proxiesOfClass(ctx context.Context, class client.Object) []reconcile.Request {
	return r.requests(ctx, client.MatchingFields{classIndex: class.GetName()})
}

func (r *Reconciler) requests(ctx context.Context, opts ...client.ListOption) []reconcile.Request {
	list := &v1alpha1.ProxyList{}
	if err := r.Client.List(ctx, list, append(opts, client.UnsafeDisableDeepCopy)...); err != nil {
		log.FromContext(ctx).Error(err, "Listing Proxies failed")
		return nil
	}
	requests := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

func requestOf(_ context.Context, owner providers.Owner) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: owner.Namespace, Name: owner.Name}}}
}

// proxiesOf are the Proxies bound to a class that are at something according to their status.
func (r *Reconciler) proxiesOf(ctx context.Context, class *v1alpha1.ProviderClass, at func(*v1alpha1.Proxy) bool) ([]types.NamespacedName, error) {
	list := &v1alpha1.ProxyList{}
	if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Proxies of class %s: %w", class.Name, err)
	}
	var names []types.NamespacedName
	for i := range list.Items {
		px := &list.Items[i]
		if px.Status.Binding != nil && px.Status.Binding.ClassUID == class.UID && at(px) {
			names = append(names, client.ObjectKeyFromObject(px))
		}
	}
	return names, nil
}

// cameToNothing are the reasons of Provisioned of an attempt that is over without an instance.
var cameToNothing = map[string]bool{
	v1alpha1.ReasonInvalidSpec: true, v1alpha1.ReasonWaitingForCapacity: true, v1alpha1.ReasonAuthFailed: true,
	v1alpha1.ReasonNameCollision: true, v1alpha1.ReasonCreateVanished: true, v1alpha1.ReasonInstanceMissing: true,
	v1alpha1.ReasonInstanceLost: true, v1alpha1.ReasonProvisionTimeout: true,
}

// beingCreated tells whether a Proxy has an attempt that is not over.
func beingCreated(px *v1alpha1.Proxy) bool {
	return !cameToNothing[provisionedReason(px)] && stored(px).IntentTime != nil && px.DeletionTimestamp.IsZero() &&
		!meta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionProvisioned)
}

// beingReplaced tells whether the instance of a Proxy was taken away to be made anew from a changed specification and does
// not run again yet.
func beingReplaced(px *v1alpha1.Proxy) bool {
	upToDate := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionUpToDate)
	return upToDate != nil && upToDate.Status == metav1.ConditionFalse && upToDate.Reason == v1alpha1.ReasonSpecChanged &&
		!meta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionProvisioned) &&
		px.Spec.ReplacePolicy != v1alpha1.ReplaceOnDelete && px.DeletionTimestamp.IsZero()
}

// release gives back what a Proxy holds in memory.
func (r *Reconciler) release(key types.NamespacedName) {
	r.creates.free(key)
	r.replacements.free(key)
	r.accepted.forget(key)
}
