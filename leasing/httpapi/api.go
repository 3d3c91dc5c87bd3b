// Package httpapi is the HTTP API for crawlers: list proxies, lease one, renew, report, release.
//
// It checks and translates. What a request does is decided behind Backend, which any replica implements.
package httpapi

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// Backend does what the API asks for. Errors it expects are *Error; others are answered as 500 without their text.
type Backend interface {
	// List gives the proxies of a namespace, sorted by name.
	List(ctx context.Context, q ListQuery) ([]Proxy, error)
	// Lease grants a proxy. replayed says that the lease existed already for the request's key.
	Lease(ctx context.Context, r LeaseRequest) (lease Lease, replayed bool, err error)
	// Get reads a lease.
	Get(ctx context.Context, ref Ref) (Lease, error)
	// Renew makes a lease live for another TTL.
	Renew(ctx context.Context, ref Ref) (Lease, error)
	// Report takes in what the holder saw at a target. When it returns nil the consequence is stored.
	Report(ctx context.Context, ref Ref, r Report) error
	// Release ends a lease. That it is gone already is a success.
	Release(ctx context.Context, ref Ref) error
}

// Ref names one incarnation of a lease; it is what a lease id proves.
type Ref struct {
	Namespace, Name string
	UID             types.UID
}

// ListQuery says which proxies are listed.
type ListQuery struct {
	Namespace string
	// Selector matches the proxies' labels.
	Selector labels.Selector
	// Healthy lists only healthy (true) or only other ones (false).
	Healthy *bool
	// Target leaves out proxies that cool for it.
	Target string
}

// LeaseRequest asks for a lease.
type LeaseRequest struct {
	Namespace string
	// Selector is label equality; with Pool, Proxy and an empty Selector all proxies of the namespace are meant.
	Selector map[string]string
	Pool     string
	Proxy    string
	Targets  []string
	// TTLSeconds is 0 for the default.
	TTLSeconds int32
	Mode       v1alpha1.LeaseMode
	// Identity is who has authenticated. It is no part of what is asked for, so it is not in the hash of a request.
	Identity string `json:"-"`
	// Holder is the authenticated identity, with what the body adds to it.
	Holder string
	// Wait is how long to wait for a proxy.
	Wait    time.Duration
	Exclude []string
	// Key is the Idempotency-Key; empty when there was none.
	Key string
}

// Report is what a holder saw at a target.
type Report struct {
	Target     string
	Result     v1alpha1.ReportResult
	RetryAfter time.Duration
}

// Lease is the answer about a lease.
type Lease struct {
	// Ref becomes the lease id.
	Ref        Ref
	ExpireTime time.Time
	TTLSeconds int32
	Mode       v1alpha1.LeaseMode
	Holder     string
	// Draining: the proxy is to become empty; lease another one.
	Draining bool
	Proxy    Proxy
	// Username and Password are the proxy's credentials; they are shown to the holder of the lease only.
	Username, Password string
}

// Proxy is the answer about a proxy.
type Proxy struct {
	Namespace, Name string
	Host            string
	Port            int32
	Protocol        string
	URL             string
	Labels          map[string]string
	Mode            v1alpha1.ProxyMode
	Provider, Pool  string
	Zone            string
	Phase           v1alpha1.ProxyPhase
	Healthy         bool
	// Leasable: it takes new leases; load and cooldowns aside.
	Leasable bool
	EgressIP string
}

// Error is an answer that says what went wrong.
type Error struct {
	// Status is the HTTP status code.
	Status int
	// Code is stable; see package wire.
	Code string
	// Field of the request that is wrong, if it is one.
	Field string
	// Reason is the machine-readable cause behind the code, if there is one, for example why a lease ended.
	Reason string
	// Detail is a sentence for people. It never has credentials or internals.
	Detail string
	// RetryAfter is when trying again makes sense; 0: not said.
	RetryAfter time.Duration
}

// Error implements error.
func (e *Error) Error() string {
	if e.Field != "" {
		return e.Code + ": " + e.Field + ": " + e.Detail
	}
	return e.Code + ": " + e.Detail
}

// Failed is the answer when something went wrong that no caller can know about. The log says what.
func Failed() *Error {
	return &Error{Status: 500, Code: wire.CodeInternal, Detail: "The request failed; the operator's log says why"}
}

// invalid is the error of a field's value.
func invalid(field, detail string) *Error {
	return &Error{Status: 422, Code: wire.CodeInvalidField, Field: field, Detail: detail}
}
