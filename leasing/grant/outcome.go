package grant

import (
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

var (
	// ErrUnknown says that whether the write happened is not known yet. It goes on being settled; the same request gets the result.
	ErrUnknown = errors.New("the outcome of the write is not known yet")
	// ErrGone says that the lease, or the proxy, does not exist (any more), or only a namesake does.
	ErrGone = errors.New("the object does not exist any more")
	// ErrDeposed says that this process may not be the leader any more, so it neither promises nor cleans up anything.
	ErrDeposed = errors.New("this replica may not be the leader any more")
	// ErrTaken says that another exclusive lease holds the proxy.
	ErrTaken = errors.New("another exclusive lease holds the proxy")
	// errNotSent says that a write was not sent, because its requester has given up.
	errNotSent = errors.New("the write was not sent")
)

// ExistsError says that a lease of this name exists that another grant made. Retries with one Idempotency-Key end here.
type ExistsError struct{ Lease *v1alpha1.ProxyLease }

// Error implements error.
func (e *ExistsError) Error() string {
	return fmt.Sprintf("lease %s/%s exists already", e.Lease.Namespace, e.Lease.Name)
}

// Ambiguous tells whether a failed write may have happened nevertheless, or may happen later: everything but a clear
// answer of the API server that it refused.
func Ambiguous(err error) bool {
	if err == nil {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true // no answer at all
	}
	code := status.Status().Code
	// Too many requests is refused before anything is done.
	return code == 0 || code == 408 || code >= 500
}

// RetryAfter is what the API server asks a client to wait; 0 when it says nothing.
func RetryAfter(err error) time.Duration {
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		return time.Duration(seconds) * time.Second
	}
	return 0
}
