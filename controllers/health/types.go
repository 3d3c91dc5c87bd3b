package health

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/controllers/health/classify"
	"crawl.example.com/egress-proxies-operator/controllers/health/fsm"
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
)

// Credentials are a proxy's user name and password; they print as REDACTED.
type Credentials = probe.Credentials

// NewCredentials makes credentials for Basic authentication; see probe.NewCredentials.
func NewCredentials(username, password string) (*Credentials, error) {
	return probe.NewCredentials(username, password)
}

// Target is a proxy to watch.
type Target struct {
	// Key is what Changes names.
	Key types.NamespacedName
	// UID identifies the Proxy object. Another object of the same name is another target.
	UID types.UID
	// InstanceID is the incarnation behind the address. Health of one says nothing about the next.
	InstanceID string
	// Address is the proxy's host:port; see probe.JoinAddress. Empty: there is nothing to probe yet.
	Address string
	// Managed proxies must refuse loopback and metadata addresses; this decides AccessRestricted.
	Managed bool
	// Credentials may be nil.
	Credentials *Credentials
	// RequireAuth says that the proxy must refuse clients without credentials.
	RequireAuth bool
	// Check comes from ResolveSettings.
	Check Settings
	// Initial is the verdict in the Proxy's status, looked at only when the UID is new. It counts only if its InstanceID
	// is this one's. A restart goes on from it: no writes, no flips.
	Initial *Verdict
}

// Verdict is what the engine thinks of a proxy. It is equal for equal thoughts: nothing in it changes from probe to
// probe.
type Verdict struct {
	// InstanceID is the incarnation that was judged.
	InstanceID string
	// Healthy is meaningful when Known is set.
	Healthy, Known bool
	// Reason is of a closed set (classify, fsm, and this package); Message is a sentence for users.
	Reason, Message string
	// EgressIP is the exit address that the probe target saw, if it reports one.
	EgressIP string
	// AccessRestricted is nil until the negative probe has decided, and for proxies that are not Managed.
	AccessRestricted *bool
	// AccessReason says why, of a closed set; empty where there is nothing to decide.
	AccessReason string
	// LastTransition is when Known or Healthy changed.
	LastTransition time.Time
}

// Equal reports whether both verdicts would be written the same.
func (v Verdict) Equal(o Verdict) bool {
	a, b := v.AccessRestricted, o.AccessRestricted
	if (a == nil) != (b == nil) || a != nil && *a != *b {
		return false
	}
	v.AccessRestricted, o.AccessRestricted = nil, nil
	same := v.LastTransition.Equal(o.LastTransition)
	v.LastTransition, o.LastTransition = time.Time{}, time.Time{}
	return same && v == o
}

func (v Verdict) status() fsm.Status {
	switch {
	case !v.Known:
		return fsm.Unknown
	case v.Healthy:
		return fsm.Healthy
	default:
		return fsm.Unhealthy
	}
}

// Reasons of verdicts that no probe decided; see packages classify and fsm for the others.
const (
	// ReasonCheckDisabled: healthCheck.mode is Disabled.
	ReasonCheckDisabled = "CheckDisabled"
	// ReasonNoAddress: the instance has no address yet.
	ReasonNoAddress = "NoAddress"
	// ReasonProbing: no probe has decided yet.
	ReasonProbing = fsm.ReasonProbing
	// ReasonProbeSucceeded is the reason of Healthy.
	ReasonProbeSucceeded = classify.ReasonProbeSucceeded
	// ReasonAccessNotProbed: the negative probe follows the first success.
	ReasonAccessNotProbed = "NotProbed"
)

const (
	messageDisabled  = "Health checks are disabled for this proxy."
	messageNoAddress = "The proxy has no address to probe yet."
)
