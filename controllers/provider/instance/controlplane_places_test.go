package instance

import (
	"fmt"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// One Proxy that gets nowhere must not keep the others of its class from their turn: it holds a place among the creates,
// or among the replacements, only as long as something is under way for it.

// creates bounds them for the class.
func (s *bed) creates(n int32) {
	s.t.Helper()
	s.changeClass(func(class *v1alpha1.ProviderClass) { class.Spec.MaxConcurrentCreates = new(n) })
}

// inTurn reconciles some Proxies in turn, every step, until done.
func (s *bed) inTurn(step, limit time.Duration, done func() bool, proxies ...*v1alpha1.Proxy) bool {
	s.t.Helper()
	for range int(limit / step) {
		for _, px := range proxies {
			// What a provider refuses is an error of the reconcile.
			_, _ = s.Reconcile(s.t.Context(), requestFor(px))
		}
		if done != nil && done() {
			return true
		}
		s.clock.Step(step)
	}
	return done == nil
}

func (s *bed) asks(px *v1alpha1.Proxy, port int32) {
	s.t.Helper()
	now := s.get(px)
	now.Spec.Port = port
	s.must(s.client.Update(s.t.Context(), now))
}

func TestA5_VanishedAttemptsHoldUpNobody(t *testing.T) {
	s := newBed(t, fake.Behaviour{Start: time.Second})
	s.creates(2)
	s.cloud.Vanish(1000)
	bad := []*v1alpha1.Proxy{s.proxy("bad-0"), s.proxy("bad-1")}
	s.inTurn(time.Second, 2*time.Second, nil, bad...)
	good := s.proxy("good")
	turn := func() bool { return s.get(good).Annotations[v1alpha1.AnnotationFirstIntent] != "" }
	if !s.inTurn(10*time.Second, 15*time.Minute, turn, append(bad, good)...) {
		t.Errorf("it waits for attempts that came to nothing: %+v", s.condition(good, v1alpha1.ConditionProvisioned))
	}
}

func TestA31_RefusedProxiesHoldUpNobodyAfterARestart(t *testing.T) {
	for name, test := range map[string]struct {
		refuse func(*bed)
		reason string
	}{
		"invalid": {func(s *bed) {
			s.cloud.Fail(fake.MethodCreate, providers.InvalidField("spec.placement.image", "no such image"))
		}, v1alpha1.ReasonInvalidSpec},
		"the name is taken": {func(s *bed) {
			s.cloud.Hook(fake.MethodCreate, func(call fake.Call) {
				s.cloud.Hook(fake.MethodCreate, nil)
				s.cloud.Plant(s.class.Name, providers.Instance{Ref: providers.Ref{Name: call.Name}, Owner: providers.Owner{ClusterID: "cluster", UID: "another"}})
			})
		}, v1alpha1.ReasonNameCollision},
		"no capacity": {func(s *bed) { s.cloud.Fail(fake.MethodCreate, providers.NewError(providers.Capacity, "", "", nil)) }, v1alpha1.ReasonWaitingForCapacity},
	} {
		t.Run(name, func(t *testing.T) {
			s := newBed(t, fake.Behaviour{Start: time.Second})
			s.creates(1)
			test.refuse(s)
			bad := s.proxy("bad")
			s.run(bad, 5*time.Minute, func() bool { return s.condition(bad, v1alpha1.ConditionProvisioned).Reason == test.reason })
			s.Reconciler = s.newReconciler(s.client)
			good := s.proxy("good")
			if !s.inTurn(5*time.Second, 5*time.Minute, s.provisioned(good), good, bad) {
				t.Errorf("it waits: %+v", s.condition(good, v1alpha1.ConditionProvisioned))
			}
		})
	}
}

func TestA1_AnAttemptThatOnlyTheAnnotationTellsHoldsItsPlaceOverARestart(t *testing.T) {
	s := newBed(t, fake.Behaviour{Start: time.Hour})
	s.creates(1)
	px := s.proxy("px")
	s.inTurn(time.Second, time.Second, nil, px)
	if i := s.get(px).Status.Instance; i != nil {
		t.Fatalf("the status has it already: %+v", i)
	}
	s.Reconciler = s.newReconciler(s.client)
	other := s.proxy("other")
	s.inTurn(time.Second, time.Second, nil, other)
	if c := s.condition(other, v1alpha1.ConditionProvisioned); c.Reason != v1alpha1.ReasonPending {
		t.Errorf("it does not wait: %+v", c)
	}
	s.wantInstances(1)
}

func TestADeletionThatDoesNotFinishHoldsUpNobody(t *testing.T) {
	t.Run("deleted while it is created", func(t *testing.T) {
		s := newBed(t, fake.Behaviour{Start: time.Hour, Stop: 1000 * time.Hour})
		s.creates(1)
		px := s.proxy("px")
		s.inTurn(time.Second, 20*time.Second, nil, px)
		s.must(s.client.Delete(t.Context(), px))
		s.inTurn(time.Minute, 10*time.Minute, nil, px)
		s.cloud.SetBehaviour(fake.Behaviour{Start: time.Second, Stop: 1000 * time.Hour})
		good := s.proxy("good")
		if !s.inTurn(10*time.Second, 5*time.Minute, s.provisioned(good), good, px) {
			t.Errorf("it waits: %+v", s.condition(good, v1alpha1.ConditionProvisioned))
		}
	})
	t.Run("deleted while it is replaced", func(t *testing.T) {
		s := newBed(t, fake.Behaviour{Start: time.Second, Stop: time.Second})
		a, b := s.running("a"), s.running("b")
		s.cloud.SetBehaviour(fake.Behaviour{Start: time.Second, Stop: 1000 * time.Hour})
		s.asks(a, 4000)
		s.inTurn(time.Second, 20*time.Second, nil, a)
		s.must(s.client.Delete(t.Context(), a))
		s.inTurn(time.Minute, 10*time.Minute, nil, a)
		s.cloud.SetBehaviour(fake.Behaviour{Start: time.Second, Stop: time.Second})
		s.asks(b, 4000)
		replaced := func() bool {
			i := s.get(b).Status.Instance
			return i.ID != b.Status.Instance.ID && s.provisioned(b)()
		}
		if !s.inTurn(10*time.Second, 20*time.Minute, replaced, b, a) {
			t.Errorf("it waits: %+v", s.condition(b, v1alpha1.ConditionUpToDate))
		}
	})
}

// stalled has a rotation that stands still: a's new instance never comes up, so the others wait.
func stalled(t *testing.T, running ...string) (s *bed, a *v1alpha1.Proxy, others []*v1alpha1.Proxy) {
	t.Helper()
	s = newBed(t, fake.Behaviour{Start: time.Second, Stop: time.Second})
	a = s.running("a")
	for _, name := range running {
		others = append(others, s.running(name))
	}
	s.stall(a)
	return s, a, others
}

func (s *bed) stall(a *v1alpha1.Proxy) {
	s.t.Helper()
	s.cloud.SetBehaviour(fake.Behaviour{Start: 10_000 * time.Hour, Stop: time.Second})
	s.asks(a, 4000)
	s.inTurn(time.Second, 30*time.Second, nil, a)
}

func TestA20_WhatBreaksWhileItWaitsForItsTurnIsMadeAnew(t *testing.T) {
	s, a, others := stalled(t, "b")
	b := others[0]
	s.asks(b, 4000)
	s.inTurn(time.Minute, 5*time.Minute, nil, b, a)
	if !s.provisioned(b)() {
		t.Fatalf("what runs is not Provisioned while it waits: %+v", s.condition(b, v1alpha1.ConditionProvisioned))
	}
	s.cloud.SetState(s.get(b).Status.Instance.Name, providers.StateStopped)
	again := func() bool { i := s.get(b).Status.Instance; return i.ID != "" && i.ID != b.Status.Instance.ID }
	if !s.inTurn(10*time.Second, 15*time.Minute, again, b, a) {
		t.Errorf("it stays down: %+v, %+v", s.get(b).Status.Instance, s.condition(b, v1alpha1.ConditionProvisioned))
	}
}

// A specification changes while instances start. What has not come up is made anew at once; after that, and after a restart,
// what runs is still taken down one at a time.
func TestA20_ChangedWhileTheyStart(t *testing.T) {
	s, a, kept := stalled(t, "k")
	s.cloud.SetBehaviour(fake.Behaviour{Start: time.Minute, Stop: time.Second})
	var starting []*v1alpha1.Proxy
	for i := range 4 {
		px := s.proxy(fmt.Sprintf("starting-%d", i))
		s.inTurn(time.Second, 5*time.Second, nil, px)
		starting = append(starting, px)
	}
	for _, px := range append(starting, kept...) {
		s.asks(px, 4000)
	}
	all := func() bool {
		for _, px := range starting {
			if !s.provisioned(px)() || s.get(px).Status.Instance.Port != 4000 {
				return false
			}
		}
		return true
	}
	if !s.inTurn(5*time.Second, 10*time.Minute, all, append(starting, kept...)...) {
		t.Fatal("what had not come up is not made anew at once")
	}
	s.Reconciler = s.newReconciler(s.client)
	s.inTurn(time.Minute, 10*time.Minute, nil, append(starting, kept[0], a)...)
	if now := s.get(kept[0]); now.Status.Instance.ID != kept[0].Status.Instance.ID || !s.provisioned(kept[0])() {
		t.Errorf("what runs was taken down although the rotation stands still: %+v", now.Status.Instance)
	}
}

// An instance that is known and not held, as after its finalizer was taken away by hand, is held first of all.
func TestLostFinalizerComesBackWhateverElse(t *testing.T) {
	for name, hinder := range map[string]func(*bed, *v1alpha1.Proxy){
		"its user data is missing": func(s *bed, px *v1alpha1.Proxy) {
			now := s.get(px)
			now.Spec.CloudInit = &v1alpha1.CloudInit{SecretKeyRef: &v1alpha1.SecretKeyRef{Name: "missing", Key: "k"}}
			s.must(s.client.Update(s.t.Context(), now))
		},
		"no place among the creates": func(s *bed, _ *v1alpha1.Proxy) {
			s.creates(1)
			s.cloud.SetBehaviour(fake.Behaviour{Start: time.Hour, Stop: time.Second})
			slow := s.proxy("slow")
			s.inTurn(time.Second, 10*time.Second, nil, slow)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newBed(t, fake.Behaviour{Start: time.Second, Stop: time.Second})
			px := s.running("px")
			hinder(s, px)
			now := s.get(px)
			now.Finalizers = nil
			s.must(s.client.Update(t.Context(), now))
			s.inTurn(time.Second, time.Second, nil, px)
			if now := s.get(px); !hasFinalizer(now, s.finalizer) || !s.provisioned(px)() {
				t.Errorf("finalizers %v, Provisioned %+v", now.Finalizers, s.condition(px, v1alpha1.ConditionProvisioned))
			}
			s.must(s.client.Delete(t.Context(), px))
			if !s.inTurn(time.Minute, 20*time.Minute, func() bool { return s.get(px) == nil }, px) {
				t.Error("it does not go")
			}
		})
	}
}

// The clock of a former leader was a month ahead: nothing waits for that moment.
func TestAnIntentOfTheFutureIsBelievedAsOfNow(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		t.Run(fmt.Sprintf("deleted %v", deleted), func(t *testing.T) {
			s := newBed(t, fake.Behaviour{Start: time.Second})
			now := s.clock.Now()
			s.clock.SetTime(now.Add(30 * 24 * time.Hour))
			s.cloud.Vanish(2)
			px := s.proxy("px")
			s.inTurn(time.Second, time.Second, nil, px)
			s.clock.SetTime(now)
			s.Reconciler = s.newReconciler(s.client)
			done := s.provisioned(px)
			if deleted {
				s.must(s.client.Delete(t.Context(), px))
				done = func() bool { return s.get(px) == nil }
			}
			if !s.inTurn(30*time.Second, 2*time.Hour, done, px) {
				t.Errorf("it waits: %+v", s.get(px).Status)
			}
		})
	}
}
