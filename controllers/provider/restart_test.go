package provider_test

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// A manager that starts looks at everything that runs, and changes nothing by that; a new Proxy goes before all of it.
func TestA46_RestartUnderManyRunningProxies(t *testing.T) {
	const many = 200
	s := newBed(t)
	ask := func(name string) *v1alpha1.Proxy {
		px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
		px.Spec.Provider = s.class.Name
		s.must(s.client.Create(t.Context(), px))
		s.bind(px)
		return px
	}
	for i := range many {
		ask(fmt.Sprintf("px-%d", i))
	}
	versions := func() map[string]string {
		list := &v1alpha1.ProxyList{}
		s.must(s.client.List(t.Context(), list, client.InNamespace(s.namespace)))
		out := map[string]string{}
		for i := range list.Items {
			if px := &list.Items[i]; meta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionProvisioned) {
				out[px.Name] = px.ResourceVersion
			}
		}
		return out
	}
	s.eventually("all run", func() bool { return len(versions()) == many })
	s.stop()
	before, calls := versions(), s.cloud.Mutations()
	gets, creates := s.cloud.Count(fake.MethodGet), s.cloud.Count(fake.MethodCreate)
	looks := func() int { return s.cloud.Count(fake.MethodGet) - gets }

	// From now on looking at everything takes a while.
	s.cloud.Hook(fake.MethodGet, func(fake.Call) { <-time.After(250 * time.Millisecond) })
	s.start(testenv.New(t), s.class.Spec.ControllerName)
	s.eventually("the backlog is being worked off", func() bool { return looks() > 0 })
	late := ask("late")
	s.eventually("the new one is asked for", func() bool { return s.cloud.Count(fake.MethodCreate) > creates })
	if looked := looks(); looked >= many {
		t.Errorf("the new Proxy came after %d looks", looked)
	}
	s.eventually("all are looked at", func() bool { return looks() > many && s.runs(late) })
	after := versions()
	delete(after, late.Name)
	for name, version := range before {
		if after[name] != version {
			t.Errorf("%s went from %s to %s", name, version, after[name])
		}
	}
	if n := s.cloud.Mutations() - calls; n != 1 {
		t.Errorf("%d calls change something at the provider, want the one for the new Proxy", n)
	}
}
