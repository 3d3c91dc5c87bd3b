package class

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		// Of another manager, or another installation, perhaps since a moment ago.
		r.remember(req.Name, "")
		return reconcile.Result{}, nil
	}
	r.remember(class.Name, class.UID)

	found, err := r.inspect(ctx, class)
	if err != nil {
		return reconcile.Result{}, err
	}
	next := compose(class, found, r.Clock.Now())
	before := meta.FindStatusCondition(class.Status.Conditions, v1alpha1.ConditionReady).DeepCopy()
	err = statusapply.Whole(ctx, r.Client, r.manager, class, &class.Status, &next)
	if err == nil {
		r.announce(class, before, found)
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
	// hosts of the class, as they are to be shown.
	hosts []v1alpha1.ClassHostStatus
	// proxies that are bound to a class that is being deleted, and the first of them by name.
	proxies int
	proxy   string
	// instances that are left of a class that is being deleted and has no Proxy any more; -1 when that is not known.
	instances int
	// after is when to look again.
	after time.Duration
}

// inspect validates the class and asks its provider.
func (r *Reconciler) inspect(ctx context.Context, class *v1alpha1.ProviderClass) (findings, error) {
	f := findings{after: RecheckPeriod, instances: -1}
	if !class.DeletionTimestamp.IsZero() {
		var err error
		if f.proxies, f.proxy, err = r.bound(ctx, class.UID); err != nil {
			return f, err
		}
	}
	if f.problems = r.Set.Factory().Validate(class); len(f.problems) > 0 {
		f.after = CheckPeriod
		return f, nil
	}
	f.provider, f.err = r.Set.Open(ctx, class)
	if f.err == nil {
		f.err = f.provider.Check(ctx)
	}
	if f.err == nil {
		r.countInstances(ctx, class, &f)
	}
	memory := r.memory(class)
	unsure := false
	if reporter, ok := providers.Find[providers.HostReporter](f.provider); ok {
		f.hosts, unsure = memory.hosts(reporter.Hosts(), class.Status.Hosts)
	}
	if f.err == nil {
		memory.failures = 0
		if class.DeletionTimestamp.IsZero() {
			f.after = CheckPeriod
		}
	} else {
		log.FromContext(ctx).Info("The check of the class failed", "class", class.Name, "reason", providers.ReasonOf(f.err), "error", providers.RawText(f.err))
		if wait := providers.RetryAfterOf(f.err); wait > 0 {
			f.after = wait
		}
		// One failure does not make a class unready that was ready: its Proxies and their owners would all notice.
		memory.failures++
		f.doubted = memory.failures < doubt && answers(class)
	}
	if f.doubted || unsure {
		f.after = doubtPeriod
	}
	return f, nil
}

// countInstances finds out whether a class that is being deleted may go. Until the last Proxy is gone an instance may yet
// be made. That the instances cannot be listed is a failure like that of a check: it keeps the class from going.
func (r *Reconciler) countInstances(ctx context.Context, class *v1alpha1.ProviderClass, f *findings) {
	if !r.leaving(class) || f.proxies > 0 {
		return
	}
	instances, err := f.provider.List(ctx)
	if err != nil {
		f.err = err
		return
	}
	f.instances = len(instances)
}

// bound counts the Proxies that are bound to a class, and names the first of them.
func (r *Reconciler) bound(ctx context.Context, class types.UID) (n int, first string, err error) {
	proxies := &v1alpha1.ProxyList{}
	if err := r.Client.List(ctx, proxies, client.UnsafeDisableDeepCopy); err != nil {
		return 0, "", fmt.Errorf("list Proxies: %w", err)
	}
	for i := range proxies.Items {
		px := &proxies.Items[i]
		if px.Status.Binding == nil || px.Status.Binding.ClassUID != class {
			continue
		}
		n++
		if name := px.Namespace + "/" + px.Name; first == "" || name < first {
			first = name
		}
	}
	return n, first, nil
}

// leaving tells whether the class waits for this controller to let it go. Under skip-cleanup core does.
func (r *Reconciler) leaving(class *v1alpha1.ProviderClass) bool {
	return !class.DeletionTimestamp.IsZero() && controllerutil.ContainsFinalizer(class, v1alpha1.FinalizerClassInstances) &&
		class.Annotations[v1alpha1.AnnotationSkipCleanup] != "true"
}

// release lets a class go of which the provider has no instance left.
func (r *Reconciler) release(ctx context.Context, class *v1alpha1.ProviderClass, f findings) error {
	if f.instances != 0 {
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

// announce tells of what keeps a class that is being deleted: once that Proxies do, and each time that another number of
// instances does. before is what Ready said; nil for nothing.
func (r *Reconciler) announce(class *v1alpha1.ProviderClass, before *metav1.Condition, f findings) {
	ready := meta.FindStatusCondition(class.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Reason != v1alpha1.ReasonTerminating {
		return
	}
	known := before != nil && before.Reason == v1alpha1.ReasonTerminating
	switch {
	case f.proxies > 0 && !known:
		r.Recorder.Eventf(class, nil, corev1.EventTypeNormal, "ProxiesRemain", "Delete", "%s", ready.Message)
	case f.instances > 0 && (!known || before.Message != ready.Message):
		r.Recorder.Eventf(class, nil, corev1.EventTypeNormal, "InstancesRemain", "Delete", "%s", ready.Message)
	}
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
		delete(r.doubts, old)
	}
	delete(r.known, name)
	if uid != "" {
		r.known[name] = uid
	}
}

// memory is what is doubted of a class. Only the reconcile of the class uses it.
func (r *Reconciler) memory(class *v1alpha1.ProviderClass) *doubts {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.doubts[class.UID]
	if known == nil || known.generation != class.Generation {
		// What the former specification led to says nothing about this one.
		known = &doubts{generation: class.Generation, unreachable: map[string]int{}}
		r.doubts[class.UID] = known
	}
	return known
}
