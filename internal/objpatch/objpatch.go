// Package objpatch changes the metadata and the spec of objects that have several writers.
//
// A change is a JSON patch that carries the resourceVersion it was decided on, so that it never lands on a newer object or
// on a re-created namesake: the API server answers 409 instead. Statuses are written by statusapply only.
package objpatch

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Op is one operation of a JSON patch (RFC 6902). A "remove" needs the path to exist.
type Op struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Set makes the operation that adds or replaces what is at path.
func Set(path string, value any) Op { return Op{Op: "add", Path: path, Value: value} }

// Remove makes the operation that takes away what is at path.
func Remove(path string) Op { return Op{Op: "remove", Path: path} }

// Apply patches obj as it was read. On success obj is as the API server answered. The error is the API server's, so that
// IsConflict and IsNotFound work on it; a conflict means: read again and decide again.
func Apply(ctx context.Context, c client.Client, obj client.Object, ops ...Op) error {
	if len(ops) == 0 {
		return nil
	}
	ops = append(slices.Clone(ops), Op{Op: "replace", Path: "/metadata/resourceVersion", Value: obj.GetResourceVersion()})
	data, err := json.Marshal(ops)
	if err != nil {
		return fmt.Errorf("marshal patch of %s: %w", client.ObjectKeyFromObject(obj), err)
	}
	if err := c.Patch(ctx, obj, client.RawPatch(types.JSONPatchType, data)); err != nil {
		return fmt.Errorf("patch %T %s: %w", obj, client.ObjectKeyFromObject(obj), err)
	}
	return nil
}

// Finalizers replaces the finalizers of obj, if they differ from what it has.
func Finalizers(ctx context.Context, c client.Client, obj client.Object, finalizers []string) error {
	if slices.Equal(obj.GetFinalizers(), finalizers) {
		return nil
	}
	if len(finalizers) == 0 {
		return Apply(ctx, c, obj, Remove("/metadata/finalizers"))
	}
	return Apply(ctx, c, obj, Set("/metadata/finalizers", finalizers))
}
