package proxy

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/objpatch"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
)

// conflictRequeue is how soon a decision on outdated data is made again; the newer object is on its way to the cache.
const conflictRequeue = 100 * time.Millisecond

// Reasons and action of events.
const (
	eventAbandoned = "InstanceAbandoned"
	eventOpen      = "AccessNotRestricted"

	actionReconcile = "Reconcile"
)

// Reconcile takes in one Proxy: finalizers first, then the health engine, then one write of core's whole slice.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	px := &v1alpha1.Proxy{}
	if err := r.Client.Get(ctx, req.NamespacedName, px); err != nil {
		if apierrors.IsNotFound(err) {
			r.watched.forget(r.Health, req.NamespacedName)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("get proxy %s: %w", req.NamespacedName, err)
	}
	result, err := r.sync(ctx, px)
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: conflictRequeue}, nil
	}
	return result, err
}

func (r *Reconciler) sync(ctx context.Context, px *v1alpha1.Proxy) (reconcile.Result, error) {
	in := Input{Now: r.Clock.Now(), LeasesKnown: true}
	var err error
	if in.Class, err = r.class(ctx, px); err != nil {
		return reconcile.Result{}, err
	}
	if in.Class != nil && in.Class.Spec.ControllerName != r.ControllerName {
		// Another installation's Proxy. Its core writes under the same field manager, so any word here would start a fight.
		log.FromContext(ctx).V(1).Info("Proxy belongs to another controllerName", "controllerName", in.Class.Spec.ControllerName)
		r.watched.forget(r.Health, client.ObjectKeyFromObject(px))
		return reconcile.Result{}, nil
	}
	if in.NamespaceLabels, err = r.namespaceLabels(ctx, px, in.Class); err != nil {
		return reconcile.Result{}, err
	}
	if r.Leases != nil {
		in.Leases, in.LeasesKnown = r.Leases.CountLeases(px.UID)
	}
	plan := planFinalizers(px, in)
	if err := r.applyFinalizers(ctx, px, plan); err != nil {
		return reconcile.Result{}, err
	}
	if !px.DeletionTimestamp.IsZero() && len(px.Finalizers) == 0 {
		r.watched.forget(r.Health, client.ObjectKeyFromObject(px))
		return reconcile.Result{}, nil
	}
	if err := r.watch(ctx, px, &in); err != nil {
		return reconcile.Result{}, err
	}
	before := px.Status.DeepCopy()
	desired := Compose(px, in)
	if hold := awaitVerdict(px, &desired, in); hold > 0 {
		return reconcile.Result{RequeueAfter: hold}, nil
	}
	if before.Binding == nil && desired.Binding != nil {
		if wait, err := r.holdClass(ctx, in.Class); err != nil || wait > 0 {
			return reconcile.Result{RequeueAfter: wait}, err
		}
	}
	if err := statusapply.Proxy(ctx, r.Client, v1alpha1.ManagerCore, px, &desired); err != nil {
		return reconcile.Result{}, err
	}
	r.announce(px, before)
	return reconcile.Result{RequeueAfter: cmp.Or(plan.recheck, again(px, &desired, in))}, nil
}

// class that px names; nil when there is none.
func (r *Reconciler) class(ctx context.Context, px *v1alpha1.Proxy) (*v1alpha1.ProviderClass, error) {
	if px.Spec.Mode == v1alpha1.ModeExternal || px.Spec.Provider == "" {
		return nil, nil
	}
	class := &v1alpha1.ProviderClass{}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: px.Spec.Provider}, class); err != nil {
		if apierrors.IsNotFound(err) {
			r.holds.forget(px.Spec.Provider)
			return nil, nil
		}
		return nil, fmt.Errorf("get ProviderClass of proxy %s/%s: %w", px.Namespace, px.Name, err)
	}
	return class, nil
}

// namespaceLabels are read only where the class asks for them.
func (r *Reconciler) namespaceLabels(ctx context.Context, px *v1alpha1.Proxy, class *v1alpha1.ProviderClass) (map[string]string, error) {
	if px.Status.Binding != nil || class == nil || class.Spec.AllowedNamespaces.From != v1alpha1.NamespacesFromSelector {
		return nil, nil
	}
	namespace := namespaceMetadata()
	if err := r.Client.Get(ctx, client.ObjectKey{Name: px.Namespace}, namespace); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("get namespace of proxy %s/%s: %w", px.Namespace, px.Name, err)
	}
	return namespace.Labels, nil
}

func namespaceMetadata() *metav1.PartialObjectMetadata {
	out := &metav1.PartialObjectMetadata{}
	out.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return out
}

func (r *Reconciler) applyFinalizers(ctx context.Context, px *v1alpha1.Proxy, plan finalizerPlan) error {
	var providerID string
	if px.Status.Instance != nil {
		providerID = px.Status.Instance.ProviderID
	}
	if err := objpatch.Finalizers(ctx, r.Client, px, plan.want); err != nil {
		return fmt.Errorf("set finalizers: %w", err)
	}
	if len(plan.abandoned) > 0 {
		r.Recorder.Eventf(px, nil, corev1.EventTypeWarning, eventAbandoned, actionReconcile,
			"The instance %q was abandoned, since %s is set. Remove it by hand; garbage collection may delete it later, once its provider can be reached.",
			providerID, v1alpha1.AnnotationSkipCleanup)
	}
	return nil
}

// watch keeps the health engine in step with px and reads its verdict.
func (r *Reconciler) watch(ctx context.Context, px *v1alpha1.Proxy, in *Input) error {
	key := client.ObjectKeyFromObject(px)
	// While leases are let run out, the proxy is still in use and its health still matters.
	ending := !px.DeletionTimestamp.IsZero() && !drainHeld(px)
	if r.Health == nil || ending {
		r.watched.forget(r.Health, key)
		return nil
	}
	target, problem, err := r.target(ctx, px, in.Class)
	if err != nil {
		return err
	}
	in.Problem = problem
	if target == nil {
		r.watched.forget(r.Health, key)
		return nil
	}
	r.watched.note(r.Health, key, px.UID)
	r.Health.Upsert(*target)
	if verdict, ok := r.Health.Verdict(px.UID); ok {
		in.Verdict = &verdict
	}
	return nil
}

// announce tells what a write changed and a person should notice. The steps that every Proxy goes through are conditions
// and no events, and neither is a change of health: a new fleet, or a bad hour of a large one, would double its writes.
func (r *Reconciler) announce(px *v1alpha1.Proxy, before *v1alpha1.ProxyStatus) {
	if meta.IsStatusConditionFalse(px.Status.Conditions, v1alpha1.ConditionAccessRestricted) &&
		!meta.IsStatusConditionFalse(before.Conditions, v1alpha1.ConditionAccessRestricted) {
		r.Recorder.Eventf(px, nil, corev1.EventTypeWarning, eventOpen, actionReconcile,
			"The proxy does what it should refuse (%s) and is not leased",
			meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionAccessRestricted).Reason)
	}
}

// watchList remembers which Proxy the health engine knows under a name, so that it can be taken out when the name is gone
// or belongs to another object.
type watchList struct {
	mu   sync.Mutex
	uids map[types.NamespacedName]types.UID
}

func (w *watchList) note(engine Health, key types.NamespacedName, uid types.UID) {
	w.mu.Lock()
	former, known := w.uids[key]
	if w.uids == nil {
		w.uids = map[types.NamespacedName]types.UID{}
	}
	w.uids[key] = uid
	w.mu.Unlock()
	if known && former != uid {
		engine.Remove(former)
	}
}

func (w *watchList) forget(engine Health, key types.NamespacedName) {
	w.mu.Lock()
	uid, known := w.uids[key]
	delete(w.uids, key)
	w.mu.Unlock()
	if known {
		engine.Remove(uid)
	}
}
