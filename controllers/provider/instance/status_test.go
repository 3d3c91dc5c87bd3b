package instance

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// What an instance waits for while it starts is said where people look; in every other state the instance's message is about
// something else.
func TestProvisionedSaysWhatAnInstanceThatStartsWaitsFor(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		action   Action
		state    providers.State
		instance string
		want     string
	}{
		"an image":                {Action{Reason: v1alpha1.ReasonStarting}, providers.StatePending, "the image of the class cannot be pulled", "the instance is starting: the image of the class cannot be pulled"},
		"nothing is said":         {Action{Reason: v1alpha1.ReasonStarting}, providers.StatePending, "", "the instance is starting"},
		"it runs":                 {Action{Reason: v1alpha1.ReasonRunning}, providers.StateRunning, "Squid has ended and is started again", "the instance runs and has an address"},
		"it is taken away":        {Action{Reason: v1alpha1.ReasonReplacing}, providers.StateTerminating, "the pod is being deleted", "the instance is being deleted to be made anew"},
		"it is not made yet":      {Action{Reason: v1alpha1.ReasonWaitingForCapacity, Message: "no room"}, providers.StatePending, "the last one", "no room"},
		"the operator knows more": {Action{Reason: v1alpha1.ReasonStarting, Message: "more"}, providers.StatePending, "less", "more"},
	} {
		status := compose(v1alpha1.ProxyStatus{}, composition{
			action: c.action, now: now, instance: v1alpha1.Instance{ID: "i", State: string(c.state), Message: c.instance},
		})
		provisioned := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProvisioned)
		if provisioned == nil || provisioned.Message != c.want || (provisioned.Status == metav1.ConditionTrue) != (c.state == providers.StateRunning) {
			t.Errorf("%s: %+v, want %q", name, provisioned, c.want)
		}
	}
}
