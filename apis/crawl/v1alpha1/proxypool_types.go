package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// ProxyPoolSpec is what a pool should be.
// +kubebuilder:validation:XValidation:rule="(has(self.minReadySeconds) ? self.minReadySeconds : 0) < (has(self.progressDeadlineSeconds) ? self.progressDeadlineSeconds : 600)",message="progressDeadlineSeconds, which is 600 unless it is set, must be greater than minReadySeconds",fieldPath=".progressDeadlineSeconds"
type ProxyPoolSpec struct {
	// replicas is how many proxies the pool keeps. Unit: proxies. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=5000
	Replicas *int32 `json:"replicas,omitempty"`
	// template of the proxies.
	// +required
	Template ProxyTemplate `json:"template"`
	// strategy says how a changed template reaches the proxies.
	// +optional
	Strategy *PoolStrategy `json:"strategy,omitempty"`
	// rollout replaces proxies without a change of the template.
	// +optional
	Rollout *PoolRollout `json:"rollout,omitempty"`
	// recycle replaces proxies by age or by reports.
	// +optional
	Recycle *PoolRecycle `json:"recycle,omitempty"`
	// remediation replaces proxies that stay unhealthy.
	// +optional
	Remediation *PoolRemediation `json:"remediation,omitempty"`
	// leases bounds the leases of the pool's proxies.
	// +optional
	Leases *PoolLeases `json:"leases,omitempty"`
	// minReadySeconds is how long a proxy must be ready before it counts as available. Unit: seconds. Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	MinReadySeconds *int32 `json:"minReadySeconds,omitempty"`
	// progressDeadlineSeconds is how long a rollout may stand still before it is reported. Unit: seconds. Default: 600.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`
	// paused stops replacing; scaling goes on. Default: false.
	// +optional
	Paused *bool `json:"paused,omitempty"`
}

// ProxyTemplate is what the proxies of a pool are made from.
type ProxyTemplate struct {
	// metadata of the proxies.
	// +optional
	Metadata TemplateMetadata `json:"metadata,omitzero"`
	// spec of the proxies.
	// +required
	// +kubebuilder:validation:XValidation:rule="has(self.provider)",message="provider is required",fieldPath=".provider",reason=FieldValueRequired
	Spec ProxyTemplateSpec `json:"spec"`
}

// TemplateMetadata is the metadata of a pool's proxies.
type TemplateMetadata struct {
	// labels of the proxies: the attributes by which they are leased.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('crawl.example.com/'))",message="labels under crawl.example.com/ are the operator's"
	Labels map[string]string `json:"labels,omitempty"`
	// annotations of the proxies.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('crawl.example.com/') || k == 'crawl.example.com/deletion-cost')",message="annotations under crawl.example.com/ are the operator's, except deletion-cost"
	Annotations map[string]string `json:"annotations,omitempty"`
}

// PoolStrategyType says when proxies of an old template are replaced.
// +kubebuilder:validation:Enum=RollingUpdate;OnRelease
type PoolStrategyType string

const (
	// StrategyRollingUpdate replaces proxies within maxSurge and maxUnavailable; this is the default.
	StrategyRollingUpdate PoolStrategyType = "RollingUpdate"
	// StrategyOnRelease replaces a proxy when its last lease ends.
	StrategyOnRelease PoolStrategyType = "OnRelease"
)

// PoolStrategy says how a changed template reaches the proxies.
// +kubebuilder:validation:XValidation:rule="!(has(self.maxSurge) && has(self.maxUnavailable) && string(self.maxSurge).matches('^0+%?$') && string(self.maxUnavailable).matches('^0+%?$'))",message="maxUnavailable and maxSurge must not both be 0",fieldPath=".maxUnavailable"
type PoolStrategy struct {
	// type is RollingUpdate or OnRelease. Default: RollingUpdate.
	// +optional
	Type PoolStrategyType `json:"type,omitempty"`
	// maxSurge is how many proxies may exist above replicas. Unit: proxies or percent of replicas. Default: 25%.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? (self >= 0 && self <= 5000) : string(self).matches('^([0-9]{1,2}|100)%$')",message="maxSurge must be a number from 0 to 5000 or a percentage such as 25%"
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`
	// maxUnavailable is how many proxies may be missing during a rollout. Unit: proxies or percent of replicas.
	// Default: 25%.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? (self >= 0 && self <= 5000) : string(self).matches('^([0-9]{1,2}|100)%$')",message="maxUnavailable must be a number from 0 to 5000 or a percentage such as 25%"
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// PoolRollout replaces proxies without a change of the template.
type PoolRollout struct {
	// afterTime replaces every proxy that was created before it.
	// +optional
	AfterTime *metav1.Time `json:"afterTime,omitempty"`
}

// PoolRecycle replaces proxies by age or by reports.
type PoolRecycle struct {
	// maxAgeSeconds replaces proxies that are older. Unit: seconds. Default: unset (never).
	// +optional
	// +kubebuilder:validation:Minimum=60
	// +kubebuilder:validation:Maximum=31536000
	MaxAgeSeconds *int32 `json:"maxAgeSeconds,omitempty"`
	// jitterPercent spreads maxAgeSeconds by up to this share. Unit: percent. Default: 10.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=50
	JitterPercent *int32 `json:"jitterPercent,omitempty"`
	// afterReports replaces proxies that were reported often enough.
	// +optional
	AfterReports *RecycleReports `json:"afterReports,omitempty"`
}

// RecycleReports says how many reports make a pool replace a proxy.
type RecycleReports struct {
	// count of reports within the window. Unit: reports. Default: none, required.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Count int32 `json:"count"`
	// windowSeconds is how far back reports count. Unit: seconds. Default: 3600.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	WindowSeconds *int32 `json:"windowSeconds,omitempty"`
	// distinctHolders is how many different holders must have reported. Unit: holders. Default: 2.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	DistinctHolders *int32 `json:"distinctHolders,omitempty"`
}

// PoolRemediation replaces proxies that stay unhealthy.
type PoolRemediation struct {
	// unhealthyTimeoutSeconds is how long a proxy may be unhealthy. Unit: seconds. Default: unset (never replaced).
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	UnhealthyTimeoutSeconds *int32 `json:"unhealthyTimeoutSeconds,omitempty"`
	// maxUnhealthy stops replacing for age or health while more proxies than this are unhealthy at once: then it is the
	// probe target or the uplink that is down. Unit: proxies or percent of replicas. Default: 40%.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? (self >= 0 && self <= 5000) : string(self).matches('^([0-9]{1,2}|100)%$')",message="maxUnhealthy must be a number from 0 to 5000 or a percentage such as 40%"
	MaxUnhealthy *intstr.IntOrString `json:"maxUnhealthy,omitempty"`
}

// PoolLeases bounds the leases of a pool's proxies.
// +kubebuilder:validation:XValidation:rule="!has(self.defaultTTLSeconds) || !has(self.maxTTLSeconds) || self.defaultTTLSeconds <= self.maxTTLSeconds",message="defaultTTLSeconds must not be greater than maxTTLSeconds",fieldPath=".defaultTTLSeconds"
type PoolLeases struct {
	// defaultTTLSeconds is the TTL of a lease that names none. Unit: seconds. Default: 300.
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=86400
	DefaultTTLSeconds *int32 `json:"defaultTTLSeconds,omitempty"`
	// maxTTLSeconds is the longest TTL that is granted; longer wishes are clamped. Unit: seconds. Default: 86400.
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=86400
	MaxTTLSeconds *int32 `json:"maxTTLSeconds,omitempty"`
}

// ProxyPoolStatus is what is known of a pool.
type ProxyPoolStatus struct {
	// observedGeneration is the generation the pool controller has taken in. Unit: generation. Default: unset.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// replicas that exist and are neither draining nor being deleted. Unit: proxies. Default: 0.
	// +optional
	Replicas int32 `json:"replicas"`
	// ready replicas. Unit: proxies. Default: 0.
	// +optional
	Ready int32 `json:"ready"`
	// available replicas: ready for at least minReadySeconds. Unit: proxies. Default: 0.
	// +optional
	Available int32 `json:"available"`
	// updated replicas: made from the current template. Unit: proxies. Default: 0.
	// +optional
	Updated int32 `json:"updated"`
	// draining proxies. Unit: proxies. Default: 0.
	// +optional
	Draining int32 `json:"draining"`
	// terminating proxies. Unit: proxies. Default: 0.
	// +optional
	Terminating int32 `json:"terminating"`
	// leased is how many leases the pool's proxies carry; refreshed at most every 10 s. Unit: leases. Default: 0.
	// +optional
	Leased int32 `json:"leased"`
	// pending is how many leases wait for the pool; refreshed at most every 10 s. Unit: leases. Default: 0.
	// +optional
	Pending int32 `json:"pending"`
	// collisionCount counts names that were held by something else. Unit: collisions. Default: 0.
	// +optional
	CollisionCount int32 `json:"collisionCount,omitempty"`
	// selector of the pool's proxies, for the scale subresource.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Selector string `json:"selector,omitempty"`
	// currentRevision is the revision that all proxies had last.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	CurrentRevision string `json:"currentRevision,omitempty"`
	// updateRevision is the revision of the current template.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	UpdateRevision string `json:"updateRevision,omitempty"`
	// conditions of the pool; an absent one means Unknown.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ProxyPool keeps a number of proxies made from one template.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=pxp,categories=egress
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="crawl.example.com/bundle-version=1"
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="DESIRED",type=integer,JSONPath=".spec.replicas"
// +kubebuilder:printcolumn:name="READY",type=integer,JSONPath=".status.ready"
// +kubebuilder:printcolumn:name="UPDATED",type=integer,JSONPath=".status.updated"
// +kubebuilder:printcolumn:name="LEASED",type=integer,JSONPath=".status.leased"
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=".metadata.creationTimestamp"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 40",message="metadata.name must be at most 40 characters",fieldPath=".metadata"
type ProxyPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the pool should be.
	// +required
	Spec ProxyPoolSpec `json:"spec"`
	// status is what is known of the pool.
	// +optional
	// +kubebuilder:default={replicas: 0, ready: 0, available: 0, updated: 0, draining: 0, terminating: 0, leased: 0, pending: 0, conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "Waiting for the core manager", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status ProxyPoolStatus `json:"status,omitempty"`
}

// ProxyPoolList is a list of ProxyPools.
//
// +kubebuilder:object:root=true
type ProxyPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ProxyPool `json:"items"`
}
