package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

// ProxyStatus is what is known of a Proxy. Three field managers write disjoint parts of it, see conditions.go.
type ProxyStatus struct {
	// observedGeneration is the generation that core has taken in. Unit: generation. Default: unset.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// phase is a one-word summary for people; programs read the conditions.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Phase ProxyPhase `json:"phase,omitempty"`
	// binding says which provider manager handles the proxy. Written once.
	// +optional
	Binding *Binding `json:"binding,omitempty"`
	// instance is everything the provisioning must remember, always written whole.
	// +optional
	Instance *Instance `json:"instance,omitempty"`
	// health is what the last transition of the health engine found.
	// +optional
	Health *Health `json:"health,omitempty"`
	// egressIdentity is the key of the exit that this proxy leaves by: its group, its measured exit address or its
	// instance. Proxies of one identity share their cooldowns.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	EgressIdentity string `json:"egressIdentity,omitempty"`
	// cooldowns say for which targets the proxy is not leased and until when.
	// +optional
	// +listType=map
	// +listMapKey=target
	// +kubebuilder:validation:MaxItems=64
	Cooldowns []Cooldown `json:"cooldowns,omitempty"`
	// exclusive names the Exclusive lease that holds the proxy.
	// +optional
	Exclusive *Exclusive `json:"exclusive,omitempty"`
	// immutableReplicas is always 1, see spec.immutableReplicas. Filled in by the API server. Unit: proxies. Default: 1.
	// +optional
	// +kubebuilder:default=1
	ImmutableReplicas int32 `json:"immutableReplicas,omitempty"`
	// conditions of the proxy; an absent one means Unknown.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Binding says which provider manager handles a proxy.
type Binding struct {
	// type of the ProviderClass.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Type ProviderType `json:"type,omitempty"`
	// className is the name of the ProviderClass.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	ClassName string `json:"className,omitempty"`
	// classUID is the UID of the ProviderClass: a namesake that was re-created is another class.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	ClassUID types.UID `json:"classUID,omitempty"`
	// boundTime is when the binding was written.
	// +optional
	BoundTime *metav1.Time `json:"boundTime,omitempty"`
}

// Instance is everything the provisioning must remember of one Proxy. It is written whole by one manager.
// +structType=atomic
type Instance struct {
	// name of the instance at the provider, derived from the cluster and the UID of the Proxy.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// zone or host that was chosen for the current attempt; stored before the instance is created.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Zone string `json:"zone,omitempty"`
	// providerID finds the instance without anything else: gce://project/zone/name, libvirt://host/uuid, pod://namespace/name.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	ProviderID string `json:"providerID,omitempty"`
	// id is the provider's own id of this incarnation.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ID string `json:"id,omitempty"`
	// hash of what the running instance was made from.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Hash string `json:"hash,omitempty"`
	// desiredHash of what it should be made from.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	DesiredHash string `json:"desiredHash,omitempty"`
	// state of the instance at the provider.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	State string `json:"state,omitempty"`
	// operation is the provider's opaque receipt of the last accepted create call.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Operation string `json:"operation,omitempty"`
	// message is a stable sentence about the state.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// addresses of the instance; the first one is the endpoint.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=253
	Addresses []string `json:"addresses,omitempty"`
	// port the instance listens on, which stays while a changed specification waits for its replacement. Unit: TCP port.
	// Default: unset (as in spec.port).
	// +optional
	Port int32 `json:"port,omitempty"`
	// creationTime is the provider's time of creation.
	// +optional
	CreationTime *metav1.Time `json:"creationTime,omitempty"`
	// intentTime is when the current attempt to create was decided; it is stored before the call.
	// +optional
	IntentTime *metav1.Time `json:"intentTime,omitempty"`
	// submittedTime is when the provider accepted the current attempt.
	// +optional
	SubmittedTime *metav1.Time `json:"submittedTime,omitempty"`
	// startedTime is when the instance was first seen.
	// +optional
	StartedTime *metav1.Time `json:"startedTime,omitempty"`
	// missingTime is when the provider first said that the instance does not exist; it is believed the second time.
	// +optional
	MissingTime *metav1.Time `json:"missingTime,omitempty"`
	// classGeneration is the generation of the class the instance was made from. Unit: generation. Default: unset.
	// +optional
	ClassGeneration int64 `json:"classGeneration,omitempty"`
	// attempt counts the attempts to create since the last success. Unit: attempts. Default: 0.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`
}

// Health is what the last transition of the health engine found.
type Health struct {
	// instanceID is the incarnation the result is about; of another one it counts as unknown.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	InstanceID string `json:"instanceID,omitempty"`
	// lastHealthCheckTime is when a probe last changed the status. The time of the last probe is in the metrics.
	// +optional
	LastHealthCheckTime *metav1.Time `json:"lastHealthCheckTime,omitempty"`
	// egressIP is the address the proxy was seen to leave from.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	EgressIP string `json:"egressIP,omitempty"`
}

// Cooldown says until when a proxy is not leased for a target.
type Cooldown struct {
	// target is the host that must rest.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Target string `json:"target"`
	// untilTime is when the proxy may be leased for the target again.
	// +optional
	UntilTime *metav1.Time `json:"untilTime,omitempty"`
	// hits counts the reports that led here and escalates the cooldown. Unit: reports. Default: 0.
	// +optional
	Hits int32 `json:"hits,omitempty"`
	// instanceID is the incarnation that was reported; another one starts clean.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	InstanceID string `json:"instanceID,omitempty"`
}

// Exclusive names the Exclusive lease that holds a proxy.
type Exclusive struct {
	// leaseUID is the UID of the ProxyLease.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	LeaseUID types.UID `json:"leaseUID,omitempty"`
	// epoch of the leader that granted it. Unit: leadership term. Default: unset.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
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
// +kubebuilder:printcolumn:name="POOL",type=string,JSONPath=".metadata.labels.crawl\\.example\\.com/pool",priority=1
// +kubebuilder:printcolumn:name="ZONE",type=string,JSONPath=".status.instance.zone",priority=1
// +kubebuilder:printcolumn:name="EGRESS IP",type=string,JSONPath=".status.health.egressIP",priority=1
// +kubebuilder:printcolumn:name="LEASING",type=string,JSONPath=".spec.leasing",priority=1
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=".metadata.creationTimestamp",priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must be at most 63 characters"
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
