package proxypool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/objpatch"
)

// Proxies that a person takes out of a pool, as `kubectl delete --cascade=orphan` does with all of them, become ordinary
// ones: they follow changes of their specification by themselves, and are no longer leased as the pool's.

// formerly marks a former member of a pool in the index of owners. No UID begins like that.
const formerly = "formerly/"

// formerMember tells of which pool a proxy without a controller was a member, and is still made up as one; "" for none.
func formerMember(px *v1alpha1.Proxy) string {
	if px.Spec.ReplacePolicy != v1alpha1.ReplaceOnDelete || px.Labels[v1alpha1.LabelRevision] == "" || !px.DeletionTimestamp.IsZero() ||
		metav1.GetControllerOfNoCopy(px) != nil {
		return ""
	}
	return px.Labels[v1alpha1.LabelPool]
}

// release makes ordinary proxies of the former members of a pool, which may be gone.
func (r *Reconciler) release(ctx context.Context, pool types.NamespacedName) error {
	list := &v1alpha1.ProxyList{}
	if err := r.Client.List(ctx, list, client.InNamespace(pool.Namespace), client.MatchingFields{indexOwner: formerly + pool.Name}); err != nil {
		return fmt.Errorf("list former members of pool %s: %w", pool, err)
	}
	var errs []error
	for i := range list.Items {
		px := &list.Items[i]
		if formerMember(px) != pool.Name {
			continue
		}
		labels, annotations := maps.Clone(px.Labels), maps.Clone(px.Annotations)
		delete(labels, v1alpha1.LabelPool)
		delete(labels, v1alpha1.LabelRevision)
		ops := []objpatch.Op{objpatch.Set("/metadata/labels", labels), objpatch.Set("/spec/replacePolicy", v1alpha1.ReplaceAutomatic)}
		// The pool takes nobody back any more, so its request would close the proxy for ever.
		if requests := slices.DeleteFunc(slices.Clone(px.Spec.DrainRequests), byPool); len(requests) < len(px.Spec.DrainRequests) {
			ops = append(ops, objpatch.Set("/spec/drainRequests", requests))
		}
		delete(annotations, annotationPoolKeys)
		delete(annotations, annotationAfterTime)
		if len(annotations) < len(px.Annotations) {
			ops = append(ops, objpatch.Set("/metadata/annotations", annotations))
		}
		if err := objpatch.Apply(ctx, r.Client, px, ops...); err != nil && !apierrors.IsNotFound(err) {
			// One that is refused keeps no other.
			errs = append(errs, fmt.Errorf("release former member %s of pool %s: %w", px.Name, pool, err))
		}
	}
	return errors.Join(errs...)
}
