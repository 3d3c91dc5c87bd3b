package instance

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// TestADeletionThatMeetsAnotherWriterIsNoLoss: a changed specification wakes core too, whose write most often lands while
// the provider deletes. Where the instance is gone at once, that must not look as if somebody else had taken it.
func TestADeletionThatMeetsAnotherWriterIsNoLoss(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	px := s.running("px")
	s.cloud.Hook(fake.MethodDelete, func(fake.Call) {
		now := s.get(px)
		next := now.Status.DeepCopy()
		next.ObservedGeneration = now.Generation
		s.must(statusapply.Proxy(context.Background(), s.client, v1alpha1.ManagerCore, now, next))
	})
	px.Spec.Port = 8080
	s.must(s.client.Update(t.Context(), px))
	reasons := map[string]bool{}
	s.run(px, time.Hour, func() bool {
		now := &v1alpha1.Proxy{}
		s.must(s.client.Get(t.Context(), client.ObjectKeyFromObject(px), now))
		reasons[meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionProvisioned).Reason] = true
		return s.provisioned(px)() && now.EndpointPort() == 8080
	})
	if reasons[v1alpha1.ReasonInstanceMissing] || reasons[v1alpha1.ReasonInstanceLost] || !reasons[v1alpha1.ReasonReplacing] {
		t.Errorf("reasons %v, want %s and no loss", reasons, v1alpha1.ReasonReplacing)
	}
	s.wantInstances(1)
}
