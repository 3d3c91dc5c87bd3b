package orphangc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

// bed is a class of a real API server with a fake cloud in which an orphan lives, and one live Proxy with its instance.
type bed struct {
	t         *testing.T
	client    client.WithWatch
	namespace string
	clock     *clocktesting.FakeClock
	cloud     *fake.Cloud
	class     *v1alpha1.ProviderClass
	px        *v1alpha1.Proxy
	runner    *Runner
	reader    client.Reader
	registry  *prometheus.Registry
	events    *events.FakeRecorder
	// reads fail with listErr and getErr.
	listErr, getErr error
	// onList runs before Proxies are listed.
	onList func()
	// onPage sees the options of each page of Proxies, and may fail it.
	onPage func([]client.ListOption) error
	// planted counts the further orphans.
	planted int
}

func newBed(t *testing.T) *bed {
	t.Helper()
	env := testenv.New(t)
	c, err := client.NewWithWatch(env.Config, client.Options{Scheme: manager.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	clock := clocktesting.NewFakeClock(time.Now().Truncate(time.Second))
	s := &bed{t: t, client: c, namespace: env.Namespace(t), clock: clock, cloud: fake.NewCloud(clock, fake.Behaviour{})}
	s.class = &v1alpha1.ProviderClass{
		ObjectMeta: metav1.ObjectMeta{Name: s.namespace},
		Spec: v1alpha1.ProviderClassSpec{
			Type:              v1alpha1.ProviderKubernetes,
			AllowedNamespaces: v1alpha1.NamespaceAccess{From: v1alpha1.NamespacesFromAll},
			// Classes of other tests of the process are not this runner's.
			ControllerName: "crawl.example.com/" + s.namespace,
		},
	}
	s.must(c.Create(t.Context(), s.class))
	s.accept(metav1.ConditionTrue)
	s.px = &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "alive"}}
	s.px.Spec.Provider = s.class.Name
	s.must(c.Create(t.Context(), s.px))

	reader := interceptor.NewClient(c, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if s.onList != nil {
				s.onList()
			}
			if s.listErr != nil {
				return s.listErr
			}
			if s.onPage != nil {
				if err := s.onPage(opts); err != nil {
					return err
				}
			}
			return c.List(ctx, list, opts...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if s.getErr != nil {
				return s.getErr
			}
			return c.Get(ctx, key, obj, opts...)
		},
	})
	s.reader, s.registry, s.events = reader, prometheus.NewRegistry(), events.NewFakeRecorder(100)
	s.runner = s.newRunner(&fake.Factory{Cloud: s.cloud})
	s.plant("alive", providers.Owner{Namespace: s.namespace, Name: "alive", UID: s.px.UID})
	s.plant("orphan", providers.Owner{Namespace: s.namespace, Name: "orphan", UID: "gone"})
	s.clock.Step(time.Hour)
	return s
}

// newRunner makes the runner of another process.
func (s *bed) newRunner(factory providers.Factory) *Runner {
	s.t.Helper()
	set := providers.NewSet(factory, providers.Runtime{ClusterID: "cluster", Clock: s.clock}, nil)
	r, err := NewRunner(s.client, s.reader, s.events, Options{
		Set: set, Clock: s.clock, ClusterID: "cluster", ControllerName: s.class.Spec.ControllerName, Registerer: s.registry,
	})
	s.must(err)
	return r
}

func (s *bed) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *bed) plant(name string, owner providers.Owner) {
	owner.ClusterID = "cluster"
	s.cloud.Plant(s.class.Name, providers.Instance{
		Ref: providers.Ref{Name: name, ID: "id-" + name}, Owner: owner, State: providers.StateRunning, CreatedAt: s.clock.Now(),
	})
}

// accept does the class controller's part.
func (s *bed) accept(status metav1.ConditionStatus) {
	s.t.Helper()
	class := s.now()
	next := class.Status.DeepCopy()
	meta.SetStatusCondition(&next.Conditions, metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: status, Reason: "Test"})
	s.must(statusapply.Whole(s.t.Context(), s.client, v1alpha1.ManagerProvider(class.Spec.Type), class, &class.Status, next))
}

func (s *bed) setMode(mode v1alpha1.GarbageCollectionMode) {
	s.t.Helper()
	class := s.now()
	class.Spec.GarbageCollection = mode
	s.must(s.client.Update(s.t.Context(), class))
}

func (s *bed) names() map[string]bool {
	names := map[string]bool{}
	for _, i := range s.cloud.Instances() {
		names[i.Name] = true
	}
	return names
}

func (s *bed) reason() string {
	s.t.Helper()
	class := &v1alpha1.ProviderClass{}
	s.must(s.client.Get(s.t.Context(), client.ObjectKeyFromObject(s.class), class))
	if c := meta.FindStatusCondition(class.Status.Conditions, v1alpha1.ConditionGarbageCollection); c != nil {
		return c.Reason
	}
	return ""
}

func (s *bed) sweep(times int) (err error) {
	for range times {
		err = errors.Join(err, s.runner.SweepAll(s.t.Context()))
		s.clock.Step(DefaultPeriod)
	}
	return err
}

func TestA34_AnOrphanGoesAtTheSecondStrike(t *testing.T) {
	s := newBed(t)
	s.must(s.sweep(1))
	if !s.names()["orphan"] || s.reason() != v1alpha1.ReasonOrphansFound {
		t.Fatalf("after one sweep: %v, %s", s.names(), s.reason())
	}
	s.must(s.sweep(1))
	if s.names()["orphan"] || !s.names()["alive"] {
		t.Fatalf("after two sweeps: %v", s.names())
	}
	s.must(s.sweep(1))
	if s.reason() != v1alpha1.ReasonClean {
		t.Errorf("reason %s", s.reason())
	}
}

func TestA33_WhatCannotBeReadIsNotDeleted(t *testing.T) {
	for name, test := range map[string]struct {
		fail   func(*bed)
		reason string
	}{
		"the provider does not list":   {func(s *bed) { s.cloud.Down(errors.New("503")) }, v1alpha1.ReasonListFailed},
		"the API server does not list": {func(s *bed) { s.listErr = errors.New("503") }, v1alpha1.ReasonListFailed},
		"the last look fails":          {func(s *bed) { s.getErr = errors.New("503") }, v1alpha1.ReasonOrphansFound},
	} {
		t.Run(name, func(t *testing.T) {
			s := newBed(t)
			test.fail(s)
			if err := s.sweep(4); err == nil {
				t.Error("no error")
			}
			if names := s.names(); len(names) != 2 || s.cloud.Count(fake.MethodDelete) != 0 {
				t.Errorf("left %v", names)
			}
			if got := s.reason(); got != test.reason {
				t.Errorf("reason %q, want %q", got, test.reason)
			}
		})
	}
}

func TestA32_AProxyMadeDuringTheSweepIsSafe(t *testing.T) {
	s := newBed(t)
	// The instance is listed; its Proxy is stored before the Proxies are.
	s.cloud.Remove("orphan")
	s.onList = func() {
		s.onList = nil
		px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "late"}}
		px.Spec.Provider = s.class.Name
		s.must(s.client.Create(t.Context(), px))
		s.plant("late", providers.Owner{Namespace: s.namespace, Name: "late", UID: px.UID})
	}
	s.must(s.sweep(4))
	if names := s.names(); !names["late"] || !names["alive"] {
		t.Errorf("left %v", names)
	}
}

func TestReportAndOff(t *testing.T) {
	for mode, reason := range map[v1alpha1.GarbageCollectionMode]string{
		v1alpha1.GarbageCollectionReport: v1alpha1.ReasonOrphansFound,
		v1alpha1.GarbageCollectionOff:    v1alpha1.ReasonDisabled,
	} {
		t.Run(string(mode), func(t *testing.T) {
			s := newBed(t)
			s.setMode(mode)
			s.must(s.sweep(4))
			if names := s.names(); !names["orphan"] {
				t.Errorf("left %v", names)
			}
			if got := s.reason(); got != reason {
				t.Errorf("reason %s, want %s", got, reason)
			}
			lists := s.cloud.Count(fake.MethodList)
			if (mode == v1alpha1.GarbageCollectionOff) != (lists == 0) {
				t.Errorf("%d Lists", lists)
			}
		})
	}
}

func TestTooManyOrphansStopTheSweep(t *testing.T) {
	s := newBed(t)
	for n := range 4 {
		s.plant(fmt.Sprint("more-", n), providers.Owner{Namespace: s.namespace, Name: "x", UID: "gone too"})
	}
	s.clock.Step(time.Hour)
	s.must(s.sweep(4))
	if s.reason() != v1alpha1.ReasonTooManyOrphans || s.cloud.Count(fake.MethodDelete) != 0 {
		t.Errorf("reason %s, %d Deletes", s.reason(), s.cloud.Count(fake.MethodDelete))
	}
}
