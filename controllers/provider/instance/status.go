package instance

import (
	"cmp"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// StuckDeletion is how long a provider may take to delete an instance before that counts as blocked: long for a slow one,
// and soon enough for somebody to look before it costs much.
const StuckDeletion = 15 * time.Minute

// wayOut is how a person gets out of a blocked deletion.
const wayOut = ". To give the instance up, set the annotation " + v1alpha1.AnnotationSkipCleanup + `="true"`

// messages of the Provisioned condition for reasons that bring none.
var messages = map[string]string{
	v1alpha1.ReasonRunning:          "the instance runs and has an address",
	v1alpha1.ReasonCreating:         "the instance is being created",
	v1alpha1.ReasonStarting:         "the instance is starting",
	v1alpha1.ReasonDeleting:         "the instance is being deleted",
	v1alpha1.ReasonReplacing:        "the instance is being deleted to be made anew",
	v1alpha1.ReasonSpecChanged:      "the instance is replaced because the specification or its user data changed",
	v1alpha1.ReasonInstanceFailed:   "the instance stopped or failed",
	v1alpha1.ReasonInstanceMissing:  "the provider does not find the instance; it is asked once more",
	v1alpha1.ReasonInstanceLost:     "the instance is gone without the operator's doing",
	v1alpha1.ReasonProvisionTimeout: "the instance did not run in time",
	v1alpha1.ReasonCreateVanished:   "an attempt to create the instance came to nothing, often for lack of quota or capacity",
	v1alpha1.ReasonNameCollision:    "the instance's name is held by an instance of another owner, which is left alone",
	v1alpha1.ReasonPending:          "waiting for its turn",
}

func messageOf(a Action) string { return cmp.Or(a.Message, messages[a.Reason]) }

// message of the Provisioned condition. What an instance waits for while it starts is the provider's to say; that it does is
// the likeliest trouble of a new class.
func (c composition) message() string {
	if c.action.Reason == v1alpha1.ReasonStarting && c.action.Message == "" && c.instance.Message != "" {
		return messages[v1alpha1.ReasonStarting] + ": " + c.instance.Message
	}
	return messageOf(c.action)
}

// composition is everything the status is made from.
type composition struct {
	generation int64
	action     Action
	desired    Desired
	// cloudInit tells whether the specification has user data; unresolved why it cannot be had.
	cloudInit  bool
	unresolved *Finding
	// unanswered tells that the provider could not be asked or did not answer, so that nothing new is known.
	unanswered bool
	// blocked is why the deletion does not get on.
	blocked  *Finding
	instance v1alpha1.Instance
	now      time.Time
}

// compose makes the provider's slice of the status anew, whole; the rest of current is left as it is.
func compose(current v1alpha1.ProxyStatus, c composition) v1alpha1.ProxyStatus {
	next := *current.DeepCopy()
	if !equality.Semantic.DeepEqual(c.instance, v1alpha1.Instance{}) {
		next.Instance = c.instance.DeepCopy()
	}
	c.provisioned(&next)
	if c.desired.Deleting {
		c.cleanup(&next)
		return next
	}
	c.upToDate(&next)
	c.cloudInitReady(&next)
	meta.RemoveStatusCondition(&next.Conditions, v1alpha1.ConditionCleanupBlocked)
	return next
}

func (c composition) set(status *v1alpha1.ProxyStatus, kind string, value metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: kind, Status: value, Reason: reason, Message: message,
		ObservedGeneration: c.generation, LastTransitionTime: metav1.NewTime(c.now),
	})
}

func (c composition) provisioned(status *v1alpha1.ProxyStatus) {
	running := meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionProvisioned)
	switch {
	case c.action.Reason == v1alpha1.ReasonRunning:
		c.set(status, v1alpha1.ConditionProvisioned, metav1.ConditionTrue, c.action.Reason, messageOf(c.action))
	case running && (c.unanswered || c.action.Reason == v1alpha1.ReasonInstanceMissing):
		// A provider that does not answer, or that misses an instance once, says nothing about a proxy that ran: its
		// health is probed through itself.
	case c.action.Reason == v1alpha1.ReasonRateLimited:
		// It is the class that must slow down.
	case c.unanswered:
		c.set(status, v1alpha1.ConditionProvisioned, metav1.ConditionUnknown, c.action.Reason, messageOf(c.action))
	case c.action.Reason != "":
		c.set(status, v1alpha1.ConditionProvisioned, metav1.ConditionFalse, c.action.Reason, c.message())
	}
}

func (c composition) upToDate(status *v1alpha1.ProxyStatus) {
	kind, hold := v1alpha1.ConditionUpToDate, c.desired.Hold
	outdated := false
	if now := meta.FindStatusCondition(status.Conditions, kind); now != nil {
		outdated = now.Status == metav1.ConditionFalse && now.Reason == v1alpha1.ReasonSpecChanged
	}
	replaced := func() {
		c.set(status, kind, metav1.ConditionFalse, v1alpha1.ReasonSpecChanged, "the specification or its user data changed and the instance is replaced")
	}
	switch {
	case outdated && c.action.Reason != v1alpha1.ReasonRunning && !c.desired.OnDelete:
		// A replacement is over when the new instance runs. Until then this is how a restarted manager knows of it.
		replaced()
	case c.instance.ID == "":
		meta.RemoveStatusCondition(&status.Conditions, kind)
	case hold != nil && hold.Reason == v1alpha1.ReasonInvalidSpec:
		c.set(status, kind, metav1.ConditionFalse, hold.Reason, hold.Message)
	case c.desired.Hash == "":
		if c.unresolved != nil {
			c.set(status, kind, metav1.ConditionUnknown, c.unresolved.Reason, c.unresolved.Message)
		}
	case !providers.HashDiffers(c.instance.Hash, c.desired.Hash):
		c.set(status, kind, metav1.ConditionTrue, v1alpha1.ReasonUpToDate, "the instance is what the specification asks for")
	case c.desired.OnDelete:
		c.set(status, kind, metav1.ConditionFalse, v1alpha1.ReasonSpecChanged, "the specification or its user data changed; spec.replacePolicy leaves the replacement to the owner")
	default:
		replaced()
	}
}

func (c composition) cloudInitReady(status *v1alpha1.ProxyStatus) {
	kind := v1alpha1.ConditionCloudInitReady
	switch {
	case !c.cloudInit:
		meta.RemoveStatusCondition(&status.Conditions, kind)
	case c.unresolved != nil:
		c.set(status, kind, metav1.ConditionFalse, c.unresolved.Reason, c.unresolved.Message)
	default:
		c.set(status, kind, metav1.ConditionTrue, v1alpha1.ReasonCloudInitResolved, "the user data is resolved")
	}
}

func (c composition) cleanup(status *v1alpha1.ProxyStatus) {
	kind := v1alpha1.ConditionCleanupBlocked
	now := meta.FindStatusCondition(status.Conditions, kind)
	leaving := c.instance.State == string(providers.StateTerminating) && c.action.Reason == v1alpha1.ReasonDeleting
	switch {
	case c.blocked != nil:
		c.set(status, kind, metav1.ConditionTrue, c.blocked.Reason, c.blocked.Message+wayOut)
	case c.action.Reason == v1alpha1.ReasonRateLimited:
	case leaving && now != nil && (now.Reason == v1alpha1.ReasonStillTerminating ||
		(now.Status == metav1.ConditionFalse && c.now.Sub(now.LastTransitionTime.Time) >= StuckDeletion)):
		c.set(status, kind, metav1.ConditionTrue, v1alpha1.ReasonStillTerminating, "the provider accepted to delete the instance and it still exists"+wayOut)
	case leaving || now != nil:
		// The transition time is when the provider accepted the deletion.
		c.set(status, kind, metav1.ConditionFalse, v1alpha1.ReasonNotBlocked, "the deletion gets on")
	}
}
