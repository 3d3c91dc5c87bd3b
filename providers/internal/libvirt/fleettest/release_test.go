package fleettest

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers/kvm2"
)

// TestV31_AStuckDeletionIsReleasedByAnnotation: the host is off, so the deletion says why it does not go on; the annotation
// gives the machine up.
func TestV31_AStuckDeletionIsReleasedByAnnotation(t *testing.T) {
	b := newBed(t, kvm2.NewFactory(), 1)
	b.start()
	px := b.proxy("px")
	b.must(b.env.Client.Create(t.Context(), px))
	b.settle()
	b.Hosts[0].SSHD.Kill()
	b.Hosts[0].Link.Cut()
	b.must(b.env.Client.Delete(t.Context(), px))
	read := func() (*v1alpha1.Proxy, error) {
		now := &v1alpha1.Proxy{}
		return now, b.env.Client.Get(t.Context(), client.ObjectKeyFromObject(px), now)
	}
	b.eventually("the deletion is blocked", func() bool {
		now, err := read()
		b.must(err)
		c := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionCleanupBlocked)
		return c != nil && c.Status == "True" && c.Reason == v1alpha1.ReasonProviderUnreachable
	})
	now, err := read()
	b.must(err)
	patch := client.MergeFrom(now.DeepCopy())
	now.Annotations = map[string]string{v1alpha1.AnnotationSkipCleanup: "true"}
	b.must(b.env.Client.Patch(t.Context(), now, patch))
	b.eventually("the Proxy is released", func() bool {
		_, err := read()
		return apierrors.IsNotFound(err)
	})
	if n := len(b.machines()); n != 1 {
		t.Errorf("%d machines; the one that was given up should be left as it is", n)
	}
}

func (b *bed) eventually(what string, holds func() bool) {
	b.t.Helper()
	if err := wait.PollUntilContextTimeout(b.t.Context(), pollPeriod, settleLimit, true, func(context.Context) (bool, error) { return holds(), nil }); err != nil {
		b.t.Fatalf("%s: not within %s", what, settleLimit)
	}
}
