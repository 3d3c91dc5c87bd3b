package computetest

import (
	"fmt"
	"net/http"
)

// ErrorAnswer is an error that a call is answered with at once, in the form of Compute Engine.
type ErrorAnswer struct {
	// Status is the HTTP status.
	Status int
	// Reason is error.errors[0].reason, where Compute Engine says what kind of error it is.
	Reason  string
	Message string
	// Header is sent beside it: Retry-After.
	Header http.Header
	// ErrorInfo, when set, adds status and a detail with this machine-readable reason, as newer errors have them.
	ErrorInfo string
}

// rpcStatus is what newer errors say beside the HTTP status.
var rpcStatus = map[int]string{
	http.StatusBadRequest: "INVALID_ARGUMENT", http.StatusUnauthorized: "UNAUTHENTICATED", http.StatusForbidden: "PERMISSION_DENIED", http.StatusNotFound: "NOT_FOUND",
	http.StatusConflict: "ALREADY_EXISTS", http.StatusTooManyRequests: "RESOURCE_EXHAUSTED", http.StatusInternalServerError: "INTERNAL", http.StatusServiceUnavailable: "UNAVAILABLE",
}

func (e *ErrorAnswer) body() obj {
	inner := obj{"code": e.Status, "message": e.Message, "errors": []any{obj{"domain": "global", "reason": e.Reason, "message": e.Message}}}
	if e.ErrorInfo != "" {
		inner["status"] = rpcStatus[e.Status]
		inner["details"] = []any{obj{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": e.ErrorInfo, "domain": "googleapis.com", "metadata": obj{"service": "compute.googleapis.com"}}}
	}
	return obj{"error": inner}
}

// Retry adds a Retry-After header. Unit: seconds.
func (e *ErrorAnswer) Retry(seconds int) *ErrorAnswer {
	e.Header = http.Header{"Retry-After": {fmt.Sprint(seconds)}}
	return e
}

// Answers that calls can get at once.

// QuotaExceeded is the quota of a resource in a region: there is no more room.
func QuotaExceeded(metric, region string) *ErrorAnswer {
	return &ErrorAnswer{Status: http.StatusForbidden, Reason: "quotaExceeded", Message: fmt.Sprintf("Quota '%s' exceeded. Limit: 30.0 in region %s.", metric, region)}
}

// RateLimitExceeded is too many calls.
func RateLimitExceeded() *ErrorAnswer {
	return &ErrorAnswer{Status: http.StatusForbidden, Reason: "rateLimitExceeded", Message: "Rate Limit Exceeded"}
}

// RateQuotaExceeded is too many calls as well, but looks like QuotaExceeded.
func RateQuotaExceeded() *ErrorAnswer {
	return &ErrorAnswer{Status: http.StatusForbidden, Reason: "rateLimitExceeded", ErrorInfo: "RATE_LIMIT_EXCEEDED",
		Message: "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute per region' of service 'compute.googleapis.com' for consumer 'project_number:1'."}
}

// TooManyRequests is the third form of too many calls.
func TooManyRequests() *ErrorAnswer {
	return &ErrorAnswer{Status: http.StatusTooManyRequests, Reason: "rateLimitExceeded", Message: "Too many requests"}
}

// Forbidden is a permission that the account lacks.
func Forbidden(permission, project string) *ErrorAnswer {
	return &ErrorAnswer{Status: http.StatusForbidden, Reason: "forbidden", Message: fmt.Sprintf("Required '%s' permission for 'projects/%s'", permission, project)}
}

// ScopesInsufficient is a token without the scope for the call, whatever its account may do.
func ScopesInsufficient() *ErrorAnswer {
	return &ErrorAnswer{Status: http.StatusForbidden, Reason: "insufficientPermissions", ErrorInfo: "ACCESS_TOKEN_SCOPE_INSUFFICIENT",
		Message: "Request had insufficient authentication scopes."}
}

// APIDisabled is a project in which nobody switched the API on.
func APIDisabled(project string) *ErrorAnswer {
	return &ErrorAnswer{Status: http.StatusForbidden, Reason: "accessNotConfigured", ErrorInfo: "SERVICE_DISABLED",
		Message: fmt.Sprintf("Compute Engine API has not been used in project %s before or it is disabled.", project)}
}

// Unauthenticated is a token that is not or no longer good.
func Unauthenticated() *ErrorAnswer {
	return &ErrorAnswer{Status: http.StatusUnauthorized, Reason: "authError", Message: "Invalid Credentials", Header: http.Header{"Www-Authenticate": {`Bearer realm="https://accounts.google.com/", error="invalid_token"`}}}
}

// BackendError is a fault on Google's side; status is 500, 502, 503 or so.
func BackendError(status int) *ErrorAnswer {
	return &ErrorAnswer{Status: status, Reason: "backendError", Message: "Internal error. Please try again or contact Google Support."}
}

// Invalid is a field that Compute Engine does not like.
func Invalid(field, value, why string) *ErrorAnswer {
	return &ErrorAnswer{Status: http.StatusBadRequest, Reason: "invalid", Message: fmt.Sprintf("Invalid value for field '%s': '%s'. %s", field, value, why)}
}

// UnknownZone is a zone that there is not.
func UnknownZone(zone string) *ErrorAnswer { return Invalid("zone", zone, "Unknown zone.") }

// NoLocation is a zone that there is not either, or that the project may not use: the answer does not tell.
func NoLocation(zone string) *ErrorAnswer {
	return &ErrorAnswer{Status: http.StatusForbidden, Reason: "forbidden", ErrorInfo: "LOCATION_POLICY_VIOLATED",
		Message: fmt.Sprintf("Permission denied on 'locations/%s' (or it may not exist).", zone)}
}

// NotFound is a resource that is not there, by its path from projects/ on.
func NotFound(resource string) *ErrorAnswer {
	return &ErrorAnswer{Status: http.StatusNotFound, Reason: "notFound", Message: fmt.Sprintf("The resource '%s' was not found", resource)}
}

// AlreadyExists is a name that is taken, by its path from projects/ on.
func AlreadyExists(resource string) *ErrorAnswer {
	return &ErrorAnswer{Status: http.StatusConflict, Reason: "alreadyExists", Message: fmt.Sprintf("The resource '%s' already exists", resource)}
}

// NotReady is a resource that something else is being done to.
func NotReady(resource string) *ErrorAnswer {
	return &ErrorAnswer{Status: http.StatusBadRequest, Reason: "resourceNotReady", Message: fmt.Sprintf("The resource '%s' is not ready", resource)}
}

// OperationError is how an accepted call fails later.
type OperationError struct {
	Code    string
	Message string
	// Status is the operation's httpErrorStatusCode; 0 means 400.
	Status int
	// Reason and Metadata are those of the first errorInfo detail; "" leaves it out.
	Reason   string
	Metadata map[string]string
	// QuotaMetric, QuotaLimit add a quotaInfo detail.
	QuotaMetric string
	QuotaLimit  float64
}

func (e *OperationError) body() obj {
	o := obj{"code": e.Code, "message": e.Message}
	var details []any
	if e.Reason != "" {
		metadata := obj{}
		for k, v := range e.Metadata {
			metadata[k] = v
		}
		details = append(details, obj{"errorInfo": obj{"reason": e.Reason, "domain": "compute.googleapis.com", "metadatas": metadata}})
	}
	if e.QuotaMetric != "" {
		details = append(details, obj{"quotaInfo": obj{"metricName": e.QuotaMetric, "limitName": "per-project-region", "limit": e.QuotaLimit, "dimensions": obj{"region": e.Metadata["region"]}}})
	}
	if details != nil {
		o["errorDetails"] = details
	}
	return o
}

// Ways in which operations fail.

// Stockout is a zone without room for the machine type.
func Stockout(zone string) *OperationError {
	return &OperationError{Code: "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", Status: http.StatusServiceUnavailable,
		Message: fmt.Sprintf("The zone '%s' does not have enough resources available to fulfill the request, '(resource type:compute)'.", zone),
		Reason:  "resource_availability", Metadata: map[string]string{"zone": zone, "vmType": "e2-micro", "attachment": "", "zonesAvailable": ""}}
}

// OperationQuota is the quota of a resource, noticed late.
func OperationQuota(metric, region string) *OperationError {
	return &OperationError{Code: "QUOTA_EXCEEDED", Status: http.StatusForbidden, Message: fmt.Sprintf("Quota '%s' exceeded.  Limit: 30.0 in region %s.", metric, region),
		Metadata: map[string]string{"region": region}, QuotaMetric: "compute.googleapis.com/" + metric, QuotaLimit: 30}
}

// NoAddresses is a subnetwork without free addresses.
func NoAddresses(subnetwork string) *OperationError {
	return &OperationError{Code: "IP_SPACE_EXHAUSTED_WITH_DETAILS", Message: fmt.Sprintf("Instance creation failed: IP space of '%s' is exhausted.", subnetwork)}
}

// OrganizationPolicy is a rule of the organization against external addresses.
func OrganizationPolicy(project string) *OperationError {
	return &OperationError{Code: "CONDITION_NOT_MET", Status: http.StatusPreconditionFailed, Message: fmt.Sprintf("Constraint constraints/compute.vmExternalIpAccess violated for project %s.", project)}
}

// UnsupportedMachineType is a machine type that the zone cannot run.
func UnsupportedMachineType(machineType, zone string) *OperationError {
	return &OperationError{Code: "MACHINE_TYPE_UNSUPPORTED", Message: fmt.Sprintf("The machine type '%s' is not supported in zone '%s'.", machineType, zone)}
}

// Permissions is an account that must not use something the VM needs, noticed late.
func Permissions(permission string) *OperationError {
	return &OperationError{Code: "PERMISSIONS_ERROR", Status: http.StatusForbidden, Message: fmt.Sprintf("Required '%s' permission", permission)}
}
