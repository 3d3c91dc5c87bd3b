package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

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
// +structType=atomic
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
// +structType=atomic
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
// +structType=atomic
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
