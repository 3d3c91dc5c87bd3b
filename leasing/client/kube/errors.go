package kube

import (
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/client"
	"crawl.example.com/egress-proxies-operator/leasing/record"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// apiError is an answer of the API server as an error of package client. Without an answer the error stays what it is.
func apiError(err error) error {
	if meta.IsNoMatchError(err) {
		return &client.Error{Status: http.StatusNotFound, Code: wire.CodeNotFound, Detail: "the cluster does not have the kind ProxyLease"}
	}
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return err
	}
	status := answer.Status()
	e := &client.Error{Status: int(status.Code), Detail: status.Message}
	if d := status.Details; d != nil {
		e.RetryAfter = time.Duration(d.RetryAfterSeconds) * time.Second
		if len(d.Causes) > 0 {
			e.Field = d.Causes[0].Field
		}
	}
	switch {
	case e.Status == http.StatusUnauthorized:
		e.Code = wire.CodeUnauthorized
	case e.Status == http.StatusForbidden:
		e.Code = wire.CodeForbidden
	case e.Status == http.StatusNotFound:
		e.Code = wire.CodeNotFound
	case e.Status == http.StatusUnprocessableEntity, e.Status == http.StatusBadRequest:
		e.Code = wire.CodeInvalidField
	case e.Status == http.StatusTooManyRequests:
		e.Code = wire.CodeTooManyRequests
	case e.Status >= http.StatusInternalServerError:
		e.Code = wire.CodeUnavailable
	default:
		e.Code = string(status.Reason)
	}
	return e
}

// creationError is apiError of a creation, which finds anything but the namespace.
func creationError(err error) error {
	if apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, "NamespaceTerminating") {
		return invalid("namespace", "does not exist, or not for long")
	}
	return apiError(err)
}

// lostBy says why a lease holds nothing any more; nil while it does. The object is nil when there is none.
func lostBy(lease *v1alpha1.ProxyLease) error {
	switch {
	case lease == nil || !lease.DeletionTimestamp.IsZero():
		return &client.LostError{Reason: client.ReasonGone, Detail: "the ProxyLease was deleted"}
	case record.Finished(lease):
		lost := &client.LostError{Reason: string(lease.Status.Phase)}
		if c := bound(lease); c != nil {
			lost.Reason, lost.Detail = c.Reason, c.Message
		}
		return lost
	}
	return nil
}

// failed is the refusal of a lease that was never granted.
func failed(lease *v1alpha1.ProxyLease) error {
	e := &client.Error{Status: http.StatusServiceUnavailable, Code: wire.CodeNoProxy, Reason: string(lease.Status.Phase)}
	if c := bound(lease); c != nil {
		e.Reason, e.Detail = c.Reason, c.Message
	}
	if at := lease.Status.RetryTime; at != nil {
		e.RetryAfter = min(max(time.Until(at.Time), wire.MinNoProxyRetry), wire.MaxNoProxyRetry)
	}
	if e.Reason == v1alpha1.ReasonInvalidSelector {
		e.Status, e.Code, e.Field = http.StatusUnprocessableEntity, wire.CodeInvalidField, "selector"
	}
	return e
}

func bound(lease *v1alpha1.ProxyLease) *metav1.Condition {
	return meta.FindStatusCondition(lease.Status.Conditions, v1alpha1.ConditionBound)
}
