package proxy

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// acceptance is whether a ProviderClass has taken a Proxy, as the Accepted condition says it.
type acceptance struct {
	status          metav1.ConditionStatus
	reason, message string
	// binding to record; nil as long as there is none. It is written once and never changed.
	binding *v1alpha1.Binding
	// waiting for a provider manager that has not looked at the class: most likely none runs.
	waiting bool
}

func refused(reason, format string, args ...any) acceptance {
	return acceptance{status: metav1.ConditionFalse, reason: reason, message: fmt.Sprintf(format, args...)}
}

// accept decides about the binding. A missing or unfinished class is no error: its events come here again.
func accept(px *v1alpha1.Proxy, in Input) acceptance {
	switch {
	case px.Spec.Mode == v1alpha1.ModeExternal:
		return acceptance{status: metav1.ConditionTrue, reason: v1alpha1.ReasonExternal, message: "The proxy exists elsewhere and is only tracked."}
	case px.Status.Binding != nil && px.Status.Binding.Type != "":
		return acceptBound(px, in)
	default:
		return bind(px, in)
	}
}

// acceptBound keeps the binding whatever happens to the class: a running proxy is not taken away by a change of its class.
func acceptBound(px *v1alpha1.Proxy, in Input) acceptance {
	out := acceptance{
		status: metav1.ConditionTrue, reason: v1alpha1.ReasonBound,
		message: fmt.Sprintf("Provisioned by ProviderClass %s.", px.Status.Binding.ClassName),
		binding: px.Status.Binding,
	}
	switch class := in.Class; {
	case class == nil:
		out.reason = v1alpha1.ReasonClassNotFound
		out.message = fmt.Sprintf("ProviderClass %s is gone. The instance is kept; replacing or deleting it needs the class, or the annotation %s=true to abandon it.",
			px.Status.Binding.ClassName, v1alpha1.AnnotationSkipCleanup)
	case class.UID != px.Status.Binding.ClassUID:
		out.reason = v1alpha1.ReasonClassReplaced
		out.message = fmt.Sprintf("ProviderClass %s was deleted and made again. The instance of the former class is kept and not replaced; to delete the proxy, set the annotation %s=true, which abandons the instance.",
			class.Name, v1alpha1.AnnotationSkipCleanup)
	case cloudInitDenied(px, class) && !acceptedThisGeneration(px):
		out = cloudInitRefusal(class)
		out.binding = px.Status.Binding
	default:
		accepted := meta.FindStatusCondition(class.Status.Conditions, v1alpha1.ConditionAccepted)
		out.waiting = accepted == nil || accepted.Status == metav1.ConditionUnknown
	}
	return out
}

// bind decides whether the class takes an unbound Proxy.
func bind(px *v1alpha1.Proxy, in Input) acceptance {
	class := in.Class
	boundTime := metav1.NewTime(in.Now)
	taken := func() acceptance {
		return acceptance{
			status: metav1.ConditionTrue, reason: v1alpha1.ReasonBound,
			message: fmt.Sprintf("Provisioned by ProviderClass %s.", class.Name),
			binding: &v1alpha1.Binding{Type: class.Spec.Type, ClassName: class.Name, ClassUID: class.UID, BoundTime: &boundTime},
		}
	}
	if class != nil && slices.Contains(px.Finalizers, v1alpha1.FinalizerInstance(class.Spec.Type)) && foreignInstanceFinalizer(px, class.Spec.Type) == "" {
		// It was bound before and its status was lost. Whatever forbids to take it anew, only a bound one is cleaned up.
		return taken()
	}
	if class == nil {
		return refused(v1alpha1.ReasonClassNotFound, "spec.provider: ProviderClass %s does not exist.", px.Spec.Provider)
	}
	if !class.DeletionTimestamp.IsZero() {
		return refused(v1alpha1.ReasonClassTerminating, "ProviderClass %s is being deleted.", class.Name)
	}
	switch accepted := meta.FindStatusCondition(class.Status.Conditions, v1alpha1.ConditionAccepted); {
	case accepted == nil || accepted.Status == metav1.ConditionUnknown:
		out := refused(v1alpha1.ReasonClassNotAccepted, "No provider manager of type %s has looked at ProviderClass %s yet.", class.Spec.Type, class.Name)
		out.waiting = true
		return out
	case accepted.Status == metav1.ConditionFalse:
		return refused(v1alpha1.ReasonClassNotAccepted, "ProviderClass %s is not accepted: %s: %s", class.Name, accepted.Reason, accepted.Message)
	}
	if problem := admits(class, in.NamespaceLabels); problem != "" {
		return refused(v1alpha1.ReasonNamespaceNotAllowed, "ProviderClass %s does not admit namespace %s: %s", class.Name, px.Namespace, problem)
	}
	if cloudInitDenied(px, class) {
		return cloudInitRefusal(class)
	}
	// An instance of an earlier binding may still exist behind its finalizer, for instance after status was lost in a
	// restore. The manager of another type would never find it.
	if other := foreignInstanceFinalizer(px, class.Spec.Type); other != "" {
		return refused(v1alpha1.ReasonClassReplaced, "The finalizer %s of an earlier provider is still there, and ProviderClass %s is of type %s.", other, class.Name, class.Spec.Type)
	}
	if !px.DeletionTimestamp.IsZero() {
		return refused(v1alpha1.ReasonTerminating, "The proxy is being deleted.")
	}
	return taken()
}

// admits is why a class does not admit a namespace; "" when it does.
func admits(class *v1alpha1.ProviderClass, namespace map[string]string) string {
	access := class.Spec.AllowedNamespaces
	switch access.From {
	case v1alpha1.NamespacesFromAll:
		return ""
	case v1alpha1.NamespacesFromSelector:
		selector, err := metav1.LabelSelectorAsSelector(access.Selector)
		if err != nil {
			return "spec.allowedNamespaces.selector is not valid."
		}
		if !selector.Matches(labels.Set(namespace)) {
			return "spec.allowedNamespaces.selector does not match the labels of the namespace."
		}
		return ""
	default:
		return fmt.Sprintf("spec.allowedNamespaces.from %q is unknown.", access.From)
	}
}

func cloudInitDenied(px *v1alpha1.Proxy, class *v1alpha1.ProviderClass) bool {
	return px.Spec.CloudInit != nil && class.Spec.UserCloudInit == v1alpha1.UserCloudInitDenied
}

func cloudInitRefusal(class *v1alpha1.ProviderClass) acceptance {
	return refused(v1alpha1.ReasonCloudInitDenied, "spec.cloudInit is set, and ProviderClass %s denies user data.", class.Name)
}

// acceptedThisGeneration: a class change applies to new instances only, so what was accepted stays so until the Proxy
// itself changes.
func acceptedThisGeneration(px *v1alpha1.Proxy) bool {
	accepted := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionAccepted)
	return accepted != nil && accepted.Status == metav1.ConditionTrue && accepted.ObservedGeneration == px.Generation
}

// foreignInstanceFinalizer is a provider's finalizer on px that is not that of type t; "" when there is none.
func foreignInstanceFinalizer(px *v1alpha1.Proxy, t v1alpha1.ProviderType) string {
	for _, name := range instanceFinalizers(px) {
		if name != v1alpha1.FinalizerInstance(t) {
			return name
		}
	}
	return ""
}

// instanceFinalizers are those of provider managers: an instance may exist for each.
func instanceFinalizers(px *v1alpha1.Proxy) []string {
	var names []string
	for _, name := range px.Finalizers {
		if strings.HasPrefix(name, v1alpha1.FinalizerInstancePrefix) {
			names = append(names, name)
		}
	}
	return names
}
