package wire

// Codes of errors. They are part of the API: stable, and described in openapi.json.
const (
	CodeInvalidBody          = "invalid_body"             // 400: not JSON, a wrong type, an unknown or repeated field
	CodeInvalidHeader        = "invalid_header"           // 400
	CodeInvalidQuery         = "invalid_query"            // 400
	CodeUnauthorized         = "unauthorized"             // 401
	CodeForbidden            = "forbidden"                // 403
	CodeNotFound             = "not_found"                // 404: no such path
	CodeLeaseNotFound        = "lease_not_found"          // 404: not an id of this operator
	CodeMethodNotAllowed     = "method_not_allowed"       // 405
	CodeKeyConsumed          = "idempotency_key_consumed" // 409: the lease of this key has ended
	CodeLeaseEnded           = "lease_ended"              // 410, with the reason
	CodeBodyTooLarge         = "body_too_large"           // 413
	CodeUnsupportedMediaType = "unsupported_media_type"   // 415
	CodeInvalidField         = "invalid_field"            // 422: the value of a field
	CodeKeyReused            = "idempotency_key_reused"   // 422: the key was used for another request
	CodeHolderLimit          = "holder_limit"             // 429
	CodeQueueFull            = "queue_full"               // 429
	CodeTooManyRequests      = "too_many_requests"        // 429: passed on from the API server
	CodeInternal             = "internal"                 // 500
	CodeNoProxy              = "no_proxy_available"       // 503
	CodeNotReady             = "not_ready"                // 503: starting, or no leader
	CodeOutcomeUnknown       = "outcome_unknown"          // 503: repeat with the same Idempotency-Key
	CodePolicyMissing        = "policy_missing"           // 503: the admission policy that protects leases is not in force
	CodeTooManyLeases        = "too_many_leases"          // 503: live and finished ones; released ones make room
	CodeUnavailable          = "api_unavailable"          // 503: the Kubernetes API does not answer
)

// Reasons for which a lease ends. The set is open: a reader must expect others.
const (
	ReasonExpired        = "Expired"
	ReasonProxyReplaced  = "ProxyReplaced"
	ReasonProxyDeleted   = "ProxyDeleted"
	ReasonProxyUnhealthy = "ProxyUnhealthy"
	ReasonDrainDeadline  = "DrainDeadline"
	ReasonConflict       = "Conflict"
	// ReasonGone: it was released, or it ended a while ago and nothing is left that says why.
	ReasonGone = "Gone"
)
