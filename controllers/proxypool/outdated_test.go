package proxypool

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// A leader that was held up for a while and goes on knows an old number of replicas, while the members that its successor
// made or took away are in its cache already. Before it hears of the rest it must neither make nor delete any.
func TestOutdatedPoolNeitherGrowsNorShrinks(t *testing.T) {
	for name, numbers := range map[string]struct{ before, after int32 }{
		"scaled up meanwhile": {2, 8}, "scaled down meanwhile": {8, 2},
	} {
		t.Run(name, func(t *testing.T) {
			pool := livePool("default", numbers.before)
			pool.Generation = 1
			successor, server, clk := newFakePool(t, pool, &faults{})
			c := interceptor.NewClient(server.(client.WithWatch), interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
					obj.SetUID(uuid.NewUUID())
					return c.Create(ctx, obj, opts...)
				},
			})
			successor.Client = c
			settle := func(r *Reconciler) {
				for range 6 {
					if _, err := reconcilePool(t, r, pool); err != nil {
						t.Fatal(err)
					}
					clk.SetTime(clk.Now().Add(3 * time.Second))
				}
			}
			settle(successor)
			known := &v1alpha1.ProxyPool{}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(pool), known); err != nil {
				t.Fatal(err)
			}
			scaled := known.DeepCopy()
			scaled.Spec.Replicas, scaled.Generation = &numbers.after, 2
			if err := c.Update(t.Context(), scaled); err != nil {
				t.Fatal(err)
			}
			settle(successor)
			want := membersNow(t, c)
			if len(want) != int(numbers.after) {
				t.Fatalf("%d members, want %d", len(want), numbers.after)
			}

			cache := interceptor.NewClient(c, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
					if into, ok := obj.(*v1alpha1.ProxyPool); ok {
						known.DeepCopyInto(into)
						return nil
					}
					return c.Get(ctx, key, obj, opts...)
				},
			})
			old := &Reconciler{Options: Options{Clock: clk}, Client: cache, APIReader: c, Recorder: events.NewFakeRecorder(1000)}
			result, err := reconcilePool(t, old, pool)
			if err != nil || result.RequeueAfter == 0 {
				t.Errorf("the outdated manager: %+v, %v, want another look soon", result, err)
			}
			got := membersNow(t, c)
			for uid := range want {
				if !got[uid] {
					t.Errorf("member %s was deleted", uid)
				}
			}
			if len(got) != len(want) {
				t.Errorf("%d members, want %d", len(got), len(want))
			}
		})
	}
}

// membersNow are the names of all Proxies, with what tells namesakes apart.
func membersNow(t *testing.T, c client.Client) map[string]bool {
	t.Helper()
	list := &v1alpha1.ProxyList{}
	if err := c.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for i := range list.Items {
		out[list.Items[i].Name+" "+string(list.Items[i].UID)] = true
	}
	return out
}
