package orphangc

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/objpatch"
)

// A tripped breaker is released by a person, who says how many orphans may go. So that this stays one decision about one
// state of affairs, the annotation is a sum that is spent:
//
//   - it holds while there are no more orphans than it says;
//   - it is lowered to what is left before anything is deleted, at the resourceVersion of the class that was read, so that
//     a confirmation that was withdrawn or spent meanwhile deletes nothing;
//   - it is taken away with the last orphan, and whenever there is nothing to confirm: the breaker is not tripped, or the
//     class does not have its orphans deleted at all.

// confirmation is how many orphans the class's annotation confirms. given tells whether there is an annotation, and n is 0
// for one that is not a whole number above 0.
func confirmation(class *v1alpha1.ProviderClass) (n int, given bool) {
	value, given := class.Annotations[v1alpha1.AnnotationGCConfirm]
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || strconv.Itoa(n) != value {
		return 0, given
	}
	return n, given
}

// spend lowers the confirmation by what is about to be deleted. An error means that nothing may be deleted because of it.
func (r *Runner) spend(ctx context.Context, class *v1alpha1.ProviderClass, result Result) error {
	n, given := confirmation(class)
	switch {
	case !given:
		return nil
	case !result.Tripped || class.Spec.GarbageCollection == v1alpha1.GarbageCollectionReport:
		return r.withdraw(ctx, class)
	case !result.Confirmed:
		return nil
	}
	// It stays at 0 until the deletions are over: a manager may change what a person gave, and not give any itself.
	return r.setConfirmation(ctx, class, strconv.Itoa(min(n, result.Orphans)-len(result.Delete)))
}

// settle gives back what could not be deleted, and takes a confirmation away of which nothing is left.
func (r *Runner) settle(ctx context.Context, class *v1alpha1.ProviderClass, failed int) error {
	n, _ := confirmation(class)
	if n+failed == 0 {
		return r.withdraw(ctx, class)
	}
	return r.setConfirmation(ctx, class, strconv.Itoa(n+failed))
}

// withdraw takes the annotation away.
func (r *Runner) withdraw(ctx context.Context, class *v1alpha1.ProviderClass) error {
	return r.setConfirmation(ctx, class, "")
}

// setConfirmation writes the annotation, or takes it away for "". It fails with a conflict when the class is not what was
// read any more.
func (r *Runner) setConfirmation(ctx context.Context, class *v1alpha1.ProviderClass, value string) error {
	next := maps.Clone(class.Annotations)
	delete(next, v1alpha1.AnnotationGCConfirm)
	if value != "" {
		next[v1alpha1.AnnotationGCConfirm] = value
	}
	if maps.Equal(next, class.Annotations) {
		return nil
	}
	// The whole map, because a patch of one key that is not there fails, and not with a conflict.
	if err := objpatch.Apply(ctx, r.Client, class, objpatch.Set("/metadata/annotations", next)); err != nil {
		return fmt.Errorf("change the confirmation of class %s: %w", class.Name, err)
	}
	return nil
}

// trippedMessage says what is wrong, how to look into it and how to go on.
func trippedMessage(class *v1alpha1.ProviderClass, result Result) string {
	message := fmt.Sprintf("%s without a Proxy, so many that a mistake is likely; none is deleted", instances(result.Orphans))
	if result.NoProxies {
		message = fmt.Sprintf("no Proxy exists in the namespaces that are watched, but %s; a cluster that was lost or restored looks like this, so none is deleted", instances(result.Orphans))
	}
	if class.Spec.GarbageCollection == v1alpha1.GarbageCollectionReport {
		return message + ". spec.garbageCollection is Report, so they are left"
	}
	message += fmt.Sprintf(`. If they may all be deleted, set the annotation %s="%d" on the class`, v1alpha1.AnnotationGCConfirm, result.Orphans)
	switch n, given := confirmation(class); {
	case given && n == 0:
		message += "; what it says now is not a whole number above 0"
	case given:
		message += fmt.Sprintf("; it says %d now, which is less than there are", n)
	}
	return message
}

// instances counts in words.
func instances(n int) string {
	if n == 1 {
		return "there is 1 instance"
	}
	return fmt.Sprintf("there are %d instances", n)
}
