package leasing

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/grant"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// refusal says by HTTP why a lease was not granted.
func (b Backend) refusal(err error) error {
	var none *ledger.NoProxyError
	if refused, ok := errors.AsType[*httpapi.Error](err); ok {
		return refused
	}
	switch {
	case errors.As(err, &none):
		return b.noProxy(none.Reason, none.Message, none.Earliest)
	case errors.Is(err, errQueueFull):
		return &httpapi.Error{Status: http.StatusTooManyRequests, Code: wire.CodeQueueFull, Detail: "Too many calls wait for a proxy", RetryAfter: noProxyRetry}
	case errors.Is(err, errIdentityLimit):
		return &httpapi.Error{Status: http.StatusTooManyRequests, Code: wire.CodeHolderLimit, Detail: "Too many calls of this identity wait for a proxy, whatever their holders", RetryAfter: noProxyRetry}
	case errors.Is(err, errHolderLimit):
		return &httpapi.Error{Status: http.StatusTooManyRequests, Code: wire.CodeHolderLimit, Detail: "Too many calls of this holder wait for a proxy", RetryAfter: noProxyRetry}
	case errors.Is(err, grant.ErrDeposed):
		return notReady("Another replica may lead now")
	case errors.Is(err, grant.ErrUnknown), errors.Is(err, grant.ErrTaken), errors.Is(err, grant.ErrGone), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return outcomeUnknown()
	}
	return unavailable(err)
}

// noProxy says why there was no proxy. earliest is when a cooldown ends that stands in the way; zero when there is none.
func (b Backend) noProxy(reason, detail string, earliest time.Time) *httpapi.Error {
	retry := noProxyRetry
	if !earliest.IsZero() {
		retry = min(max(earliest.Sub(b.Clock.Now()), wire.MinNoProxyRetry), wire.MaxNoProxyRetry)
	}
	return &httpapi.Error{Status: http.StatusServiceUnavailable, Code: wire.CodeNoProxy, Reason: reason, Detail: detail, RetryAfter: retry}
}

// unavailable translates an answer of the API server, or that there was none.
func unavailable(err error) error {
	switch {
	case apierrors.IsTooManyRequests(err):
		return &httpapi.Error{
			Status: http.StatusTooManyRequests, Code: wire.CodeTooManyRequests, Detail: "The Kubernetes API is overloaded",
			RetryAfter: max(grant.RetryAfter(err), time.Second),
		}
	case quotaExceeded(err):
		return &httpapi.Error{
			Status: http.StatusTooManyRequests, Code: wire.CodeTooManyRequests, Detail: "The namespace's quota of ProxyLeases is used up", RetryAfter: noProxyRetry,
		}
	case apierrors.IsNotFound(err), apierrors.HasStatusCause(err, "NamespaceTerminating"):
		return noNamespace() // nothing else is not found by a creation
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
		return err // a fault of the operator, or of its rights: it belongs into the log
	}
	return &httpapi.Error{
		Status: http.StatusServiceUnavailable, Code: wire.CodeUnavailable, Detail: "The Kubernetes API does not answer", RetryAfter: notReadyRetry,
	}
}

// quotaExceeded tells a ResourceQuota's refusal from others. There is no better mark than its words.
func quotaExceeded(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
}

func noNamespace() *httpapi.Error {
	return &httpapi.Error{Status: http.StatusUnprocessableEntity, Code: wire.CodeInvalidField, Field: "namespace", Detail: "The namespace does not exist, or not for long"}
}

func notReady(detail string) *httpapi.Error {
	return &httpapi.Error{Status: http.StatusServiceUnavailable, Code: wire.CodeNotReady, Detail: detail, RetryAfter: notReadyRetry}
}

// policyRetry is when a call is worth repeating that came while grants were not protected: a person has to act.
const policyRetry = 10 * time.Second

// protected refuses grants as long as others than core could write them.
func (b Backend) protected() error {
	if b.Guard == nil {
		return nil
	}
	ok, reason := b.Guard.Protected()
	switch {
	case ok:
		return nil
	case reason == "":
		return notReady("It is not known yet whether leases are protected by their admission policy")
	}
	return &httpapi.Error{
		Status: http.StatusServiceUnavailable, Code: wire.CodePolicyMissing, Reason: reason, RetryAfter: policyRetry,
		Detail: "The admission policy that protects leases is not in force; the operator's log says what is missing",
	}
}

func outcomeUnknown() *httpapi.Error {
	return &httpapi.Error{
		Status: http.StatusServiceUnavailable, Code: wire.CodeOutcomeUnknown, RetryAfter: notReadyRetry,
		Detail: "It is not known yet whether the lease was granted; repeat the request with the same Idempotency-Key",
	}
}

func noCredentials() *httpapi.Error {
	return &httpapi.Error{
		Status: http.StatusServiceUnavailable, Code: wire.CodeNoProxy, Reason: v1alpha1.ReasonCredentialsNotFound,
		Detail: "The credentials of the proxy cannot be read", RetryAfter: noProxyRetry,
	}
}

func consumedKey(detail string) *httpapi.Error {
	return &httpapi.Error{Status: http.StatusConflict, Code: wire.CodeKeyConsumed, Field: wire.HeaderKey, Detail: detail}
}

func ended(reason, detail string) *httpapi.Error {
	return &httpapi.Error{Status: http.StatusGone, Code: wire.CodeLeaseEnded, Reason: reason, Detail: detail}
}

// endedBy says why a finished lease has ended.
func endedBy(lease *v1alpha1.ProxyLease) *httpapi.Error {
	detail := "The lease has ended"
	if c := meta.FindStatusCondition(lease.Status.Conditions, v1alpha1.ConditionBound); c != nil {
		detail = c.Message
	}
	return ended(endReason(lease), detail)
}

// endReason is the reason of the end of a finished lease.
func endReason(lease *v1alpha1.ProxyLease) string {
	if c := meta.FindStatusCondition(lease.Status.Conditions, v1alpha1.ConditionBound); c != nil {
		return c.Reason
	}
	return string(lease.Status.Phase)
}

// cacheReady refuses calls that would read an empty cache: an empty list must never be read as "there are no proxies".
func (b Backend) cacheReady(ctx context.Context) error {
	synced, cancel := context.WithTimeout(ctx, cacheWait)
	defer cancel()
	if !b.Cache.WaitForCacheSync(synced) {
		return notReady("The caches are not filled yet")
	}
	return nil
}

// cacheWait is how long a call waits for the caches.
const cacheWait = time.Second
