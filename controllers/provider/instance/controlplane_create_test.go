package instance

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

func TestA1_FinalizerAndIntentAreStoredBeforeCreate(t *testing.T) {
	s := newBed(t, fake.Behaviour{Start: 5 * time.Second})
	px := s.proxy("px")
	s.cloud.Hook(fake.MethodCreate, func(call fake.Call) {
		now := s.get(px)
		if !hasFinalizer(now, v1alpha1.FinalizerInstance(v1alpha1.ProviderKubernetes)) {
			t.Error("Create is called and the finalizer is not stored")
		}
		if i := stored(now); i.IntentTime == nil || i.Zone != call.Zone || i.Attempt != 1 {
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
			if i := stored(s.get(px)); i.IntentTime == nil || i.SubmittedTime != nil {
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
	var zones []string
	for _, call := range s.cloud.Calls() {
		if call.Method == fake.MethodCreate {
			zones = append(zones, call.Zone)
		}
	}
	if len(zones) != 2 || zones[0] == zones[1] {
		t.Fatalf("Creates in %q, want two, and the second one elsewhere: the first place is full", zones)
	}
	if zone := s.get(px).Status.Instance.Zone; zone != zones[1] {
		t.Errorf("in zone %q, want %q", zone, zones[1])
	}
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

// TestWhatNeverStartsKeepsNoPlace: a Proxy whose instances do not come up does not hold up the others of its class.
func TestWhatNeverStartsKeepsNoPlace(t *testing.T) {
	s := newBed(t, fake.Behaviour{Start: 1000 * time.Hour})
	limit := int32(1)
	s.class.Spec.MaxConcurrentCreates = &limit
	s.must(s.client.Update(t.Context(), s.class))
	stuck, other := s.proxy("stuck"), s.proxy("other")
	for range 400 {
		for _, px := range []*v1alpha1.Proxy{stuck, other} {
			if _, err := s.Reconcile(t.Context(), requestFor(px)); err != nil {
				t.Fatal(err)
			}
		}
		if _, asked := s.cloud.Request(providers.InstanceName("cluster", other.Name, other.UID)); asked {
			return
		}
		s.clock.Step(10 * time.Second)
	}
	t.Error("the other Proxy never got its turn")
}
