package kubernetes

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/providers"
)

// classify puts an error of the API server into the taxonomy. What it does not know is Unavailable.
func classify(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case isGone(err):
		return providers.NewError(providers.NotFound, op, "the pod does not exist", err)
	case apierrors.IsAlreadyExists(err):
		return providers.NewError(providers.AlreadyExists, op, "", err)
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return providers.NewError(providers.Unavailable, op, "the namespace is being deleted", err)
	case apierrors.IsUnauthorized(err):
		return providers.NewError(providers.Auth, op, "the API server does not know the operator", err)
	case apierrors.IsForbidden(err):
		return forbidden(op, err)
	case apierrors.IsTooManyRequests(err):
		limited := providers.NewError(providers.RateLimited, op, "", err)
		if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
			limited.RetryAfter = time.Duration(seconds) * time.Second
		}
		return limited
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return invalid(op, err)
	default:
		return providers.NewError(providers.Unavailable, op, "the API server cannot be reached or did not answer", err)
	}
}

// isGone is true only when the API server itself says that this object does not exist. A 404 of anything between, or of
// an API that is not served, says nothing about the pod.
func isGone(err error) bool {
	if !apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Kind == "pods" && details.Name != ""
}

// forbidden tells apart the many things for which Kubernetes answers 403. They have one code and no cause, so the
// wording decides, which is that of Kubernetes' own authorizer and quota plugin.
func forbidden(op string, err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "exceeded quota"):
		return providers.NewError(providers.Capacity, op, "the namespace's resource quota is used up", err)
	case strings.Contains(text, "failed quota"):
		return providers.NewError(providers.Capacity, op,
			"the namespace's resource quota wants resources that the class does not set (spec.kubernetes.resources)", err)
	case strings.Contains(text, "violates PodSecurity"):
		return providers.NewError(providers.Capacity, op, "the namespace's pod security level does not admit the pod", err)
	case strings.Contains(text, "cannot ") && strings.Contains(text, " resource "):
		return providers.NewError(providers.Auth, op, "the operator's role does not allow it", err)
	default:
		// A limit range or somebody's policy. It may change without the Proxy changing, so waiting is right and calling
		// the specification wrong for ever is not.
		return providers.NewError(providers.Capacity, op, "the namespace's limits or policies do not admit the pod", err)
	}
}

// invalid names the field of the pod that the API server refuses. The pod is made from the class, so that is what the
// user must change.
func invalid(op string, err error) error {
	message := "the API server refuses the pod made from the class"
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil {
		causes := status.Status().Details.Causes
		if i := slices.IndexFunc(causes, func(c metav1.StatusCause) bool { return c.Field != "" }); i >= 0 {
			message = fmt.Sprintf("%s: %s: %s", message, causes[i].Field, causes[i].Message)
		}
	}
	refused := providers.InvalidField("spec.provider", "%s", message)
	refused.Op, refused.Err = op, err
	return refused
}
