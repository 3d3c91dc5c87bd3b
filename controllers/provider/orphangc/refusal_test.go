package orphangc

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// Every precondition by itself keeps an orphan that was seen once before; and when it holds again, the orphan must be seen
// as often as if nothing had been known of it.
func TestA33_EachPreconditionKeepsTheOrphan(t *testing.T) {
	annotate := func(s *bed, value string) {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, v1alpha1.AnnotationSkipCleanup, value)
		s.must(s.client.Patch(s.t.Context(), s.class.DeepCopy(), client.RawPatch(types.MergePatchType, patch)))
	}
	expired := func([]client.ListOption) error { return apierrors.NewResourceExpired("the snapshot is gone") }
	for name, test := range map[string]struct {
		refuse, allow func(*bed)
		reason        string
		fails         bool
		// kept strikes: the orphan goes with the first sweep after.
		kept bool
	}{
		"the class is not accepted": {
			refuse: func(s *bed) { s.accept(metav1.ConditionFalse) }, allow: func(s *bed) { s.accept(metav1.ConditionTrue) }, reason: v1alpha1.ReasonNotAccepted,
		},
		"nobody has looked at the class": {
			refuse: func(s *bed) { s.accept(metav1.ConditionUnknown) }, allow: func(s *bed) { s.accept(metav1.ConditionTrue) }, reason: v1alpha1.ReasonNotAccepted,
		},
		"the class is not valid any more": {
			refuse: func(s *bed) {
				s.cloud.Reject(field.ErrorList{field.Required(field.NewPath("spec"), "")})
				s.runner.Set.Forget(s.class.UID)
			},
			allow: func(s *bed) { s.cloud.Reject(nil) }, reason: v1alpha1.ReasonNotAccepted,
		},
		"Off": {
			refuse: func(s *bed) { s.setMode(v1alpha1.GarbageCollectionOff) }, allow: func(s *bed) { s.setMode(v1alpha1.GarbageCollectionDelete) }, reason: v1alpha1.ReasonDisabled,
		},
		"Report": {
			refuse: func(s *bed) { s.setMode(v1alpha1.GarbageCollectionReport) }, allow: func(s *bed) { s.setMode(v1alpha1.GarbageCollectionDelete) },
			reason: v1alpha1.ReasonOrphansFound, kept: true,
		},
		"skip-cleanup": {
			refuse: func(s *bed) { annotate(s, `"true"`) }, allow: func(s *bed) { annotate(s, "null") }, reason: v1alpha1.ReasonDisabled,
		},
		"the provider does not answer": {
			refuse: func(s *bed) { s.cloud.Down(errors.New("503")) }, allow: func(s *bed) { s.cloud.Down(nil) }, reason: v1alpha1.ReasonListFailed, fails: true,
		},
		"the API server does not answer": {
			refuse: func(s *bed) { s.listErr = errors.New("503") }, allow: func(s *bed) { s.listErr = nil }, reason: v1alpha1.ReasonListFailed, fails: true,
		},
		"the list expires each time": {
			refuse: func(s *bed) { s.onPage = expired }, allow: func(s *bed) { s.onPage = nil }, reason: v1alpha1.ReasonListFailed, fails: true,
		},
		"the last look fails": {
			refuse: func(s *bed) { s.getErr = errors.New("503") }, allow: func(s *bed) { s.getErr = nil }, reason: v1alpha1.ReasonOrphansFound, fails: true, kept: true,
		},
		"it is on its way out": {
			refuse: func(s *bed) { s.cloud.SetState("orphan", providers.StateTerminating) }, allow: func(s *bed) { s.cloud.SetState("orphan", providers.StateRunning) }, reason: v1alpha1.ReasonClean,
		},
		"its namespace is not watched": {
			refuse: func(s *bed) { s.runner.Namespaces = []string{"another"} }, allow: func(s *bed) { s.runner.Namespaces = nil }, reason: v1alpha1.ReasonClean,
		},
		"there is no mark of this cluster": {
			refuse: func(s *bed) { s.runner.ClusterID = "another" }, allow: func(s *bed) { s.runner.ClusterID = "cluster" }, reason: v1alpha1.ReasonClean,
		},
		"it is too young": {
			refuse: func(s *bed) { s.runner.MinAge = 100 * time.Hour }, allow: func(s *bed) { s.runner.MinAge = DefaultMinAge }, reason: v1alpha1.ReasonClean,
		},
		"there are too many": {
			refuse: func(s *bed) { s.more(7) },
			allow: func(s *bed) {
				for n := range 7 {
					s.cloud.Remove(fmt.Sprint("more-", n+1))
				}
			},
			reason: v1alpha1.ReasonTooManyOrphans, kept: true,
		},
		"no deletion is allowed": {
			refuse: func(s *bed) { s.runner.MaxDeletes = 0 }, allow: func(s *bed) { s.runner.MaxDeletes = DefaultMaxDeletes }, reason: v1alpha1.ReasonOrphansFound, kept: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newBed(t)
			s.must(s.sweep(1))
			test.refuse(s)
			if err := s.sweep(3); (err != nil) != test.fails {
				t.Errorf("got %v", err)
			}
			if s.cloud.Count(fake.MethodDelete) != 0 || !s.names()["orphan"] {
				t.Fatalf("deleted: %v", s.cloud.Calls())
			}
			if got := s.reason(); got != test.reason {
				t.Errorf("reason %s, want %s", got, test.reason)
			}
			test.allow(s)
			s.must(s.sweep(1))
			if gone := !s.names()["orphan"]; gone != test.kept {
				t.Errorf("gone with the first sweep after: %v, want %v", gone, test.kept)
			}
			s.must(s.sweep(1))
			if names := s.names(); names["orphan"] || !names["alive"] {
				t.Errorf("left %v", names)
			}
		})
	}
}

// A class that is being deleted waits for its instances, orphans too.
func TestADeletedClassIsSwept(t *testing.T) {
	s := newBed(t)
	class := s.now()
	controllerutil.AddFinalizer(class, v1alpha1.FinalizerClassInstances)
	s.must(s.client.Update(t.Context(), class))
	s.must(s.client.Delete(t.Context(), class))
	s.must(s.sweep(2))
	s.wantLeft(1)
}

// The list says that the Proxy is gone and a look at it says that it is there: the list was not complete.
func TestA32_TheLastLookSaves(t *testing.T) {
	s := newBed(t)
	s.runner.Reader = incomplete{s.runner.Reader}
	s.must(s.sweep(4))
	if names := s.names(); !names["alive"] || names["orphan"] {
		t.Errorf("left %v", names)
	}
	if got := s.metric("proxy_operator_provider_orphans_saved_total"); got == 0 {
		t.Error("not counted")
	}
}

// incomplete lists Proxies of others only.
type incomplete struct{ client.Reader }

func (i incomplete) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if err := i.Reader.List(ctx, list, opts...); err != nil {
		return err
	}
	if page, ok := list.(*metav1.PartialObjectMetadataList); ok {
		page.Items = []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{UID: "another"}}}
	}
	return nil
}

func TestDeletionsCarryTheIncarnation(t *testing.T) {
	s := newBed(t)
	s.must(s.sweep(2))
	for _, call := range s.cloud.Calls() {
		if call.Method == fake.MethodDelete && call.ID != "id-orphan" {
			t.Errorf("got %+v", call)
		}
	}
}

// The list of Proxies is the newest state, to the last page, whatever expires under way.
func TestA32_TheListIsCompleteAndCurrent(t *testing.T) {
	s := newBed(t)
	for n := range 4 {
		px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: fmt.Sprint("zz-", n)}}
		px.Spec.Provider = s.class.Name
		s.must(s.client.Create(t.Context(), px))
		s.plant(px.Name, providers.Owner{Namespace: s.namespace, Name: px.Name, UID: px.UID})
	}
	s.clock.Step(time.Hour)
	s.runner.pageSize, s.runner.Namespaces = 2, []string{s.namespace}
	pages, expire := 0, true
	s.onPage = func(opts []client.ListOption) error {
		var got client.ListOptions
		got.ApplyOptions(opts)
		if got.Raw != nil || got.Limit != 2 {
			t.Errorf("listed with %+v", got)
		}
		pages++
		if expire && got.Continue != "" {
			expire = false
			return apierrors.NewResourceExpired("the snapshot is gone")
		}
		return nil
	}
	s.must(s.sweep(1))
	// Two of the first attempt, three of the second.
	if pages != 5 {
		t.Errorf("%d pages, want 5", pages)
	}
	s.must(s.sweep(2))
	s.wantLeft(5)
}
