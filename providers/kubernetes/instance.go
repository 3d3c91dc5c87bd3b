package kubernetes

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// instanceOf is what a pod says about the instance.
func instanceOf(pod *corev1.Pod) providers.Instance {
	state, message := stateOf(pod)
	instance := providers.Instance{
		Ref: providers.Ref{
			Namespace:  pod.Namespace,
			Name:       pod.Name,
			Zone:       pod.Spec.NodeSelector[corev1.LabelTopologyZone],
			ID:         string(pod.UID),
			ProviderID: providerIDPrefix + pod.Namespace + "/" + pod.Name,
		},
		Owner:     ownerOf(pod),
		Hash:      pod.Annotations[v1alpha1.AnnotationInstanceHash],
		State:     state,
		CreatedAt: pod.CreationTimestamp.Time,
		Message:   message,
	}
	for _, ip := range pod.Status.PodIPs {
		instance.Addresses = append(instance.Addresses, ip.IP)
	}
	if len(instance.Addresses) == 0 && pod.Status.PodIP != "" {
		instance.Addresses = []string{pod.Status.PodIP}
	}
	return instance
}

// stateOf says what a pod is doing, with a message that stays the same while nothing happens: the kubelet alternates
// between several words for one trouble, and each change would be a write.
//
// A pod runs from the first time that Squid accepts connections, which the startup probe finds. When Squid ends or hangs
// after that, the kubelet starts it again in the same pod with the same address; that is a matter of health, and no reason
// to replace the instance. Readiness is not asked: on a busy node it comes and goes.
func stateOf(pod *corev1.Pod) (providers.State, string) {
	switch {
	case pod.DeletionTimestamp != nil:
		return providers.StateTerminating, "the pod is being deleted"
	case pod.Status.Phase == corev1.PodFailed:
		if pod.Status.Reason != "" {
			return providers.StateFailed, "the pod has failed: " + pod.Status.Reason
		}
		return providers.StateFailed, "the pod has failed"
	case pod.Status.Phase == corev1.PodSucceeded:
		return providers.StateFailed, "the pod has ended"
	}
	squid := squidStatus(pod)
	if pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "" && squid != nil {
		if ptr.Deref(squid.Started, false) {
			return providers.StateRunning, ""
		}
		if squid.RestartCount > 0 {
			return providers.StateRunning, "Squid has ended and is started again"
		}
	}
	return providers.StatePending, pendingMessage(pod, squid)
}

// pendingMessage says what a pod waits for.
func pendingMessage(pod *corev1.Pod, squid *corev1.ContainerStatus) string {
	if scheduled := condition(pod, corev1.PodScheduled); scheduled != nil && scheduled.Status == corev1.ConditionFalse {
		if scheduled.Reason == corev1.PodReasonUnschedulable {
			return "no node can take the pod"
		}
		return "the pod waits for a node"
	}
	if squid == nil || squid.State.Waiting == nil {
		return "the pod is starting"
	}
	switch squid.State.Waiting.Reason {
	case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable":
		return "the image of the class cannot be pulled"
	case "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError", "CrashLoopBackOff":
		return "Squid cannot be started from the image of the class"
	default:
		return "the pod is starting"
	}
}

func squidStatus(pod *corev1.Pod) *corev1.ContainerStatus {
	i := slices.IndexFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == containerName })
	if i < 0 {
		return nil
	}
	return &pod.Status.ContainerStatuses[i]
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &pod.Status.Conditions[i]
}
