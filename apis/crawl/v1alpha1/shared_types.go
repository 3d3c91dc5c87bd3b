package v1alpha1

// LocalSecretRef names a Secret in the namespace of the object that refers to it.
type LocalSecretRef struct {
	// name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// SecretKeyRef names one key of a Secret in the namespace of the object that refers to it.
type SecretKeyRef struct {
	// name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// key within the Secret's data.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key"`
}

// LocalRef names an object in the namespace of the object that refers to it.
type LocalRef struct {
	// name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// TypedRef names an object of any kind, for the parameters of third-party provider types.
type TypedRef struct {
	// group of the object's API; empty for the core group.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Group string `json:"group,omitempty"`
	// kind of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// namespace of the object; empty when it is cluster-scoped.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}

// HealthCheckMode says whether a proxy is probed.
// +kubebuilder:validation:Enum=Enabled;Disabled
type HealthCheckMode string

const (
	// HealthCheckEnabled probes the proxy; this is the default.
	HealthCheckEnabled HealthCheckMode = "Enabled"
	// HealthCheckDisabled does not probe the proxy: its health stays Unknown and it is never leased.
	HealthCheckDisabled HealthCheckMode = "Disabled"
)

// HealthCheck says how a proxy is probed. A field that is not set here is taken from the ProviderClass, then from the
// operator's flags; the defaults in the descriptions are those of the flags and are not filled in by the API server.
type HealthCheck struct {
	// mode is Enabled or Disabled. Default: Enabled.
	// +optional
	Mode HealthCheckMode `json:"mode,omitempty"`
	// targets are the URLs fetched through the proxy, in rotation. Default: the operator's --health-check-urls.
	// +optional
	// +listType=map
	// +listMapKey=url
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	Targets []ProbeTarget `json:"targets,omitempty"`
	// periodSeconds is the time between two probes of a healthy proxy. Unit: seconds. Default: 60.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	PeriodSeconds *int32 `json:"periodSeconds,omitempty"`
	// timeoutSeconds bounds one whole probe, dialling included. Unit: seconds. Default: 10.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=120
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`
	// fastPeriodSeconds is the time between two probes while the verdict is open: before the first one and while results
	// differ from the current one. Unit: seconds. Default: 5.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	FastPeriodSeconds *int32 `json:"fastPeriodSeconds,omitempty"`
	// unhealthyPeriodMaxSeconds is the longest time between two probes of a proxy that stays unhealthy; the time grows up
	// to it. Unit: seconds. Default: 300.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	UnhealthyPeriodMaxSeconds *int32 `json:"unhealthyPeriodMaxSeconds,omitempty"`
	// failureThreshold is how many probes in a row must fail before a healthy proxy is called unhealthy. Unit: probes.
	// Default: 3.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	FailureThreshold *int32 `json:"failureThreshold,omitempty"`
	// successThreshold is how many probes in a row must succeed before an unhealthy proxy is called healthy again; the
	// first success of a new proxy is enough. Unit: probes. Default: 2.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	SuccessThreshold *int32 `json:"successThreshold,omitempty"`
	// maxBodyBytes is how much of an answer is read when its body is checked. Unit: bytes. Default: 65536.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1048576
	MaxBodyBytes *int32 `json:"maxBodyBytes,omitempty"`
	// exitIP says what is done with the address the proxy is seen to leave from.
	// +optional
	ExitIP *ExitIP `json:"exitIP,omitempty"`
}

// ProbeTarget is one URL that is fetched through a proxy.
type ProbeTarget struct {
	// url is an https URL without user information.
	// +required
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() == 'https' && url(self).getHostname() != '' && !self.contains('@')",message="url must be an https URL with a host and without user information"
	URL string `json:"url"`
	// owned says that the target belongs to the owner of the fleet, so that TLS sessions may be resumed. Default: false.
	// +optional
	Owned *bool `json:"owned,omitempty"`
	// caBundle is a PEM bundle that verifies the target's certificate instead of the system's roots.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	CABundle string `json:"caBundle,omitempty"`
	// expect says which answers count. Default: any HTTP answer over verified TLS proves the tunnel.
	// +optional
	Expect *ProbeExpect `json:"expect,omitempty"`
}

// ProbeExpect says which answers of a probe target count as success.
type ProbeExpect struct {
	// statuses are the HTTP status codes that count when strict is set. Unit: HTTP status code. Default: 200 to 399.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Minimum=100
	// +kubebuilder:validation:items:Maximum=599
	Statuses []int32 `json:"statuses,omitempty"`
	// bodyContains must occur in the part of the body that is read.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	BodyContains string `json:"bodyContains,omitempty"`
	// nonce appends a random query parameter to every request so that a cache cannot answer it. Default: false.
	// +optional
	Nonce *bool `json:"nonce,omitempty"`
	// strict makes a status outside of statuses a failure. Default: false.
	// +optional
	Strict *bool `json:"strict,omitempty"`
}

// ExitIP says what is done with the address a proxy is seen to leave from.
type ExitIP struct {
	// mode is Ignore, Report, Match (within cidrs), Instance (the instance's own address) or Distinct (within its pool).
	// Default: Report.
	// +optional
	// +kubebuilder:validation:Enum=Ignore;Report;Match;Instance;Distinct
	Mode string `json:"mode,omitempty"`
	// cidrs are the ranges that mode Match admits.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="self.all(c, isCIDR(c))",message="cidrs must be CIDR ranges such as 203.0.113.0/24"
	CIDRs []string `json:"cidrs,omitempty"`
}
