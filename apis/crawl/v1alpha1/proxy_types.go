package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ProxyMode says who made a proxy.
// +kubebuilder:validation:Enum=Managed;External
type ProxyMode string

const (
	// ModeManaged proxies are provisioned by a provider.
	ModeManaged ProxyMode = "Managed"
	// ModeExternal proxies exist elsewhere and are only tracked and probed.
	ModeExternal ProxyMode = "External"
)

// LeasingMode is a person's cordon.
// +kubebuilder:validation:Enum=Enabled;Disabled
type LeasingMode string

const (
	// LeasingEnabled lets the proxy be leased; this is the default.
	LeasingEnabled LeasingMode = "Enabled"
	// LeasingDisabled keeps new leases away; leases that run go on.
	LeasingDisabled LeasingMode = "Disabled"
)

// ReplacePolicy says who replaces the instance when the specification changes.
// +kubebuilder:validation:Enum=Automatic;OnDelete
type ReplacePolicy string

const (
	// ReplaceAutomatic lets the provider manager replace the instance; this is the default.
	ReplaceAutomatic ReplacePolicy = "Automatic"
	// ReplaceOnDelete only reports UpToDate=False; whoever owns the Proxy paces the replacement.
	ReplaceOnDelete ReplacePolicy = "OnDelete"
)

// ProxyPhase is a one-word summary for people. Programs read the conditions.
type ProxyPhase string

// The phases of a Proxy.
const (
	PhasePending      ProxyPhase = "Pending"
	PhaseProvisioning ProxyPhase = "Provisioning"
	PhaseReady        ProxyPhase = "Ready"
	PhaseUnhealthy    ProxyPhase = "Unhealthy"
	PhaseDraining     ProxyPhase = "Draining"
	PhaseReplacing    ProxyPhase = "Replacing"
	PhaseTerminating  ProxyPhase = "Terminating"
	PhaseFailed       ProxyPhase = "Failed"
)

// ProxyTemplateSpec is the part of a Proxy that a pool's template may set as well.
type ProxyTemplateSpec struct {
	// provider is the name of the ProviderClass that provisions the proxy. Immutable.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="provider must be the name of a ProviderClass"
	Provider string `json:"provider,omitempty"`
	// placement says where and on what the instance runs. A change replaces the instance.
	// +optional
	Placement *Placement `json:"placement,omitempty"`
	// cloudInit is the user data of the instance. A change, of the Secret's content too, replaces the instance.
	// +optional
	CloudInit *CloudInit `json:"cloudInit,omitempty"`
	// protocol spoken by the proxy; HTTP is the only one so far. Default: HTTP.
	// +optional
	// +kubebuilder:default=HTTP
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self == 'HTTP'",message="protocol must be HTTP"
	Protocol string `json:"protocol,omitempty"`
	// port the proxy listens on. A change replaces the instance. Unit: TCP port. Default: 3128.
	// +optional
	// +kubebuilder:default=3128
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
	// credentialsSecretRef names a Secret with the keys username and password that clients of the proxy must send. The
	// Secret must carry the label crawl.example.com/proxy-credentials=true.
	// +optional
	CredentialsSecretRef *LocalSecretRef `json:"credentialsSecretRef,omitempty"`
	// capacity is the most leases that may hold the proxy at the same time. Unit: leases. Default: unlimited.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	Capacity *int32 `json:"capacity,omitempty"`
	// egressGroup names an exit that several proxies of the namespace share: a cooldown of one counts for all. Default: as the class says.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	EgressGroup string `json:"egressGroup,omitempty"`
	// deletion says how the proxy is taken away; it holds on every path of deletion.
	// +optional
	Deletion *ProxyDeletion `json:"deletion,omitempty"`
	// healthCheck says how the proxy is probed.
	// +optional
	HealthCheck *HealthCheck `json:"healthCheck,omitempty"`
}

// ProxySpec is what a Proxy should be.
// +kubebuilder:validation:XValidation:rule="self.mode != 'Managed' || has(self.provider)",message="provider is required when mode is Managed",fieldPath=".provider",reason=FieldValueRequired
// +kubebuilder:validation:XValidation:rule="self.mode != 'Managed' || !has(self.external)",message="external is forbidden when mode is Managed",fieldPath=".external",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="self.mode != 'External' || has(self.external)",message="external is required when mode is External",fieldPath=".external",reason=FieldValueRequired
// +kubebuilder:validation:XValidation:rule="self.mode != 'External' || !has(self.provider)",message="provider is forbidden when mode is External",fieldPath=".provider",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="self.mode != 'External' || !has(self.placement)",message="placement is forbidden when mode is External",fieldPath=".placement",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="self.mode != 'External' || !has(self.cloudInit)",message="cloudInit is forbidden when mode is External",fieldPath=".cloudInit",reason=FieldValueForbidden
type ProxySpec struct {
	// mode is Managed (provisioned by a provider) or External (exists elsewhere and is only tracked). Immutable.
	// Default: Managed.
	// +optional
	// +kubebuilder:default=Managed
	Mode ProxyMode `json:"mode,omitempty"`
	// external says where an External proxy is.
	// +optional
	External *External `json:"external,omitempty"`

	ProxyTemplateSpec `json:",inline"`

	// leasing is a person's cordon: Disabled keeps new leases away. Default: Enabled.
	// +optional
	// +kubebuilder:default=Enabled
	Leasing LeasingMode `json:"leasing,omitempty"`
	// drainRequests are written by controllers that want the proxy to be empty: no new leases, and leases that run are
	// revoked at the earliest deadline.
	// +optional
	// +listType=map
	// +listMapKey=requester
	// +kubebuilder:validation:MaxItems=16
	DrainRequests []DrainRequest `json:"drainRequests,omitempty"`
	// replacePolicy says who replaces the instance when the specification changes: Automatic (the provider manager) or
	// OnDelete (whoever owns the Proxy). Default: Automatic.
	// +optional
	// +kubebuilder:default=Automatic
	ReplacePolicy ReplacePolicy `json:"replacePolicy,omitempty"`
	// immutableReplicas is always 1. It exists only for the scale subresource, without which a PodDisruptionBudget on
	// proxy pods cannot count them. Unit: proxies. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1
	ImmutableReplicas int32 `json:"immutableReplicas,omitempty"`
}

// Placement says where and on what an instance runs. What the fields mean is the provider's matter.
type Placement struct {
	// zone is the zone or host the instance is in.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Zone string `json:"zone,omitempty"`
	// machineType is the size of the instance.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	MachineType string `json:"machineType,omitempty"`
	// image is what the instance boots.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`
}

// CloudInit is the user data of an instance.
// +kubebuilder:validation:XValidation:rule="!(has(self.inline) && has(self.secretKeyRef))",message="at most one of inline and secretKeyRef may be set"
type CloudInit struct {
	// inline is the user data itself.
	// +optional
	// +kubebuilder:validation:MaxLength=262144
	Inline string `json:"inline,omitempty"`
	// secretKeyRef names the Secret key that holds the user data. The Secret must carry the label
	// crawl.example.com/cloud-init=true.
	// +optional
	SecretKeyRef *SecretKeyRef `json:"secretKeyRef,omitempty"`
}

// External says where a proxy is that the operator did not make.
type External struct {
	// host is the IP address or the DNS name of the proxy, in lower case, without scheme or port.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="isIP(self) || !format.dns1123Subdomain().validate(self).hasValue()",message="host must be an IP address or a lower-case DNS name, without scheme or port"
	Host string `json:"host"`
}

// DrainRequest is one controller's wish that a proxy be empty.
type DrainRequest struct {
	// requester is who asks, for example the pool.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Requester string `json:"requester"`
	// reason is a CamelCase word that says why.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`
	// deadlineTime is when leases that still run are revoked.
	// +optional
	DeadlineTime *metav1.Time `json:"deadlineTime,omitempty"`
}

// ProxyDeletion says how a proxy is taken away.
type ProxyDeletion struct {
	// drainTimeoutSeconds is how long leases may go on after the deletion was asked for; they are revoked then, and only
	// then is the proxy taken away. Unit: seconds. Default: 0 (at once).
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	DrainTimeoutSeconds *int32 `json:"drainTimeoutSeconds,omitempty"`
}

// Proxy is one HTTP egress proxy.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=px,categories=egress
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="crawl.example.com/bundle-version=1"
// +kubebuilder:subresource:scale:specpath=.spec.immutableReplicas,statuspath=.status.immutableReplicas
// +kubebuilder:selectablefield:JSONPath=".status.binding.type"
// +kubebuilder:printcolumn:name="MODE",type=string,JSONPath=".spec.mode"
// +kubebuilder:printcolumn:name="PROVIDER",type=string,JSONPath=".spec.provider"
// +kubebuilder:printcolumn:name="PHASE",type=string,JSONPath=".status.phase"
// +kubebuilder:printcolumn:name="IP",type=string,JSONPath=".status.instance.addresses[0]"
// +kubebuilder:printcolumn:name="HEALTHY",type=string,JSONPath=".status.conditions[?(@.type==\"Healthy\")].status"
// +kubebuilder:printcolumn:name="REASON",type=string,JSONPath=".status.conditions[?(@.type==\"Ready\")].reason",priority=1
// +kubebuilder:printcolumn:name="POOL",type=string,JSONPath=".metadata.labels.crawl\\.example\\.com/pool",priority=1
// +kubebuilder:printcolumn:name="ZONE",type=string,JSONPath=".status.instance.zone",priority=1
// +kubebuilder:printcolumn:name="EGRESS IP",type=string,JSONPath=".status.health.egressIP",priority=1
// +kubebuilder:printcolumn:name="LEASING",type=string,JSONPath=".spec.leasing",priority=1
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=".metadata.creationTimestamp",priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must be at most 63 characters",fieldPath=".metadata"
type Proxy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the proxy should be.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.mode == oldSelf.mode",message="mode is immutable",fieldPath=".mode"
	// +kubebuilder:validation:XValidation:rule="has(self.provider) == has(oldSelf.provider) && (!has(self.provider) || self.provider == oldSelf.provider)",message="provider is immutable",fieldPath=".provider"
	Spec ProxySpec `json:"spec"`
	// status is what is known of the proxy.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "Waiting for the core manager", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status ProxyStatus `json:"status,omitempty"`
}

// EndpointPort is the port to reach the proxy at: that of the instance that runs, which is not yet that of a specification
// that was changed since.
func (p *Proxy) EndpointPort() int32 {
	if p.Status.Instance != nil && p.Status.Instance.Port != 0 {
		return p.Status.Instance.Port
	}
	return p.Spec.Port
}

// ProxyList is a list of Proxies.
//
// +kubebuilder:object:root=true
type ProxyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Proxy `json:"items"`
}
