package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// LeaseMode says whether a lease shares its proxy.
// +kubebuilder:validation:Enum=Shared;Exclusive
type LeaseMode string

const (
	// LeaseShared leases share their proxy up to its capacity; this is the default.
	LeaseShared LeaseMode = "Shared"
	// LeaseExclusive leases have their proxy to themselves.
	LeaseExclusive LeaseMode = "Exclusive"
)

// ProxyFailurePolicy says what happens to a lease whose proxy becomes unhealthy.
// +kubebuilder:validation:Enum=Keep;Revoke
type ProxyFailurePolicy string

const (
	// OnFailureKeep keeps the lease; this is the default.
	OnFailureKeep ProxyFailurePolicy = "Keep"
	// OnFailureRevoke revokes the lease.
	OnFailureRevoke ProxyFailurePolicy = "Revoke"
)

// LeasePhase is a one-word summary of a lease.
type LeasePhase string

// The phases of a ProxyLease.
const (
	LeasePending LeasePhase = "Pending"
	LeaseBound   LeasePhase = "Bound"
	LeaseExpired LeasePhase = "Expired"
	LeaseRevoked LeasePhase = "Revoked"
	LeaseFailed  LeasePhase = "Failed"
)

// ReportResult is what a crawler saw at a target. The words are those of the HTTP API.
// +kubebuilder:validation:Enum=rate_limited;banned;failed;ok
type ReportResult string

// The results of a report.
const (
	ReportRateLimited ReportResult = "rate_limited"
	ReportBanned      ReportResult = "banned"
	ReportFailed      ReportResult = "failed"
	ReportOK          ReportResult = "ok"
)

// Bounds and defaults of leases.
const (
	// MinLeaseTTLSeconds is the shortest TTL of a lease, in seconds.
	MinLeaseTTLSeconds = 10
	// MaxLeaseTTLSeconds is the longest TTL of a lease, in seconds.
	MaxLeaseTTLSeconds = 86400
	// DefaultLeaseTTLSeconds is the TTL of a lease that names none and whose pool names none, in seconds.
	DefaultLeaseTTLSeconds = 300
	// DefaultTTLSecondsAfterFinished is how long a finished lease is kept, in seconds.
	DefaultTTLSecondsAfterFinished = 120
	// MaxLeaseTargets is the most targets a lease may name.
	MaxLeaseTargets = 16
	// MaxExcludedProxies is the most proxies a lease may exclude.
	MaxExcludedProxies = 32
	// MaxCooldowns is the most targets of one Proxy that may cool at the same time.
	MaxCooldowns = 64
)

// ProxyLeaseSpec is what the holder asks for.
// +kubebuilder:validation:XValidation:rule="[has(self.selector), has(self.poolRef), has(self.proxyName)].filter(x, x).size() == 1",message="exactly one of selector, poolRef and proxyName is required",fieldPath=".selector"
type ProxyLeaseSpec struct {
	// selector selects proxies of the lease's namespace by their labels; an empty one selects all.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="selector is immutable"
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// poolRef names a ProxyPool of the lease's namespace.
	// +optional
	PoolRef *LocalRef `json:"poolRef,omitempty"`
	// proxyName asks for one proxy by name. Which proxy was granted is in status.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ProxyName string `json:"proxyName,omitempty"`
	// grant is the binding of a lease that was asked for by HTTP. Only the operator may set it, and only at creation.
	// +optional
	Grant *LeaseGrant `json:"grant,omitempty"`
	// targets are the lower-case host names that will be crawled; a proxy that cools for one of them is not granted.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.all(t, isIP(t) || !format.dns1123Subdomain().validate(t).hasValue())",message="targets must be lower-case host names or IP addresses, without scheme or port"
	Targets []string `json:"targets,omitempty"`
	// mode is Shared or Exclusive. Default: Shared.
	// +optional
	// +kubebuilder:default=Shared
	Mode LeaseMode `json:"mode,omitempty"`
	// holder says who leases.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[^\x00-\x1f\x7f]*$`
	Holder string `json:"holder,omitempty"`
	// ttlSeconds is how long the lease lives without renewal; clamped by the pool. Unit: seconds. Default: the pool's, else
	// 300.
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=86400
	TTLSeconds int32 `json:"ttlSeconds,omitempty"`
	// waitSeconds is how long the lease may stay Pending before it is Failed; 0 fails at once. Unit: seconds.
	// Default: unset (as long as it takes).
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	WaitSeconds *int32 `json:"waitSeconds,omitempty"`
	// ttlSecondsAfterFinished is how long the lease is kept after it ended. Unit: seconds. Default: 120.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
	// excludedProxyNames are proxies that must not be granted.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	ExcludedProxyNames []string `json:"excludedProxyNames,omitempty"`
	// onProxyFailure says what happens when the proxy becomes unhealthy: Keep or Revoke. Default: Keep.
	// +optional
	// +kubebuilder:default=Keep
	OnProxyFailure ProxyFailurePolicy `json:"onProxyFailure,omitempty"`
	// renewTime is changed by the holder to renew the lease; only that it changes counts, never its value.
	// +optional
	RenewTime *metav1.MicroTime `json:"renewTime,omitempty"`
	// reports say what the holder saw at its targets.
	// +optional
	// +listType=map
	// +listMapKey=target
	// +kubebuilder:validation:MaxItems=16
	Reports []LeaseReport `json:"reports,omitempty"`
}

// LeaseGrant is the binding of a lease that was asked for by HTTP: it makes a grant one write.
type LeaseGrant struct {
	// proxyName is the granted Proxy.
	// +required
	// +kubebuilder:validation:MaxLength=63
	ProxyName string `json:"proxyName"`
	// proxyUID is the UID of the granted Proxy.
	// +required
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	ProxyUID types.UID `json:"proxyUID"`
	// instanceID is the incarnation that was granted.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	InstanceID string `json:"instanceID,omitempty"`
	// epoch of the leader that granted. Unit: leadership term. Default: none, required.
	// +required
	Epoch int64 `json:"epoch"`
	// seq orders the grants of one epoch. Unit: grants. Default: none, required.
	// +required
	Seq int64 `json:"seq"`
	// expireTime is when the lease ends unless it is renewed.
	// +required
	ExpireTime metav1.MicroTime `json:"expireTime"`
}

// LeaseReport is what a holder saw at a target.
type LeaseReport struct {
	// target is a lower-case host name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="isIP(self) || !format.dns1123Subdomain().validate(self).hasValue()",message="target must be a lower-case host name or IP address, without scheme or port"
	Target string `json:"target"`
	// result is rate_limited, banned, failed or ok.
	// +required
	Result ReportResult `json:"result"`
	// count of times this was seen; only its growth counts. Unit: reports. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Count int32 `json:"count,omitempty"`
}

// ProxyLeaseStatus is written by the allocator alone.
type ProxyLeaseStatus struct {
	// phase is Pending, Bound, Expired, Revoked or Failed.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Phase LeasePhase `json:"phase,omitempty"`
	// proxyRef is the granted proxy.
	// +optional
	ProxyRef *BoundProxy `json:"proxyRef,omitempty"`
	// credentialsSecretRef names the Secret with the proxy's username and password.
	// +optional
	CredentialsSecretRef *LocalSecretRef `json:"credentialsSecretRef,omitempty"`
	// boundTime is when the lease was granted.
	// +optional
	BoundTime *metav1.MicroTime `json:"boundTime,omitempty"`
	// expireTime is when the lease ends unless it is renewed.
	// +optional
	ExpireTime *metav1.MicroTime `json:"expireTime,omitempty"`
	// lastRenewTime is the spec.renewTime that was last taken in.
	// +optional
	LastRenewTime *metav1.MicroTime `json:"lastRenewTime,omitempty"`
	// finishTime is when the lease expired, was revoked or failed.
	// +optional
	FinishTime *metav1.MicroTime `json:"finishTime,omitempty"`
	// retryTime is when a lease that failed is worth asking for again: the first cooldown that stood in its way ends then.
	// +optional
	RetryTime *metav1.MicroTime `json:"retryTime,omitempty"`
	// effectiveTTLSeconds is the TTL after clamping. Unit: seconds. Default: unset.
	// +optional
	EffectiveTTLSeconds int32 `json:"effectiveTTLSeconds,omitempty"`
	// grantEpoch is the epoch of the leader that granted. Unit: leadership term. Default: unset.
	// +optional
	GrantEpoch int64 `json:"grantEpoch,omitempty"`
	// grantSeq orders the grants of one epoch. Unit: grants. Default: unset.
	// +optional
	GrantSeq int64 `json:"grantSeq,omitempty"`
	// observedReports are the reports that were taken in, so that a restart never counts one twice.
	// +optional
	// +listType=map
	// +listMapKey=target
	// +kubebuilder:validation:MaxItems=16
	ObservedReports []ObservedReport `json:"observedReports,omitempty"`
	// conditions of the lease; an absent one means Unknown.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// BoundProxy is a granted proxy.
type BoundProxy struct {
	// namespace of the Proxy.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// name of the Proxy.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name,omitempty"`
	// uid of the Proxy.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	UID types.UID `json:"uid,omitempty"`
	// instanceID is the incarnation that was granted.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	InstanceID string `json:"instanceID,omitempty"`
	// url of the proxy, without credentials.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	URL string `json:"url,omitempty"`
	// egressIP is the address the proxy was last seen to leave from.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	EgressIP string `json:"egressIP,omitempty"`
}

// ObservedReport is a report that was taken in.
type ObservedReport struct {
	// target of the report.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Target string `json:"target"`
	// result of the report.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Result string `json:"result,omitempty"`
	// count that was taken in. Unit: reports. Default: unset.
	// +optional
	Count int32 `json:"count,omitempty"`
}

// ProxyLease is the right to use a proxy for a while. It lives in its proxy's namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=pxl,categories=egress
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="crawl.example.com/bundle-version=1"
// +kubebuilder:selectablefield:JSONPath=".spec.holder"
// +kubebuilder:selectablefield:JSONPath=".spec.grant.proxyName"
// +kubebuilder:printcolumn:name="PHASE",type=string,JSONPath=".status.phase"
// +kubebuilder:printcolumn:name="REASON",type=string,JSONPath=".status.conditions[?(@.type==\"Bound\")].reason"
// +kubebuilder:printcolumn:name="PROXY",type=string,JSONPath=".status.proxyRef.name"
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=".status.proxyRef.url"
// +kubebuilder:printcolumn:name="EXPIRES",type=string,JSONPath=".status.expireTime"
// +kubebuilder:printcolumn:name="HOLDER",type=string,JSONPath=".spec.holder",priority=1
// +kubebuilder:printcolumn:name="MODE",type=string,JSONPath=".spec.mode",priority=1
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=".metadata.creationTimestamp",priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must be at most 63 characters",fieldPath=".metadata"
type ProxyLease struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the holder asks for; everything but renewTime and reports is immutable.
	// +required
	// +kubebuilder:validation:XValidation:rule="has(self.selector) == has(oldSelf.selector)",message="selector is immutable",fieldPath=".selector"
	// +kubebuilder:validation:XValidation:rule="has(self.poolRef) == has(oldSelf.poolRef) && (!has(self.poolRef) || self.poolRef == oldSelf.poolRef)",message="poolRef is immutable",fieldPath=".poolRef"
	// +kubebuilder:validation:XValidation:rule="has(self.proxyName) == has(oldSelf.proxyName) && (!has(self.proxyName) || self.proxyName == oldSelf.proxyName)",message="proxyName is immutable",fieldPath=".proxyName"
	// +kubebuilder:validation:XValidation:rule="has(self.grant) == has(oldSelf.grant) && (!has(self.grant) || self.grant == oldSelf.grant)",message="grant is immutable",fieldPath=".grant"
	// +kubebuilder:validation:XValidation:rule="has(self.targets) == has(oldSelf.targets) && (!has(self.targets) || self.targets == oldSelf.targets)",message="targets is immutable",fieldPath=".targets"
	// +kubebuilder:validation:XValidation:rule="self.mode == oldSelf.mode",message="mode is immutable",fieldPath=".mode"
	// +kubebuilder:validation:XValidation:rule="has(self.holder) == has(oldSelf.holder) && (!has(self.holder) || self.holder == oldSelf.holder)",message="holder is immutable",fieldPath=".holder"
	// +kubebuilder:validation:XValidation:rule="has(self.ttlSeconds) == has(oldSelf.ttlSeconds) && (!has(self.ttlSeconds) || self.ttlSeconds == oldSelf.ttlSeconds)",message="ttlSeconds is immutable",fieldPath=".ttlSeconds"
	// +kubebuilder:validation:XValidation:rule="has(self.waitSeconds) == has(oldSelf.waitSeconds) && (!has(self.waitSeconds) || self.waitSeconds == oldSelf.waitSeconds)",message="waitSeconds is immutable",fieldPath=".waitSeconds"
	// +kubebuilder:validation:XValidation:rule="has(self.ttlSecondsAfterFinished) == has(oldSelf.ttlSecondsAfterFinished) && (!has(self.ttlSecondsAfterFinished) || self.ttlSecondsAfterFinished == oldSelf.ttlSecondsAfterFinished)",message="ttlSecondsAfterFinished is immutable",fieldPath=".ttlSecondsAfterFinished"
	// +kubebuilder:validation:XValidation:rule="has(self.excludedProxyNames) == has(oldSelf.excludedProxyNames) && (!has(self.excludedProxyNames) || self.excludedProxyNames == oldSelf.excludedProxyNames)",message="excludedProxyNames is immutable",fieldPath=".excludedProxyNames"
	// +kubebuilder:validation:XValidation:rule="self.onProxyFailure == oldSelf.onProxyFailure",message="onProxyFailure is immutable",fieldPath=".onProxyFailure"
	Spec ProxyLeaseSpec `json:"spec"`
	// status is written by the allocator.
	// +optional
	Status ProxyLeaseStatus `json:"status,omitempty"`
}

// ProxyLeaseList is a list of ProxyLeases.
//
// +kubebuilder:object:root=true
type ProxyLeaseList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ProxyLease `json:"items"`
}
