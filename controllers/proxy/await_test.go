package proxy

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/health"
)

func TestAwaitVerdict(t *testing.T) {
	probing := func(px *v1alpha1.Proxy, in *Input) {
		px.Status.ObservedGeneration = px.Generation
		px.Status.Conditions[0].LastTransitionTime = metav1.NewTime(start.Add(-time.Second))
		in.Verdict = &health.Verdict{InstanceID: "i-1"}
	}
	for _, tt := range []struct {
		name   string
		change func(*v1alpha1.Proxy, *Input)
		want   time.Duration
	}{
		{"the first probe is under way", nil, FirstVerdictGrace - time.Second},
		{"it takes long", func(_ *v1alpha1.Proxy, in *Input) { in.Now = start.Add(FirstVerdictGrace) }, 0},
		{"it has decided", func(_ *v1alpha1.Proxy, in *Input) { in.Verdict.Known = true }, 0},
		{"there is none", func(_ *v1alpha1.Proxy, in *Input) { in.Verdict = nil }, 0},
		{"it cannot be probed", func(_ *v1alpha1.Proxy, in *Input) { in.Problem = &Problem{Reason: "x"} }, 0},
		{"it does not run", func(px *v1alpha1.Proxy, _ *Input) { px.Status.Conditions[0].Status = metav1.ConditionFalse }, 0},
		{"it was ready", func(px *v1alpha1.Proxy, _ *Input) {
			setCondition(px, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
		}, 0},
		{"the specification changed", func(px *v1alpha1.Proxy, _ *Input) { px.Generation++ }, 0},
		{"it is not bound yet", func(px *v1alpha1.Proxy, _ *Input) { px.Status.Binding = nil }, 0},
		{"it is being deleted", func(px *v1alpha1.Proxy, _ *Input) { px.DeletionTimestamp = new(metav1.NewTime(start)) }, 0},
		{"it is External", func(px *v1alpha1.Proxy, _ *Input) { px.Spec.Mode = v1alpha1.ModeExternal }, 0},
		{"the other manager's clock is ahead", func(px *v1alpha1.Proxy, _ *Input) {
			px.Status.Conditions[0].LastTransitionTime = metav1.NewTime(start.Add(time.Hour))
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			px, in := running(), input()
			probing(px, &in)
			if tt.change != nil {
				tt.change(px, &in)
			}
			desired := Compose(px, in)
			if got := awaitVerdict(px, &desired, in); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
