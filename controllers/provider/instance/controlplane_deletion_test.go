package instance

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

func TestA9_TwoManagersAndStaleReads(t *testing.T) {
	const proxies = 8
	s := newBed(t, fake.Behaviour{Visible: 4 * time.Second, Start: 8 * time.Second, Stop: 4 * time.Second})
	var all []*v1alpha1.Proxy
	for n := range proxies {
		all = append(all, s.proxy(fmt.Sprintf("px-%d", n)))
	}
	one, two := s.newReconciler(s.client), s.newReconciler(s.lagging(3))
	race := func(rounds int) {
		for range rounds {
			var group sync.WaitGroup
			for _, px := range all {
				for _, r := range []*Reconciler{one, two} {
					// Errors are part of it: each is a conflict that keeps the stale one from acting.
					group.Go(func() { _, _ = r.Reconcile(context.Background(), requestFor(px)) })
				}
			}
			group.Wait()
			s.clock.Step(2 * time.Second)
		}
	}
	race(20)
	s.wantInstances(proxies)
	for _, px := range all {
		s.run(px, time.Hour, s.provisioned(px))
		s.must(s.client.Delete(t.Context(), px))
	}
	race(90)
	s.wantInstances(0)
	for _, px := range all {
		s.run(px, time.Hour, s.gone(px))
	}
	s.wantInstances(0)
}

// lagging gives a client whose reads of Proxies are some versions old.
func (s *bed) lagging(versions int) client.Client {
	var mu sync.Mutex
	history := map[string][]*v1alpha1.Proxy{}
	return interceptor.NewClient(s.client, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			px, ok := obj.(*v1alpha1.Proxy)
			if !ok {
				return c.Get(ctx, key, obj, opts...)
			}
			now := &v1alpha1.Proxy{}
			err := c.Get(ctx, key, now, opts...)
			mu.Lock()
			defer mu.Unlock()
			seen := history[key.Name]
			if err == nil && (len(seen) == 0 || seen[len(seen)-1].ResourceVersion != now.ResourceVersion) {
				seen = append(seen, now)
				history[key.Name] = seen
			}
			if len(seen) == 0 {
				return err
			}
			// A cache may also still have what is gone.
			seen[max(0, len(seen)-1-versions)].DeepCopyInto(px)
			return nil
		},
	})
}

func TestA10_DeletedMidCreateLeaksNothing(t *testing.T) {
	for name, behaviour := range map[string]fake.Behaviour{
		"visible at once": {Stop: 5 * time.Second},
		"visible late":    {Visible: time.Minute, Start: 90 * time.Second, Stop: 20 * time.Second},
	} {
		for _, lost := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s, %d replies lost", name, lost), func(t *testing.T) {
				s := newBed(t, behaviour)
				px := s.proxy("px")
				s.cloud.LoseReply(fake.MethodCreate, lost)
				var once sync.Once
				s.cloud.Hook(fake.MethodCreate, func(fake.Call) {
					once.Do(func() { s.must(s.client.Delete(context.Background(), px)) })
				})
				s.run(px, time.Minute, func() bool { return s.cloud.Count(fake.MethodCreate) > 0 })
				s.wantInstances(1)
				s.run(px, time.Hour, s.gone(px))
				s.wantInstances(0)
			})
		}
	}
}

// remove takes a Proxy away with its finalizers on, as the API server does when a finalizer is stored during a deletion.
func (s *bed) remove(px *v1alpha1.Proxy) {
	s.t.Helper()
	now := s.get(px)
	now.Finalizers = nil
	s.must(s.client.Update(context.Background(), now))
	s.must(client.IgnoreNotFound(s.client.Delete(context.Background(), now)))
}

func TestA10_AProxyThatGoesWithoutReleaseLeaksNothing(t *testing.T) {
	for name, behaviour := range map[string]fake.Behaviour{"visible at once": {}, "visible late": {Visible: time.Minute, Stop: 10 * time.Second}} {
		t.Run(name+", during Create", func(t *testing.T) {
			s := newBed(t, behaviour)
			px := s.proxy("px")
			s.cloud.Hook(fake.MethodCreate, func(fake.Call) { s.remove(px) })
			s.run(px, time.Hour, func() bool { return s.cloud.Count(fake.MethodCreate) == 1 && len(s.cloud.Instances()) == 0 })
		})
		t.Run(name+", after Create", func(t *testing.T) {
			s := newBed(t, behaviour)
			px := s.running("px")
			queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
			defer queue.ShutDown()
			s.remove(px)
			s.onDelete(t.Context(), event.DeleteEvent{Object: px}, queue)
			if queue.Len() != 1 {
				t.Fatal("its deletion wakes nobody")
			}
			// A namesake that was made since is another Proxy.
			next := s.running("px")
			s.run(next, 10*time.Minute, nil)
			if left := s.cloud.Instances(); len(left) != 1 || left[0].Owner.UID != next.UID {
				t.Errorf("left %+v", left)
			}
		})
	}
	t.Run("a Proxy that only left the cache is spared", func(t *testing.T) {
		s := newBed(t, fake.Behaviour{})
		px := s.running("px")
		s.lost.note(px.DeepCopy())
		s.run(px, 10*time.Minute, nil)
		s.wantInstances(1)
		if n := s.cloud.Count(fake.MethodDelete); n != 0 {
			t.Errorf("%d Deletes", n)
		}
	})
}

func TestA11_ReleasedOnlyAfterNotFoundTwice(t *testing.T) {
	s := newBed(t, fake.Behaviour{Stop: 30 * time.Second})
	px := s.running("px")
	s.clock.Step(10 * time.Minute)
	s.cloud.Fail(fake.MethodDelete, providers.NewError(providers.Unavailable, "", "", nil))
	s.must(s.client.Delete(t.Context(), px))
	gets := 0
	s.run(px, time.Hour, func() bool {
		if len(s.cloud.Instances()) > 0 {
			gets = s.cloud.Count(fake.MethodGet)
			if s.get(px) == nil {
				t.Fatal("released while the instance is there")
			}
		}
		return s.gone(px)()
	})
	if n := s.cloud.Count(fake.MethodGet) - gets; n < 2 {
		t.Errorf("released after %d looks at nothing, want 2", n)
	}
}

func TestA13_DeletionWithoutCredentialsSaysSoAndRecovers(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	px := s.running("px")
	s.cloud.Down(providers.NewError(providers.Auth, "", "", nil))
	before := len(s.cloud.Calls())
	s.must(s.client.Delete(t.Context(), px))
	s.run(px, 10*time.Minute, nil)
	c := s.condition(px, v1alpha1.ConditionCleanupBlocked)
	if c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonAuthFailed {
		t.Errorf("CleanupBlocked is %+v", c)
	}
	if n := len(s.cloud.Calls()) - before; n > 15 {
		t.Errorf("%d calls in ten minutes", n)
	}
	s.cloud.Down(nil)
	s.run(px, time.Hour, s.gone(px))
	s.wantInstances(0)
}

func TestA14_SkipCleanupMakesNoCall(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	px := s.running("px", func(px *v1alpha1.Proxy) {
		px.Annotations = map[string]string{v1alpha1.AnnotationSkipCleanup: "true"}
	})
	s.must(s.client.Delete(t.Context(), px))
	before, calls := s.get(px), len(s.cloud.Calls())
	for range 3 {
		if result, err := s.Reconcile(t.Context(), requestFor(px)); err != nil || result.RequeueAfter != 0 {
			t.Errorf("got %+v, %v", result, err)
		}
	}
	if n := len(s.cloud.Calls()); n != calls {
		t.Errorf("%d calls were made", n-calls)
	}
	if after := s.get(px); after.ResourceVersion != before.ResourceVersion {
		t.Error("the Proxy was written; core releases it")
	}
	s.wantInstances(1)
}

// TestDrainKeepsTheInstance: while core holds a deleted Proxy for its leases, its instance stays; then it goes.
func TestDrainKeepsTheInstance(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	px := s.running("px", func(px *v1alpha1.Proxy) { px.Finalizers = []string{v1alpha1.FinalizerLeaseDrain} })
	s.must(s.client.Delete(t.Context(), px))
	before, calls := s.get(px), len(s.cloud.Calls())
	s.run(px, 20*time.Minute, nil)
	if n := len(s.cloud.Calls()); n != calls {
		t.Errorf("%d calls were made during the drain", n-calls)
	}
	if after := s.get(px); after.ResourceVersion != before.ResourceVersion {
		t.Error("the Proxy was written during the drain")
	}
	s.wantInstances(1)

	drained := s.get(px)
	drained.Finalizers = slices.DeleteFunc(drained.Finalizers, func(f string) bool { return f == v1alpha1.FinalizerLeaseDrain })
	s.must(s.client.Update(t.Context(), drained))
	s.run(px, 20*time.Minute, s.gone(px))
	s.wantInstances(0)
}

func TestClassGone_KeepsTheInstanceAndSaysTheWayOut(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	px := s.running("px")
	class := &v1alpha1.ProviderClass{}
	s.must(s.client.Get(t.Context(), client.ObjectKeyFromObject(s.class), class))
	class.Finalizers = nil
	s.must(s.client.Update(t.Context(), class))
	s.must(s.client.Delete(t.Context(), class))
	s.run(px, 20*time.Minute, nil)
	if !s.provisioned(px)() || len(s.get(px).Status.Instance.Addresses) != 1 {
		t.Errorf("got %+v", s.get(px).Status)
	}
	s.must(s.client.Delete(t.Context(), px))
	s.run(px, 20*time.Minute, nil)
	if c := s.condition(px, v1alpha1.ConditionCleanupBlocked); c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonClassNotFound {
		t.Errorf("CleanupBlocked is %+v", c)
	}
	s.wantInstances(1)
}
