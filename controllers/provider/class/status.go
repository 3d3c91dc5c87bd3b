package class

import (
	"errors"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// wayOut is how a person gets out of a deletion that waits for a provider.
	wayOut = ". To give its instances up, set the annotation " + v1alpha1.AnnotationSkipCleanup + `="true"`
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
	if len(f.problems) > 0 {
		set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalidConfig, f.problems.ToAggregate().Error())
		set(v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonNotChecked, "the configuration is not valid")
		return next
	}
	set(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "the configuration is valid")
	ready := meta.FindStatusCondition(next.Conditions, v1alpha1.ConditionReady)
	switch {
	case f.err == nil:
		set(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReachable, "the provider answers")
	case ready != nil && ready.Status != metav1.ConditionUnknown && uninformative(f, ready.Status):
		set(ready.Type, ready.Status, ready.Reason, ready.Message)
	case providers.ReasonOf(f.err) == providers.RateLimited:
		set(v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonRateLimited, providers.StableMessage(f.err))
	default:
		message := providers.StableMessage(f.err)
		if !class.DeletionTimestamp.IsZero() {
			message += wayOut
		}
		set(v1alpha1.ConditionReady, metav1.ConditionFalse, readyReason(f.err), message)
	}
	return next
}

// uninformative tells whether a failed check says nothing that is not known: a first failure in a row, a provider that
// asks to slow down, and a breaker that is open because of failures that were reported already.
func uninformative(f findings, now metav1.ConditionStatus) bool {
	return f.doubted || providers.ReasonOf(f.err) == providers.RateLimited ||
		(now == metav1.ConditionFalse && errors.Is(f.err, providers.ErrBreakerOpen))
}

func readyReason(err error) string {
	switch {
	case errors.Is(err, providers.ErrBreakerOpen):
		return v1alpha1.ReasonBreakerOpen
	case providers.ReasonOf(err) == providers.Auth:
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

func isReady(class *v1alpha1.ProviderClass) bool {
	return meta.IsStatusConditionTrue(class.Status.Conditions, v1alpha1.ConditionReady)
}
