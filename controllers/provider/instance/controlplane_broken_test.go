package instance

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// A change that no instance starts with takes down as many proxies as the class lets be replaced at a time, and no more,
// whatever times out, is made anew and restarts meanwhile. Taking the change back ends it.
func TestAChangeThatCannotStartStopsAtTheBudget(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	timeout := int32(60)
	s.class.Spec.ProvisionTimeoutSeconds = &timeout
	s.must(s.client.Update(t.Context(), s.class))
	var all []*v1alpha1.Proxy
	for n := range 4 {
		all = append(all, s.running(fmt.Sprintf("px-%d", n)))
	}
	change := func(machineType string) {
		t.Helper()
		for _, px := range all {
			now := s.get(px)
			now.Spec.Placement = &v1alpha1.Placement{MachineType: machineType}
			s.must(s.client.Update(t.Context(), now))
		}
	}
	down := func() (names []string) {
		for _, px := range all {
			now := s.get(px)
			if !s.provisioned(px)() {
				names = append(names, px.Name)
				if c := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionUpToDate); c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonSpecChanged {
					t.Errorf("%s is being replaced and UpToDate is %+v", px.Name, c)
				}
			}
		}
		return names
	}
	s.cloud.SetBehaviour(fake.Behaviour{Start: 1000 * time.Hour})
	change("broken")
	r, seen := s.Reconciler, 0
	for step := range 120 {
		if step%25 == 24 {
			// Another manager knows only what is stored.
			r = s.newReconciler(s.client)
		}
		for _, px := range all {
			if _, err := r.Reconcile(t.Context(), requestFor(px)); err != nil {
				t.Fatal(err)
			}
		}
		if names := down(); len(names) > int(DefaultMaxConcurrentReplacements) {
			t.Fatalf("after %d steps %v are down", step, names)
		} else if len(names) > 0 {
			seen++
		}
		s.clock.Step(10 * time.Second)
	}
	if seen < 100 {
		t.Errorf("something was down in %d of 120 steps: the replacement did not happen", seen)
	}

	s.cloud.SetBehaviour(fake.Behaviour{})
	change("sound")
	for range 400 {
		for _, px := range all {
			if _, err := r.Reconcile(t.Context(), requestFor(px)); err != nil {
				t.Fatal(err)
			}
		}
		current := 0
		for _, px := range all {
			if s.provisioned(px)() && s.condition(px, v1alpha1.ConditionUpToDate).Status == metav1.ConditionTrue {
				current++
			}
		}
		if current == len(all) {
			return
		}
		s.clock.Step(10 * time.Second)
	}
	t.Errorf("not all came back: %v are down", down())
}
