package class

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// bind makes a Proxy that is bound to the class.
func (s *bed) bind(name string) *v1alpha1.Proxy {
	s.t.Helper()
	px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: s.class.Name, Name: name}}
	px.Spec.Provider = s.class.Name
	s.must(s.env.Client.Create(s.t.Context(), px))
	bound := px.Status.DeepCopy()
	bound.Binding = &v1alpha1.Binding{Type: v1alpha1.ProviderKubernetes, ClassName: s.class.Name, ClassUID: s.class.UID}
	s.must(statusapply.Proxy(s.t.Context(), s.env.Client, v1alpha1.ManagerCore, px, bound))
	return px
}

// events are those since the last call.
func (s *bed) events() (all []string) {
	for {
		select {
		case e := <-s.Recorder.(*events.FakeRecorder).Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

// What keeps a class that is being deleted is said by Ready, by number and name and with the way out, and by one event.
func TestA16_AClassInUseSaysWhatHoldsIt(t *testing.T) {
	s := newBed(t, func(class *v1alpha1.ProviderClass) {
		controllerutil.AddFinalizer(class, v1alpha1.FinalizerClassInstances)
	})
	const unstick = `. To give the instance of a Proxy up whose deletion does not get on, set the annotation crawl.example.com/skip-cleanup="true" on the Proxy`
	second, first := s.bind("b"), s.bind("a")
	says := func(status metav1.ConditionStatus, reason, message string) {
		t.Helper()
		s.step()
		if c := s.want(v1alpha1.ConditionReady, status, reason); c.Message != message {
			t.Errorf("message %q\nwant %q", c.Message, message)
		}
		s.quiet()
	}
	tells := func(want ...string) {
		t.Helper()
		got := s.events()
		if len(got) != len(want) {
			t.Fatalf("events %q, want %q", got, want)
		}
		for i := range want {
			if !strings.Contains(got[i], want[i]) {
				t.Errorf("event %q, want %q", got[i], want[i])
			}
		}
	}
	says(metav1.ConditionTrue, v1alpha1.ReasonReachable, "the provider answers")
	tells()
	s.must(s.env.Client.Delete(t.Context(), s.class))
	holds := fmt.Sprintf("held by 2 Proxies, such as %s/a: delete them, or the pools that they belong to", s.class.Name) + unstick
	says(metav1.ConditionFalse, v1alpha1.ReasonTerminating, "the class is being deleted; it is "+holds)
	s.want(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	tells("ProxiesRemain the class is being deleted; it is held by 2 Proxies")

	// One failure is not believed, a second is, and does not hide what holds the class.
	s.cloud.Down(errors.New("dial"))
	s.step()
	s.want(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonTerminating)
	s.step()
	if c := s.want(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonUnreachable); !strings.HasSuffix(c.Message, ". The class is "+holds) {
		t.Errorf("message %q", c.Message)
	}
	s.cloud.Down(nil)
	s.step()
	s.events()

	// A Proxy less: no event, and its going wakes nobody. The last one does.
	s.must(s.env.Client.Delete(t.Context(), first))
	if woken := s.waitingClass(t.Context(), first); len(woken) != 0 {
		t.Errorf("woken %v", woken)
	}
	says(metav1.ConditionFalse, v1alpha1.ReasonTerminating, fmt.Sprintf("the class is being deleted; it is held by 1 Proxy, %s/b: delete it, or the pool that it belongs to", s.class.Name)+unstick)
	tells()
	s.cloud.Plant(s.class.Name, providers.Instance{Ref: providers.Ref{Name: "i"}, Owner: providers.Owner{ClusterID: "cluster", UID: "gone"}, State: providers.StateRunning})
	s.must(s.env.Client.Delete(t.Context(), second))
	if woken := s.waitingClass(t.Context(), second); len(woken) != 1 || woken[0].Name != s.class.Name {
		t.Errorf("woken %v", woken)
	}
	says(metav1.ConditionFalse, v1alpha1.ReasonTerminating,
		`the class is being deleted; the provider still has 1 of its instances, which are collected as orphans. To give its instances up, set the annotation crawl.example.com/skip-cleanup="true"`)
	tells("InstancesRemain the class is being deleted; the provider still has 1 of its instances")
	s.cloud.Remove("i")
	s.step()
	if s.get() != nil {
		t.Error("the class is still there")
	}
	if n := s.cloud.Count(fake.MethodList); n == 0 {
		t.Error("its instances were not listed")
	}
}

// Also a class whose configuration is not valid, or that core lets go, says what holds it.
func TestA16_WhatHoldsAClassIsSaidWhateverItsState(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*v1alpha1.ProviderClass)
		fail   func(*bed)
		status metav1.ConditionStatus
		reason string
	}{
		"not valid": {fail: func(s *bed) { s.cloud.Reject(field.ErrorList{field.Required(field.NewPath("spec"), "")}) }, status: metav1.ConditionUnknown, reason: v1alpha1.ReasonNotChecked},
		"skip-cleanup": {change: func(c *v1alpha1.ProviderClass) {
			c.Annotations = map[string]string{v1alpha1.AnnotationSkipCleanup: "true"}
		}, status: metav1.ConditionFalse, reason: v1alpha1.ReasonTerminating},
		"core's own hold": {change: func(c *v1alpha1.ProviderClass) { c.Finalizers = []string{v1alpha1.FinalizerClassInUse} }, status: metav1.ConditionFalse, reason: v1alpha1.ReasonTerminating},
	} {
		t.Run(name, func(t *testing.T) {
			s := newBed(t, func(class *v1alpha1.ProviderClass) {
				controllerutil.AddFinalizer(class, v1alpha1.FinalizerClassInstances)
				if test.change != nil {
					test.change(class)
				}
			})
			s.bind("px")
			s.step()
			s.must(s.env.Client.Delete(t.Context(), s.class))
			if test.fail != nil {
				test.fail(s)
			}
			s.step()
			if c := s.want(v1alpha1.ConditionReady, test.status, test.reason); !strings.Contains(c.Message, "held by 1 Proxy, "+s.class.Name+"/px: delete it") {
				t.Errorf("message %q", c.Message)
			}
			s.quiet()
		})
	}
}
