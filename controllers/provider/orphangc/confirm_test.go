package orphangc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// tripped is a bed with so many orphans that the breaker has tripped; all of them were seen twice.
func tripped(t *testing.T, orphans int) *bed {
	t.Helper()
	s := newBed(t)
	s.more(orphans - 1)
	s.must(s.sweep(2))
	if got := s.reason(); got != v1alpha1.ReasonTooManyOrphans {
		t.Fatalf("reason %s", got)
	}
	return s
}

// more plants further orphans, which are old enough.
func (s *bed) more(n int) {
	s.t.Helper()
	for range n {
		s.planted++
		s.plant(fmt.Sprint("more-", s.planted), providers.Owner{Namespace: s.namespace, Name: "x", UID: "gone too"})
	}
	s.clock.Step(DefaultMinAge)
}

// confirm sets the annotation, as kubectl annotate does; nil takes it away.
func (s *bed) confirm(value *string) {
	s.t.Helper()
	text := "null"
	if value != nil {
		text = fmt.Sprintf("%q", *value)
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, v1alpha1.AnnotationGCConfirm, text)
	s.must(s.client.Patch(s.t.Context(), s.class.DeepCopy(), client.RawPatch(types.MergePatchType, patch)))
}

// noProxies leaves none. Those of other tests are in namespaces that are not watched.
func (s *bed) noProxies() {
	s.t.Helper()
	s.runner.Namespaces = []string{s.namespace}
	s.must(s.client.Delete(s.t.Context(), s.px))
	s.cloud.Remove("alive")
}

func (s *bed) now() *v1alpha1.ProviderClass {
	s.t.Helper()
	class := &v1alpha1.ProviderClass{}
	s.must(s.client.Get(s.t.Context(), client.ObjectKeyFromObject(s.class), class))
	return class
}

func (s *bed) message() string {
	if c := meta.FindStatusCondition(s.now().Status.Conditions, v1alpha1.ConditionGarbageCollection); c != nil {
		return c.Message
	}
	return ""
}

// wantConfirmed checks the annotation; "" for none.
func (s *bed) wantConfirmed(want string) {
	s.t.Helper()
	if got := s.now().Annotations[v1alpha1.AnnotationGCConfirm]; got != want {
		s.t.Errorf("the annotation says %q, want %q", got, want)
	}
}

func (s *bed) wantLeft(instances int) {
	s.t.Helper()
	if got := s.names(); len(got) != instances || !got["alive"] {
		s.t.Errorf("left %v, want %d with the live one", got, instances)
	}
}

func TestConfirm_TheMessageNamesTheAnnotationAndTheNumber(t *testing.T) {
	s := tripped(t, 7)
	for _, want := range []string{"7 instances", `crawl.example.com/gc-confirm="7"`} {
		if !strings.Contains(s.message(), want) {
			t.Errorf("%q does not say %q", s.message(), want)
		}
	}
	s.more(1)
	s.must(s.sweep(1))
	if !strings.Contains(s.message(), `gc-confirm="8"`) {
		t.Errorf("message %q", s.message())
	}
	before := s.now().ResourceVersion
	s.must(s.sweep(5))
	if s.now().ResourceVersion != before {
		t.Error("written although nothing changed")
	}

	s.noProxies()
	s.must(s.sweep(1))
	for _, want := range []string{"no Proxy exists", "8 instances", `gc-confirm="8"`} {
		if !strings.Contains(s.message(), want) {
			t.Errorf("%q does not say %q", s.message(), want)
		}
	}
}

func TestConfirm_DeletesAFewAtATimeAndIsSpent(t *testing.T) {
	s := tripped(t, 12)
	s.confirm(new("12"))
	s.must(s.sweep(1))
	s.wantLeft(1 + 12 - DefaultMaxDeletes)
	s.wantConfirmed("7")
	if got := s.reason(); got != v1alpha1.ReasonOrphansFound {
		t.Errorf("reason %s", got)
	}
	s.must(s.sweep(1))
	s.wantConfirmed("2")
	// Two are few enough: no confirmation is needed any more.
	s.must(s.sweep(1))
	s.wantConfirmed("")
	s.wantLeft(1)
	s.must(s.sweep(1))
	if got := s.reason(); got != v1alpha1.ReasonClean {
		t.Errorf("reason %s", got)
	}
	// What comes later needs a confirmation of its own.
	s.more(12)
	s.must(s.sweep(4))
	s.wantLeft(1 + 12)
}

func TestConfirm_HoldsForNoMoreThanItSays(t *testing.T) {
	s := tripped(t, 8)
	s.confirm(new("7"))
	s.must(s.sweep(3))
	s.wantLeft(1 + 8)
	s.wantConfirmed("7")
	if !strings.Contains(s.message(), "it says 7 now") {
		t.Errorf("message %q", s.message())
	}
	// It holds again when a person has taken some away.
	s.cloud.Remove("more-1")
	s.must(s.sweep(1))
	s.wantLeft(1 + 7 - DefaultMaxDeletes)
	s.wantConfirmed("2")
}

func TestConfirm_ALargeNumberIsBoundToWhatIsThere(t *testing.T) {
	s := tripped(t, 8)
	s.confirm(new("1000000"))
	s.must(s.sweep(1))
	s.wantConfirmed("3")
	s.more(5)
	s.must(s.sweep(4))
	s.wantLeft(1 + 8 - DefaultMaxDeletes + 5)
}

func TestConfirm_NoProxyAtAll(t *testing.T) {
	s := newBed(t)
	s.noProxies()
	s.must(s.sweep(3))
	if got := s.reason(); got != v1alpha1.ReasonTooManyOrphans || len(s.names()) != 1 {
		t.Fatalf("reason %s, left %v", got, s.names())
	}
	if !strings.Contains(s.message(), "there is 1 instance") || !strings.Contains(s.message(), `gc-confirm="1"`) {
		t.Errorf("message %q", s.message())
	}
	s.confirm(new("1"))
	s.must(s.sweep(1))
	s.wantConfirmed("")
	if len(s.names()) != 0 {
		t.Errorf("left %v", s.names())
	}
}

func TestConfirm_WhatIsNoNumberConfirmsNothing(t *testing.T) {
	s := tripped(t, 8)
	for _, value := range []string{"", "all", "true", "0", "-8", "+8", "08", "8.0", " 8", "0x8", "99999999999999999999"} {
		s.confirm(&value)
		s.must(s.sweep(2))
		s.wantLeft(1 + 8)
		s.wantConfirmed(value)
		if !strings.Contains(s.message(), "not a whole number") {
			t.Errorf("%q: message %q", value, s.message())
		}
	}
}

func TestConfirm_GoesWhereThereIsNothingToConfirm(t *testing.T) {
	for name, prepare := range map[string]func(*bed){
		"few orphans": func(*bed) {},
		"clean":       func(s *bed) { s.cloud.Remove("orphan") },
		"Report": func(s *bed) {
			s.more(7)
			s.setMode(v1alpha1.GarbageCollectionReport)
		},
		"Off": func(s *bed) { s.setMode(v1alpha1.GarbageCollectionOff) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newBed(t)
			prepare(s)
			left := len(s.names())
			s.confirm(new("8"))
			s.must(s.sweep(1))
			s.wantConfirmed("")
			s.wantLeft(left)
		})
	}
}

// A confirmation that was withdrawn or spent after the class was read deletes nothing.
func TestConfirm_IsAskedOfTheAPIServer(t *testing.T) {
	for name, test := range map[string]struct {
		orphans int
		now     *string
	}{
		"withdrawn, spent in part": {8, nil},
		"withdrawn, spent whole":   {4, nil},
		"lowered":                  {8, new("2")},
	} {
		t.Run(name, func(t *testing.T) {
			s := tripped(t, test.orphans)
			s.confirm(new(fmt.Sprint(test.orphans)))
			stale := s.now()
			s.confirm(test.now)
			s.runner.Client = interceptor.NewClient(s.client, interceptor.Funcs{
				List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
					list.(*v1alpha1.ProviderClassList).Items = []v1alpha1.ProviderClass{*stale.DeepCopy()}
					return nil
				},
			})
			s.must(s.sweep(2))
			s.wantLeft(1 + test.orphans)
		})
	}
}

// Spent before the deletion, so that a crash between the two spends too much rather than too little.
func TestConfirm_IsSpentFirst(t *testing.T) {
	s := tripped(t, 8)
	s.confirm(new("8"))
	s.cloud.Hook(fake.MethodDelete, func(fake.Call) { s.wantConfirmed("3") })
	s.must(s.sweep(1))
	if n := s.cloud.Count(fake.MethodDelete); n != DefaultMaxDeletes {
		t.Errorf("%d Deletes", n)
	}
}

func TestConfirm_WhatFailsIsGivenBack(t *testing.T) {
	for name, test := range map[string]struct {
		orphans int
		left    string
	}{"some were left": {8, "5"}, "all were spent": {5, "2"}} {
		t.Run(name, func(t *testing.T) {
			s := tripped(t, test.orphans)
			s.confirm(new(fmt.Sprint(test.orphans)))
			s.cloud.Fail(fake.MethodDelete, errors.New("503"), nil, errors.New("503"))
			if err := s.sweep(1); err == nil {
				t.Error("no error")
			}
			s.wantLeft(1 + test.orphans - DefaultMaxDeletes + 2)
			s.wantConfirmed(test.left)
			s.must(s.sweep(1))
			s.wantLeft(1)
			s.wantConfirmed("")
		})
	}
}

// A manager may change what a person gave and not give any itself, whatever fails: an admission policy forbids that.
func TestConfirm_IsNeverGivenByTheOperator(t *testing.T) {
	s := tripped(t, 5)
	s.confirm(new("5"))
	s.cloud.Hook(fake.MethodDelete, func(fake.Call) { s.wantConfirmed("0") })
	s.must(s.sweep(1))
	s.wantConfirmed("")
	s.wantLeft(1)
}
