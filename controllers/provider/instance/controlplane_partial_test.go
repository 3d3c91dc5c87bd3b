package instance

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// With one place of several dark, nobody can say what it has. That must hold up only those who may have something there.

func (s *bed) runs(px *v1alpha1.Proxy) func() bool {
	return func() bool {
		i := s.get(px).Status.Instance
		return i != nil && i.ID != "" && i.State == string(providers.StateRunning)
	}
}

func newDarkBed(t *testing.T) *bed {
	t.Helper()
	return newBed(t, fake.Behaviour{Start: 5 * time.Second, Zones: []string{"a", "b", "c"}})
}

func TestDarkPlace_NewProxiesGoToTheOthers(t *testing.T) {
	s := newDarkBed(t)
	s.cloud.Darken("b")
	for _, name := range []string{"one", "two", "three", "four"} {
		px := s.proxy(name)
		s.run(px, 10*time.Minute, s.runs(px))
		if zone := s.get(px).Status.Instance.Zone; zone == "b" || zone == "" {
			t.Errorf("%s is in %q", name, zone)
		}
		s.must(s.client.Delete(t.Context(), s.get(px)))
		s.run(px, 20*time.Minute, func() bool { return s.get(px) == nil })
	}
	if left := s.cloud.Instances(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

// A manager that died after any of its writes or calls is followed by one that makes no second instance and does not wait.
func TestDarkPlace_AfterARestart(t *testing.T) {
	for reconciles := 1; reconciles <= 4; reconciles++ {
		for _, method := range []string{"", fake.MethodCreate} {
			s := newDarkBed(t)
			s.cloud.Darken("b")
			if method != "" {
				s.cloud.LoseReply(method, 1)
			}
			px := s.proxy("px")
			for range reconciles {
				_, _ = s.Reconcile(t.Context(), requestFor(px))
			}
			next := s.newReconciler(s.client)
			s.runWith(next, px, 20*time.Minute, s.runs(px))
			if all := s.cloud.Instances(); len(all) != 1 {
				t.Errorf("after %d reconciles (%s): %+v", reconciles, method, all)
			}
		}
	}
}

// An intent that was stored by a manager that died before its call is carried out by the next one.
func TestDarkPlace_IntentWithoutACall(t *testing.T) {
	s := newDarkBed(t)
	s.cloud.Darken("b")
	s.cloud.Fail(fake.MethodCreate, providers.NewError(providers.Unavailable, "", "", nil))
	px := s.proxy("px")
	_, _ = s.Reconcile(t.Context(), requestFor(px))
	next := s.newReconciler(s.client)
	s.runWith(next, px, 20*time.Minute, s.runs(px))
	if all := s.cloud.Instances(); len(all) != 1 {
		t.Errorf("%+v", all)
	}
}

// When no place answers nothing is begun: such a Proxy can be deleted at once.
func TestDarkPlace_AllOfThem(t *testing.T) {
	s := newDarkBed(t)
	s.cloud.Darken("a", "b", "c")
	px := s.proxy("px")
	s.run(px, 5*time.Minute, nil)
	if now := s.get(px); hasFinalizer(now, s.finalizer) || now.Annotations[v1alpha1.AnnotationFirstIntent] != "" {
		t.Errorf("something was begun: %+v", now.ObjectMeta)
	}
	s.cloud.Darken("a", "b")
	s.run(px, 10*time.Minute, s.runs(px))
}

// A look that fails says nothing about a Proxy that has lost its status, least of all that it is where its first intent said.
func TestLostStatus_AFailedLookTeachesNothing(t *testing.T) {
	for _, reason := range []providers.Reason{providers.Unavailable, providers.Auth, providers.RateLimited} {
		s := newDarkBed(t)
		s.cloud.Fail(fake.MethodCreate, providers.NewError(providers.Capacity, "", "", nil))
		px := s.proxy("px")
		s.run(px, time.Hour, s.runs(px))
		s.run(px, 20*time.Minute, nil)
		s.wipeInstance(px)
		s.cloud.Fail(fake.MethodGet, providers.NewError(reason, "", "", nil))
		s.run(px, time.Hour, nil)
		if all := s.cloud.Instances(); len(all) != 1 || !s.runs(px)() {
			t.Errorf("%s: %+v, %+v", reason, all, s.get(px).Status.Instance)
		}
	}
}

func (s *bed) wipeInstance(px *v1alpha1.Proxy) {
	s.t.Helper()
	s.must(s.client.Status().Patch(s.t.Context(), s.get(px), client.RawPatch(types.MergePatchType, []byte(`{"status":{"instance":null,"conditions":null}}`))))
}

// A Proxy that has been somewhere, and whose status is lost, is found where its first intent says; and when it is not there, it
// waits for the dark place, which may have it.
func TestDarkPlace_LostStatus(t *testing.T) {
	for name, moved := range map[string]bool{"where it began": false, "elsewhere": true} {
		t.Run(name, func(t *testing.T) {
			s := newDarkBed(t)
			if moved {
				s.cloud.Fail(fake.MethodCreate, providers.NewError(providers.Capacity, "", "", nil))
			}
			px := s.proxy("px")
			s.run(px, time.Hour, s.runs(px))
			s.run(px, 20*time.Minute, nil)
			zone := s.get(px).Status.Instance.Zone
			first, _ := firstOf(s.get(px))
			if moved == (first.Zone == zone) {
				t.Fatalf("it began in %s and is in %s", first.Zone, zone)
			}
			if moved {
				s.cloud.Darken(zone)
			} else {
				s.cloud.Darken(map[string]string{"a": "b", "b": "c", "c": "a"}[zone])
			}
			s.wipeInstance(px)
			next := s.newReconciler(s.client)
			s.runWith(next, px, time.Hour, nil)
			if all := s.cloud.Instances(); len(all) != 1 || moved == s.runs(px)() {
				t.Errorf("%+v, %+v", all, s.get(px).Status.Instance)
			}
			s.cloud.Darken()
			s.runWith(next, px, time.Hour, s.runs(px))
			if all := s.cloud.Instances(); len(all) != 1 {
				t.Errorf("%+v", all)
			}
		})
	}
}

// An attempt that is known to have come to nothing lets another place be tried at once, well before it has settled. Also then a
// Proxy that loses its status, with that other place dark, gets no second instance.
func TestDarkPlace_LostStatusAfterAnEndedAttempt(t *testing.T) {
	s := newBed(t, fake.Behaviour{Start: time.Second, Operations: true, Zones: []string{"a", "b", "c"}})
	px := s.proxy("px")
	s.run(px, time.Minute, s.runs(px))
	first := s.cloud.Instances()[0]
	s.cloud.End(first.Name, providers.NewError(providers.Capacity, "", "the place is full", nil))
	s.run(px, time.Minute, func() bool {
		all := s.cloud.Instances()
		return len(all) == 1 && all[0].Zone != first.Zone
	})
	if begun, _ := firstOf(s.get(px)); s.clock.Since(begun.Time.Time) >= s.Timing.Settle {
		t.Fatalf("it took %s", s.clock.Since(begun.Time.Time))
	}
	s.cloud.Darken(s.cloud.Instances()[0].Zone)
	s.wipeInstance(px)
	next := s.newReconciler(s.client)
	s.runWith(next, px, time.Hour, nil)
	s.cloud.Darken()
	s.runWith(next, px, time.Hour, s.runs(px))
	if all := s.cloud.Instances(); len(all) != 1 {
		t.Errorf("%+v", all)
	}
}
