// Package wire is the HTTP API as JSON: what is sent, what is answered, and the words in it. The server and the Go client
// have it in common, so that neither can know a field or a code that the other one does not.
//
// It imports the standard library only: a crawler that uses the client does not link Kubernetes.
package wire

import "time"

// Paths of the API. A lease id is escaped and appended to PathLeases, and then one of the actions.
const (
	PathProxies  = "/v1/proxies"
	PathLeases   = "/v1/leases"
	ActionRenew  = "renew"
	ActionReport = "report"
)

// HeaderKey is the header with the Idempotency-Key of POST /v1/leases.
const HeaderKey = "Idempotency-Key"

// ProblemType is the Content-Type of errors, by RFC 9457.
const ProblemType = "application/problem+json"

// MaxWaitSeconds is the longest a call for a lease waits for a proxy, in seconds.
const MaxWaitSeconds = 300

// MaxRetryAfterSeconds is the longest wait that a report can say a target asked for, in seconds: a week. The server refuses
// more; the client says this much instead.
const MaxRetryAfterSeconds = 7 * 24 * 3600

// MinNoProxyRetry and MaxNoProxyRetry bound what who found no proxy is told to wait for the end of a cooldown: slots become
// free meanwhile.
const (
	MinNoProxyRetry = time.Second
	MaxNoProxyRetry = time.Minute
)

// Modes of a lease.
const (
	ModeShared    = "Shared"
	ModeExclusive = "Exclusive"
)

// Results of a report.
const (
	ResultRateLimited = "rate_limited"
	ResultBanned      = "banned"
	ResultFailed      = "failed"
	ResultOK          = "ok"
)

// LeaseRequest is the body of POST /v1/leases.
type LeaseRequest struct {
	Namespace string `json:"namespace,omitempty"`
	// Selector has pointers so that null is not taken for an empty value.
	Selector    map[string]*string `json:"selector,omitempty"`
	Pool        string             `json:"pool,omitempty"`
	Proxy       string             `json:"proxy,omitempty"`
	Target      string             `json:"target,omitempty"`
	Targets     []string           `json:"targets,omitempty"`
	TTLSeconds  *int32             `json:"ttlSeconds,omitempty"`
	Mode        string             `json:"mode,omitempty"`
	Holder      string             `json:"holder,omitempty"`
	WaitSeconds *int32             `json:"waitSeconds,omitempty"`
	Exclude     []string           `json:"exclude,omitempty"`
}

// ReportRequest is the body of POST /v1/leases/{id}/report.
type ReportRequest struct {
	Result            string `json:"result"`
	Target            string `json:"target"`
	RetryAfterSeconds *int32 `json:"retryAfterSeconds,omitempty"`
}

// Lease is the answer about a lease.
type Lease struct {
	LeaseID    string      `json:"leaseID"`
	ExpiresAt  time.Time   `json:"expiresAt"`
	TTLSeconds int32       `json:"ttlSeconds"`
	Mode       string      `json:"mode"`
	Holder     string      `json:"holder,omitempty"`
	Draining   bool        `json:"draining"`
	Proxy      LeasedProxy `json:"proxy"`
}

// Proxy is a proxy in a list. It never has credentials.
type Proxy struct {
	ID        string            `json:"id"`
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	IP        string            `json:"ip"`
	Port      int32             `json:"port"`
	Protocol  string            `json:"protocol"`
	URL       string            `json:"url"`
	Healthy   bool              `json:"healthy"`
	Leasable  bool              `json:"leasable"`
	Phase     string            `json:"phase"`
	Mode      string            `json:"mode"`
	Provider  string            `json:"provider,omitempty"`
	Pool      string            `json:"pool,omitempty"`
	Zone      string            `json:"zone,omitempty"`
	EgressIP  string            `json:"egressIP,omitempty"`
	Labels    map[string]string `json:"labels"`
}

// LeasedProxy adds what only the holder of a lease is told.
type LeasedProxy struct {
	Proxy
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
}

// ProxyList is the answer of GET /v1/proxies.
type ProxyList struct {
	Proxies []Proxy `json:"proxies"`
}

// Problem is an error as RFC 9457 has it, with members of our own.
type Problem struct {
	Type              string `json:"type"`
	Title             string `json:"title"`
	Status            int    `json:"status"`
	Detail            string `json:"detail,omitempty"`
	Code              string `json:"code"`
	Field             string `json:"field,omitempty"`
	Reason            string `json:"reason,omitempty"`
	RetryAfterSeconds int    `json:"retryAfterSeconds,omitempty"`
}
