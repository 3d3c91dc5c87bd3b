package instance

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/proxy"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// removeClass takes the class away past its finalizers.
func (s *together) removeClass() {
	s.bed.t.Helper()
	class := &v1alpha1.ProviderClass{}
	s.must(s.client.Get(s.bed.t.Context(), client.ObjectKeyFromObject(s.class), class))
	class.Finalizers = nil
	s.must(s.client.Update(s.bed.t.Context(), class))
	s.must(s.client.Delete(s.bed.t.Context(), class))
}

// fails makes every call of a method fail until the result is called.
func (s *together) fails(method string, reason providers.Reason) func() {
	s.cloud.Hook(method, func(fake.Call) { s.cloud.Fail(method, providers.NewError(reason, "", "", errors.New("raw text"))) })
	return func() { s.cloud.Hook(method, nil) }
}

// blockages are why a deletion does not get on, by the reason of CleanupBlocked. Each returns what ends it; nil when
// nothing does but giving up.
var blockages = []struct {
	name, reason string
	block        func(*together) (mend func())
}{
	{"class removed", v1alpha1.ReasonClassNotFound, func(s *together) func() { s.removeClass(); return nil }},
	{"class made anew", v1alpha1.ReasonClassReplaced, func(s *together) func() {
		s.removeClass()
		s.must(s.client.Create(s.bed.t.Context(), &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: s.class.Name}, Spec: s.class.Spec}))
		return nil
	}},
	{"class not valid", v1alpha1.ReasonClassNotAccepted, func(s *together) func() {
		change := func(seconds *int32) {
			s.changeClass(func(class *v1alpha1.ProviderClass) { class.Spec.ProvisionTimeoutSeconds = seconds })
		}
		s.cloud.Reject(field.ErrorList{field.Required(field.NewPath("spec", "parametersRef"), "")})
		change(new(int32(60)))
		return func() { s.cloud.Reject(nil); change(nil) }
	}},
	{"credentials refused by Get", v1alpha1.ReasonAuthFailed, func(s *together) func() { return s.fails(fake.MethodGet, providers.Auth) }},
	{"credentials refused by Delete", v1alpha1.ReasonAuthFailed, func(s *together) func() { return s.fails(fake.MethodDelete, providers.Auth) }},
	{"Get unavailable", v1alpha1.ReasonProviderUnreachable, func(s *together) func() { return s.fails(fake.MethodGet, providers.Unavailable) }},
	{"Delete unavailable", v1alpha1.ReasonProviderUnreachable, func(s *together) func() { return s.fails(fake.MethodDelete, providers.Unavailable) }},
	{"conflict", v1alpha1.ReasonNameCollision, func(s *together) func() { return s.fails(fake.MethodDelete, providers.Conflict) }},
}

// working is a bed with one Proxy that works.
func working(t *testing.T) (*together, *v1alpha1.Proxy) {
	t.Helper()
	s := newTogether(t, thirdParty, fake.Behaviour{Start: 5 * time.Second, Stop: 30 * time.Second})
	px := s.asked("px", nil)
	s.queue.run("it works", 10*time.Minute, s.works(px))
	// The last attempt has settled.
	s.queue.run("", 10*time.Minute, nil)
	return s, px
}

func (s *together) blocked(px *v1alpha1.Proxy) metav1.Condition {
	if now := s.get(px); now != nil {
		if c := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionCleanupBlocked); c != nil {
			return *c
		}
	}
	return metav1.Condition{}
}

// blockedFor deletes a Proxy whose deletion cannot get on and looks at what that is like for an hour.
func (s *together) blockedFor(px *v1alpha1.Proxy, reason string) {
	t := s.bed.t
	t.Helper()
	s.must(s.client.Delete(t.Context(), s.get(px)))
	s.queue.run("CleanupBlocked", 10*time.Minute, func() bool { return s.blocked(px).Status == metav1.ConditionTrue })
	s.queue.run("", 10*time.Minute, nil)
	before, calls := s.get(px), len(s.cloud.Calls())
	s.queue.run("", time.Hour, nil)

	c := s.blocked(px)
	if c.Status != metav1.ConditionTrue || c.Reason != reason || !strings.Contains(c.Message, v1alpha1.AnnotationSkipCleanup+`="true"`) {
		t.Errorf("CleanupBlocked is %+v, want reason %s and the way out", c, reason)
	}
	if strings.Contains(c.Message, "raw text") {
		t.Errorf("the message has what the provider said: %s", c.Message)
	}
	after := s.get(px)
	ready := meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ConditionReady)
	if !strings.Contains(ready.Message, v1alpha1.AnnotationSkipCleanup) || after.Status.Phase != v1alpha1.PhaseTerminating {
		t.Errorf("phase %s, Ready is %+v", after.Status.Phase, ready)
	}
	if after.ResourceVersion != before.ResourceVersion {
		t.Errorf("written although nothing changed: %+v, then %+v", before.Status, after.Status)
	}
	// Two for every minute that an attempt may be made in, and the checks of the class.
	if n := len(s.cloud.Calls()) - calls; n > 240 {
		t.Errorf("%d calls in an hour", n)
	}
	s.wantInstances(1)
}

// TestCleanupBlocked_SaysTheWayOutAndEnds: the condition stands as long as the deletion does not get on, says how to get
// out, and is taken back once it does.
func TestCleanupBlocked_SaysTheWayOutAndEnds(t *testing.T) {
	for _, c := range blockages {
		t.Run(c.name, func(t *testing.T) {
			s, px := working(t)
			mend := c.block(s)
			s.blockedFor(px, c.reason)
			if mend == nil {
				s.giveUp(px)
				return
			}
			mend()
			s.queue.run("it gets on", 15*time.Minute, func() bool { return s.blocked(px).Status == metav1.ConditionFalse })
			if got := s.blocked(px); got.Reason != v1alpha1.ReasonNotBlocked || strings.Contains(got.Message, v1alpha1.AnnotationSkipCleanup) {
				t.Errorf("CleanupBlocked is %+v", got)
			}
			s.queue.run("it is gone", 15*time.Minute, s.gone(px))
			s.wantInstances(0)
		})
	}
}

// TestCleanupBlocked_StillTerminating: the provider accepted the deletion and the instance does not go.
func TestCleanupBlocked_StillTerminating(t *testing.T) {
	s := newTogether(t, thirdParty, fake.Behaviour{Start: 5 * time.Second, Stop: 2 * time.Hour})
	px := s.asked("px", nil)
	s.queue.run("it works", 10*time.Minute, s.works(px))
	s.must(s.client.Delete(t.Context(), s.get(px)))
	s.queue.run("", StuckDeletion-time.Minute, nil)
	if c := s.blocked(px); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonNotBlocked {
		t.Errorf("CleanupBlocked is %+v before its time", c)
	}
	s.queue.run("", 2*time.Minute, nil)
	before := s.get(px)
	s.queue.run("", time.Hour, nil)
	c := s.blocked(px)
	if c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonStillTerminating || !strings.Contains(c.Message, v1alpha1.AnnotationSkipCleanup+`="true"`) {
		t.Errorf("CleanupBlocked is %+v", c)
	}
	if now := s.get(px); now.ResourceVersion != before.ResourceVersion {
		t.Errorf("written although nothing changed: %+v, then %+v", before.Status, now.Status)
	}
	s.queue.run("it is gone", 2*time.Hour, s.gone(px))
	s.wantInstances(0)
}

// giveUp sets the annotation: the Proxy goes and its instance stays.
func (s *together) giveUp(px *v1alpha1.Proxy) {
	s.bed.t.Helper()
	calls := s.cloud.Mutations()
	s.changes(px, abandoned)
	s.queue.run("the release", time.Minute, s.gone(px))
	if n := s.cloud.Mutations() - calls; n != 0 {
		s.bed.t.Errorf("%d calls", n)
	}
	s.wantInstances(1)
}

func abandoned(px *v1alpha1.Proxy) {
	px.Annotations = map[string]string{v1alpha1.AnnotationSkipCleanup: "true"}
}

// TestCleanupBlocked_RateLimitIsNoBlockage: a provider that asks to slow down is no reason to give an instance up.
func TestCleanupBlocked_RateLimitIsNoBlockage(t *testing.T) {
	s, px := working(t)
	mend := s.fails(fake.MethodDelete, providers.RateLimited)
	s.must(s.client.Delete(t.Context(), s.get(px)))
	s.queue.run("", 20*time.Minute, nil)
	if c := s.blocked(px); c.Status == metav1.ConditionTrue {
		t.Errorf("CleanupBlocked is %+v", c)
	}
	mend()
	s.queue.run("it is gone", 15*time.Minute, s.gone(px))
}

// TestA14_SkipCleanup: before and during the deletion, with the provider manager at work and without; the deletion is
// blocked all the time. The provider is not called, and an event names the instance.
func TestA14_SkipCleanup(t *testing.T) {
	for _, before := range []bool{true, false} {
		for _, running := range []bool{true, false} {
			t.Run(fmt.Sprintf("annotated before: %v, provider manager: %v", before, running), func(t *testing.T) {
				s, px := working(t)
				core, recorder := s.reconcilers[inCore].(*proxy.Reconciler), events.NewFakeRecorder(100)
				core.Recorder = recorder
				providerID := s.get(px).Status.Instance.ProviderID
				if !running {
					delete(s.reconcilers, inProvider)
				}
				s.fails(fake.MethodDelete, providers.Unavailable)
				if before {
					s.changes(px, abandoned)
					s.queue.run("", time.Hour, nil)
					if now := s.get(px); !hasFinalizer(now, s.finalizer) || now.Status.Phase != v1alpha1.PhaseReady {
						t.Errorf("before the deletion: finalizers %v, phase %s", now.Finalizers, now.Status.Phase)
					}
				}
				s.must(s.client.Delete(t.Context(), s.get(px)))
				if !before {
					s.queue.run("", 10*time.Minute, nil)
					if s.get(px) == nil {
						t.Fatal("released although the instance is there")
					}
				}
				calls := len(s.cloud.Calls())
				if !before {
					s.changes(px, abandoned)
				}
				s.queue.run("the release", time.Minute, s.gone(px))
				for _, call := range s.cloud.Calls()[calls:] {
					if call.Method != fake.MethodCheck {
						t.Errorf("the provider was called: %+v", call)
					}
				}
				s.wantInstances(1)
				named := false
				for len(recorder.Events) > 0 {
					e := <-recorder.Events
					named = named || strings.Contains(e, "InstanceAbandoned") && strings.Contains(e, providerID) && strings.Contains(e, "garbage collection")
				}
				if !named {
					t.Error("no event names the instance")
				}
			})
		}
	}
}

// TestNeverTried_GoesAtOnce: a Proxy for which nothing was ever tried has no finalizer, so that its deletion waits for
// nobody.
func TestNeverTried_GoesAtOnce(t *testing.T) {
	for name, change := range map[string]func(*together, *v1alpha1.Proxy){
		"unknown class": func(s *together, px *v1alpha1.Proxy) { px.Spec.Provider += "-2" },
		"refused specification": func(_ *together, px *v1alpha1.Proxy) {
			px.Spec.Placement = &v1alpha1.Placement{Image: fake.InvalidImage}
		},
		"no Secret": func(_ *together, px *v1alpha1.Proxy) { px.Spec.CloudInit = userDataOf("user-data", "data") },
		"class that denies user data": func(s *together, px *v1alpha1.Proxy) {
			px.Spec.CloudInit = &v1alpha1.CloudInit{Inline: "x"}
			s.changeClass(func(class *v1alpha1.ProviderClass) { class.Spec.UserCloudInit = v1alpha1.UserCloudInitDenied })
		},
		"class that is not valid": func(s *together, _ *v1alpha1.Proxy) {
			s.cloud.Reject(field.ErrorList{field.Required(field.NewPath("spec", "parametersRef"), "")})
		},
		"waits for its turn": func(s *together, _ *v1alpha1.Proxy) {
			s.cloud.SetBehaviour(fake.Behaviour{Start: 1000 * time.Hour})
			s.changeClass(func(class *v1alpha1.ProviderClass) { class.Spec.MaxConcurrentCreates = new(int32(1)) })
			first := s.asked("first", nil)
			s.queue.run("the first is on its way", time.Minute, s.says(first, v1alpha1.ConditionProvisioned, v1alpha1.ReasonStarting))
		},
		"provider out of reach": func(s *together, _ *v1alpha1.Proxy) {
			s.cloud.Down(providers.NewError(providers.Unavailable, "", "", nil))
		},
		"credentials of the class refused": func(s *together, _ *v1alpha1.Proxy) {
			s.cloud.Down(providers.NewError(providers.Auth, "", "", nil))
		},
		"name held by another owner": func(s *together, px *v1alpha1.Proxy) {
			s.cloud.Hook(fake.MethodGet, func(call fake.Call) {
				s.cloud.Hook(fake.MethodGet, nil)
				s.cloud.Plant(s.class.Name, providers.Instance{Ref: providers.Ref{Name: call.Name}, Owner: providers.Owner{ClusterID: "cluster", UID: "another"}})
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTogether(t, thirdParty, fake.Behaviour{})
			px := s.asked("px", func(px *v1alpha1.Proxy) { change(s, px) })
			s.queue.run("", 5*time.Minute, nil)
			now := s.get(px)
			if len(now.Finalizers) != 0 || (now.Status.Instance != nil && now.Status.Instance.IntentTime != nil) {
				t.Errorf("finalizers %v, instance %+v", now.Finalizers, now.Status.Instance)
			}
			// Nobody is at work any more.
			s.must(s.client.Delete(t.Context(), now))
			if s.get(px) != nil {
				t.Error("it is still there")
			}
			if n := s.cloud.Count(fake.MethodDelete); n != 0 {
				t.Errorf("%d Deletes", n)
			}
		})
	}
}
