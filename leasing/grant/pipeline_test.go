package grant

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
)

// newPipeline is a pipeline over an API server in memory that funcs interfere with.
func newPipeline(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) *Pipeline {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.Proxy{}, &v1alpha1.ProxyLease{}).WithInterceptorFuncs(funcs).Build()
	l := ledger.New(nil)
	l.Open()
	for _, o := range objects {
		if px, ok := o.(*v1alpha1.Proxy); ok {
			l.ObserveProxy(px)
		}
	}
	l.Start(1, "")
	base, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	return &Pipeline{
		Client: c, Live: c, Ledger: l, Clock: clock.RealClock{}, Log: logr.Discard(), Base: base, Leads: func() bool { return true },
	}
}

func (p *Pipeline) reserved(t *testing.T, lease *v1alpha1.ProxyLease) ledger.Reservation {
	t.Helper()
	r, err := p.Ledger.Reserve(ledger.Request{
		Lease: client.ObjectKeyFromObject(lease), UID: lease.UID, Holder: "h", Selector: labels.Everything(), Mode: v1alpha1.LeaseShared,
	}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wanted(namespace, name string) *v1alpha1.ProxyLease {
	return fixture.Lease(namespace, name, func(l *v1alpha1.ProxyLease) { l.UID, l.ResourceVersion = "", "" })
}

// Creations that are not answered do not keep others from being written, however many they are.
func TestUnansweredWritesDoNotHoldOthersUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipeline(t, interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				if o.GetNamespace() == "bad" {
					return apierrors.NewInternalError(errors.New("failed calling webhook"))
				}
				o.SetUID(types.UID(o.GetName()))
				return c.Create(ctx, o, opts...)
			},
		}, fixture.Proxy("bad", "p"), fixture.Proxy("good", "p"))
		base, stop := context.WithCancel(context.Background())
		p.Base = base
		for i := range 2 * writers {
			want := wanted("bad", fmt.Sprint("l", i))
			r := p.reserved(t, want)
			go func() { _, _ = p.Create(base, want, r, 300, false) }()
		}
		synctest.Wait()
		want := wanted("good", "l")
		start := time.Now()
		if _, err := p.Create(base, want, p.reserved(t, want), 300, false); err != nil || time.Since(start) > time.Second {
			t.Fatalf("after %s: %v", time.Since(start), err)
		}
		stop()
		synctest.Wait()
	})
}

// A write whose requester gave up before its turn came is never sent, and its slot is free.
func TestWriteIsNotSentForARequesterWhoGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int32
		p := newPipeline(t, interceptor.Funcs{
			Create: func(ctx context.Context, _ client.WithWatch, _ client.Object, _ ...client.CreateOption) error {
				sent.Add(1)
				<-ctx.Done()
				return ctx.Err()
			},
		}, fixture.Proxy("team", "p"))
		base, stop := context.WithCancel(context.Background())
		p.Base = base
		for i := range writers {
			want := wanted("team", fmt.Sprint("l", i))
			r := p.reserved(t, want)
			go func() { _, _ = p.Create(base, want, r, 300, false) }()
		}
		synctest.Wait()
		want := wanted("team", "late")
		r := p.reserved(t, want)
		ctx, giveUp := context.WithCancel(base)
		giveUp()
		if _, err := p.Create(ctx, want, r, 300, true); !errors.Is(err, ErrUnknown) {
			t.Fatal(err)
		}
		<-time.After(attemptTimeout + backoffMax)
		synctest.Wait()
		if _, ok := p.Ledger.Lookup(r.Lease); ok {
			t.Fatal("the slot is still taken")
		}
		if n := sent.Load(); n < writers {
			t.Fatalf("%d creations were sent", n)
		}
		stop()
		synctest.Wait()
	})
}

// Before each attempt to bind the leadership is asked for again: the first one may have taken longer than it lasts.
func TestBindIsNotRepeatedWithoutTheLeadership(t *testing.T) {
	px, lease := fixture.Proxy("team", "p"), fixture.Lease("team", "l")
	lease.ResourceVersion, px.ResourceVersion = "", ""
	var writes, asked atomic.Int32
	p := newPipeline(t, interceptor.Funcs{
		SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
			writes.Add(1)
			return apierrors.NewConflict(v1alpha1.SchemeGroupVersion.WithResource("proxyleases").GroupResource(), "l", errors.New("changed"))
		},
		SubResourceApply: func(context.Context, client.Client, string, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
			writes.Add(1)
			return apierrors.NewConflict(v1alpha1.SchemeGroupVersion.WithResource("proxyleases").GroupResource(), "l", errors.New("changed"))
		},
		SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
			writes.Add(1)
			return apierrors.NewConflict(v1alpha1.SchemeGroupVersion.WithResource("proxyleases").GroupResource(), "l", errors.New("changed"))
		},
	}, px, lease)
	p.Leads = func() bool { return asked.Add(1) <= 2 }
	// What was sent is settled by this process, should it be the leader again, or by its successor.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := p.Bind(ctx, lease.UID, p.reserved(t, lease), 300); !errors.Is(err, ErrUnknown) || p.Ledger.Load(px.UID) != 1 {
		t.Fatalf("%v, load %d", err, p.Ledger.Load(px.UID))
	}
	if n := writes.Load(); n != 1 {
		t.Fatalf("%d writes", n)
	}
}

// The proxy of an exclusive lease is free when its release is answered, although no watch has shown the lease, and although
// the watch shows its end first.
func TestAReleasedExclusiveLeaseHasLetGoOfItsProxy(t *testing.T) {
	for _, first := range []string{"the answer", "the event"} {
		t.Run(first+" comes first", func(t *testing.T) {
			var p *Pipeline
			var created *v1alpha1.ProxyLease
			p = newPipeline(t, interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
					o.SetUID("u")
					return c.Create(ctx, o, opts...)
				},
				Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
					err := c.Delete(ctx, o, opts...)
					if first == "the event" {
						p.Ledger.DeleteLease(created)
					}
					return err
				},
			}, fixture.Proxy("team", "p"))
			want := wanted("team", "l")
			want.Spec.Mode = v1alpha1.LeaseExclusive
			r, err := p.Ledger.Reserve(ledger.Request{
				Lease: client.ObjectKeyFromObject(want), Holder: "h", Selector: labels.Everything(), Mode: v1alpha1.LeaseExclusive,
			}, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if created, err = p.Create(t.Context(), want, r, 60, true); err != nil {
				t.Fatal(err)
			}
			key := types.NamespacedName{Namespace: "team", Name: "p"}
			if named := p.Ledger.Proxy(key, "").Status.Exclusive; named == nil || named.LeaseUID != created.UID {
				t.Fatalf("the proxy names %v", named)
			}
			if _, err := p.Release(t.Context(), fixture.Lease("team", "l", func(l *v1alpha1.ProxyLease) { l.UID = created.UID })); err != nil {
				t.Fatal(err)
			}
			stored := &v1alpha1.Proxy{}
			if err := p.Live.Get(t.Context(), key, stored); err != nil {
				t.Fatal(err)
			}
			if known := p.Ledger.Proxy(key, ""); stored.Status.Exclusive != nil || known.Status.Exclusive != nil {
				t.Errorf("it is stored that it names %v, and known that it names %v", stored.Status.Exclusive, known.Status.Exclusive)
			}
		})
	}
}
