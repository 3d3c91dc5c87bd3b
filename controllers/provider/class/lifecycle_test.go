package class

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// quiet checks that further reconciles write nothing.
func (s *bed) quiet() {
	s.t.Helper()
	before := s.get().ResourceVersion
	for range 10 {
		s.step()
	}
	if after := s.get(); after.ResourceVersion != before {
		s.t.Errorf("written although nothing changed: %+v", after.Status)
	}
}

// change makes a new generation of the class.
func (s *bed) change() {
	s.t.Helper()
	class := s.get()
	limit := int32(1)
	if class.Spec.MaxConcurrentCreates != nil {
		limit = *class.Spec.MaxConcurrentCreates + 1
	}
	class.Spec.MaxConcurrentCreates = &limit
	s.must(s.env.Client.Update(s.t.Context(), class))
}

func TestAProviderThatCannotBeSetUpSaysSo(t *testing.T) {
	for name, test := range map[string]struct {
		err             error
		reason, message string
	}{
		"a stray error": {
			errors.New("read /etc/key-4711: no such file"), v1alpha1.ReasonUnreachable,
			"the provider could not be set up; the log of its manager has the details",
		},
		"credentials": {
			providers.NewError(providers.Auth, "", "the key of spec.kvm.sshKeyFile cannot be read", errors.New("open /etc/key-4711")), v1alpha1.ReasonAuthFailed,
			"the key of spec.kvm.sshKeyFile cannot be read",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newBed(t)
			s.cloud.RefuseToOpen(test.err)
			s.step()
			s.want(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
			if c := s.want(v1alpha1.ConditionReady, metav1.ConditionFalse, test.reason); c.Message != test.message {
				t.Errorf("message %q", c.Message)
			}
			s.quiet()
			if n := s.cloud.Count(fake.MethodCheck); n != 0 {
				t.Errorf("%d checks of what is not there", n)
			}
			s.cloud.RefuseToOpen(nil)
			s.step()
			s.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReachable)
		})
	}
}

func TestWhatTheProviderCannotDoIsUnsupported(t *testing.T) {
	s := newBed(t)
	unsupported := field.NotSupported(field.NewPath("spec", "egressScope"), "Rotating", []string{"Shared"})
	s.cloud.Reject(field.ErrorList{unsupported})
	s.step()
	if c := s.want(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonUnsupported); !strings.Contains(c.Message, "spec.egressScope") {
		t.Errorf("message %q", c.Message)
	}
	s.cloud.Reject(field.ErrorList{unsupported, field.Required(field.NewPath("spec", "kubernetes"), "")})
	s.step()
	s.want(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalidConfig)
}

// That a class was ready under another specification makes no failure of this one doubtful.
func TestAChangedClassIsJudgedAnew(t *testing.T) {
	s := newBed(t)
	s.step()
	s.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReachable)
	s.cloud.Down(providers.NewError(providers.Auth, "", "", nil))
	s.change()
	s.step()
	s.want(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonAuthFailed)

	s.cloud.Down(&providers.Error{Reason: providers.RateLimited, RetryAfter: time.Minute})
	s.change()
	s.step()
	s.want(v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonRateLimited)

	s.cloud.Down(nil)
	s.change()
	s.step()
	s.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReachable)
}

// A breaker that the calls for Proxies opened keeps no check from finding out that the provider is back.
func TestAClassIsReadyAsSoonAsItsProviderAnswers(t *testing.T) {
	s := newBed(t)
	s.step()
	p, err := s.Set.Open(t.Context(), s.get())
	s.must(err)
	s.cloud.Down(errors.New("dial"))
	for range 10 {
		_, _ = p.Get(t.Context(), providers.Ref{Name: "px"})
	}
	s.step()
	s.step()
	s.want(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonUnreachable)
	s.cloud.Down(nil)
	s.step()
	s.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReachable)
	if _, err := p.Get(t.Context(), providers.Ref{Name: "px"}); !providers.IsNotFound(err) {
		t.Errorf("got %v: the breaker is still open", err)
	}
}

func TestHosts(t *testing.T) {
	s := newBed(t)
	ok := func(name string) providers.HostState { return providers.HostState{Name: name, Checked: true} }
	bad := func(name string, err error) providers.HostState {
		return providers.HostState{Name: name, Checked: true, Err: err}
	}
	host := func(name string, reachable *bool, reason string) v1alpha1.ClassHostStatus {
		return v1alpha1.ClassHostStatus{Name: name, Reachable: reachable, Reason: reason}
	}
	want := func(hosts ...v1alpha1.ClassHostStatus) {
		t.Helper()
		if diff := cmp.Diff(hosts, s.get().Status.Hosts); diff != "" {
			t.Errorf("hosts (-want +got): %s", diff)
		}
	}
	s.step()
	want()

	// In whatever order, each once.
	s.cloud.SetHosts(ok("b"), providers.HostState{Name: "c"}, bad("d", errors.New("dial 1")), ok("a"), ok("a"), ok(""), ok(strings.Repeat("x", 64)))
	s.step()
	want(host("a", new(true), ""), host("b", new(true), ""), host("c", nil, v1alpha1.ReasonNotChecked), host("d", new(false), v1alpha1.ReasonUnreachable))
	s.quiet()

	// Another text, another order: nothing new. A host that could be used is given up at the second failure.
	s.cloud.SetHosts(ok("a"), bad("b", providers.NewError(providers.Auth, "", "key 1", nil)), ok("c"), bad("d", errors.New("dial 2")))
	if after := s.step(); after > 2*doubtPeriod {
		t.Errorf("doubted for %v", after)
	}
	want(host("a", new(true), ""), host("b", new(true), ""), host("c", new(true), ""), host("d", new(false), v1alpha1.ReasonUnreachable))
	s.step()
	want(host("a", new(true), ""), host("b", new(false), v1alpha1.ReasonAuthFailed), host("c", new(true), ""), host("d", new(false), v1alpha1.ReasonUnreachable))
	s.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReachable)
	s.quiet()

	// One that blinks now and then is never given up, and costs no write.
	before := s.get().ResourceVersion
	for range 5 {
		s.cloud.SetHosts(bad("a", errors.New("blink")), bad("b", providers.NewError(providers.Auth, "", "", nil)), ok("c"), bad("d", errors.New("dial")))
		s.step()
		s.cloud.SetHosts(ok("a"), bad("b", providers.NewError(providers.Auth, "", "", nil)), ok("c"), bad("d", errors.New("dial")))
		s.step()
	}
	if s.get().ResourceVersion != before {
		t.Error("a host that blinks was written")
	}

	// A manager that has just started has asked nobody yet, and a provider that slows down says nothing new.
	s.cloud.SetHosts(providers.HostState{Name: "a"}, bad("b", &providers.Error{Reason: providers.RateLimited}), ok("c"), bad("d", errors.New("dial")))
	s.quiet()

	// Back, and dropped.
	s.cloud.SetHosts(ok("b"), ok("c"))
	s.step()
	want(host("b", new(true), ""), host("c", new(true), ""))

	// All of them away: the provider says that the class as a whole cannot be used, and both are seen.
	s.cloud.SetHosts(bad("b", errors.New("dial")), bad("c", errors.New("dial")))
	s.cloud.Down(errors.New("no host"))
	s.step()
	s.step()
	want(host("b", new(false), v1alpha1.ReasonUnreachable), host("c", new(false), v1alpha1.ReasonUnreachable))
	s.want(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonUnreachable)

	// Nothing is known of a class that is not valid.
	s.cloud.Down(nil)
	s.cloud.Reject(field.ErrorList{field.Required(field.NewPath("spec"), "")})
	s.step()
	want()
}

func TestHosts_NoMoreThanTheSchemaTakes(t *testing.T) {
	s := newBed(t)
	var many []providers.HostState
	for n := range 2 * maxHosts {
		many = append(many, providers.HostState{Name: fmt.Sprintf("host-%03d", n), Checked: true})
	}
	s.cloud.SetHosts(many...)
	s.step()
	if got := s.get().Status.Hosts; len(got) != maxHosts || got[0].Name != "host-000" {
		t.Errorf("%d hosts", len(got))
	}
	s.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReachable)
}

// A class that cannot go says why, and how a person gets out.
func TestA16_AClassThatCannotGoSaysHowOut(t *testing.T) {
	for name, test := range map[string]struct {
		fail   func(*bed)
		status metav1.ConditionStatus
		reason string
	}{
		"refused credentials":               {func(s *bed) { s.cloud.Down(providers.NewError(providers.Auth, "", "", nil)) }, metav1.ConditionFalse, v1alpha1.ReasonAuthFailed},
		"instances cannot be listed":        {func(s *bed) { s.cloud.Down(errors.New("503"), fake.MethodList) }, metav1.ConditionFalse, v1alpha1.ReasonUnreachable},
		"a provider that cannot be set up":  {func(s *bed) { s.cloud.RefuseToOpen(errors.New("no key")); s.Set.Forget(s.class.UID) }, metav1.ConditionFalse, v1alpha1.ReasonUnreachable},
		"a configuration that is not valid": {func(s *bed) { s.cloud.Reject(field.ErrorList{field.Required(field.NewPath("spec"), "")}) }, metav1.ConditionUnknown, v1alpha1.ReasonNotChecked},
	} {
		t.Run(name, func(t *testing.T) {
			s := newBed(t, func(class *v1alpha1.ProviderClass) {
				controllerutil.AddFinalizer(class, v1alpha1.FinalizerClassInstances)
			})
			s.step()
			s.must(s.env.Client.Delete(t.Context(), s.class))
			test.fail(s)
			for range 3 {
				s.step()
			}
			if c := s.want(v1alpha1.ConditionReady, test.status, test.reason); !strings.Contains(c.Message, `crawl.example.com/skip-cleanup="true"`) {
				t.Errorf("message %q", c.Message)
			}
			s.quiet()
		})
	}
}

// removed strips the finalizers of the class and deletes it, as a person does who knows better.
func (s *bed) removed() {
	s.t.Helper()
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	s.must(client.IgnoreNotFound(s.env.Client.Delete(s.t.Context(), s.class.DeepCopy())))
	s.must(client.IgnoreNotFound(s.env.Client.Patch(s.t.Context(), s.class.DeepCopy(), patch)))
}

// closed waits until a provider is, which a Set does in the background.
func (s *bed) closed(p providers.Provider) bool {
	s.t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for p.Check(s.t.Context()) == nil {
		select {
		case <-deadline:
			return false
		case <-tick.C:
		}
	}
	return true
}

// Whatever takes the place of a class that was removed by force, nothing of it stays open or remembered.
func TestA15_WhatIsLeftOfAClassRemovedByForce(t *testing.T) {
	for name, next := range map[string]func(*v1alpha1.ProviderClass){
		"nothing":       nil,
		"the same type": func(*v1alpha1.ProviderClass) {},
		"another type": func(class *v1alpha1.ProviderClass) {
			class.Spec.Type, class.Spec.GCP = v1alpha1.ProviderGCP, &v1alpha1.GCPClass{Project: "my-project"}
		},
		"another's class": func(class *v1alpha1.ProviderClass) { class.Spec.ControllerName = "crawl.example.com/other" },
	} {
		t.Run(name, func(t *testing.T) {
			s := newBed(t, func(class *v1alpha1.ProviderClass) {
				controllerutil.AddFinalizer(class, v1alpha1.FinalizerClassInstances)
			})
			s.step()
			former, err := s.Set.Open(t.Context(), s.get())
			s.must(err)
			s.cloud.Down(errors.New("dial"))
			s.step()
			s.cloud.Down(nil)
			s.removed()
			old := s.class.UID
			if next != nil {
				s.class = &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: s.class.Name}, Spec: s.class.Spec}
				next(s.class)
				s.must(s.env.Client.Create(t.Context(), s.class))
			}
			s.step()
			if !s.closed(former) {
				t.Error("the provider of the former class is open")
			}
			if s.doubts[old] != nil {
				t.Error("it is still doubted")
			}
			switch name {
			case "nothing":
			case "the same type":
				s.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReachable)
			default:
				if got := s.get(); len(got.Finalizers) != 0 || len(got.ManagedFields) != 1 || len(s.known) != 0 {
					t.Errorf("touched: %+v", got)
				}
				s.want(v1alpha1.ConditionAccepted, metav1.ConditionUnknown, v1alpha1.ReasonPending)
			}
		})
	}
}

func TestRelevant(t *testing.T) {
	class := func(change ...func(*v1alpha1.ProviderClass)) *v1alpha1.ProviderClass {
		c := &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "1", Generation: 1}, Spec: v1alpha1.ProviderClassSpec{Type: v1alpha1.ProviderKVM}}
		for _, f := range change {
			f(c)
		}
		return c
	}
	other := func(c *v1alpha1.ProviderClass) { c.Spec.Type = v1alpha1.ProviderGCP }
	again := func(c *v1alpha1.ProviderClass) { c.UID = "2" }
	changed := func(c *v1alpha1.ProviderClass) { c.Generation++ }
	deleted := func(c *v1alpha1.ProviderClass) { c.DeletionTimestamp = new(metav1.Now()) }
	status := func(c *v1alpha1.ProviderClass) { c.Status.EgressScope, c.ResourceVersion = "Shared", "7" }
	p := relevant(v1alpha1.ProviderKVM)
	for name, test := range map[string]struct {
		before, after *v1alpha1.ProviderClass
		want          bool
	}{
		"status only":                        {class(), class(status), false},
		"changed":                            {class(), class(changed), true},
		"deleted":                            {class(), class(deleted), true},
		"of another type":                    {class(other), class(other, changed), false},
		"made again":                         {class(), class(again), true},
		"made again as another type":         {class(), class(again, other), true},
		"made again from another type":       {class(other), class(again), true},
		"another type, made again as itself": {class(other), class(other, again), false},
	} {
		if got := p.Update(event.UpdateEvent{ObjectOld: test.before, ObjectNew: test.after}); got != test.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
	if !p.Create(event.CreateEvent{Object: class()}) || p.Create(event.CreateEvent{Object: class(other)}) ||
		!p.Delete(event.DeleteEvent{Object: class()}) || p.Delete(event.DeleteEvent{Object: class(other)}) {
		t.Error("creation or deletion")
	}
}
