package class

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// conflictRetry is when a reconcile that met another writer is tried again.
	conflictRetry = 200 * time.Millisecond
	// jitter spreads the checks of many classes, as a fraction.
	jitter = 0.2
)

// Reconcile checks one class and writes what was found.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	class := &v1alpha1.ProviderClass{}
	if err := r.Client.Get(ctx, req.NamespacedName, class); err != nil {
		if apierrors.IsNotFound(err) {
			r.remember(req.Name, "")
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("read ProviderClass %s: %w", req.Name, err)
	}
	if class.Spec.Type != r.kind || class.Spec.ControllerName != r.ControllerName {
		return reconcile.Result{}, nil
	}
	r.remember(class.Name, class.UID)

	found := r.inspect(ctx, class)
	next := compose(class, found, r.Clock.Now())
	err := statusapply.Whole(ctx, r.Client, r.manager, class, &class.Status, &next)
	if err == nil && !class.DeletionTimestamp.IsZero() {
		err = r.release(ctx, class, found)
	}
	switch {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: wait.Jitter(conflictRetry, 1)}, nil
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: wait.Jitter(found.after, jitter)}, nil
}

// findings are what is known of a class now.
type findings struct {
	problems field.ErrorList
	provider providers.Provider
	// err is the outcome of the check; doubted that it is not yet believed.
	err     error
	doubted bool
	// after is when to look again.
	after time.Duration
}

// inspect validates the class and asks its provider.
func (r *Reconciler) inspect(ctx context.Context, class *v1alpha1.ProviderClass) findings {
	f := findings{after: RecheckPeriod}
	if f.problems = r.Set.Factory().Validate(class); len(f.problems) > 0 {
		f.after = CheckPeriod
		return f
	}
	f.provider, f.err = r.Set.Open(ctx, class)
	if f.err == nil {
		f.err = f.provider.Check(ctx)
	}
	if f.err == nil {
		r.count(class.UID, 0)
		f.after = CheckPeriod
		return f
	}
	log.FromContext(ctx).Info("The check of the class failed", "class", class.Name, "reason", providers.ReasonOf(f.err), "error", f.err.Error())
	if wait := providers.RetryAfterOf(f.err); wait > 0 {
		f.after = wait
	}
	// One failure does not make a class unready that was ready: its Proxies and their owners would all notice.
	if r.count(class.UID, 1) < doubt && isReady(class) {
		f.doubted, f.after = true, doubtPeriod
	}
	return f
}

// release lets a class go of which the provider has no instance left. Until the last Proxy is gone an instance may yet
// be made.
func (r *Reconciler) release(ctx context.Context, class *v1alpha1.ProviderClass, f findings) error {
	if !controllerutil.ContainsFinalizer(class, v1alpha1.FinalizerClassInstances) ||
		class.Annotations[v1alpha1.AnnotationSkipCleanup] == "true" {
		// Nothing of ours holds the class, or core lets it go.
		return nil
	}
	proxies := &v1alpha1.ProxyList{}
	if err := r.Client.List(ctx, proxies, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list Proxies of class %s: %w", class.Name, err)
	}
	for i := range proxies.Items {
		if binding := proxies.Items[i].Status.Binding; binding != nil && binding.ClassUID == class.UID {
			return nil
		}
	}
	if f.provider == nil {
		return nil
	}
	instances, err := f.provider.List(ctx)
	if err != nil {
		log.FromContext(ctx).Info("Listing the instances of the class failed", "class", class.Name, "error", err.Error())
		return nil
	}
	if len(instances) > 0 {
		r.Recorder.Eventf(class, nil, corev1.EventTypeNormal, "InstancesRemain", "Delete",
			"the provider still has %d instances of the class", len(instances))
		return nil
	}
	before := class.DeepCopy()
	controllerutil.RemoveFinalizer(class, v1alpha1.FinalizerClassInstances)
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, class, patch, client.FieldOwner(r.manager)); err != nil {
		return fmt.Errorf("release ProviderClass %s: %w", class.Name, err)
	}
	return nil
}

// remember notes under which UID a class lives, "" for none, and closes the provider of a predecessor.
func (r *Reconciler) remember(name string, uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.known[name]
	if old == uid {
		return
	}
	if old != "" {
		r.Set.Forget(old)
		delete(r.failures, old)
	}
	delete(r.known, name)
	if uid != "" {
		r.known[name] = uid
	}
}

// count adds to the failures in a row, or starts anew with 0, and returns them.
func (r *Reconciler) count(uid types.UID, failed int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if failed == 0 {
		delete(r.failures, uid)
		return 0
	}
	r.failures[uid] += failed
	return r.failures[uid]
}
