package instance

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

// bed is a namespace and a class of a real API server, a fake cloud and a clock that the test moves.
type bed struct {
	t         *testing.T
	env       *testenv.Env
	client    client.WithWatch
	namespace string
	clock     *clocktesting.FakeClock
	cloud     *fake.Cloud
	class     *v1alpha1.ProviderClass
	*Reconciler
}

func newBed(t *testing.T, b fake.Behaviour) *bed {
	t.Helper()
	env := testenv.New(t)
	c, err := client.NewWithWatch(env.Config, client.Options{Scheme: manager.Scheme(), FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		t.Fatal(err)
	}
	clock := clocktesting.NewFakeClock(time.Now().Truncate(time.Second))
	s := &bed{t: t, env: env, client: c, namespace: env.Namespace(t), clock: clock, cloud: fake.NewCloud(clock, b)}
	s.class = &v1alpha1.ProviderClass{
		ObjectMeta: metav1.ObjectMeta{Name: s.namespace},
		Spec: v1alpha1.ProviderClassSpec{
			Type:              v1alpha1.ProviderKubernetes,
			AllowedNamespaces: v1alpha1.NamespaceAccess{From: v1alpha1.NamespacesFromAll},
		},
	}
	s.must(c.Create(t.Context(), s.class))
	s.Reconciler = s.newReconciler(c)
	return s
}

// newReconciler makes another process: only the API server and the cloud are shared.
func (s *bed) newReconciler(c client.Client) *Reconciler {
	set := providers.NewSet(&fake.Factory{Cloud: s.cloud}, providers.Runtime{ClusterID: "cluster", Clock: s.clock}, nil)
	return NewReconciler(c, s.client, events.NewFakeRecorder(1000), Options{
		Set: set, Clock: s.clock, ClusterID: "cluster", ControllerName: v1alpha1.DefaultControllerName, ResolveCredentials: true,
	})
}

func (s *bed) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// proxy stores a Proxy that core has bound to the class.
func (s *bed) proxy(name string, change ...func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
	s.t.Helper()
	px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	px.Spec.Provider = s.class.Name
	for _, f := range change {
		f(px)
	}
	s.must(s.client.Create(s.t.Context(), px))
	next := px.Status.DeepCopy()
	next.Binding = &v1alpha1.Binding{Type: v1alpha1.ProviderKubernetes, ClassName: s.class.Name, ClassUID: s.class.UID}
	s.must(statusapply.Proxy(s.t.Context(), s.client, v1alpha1.ManagerCore, px, next))
	return px
}

func requestFor(px *v1alpha1.Proxy) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKeyFromObject(px)}
}

// get reads a Proxy; nil when it is gone.
func (s *bed) get(px *v1alpha1.Proxy) *v1alpha1.Proxy {
	s.t.Helper()
	now := &v1alpha1.Proxy{}
	err := s.client.Get(context.Background(), client.ObjectKeyFromObject(px), now)
	if apierrors.IsNotFound(err) || (err == nil && now.UID != px.UID) {
		return nil
	}
	s.must(err)
	return now
}

// run reconciles as the work queue would, moving the clock by what each reconcile asks for, until done or for a time.
func (s *bed) run(px *v1alpha1.Proxy, limit time.Duration, done func() bool) {
	s.t.Helper()
	s.runWith(s.Reconciler, px, limit, done)
}

func (s *bed) runWith(r *Reconciler, px *v1alpha1.Proxy, limit time.Duration, done func() bool) {
	s.t.Helper()
	for end := s.clock.Now().Add(limit); s.clock.Now().Before(end); {
		result, err := r.Reconcile(s.t.Context(), requestFor(px))
		if done != nil && done() {
			return
		}
		step := result.RequeueAfter
		if err != nil {
			step = retryMin
		}
		if step == 0 {
			return
		}
		s.clock.Step(step)
	}
	if done != nil {
		s.t.Fatalf("not within %v; cloud: %+v, status: %+v", limit, s.cloud.Instances(), s.get(px))
	}
}

func (s *bed) provisioned(px *v1alpha1.Proxy) func() bool {
	return func() bool {
		now := s.get(px)
		return now != nil && meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionProvisioned)
	}
}

func (s *bed) gone(px *v1alpha1.Proxy) func() bool { return func() bool { return s.get(px) == nil } }

func (s *bed) running(name string, change ...func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
	s.t.Helper()
	px := s.proxy(name, change...)
	s.run(px, 30*time.Minute, s.provisioned(px))
	return s.get(px)
}

func (s *bed) condition(px *v1alpha1.Proxy, kind string) metav1.Condition {
	s.t.Helper()
	if c := meta.FindStatusCondition(s.get(px).Status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

func (s *bed) wantInstances(n int) {
	s.t.Helper()
	if got := s.cloud.Instances(); len(got) != n {
		s.t.Errorf("the cloud has %d instances, want %d: %+v", len(got), n, got)
	}
}

func TestA1_FinalizerAndIntentAreStoredBeforeCreate(t *testing.T) {
	s := newBed(t, fake.Behaviour{Start: 5 * time.Second})
	px := s.proxy("px")
	s.cloud.Hook(fake.MethodCreate, func(call fake.Call) {
		now := s.get(px)
		if !hasFinalizer(now, v1alpha1.FinalizerInstance(v1alpha1.ProviderKubernetes)) {
			t.Error("Create is called and the finalizer is not stored")
		}
		if i := now.Status.Instance; i == nil || i.IntentTime == nil || i.Name != call.Name || i.Attempt != 1 {
			t.Errorf("Create is called and the intent is not stored: %+v", i)
		}
		class := &v1alpha1.ProviderClass{}
		s.must(s.client.Get(context.Background(), client.ObjectKeyFromObject(s.class), class))
		if !hasFinalizer(class, v1alpha1.FinalizerClassInstances) {
			t.Error("Create is called and the class may go")
		}
	})
	s.run(px, time.Minute, s.provisioned(px))
	s.wantInstances(1)
	if n := s.cloud.Count(fake.MethodCreate); n != 1 {
		t.Errorf("%d Creates, want 1", n)
	}
	status := s.get(px).Status
	if i := status.Instance; i.State != "Running" || len(i.Addresses) != 1 || i.ID == "" || i.Hash == "" || i.Hash != i.DesiredHash {
		t.Errorf("got %+v", i)
	}
	if c := s.condition(px, v1alpha1.ConditionUpToDate); c.Status != metav1.ConditionTrue {
		t.Errorf("UpToDate is %+v", c)
	}
}

func TestA2_WhatIsNotOursIsNotTouched(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	other := s.proxy("other-type")
	next := other.Status.DeepCopy()
	next.Binding.Type = v1alpha1.ProviderGCP
	s.must(statusapply.Proxy(t.Context(), s.client, v1alpha1.ManagerCore, other, next))
	unbound := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "unbound"}}
	unbound.Spec.Provider = s.class.Name
	s.must(s.client.Create(t.Context(), unbound))
	foreign := s.newReconciler(s.client)
	foreign.ControllerName = "crawl.example.com/other"
	bound := s.proxy("other-installation")
	for _, c := range []struct {
		r  *Reconciler
		px *v1alpha1.Proxy
	}{{s.Reconciler, other}, {s.Reconciler, unbound}, {foreign, bound}} {
		before := s.get(c.px)
		if result, err := c.r.Reconcile(t.Context(), requestFor(c.px)); err != nil || result.RequeueAfter != 0 {
			t.Errorf("%s: got %+v, %v", c.px.Name, result, err)
		}
		if after := s.get(c.px); after.ResourceVersion != before.ResourceVersion {
			t.Errorf("%s was written", c.px.Name)
		}
	}
	if calls := s.cloud.Calls(); len(calls) != 0 {
		t.Errorf("calls %+v, want none", calls)
	}
}

// dying fails the status writes that a test chooses, as if the process had died before them.
func (s *bed) dying(dies func(px *v1alpha1.Proxy) bool) client.Client {
	return interceptor.NewClient(s.client, interceptor.Funcs{
		SubResourceApply: func(ctx context.Context, c client.Client, sub string, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
			now := &v1alpha1.Proxy{}
			name := obj.(interface{ GetName() string }).GetName()
			if err := c.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, now); err == nil && dies(now) {
				return context.Canceled
			}
			return c.SubResource(sub).Apply(ctx, obj, opts...)
		},
	})
}

func TestA3_CrashBetweenCreateAndStatus(t *testing.T) {
	for name, behaviour := range map[string]fake.Behaviour{"visible at once": {}, "visible late": {Visible: 20 * time.Second, Start: 30 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			s := newBed(t, behaviour)
			px := s.proxy("px")
			r := s.newReconciler(s.dying(func(*v1alpha1.Proxy) bool { return s.cloud.Count(fake.MethodCreate) > 0 }))
			s.runWith(r, px, time.Minute, func() bool { return s.cloud.Count(fake.MethodCreate) > 0 })
			if i := s.get(px).Status.Instance; i == nil || i.IntentTime == nil || i.SubmittedTime != nil {
				t.Fatalf("the crash did not happen where it should: %+v", i)
			}
			s.wantInstances(1)

			after := s.newReconciler(s.client)
			s.runWith(after, px, 10*time.Minute, s.provisioned(px))
			s.wantInstances(1)
		})
	}
}

func TestA4_CreateTimesOutAndSucceeded(t *testing.T) {
	s := newBed(t, fake.Behaviour{Visible: 10 * time.Second, Start: 20 * time.Second})
	s.cloud.LoseReply(fake.MethodCreate, 1)
	px := s.proxy("px")
	s.run(px, 10*time.Minute, s.provisioned(px))
	s.wantInstances(1)
	if attempt := s.get(px).Status.Instance.Attempt; attempt != 1 {
		t.Errorf("attempt %d, want 1", attempt)
	}
}

func TestA5_AcceptedAndNeverSeen(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	s.cloud.Vanish(2)
	px := s.proxy("px")
	reasons := map[string]bool{}
	s.run(px, time.Hour, func() bool {
		reasons[s.condition(px, v1alpha1.ConditionProvisioned).Reason] = true
		return s.provisioned(px)()
	})
	if !reasons[v1alpha1.ReasonCreateVanished] {
		t.Errorf("reasons %v lack CreateVanished", reasons)
	}
	if attempt := s.get(px).Status.Instance.Attempt; attempt != 3 {
		t.Errorf("attempt %d, want 3", attempt)
	}
	s.wantInstances(1)
}

func TestA7_OneSpuriousNotFoundChangesNothing(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	px := s.running("px")
	s.cloud.Miss(1)
	s.run(px, time.Minute, nil)
	now := s.get(px)
	if !s.provisioned(px)() || len(now.Status.Instance.Addresses) != 1 || now.Status.Instance.ID != px.Status.Instance.ID {
		t.Errorf("got %+v", now.Status)
	}
	s.cloud.Remove(now.Status.Instance.Name)
	s.run(px, time.Hour, func() bool {
		i := s.get(px).Status.Instance
		return s.provisioned(px)() && i.ID != px.Status.Instance.ID
	})
	s.wantInstances(1)
}

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

func TestA18_AnotherSpecificationReplacesTheInstance(t *testing.T) {
	s := newBed(t, fake.Behaviour{Start: 5 * time.Second, Stop: 20 * time.Second})
	px := s.running("px")
	first := *px.Status.Instance
	px.Spec.Port = 8888
	s.must(s.client.Update(t.Context(), px))
	cleared := false
	s.run(px, time.Hour, func() bool {
		i := s.get(px).Status.Instance
		if i.State == string(providers.StateTerminating) {
			cleared = cleared || len(i.Addresses) == 0
			if len(i.Addresses) > 0 {
				t.Errorf("terminating with address %v", i.Addresses)
			}
		}
		if len(s.cloud.Instances()) > 1 {
			t.Fatal("two instances at once")
		}
		return s.provisioned(px)() && i.ID != first.ID
	})
	if !cleared {
		t.Error("the address was never cleared")
	}
	if now := s.get(px).Status.Instance; now.Name != first.Name || now.Hash == first.Hash {
		t.Errorf("got %+v after %+v", now, first)
	}
	if request, _ := s.cloud.Request(first.Name); request.Spec.Port != 8888 {
		t.Errorf("made with port %d", request.Spec.Port)
	}
}

func TestA18_OnDeleteOnlyReports(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	px := s.running("px", func(px *v1alpha1.Proxy) { px.Spec.ReplacePolicy = v1alpha1.ReplaceOnDelete })
	px.Spec.Port = 8888
	s.must(s.client.Update(t.Context(), px))
	s.run(px, 20*time.Minute, nil)
	if c := s.condition(px, v1alpha1.ConditionUpToDate); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonSpecChanged {
		t.Errorf("UpToDate is %+v", c)
	}
	if now := s.get(px).Status.Instance; now.ID != px.Status.Instance.ID || !s.provisioned(px)() {
		t.Errorf("got %+v", now)
	}
	if n := s.cloud.Count(fake.MethodDelete); n != 0 {
		t.Errorf("%d Deletes", n)
	}
}

func TestA19_CloudInitFromASecret(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "user-data"},
		StringData: map[string]string{"data": "#cloud-config 1"},
	}
	px := s.proxy("px", func(px *v1alpha1.Proxy) {
		px.Spec.CloudInit = &v1alpha1.CloudInit{SecretKeyRef: &v1alpha1.SecretKeyRef{Name: "user-data", Key: "data"}}
	})
	label := func(value map[string]string) {
		t.Helper()
		s.must(s.client.Get(t.Context(), client.ObjectKeyFromObject(secret), secret))
		secret.Labels = value
		s.must(s.client.Update(t.Context(), secret))
	}
	labelled := map[string]string{v1alpha1.LabelCloudInit: "true"}

	// There is no Secret: no call, no finalizer.
	s.run(px, 20*time.Minute, nil)
	if c := s.condition(px, v1alpha1.ConditionCloudInitReady); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonCloudInitError {
		t.Errorf("CloudInitReady is %+v", c)
	}
	if c := s.condition(px, v1alpha1.ConditionProvisioned); c.Reason != v1alpha1.ReasonCloudInitError {
		t.Errorf("Provisioned is %+v", c)
	}
	if len(s.cloud.Calls()) != 0 || len(s.get(px).Finalizers) != 0 {
		t.Error("calls or finalizers before the user data is there")
	}

	// It appears.
	s.must(s.client.Create(t.Context(), secret))
	label(labelled)
	s.run(px, time.Hour, s.provisioned(px))
	first := s.get(px).Status.Instance
	if request, _ := s.cloud.Request(first.Name); string(request.UserData) != "#cloud-config 1" {
		t.Errorf("made with %q", request.UserData)
	}

	// It loses its label, then its key, then it is gone: nothing is deleted.
	untouched := func(what string) {
		t.Helper()
		s.run(px, 20*time.Minute, nil)
		if now := s.get(px).Status.Instance; now.ID != first.ID || len(now.Addresses) == 0 || !s.provisioned(px)() {
			t.Errorf("%s: got %+v", what, now)
		}
		if c := s.condition(px, v1alpha1.ConditionCloudInitReady); c.Reason != v1alpha1.ReasonCloudInitError {
			t.Errorf("%s: CloudInitReady is %+v", what, c)
		}
		if n := s.cloud.Count(fake.MethodDelete); n != 0 {
			t.Errorf("%s: %d Deletes", what, n)
		}
	}
	label(nil)
	untouched("without label")
	label(labelled)
	secret.Data = map[string][]byte{"other": nil}
	s.must(s.client.Update(t.Context(), secret))
	untouched("without key")
	s.must(s.client.Delete(t.Context(), secret))
	untouched("without Secret")

	// It comes back with other content, which replaces.
	secret.ResourceVersion, secret.UID, secret.Data = "", "", map[string][]byte{"data": []byte("#cloud-config 2")}
	secret.Labels = labelled
	s.must(s.client.Create(t.Context(), secret))
	s.run(px, time.Hour, func() bool { return s.provisioned(px)() && s.get(px).Status.Instance.ID != first.ID })
	if c := s.condition(px, v1alpha1.ConditionCloudInitReady); c.Status != metav1.ConditionTrue {
		t.Errorf("CloudInitReady is %+v", c)
	}
}

func TestCredentialsReachTheProvider(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	px := s.proxy("px", func(px *v1alpha1.Proxy) { px.Spec.CredentialsSecretRef = &v1alpha1.LocalSecretRef{Name: "login"} })
	s.run(px, 20*time.Minute, nil)
	if c := s.condition(px, v1alpha1.ConditionProvisioned); c.Reason != v1alpha1.ReasonCredentialsNotFound {
		t.Errorf("Provisioned is %+v", c)
	}
	s.must(s.client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "login", Labels: map[string]string{v1alpha1.LabelProxyCredentials: "true"}},
		StringData: map[string]string{"username": "user", "password": "secret"},
	}))
	s.run(px, time.Hour, s.provisioned(px))
	request, _ := s.cloud.Request(s.get(px).Status.Instance.Name)
	if request.Credentials == nil || *request.Credentials != (providers.Credentials{Username: "user", Password: "secret"}) {
		t.Error("the credentials did not arrive")
	}
}

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

func TestA30_CapacityWaitsAndMovesOn(t *testing.T) {
	s := newBed(t, fake.Behaviour{Zones: []string{"a", "b"}})
	capacity := providers.NewError(providers.Capacity, "", "", nil)
	s.cloud.Fail(fake.MethodCreate, capacity)
	px := s.proxy("px")
	s.run(px, time.Minute, nil)
	if c := s.condition(px, v1alpha1.ConditionProvisioned); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonWaitingForCapacity {
		t.Errorf("Provisioned is %+v", c)
	}
	s.run(px, time.Hour, s.provisioned(px))
	s.wantInstances(1)
	if zone := s.get(px).Status.Instance.Zone; zone != "b" {
		t.Errorf("in zone %q, want b: a is full", zone)
	}
	if n := s.cloud.Count(fake.MethodCreate); n != 2 {
		t.Errorf("%d Creates, want 2", n)
	}
}

func TestA31_InvalidSpecNamesTheFieldAndRecovers(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	px := s.proxy("px", func(px *v1alpha1.Proxy) { px.Spec.Placement = &v1alpha1.Placement{Image: fake.InvalidImage} })
	s.run(px, 20*time.Minute, nil)
	c := s.condition(px, v1alpha1.ConditionProvisioned)
	if c.Reason != v1alpha1.ReasonInvalidSpec || c.Message == "" || c.Message[:len("spec.placement.image")] != "spec.placement.image" {
		t.Errorf("Provisioned is %+v", c)
	}
	now := s.get(px)
	if len(now.Finalizers) != 0 || len(s.cloud.Calls()) != 0 {
		t.Errorf("finalizers %v, calls %v", now.Finalizers, s.cloud.Calls())
	}
	now.Spec.Placement.Image = "debian"
	s.must(s.client.Update(t.Context(), now))
	s.run(px, time.Hour, s.provisioned(px))

	// Another invalid one leaves what runs alone.
	id := s.get(px).Status.Instance.ID
	now = s.get(px)
	now.Spec.Placement.Image = fake.InvalidImage
	s.must(s.client.Update(t.Context(), now))
	s.run(px, 20*time.Minute, nil)
	if c := s.condition(px, v1alpha1.ConditionUpToDate); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonInvalidSpec {
		t.Errorf("UpToDate is %+v", c)
	}
	if now := s.get(px).Status.Instance; now.ID != id || !s.provisioned(px)() {
		t.Errorf("got %+v", now)
	}
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

func TestMaxConcurrentCreates(t *testing.T) {
	s := newBed(t, fake.Behaviour{Start: time.Minute})
	limit := int32(2)
	s.class.Spec.MaxConcurrentCreates = &limit
	s.must(s.client.Update(t.Context(), s.class))
	var all []*v1alpha1.Proxy
	for n := range 5 {
		all = append(all, s.proxy(fmt.Sprintf("px-%d", n)))
	}
	most := 0
	for ready := 0; ready < len(all); {
		ready = 0
		starting := 0
		for _, px := range all {
			if _, err := s.Reconcile(t.Context(), requestFor(px)); err != nil {
				t.Fatal(err)
			}
			switch {
			case s.provisioned(px)():
				ready++
			case s.get(px).Status.Instance != nil:
				starting++
			}
		}
		most = max(most, starting)
		s.clock.Step(20 * time.Second)
	}
	if most != int(limit) {
		t.Errorf("at most %d at once, want %d", most, limit)
	}
}
