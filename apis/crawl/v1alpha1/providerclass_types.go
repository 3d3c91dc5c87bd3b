package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ProviderType names the code that provisions the proxies of a class. It is an open set: third parties use a
// domain-prefixed name such as cloud.example.org/vm.
type ProviderType string

// The types that come with the operator.
const (
	ProviderKubernetes ProviderType = "kubernetes"
	ProviderGCP        ProviderType = "gcp"
	ProviderKVM        ProviderType = "kvm"
	ProviderKVM2       ProviderType = "kvm2"
)

// EgressScope says whether the instances of a class leave by addresses of their own.
// +kubebuilder:validation:Enum=PerInstance;Shared;Rotating
type EgressScope string

const (
	// EgressPerInstance instances leave by an address of their own.
	EgressPerInstance EgressScope = "PerInstance"
	// EgressShared instances leave by one common address: a cooldown of one counts for all.
	EgressShared EgressScope = "Shared"
	// EgressRotating instances change their address by themselves.
	EgressRotating EgressScope = "Rotating"
)

// GarbageCollectionMode says what happens to instances whose Proxy is gone.
// +kubebuilder:validation:Enum=Delete;Report;Off
type GarbageCollectionMode string

const (
	// GarbageCollectionDelete deletes orphans; this is the default.
	GarbageCollectionDelete GarbageCollectionMode = "Delete"
	// GarbageCollectionReport only reports orphans.
	GarbageCollectionReport GarbageCollectionMode = "Report"
	// GarbageCollectionOff does not look for orphans.
	GarbageCollectionOff GarbageCollectionMode = "Off"
)

// UserCloudInitPolicy says whether a Proxy may bring its own user data.
// +kubebuilder:validation:Enum=Allowed;Denied
type UserCloudInitPolicy string

const (
	// UserCloudInitAllowed admits spec.cloudInit; this is the default.
	UserCloudInitAllowed UserCloudInitPolicy = "Allowed"
	// UserCloudInitDenied refuses spec.cloudInit.
	UserCloudInitDenied UserCloudInitPolicy = "Denied"
)

// DefaultControllerName is the controllerName of a class that names none.
const DefaultControllerName = "crawl.example.com/default"

// ProviderClassSpec configures one named instance of a provider.
// +kubebuilder:validation:XValidation:rule="self.type in ['kubernetes', 'gcp', 'kvm', 'kvm2'] || self.type.contains('/')",message="type must be kubernetes, gcp, kvm, kvm2 or a domain-prefixed name",fieldPath=".type"
// +kubebuilder:validation:XValidation:rule="!has(self.kubernetes) || self.type == 'kubernetes'",message="kubernetes is only allowed when type is kubernetes",fieldPath=".kubernetes",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="has(self.gcp) == (self.type == 'gcp')",message="gcp is required when type is gcp and forbidden otherwise",fieldPath=".gcp"
// +kubebuilder:validation:XValidation:rule="has(self.kvm) == (self.type == 'kvm')",message="kvm is required when type is kvm and forbidden otherwise",fieldPath=".kvm"
// +kubebuilder:validation:XValidation:rule="has(self.kvm2) == (self.type == 'kvm2')",message="kvm2 is required when type is kvm2 and forbidden otherwise",fieldPath=".kvm2"
// +kubebuilder:validation:XValidation:rule="!has(self.parametersRef) || self.type.contains('/')",message="parametersRef is only allowed for domain-prefixed types",fieldPath=".parametersRef",reason=FieldValueForbidden
type ProviderClassSpec struct {
	// type names the provider. Immutable. It is part of a finalizer's name, which bounds its length.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=54
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9./]*[a-z0-9])?$`
	Type ProviderType `json:"type"`
	// controllerName says which installation of the operator handles the class. Immutable.
	// Default: crawl.example.com/default.
	// +optional
	// +kubebuilder:default="crawl.example.com/default"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ControllerName string `json:"controllerName,omitempty"`
	// allowedNamespaces says which namespaces may use the class: a Proxy is root on a machine of this class.
	// +required
	AllowedNamespaces NamespaceAccess `json:"allowedNamespaces"`
	// userCloudInit says whether a Proxy may bring its own user data: Allowed or Denied. Default: Allowed.
	// +optional
	// +kubebuilder:default=Allowed
	UserCloudInit UserCloudInitPolicy `json:"userCloudInit,omitempty"`
	// kubernetes configures type kubernetes; every field has a default.
	// +optional
	Kubernetes *KubernetesClass `json:"kubernetes,omitempty"`
	// gcp configures type gcp.
	// +optional
	GCP *GCPClass `json:"gcp,omitempty"`
	// kvm configures type kvm.
	// +optional
	KVM *LibvirtClass `json:"kvm,omitempty"`
	// kvm2 configures type kvm2.
	// +optional
	KVM2 *LibvirtClass `json:"kvm2,omitempty"`
	// parametersRef names an object that configures a third-party type.
	// +optional
	ParametersRef *TypedRef `json:"parametersRef,omitempty"`
	// exposure says what the generated proxy configuration admits.
	// +optional
	Exposure *Exposure `json:"exposure,omitempty"`
	// egressScope says whether instances leave by addresses of their own. Default: Shared for kubernetes, else PerInstance.
	// +optional
	EgressScope EgressScope `json:"egressScope,omitempty"`
	// healthCheck says how proxies of the class are probed, where they do not say it themselves.
	// +optional
	HealthCheck *HealthCheck `json:"healthCheck,omitempty"`
	// garbageCollection says what happens to instances whose Proxy is gone: Delete, Report or Off. Default: Delete.
	// +optional
	// +kubebuilder:default=Delete
	GarbageCollection GarbageCollectionMode `json:"garbageCollection,omitempty"`
	// maxConcurrentCreates is how many instances may be on their way at the same time. Unit: instances. Default: 20.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxConcurrentCreates *int32 `json:"maxConcurrentCreates,omitempty"`
	// maxConcurrentReplacements is how many instances may be replaced at the same time. Unit: instances. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxConcurrentReplacements *int32 `json:"maxConcurrentReplacements,omitempty"`
	// provisionTimeoutSeconds is how long an instance may take to run before it is replaced. Unit: seconds. Default: 600.
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=86400
	ProvisionTimeoutSeconds *int32 `json:"provisionTimeoutSeconds,omitempty"`
}

// NamespaceAccess selects namespaces.
// +kubebuilder:validation:XValidation:rule="has(self.selector) == (self.from == 'Selector')",message="selector is required when from is Selector and forbidden otherwise",fieldPath=".selector"
type NamespaceAccess struct {
	// from is All or Selector.
	// +required
	// +kubebuilder:validation:Enum=All;Selector
	From string `json:"from"`
	// selector selects namespaces by their labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// The values of NamespaceAccess.From.
const (
	NamespacesFromAll      = "All"
	NamespacesFromSelector = "Selector"
)

// KubernetesClass configures proxies that are Squid pods beside their Proxy.
type KubernetesClass struct {
	// image is a container image with a squid program. Default: ubuntu/squid:6.6-24.04_edge.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`
	// resources of the Squid container. Default: requests of 50m CPU and 64Mi memory and a limit of 256Mi memory.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
}

// GCPClass configures proxies that are Compute Engine instances.
type GCPClass struct {
	// project is the id of the Google Cloud project. It never changes: in another project nobody would look for the instances
	// that there are. Another project is another class.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="project is immutable: make another class for another project"
	// +kubebuilder:validation:MinLength=6
	// +kubebuilder:validation:MaxLength=63
	Project string `json:"project"`
	// network is the VPC network: a name, or projects/HOST/global/networks/NAME for a shared one. Default: default, unless
	// subnetwork is set.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Network string `json:"network,omitempty"`
	// subnetwork is a name, taken in the region of the zone, or projects/HOST/regions/REGION/subnetworks/NAME for a shared one.
	// Networks that make none by themselves need it. Default: the network's own.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Subnetwork string `json:"subnetwork,omitempty"`
	// networkTag is put on every instance for firewall rules. Default: egress-proxy.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	NetworkTag string `json:"networkTag,omitempty"`
	// diskSizeGb is the size of the boot disk, at least 10 and at least that of the image. Unit: gibibytes. Default: 10.
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=65536
	DiskSizeGb *int32 `json:"diskSizeGb,omitempty"`
	// diskType is the type of the boot disk, such as pd-balanced. Default: Compute Engine's own.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	DiskType string `json:"diskType,omitempty"`
	// zones are where Proxies without placement.zone go. They spread evenly over the zones, whatever their order, and to another
	// one when a zone is full. Default: none, then every Proxy must name its zone.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Zones []string `json:"zones,omitempty"`
	// provisioningModel is STANDARD or SPOT. A SPOT instance may be taken away at any time; it is then made anew, with another
	// address. Default: STANDARD.
	// +optional
	// +kubebuilder:validation:Enum=STANDARD;SPOT
	ProvisioningModel string `json:"provisioningModel,omitempty"`
	// networkTier is PREMIUM or STANDARD. Default: the project's own.
	// +optional
	// +kubebuilder:validation:Enum=PREMIUM;STANDARD
	NetworkTier string `json:"networkTier,omitempty"`
	// serviceAccount is attached to instances by its e-mail address. Whoever is root on an instance has its rights. Default: none.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ServiceAccount string `json:"serviceAccount,omitempty"`
}

// Exposure says what a generated proxy configuration admits.
type Exposure struct {
	// allowedSourceRanges are the ranges whose clients may use the proxy. Default: private ranges.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="self.all(c, isCIDR(c))",message="allowedSourceRanges must be CIDR ranges such as 10.0.0.0/8"
	AllowedSourceRanges []string `json:"allowedSourceRanges,omitempty"`
	// connectPorts are the ports that CONNECT may reach. Unit: TCP port. Default: 443.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=65535
	ConnectPorts []int32 `json:"connectPorts,omitempty"`
	// allowPrivateTargets lets clients reach private ranges through the proxy; loopback, link-local and metadata addresses
	// stay closed. Default: false.
	// +optional
	AllowPrivateTargets *bool `json:"allowPrivateTargets,omitempty"`
}

// ProviderClassStatus is what the provider manager knows of the class.
type ProviderClassStatus struct {
	// observedGeneration is the generation the manager has taken in. Unit: generation. Default: unset.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// egressScope that holds for the class.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	EgressScope string `json:"egressScope,omitempty"`
	// hosts of the class and whether they can be reached; written on transitions.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Hosts []ClassHostStatus `json:"hosts,omitempty"`
	// conditions of the class; an absent one means Unknown.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ClassHostStatus says whether one host can be reached.
type ClassHostStatus struct {
	// name of the host.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// reachable says whether the last calls went through; absent as long as none has been made.
	// +optional
	Reachable *bool `json:"reachable,omitempty"`
	// reason is a CamelCase word that says why not: AuthFailed, Unreachable or NotChecked.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`
}

// ProviderClass is a named, configured instance of a provider.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=pxc,categories=egress,path=providerclasses
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="crawl.example.com/bundle-version=1"
// +kubebuilder:printcolumn:name="TYPE",type=string,JSONPath=".spec.type"
// +kubebuilder:printcolumn:name="ACCEPTED",type=string,JSONPath=".status.conditions[?(@.type==\"Accepted\")].status"
// +kubebuilder:printcolumn:name="READY",type=string,JSONPath=".status.conditions[?(@.type==\"Ready\")].status"
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=".metadata.creationTimestamp"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must be at most 63 characters",fieldPath=".metadata"
type ProviderClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec configures the provider.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.type == oldSelf.type",message="type is immutable",fieldPath=".type"
	// +kubebuilder:validation:XValidation:rule="self.controllerName == oldSelf.controllerName",message="controllerName is immutable",fieldPath=".controllerName"
	Spec ProviderClassSpec `json:"spec"`
	// status is what the provider manager knows of the class.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Accepted", status: "Unknown", reason: "Pending", message: "Waiting for a provider manager of this type", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status ProviderClassStatus `json:"status,omitempty"`
}

// ProviderClassList is a list of ProviderClasses.
//
// +kubebuilder:object:root=true
type ProviderClassList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ProviderClass `json:"items"`
}
