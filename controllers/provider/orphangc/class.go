package orphangc

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/providers"
)

// reportTries bounds how often a finding is written again after another writer changed the class.
const reportTries = 3

// finding is what a sweep says in the class's GarbageCollection condition.
type finding struct {
	status          metav1.ConditionStatus
	reason, message string
}

// sweep looks through one class and reports on it.
func (r *Runner) sweep(ctx context.Context, class *v1alpha1.ProviderClass, m *memory) error {
	if refusal, ok := refuses(class); ok {
		m.strikes = nil
		m.disabled()
		return errors.Join(quiet(r.withdraw(ctx, class)), r.report(ctx, class, refusal))
	}
	if !meta.IsStatusConditionTrue(class.Status.Conditions, v1alpha1.ConditionAccepted) {
		m.strikes = nil
		return r.report(ctx, class, notAccepted)
	}
	provider, instances, live, err := r.look(ctx, class)
	switch failure := (*lookError)(nil); {
	case errors.Is(err, providers.ErrInvalidClass):
		m.strikes = nil
		return r.report(ctx, class, notAccepted)
	case errors.As(err, &failure):
		// Two sweeps in a row must see an orphan, and this is none.
		m.strikes = nil
		return errors.Join(err, r.report(ctx, class, finding{metav1.ConditionFalse, v1alpha1.ReasonListFailed, failure.message}))
	}
	policy := Policy{ClusterID: r.ClusterID, Namespaces: r.Namespaces, MinAge: r.MinAge, MaxDeletes: r.MaxDeletes}
	if class.Spec.GarbageCollection != v1alpha1.GarbageCollectionReport {
		policy.Confirmed, _ = confirmation(class)
	}
	result := Sweep(instances, live, m.strikes, r.Clock.Now(), policy)
	m.strikes = result.Strikes
	m.found(result, r.Clock.Now())
	return r.conclude(ctx, class, provider, result, m)
}

// refuses tells whether the class does not want its orphans looked for.
func refuses(class *v1alpha1.ProviderClass) (finding, bool) {
	message := ""
	switch {
	case cmp.Or(class.Spec.GarbageCollection, v1alpha1.GarbageCollectionDelete) == v1alpha1.GarbageCollectionOff:
		message = "orphans are not looked for: spec.garbageCollection is Off"
	case class.Annotations[v1alpha1.AnnotationSkipCleanup] == "true":
		message = "orphans are not looked for: the annotation " + v1alpha1.AnnotationSkipCleanup + " is set"
	}
	return finding{metav1.ConditionFalse, v1alpha1.ReasonDisabled, message}, message != ""
}

// notAccepted is said of a class whose configuration is not valid, or not looked at yet.
var notAccepted = finding{metav1.ConditionUnknown, v1alpha1.ReasonNotAccepted, "orphans are not looked for: the class is not accepted"}

// lookError is why a class could not be looked through, with what may be said of it in a condition.
type lookError struct {
	message string
	err     error
}

func (e *lookError) Error() string { return e.err.Error() }
func (e *lookError) Unwrap() error { return e.err }

// look lists the instances and then the Proxies. The order is what makes it safe, see the package comment.
func (r *Runner) look(ctx context.Context, class *v1alpha1.ProviderClass) (provider providers.Provider, instances []providers.Instance, live uids, err error) {
	if provider, err = r.Set.Open(ctx, class); err == nil {
		instances, err = provider.List(ctx)
	}
	if err != nil {
		return nil, nil, nil, &lookError{"the instances could not be listed: " + providers.StableMessage(err), fmt.Errorf("list instances: %w", err)}
	}
	if live, err = r.liveProxies(ctx); err != nil {
		return nil, nil, nil, &lookError{"the Proxies could not be listed", err}
	}
	return provider, instances, live, nil
}

// conclude does and says what follows from a sweep.
func (r *Runner) conclude(ctx context.Context, class *v1alpha1.ProviderClass, provider providers.Provider, result Result, m *memory) error {
	if err := r.spend(ctx, class, result); err != nil {
		// Most often the class was changed meanwhile; then the next sweep sees what became of the confirmation.
		return quiet(err)
	}
	switch {
	case result.Tripped && !result.Confirmed:
		return r.report(ctx, class, finding{metav1.ConditionFalse, v1alpha1.ReasonTooManyOrphans, trippedMessage(class, result)})
	case result.Orphans == 0:
		return r.report(ctx, class, finding{metav1.ConditionTrue, v1alpha1.ReasonClean, "every instance has its Proxy"})
	case class.Spec.GarbageCollection == v1alpha1.GarbageCollectionReport:
		return r.report(ctx, class, finding{metav1.ConditionFalse, v1alpha1.ReasonOrphansFound,
			"there are instances without a Proxy; spec.garbageCollection is Report, so they are left"})
	}
	failed, err := r.deleteOrphans(ctx, class, provider, result.Delete, m)
	message := "there are instances without a Proxy; they are deleted a few at a time"
	if result.Confirmed {
		err = errors.Join(err, quiet(r.settle(ctx, class, failed)))
		message = "there are instances without a Proxy; they are deleted a few at a time, as was confirmed"
	}
	return errors.Join(err, r.report(ctx, class, finding{metav1.ConditionFalse, v1alpha1.ReasonOrphansFound, message}))
}

// deleteOrphans takes a last look at each Proxy and deletes the instance if it is still absent. It returns how many could
// not be deleted.
func (r *Runner) deleteOrphans(ctx context.Context, class *v1alpha1.ProviderClass, provider providers.Provider, orphans []providers.Instance, m *memory) (failed int, err error) {
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
			m.saved()
			log.FromContext(ctx).Info("An instance taken for an orphan has a Proxy", "instance", i.Name, "namespace", px.Namespace, "name", px.Name)
			continue
		}
		// The ID keeps the call from any other incarnation of the name.
		if err := provider.Delete(ctx, i.Ref); err != nil && !providers.IsNotFound(err) {
			problems = append(problems, fmt.Errorf("delete orphan %s: %w", i.Name, err))
			continue
		}
		m.deleted()
		r.Recorder.Eventf(class, nil, corev1.EventTypeNormal, "OrphanDeleted", "Delete",
			"deleted instance %s of the former Proxy %s/%s", i.Name, i.Owner.Namespace, i.Owner.Name)
	}
	return len(problems), errors.Join(problems...)
}

// report writes the GarbageCollection condition of a class and leaves the rest of its status as it is. It has time of its
// own, so that a sweep that took too long can be told.
func (r *Runner) report(ctx context.Context, class *v1alpha1.ProviderClass, f finding) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		// The manager stops, which is why calls failed.
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()
	for try := 1; ; try++ {
		transition, err := r.write(ctx, class, f)
		if err == nil && transition && f.reason == v1alpha1.ReasonTooManyOrphans {
			r.Recorder.Eventf(class, nil, corev1.EventTypeWarning, f.reason, "Sweep", "%s", f.message)
		}
		if !apierrors.IsConflict(err) || try == reportTries {
			return quiet(err)
		}
		fresh := &v1alpha1.ProviderClass{}
		if err := r.Reader.Get(ctx, client.ObjectKeyFromObject(class), fresh); err != nil {
			return quiet(err)
		}
		if fresh.UID != class.UID {
			return nil
		}
		*class = *fresh
	}
}

func (r *Runner) write(ctx context.Context, class *v1alpha1.ProviderClass, f finding) (transition bool, err error) {
	next := class.Status.DeepCopy()
	before := meta.FindStatusCondition(next.Conditions, v1alpha1.ConditionGarbageCollection)
	transition = before == nil || before.Reason != f.reason
	meta.SetStatusCondition(&next.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionGarbageCollection, Status: f.status, Reason: f.reason, Message: f.message,
		ObservedGeneration: class.Generation, LastTransitionTime: metav1.NewTime(r.Clock.Now()),
	})
	return transition, statusapply.Whole(ctx, r.Client, r.manager, class, &class.Status, next)
}

// quiet leaves out the errors of a class that was changed meanwhile, or is gone: the next sweep starts from what is there
// then.
func quiet(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
