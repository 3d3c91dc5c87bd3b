package instance

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// counted is a client that counts what it writes: statuses and finalizers.
func (s *bed) counted(n *atomic.Int64) client.Client {
	return interceptor.NewClient(s.client, interceptor.Funcs{
		SubResourceApply: func(ctx context.Context, c client.Client, sub string, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
			n.Add(1)
			return c.SubResource(sub).Apply(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			n.Add(1)
			return c.Patch(ctx, obj, patch, opts...)
		},
	})
}

// The writes of a start are what a fleet's size multiplies: the finalizer with the first intent, each state the instance is
// seen in, and the operation of a provider that has one.
func TestStartIsFewWrites(t *testing.T) {
	for name, test := range map[string]struct {
		cloud fake.Behaviour
		want  int64
	}{
		"runs at once":      {fake.Behaviour{}, 2},
		"takes a while":     {fake.Behaviour{Start: 20 * time.Second}, 3},
		"with an operation": {fake.Behaviour{Operations: true}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			s := newBed(t, test.cloud)
			var writes atomic.Int64
			r := s.newReconciler(s.counted(&writes))
			first := s.running("first") // the class has its finalizer now
			px := s.proxy("px")
			s.runWith(r, px, time.Minute, s.provisioned(px))
			if got := writes.Load(); got != test.want {
				t.Errorf("%d writes, want %d", got, test.want)
			}
			record := s.get(px).Status.Instance
			if record.SubmittedTime == nil {
				t.Error("that the attempt was accepted was never written")
			}
			if (record.Operation != "") != test.cloud.Operations {
				t.Errorf("operation %q", record.Operation)
			}
			if n := s.cloud.Count(fake.MethodCreate); n != 2 {
				t.Errorf("%d Creates for two Proxies", n)
			}
			// The memory of the attempt goes with the need for it.
			for _, r := range []*Reconciler{r, s.Reconciler} {
				for _, px := range []*v1alpha1.Proxy{first, px} {
					if a := r.accepted.of(client.ObjectKeyFromObject(px)); a.proxy != nil {
						t.Errorf("%s is still remembered", px.Name)
					}
				}
			}
		})
	}
}
