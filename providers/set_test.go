package providers_test

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

func classOf(uid types.UID, generation int64) *v1alpha1.ProviderClass {
	return &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: uid, Generation: generation}}
}

func newSet() (*providers.Set, *fake.Cloud) {
	cloud := fake.NewCloud(clock.RealClock{}, fake.Behaviour{})
	return providers.NewSet(&fake.Factory{Cloud: cloud}, providers.Runtime{ClusterID: "cluster"}, nil), cloud
}

func mustOpen(t *testing.T, s *providers.Set, class *v1alpha1.ProviderClass) providers.Provider {
	t.Helper()
	p, err := s.Open(t.Context(), class)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// isClosed waits, since a Set closes in the background.
func isClosed(t *testing.T, p providers.Provider) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for p.Check(t.Context()) == nil {
		select {
		case <-deadline:
			t.Fatal("not closed within 10s")
		case <-time.After(time.Millisecond):
		}
	}
}

func TestSet_OneProviderForEachClassAndGeneration(t *testing.T) {
	s, _ := newSet()
	first := mustOpen(t, s, classOf("1", 1))
	if mustOpen(t, s, classOf("1", 1)) != first {
		t.Error("the same class was opened twice")
	}
	if mustOpen(t, s, classOf("2", 1)) == first {
		t.Error("a namesake that was made anew has the provider of its predecessor")
	}
	second := mustOpen(t, s, classOf("1", 2))
	if second == first {
		t.Error("a changed class has its old provider")
	}
	isClosed(t, first)
	if mustOpen(t, s, classOf("1", 1)) != second {
		t.Error("an old copy of the class brought the old provider back")
	}
	s.Forget("1")
	isClosed(t, second)
	third := mustOpen(t, s, classOf("1", 2))
	s.Close()
	isClosed(t, third)
	if _, err := s.Open(t.Context(), classOf("1", 2)); err == nil {
		t.Error("a closed Set opens providers")
	}
}

func TestSet_AnInvalidClassKeepsWhatIsOpen(t *testing.T) {
	s, cloud := newSet()
	first := mustOpen(t, s, classOf("1", 1))
	cloud.Reject(field.ErrorList{field.Required(field.NewPath("spec", "gcp"), "")})
	if _, err := s.Open(t.Context(), classOf("1", 2)); !errors.Is(err, providers.ErrInvalidClass) {
		t.Errorf("got %v, want ErrInvalidClass", err)
	}
	if err := first.Check(t.Context()); err != nil {
		t.Errorf("the open provider was closed: %v", err)
	}
}

func TestSet_ForwardsEvents(t *testing.T) {
	s, cloud := newSet()
	mustOpen(t, s, classOf("1", 1))
	mustOpen(t, s, classOf("1", 2))
	owner := providers.Owner{Namespace: "ns", Name: "px"}
	cloud.Notify(owner)
	select {
	case e := <-s.Events():
		if e.Object != owner {
			t.Errorf("got %+v", e.Object)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("no event within 10s")
	}
}
