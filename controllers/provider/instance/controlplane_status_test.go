package instance

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

func TestA22_ThreeStatusWritersLoseNothing(t *testing.T) {
	const rounds = 100
	s := newBed(t, fake.Behaviour{})
	px := s.proxy("px")
	condition := func(kind string, n int) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Round", Message: fmt.Sprint(n), LastTransitionTime: metav1.NewTime(s.clock.Now())}
	}
	writers := map[string]func(status *v1alpha1.ProxyStatus, n int){
		v1alpha1.ManagerCore: func(status *v1alpha1.ProxyStatus, n int) {
			status.ObservedGeneration = int64(n)
			status.Health = &v1alpha1.Health{InstanceID: fmt.Sprint(n)}
			meta.SetStatusCondition(&status.Conditions, condition(v1alpha1.ConditionHealthy, n))
			meta.SetStatusCondition(&status.Conditions, condition(v1alpha1.ConditionReady, n))
		},
		s.manager: func(status *v1alpha1.ProxyStatus, n int) {
			status.Instance = &v1alpha1.Instance{Name: "i", ID: fmt.Sprint(n), Addresses: []string{"10.0.0.1"}}
			meta.SetStatusCondition(&status.Conditions, condition(v1alpha1.ConditionProvisioned, n))
			if n%2 == 0 {
				meta.SetStatusCondition(&status.Conditions, condition(v1alpha1.ConditionUpToDate, n))
			} else {
				meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionUpToDate)
			}
		},
		v1alpha1.ManagerLeasing: func(status *v1alpha1.ProxyStatus, n int) {
			until := metav1.NewTime(s.clock.Now())
			status.Cooldowns = []v1alpha1.Cooldown{{Target: "a.example", Hits: int32(n), UntilTime: &until}}
		},
	}
	var group sync.WaitGroup
	for name, change := range writers {
		group.Go(func() {
			for n := 1; n <= rounds; n++ {
				for {
					now := &v1alpha1.Proxy{}
					if err := s.client.Get(context.Background(), client.ObjectKeyFromObject(px), now); err != nil {
						t.Error(err)
						return
					}
					next := now.Status.DeepCopy()
					change(next, n)
					err := statusapply.Proxy(context.Background(), s.client, name, now, next)
					if err == nil {
						break
					}
					if !apierrors.IsConflict(err) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	group.Wait()
	now := s.get(px)
	status, last := now.Status, fmt.Sprint(rounds)
	if status.ObservedGeneration != rounds || status.Health.InstanceID != last || status.Instance.ID != last || status.Cooldowns[0].Hits != rounds || status.Binding == nil {
		t.Errorf("something was lost: %+v", status)
	}
	for _, kind := range []string{v1alpha1.ConditionHealthy, v1alpha1.ConditionReady, v1alpha1.ConditionProvisioned, v1alpha1.ConditionUpToDate} {
		if c := meta.FindStatusCondition(status.Conditions, kind); c == nil || c.Message != last {
			t.Errorf("%s is %+v", kind, c)
		}
	}
	var owners []string
	for _, entry := range now.ManagedFields {
		if entry.Subresource == "status" {
			owners = append(owners, entry.Manager)
		}
	}
	slices.Sort(owners)
	if want := []string{v1alpha1.ManagerCore, v1alpha1.ManagerLeasing, s.manager}; !slices.Equal(owners, want) {
		t.Errorf("status is owned by %v, want %v", owners, want)
	}
}

func TestA24_NothingChangedNothingWritten(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	px := s.running("px")
	s.run(px, 20*time.Minute, nil)
	before := s.get(px)
	writes := 0
	counting := interceptor.NewClient(s.client, interceptor.Funcs{
		SubResourceApply: func(ctx context.Context, c client.Client, sub string, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
			writes++
			return c.SubResource(sub).Apply(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			writes++
			return c.Patch(ctx, obj, patch, opts...)
		},
	})
	r, mutations := s.newReconciler(counting), s.cloud.Mutations()
	for range 50 {
		if _, err := r.Reconcile(t.Context(), requestFor(px)); err != nil {
			t.Fatal(err)
		}
		s.clock.Step(providers.DefaultSlow)
	}
	if after := s.get(px); after.ResourceVersion != before.ResourceVersion || writes != 0 {
		t.Errorf("%d writes, resourceVersion %s, then %s", writes, before.ResourceVersion, after.ResourceVersion)
	}
	if n := s.cloud.Mutations(); n != mutations {
		t.Errorf("%d calls changed something", n-mutations)
	}
}

func TestA25_AChangingErrorTextIsWrittenOnce(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	px := s.proxy("px")
	s.cloud.Hook(fake.MethodGet, func(fake.Call) {
		s.cloud.Fail(fake.MethodGet, fmt.Errorf("request %d failed", len(s.cloud.Calls())))
	})
	s.run(px, 5*time.Second, nil)
	first := s.get(px)
	if c := s.condition(px, v1alpha1.ConditionProvisioned); c.Status != metav1.ConditionUnknown || c.Reason != v1alpha1.ReasonProviderUnreachable {
		t.Errorf("Provisioned is %+v", c)
	}
	s.run(px, time.Minute, nil)
	if now := s.get(px); now.ResourceVersion != first.ResourceVersion {
		t.Error("the status was written again")
	}
	s.cloud.Hook(fake.MethodGet, nil)
	s.run(px, time.Hour, s.provisioned(px))
}
