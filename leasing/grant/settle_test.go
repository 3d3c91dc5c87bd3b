package grant

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// A write that was not answered may be carried out later, whatever the API server says to the same write sent again.
func TestARefusalSettlesNoEarlierWrite(t *testing.T) {
	refusals := map[string]error{
		"busy":      apierrors.NewTooManyRequests("busy", 1),
		"forbidden": apierrors.NewForbidden(v1alpha1.SchemeGroupVersion.WithResource("proxyleases").GroupResource(), "x", errors.New("quota")),
	}
	for name, refusal := range refusals {
		for _, way := range []string{"create", "bind"} {
			t.Run(way+", then "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var calls atomic.Int32
					var late func() error
					meet := func(write func() error) error {
						switch calls.Add(1) {
						case 1:
							late = write
							return errors.New("connection reset by peer")
						case 2, 3:
							return refusal
						}
						return write()
					}
					px := fixture.Proxy("team", "p", fixture.Capacity(1))
					lease := fixture.Lease("team", "l")
					objects := []client.Object{px}
					if way == "bind" {
						objects = append(objects, lease)
					}
					p := newPipeline(t, interceptor.Funcs{
						Create: func(_ context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
							return meet(func() error {
								o.SetUID("team-l")
								return c.Create(context.Background(), o, opts...)
							})
						},
						SubResourceApply: func(_ context.Context, c client.Client, sub string, o runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
							return meet(func() error { return c.SubResource(sub).Apply(context.Background(), o, opts...) })
						},
					}, objects...)
					done := make(chan error, 1)
					go func() {
						var err error
						if way == "create" {
							want := wanted("team", "l")
							_, err = p.Create(context.Background(), want, p.reserved(t, want), 60, true)
						} else {
							_, err = p.Bind(context.Background(), lease.UID, p.reserved(t, lease), 60)
						}
						done <- err
					}()
					<-time.After(100 * time.Millisecond)
					synctest.Wait()
					if calls.Load() < 2 || p.Ledger.Load(px.UID) != 1 {
						t.Fatalf("after %d calls the slot is free, and the first one may still be carried out", calls.Load())
					}
					if err := late(); err != nil {
						t.Fatal(err)
					}
					if err := <-done; err != nil || p.Ledger.Load(px.UID) != 1 {
						t.Fatalf("got %v, load %d", err, p.Ledger.Load(px.UID))
					}
				})
			})
		}
	}
}

// A refusal is believed when the write before it, which was not answered, is too long ago to be carried out.
func TestARefusalSettlesWhatIsLongAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		px := fixture.Proxy("team", "p", fixture.Capacity(1))
		p := newPipeline(t, interceptor.Funcs{
			Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
				if calls.Add(1) == 1 {
					return errors.New("connection reset by peer")
				}
				return apierrors.NewForbidden(v1alpha1.SchemeGroupVersion.WithResource("proxyleases").GroupResource(), "x", errors.New("quota"))
			},
		}, px)
		want := wanted("team", "l")
		if _, err := p.Create(t.Context(), want, p.reserved(t, want), 60, true); !errors.Is(err, ErrUnknown) {
			t.Fatal(err)
		}
		<-time.After(settledAfter - answerWithin - time.Second)
		if p.Ledger.Load(px.UID) != 1 {
			t.Fatal("the slot is free too early")
		}
		<-time.After(backoffMax + 2*time.Second)
		if p.Ledger.Load(px.UID) != 0 {
			t.Fatal("the slot is never free")
		}
	})
}

// Whatever is being repeated when its context ends: it has not succeeded.
func TestR9_ACancelledRetryIsNotASuccess(t *testing.T) {
	exclusiveLease := fixture.Lease("team", "l", func(l *v1alpha1.ProxyLease) { l.Spec.Mode = v1alpha1.LeaseExclusive })
	conflict := apierrors.NewConflict(v1alpha1.SchemeGroupVersion.WithResource("proxyleases").GroupResource(), "l", errors.New("changed"))
	for name, problem := range map[string]error{
		"no answer": errors.New("connection reset by peer"),
		"conflict":  conflict,
		"error":     apierrors.NewInternalError(errors.New("etcd")),
		"busy":      apierrors.NewTooManyRequests("busy", 1),
	} {
		for way, do := range map[string]func(ctx context.Context, p *Pipeline, r ledger.Reservation) error{
			"create": func(ctx context.Context, p *Pipeline, r ledger.Reservation) error {
				_, err := p.Create(ctx, wanted("team", "l"), r, 60, true)
				return err
			},
			"bind": func(ctx context.Context, p *Pipeline, r ledger.Reservation) error {
				_, err := p.Bind(ctx, exclusiveLease.UID, r, 60)
				return err
			},
			"status": func(ctx context.Context, p *Pipeline, _ ledger.Reservation) error {
				_, err := p.Update(ctx, client.ObjectKeyFromObject(exclusiveLease), exclusiveLease.UID, func(l *v1alpha1.ProxyLease) *v1alpha1.ProxyLeaseStatus {
					return record.Waiting(l, v1alpha1.ReasonNoProxy, "x", time.Now())
				})
				return err
			},
			"claim": func(ctx context.Context, p *Pipeline, r ledger.Reservation) error {
				return p.Claim(ctx, exclusiveLease, r.Binding)
			},
			"release": func(ctx context.Context, p *Pipeline, _ ledger.Reservation) error {
				_, err := p.Release(ctx, exclusiveLease)
				return err
			},
		} {
			if name == "conflict" && (way == "create" || way == "release") {
				continue // says that it exists, or that only a namesake is left
			}
			t.Run(way+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newPipeline(t, interceptor.Funcs{
						Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return problem },
						Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return problem },
						Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
							<-time.After(10 * time.Millisecond)
							if ctx.Err() != nil {
								return ctx.Err()
							}
							return c.Get(ctx, key, o, opts...)
						},
						SubResourceApply: func(ctx context.Context, _ client.Client, _ string, _ runtime.ApplyConfiguration, _ ...client.SubResourceApplyOption) error {
							<-time.After(10 * time.Millisecond)
							return problem
						},
					}, fixture.Proxy("team", "p"), exclusiveLease.DeepCopy())
					base, stop := context.WithCancel(context.Background())
					p.Base = base
					r := p.reserved(t, exclusiveLease)
					ctx, cancel := context.WithCancel(context.Background())
					time.AfterFunc(3*time.Second, cancel)
					if err := do(ctx, p, r); err == nil {
						t.Error("reported as a success")
					}
					stop()
					p.Drain(context.Background())
				})
			})
		}
	}
}
