package instance

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// wipe takes the status away, as a restore from a backup does, and touches the Proxy so that everybody looks.
func (s *together) wipe(px *v1alpha1.Proxy) {
	t := s.bed.t
	t.Helper()
	empty := []byte(`{"status":{"binding":null,"instance":null,"conditions":null,"health":null,"phase":null}}`)
	s.must(s.client.Status().Patch(t.Context(), s.get(px), client.RawPatch(types.MergePatchType, empty)))
	s.must(s.client.Patch(t.Context(), s.get(px), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"wiped":"yes"}}}`))))
}

func TestWipedStatus_IsFoundAgain(t *testing.T) {
	s, px := working(t)
	s.wipe(px)
	s.queue.run("it works again", time.Hour, s.works(px))
	s.wantInstances(1)
}

// A deletion goes on although nothing but the finalizer tells of an instance.
func TestWipedStatus_WhileDeleting(t *testing.T) {
	s, px := working(t)
	mend := s.fails(fake.MethodDelete, providers.Unavailable)
	s.must(s.client.Delete(t.Context(), s.get(px)))
	s.queue.run("", 5*time.Minute, nil)
	s.wipe(px)
	mend()
	s.queue.run("it is gone", 15*time.Minute, s.gone(px))
	s.wantInstances(0)
}

// Without a class nobody can clean up, and the Proxy says how to get out.
func TestWipedStatus_WhileDeletingWithoutClass(t *testing.T) {
	s, px := working(t)
	s.fails(fake.MethodDelete, providers.Unavailable)
	s.must(s.client.Delete(t.Context(), s.get(px)))
	s.queue.run("", 5*time.Minute, nil)
	s.removeClass()
	s.wipe(px)
	s.queue.run("", 5*time.Minute, nil)
	ready := meta.FindStatusCondition(s.get(px).Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || !strings.Contains(ready.Message, v1alpha1.AnnotationSkipCleanup) {
		t.Errorf("Ready is %+v", ready)
	}
	s.giveUp(px)
}
