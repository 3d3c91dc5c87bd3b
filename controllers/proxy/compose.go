package proxy

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/health"
)

// Input is what core's part of a Proxy's status is made from, besides the Proxy itself.
type Input struct {
	// Class named by spec.provider; nil when there is none.
	Class *v1alpha1.ProviderClass
	// NamespaceLabels are those of the Proxy's namespace.
	NamespaceLabels map[string]string
	// Verdict of the health engine; nil when the proxy is not probed.
	Verdict *health.Verdict
	// Problem says why the proxy cannot be probed; it wins over the verdict.
	Problem *Problem
	// Leases that hold the proxy. LeasesKnown is false while leasing recovers them.
	Leases      int
	LeasesKnown bool
	Now         time.Time
}

// Problem is why a proxy cannot be probed, as the Healthy condition says it.
type Problem struct {
	Reason, Message string
}

// Compose computes core's whole slice of the status (see v1alpha1.ProxySlice) in one go, so that a change of health,
// however many fields it touches, is one write. It is pure; px is not changed. What others own is passed through.
func Compose(px *v1alpha1.Proxy, in Input) v1alpha1.ProxyStatus {
	c := composer{px: px, in: in, out: *px.Status.DeepCopy()}
	c.out.ObservedGeneration = px.Generation
	c.acceptance = accept(px, in)
	c.out.Binding = c.acceptance.binding
	c.set(v1alpha1.ConditionAccepted, c.acceptance.status, c.acceptance.reason, c.acceptance.message)
	if px.Spec.Mode == v1alpha1.ModeExternal {
		c.provideExternal()
	}
	if c.probeable() || c.has(v1alpha1.ConditionHealthy) {
		c.setHealth()
		c.setAccessRestricted()
	}
	if c.draining() || c.has(v1alpha1.ConditionDrained) {
		c.setDrained()
	}
	c.setReady()
	c.out.EgressIdentity = egressIdentity(px, in.Class, &c.out)
	c.out.Phase = c.phase()
	return c.out
}

type composer struct {
	px         *v1alpha1.Proxy
	in         Input
	out        v1alpha1.ProxyStatus
	acceptance acceptance
}

func (c *composer) set(condition string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&c.out.Conditions, metav1.Condition{
		Type: condition, Status: status, Reason: reason, Message: message,
		ObservedGeneration: c.px.Generation, LastTransitionTime: metav1.NewTime(c.in.Now),
	})
}

func (c *composer) get(condition string) metav1.Condition {
	if found := meta.FindStatusCondition(c.out.Conditions, condition); found != nil {
		return *found
	}
	return metav1.Condition{Type: condition, Status: metav1.ConditionUnknown}
}

func (c *composer) has(condition string) bool {
	return meta.FindStatusCondition(c.out.Conditions, condition) != nil
}

func (c *composer) deleting() bool { return !c.px.DeletionTimestamp.IsZero() }

// draining tells whether somebody wants the proxy to be empty.
func (c *composer) draining() bool { return len(c.px.Spec.DrainRequests) > 0 || c.deleting() }

// probeable tells whether there is anything to say of the health. Conditions that say no more than their absence are not
// written: each makes all writes of the object dearer.
func (c *composer) probeable() bool { return endpointHost(c.out.Instance) != "" || c.in.Problem != nil }

// provideExternal stands in for the provider manager, which an External proxy does not have.
func (c *composer) provideExternal() {
	c.out.Instance = externalInstance(c.px)
	c.set(v1alpha1.ConditionProvisioned, metav1.ConditionTrue, v1alpha1.ReasonExternal, "The address is that of spec.external.")
}

func (c *composer) setHealth() {
	status, reason, message := metav1.ConditionUnknown, v1alpha1.ReasonNotProbed, "No probe has decided yet."
	instance, verdict := c.out.Instance, c.in.Verdict
	c.out.Health = nil
	switch {
	case c.in.Problem != nil:
		reason, message = c.in.Problem.Reason, c.in.Problem.Message
	case endpointHost(instance) == "", verdict == nil:
	case verdict.InstanceID != instance.ID:
		// A result of the previous instance says nothing about this one.
		reason, message = v1alpha1.ReasonInstanceChanged, "The instance is new and was not probed yet."
	default:
		reason, message = cmp.Or(verdict.Reason, reason), cmp.Or(verdict.Message, message)
		c.out.Health = &v1alpha1.Health{InstanceID: verdict.InstanceID, EgressIP: verdict.EgressIP}
		if verdict.Known {
			status = metav1.ConditionFalse
			if verdict.Healthy {
				status = metav1.ConditionTrue
			}
			if !verdict.LastTransition.IsZero() {
				at := metav1.NewTime(verdict.LastTransition)
				c.out.Health.LastHealthCheckTime = &at
			}
		}
	}
	c.set(v1alpha1.ConditionHealthy, status, reason, message)
}

func (c *composer) setAccessRestricted() {
	if c.px.Spec.Mode == v1alpha1.ModeExternal {
		c.set(v1alpha1.ConditionAccessRestricted, metav1.ConditionUnknown, v1alpha1.ReasonNotManaged, "What an External proxy refuses is its owner's matter.")
		return
	}
	status, reason, message := metav1.ConditionUnknown, v1alpha1.ReasonNotProbed, "It is not known yet whether the proxy refuses what it should refuse."
	if c.out.Health != nil {
		verdict := c.in.Verdict
		switch {
		case verdict.AccessRestricted == nil:
			reason = cmp.Or(verdict.AccessReason, reason)
		case *verdict.AccessRestricted:
			status, reason = metav1.ConditionTrue, cmp.Or(verdict.AccessReason, v1alpha1.ReasonRestricted)
			message = "Loopback and metadata addresses are refused, and so are strangers where credentials are set."
		default:
			status, reason = metav1.ConditionFalse, cmp.Or(verdict.AccessReason, v1alpha1.ReasonOpen)
			message = "The proxy does what it should refuse, so it is not leased."
		}
	}
	c.set(v1alpha1.ConditionAccessRestricted, status, reason, message)
}

func (c *composer) setDrained() {
	switch {
	case !c.draining():
		c.set(v1alpha1.ConditionDrained, metav1.ConditionFalse, v1alpha1.ReasonNotRequested, "Nobody asks for the proxy to be empty.")
	case !c.in.LeasesKnown || c.in.Leases > 0:
		c.set(v1alpha1.ConditionDrained, metav1.ConditionFalse, v1alpha1.ReasonDraining, c.drainingMessage())
	default:
		c.set(v1alpha1.ConditionDrained, metav1.ConditionTrue, v1alpha1.ReasonDrained, "No lease holds the proxy.")
	}
}

// setReady sums up. AccessRestricted is a gate of leasing and not of Ready: Ready says that the proxy works, and a pool
// would otherwise replace proxies because of a rule that it cannot change. The message tells it.
func (c *composer) setReady() {
	provisioned, healthy := c.get(v1alpha1.ConditionProvisioned), c.get(v1alpha1.ConditionHealthy)
	no := func(reason, message string) { c.set(v1alpha1.ConditionReady, metav1.ConditionFalse, reason, message) }
	switch {
	case c.deleting():
		no(v1alpha1.ReasonTerminating, c.deletionMessage())
	case c.acceptance.waiting && provisioned.Status != metav1.ConditionTrue:
		no(v1alpha1.ReasonWaitingForProviderManager, fmt.Sprintf("No provider manager for ProviderClass %s is at work.", c.px.Spec.Provider))
	case c.acceptance.status != metav1.ConditionTrue:
		no(v1alpha1.ReasonNotAccepted, c.acceptance.message)
	case provisioned.Status != metav1.ConditionTrue && untilStalled(&c.out, c.in.Now) == 0:
		no(v1alpha1.ReasonNotProvisioned, provisioned.Message)
	case provisioned.Status != metav1.ConditionTrue && underWay(provisioned.Reason):
		no(v1alpha1.ReasonNotProvisioned, "The instance is on its way; the condition Provisioned says how far.")
	case provisioned.Status != metav1.ConditionTrue:
		no(v1alpha1.ReasonNotProvisioned, provisioned.Reason+": "+provisioned.Message)
	case healthy.Status == metav1.ConditionUnknown:
		no(v1alpha1.ReasonHealthUnknown, healthy.Reason+": "+healthy.Message)
	case healthy.Status != metav1.ConditionTrue:
		no(v1alpha1.ReasonNotHealthy, healthy.Reason+": "+healthy.Message)
	default:
		c.set(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, c.leasingMessage())
	}
}

// underWay tells whether a reason of Provisioned is a step that every instance goes through, or none yet. Ready does not
// repeat those: each would be a write.
func underWay(reason string) bool {
	switch reason {
	case "", v1alpha1.ReasonPending, v1alpha1.ReasonCreating, v1alpha1.ReasonStarting:
		return true
	}
	return false
}

// deletionMessage says what a deletion waits for, with the way out.
func (c *composer) deletionMessage() string {
	if blocked := c.get(v1alpha1.ConditionCleanupBlocked); blocked.Status == metav1.ConditionTrue {
		return "The deletion is blocked: " + blocked.Message
	}
	if c.out.Binding == nil && len(instanceFinalizers(c.px)) > 0 {
		return fmt.Sprintf("The deletion waits for a provider manager: %s To give the instance up, set the annotation %s=true.", c.acceptance.message, v1alpha1.AnnotationSkipCleanup)
	}
	if drainHeld(c.px) && c.get(v1alpha1.ConditionDrained).Status != metav1.ConditionTrue {
		return "The deletion waits for leases; the condition Drained says for how many, and until when."
	}
	// The provider manager says the same, where one is at work.
	switch c.acceptance.reason {
	case v1alpha1.ReasonClassNotFound, v1alpha1.ReasonClassReplaced:
		if c.out.Binding != nil {
			return c.acceptance.message
		}
	}
	return "The proxy is being deleted."
}

// leasingMessage is the message of a proxy that is ready.
func (c *composer) leasingMessage() string {
	access := c.get(v1alpha1.ConditionAccessRestricted)
	switch {
	case len(c.px.Spec.DrainRequests) > 0:
		return "The proxy works; it is being drained and takes no new leases."
	case c.px.Spec.Leasing == v1alpha1.LeasingDisabled:
		return "The proxy works; spec.leasing keeps new leases away."
	case c.px.Spec.Mode == v1alpha1.ModeExternal || access.Status == metav1.ConditionTrue:
		return "The proxy works."
	case access.Status == metav1.ConditionFalse:
		return "The proxy works but is not leased: " + access.Reason + ": it does what it should refuse."
	default:
		return "The proxy works; it is leased once it is known to refuse what it should."
	}
}

func (c *composer) phase() v1alpha1.ProxyPhase {
	provisioned := c.get(v1alpha1.ConditionProvisioned)
	switch {
	case c.deleting() && c.get(v1alpha1.ConditionDrained).Status != metav1.ConditionTrue && drainHeld(c.px):
		return v1alpha1.PhaseDraining
	case c.deleting():
		return v1alpha1.PhaseTerminating
	case c.acceptance.reason == v1alpha1.ReasonCloudInitDenied:
		return v1alpha1.PhaseFailed
	case c.acceptance.status != metav1.ConditionTrue:
		return v1alpha1.PhasePending
	case provisioned.Status != metav1.ConditionTrue:
		return c.unprovisionedPhase(provisioned.Reason)
	case len(c.px.Spec.DrainRequests) > 0:
		return v1alpha1.PhaseDraining
	}
	switch c.get(v1alpha1.ConditionHealthy).Status {
	case metav1.ConditionTrue:
		return v1alpha1.PhaseReady
	case metav1.ConditionFalse:
		return v1alpha1.PhaseUnhealthy
	}
	if c.px.Spec.Mode == v1alpha1.ModeExternal {
		return v1alpha1.PhasePending
	}
	return v1alpha1.PhaseProvisioning
}

func (c *composer) unprovisionedPhase(reason string) v1alpha1.ProxyPhase {
	switch upToDate := c.get(v1alpha1.ConditionUpToDate); {
	case reason == v1alpha1.ReasonInvalidSpec, reason == v1alpha1.ReasonNameCollision:
		return v1alpha1.PhaseFailed
	case reason == v1alpha1.ReasonReplacing, upToDate.Status == metav1.ConditionFalse && upToDate.Reason == v1alpha1.ReasonSpecChanged:
		return v1alpha1.PhaseReplacing
	}
	return v1alpha1.PhaseProvisioning
}

// Prefixes of status.egressIdentity, which say what the rest of it is.
const (
	identityGroup    = "group:"
	identityClass    = "class:"
	identityIP       = "ip:"
	identityInstance = "instance:"
)

// egressIdentity is the key under which cooldowns are shared: proxies with equal identities leave by the same exit.
func egressIdentity(px *v1alpha1.Proxy, class *v1alpha1.ProviderClass, status *v1alpha1.ProxyStatus) string {
	if px.Spec.EgressGroup != "" {
		// Groups are a namespace's own: another tenant's reports must not cool these proxies.
		return identityGroup + px.Namespace + "/" + px.Spec.EgressGroup
	}
	own := ""
	if status.Instance != nil && status.Instance.ID != "" {
		own = identityInstance + status.Instance.ID
	}
	if px.Spec.Mode != v1alpha1.ModeExternal {
		if status.Binding == nil {
			return ""
		}
		switch egressScope(class, status.Binding, px.Status.EgressIdentity) {
		case v1alpha1.EgressShared:
			return identityClass + string(status.Binding.ClassUID)
		case v1alpha1.EgressRotating:
			// The measured address is that of a moment.
			return own
		}
	}
	if status.Health != nil && status.Health.EgressIP != "" {
		return identityIP + status.Health.EgressIP
	}
	return own
}

// egressScope of the class that px is bound to. When that class is gone, the scope shows in the identity that stands.
func egressScope(class *v1alpha1.ProviderClass, binding *v1alpha1.Binding, standing string) v1alpha1.EgressScope {
	scope := v1alpha1.EgressScope("")
	switch {
	case class != nil && class.UID == binding.ClassUID:
		scope = cmp.Or(class.Spec.EgressScope, v1alpha1.EgressScope(class.Status.EgressScope))
	case strings.HasPrefix(standing, identityIP) || strings.HasPrefix(standing, identityInstance):
		scope = v1alpha1.EgressPerInstance
	}
	if scope == "" && binding.Type == v1alpha1.ProviderKubernetes {
		return v1alpha1.EgressShared
	}
	return cmp.Or(scope, v1alpha1.EgressPerInstance)
}
