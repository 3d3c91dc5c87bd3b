package kubelettest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// collectPeriod is the time between two looks for garbage.
const collectPeriod = 500 * time.Millisecond

// Garbage collects the objects of one namespace whose controller is gone, as a cluster's controller manager does.
type Garbage struct {
	client    client.Client
	namespace string
	kinds     []schema.GroupVersionKind
	collected map[schema.GroupVersionKind]*atomic.Int64
}

// CollectGarbage starts a collection that lives as long as the test. It deletes objects of the given kinds whose
// controller, of one of these kinds too, no longer exists; in the background, without looking at finalizers.
func CollectGarbage(t testing.TB, config *rest.Config, namespace string, kinds ...schema.GroupVersionKind) *Garbage {
	t.Helper()
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := &Garbage{client: c, namespace: namespace, kinds: kinds, collected: map[schema.GroupVersionKind]*atomic.Int64{}}
	for _, kind := range kinds {
		g.collected[kind] = &atomic.Int64{}
	}
	background(t, "test garbage collection", collectPeriod, g.sweep)
	return g
}

// Collected is how many objects of a kind were deleted so far.
func (g *Garbage) Collected(kind schema.GroupVersionKind) int64 { return g.collected[kind].Load() }

// sweep lists everything twice. An object is made after its owner, and UIDs never come back, so an owner that the second
// list lacks is gone.
func (g *Garbage) sweep(ctx context.Context) error {
	dependents, err := g.list(ctx)
	if err != nil {
		return err
	}
	owners, err := g.list(ctx)
	if err != nil {
		return err
	}
	present := map[types.UID]bool{}
	for i := range owners {
		present[owners[i].UID] = true
	}
	for i := range dependents {
		object := &dependents[i]
		owner := metav1.GetControllerOf(object)
		if owner == nil || present[owner.UID] || !g.watched(owner) || object.DeletionTimestamp != nil {
			continue
		}
		err := g.client.Delete(ctx, object, client.Preconditions{UID: &object.UID}, client.PropagationPolicy(metav1.DeletePropagationBackground))
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete %s %s: %w", object.Kind, object.Name, err)
		}
		g.collected[object.GroupVersionKind()].Add(1)
	}
	return nil
}

func (g *Garbage) watched(owner *metav1.OwnerReference) bool {
	_, ok := g.collected[schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind)]
	return ok
}

func (g *Garbage) list(ctx context.Context) ([]metav1.PartialObjectMetadata, error) {
	var all []metav1.PartialObjectMetadata
	for _, kind := range g.kinds {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := g.client.List(ctx, list, client.InNamespace(g.namespace)); err != nil {
			return nil, fmt.Errorf("list %s: %w", kind.Kind, err)
		}
		for i := range list.Items {
			list.Items[i].SetGroupVersionKind(kind)
			all = append(all, list.Items[i])
		}
	}
	return all, nil
}
