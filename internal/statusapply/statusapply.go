// Package statusapply is the only code that writes a status.
//
// Several managers write the status of one Proxy, each a slice of its own (v1alpha1.ProxySlice). A write is a server-side
// apply of the writer's complete slice, forced, under the writer's field manager: what the slice leaves out is removed,
// what others own is untouched. It carries the resourceVersion it was computed from, because that is the only guard that
// the API server honours on a status apply: metadata.uid is ignored there, so a late writer would hit a re-created
// namesake. When the slice is unchanged no call is made.
package statusapply

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// Proxy applies manager's slice of desired to px, if it differs from what px has. On success px has the new status and
// resourceVersion. A conflict is returned as the API server's 409: read again and decide again.
func Proxy(ctx context.Context, c client.Client, manager string, px *v1alpha1.Proxy, desired *v1alpha1.ProxyStatus) error {
	slice := v1alpha1.ProxySlice(manager, px.Spec.Mode)
	return apply(ctx, c, manager, px, &px.Status, desired, &slice)
}

// Whole applies a status that has one writer. current points to the status within obj and desired to the wished one, both
// of the same type.
func Whole[S any](ctx context.Context, c client.Client, manager string, obj client.Object, current, desired *S) error {
	return apply(ctx, c, manager, obj, current, desired, nil)
}

func apply[S any](ctx context.Context, c client.Client, manager string, obj client.Object, current, desired *S, slice *v1alpha1.StatusSlice) error {
	have, err := project(current, slice)
	if err != nil {
		return err
	}
	want, err := project(desired, slice)
	if err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(have, want) {
		return nil
	}
	gvk, err := apiutil.GVKForObject(obj, c.Scheme())
	if err != nil {
		return fmt.Errorf("find the kind of %T: %w", obj, err)
	}
	patch := &unstructured.Unstructured{Object: map[string]any{"status": want}}
	patch.SetGroupVersionKind(gvk)
	patch.SetNamespace(obj.GetNamespace())
	patch.SetName(obj.GetName())
	patch.SetResourceVersion(obj.GetResourceVersion())
	if err := c.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(patch), client.FieldOwner(manager), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply status of %s %s/%s as %s: %w", gvk.Kind, obj.GetNamespace(), obj.GetName(), manager, err)
	}
	status, _, err := unstructured.NestedMap(patch.Object, "status")
	if err != nil {
		return fmt.Errorf("read the answer to a status apply: %w", err)
	}
	var fresh S
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(status, &fresh); err != nil {
		return fmt.Errorf("read the answer to a status apply: %w", err)
	}
	*current = fresh
	obj.SetResourceVersion(patch.GetResourceVersion())
	return nil
}

// project is the slice of a status as JSON data; the whole of it when slice is nil.
func project(status any, slice *v1alpha1.StatusSlice) (map[string]any, error) {
	all, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err != nil {
		return nil, fmt.Errorf("convert %T: %w", status, err)
	}
	if slice == nil {
		return all, nil
	}
	mine := map[string]any{}
	for _, name := range slice.Fields {
		if value, ok := all[name]; ok {
			mine[name] = value
		}
	}
	conditions, _, err := unstructured.NestedSlice(all, "conditions")
	if err != nil {
		return nil, fmt.Errorf("read conditions of %T: %w", status, err)
	}
	owned := []any{}
	for _, condition := range conditions {
		name, _, _ := unstructured.NestedString(condition.(map[string]any), "type")
		if slices.Contains(slice.Conditions, name) {
			owned = append(owned, condition)
		}
	}
	// The order of conditions means nothing and differs between writers.
	slices.SortFunc(owned, func(a, b any) int {
		return compareType(a.(map[string]any), b.(map[string]any))
	})
	if len(owned) > 0 {
		mine["conditions"] = owned
	}
	return mine, nil
}

func compareType(a, b map[string]any) int {
	x, _ := a["type"].(string)
	y, _ := b["type"].(string)
	return cmp.Compare(x, y)
}
