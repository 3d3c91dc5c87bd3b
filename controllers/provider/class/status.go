package class

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// giveUp is how a person gives up what a provider does not delete.
	giveUp = "set the annotation " + v1alpha1.AnnotationSkipCleanup + `="true"`
	// wayOut is how a person gets out of a deletion that waits for a provider.
	wayOut = ". To give its instances up, " + giveUp
	// messageMax bounds the message of a condition, in bytes.
	messageMax = 2048
)

// compose makes the status of a class anew, whole; what the garbage collection wrote is kept.
func compose(class *v1alpha1.ProviderClass, f findings, now time.Time) v1alpha1.ProviderClassStatus {
	next := *class.Status.DeepCopy()
	next.ObservedGeneration = class.Generation
	next.EgressScope = string(egressScope(&class.Spec))
	set := func(kind string, value metav1.ConditionStatus, reason, message string) {
		if len(message) > messageMax {
			message = strings.ToValidUTF8(message[:messageMax], "")
		}
		meta.SetStatusCondition(&next.Conditions, metav1.Condition{
			Type: kind, Status: value, Reason: reason, Message: message,
			ObservedGeneration: class.Generation, LastTransitionTime: metav1.NewTime(now),
		})
	}
	next.Hosts = f.hosts
	way := ""
	switch {
	case class.DeletionTimestamp.IsZero():
	case f.proxies > 0:
		way = ". The class is " + heldByProxies(f)
	default:
		way = wayOut
	}
	if len(f.problems) > 0 {
		set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, acceptedReason(f.problems), f.problems.ToAggregate().Error())
		set(v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonNotChecked, "the configuration is not valid"+way)
		return next
	}
	set(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "the configuration is valid")
	ready := standing(class)
	switch {
	case f.err == nil && !class.DeletionTimestamp.IsZero():
		set(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonTerminating, leavingMessage(f))
	case f.err == nil:
		set(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReachable, "the provider answers")
	case ready != nil && (f.doubted || providers.ReasonOf(f.err) == providers.RateLimited):
		// A first failure in a row, and a provider that asks to slow down, say nothing that is not known.
		set(ready.Type, ready.Status, ready.Reason, ready.Message)
	case providers.ReasonOf(f.err) == providers.RateLimited:
		set(v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonRateLimited, providers.StableMessage(f.err))
	default:
		set(v1alpha1.ConditionReady, metav1.ConditionFalse, unusable(f.err), providers.StableMessage(f.err)+way)
	}
	return next
}

// leavingMessage says what keeps a class that is being deleted, and how a person lets it go.
func leavingMessage(f findings) string {
	switch {
	case f.proxies > 0:
		return "the class is being deleted; it is " + heldByProxies(f)
	case f.instances > 0:
		return fmt.Sprintf("the class is being deleted; the provider still has %d of its instances, which are collected as orphans", f.instances) + wayOut
	}
	return "the class is being deleted"
}

func heldByProxies(f findings) string {
	const unstick = ". To give the instance of a Proxy up whose deletion does not get on, " + giveUp + " on the Proxy"
	if f.proxies == 1 {
		return fmt.Sprintf("held by 1 Proxy, %s: delete it, or the pool that it belongs to", f.proxy) + unstick
	}
	return fmt.Sprintf("held by %d Proxies, such as %s: delete them, or the pools that they belong to", f.proxies, f.proxy) + unstick
}

// standing is what Ready says of this specification of the class; nil when nothing is known of it.
func standing(class *v1alpha1.ProviderClass) *metav1.Condition {
	ready := meta.FindStatusCondition(class.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Status == metav1.ConditionUnknown || ready.ObservedGeneration != class.Generation {
		return nil
	}
	return ready
}

// answers tells whether the provider answered when it was last asked.
func answers(class *v1alpha1.ProviderClass) bool {
	ready := standing(class)
	return ready != nil && (ready.Status == metav1.ConditionTrue || ready.Reason == v1alpha1.ReasonTerminating)
}

// acceptedReason tells a configuration that is wrong from one that the provider cannot do.
func acceptedReason(problems field.ErrorList) string {
	for _, problem := range problems {
		if problem.Type != field.ErrorTypeNotSupported {
			return v1alpha1.ReasonInvalidConfig
		}
	}
	return v1alpha1.ReasonUnsupported
}

// unusable is the reason why a class or a host cannot be used.
func unusable(err error) string {
	if providers.ReasonOf(err) == providers.Auth {
		return v1alpha1.ReasonAuthFailed
	}
	return v1alpha1.ReasonUnreachable
}

// egressScope is the scope that holds for a class: pods leave by their nodes' addresses, machines by their own.
func egressScope(spec *v1alpha1.ProviderClassSpec) v1alpha1.EgressScope {
	switch {
	case spec.EgressScope != "":
		return spec.EgressScope
	case spec.Type == v1alpha1.ProviderKubernetes:
		return v1alpha1.EgressShared
	}
	return v1alpha1.EgressPerInstance
}
